//! Compares the table of gathered requests with an unbounded model. Answers are repeated, late,
//! reordered, forged or lost.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;

use super::gathered::{MEMCACHED, asked, read};
use super::reader;
use super::server::{Kept, Server};
use crate::{
    Application, EXCHANGE_REST_NS, ExchangeFor, ExchangeId, Expired, GatherConfig, GatherTable, Late,
    NewGather, NoAnswer, NotBegun, NotTaken, Progress, Request, Target,
};

const KEYS: [&[u8]; 5] = [b"a", b"bb", b"user:1", b"user:2", b"user:long"];
const PORTS: std::ops::RangeInclusive<u16> = 61_000..=61_001;
const TIMEOUTS: [u64; 2] = [20_000_000, 5_000_000];
const ROOM: usize = 3;

fn table(requests: usize) -> GatherTable<usize> {
    let config = GatherConfig { ports: PORTS, requests, timeouts: &TIMEOUTS, others: 0, seed: [1, 2] };
    GatherTable::new(&config).unwrap()
}

/// The state of a request in the model.
struct Client {
    /// The index of the request in the table, or `None` after the request has ended.
    number: Option<u32>,
    payload: Vec<u8>,
    keys: Vec<Vec<u8>>,
    /// The keys whose servers answered in time.
    come: Vec<Vec<u8>>,
    due: u64,
    late: Late,
    /// `true` if the second server is down in this request, so its keys have no server.
    lacks: bool,
}

/// A datagram in transit to the load balancer.
#[derive(Clone, Debug)]
struct Flying {
    port: u16,
    bytes: Vec<u8>,
    /// The client request and the key to which the answer belongs, and the index of the datagram. A
    /// long value has several datagrams.
    truth: Option<(usize, Vec<u8>, usize)>,
}

struct World {
    now: u64,
    table: GatherTable<usize>,
    clients: Vec<Client>,
    network: Vec<Flying>,
    completed: usize,
    failed: usize,
}

#[derive(Clone, Debug)]
enum Step {
    /// Begins a request. The arguments are `true` for a binary batch, a bit mask of the requested
    /// keys, the index of the timeout, how keys without a timely answer are treated, and `true` if
    /// the second server is down.
    Ask(bool, u8, usize, bool, bool),
    /// Delivers an answer in transit. If the flag is `true`, the answer can be delivered again
    /// later.
    Deliver(Index, bool),
    Lose(Index),
    /// Delivers an answer to one request with the id and the port of a different exchange.
    Redirect(Index, Index),
    /// Delivers an answer with one wrong bit in the nonce.
    Forge(Index, u8),
    Wait(u64),
}

fn step() -> impl Strategy<Value = Step> {
    let ask = (any::<bool>(), 1..32_u8, 0..2_usize, any::<bool>(), prop::bool::weighted(0.2));
    let waits = vec![1_000, 4_999_999, 10_000_000, 25_000_000, 2_000_000_000];
    prop_oneof![
        4 => ask.prop_map(|(batch, keys, timeout, missing, lacks)| Step::Ask(batch, keys, timeout, missing, lacks)),
        14 => (any::<Index>(), prop::bool::weighted(0.3)).prop_map(|(which, again)| Step::Deliver(which, again)),
        1 => any::<Index>().prop_map(Step::Lose),
        2 => (any::<Index>(), any::<Index>()).prop_map(|(which, to)| Step::Redirect(which, to)),
        2 => (any::<Index>(), 0..32_u8).prop_map(|(which, bit)| Step::Forge(which, bit)),
        2 => prop::sample::select(waits).prop_map(Step::Wait),
    ]
}

fn is_second(key: &[u8]) -> bool {
    key.len() > 2
}

/// Returns the value that a server has for a key. The value contains the index of the request, so
/// that an answer to a different request is detected.
fn value(client: usize, key: &[u8]) -> Vec<u8> {
    let mut value = [format!("{client} has ").as_bytes(), key].concat();
    if key.ends_with(b"long") && client.is_multiple_of(2) {
        value.resize(3_000, b'.');
    }
    value
}

impl World {
    fn new(requests: usize) -> Self {
        Self {
            now: 0,
            table: table(requests),
            clients: Vec::new(),
            network: Vec::new(),
            completed: 0,
            failed: 0,
        }
    }

