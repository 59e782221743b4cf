use std::collections::HashMap;

use proptest::prelude::*;

use super::*;
use crate::{Header, KeyHash, Memcached};

fn state(cas: u64, until: u64) -> State {
    State { cas, until, ..Copy::<u16>::empty(0).state }
}

fn hash(key: &[u8]) -> u64 {
    KeyHash::fnv1a_64().hash(key) << 32 | KeyHash::fnv1a_64().hash(key)
}

/// Returns the name of a key on a server. Keys whose hashes differ only in the last byte have the
/// same home position in the index.
fn name(key: &[u8], server: u32) -> Name<'_, u16> {
    Name { hash: hash(key) & !0xff, server, asked: 0, key }
}

impl Shard<u16> {
    fn cas(&self, key: &[u8], server: u32) -> Option<u64> {
        self.find(&name(key, server)).map(|number| self.copy(number).unwrap().state.cas)
    }

    /// Stores a block with or without a prepared reply.
    fn keep_of(
        &mut self,
        prepares: bool,
        now: u64,
        name: &Name<'_, u16>,
        value: &[u8],
        state: State,
    ) -> Option<u32> {
        let application: &dyn Application = if prepares { &Memcached::new(32) } else { &Header::new(0) };
        let (mut room, stored) = ([0; MOST_BLOCK], Stored { flags: 7, cas: 0, bytes: value });
        let sum = |reply: &[u8]| u16::try_from(reply.len()).unwrap();
        let block = Block::of(name.key, &stored, application, sum, &mut room);
        if block.is_none() {
            // the cache also removes a value that can no longer be stored
            self.find(name).into_iter().for_each(|old| self.remove(old));
        }
        self.keep(now, name, &block?, state)
    }

    fn len(&self) -> usize {
        self.copies.iter().filter(|copy| copy.is_used).count()
    }
}

#[derive(Clone, Debug)]
enum Step {
    Keep { key: u8, server: u32, value: usize },
    Remove { key: u8, server: u32 },
    Warm { key: u8, server: u32 },
}

