//! Compares the table with a model that lists all exchanges that were ever begun.

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

const TIMEOUT: [u64; 3] = [20_000_000, 1_000_000_000, 5];

#[derive(Clone, Debug)]
struct Begun {
    id: ExchangeId,
    serial: u32,
    due: u64,
    ended: Option<u64>,
}

/// The model, with all exchanges and the valid ids.
#[derive(Debug, Default)]
struct Slow {
    all: Vec<Begun>,
    now: u64,
}

impl Slow {
    fn live(&self) -> impl Iterator<Item = &Begun> {
        self.all.iter().filter(|one| one.ended.is_none())
    }

    fn of(&mut self, id: ExchangeId) -> Option<&mut Begun> {
        self.all.iter_mut().find(|one| one.ended.is_none() && one.id == id)
    }

    /// Returns `true` if an id may be used again.
    fn is_fresh(&self, id: ExchangeId) -> bool {
        self.all
            .iter()
            .filter(|one| one.id == id)
            .all(|one| one.ended.is_some_and(|ended| ended + 2_000_000_000 <= self.now))
    }

    /// Returns the number of exchanges that are in progress or ended less than 2 s ago.
    fn lately(&self) -> usize {
        self.all.iter().filter(|one| one.ended.is_none_or(|ended| ended + 2_000_000_000 > self.now)).count()
    }
}

#[derive(Clone, Debug)]
enum Step {
    Begin(usize),
    End(prop::sample::Index),
    /// Looks up an arbitrary id, which may be in progress, ended or unknown.
    Ask(u16, u16),
    AskOld(prop::sample::Index),
    Wait(u64),
    Expire,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (0..3_usize).prop_map(Step::Begin),
        4 => any::<prop::sample::Index>().prop_map(Step::End),
        1 => (61_000..61_003_u16, any::<u16>()).prop_map(|(port, request)| Step::Ask(port, request)),
        2 => any::<prop::sample::Index>().prop_map(Step::AskOld),
        3 => prop::sample::select(vec![0, 1, 5, 19_999_999, 400_000_000, 999_999_999, 2_000_000_000]).prop_map(Step::Wait),
        3 => Just(Step::Expire),
    ]
}

/// Applies one step to the table and the model, and compares the results.
fn compare(table: &mut Exchanges<u32>, slow: &mut Slow, step: &Step, ids: usize, capacity: usize) {
    match step {
        Step::Begin(timeout) => begin(table, slow, *timeout, ids, capacity),
        Step::End(which) => {
            let Some(id) = pick(slow, *which) else { return };
            let now = slow.now;
            let wanted = slow.of(id).map(|one| {
                one.ended = Some(now);
                one.serial
            });
            assert_eq!(table.end(now, id), wanted);
        }
        Step::Ask(port, request) => same(table, slow, ExchangeId { port: *port, request: *request }),
        Step::AskOld(which) => {
            let Some(id) = pick(slow, *which) else { return };
            same(table, slow, id);
        }
        Step::Wait(nanoseconds) => slow.now += nanoseconds,
        Step::Expire => expire(table, slow),
    }
    assert_eq!(table.next_due(), slow.live().map(|one| one.due).min());
    assert_eq!((table.len(), table.is_empty()), (slow.live().count(), slow.live().count() == 0));
}

fn pick(slow: &Slow, which: prop::sample::Index) -> Option<ExchangeId> {
    (!slow.all.is_empty()).then(|| slow.all[which.index(slow.all.len())].id)
}

fn same(table: &mut Exchanges<u32>, slow: &mut Slow, id: ExchangeId) {
    let mut wanted = slow.of(id).map(|one| one.serial);
    assert_eq!(table.find(id).copied(), wanted);
    assert_eq!(table.find_mut(id).copied(), wanted);
    assert_eq!(table.find_mut(id), wanted.as_mut());
}

fn begin(table: &mut Exchanges<u32>, slow: &mut Slow, timeout: usize, ids: usize, capacity: usize) {
    let serial = u32::try_from(slow.all.len()).unwrap();
    match table.begin(slow.now, timeout, serial) {
        Ok(id) => {
            assert!(slow.live().count() < capacity);
            assert!(slow.is_fresh(id), "{id:?} reused too early");
            assert!(usize::from(id.port - 61_000) * 65_536 + usize::from(id.request) < ids);
            slow.all.push(Begun { id, serial, due: slow.now + TIMEOUT[timeout], ended: None });
        }
        Err(back) => {
            assert_eq!(back, serial);
            // Each slot without an exchange in progress has used all its ids, and used the last one
            // less than 2 s ago.
            let turns = ids / capacity;
            let live = slow.live().count();
            assert!(
                live == capacity || slow.lately() - live >= capacity - live,
                "refused although slots are free"
            );
            assert!(slow.all.len() - live >= (capacity - live) * turns, "refused before all ids were in use");
        }
    }
}