    fn take(&mut self, step: &Step) {
        let pick =
            |which: &Index, network: &Vec<Flying>| (!network.is_empty()).then(|| which.index(network.len()));
        match step {
            Step::Ask(batch, keys, timeout, missing, lacks) => {
                let late = if *missing { Late::IsMissing } else { Late::Fails };
                self.ask(*batch, *keys, *timeout, late, *lacks);
            }
            Step::Wait(nanoseconds) => self.wait(*nanoseconds),
            Step::Deliver(which, again) => {
                let Some(at) = pick(which, &self.network) else { return };
                let flying = if *again { self.network[at].clone() } else { self.network.remove(at) };
                self.arrive(&flying);
            }
            Step::Lose(which) => drop(pick(which, &self.network).map(|at| self.network.remove(at))),
            Step::Redirect(which, to) => {
                let (Some(at), Some(to)) = (pick(which, &self.network), pick(to, &self.network)) else {
                    return;
                };
                let mut forged = self.network[at].clone();
                if forged.bytes[..2] == self.network[to].bytes[..2] && forged.port == self.network[to].port {
                    return; // both datagrams belong to the same exchange
                }
                forged.port = self.network[to].port;
                let id = self.network[to].bytes[..2].to_vec();
                forged.bytes[..2].copy_from_slice(&id);
                forged.truth = None;
                self.arrive(&forged);
            }
            Step::Forge(which, bit) => {
                let Some(at) = pick(which, &self.network) else { return };
                let mut forged = self.network[at].clone();
                if forged.bytes[2..4] != [0, 0] {
                    return; // this datagram contains no nonce
                }
                let nonce = if forged.bytes[8] == 0x81 {
                    20 // the offset of the opaque
                } else {
                    forged.bytes.windows(2).position(|pair| pair == b" O").unwrap() + 2
                };
                forged.bytes[nonce + usize::from(bit / 8)] ^= 1 << (bit % 8);
                forged.truth = None;
                self.arrive(&forged);
            }
        }
        let under_way = self.clients.iter().filter(|client| client.number.is_some());
        assert_eq!(self.table.len(), under_way.clone().count());
        assert_eq!(self.table.next_due().is_none(), self.table.is_empty());
        assert!(self.table.next_due().is_none_or(|due| under_way.clone().any(|client| client.due == due)));
    }

    fn ask(&mut self, is_batch: bool, bits: u8, timeout: usize, late: Late, lacks: bool) {
        let keys: Vec<&[u8]> =
            (0..KEYS.len()).filter(|bit| bits >> bit & 1 == 1).map(|bit| KEYS[bit]).collect();
        let (client, payload) = (self.clients.len(), asked(if is_batch { "batch" } else { "get" }, &keys));
        let ask = read(&payload);
        let request = Request { payload: &payload, ask: &ask };
        let new = NewGather { request, timeout, late, pool: 0, context: client };
        let mut target = |key: &[u8]| {
            (!(lacks && is_second(key))).then_some(Target { server: is_second(key).into(), room: 1_400 })
        };
        let number = match self.table.begin(self.now, &MEMCACHED, new, &mut target) {
            Ok(number) => number,
            Err(NotBegun::NoServer) => {
                assert!(lacks && late == Late::Fails && keys.iter().any(|key| is_second(key)));
                return;
            }
            // The table is full only if a request is in progress.
            Err(other) => {
                assert_eq!((other, self.table.is_empty()), (NotBegun::Full, false));
                return;
            }
        };
        assert!(!(lacks && late == Late::Fails && keys.iter().any(|key| is_second(key))));
        let kept = |key: &&[u8]| {
            let value = value(client, key);
            (key.to_vec(), Kept { flags: 3, cas: 1, value, is_base64: false })
        };
        let server = Server(keys.iter().map(kept).collect());
        for part in 0..self.table.parts(number) {
            let which = self.table.server(number, part).unwrap();
            let mut out = [0; 1_400];
            let (port, length) = self.table.write_part(&MEMCACHED, number, part, &mut out).unwrap();
            assert!(PORTS.contains(&port));
            let of_server = keys.iter().filter(|key| u32::from(is_second(key)) == which);
            for (key, bytes) in of_server.zip(server.answer(&out[..length])) {
                let truth = |nth| Some((client, key.to_vec(), nth));
                let pieces = (0..).zip(bytes);
                self.network.extend(pieces.map(|(nth, bytes)| Flying { port, bytes, truth: truth(nth) }));
            }
        }
        let keys = keys.into_iter().map(<[u8]>::to_vec).collect();
        let due = self.now + TIMEOUTS[timeout];
        let come = Vec::new();
        self.clients.push(Client { number: Some(number), payload, keys, come, due, late, lacks });
        assert_eq!(self.table.is_complete(number), self.waits(client).is_empty());
        if self.table.is_complete(number) {
            self.complete(client);
        }
    }

