//! Health: what is asked of a backend, and what its answer means.
//!
//! In: a check's kind and an address. Out: passed, or why not.
//! Rooms: `attempt` (one question), `http`, `grpc`, `dns`, `memcached` (the kinds), `tls` (what carries some of them),
//! `dial` (how connections are made), `tunnel` (the way of clients' packets), `failure`, `engine` (who is asked when, and
//! what is made of the answers).
//! Not here: packets, and what becomes of a verdict (`compile`).
//! Invariant: an attempt owns all that it opens, so that dropping it ends it, and no answer, however long, is held whole.

#![forbid(unsafe_code)]

mod attempt;
mod dial;
mod dns;
pub mod engine;
mod failure;
mod grpc;
#[cfg(test)]
mod hostile;
mod http;
mod memcached;
mod tls;
pub mod tunnel;

pub use self::attempt::attempt;
pub use self::dial::Dialer;
pub use self::failure::Failure;
