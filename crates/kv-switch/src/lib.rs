//! Requests of key-value protocols over UDP: which keys they name, what they do to them, and which server has each key.
//!
//! In: the payload of one datagram ([`Datagram`]), a protocol ([`Application`]), routes
//! and servers by name. Out: an [`Ask`] that says where the keys stand, or the [`Refusal`]; a key's hash ([`KeyHash`]); the
//! target of a key ([`Routes`]); the server on a ketama ring ([`Ring`]); what servers are asked for a request whose keys are on
//! several of them, and the reply that comes of it.
//! Not here: addresses and ports, who is alive, Maglev's table (`maglev-hash`), what is done with a request (`forwarder`).
//! Invariant: bytes from the network never panic; what is accepted is one command that memcached reads the same way, with
//! the same keys and to the same last byte.
//! No clock, no I/O, and no allocation once a table is built.
//!
//! ```
//! use kv_switch::{Application, Datagram, Effect, KeyRoom, Memcached, Plan};
//!
//! // Request 0x1234, datagram 0 of 1.
//! let payload = b"\x12\x34\0\0\0\x01\0\0get user:17\r\n";
//! let memcached = Memcached::new(32);
//! let ask = memcached.read(Datagram::whole(payload)).unwrap();
//! assert_eq!((ask.plan, ask.effect), (Plan::One, Effect::Read { cacheable: true }));
//! assert_eq!(memcached.key(payload, &ask.first, &mut KeyRoom::default()), b"user:17");
//! ```
//!
//! # Requests of our own
//!
//! Where the keys of a request are on several servers, each is asked for its [part](Application::write_part), the answers are
//! [gathered](Gather), and one [reply](Application::write_reply) goes to the client. An [exchange](Exchanges) is one such part under
//! way: its id finds what an answer answers, and what a server says is believed only if it carries the nonce too.
//!
//! ```
//! use kv_switch::{Application, Arrival, Datagram, ExchangeId, Exchanges, Gather, KeyRoom, Memcached, OwnId, Progress, Request};
//!
//! let payload = b"\x12\x34\0\0\0\x01\0\0get a b\r\n";
//! let memcached = Memcached::new(32);
//! let ask = memcached.read(Datagram::whole(payload)).unwrap();
//! let request = Request { payload, ask: &ask };
//! // Server 0 has `a`, server 1 has `b`; each is asked within 20 ms.
//! let mut gather = Gather::new(&memcached, &request, &mut |_, key| Some(u8::from(key == b"b"))).unwrap();
//! let mut exchanges = Exchanges::new(61_000..=61_015, 4_096, &[20_000_000]).unwrap();
//! let (now, nonce) = (0, 0x0123_4567_89ab_cdef); // nobody may guess the nonce
//! let ids = [0, 1].map(|part| exchanges.begin(now, 0, part).unwrap());
//! let mut out = [0; 1_472];
//! let own = OwnId { request: ids[0].request, nonce };
//! let length = memcached.write_part(&request, &mut gather.part(0), own, &mut out).unwrap();
//! assert_eq!(out[8..length], *b"mg a k f v O0123456789abcdef\r\n");
//!
//! // Server 1 answers first, to the port that it was asked from. Frames have whatever numbers the caller gives them.
//! let frames = [&b"EN kb O0123456789abcdef\r\n"[..], b"VA 2 ka f7 O0123456789abcdef\r\nhi\r\n"];
//! let frames = [(1, 0), (0, 1)].map(|(part, frame): (usize, usize)| {
//!     [&ids[part].request.to_be_bytes(), &[0, 0, 0, 1, 0, 0][..], frames[frame]].concat()
//! });
//! let mut progress = Progress::Unchanged;
//! for (frame, bytes) in (0..).zip(&frames) {
//!     let id = ExchangeId { port: 61_000, request: memcached.answer_id(bytes).unwrap() };
//!     let part = *exchanges.find(id).unwrap();
//!     let (own, mut room) = (OwnId { request: id.request, nonce }, KeyRoom::default());
//!     let answer = memcached.read_answer(&request, own, bytes, &mut room).unwrap();
//!     progress = gather.answer(&memcached, &request, &Arrival { part, frame, answer });
//!     exchanges.end(now, id); // it has all that it was asked
//! }
//! assert_eq!(progress, Progress::Complete);
//!
//! let found = |key| gather.place(key).map(|place| place.value.within(&frames[place.frame as usize]));
//! assert_eq!(memcached.reply_datagrams(&request, &found), Some(1));
//! let length = memcached.write_reply(&request, &found, 0, &mut out).unwrap();
//! assert_eq!(out[..length], *b"\x12\x34\0\0\0\x01\0\0VALUE a 7 2\r\nhi\r\nEND\r\n");
//! ```
//!
//! # Another application
//!
//! A protocol is a type that reads one datagram: [`Application`] wants three methods and refuses the rest, none of which may allocate, keep state
//! or look at a clock. What gives it a name is the reader of the file (`kv.protocol`). This one is SmartSwitch's case, read-only blocks of a
//! file system as Hadoop's: a request names a block by (file id, offset), 16 bytes behind a byte for the operation. All
//! readers of a block are sent to one server, whose memory then has it.
//!
//! ```
//! use std::ops::ControlFlow;
//!
//! use kv_switch::{Application, Ask, Datagram, Effect, Encoding, Item, KeyHash, KeyRoom, Plan, Refusal, Verb};
//!
//! /// `1`, file id (8 bytes), offset (8 bytes), length (4 bytes), all big-endian: read that much of a block.
//! #[derive(Debug)]
//! struct Blocks;
//!
//! const READ: u8 = 1;
//! const REQUEST: usize = 21;
//!
//! impl Application for Blocks {
//!     fn read(&self, datagram: Datagram<'_>) -> Result<Ask, Refusal> {
//!         let bytes = datagram.payload();
//!         // Judge everything that the server would misread, and the length first: nothing may follow the request.
//!         match bytes.first() {
//!             Some(&READ) if datagram.length() == REQUEST && bytes.len() == REQUEST => {}
//!             Some(&READ) => return Err(Refusal::WrongLength),
//!             Some(_) => return Err(Refusal::UnknownVerb),
//!             None => return Err(Refusal::ShortFrame),
//!         }
//!         let key = Item { start: 1, len: 16, encoding: Encoding::Raw };
//!         // Blocks never change: any client may be answered from a copy.
//!         Ok(Ask::one(Verb::Request.number(), Effect::Read { cacheable: true }, key))
//!     }
//!
//!     fn items(&self, _: &[u8], ask: &Ask, each: &mut dyn FnMut(Item) -> ControlFlow<()>) {
//!         let _ = each(ask.first); // one key a request
//!     }
//!
//!     fn key<'a>(&self, payload: &'a [u8], item: &Item, _: &'a mut KeyRoom) -> &'a [u8] {
//!         item.bytes(payload)
//!     }
//! }
//!
//! let mut request = [0; REQUEST];
//! request[0] = READ;
//! request[1..9].copy_from_slice(&7_u64.to_be_bytes());
//! request[9..17].copy_from_slice(&(128_u64 << 20).to_be_bytes());
//! request[17..].copy_from_slice(&65_536_u32.to_be_bytes());
//!
//! let ask = Blocks.read(Datagram::whole(&request)).unwrap();
//! let mut room = KeyRoom::default();
//! let key = Blocks.key(&request, &ask.first, &mut room);
//! assert_eq!(ask.plan, Plan::One);
//! assert_eq!(key, &request[1..17]);
//! let server = KeyHash::sip(1, 2).hash(key); // Maglev's table or a ring has the rest
//! assert_eq!(server, KeyHash::sip(1, 2).hash(&request[1..17]));
//!
//! // One byte more could be another request.
//! assert_eq!(Blocks.read(Datagram::whole(&[&request[..], &[0]].concat())), Err(Refusal::WrongLength));
//! ```
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::indexing_slicing))]