    /// Returns the keys that have no answer yet.
    fn waits(&self, client: usize) -> Vec<Vec<u8>> {
        let client = &self.clients[client];
        let waits = |key: &&Vec<u8>| !(client.come.contains(*key) || client.lacks && is_second(key));
        client.keys.iter().filter(waits).cloned().collect()
    }

    fn wait(&mut self, nanoseconds: u64) {
        self.now += nanoseconds;
        let mut over = Vec::new();
        while let Some(Expired::Gather(number, progress)) = self.table.expire(self.now) {
            let client = *self.table.context(number).unwrap();
            assert!(self.clients[client].due <= self.now, "expired before the deadline");
            match (self.clients[client].late, progress) {
                (Late::Fails, Progress::Failed) => {
                    self.table.end(self.now, number);
                    self.clients[client].number = None;
                    self.failed += 1;
                }
                (Late::IsMissing, Progress::Waiting | Progress::Unchanged) => {}
                (Late::IsMissing, Progress::Complete) => over.push(client),
                other => panic!("{other:?}"),
            }
        }
        for client in over {
            assert!(self.table.is_incomplete(self.clients[client].number.unwrap()));
            self.complete(client);
        }
        let late = |client: &Client| client.number.is_some() && client.due <= self.now;
        assert!(!self.clients.iter().any(late), "not expired at the deadline");
    }

    /// Handles a datagram to the source port pool as a packet thread does.
    fn arrive(&mut self, flying: &Flying) {
        let request = MEMCACHED.answer_id(&flying.bytes).unwrap();
        let id = ExchangeId { port: flying.port, request };
        let found = self.table.find(id).map(|found| match found {
            ExchangeFor::Part(number) => *self.table.context(number).unwrap(),
            ExchangeFor::Other(never) => match *never {},
        });
        let taken = self.table.answer(self.now, &MEMCACHED, id, &flying.bytes);
        let is_awaited = flying.truth.as_ref().is_some_and(|(whose, key, nth)| {
            self.clients[*whose].number.is_some() && *nth == 0 && self.waits(*whose).contains(key)
        });
        let Some((whose, key, nth)) = flying.truth.clone().filter(|_| is_awaited) else {
            let refused = taken.expect_err("the answer must be refused");
            let is_forged = flying.truth.is_none();
            match refused {
                NotTaken::Late => assert_eq!(found, None),
                NotTaken::Unasked => assert!(!is_forged, "an answer with a wrong nonce was accepted"),
                NotTaken::NoAnswer(NoAnswer::Continuation) => assert!(flying.bytes[3] > 0),
                NotTaken::NoAnswer(why) => {
                    assert!(is_forged || found != flying.truth.as_ref().map(|t| t.0), "{why}")
                }
            }
            return;
        };
        assert_eq!((nth, found), (0, Some(whose)));
        let (number, progress) = taken.unwrap();
        assert_eq!(self.clients[whose].number, Some(number));
        if value(whose, &key).len() > 1_392 {
            assert_eq!(progress, Progress::Failed);
            self.table.end(self.now, number);
            self.clients[whose].number = None;
            self.failed += 1;
            return;
        }
        self.clients[whose].come.push(key);
        let is_whole = self.waits(whose).is_empty();
        assert_eq!(progress, if is_whole { Progress::Complete } else { Progress::Waiting });
        if is_whole {
            self.complete(whose);
        }
    }

