//! Parses and routes requests of key-value protocols over UDP, such as memcached.
//!
//! An [`Application`] parses the payload of one [`Datagram`] into an [`Ask`], which contains the
//! offsets of the keys, or refuses it with a [`Refusal`]. [`Routes`] maps keys to pools.
//! [`KeyHash`] hashes keys, and [`Ring`] maps hashes to servers as ketama clients do.
//! [`GatherTable`] handles requests whose keys are on several servers, [`Cache`] holds hot values,
//! and [`HotKeys`] counts the most requested keys.
//!
//! The crate does not read the clock, does no I/O, and allocates memory only while tables are
//! built. Bytes from the network never cause a panic. A request is accepted only if memcached would
//! parse the whole datagram as one command with the same keys.
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
//! # Upstream requests
//!
//! If the keys of a request are on several servers, each server receives an upstream request for
//! its [part](Application::write_part) of the keys. In this crate, an *answer* is the datagram that
//! a server sends in response to an upstream request, and a *reply* is what the client receives.
//! The answers are [gathered](Gather) into one [reply](Application::write_reply). An
//! [exchange](Exchanges) is one upstream request that is waiting for its answer. The request id in
//! an answer identifies the exchange. The answer is accepted only if it also contains the nonce of
//! the exchange.
//! ```
//! use kv_switch::{
//!     Application, Arrival, Datagram, ExchangeId, Exchanges, Gather, KeyRoom, Memcached, OwnId,
//!     Progress, Request,
//! };
//!
//! let payload = b"\x12\x34\0\0\0\x01\0\0get a b\r\n";
//! let memcached = Memcached::new(32);
//! let ask = memcached.read(Datagram::whole(payload)).unwrap();
//! let request = Request { payload, ask: &ask };
//! // Server 0 has `a` and server 1 has `b`. Each server has 20 ms to answer.
//! let mut server = |_: usize, key: &[u8]| Some(u8::from(key == b"b"));
//! let mut gather = Gather::new(&memcached, &request, &mut server).unwrap();
//! let mut exchanges = Exchanges::new(61_000..=61_015, 4_096, &[20_000_000]).unwrap();
//! let (now, nonce) = (0, 0x0123_4567_89ab_cdef); // the nonce must be unpredictable
//! let ids = [0, 1].map(|part| exchanges.begin(now, 0, part).unwrap());
//! let mut out = [0; 1_472];
//! let own = OwnId { request: ids[0].request, nonce };
//! let length = memcached.write_part(&request, &mut gather.part(0), own, &mut out).unwrap();
//! assert_eq!(out[8..length], *b"mg a k f v O0123456789abcdef\r\n");
//!
//! // Server 1 answers first. The caller chooses the frame numbers.
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
//!     exchanges.end(now, id); // all keys of this part have an answer
//! }
//! assert_eq!(progress, Progress::Complete);
//!
//! let frame = |place: kv_switch::Place| place.value.within(&frames[place.frame as usize]);
//! let found = |key| gather.place(key).map(frame);
//! assert_eq!(memcached.reply_datagrams(&request, &found), Some(1));
//! let length = memcached.write_reply(&request, &found, 0, &mut out).unwrap();
//! assert_eq!(out[..length], *b"\x12\x34\0\0\0\x01\0\0VALUE a 7 2\r\nhi\r\nEND\r\n");
//! ```
//!
//! # Other applications
//!
//! To add a protocol, implement [`Application`] for a type. Three methods are required. The default
//! implementations of the other methods report that the operation is not supported. Methods must
//! not allocate memory, keep state or read a clock. In Sluicegate, the configuration key
//! `kv.protocol` selects the protocol. The following example is the use case of the SmartSwitch
//! paper. In this use case, servers provide read-only blocks of a distributed file system such as
//! Hadoop's. A request identifies a block by the 16 bytes after the operation byte, which are a
//! file id and an offset. All requests for a block go to the same server, which then has the block
//! in memory.
//!
//! ```
//! use std::ops::ControlFlow;
//!
//! use kv_switch::{
//!     Application, Ask, Datagram, Effect, Encoding, Item, KeyHash, KeyRoom, Plan, Refusal, Verb,
//! };
//!
//! /// Reads a part of a block: `1`, file id (8 bytes), offset (8), length (4), all big-endian.
//! #[derive(Debug)]
//! struct Blocks;
//!
//! const READ: u8 = 1;
//! const REQUEST: usize = 21;
//!
//! impl Application for Blocks {
//!     fn read(&self, datagram: Datagram<'_>) -> Result<Ask, Refusal> {
//!         let bytes = datagram.payload();
//!         // The length must match exactly, because extra bytes could be a second request.
//!         match bytes.first() {
//!             Some(&READ) if datagram.length() == REQUEST && bytes.len() == REQUEST => {}
//!             Some(&READ) => return Err(Refusal::WrongLength),
//!             Some(_) => return Err(Refusal::UnknownVerb),
//!             None => return Err(Refusal::ShortFrame),
//!         }
//!         let key = Item { start: 1, len: 16, encoding: Encoding::Raw };
//!         // Blocks never change, so a cached copy can answer any client.
//!         Ok(Ask::one(Verb::Request.number(), Effect::Read { cacheable: true }, key))
//!     }
//!
//!     fn items(&self, _: &[u8], ask: &Ask, each: &mut dyn FnMut(Item) -> ControlFlow<()>) {
//!         let _ = each(ask.first); // a request has one key
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
//! let server = KeyHash::sip(1, 2).hash(key); // to be looked up in a Maglev table or a ring
//! assert_eq!(server, KeyHash::sip(1, 2).hash(&request[1..17]));
//!
//! // A longer datagram could hold a second request.
//! let longer = [&request[..], &[0]].concat();
//! assert_eq!(Blocks.read(Datagram::whole(&longer)), Err(Refusal::WrongLength));
//! ```
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::indexing_slicing))]

// The code that is shared with the fuzz targets refers to this crate as `kv_switch`.
#[cfg(test)]
extern crate self as kv_switch;

mod answer;
mod application;
mod cache;
mod exchange;
mod gather;
mod gather_parts;
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
mod shares;
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
pub use crate::gather_parts::Target;
pub use crate::gather_table::{
    ExchangeFor, Expired, GatherConfig, GatherTable, NewGather, NotBegun, NotTaken,
};
pub use crate::header::Header;
pub use crate::hot_keys::{HotKey, HotKeys, hottest};
pub use crate::key_hash::{KeyHash, fnv1a_64, md5_ketama};
pub use crate::memcached::{MAX_KEY_BYTES, Memcached, Verb};
pub use crate::offset::Offset;
pub use crate::refusal::Refusal;
pub use crate::replicas::{
    Ack, Answered, CopyId, MAX_REPLICAS, NewWrite, NotWritten, Replica, Requester, Writes, Written,
};
pub use crate::ring::{Choice, Ring, RingError, Server, ring_name};
pub use crate::routes::{RouteError, Routes};
pub use crate::shares::Shares;

/// Compiles and runs the example in README.md as a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