// What the fuzzer compiles too names the crate from outside.
#[cfg(test)]
extern crate self as kv_switch;

mod answer;
mod application;
mod cache;
mod exchange;
mod gather;
mod gather_table;
mod header;
mod hot_keys;
mod key_hash;
mod memcached;
mod offset;
mod refusal;
mod replicas;
mod ring;
mod routes;
mod sync;

pub use crate::answer::{
    Answer, Content, Copied, Fetch, Fetched, FetchedContent, NoAnswer, Outcome, OwnId, Stored, Value,
};
pub use crate::application::{
    AnswerFrame, Application, Ask, Datagram, Effect, Encoding, Item, KeyRoom, Plan, Prepared, Replicated,
    Request, ShortLife, Shortened,
};
pub use crate::cache::{
    Cache, CacheConfig, CacheCounts, Epoch, Epochs, FREE_FETCHES, FetchAnswer, Filled, Lease, Read, SETTLE_NS,
};
pub use crate::exchange::{EXCHANGE_REST_NS, ExchangeError, ExchangeId, Exchanges};
pub use crate::gather::{Arrival, Gather, Late, MAX_KEYS, Place, Progress};
pub use crate::gather_table::{
    ExchangeFor, Expired, GatherConfig, GatherTable, NewGather, NotBegun, NotTaken, Target,
};
pub use crate::header::Header;
pub use crate::hot_keys::{HotKey, HotKeys, hottest};
pub use crate::key_hash::{KeyHash, fnv1a_64, md5_ketama};
pub use crate::memcached::{MAX_KEY_BYTES, Memcached, Verb};
pub use crate::offset::Offset;
pub use crate::refusal::Refusal;
pub use crate::replicas::{
    Ack, Answered, Asker, CopyId, MAX_REPLICAS, NewWrite, NotWritten, Replica, Writes, Written,
};
pub use crate::ring::{Choice, Ring, RingError, Server, ring_name};
pub use crate::routes::{RouteError, Routes};

/// The example of the README is a test too.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
