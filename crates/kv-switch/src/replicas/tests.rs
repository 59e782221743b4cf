//! Compares the table of replicated writes with an unbounded model. Answers are repeated, late,
//! reordered or lost, servers refuse writes, and some requests cannot be sent.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;

use super::*;
use crate::{
    Datagram, EXCHANGE_REST_NS, ExchangeFor, ExchangeId, Expired, GatherConfig, GatherTable, Memcached,
};

const MEMCACHED: Memcached = Memcached::new(32);
const TIMEOUT: u64 = 20_000_000;
const ROOM: usize = 3;

type Table = GatherTable<(), CopyId>;

#[derive(Clone, Debug)]
enum Step {
    /// Begins a write. The arguments are the index of the command, the number of servers, and the
    /// acknowledgment rule.
    Ask(usize, u8, usize),
    /// Delivers an answer. The arguments are the request in transit, the kind of outcome, and
    /// `true` if the answer can be delivered again later.
    Deliver(Index, u8, bool),
    Lose(Index),
    /// Delivers an answer with one wrong bit in the nonce.
    Forge(Index, u8),
    /// Reports that an upstream request cannot be sent.
    GiveUp(Index, u8),
    Wait(u64),
}

fn step() -> impl Strategy<Value = Step> {
    let waits = vec![1_000, 9_000_000, 20_000_000, 2_000_000_000];
    prop_oneof![
        3 => (0..4_usize, 1..=4_u8, 0..3_usize).prop_map(|(verb, count, ack)| Step::Ask(verb, count, ack)),
        12 => (any::<Index>(), 0..4_u8, prop::bool::weighted(0.2)).prop_map(|(which, says, again)| Step::Deliver(which, says, again)),
        1 => any::<Index>().prop_map(Step::Lose),
        1 => (any::<Index>(), 0..64_u8).prop_map(|(which, bit)| Step::Forge(which, bit)),
        1 => (any::<Index>(), 0..4_u8).prop_map(|(which, part)| Step::GiveUp(which, part)),
        2 => prop::sample::select(waits).prop_map(Step::Wait),
    ]
}

/// A client request in the model.
#[derive(Debug)]
struct Client {
    number: Option<u32>,
    verb: usize,
    ack: Ack,
    /// The outcome of each server. `Some(None)` is a timeout.
    said: Vec<Option<Option<Outcome>>>,
    due: u64,
    reply: Option<Option<Outcome>>,
    differed: bool,
}

/// An upstream request in transit to a server that has not answered yet.
#[derive(Clone, Debug)]
struct Flying {
    client: usize,
    part: u8,
    port: u16,
    asked: Vec<u8>,
    /// The kind of outcome in the first answer. Repeated answers have the same outcome.
    says: Option<u8>,
}

struct World {
    now: u64,
    table: Table,
    writes: Writes<usize>,
    clients: Vec<Client>,
    network: Vec<Flying>,
}

const VERBS: [&[u8]; 4] =
    [b"set k 1 0 2\r\nhi\r\n", b"delete k\r\n", b"touch k 30\r\n", b"ms k 2 q\r\nhi\r\n"];
const ACKS: [Ack; 3] = [Ack::All, Ack::Majority, Ack::First];

fn payload(verb: usize) -> Vec<u8> {
    [b"\x12\x34\0\0\0\x01\0\0", VERBS[verb]].concat()
}

/// Returns an outcome and the answer that reports it. `says` selects the kind of outcome.
fn said(asked: &[u8], says: u8) -> (Outcome, Vec<u8>) {
    let line = asked[8..].split(|byte| *byte == b'\r').next().unwrap();
    let nonce = String::from_utf8(line[line.len() - 17..].to_vec()).unwrap();
    let (outcome, words) = match (says, asked[9]) {
        (0, _) => (Outcome::Refused(0x82), "SERVER_ERROR out of memory storing object".to_owned()),
        (1, b'd') => (Outcome::NotFound, format!("NF {nonce}")),
        (1, b'g') => (Outcome::NotFound, format!("EN {nonce}")),
        (1, _) => (Outcome::Refused(5), format!("NS {nonce}")),
        _ => (Outcome::Done, format!("HD {nonce}")),
    };
    (outcome, [&asked[..2], b"\0\0\0\x01\0\0", words.as_bytes(), b"\r\n"].concat())
}