    /// Checks that the reply is identical to that of a single server that has the received values.
    fn complete(&mut self, client: usize) {
        let number = self.clients[client].number.take().unwrap();
        let of = &self.clients[client];
        let come = |key: &&Vec<u8>| of.come.contains(*key);
        let there: Vec<&Vec<u8>> = of.keys.iter().filter(come).collect();
        assert_eq!(self.table.is_incomplete(number), there.len() < of.keys.len());
        let count = self.table.reply_datagrams(&MEMCACHED, number).unwrap();
        let datagram = |nth| {
            let mut out = [0; 1_400];
            let length = self.table.write_reply(&MEMCACHED, number, nth, &mut out).unwrap();
            out[..length].to_vec()
        };
        let bytes = reader::joined([0x12, 0x34], &(0..count).map(datagram).collect::<Vec<_>>());
        if of.payload[8] == 0x80 {
            let values: Vec<Vec<u8>> =
                reader::batch(&bytes, [0xde, 0xad, 0xbe, 0xef]).into_iter().map(|hit| hit.value).collect();
            let wanted: Vec<Vec<u8>> = there.iter().map(|key| value(client, key)).collect();
            assert_eq!(values, wanted);
        } else {
            let mut wanted = Vec::new();
            for key in there {
                let value = value(client, key);
                wanted.extend([b"VALUE ", &key[..], format!(" 3 {}\r\n", value.len()).as_bytes()].concat());
                wanted.extend([&value[..], b"\r\n"].concat());
            }
            wanted.extend(b"END\r\n");
            assert_eq!(bytes, wanted);
        }
        self.table.end(self.now, number);
        self.completed += 1;
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1_000, ..ProptestConfig::default() })]
    #[test]
    fn the_table_does_what_the_model_says(steps in vec(step(), 1..120)) {
        let mut world = World::new(ROOM);
        steps.iter().for_each(|step| world.take(step));
        world.wait(TIMEOUTS[0]);
        prop_assert!(world.table.is_empty() && world.table.next_due().is_none());
        // All entries of the table must be free again.
        for _ in 0..ROOM {
            world.take(&Step::Ask(false, 31, 0, true, false));
        }
        prop_assert_eq!(world.table.len(), ROOM);
    }
}

#[test]
fn a_full_table_begins_nothing_and_forgets_nothing() {
    let mut world = World::new(ROOM);
    for _ in 0..2 * ROOM {
        world.take(&Step::Ask(false, 31, 0, false, false));
    }
    assert_eq!((world.table.len(), world.clients.len()), (ROOM, ROOM));
    // Requests with 20 keys use up the answer memory of the table before the table has its maximum
    // number of requests.
    let names: Vec<String> = (0..20).map(|n| format!("key{n}")).collect();
    let names: Vec<&[u8]> = names.iter().map(String::as_bytes).collect();
    let payload = asked("get", &names);
    let ask = read(&payload);
    let begin = |table: &mut GatherTable<()>| {
        let request = Request { payload: &payload, ask: &ask };
        let new = NewGather { request, timeout: 0, late: Late::Fails, pool: 0, context: () };
        table.begin(0, &MEMCACHED, new, &mut |_| Some(Target { server: 0, room: 1_400 }))
    };
    let config = GatherConfig { ports: PORTS, requests: ROOM, timeouts: &TIMEOUTS, others: 0, seed: [1, 2] };
    let mut plain = GatherTable::<()>::new(&config).unwrap();
    let first = begin(&mut plain).unwrap();
    assert_eq!(begin(&mut plain), Err(NotBegun::Full));
    plain.end(0, first);
    assert!(begin(&mut plain).is_ok());
}

#[test]
fn a_request_that_has_ids_for_some_of_its_parts_begins_none() {
    let config = GatherConfig { ports: 7..=7, requests: 1, timeouts: &TIMEOUTS, others: 0, seed: [1, 2] };
    let mut table = GatherTable::new(&config).unwrap();
    let payload = asked("get", &[&b"a"[..], b"b"]);
    let ask = read(&payload);
    let begin = |table: &mut GatherTable<()>, now, servers: u32| {
        let request = Request { payload: &payload, ask: &ask };
        let new = NewGather { request, timeout: 0, late: Late::Fails, pool: 0, context: () };
        let mut server = 0;
        table.begin(now, &MEMCACHED, new, &mut |_| {
            server = (server + 1) % servers;
            Some(Target { server, room: 1_400 })
        })
    };
    // The table has slots for twelve exchanges, and each slot has a twelfth of the ids. Eleven of
    // the slots use up their ids and are then blocked.
    for _ in 0..11 * (65_535 / 12) {
        let number = begin(&mut table, 0, 1).unwrap();
        table.end(0, number);
    }
    assert_eq!(begin(&mut table, 0, 2), Err(NotBegun::Full));
    assert!(table.is_empty() && table.next_due().is_none());
    let number = begin(&mut table, 0, 1).expect("the last exchange is free again");
    table.end(0, number);
    assert!(begin(&mut table, EXCHANGE_REST_NS, 2).is_ok());
}

