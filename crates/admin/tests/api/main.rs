//! The admin API against a control loop that is played by the test.
//!
//! No root: connections are Unix sockets in a temporary folder, or TCP on 127.0.0.1 with a port of the kernel's choice.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod bounds;
mod capture;
mod document;
mod mock;
mod requests;
mod tls;