impl World {
    fn new() -> Self {
        let config = GatherConfig {
            ports: 61_000..=61_001,
            requests: 1,
            others: 60,
            timeouts: &[TIMEOUT],
            seed: [1, 2],
        };
        Self {
            now: 0,
            table: GatherTable::new(&config).unwrap(),
            writes: Writes::new(ROOM, [3, 4]),
            clients: Vec::new(),
            network: Vec::new(),
        }
    }

    fn ask(&mut self, verb: usize, servers: u8, ack: Ack) {
        let (client, payload) = (self.clients.len(), payload(verb));
        let ask = MEMCACHED.read(Datagram::whole(&payload)).unwrap();
        let target = |server| Target { server, room: 1_400 };
        let replicas: Vec<Replica> = (0..servers)
            .map(|server| Replica { target: target(u32::from(server) + 7), life: None })
            .collect();
        let request = Request { payload: &payload, ask: &ask };
        let new = NewWrite { request, replicas: &replicas, ack, timeout: 0, pool: 0, context: client };
        let mut requester = Requester { table: &mut self.table, now: self.now };
        let begun = self.writes.begin(&mut requester, &MEMCACHED, new, |copy| copy);
        let under_way = self.under_way();
        let Ok(number) = begun else {
            assert_eq!((begun, under_way), (Err(NotWritten::Full), ROOM));
            return;
        };
        assert!(under_way < ROOM);
        assert_eq!(self.writes.parts(number), servers);
        for part in 0..servers {
            let copy = CopyId { write: number, part };
            assert_eq!(self.writes.server(copy), Some(u32::from(part) + 7));
            let mut out = [0; 1_400];
            let (port, length) = self.writes.write_copy(&MEMCACHED, copy, &mut out).unwrap();
            let asked = out[..length].to_vec();
            self.network.push(Flying { client, part, port, asked, says: None });
        }
        self.clients.push(Client {
            number: Some(number),
            verb,
            ack,
            said: vec![None; servers.into()],
            due: self.now + TIMEOUT,
            reply: None,
            differed: false,
        });
    }

    /// Returns the number of requests that the table must contain.
    fn under_way(&self) -> usize {
        self.clients.iter().filter(|client| client.number.is_some()).count()
    }

    /// Returns the reply that the client must receive according to the outcomes of the servers.
    fn wanted(client: &Client) -> Option<Option<Outcome>> {
        let n = client.said.len();
        let wanted = match client.ack {
            Ack::All => n,
            Ack::Majority => (1..=n).find(|count| 2 * count > n).unwrap(),
            Ack::First => 1,
        };
        let all = || client.said.iter().flatten().flatten().copied();
        let yes = all().filter(|said| matches!(said, Outcome::Done | Outcome::NotFound)).count();
        let open = client.said.iter().filter(|said| said.is_none()).count();
        if yes >= wanted {
            let (has, lacks) = (all().any(|s| s == Outcome::Done), all().any(|s| s == Outcome::NotFound));
            let missing = if client.verb == 1 { !has } else { lacks };
            return Some(Some(if missing { Outcome::NotFound } else { Outcome::Done }));
        }
        (yes + open < wanted).then(|| all().find(|said| matches!(said, Outcome::Refused(_))))
    }

