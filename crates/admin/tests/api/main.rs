//! Tests of the admin API with a mock of the run loop.
//!
//! The tests need no root privileges. The tests use Unix sockets in a temporary directory, and TCP
//! on 127.0.0.1 with a port that the kernel chooses.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod bounds;
mod capture;
mod document;
mod mock;
mod reference;
mod requests;
mod tls;