fn expire(table: &mut Exchanges<u32>, slow: &mut Slow) {
    let mut last = 0;
    while let Some((id, serial)) = table.expire(slow.now) {
        let now = slow.now;
        let one = slow.of(id).expect("the exchange is in progress");
        assert_eq!(one.serial, serial);
        assert!((last..=now).contains(&one.due), "expired out of order");
        (last, one.ended) = (one.due, Some(now));
    }
    assert!(slow.live().all(|one| one.due > slow.now), "overdue but not expired");
}

proptest! {
    #[test]
    fn ids_rest_and_all_else_is_as_in_a_list_of_all(
        steps in vec(step(), 1..200), capacity in 1..12_usize, turns in 1..5_usize, odd in 0..4_usize,
        first: u64,
    ) {
        let ids = capacity * turns + odd.min(capacity - 1);
        let table = Exchanges::with_ids(61_000, ids, capacity, &TIMEOUT);
        let (mut table, mut slow) = (table.starting_at(first), Slow::default());
        for step in &steps {
            compare(&mut table, &mut slow, step, ids, capacity);
        }
    }

    #[test]
    fn ids_of_several_ports_find_their_exchange(
        steps in vec(step(), 1..60), capacity in prop::sample::select(vec![65_535, 65_536, 131_071]),
        first: u64,
    ) {
        let ids = 131_071;
        let table = Exchanges::new(61_000..=61_001, capacity, &TIMEOUT).unwrap();
        let (mut table, mut slow) = (table.starting_at(first), Slow::default());
        for step in &steps {
            compare(&mut table, &mut slow, step, ids, capacity);
        }
    }
}

#[test]
fn what_can_be_no_table_is_refused() {
    let error =
        |ports: RangeInclusive<u16>, capacity| Exchanges::<()>::new(ports, capacity, &[1]).unwrap_err();
    assert_eq!(error(RangeInclusive::new(61_001, 61_000), 1), ExchangeError::NoPorts);
    assert_eq!(error(61_000..=61_000, 0), ExchangeError::Capacity { capacity: 0, ids: 65_535 });
    assert_eq!(error(61_000..=61_001, 131_072), ExchangeError::Capacity { capacity: 131_072, ids: 131_071 });
    let mut table = Exchanges::new(61_000..=61_000, 1, &[1]).unwrap();
    let spare = table.spare_id();
    assert_eq!((spare, table.find(spare)), (ExchangeId { port: 61_000, request: u16::MAX }, None));
    assert_eq!(table.begin(0, 1, 'x'), Err('x')); // only timeout 0 exists
    assert!(table.begin(0, 0, 'x').is_ok());
}

#[test]
fn a_table_begins_with_the_id_that_it_is_given() {
    let first = |random: u64| {
        let table = Exchanges::new(61_000..=61_001, 8, &[1]).unwrap();
        let ExchangeId { port, request } = table.starting_at(random).begin(0, 0, ()).unwrap();
        (port, request)
    };
    assert_eq!([0, 5, 65_537, 131_071 + 7].map(first), [(61_000, 0), (61_000, 5), (61_001, 1), (61_000, 7)]);
}

#[test]
fn a_steady_rate_never_comes_to_a_stop() {
    // 64 slots with 16 ids each support 512 exchanges per second. For one minute, 400 exchanges
    // begin per second and at most two are in progress at a time. The table must accept all these
    // exchanges.
    let mut table = Exchanges::with_ids(61_000, 1_024, 64, &[1_000_000_000]);
    let mut before = None;
    for step in 0..24_000_u64 {
        let now = step * 2_500_000;
        let id = table.begin(now, 0, step).unwrap_or_else(|_| panic!("refused at step {step}"));
        if let Some(before) = before.replace(id) {
            assert_eq!(table.end(now, before), Some(step - 1));
        }
    }
}

#[test]
fn time_that_goes_back_keeps_the_order() {
    let mut table = Exchanges::new(61_000..=61_000, 4, &[10]).unwrap();
    table.begin(100, 0, 'a').unwrap();
    table.begin(50, 0, 'b').unwrap();
    assert_eq!(table.next_due(), Some(110));
    assert_eq!(table.expire(109), None);
    let over: Vec<char> = std::iter::from_fn(|| table.expire(110)).map(|(_, entry)| entry).collect();
    assert_eq!(over, ['a', 'b']);
}
