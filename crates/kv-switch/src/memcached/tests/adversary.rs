//! Gathers requests over a simulated network in which answers are lost, repeated, delayed,
//! reordered and forged.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;

use super::gathered::{MEMCACHED, asked, read, reply};
use super::reader;
use super::server::{Kept, Server};
use crate::{
    Application, Arrival, ExchangeId, Exchanges, Gather, KeyRoom, Late, OwnId, Place, Progress, Request,
};

const KEYS: [&[u8]; 4] = [b"a", b"bb", b"user:1", b"user:2"];
const TIMEOUT: u64 = 20_000_000;

/// The data that this test stores with an exchange.
#[derive(Clone, Copy, Debug)]
struct Entry {
    client: usize,
    part: u8,
    nonce: u64,
}

/// A client request. The servers return values that contain the index of the request, so that an
/// answer to a different request is detected.
struct Client {
    payload: Vec<u8>,
    gather: Gather,
    frames: Vec<Vec<u8>>,
    /// The keys whose genuine answer arrived in time.
    come: Vec<Vec<u8>>,
    is_over: bool,
}

/// A datagram in transit to the load balancer.
#[derive(Clone, Debug)]
struct Flying {
    port: u16,
    bytes: Vec<u8>,
    /// The client request and the key to which a genuine answer belongs. `None` for a forged
    /// answer.
    truth: Option<(usize, Vec<u8>)>,
}

struct World {
    now: u64,
    table: Exchanges<Entry>,
    clients: Vec<Client>,
    network: Vec<Flying>,
    completed: usize,
}

#[derive(Clone, Debug)]
enum Step {
    /// Begins a request. The arguments are `true` for a binary batch, and a bit mask of the
    /// requested keys.
    Ask(bool, u8),
    /// Delivers an answer in transit. If the flag is `true`, the answer can be delivered again
    /// later.
    Deliver(Index, bool),
    Lose(Index),
    /// Delivers an answer to one request with the id and the port of a different exchange.
    Redirect(Index, Index),
    /// Delivers an answer with a different value and one wrong bit in the nonce.
    Forge(Index, u8),
    Wait(u64),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => (any::<bool>(), 1..16_u8).prop_map(|(is_batch, keys)| Step::Ask(is_batch, keys)),
        12 => (any::<Index>(), prop::bool::weighted(0.3)).prop_map(|(which, again)| Step::Deliver(which, again)),
        1 => any::<Index>().prop_map(Step::Lose),
        2 => (any::<Index>(), any::<Index>()).prop_map(|(which, to)| Step::Redirect(which, to)),
        2 => (any::<Index>(), 0..32_u8).prop_map(|(which, bit)| Step::Forge(which, bit)),
        2 => prop::sample::select(vec![1_000, 10_000_000, 25_000_000, 2_000_000_000]).prop_map(Step::Wait),
    ]
}

impl World {
    fn new() -> Self {
        // Six slots have two ids each, so that ids are reused as soon as possible.
        let table = Exchanges::with_ids(61_000, 12, 6, &[TIMEOUT]);
        Self { now: 0, table, clients: Vec::new(), network: Vec::new(), completed: 0 }
    }

