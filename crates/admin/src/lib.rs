//! The admin API: what an operator asks of a running balancer, and what it answers, over HTTP.
//!
//! In: connections on a Unix socket, or on TCP with mutual TLS. Out: [`Command`]s to whoever owns the balancer, who
//! answers them; JSON back to the operator. Rooms: `command` and `view` (the messages), `app_state`, `routes` and `handlers` (HTTP to
//! messages), `capture` (packets as a stream), `guard` (what no request may exceed), `server`, `room` and `paced` (connections and their limits), `socket`, `tls`.
//! `metrics` makes samples of the same rows, on a listener of its own.
//! Not here: what is done about a command; domain types: rows are made at the border, in the control plane.
//! Invariant: a client that stops in the middle of anything costs nothing in the end, and delays nobody.

#![forbid(unsafe_code)]

pub mod accounts;
mod app_state;
mod capture;
mod client_stream;
pub mod command;
mod connection_limiter;
mod document;
mod guard;
mod handlers;
pub mod metrics;
pub mod page;
mod refuse;
pub mod routes;
pub mod server;
pub mod socket;
pub mod stats;
pub mod tls;
pub mod view;

pub use app_state::Rules;
pub use command::{
    Answer, BackendAction, CaptureOrder, CaptureStream, Command, FlowQuery, MachineAction, SNAP_BYTES,
};
pub use routes::router;
pub use server::{Door, Limits, serve};
pub use socket::Socket;
pub use view::{Refusal, RefusalKind};