#[test]
fn what_one_datagram_does_not_hold_is_asked_by_several() {
    let keys: Vec<Vec<u8>> = (0..32_u8).map(|n| vec![b'A' + n; 250]).collect();
    let keys: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
    for verb in ["get", "gats 2147483647", "batch"] {
        let payload = asked(verb, &keys);
        let ask = read(&payload);
        let mut table = table(8);
        let new = NewGather {
            request: Request { payload: &payload, ask: &ask },
            timeout: 0,
            late: Late::Fails,
            pool: 0,
            context: 0,
        };
        let mut servers = [0, 1].into_iter().cycle();
        let mut target = |_: &[u8]| Some(Target { server: servers.next().unwrap(), room: 1_400 });
        let number = table.begin(0, &MEMCACHED, new, &mut target).unwrap();
        assert_eq!(table.parts(number), 8); // four keys per upstream request
        let mut asked = 0;
        for part in 0..8 {
            let mut out = [0; 1_400];
            let (_, length) = table.write_part(&MEMCACHED, number, part, &mut out).unwrap();
            asked += Server::default().answer(&out[..length]).len();
        }
        assert_eq!(asked, 32);
        // A datagram of this size has no room for even one key.
        let new = NewGather {
            request: Request { payload: &payload, ask: &ask },
            timeout: 0,
            late: Late::Fails,
            pool: 0,
            context: 0,
        };
        let small = table.begin(0, &MEMCACHED, new, &mut |_| Some(Target { server: 0, room: 300 }));
        assert_eq!(small, Err(NotBegun::Unaskable));
    }
}

#[test]
fn exchanges_of_the_callers_own_stand_beside_parts_of_requests() {
    let config = GatherConfig { ports: PORTS, requests: ROOM, timeouts: &TIMEOUTS, others: 2, seed: [1, 2] };
    let mut table = GatherTable::<usize, &str>::new(&config).unwrap();
    assert!(table.is_idle());
    let ids: Vec<ExchangeId> = ["first", "second"]
        .map(|name| table.begin_other(0, usize::from(name == "second"), name).unwrap())
        .into();
    let payload = asked("get", &[b"a", b"user:2"]);
    let ask = read(&payload);
    let request = Request { payload: &payload, ask: &ask };
    let new = NewGather { request, timeout: 0, late: Late::Fails, pool: 0, context: 7 };
    let mut target = |key: &[u8]| Some(Target { server: u32::from(key == b"a"), room: 1_400 });
    let number = table.begin(1, &MEMCACHED, new, &mut target).unwrap();
    let mut out = [0; 1_400];
    let parts: Vec<ExchangeId> = (0..2)
        .map(|part| {
            let (port, _) = table.write_part(&MEMCACHED, number, part, &mut out).unwrap();
            ExchangeId { port, request: MEMCACHED.answer_id(&out).unwrap() }
        })
        .collect();
    assert!(ids.iter().all(|id| !parts.contains(id)));
    for (id, name) in ids.iter().zip(["first", "second"]) {
        assert!(matches!(table.find(*id), Some(ExchangeFor::Other(found)) if *found == name));
        assert_eq!(table.answer(2, &MEMCACHED, *id, b"\0\0\0\0\0\x01\0\0END\r\n"), Err(NotTaken::Late));
    }
    for id in &parts {
        assert!(matches!(table.find(*id), Some(ExchangeFor::Part(found)) if found == number));
        assert_eq!(table.other_mut(*id), None);
        assert_eq!(table.end_other(2, *id), None, "the exchange is still in progress");
    }
    assert!(matches!(table.expire(TIMEOUTS[1]), Some(Expired::Other("second"))));
    assert!(table.expire(TIMEOUTS[1]).is_none());
    *table.other_mut(ids[0]).unwrap() = "changed";
    assert_eq!(table.end_other(3, ids[0]), Some("changed"));
    assert_eq!((table.find(ids[0]).is_none(), table.end_other(3, ids[0])), (true, None));
    let over = std::iter::from_fn(|| table.expire(TIMEOUTS[0] + 1)).map(|expired| match expired {
        Expired::Gather(found, progress) => (found, progress),
        Expired::Other(name) => panic!("exchange {name} has expired"),
    });
    assert_eq!(over.collect::<Vec<_>>(), [(number, Progress::Failed), (number, Progress::Unchanged)]);
    table.end(TIMEOUTS[0], number);
    assert!(table.is_idle());
}