    /// Compares the state that the table reports with the model after a change.
    fn follow(&mut self, whose: usize, Answered { written, differs }: Answered) {
        let client = &mut self.clients[whose];
        let heard: Vec<Option<Outcome>> = client.said.iter().flatten().copied().collect();
        assert_eq!(differs, heard.iter().any(|other| *other != heard[0]) && !client.differed);
        client.differed |= differs;
        let number = client.number.unwrap();
        match (client.reply, Self::wanted(client)) {
            (None, Some(Some(outcome))) => {
                // If several servers refuse, the reply is the first refusal. The model does not
                // know the order of the refusals, so any refusal is accepted.
                let Written::Decided(reply) = written else { panic!("{written:?} for {outcome:?}") };
                let is_refusal = |outcome| matches!(outcome, Outcome::Refused(_));
                assert!(
                    reply == outcome || is_refusal(reply) && is_refusal(outcome),
                    "{reply:?}, {outcome:?}"
                );
                assert_eq!(self.writes.outcome(number), Some(reply));
                assert_eq!(self.writes.wants_answer(number), client.verb != 3);
                let mut out = [0; 100];
                let length = self.writes.write_outcome(&MEMCACHED, number, &mut out).unwrap();
                assert_eq!(out[..8], *b"\x12\x34\0\0\0\x01\0\0");
                let is_ack =
                    [&b"STORED\r\n"[..], b"DELETED\r\n", b"TOUCHED\r\n", b"NOT_FOUND\r\n", b"HD\r\n"];
                assert_eq!(is_ack.contains(&&out[8..length]), !is_refusal(reply));
                client.reply = Some(Some(reply));
                self.writes.answered(number);
                assert_eq!(self.writes.outcome(number), None);
            }
            (None, Some(None)) => {
                assert_eq!(written, Written::Lost);
                client.reply = Some(None);
            }
            _ => assert_eq!(written, Written::Waiting),
        }
        if client.reply.is_some() && client.said.iter().all(Option::is_some) {
            client.number = None;
            assert_eq!(self.writes.parts(number), 0);
        }
    }

    fn arrive(&mut self, flying: &Flying, bytes: &[u8], outcome: Option<Outcome>) {
        let id = ExchangeId { port: flying.port, request: u16::from_be_bytes([bytes[0], bytes[1]]) };
        let waits = self.clients[flying.client].number.is_some()
            && self.clients[flying.client].said[usize::from(flying.part)].is_none();
        let Some(ExchangeFor::Other(&copy)) = self.table.find(id) else {
            assert!(!waits);
            return;
        };
        let mut requester = Requester { table: &mut self.table, now: self.now };
        let taken = self.writes.answer(&mut requester, &MEMCACHED, copy, bytes);
        let Some(outcome) = outcome.filter(|_| waits) else {
            assert!(matches!(taken, Err(NotTaken::NoAnswer(_))), "{taken:?}");
            return;
        };
        let client = &mut self.clients[flying.client];
        assert_eq!(copy, CopyId { write: client.number.unwrap(), part: flying.part });
        client.said[usize::from(flying.part)] = Some(Some(outcome));
        self.follow(flying.client, taken.unwrap());
    }

    fn take(&mut self, step: &Step) {
        let at = |which: &Index, len: usize| (len > 0).then(|| which.index(len));
        match step {
            Step::Ask(verb, servers, ack) => self.ask(*verb, *servers, ACKS[*ack]),
            Step::Deliver(which, says, again) => {
                let Some(at) = at(which, self.network.len()) else { return };
                let says = *self.network[at].says.get_or_insert(*says);
                let flying = if *again { self.network[at].clone() } else { self.network.remove(at) };
                let (outcome, bytes) = said(&flying.asked, says);
                self.arrive(&flying, &bytes, Some(outcome));
            }
            Step::Lose(which) => drop(at(which, self.network.len()).map(|at| self.network.remove(at))),
            Step::Forge(which, bit) => {
                let Some(at) = at(which, self.network.len()) else { return };
                let (flying, (_, mut bytes)) = (self.network[at].clone(), said(&self.network[at].asked, 3));
                let digit = bytes.len() - 3 - usize::from(bit / 4);
                bytes[digit] ^= 1 << (bit % 4);
                self.arrive(&flying, &bytes, None);
            }
            Step::GiveUp(which, part) => {
                let open: Vec<usize> =
                    (0..self.clients.len()).filter(|&n| self.clients[n].number.is_some()).collect();
                let Some(at) = at(which, open.len()) else { return };
                let (whose, number, part) = (open[at], *part, usize::from(*part));
                let client = &mut self.clients[whose];
                if part >= client.said.len() || client.said[part].is_some() {
                    return;
                }
                client.said[part] = Some(None);
                let copy = CopyId { write: client.number.unwrap(), part: number };
                let mut requester = Requester { table: &mut self.table, now: self.now };
                let answered = self.writes.give_up(&mut requester, copy);
                self.follow(whose, answered);
            }
            Step::Wait(nanoseconds) => self.wait(*nanoseconds),
        }
        assert_eq!(self.writes.len(), self.under_way());
        assert_eq!(self.table.is_idle(), self.writes.is_empty() || self.all_have_spoken());
    }