fn step() -> impl Strategy<Value = Step> {
    let value = prop::sample::select(vec![0, 1, 100, 124, 125, 300, 508, 509, 1_500, 1_532, 1_533, 4_000]);
    prop_oneof![
        5 => (0_u8..40, 0_u32..2, value).prop_map(|(key, server, value)| Step::Keep { key, server, value }),
        1 => (0_u8..40, 0_u32..2).prop_map(|(key, server)| Step::Remove { key, server }),
        2 => (0_u8..40, 0_u32..2).prop_map(|(key, server)| Step::Warm { key, server }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// Compares the shard with an unbounded map. Every value in the shard must be the value that
    /// was last stored for its key. Values that are only in the map must have been evicted.
    #[test]
    fn a_copy_is_what_was_kept_last_or_is_gone(steps in prop::collection::vec(step(), 1..300)) {
        let mut shard = Shard::new(40_000, |_| {});
        let room: Vec<usize> = shard.classes.iter().map(|class| class.end - class.first).collect();
        prop_assert!(room.iter().all(|room| *room > 2), "{room:?}");
        let mut exact = HashMap::<(u8, u32), (u64, usize)>::new();
        for (cas, step) in (1..).zip(&steps) {
            match *step {
                Step::Keep { key, server, value } => {
                    let bytes = vec![key ^ 0x55; value];
                    let name_of = [b'k', b'e', b'y', key];
                    let kept = shard.keep_of(key % 2 == 0, 0, &name(&name_of, server), &bytes, state(cas, 1));
                    prop_assert_eq!(kept.is_some(), value + 4 <= 1_536);
                    exact.remove(&(key, server));
                    if kept.is_some() {
                        exact.insert((key, server), (cas, value));
                        prop_assert_eq!(shard.cas(&name_of, server), Some(cas));
                    }
                }
                Step::Remove { key, server } => {
                    if let Some(number) = shard.find(&name(&[b'k', b'e', b'y', key], server)) {
                        shard.remove(number);
                    }
                    exact.remove(&(key, server));
                }
                Step::Warm { key, server } => {
                    if let Some(number) = shard.find(&name(&[b'k', b'e', b'y', key], server)) {
                        shard.warm(number);
                    }
                }
            }
            let (mut found, mut bytes) = (0, 0);
            for key in 0..40 {
                for server in 0..2 {
                    let name_of = [b'k', b'e', b'y', key];
                    let Some(number) = shard.find(&name(&name_of, server)) else { continue };
                    let copy = shard.copy(number).unwrap();
                    let &(cas, value) = exact.get(&(key, server)).expect("a removed value must not reappear");
                    prop_assert!(copy.state.cas == cas && copy.server == server);
                    prop_assert_eq!(shard.key_of(copy), &name_of);
                    prop_assert_eq!(shard.value_of(copy), &vec![key ^ 0x55; value][..]);
                    prop_assert!(shard.candidate(copy.hash).is_some());
                    prop_assert_eq!(shard.block_of(copy).as_ptr().addr() % LINE, 0);
                    let front = [b"VALUE ", &name_of[..], format!(" 7 {value}\r\n").as_bytes()].concat();
                    let reply = [&front, shard.value_of(copy), b"\r\nEND\r\n"].concat();
                    // With its frame, the reply must fit into the 1,428-byte packets that memcached
                    // sends.
                    let is_prepared = key % 2 == 0 && reply.len() <= 1_392;
                    prop_assert_eq!(shard.prepared_of(copy), if is_prepared { &reply[..] } else { &[] });
                    prop_assert_eq!(usize::from(copy.sum), shard.prepared_of(copy).len());
                    (found, bytes) = (found + 1, bytes + 4 + value as u64);
                }
            }
            prop_assert_eq!((found, bytes), (shard.len(), shard.used_bytes));
            exact.retain(|(key, server), _| shard.find(&name(&[b'k', b'e', b'y', *key], *server)).is_some());
            let free: usize = shard.classes.iter().map(|class| class.free.len()).sum();
            prop_assert_eq!(free + shard.len(), shard.copies.len());
        }
    }
}

#[test]
fn what_was_looked_up_stays_and_what_has_ended_goes_first() {
    let mut shard = Shard::new(40_000, |_| {});
    let room = shard.classes[0].end;
    let key = |number: usize| format!("{number}");
    let keep = |shard: &mut Shard<u16>, number: usize, until: u64| {
        shard.keep_of(false, 10, &name(key(number).as_bytes(), 0), b"value", state(1, until)).unwrap()
    };
    for number in 0..room {
        keep(&mut shard, number, 20);
    }
    assert_eq!((shard.len(), shard.evictions), (room, 0));
    // All values were read recently, so the clock hand completes one round and evicts the first
    // value.
    keep(&mut shard, room, 20);
    assert_eq!((shard.cas(b"0", 0), shard.evictions), (None, 1));
    shard.warm(shard.find(&name(b"1", 0)).unwrap());
    keep(&mut shard, room + 1, 20);
    assert_eq!((shard.cas(b"1", 0), shard.cas(b"2", 0)), (Some(1), None));
    // One of the next values was read recently, but has expired.
    let number = shard.find(&name(b"3", 0)).unwrap();
    shard.warm(number);
    shard.copy_mut(number).unwrap().state.until = 10;
    keep(&mut shard, room + 2, 20);
    assert_eq!((shard.cas(b"3", 0), shard.evictions), (None, 3));
}

#[test]
fn shard_same_key_or_hash_has_separate_copies() {
    let mut shard = Shard::new(40_000, |_| {});
    let name = |(key, server, asked)| Name { hash: 7, server, asked, key };
    for (cas, of) in (1..).zip([(&b"a"[..], 0, 1_u16), (b"a", 1, 1), (b"b", 0, 1), (b"a", 0, 2)]) {
        shard.keep_of(false, 0, &name(of), b"", state(cas, 1)).unwrap();
    }
    let cas = |of| shard.find(&name(of)).map(|n| shard.copy(n).unwrap().state.cas);
    assert_eq!([cas((b"a", 0, 1)), cas((b"a", 1, 1)), cas((b"b", 0, 1))], [Some(1), Some(2), Some(3)]);
    assert_eq!([cas((b"a", 0, 2)), cas((b"b", 1, 1)), cas((b"b", 0, 2))], [Some(4), None, None]);
    assert!(shard.candidate(7).is_some() && shard.candidate(7 << 32).is_none());
}

#[test]
fn no_more_memory_is_taken_than_was_given() {
    for memory in [0, 1_000, 1 << 20, 64 << 20] {
        let shard = Shard::<u16>::new(memory, |_| {});
        let taken = shard.bytes.len() + size_of_val(&*shard.copies) + size_of_val(&*shard.index);
        assert!(taken <= memory + 8 + LINE, "{taken} of {memory}");
    }
}