    fn take(&mut self, step: &Step) {
        let pick =
            |which: &Index, network: &Vec<Flying>| (!network.is_empty()).then(|| which.index(network.len()));
        match step {
            Step::Ask(is_batch, bits) => self.ask(*is_batch, *bits),
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
    }

    fn ask(&mut self, is_batch: bool, bits: u8) {
        let keys: Vec<&[u8]> = (0..4).filter(|bit| bits >> bit & 1 == 1).map(|bit| KEYS[bit]).collect();
        let (client, payload) = (self.clients.len(), asked(if is_batch { "batch" } else { "get" }, &keys));
        let ask = read(&payload);
        let request = Request { payload: &payload, ask: &ask };
        let gather = Gather::new(&MEMCACHED, &request, &mut |_, key| Some(u8::from(key.len() > 2))).unwrap();
        let parts: Vec<u8> = (0..2).filter(|&part| gather.waits_for(part)).collect();
        // Each exchange has a different nonce, as if it were computed from a counter.
        let nonce = |part: u8| (client as u64 * 2 + u64::from(part) + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let begun: Vec<(u8, ExchangeId)> = parts
            .iter()
            .filter_map(|&part| {
                Some((part, self.table.begin(self.now, 0, Entry { client, part, nonce: nonce(part) }).ok()?))
            })
            .collect();
        if begun.len() < parts.len() {
            for (_, id) in begun {
                self.table.end(self.now, id);
            }
            return; // the request could not begin
        }
        let kept = |key: &&[u8]| {
            let value = [format!("{client} has ").as_bytes(), *key].concat();
            (key.to_vec(), Kept { flags: 0, cas: 1, value, is_base64: false })
        };
        let server = Server(keys.iter().map(kept).collect());
        for (part, id) in begun {
            let mut out = [0; 2_048];
            let own = OwnId { request: id.request, nonce: nonce(part) };
            let length = MEMCACHED.write_part(&request, &mut gather.part(part), own, &mut out).unwrap();
            let asked = gather.part(part).map(|item| item.bytes(&payload).to_vec());
            let answers = asked.zip(server.answer(&out[..length]).into_iter().flatten());
            self.network.extend(answers.map(|(key, bytes)| Flying {
                port: id.port,
                bytes,
                truth: Some((client, key)),
            }));
        }
        self.clients.push(Client { payload, gather, frames: Vec::new(), come: Vec::new(), is_over: false });
    }

    fn wait(&mut self, nanoseconds: u64) {
        self.now += nanoseconds;
        while let Some((_, entry)) = self.table.expire(self.now) {
            let client = &mut self.clients[entry.client];
            let progress = client.gather.expire(entry.part, Late::Fails);
            assert!(matches!(progress, Progress::Failed | Progress::Unchanged));
            client.is_over |= progress == Progress::Failed;
        }
    }

    /// Handles a datagram to the source port pool as a packet thread does.
    fn arrive(&mut self, flying: &Flying) {
        let Some(request) = MEMCACHED.answer_id(&flying.bytes) else { return };
        let id = ExchangeId { port: flying.port, request };
        let Some(&Entry { client: number, part, nonce }) = self.table.find(id) else { return };
        let client = &mut self.clients[number];
        let ask = read(&client.payload);
        let (request, mut room) = (Request { payload: &client.payload, ask: &ask }, KeyRoom::default());
        let own = OwnId { request: id.request, nonce };
        let Ok(answer) = MEMCACHED.read_answer(&request, own, &flying.bytes, &mut room) else {
            assert!(
                flying.truth.as_ref().is_none_or(|(whose, _)| *whose != number),
                "a genuine answer was refused"
            );
            return;
        };
        let (whose, key) = flying.truth.clone().expect("a forged answer was accepted");
        assert_eq!((whose, &key[..]), (number, answer.key), "a different request's answer was accepted");
        let frame = u32::try_from(client.frames.len()).unwrap();
        let progress = client.gather.answer(&MEMCACHED, &request, &Arrival { part, frame, answer });
        assert_eq!(progress == Progress::Unchanged, client.is_over || client.come.contains(&key));
        client.frames.push(flying.bytes.clone());
        if progress != Progress::Unchanged {
            client.come.push(key);
        }
        if !client.gather.waits_for(part) {
            self.table.end(self.now, id).unwrap();
        }
        if progress == Progress::Complete {
            self.complete(number);
        }
    }

    /// Checks that all values belong to this request.
    fn complete(&mut self, number: usize) {
        let client = &mut self.clients[number];
        client.is_over = true;
        let ask = read(&client.payload);
        let request = Request { payload: &client.payload, ask: &ask };
        let found = |key| {
            let Place { frame, value } = client.gather.place(key)?;
            Some(value.within(&client.frames[usize::try_from(frame).unwrap()]))
        };
        let bytes = reader::joined([0x12, 0x34], &reply(&request, &found));
        let is_batch = client.payload[8] == 0x80;
        let hits = if is_batch {
            reader::batch(&bytes, [0xde, 0xad, 0xbe, 0xef])
        } else {
            reader::text(&bytes, false)
        };
        let values: Vec<Vec<u8>> = hits.into_iter().map(|hit| hit.value).collect();
        let mut come: Vec<&[u8]> = client.come.iter().map(Vec::as_slice).collect();
        come.sort_by_key(|key| KEYS.iter().position(|known| known == key));
        let wanted: Vec<Vec<u8>> =
            come.iter().map(|key| [format!("{number} has ").as_bytes(), key].concat()).collect();
        assert_eq!((values.len(), values), (usize::from(ask.keys), wanted));
        self.completed += 1;
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1_000, ..ProptestConfig::default() })]
    #[test]
    fn gather_adversary_answers_stay_with_their_request(steps in vec(step(), 1..150)) {
        let mut world = World::new();
        steps.iter().for_each(|step| world.take(step));
        // Delivers all datagrams in transit, and then lets all exchanges expire.
        while let Some(flying) = world.network.pop() {
            world.arrive(&flying);
        }
        world.wait(TIMEOUT);
        prop_assert!(world.table.is_empty());
        prop_assert!(world.clients.iter().all(|client| client.is_over));
    }
}

#[test]
fn requests_are_completed_among_all_that() {
    let mut world = World::new();
    for round in 0..40 {
        world.take(&Step::Ask(round % 2 == 0, 15));
        while let Some(flying) = world.network.pop() {
            world.arrive(&flying);
            world.arrive(&flying);
        }
        world.take(&Step::Wait(2_000_000_000));
    }
    assert_eq!(world.completed, 40);
}