    /// Returns `true` if all exchanges have ended. A request must then be removed immediately.
    fn all_have_spoken(&self) -> bool {
        let open = self.clients.iter().filter(|client| client.number.is_some());
        open.flat_map(|client| &client.said).all(Option::is_some)
    }

    fn wait(&mut self, nanoseconds: u64) {
        self.now += nanoseconds;
        while let Some(Expired::Other(copy)) = self.table.expire(self.now) {
            let of = |client: &Client| client.number == Some(copy.write);
            let whose = self.clients.iter().position(of).unwrap();
            let client = &mut self.clients[whose];
            assert!(client.due <= self.now, "expired before the deadline");
            assert_eq!(client.said[usize::from(copy.part)].replace(None), None);
            let answered = self.writes.expire(copy);
            self.follow(whose, answered);
        }
        let late = |client: &Client| client.number.is_some() && client.due <= self.now;
        assert!(!self.clients.iter().any(late), "not expired at the deadline");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1_000, ..ProptestConfig::default() })]
    // Promise: replica-acknowledgment
    #[test]
    fn writes_client_gets_one_reply_after_required_acks(steps in vec(step(), 1..120)) {
        let mut world = World::new();
        steps.iter().for_each(|step| world.take(step));
        world.wait(TIMEOUT);
        prop_assert!(world.writes.is_empty() && world.table.is_idle());
        // All entries of the table must be free again.
        (0..ROOM).for_each(|_| world.ask(0, 4, Ack::All));
        prop_assert_eq!(world.writes.len(), ROOM);
    }
}

#[test]
fn what_has_no_room_is_not_begun_and_leaves_nothing() {
    // The table has ids for only two of the three servers. Each slot has one id and is blocked
    // after this id was used.
    let config =
        GatherConfig { ports: 61_000..=61_000, requests: 0, others: 2, timeouts: &[TIMEOUT], seed: [1, 2] };
    let (mut table, mut writes) = (Table::new(&config).unwrap(), Writes::new(ROOM, [3, 4]));
    let begin = |table: &mut Table, writes: &mut Writes<()>, servers: u8, room, command: &[u8]| {
        let payload = [b"\x12\x34\0\0\0\x01\0\0", command].concat();
        let ask = MEMCACHED.read(Datagram::whole(&payload)).unwrap();
        let replica = |server| Replica { target: Target { server, room }, life: None };
        let replicas: Vec<Replica> = (0..servers.into()).map(replica).collect();
        let new = NewWrite {
            request: Request { payload: &payload, ask: &ask },
            replicas: &replicas,
            ack: Ack::All,
            timeout: 0,
            pool: 0,
            context: (),
        };
        writes.begin(&mut Requester { table, now: EXCHANGE_REST_NS }, &MEMCACHED, new, |copy| copy)
    };
    let set = VERBS[0];
    assert_eq!(begin(&mut table, &mut writes, 3, 1_400, set), Err(NotWritten::Full));
    assert!(table.is_idle() && writes.is_empty());
    assert_eq!(begin(&mut table, &mut writes, 0, 1_400, set), Err(NotWritten::NoServer));
    let length = u16::try_from(8 + set.len()).unwrap();
    assert_eq!(begin(&mut table, &mut writes, 1, length + 39, set), Err(NotWritten::TooLong));
    assert_eq!(begin(&mut table, &mut writes, 1, 1_400, b"incr k 1\r\n"), Err(NotWritten::Unsupported));
    let long = format!("set k 0 0 1501\r\n{}\r\n", "v".repeat(1_501));
    assert_eq!(begin(&mut table, &mut writes, 1, 9_000, long.as_bytes()), Ok(0));
    let longer = format!("set k 0 0 1520\r\n{}\r\n", "v".repeat(1_520));
    assert_eq!(begin(&mut table, &mut writes, 1, 9_000, longer.as_bytes()), Err(NotWritten::TooLong));
    assert_eq!(begin(&mut table, &mut writes, 1, length + 40, set), Ok(1));
    assert_eq!(writes.len(), 2);
}
