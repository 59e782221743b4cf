//! A speaker over loopback, against peers that are written by hand or are another speaker.
//!
//! Needs no root: peers are told apart by addresses of 127.0.0.0/8, and have ports of their own.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod abandoned;
mod changes;
mod collision;
mod hand;
mod hostile;
mod keys;
mod parting;
