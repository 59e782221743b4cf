//! Tests of a speaker over loopback, against test routers and other speakers.
//!
//! The tests need no root. Peers have different addresses in 127.0.0.0/8 and different ports.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, reason = "a failed test may panic")]

mod abandoned;
mod changes;
mod collision;
mod hand;
mod hostile;
mod keys;
mod parting;
