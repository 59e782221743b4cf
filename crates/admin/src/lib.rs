//! The admin API: what an operator asks of a running balancer, and what it answers, over HTTP; metrics and the status page.
//!
//! In: connections on a Unix socket, or on TCP with mutual TLS; for metrics, on plain TCP. Out: [`Command`]s to the run loop,
//! which answers them; JSON back to the operator.
//! Not here: what is done about a command; domain types: the control plane makes the rows (`view`, `stats`).
//! Invariant: a client that stops in the middle of anything costs nothing in the end, and delays no other.
//!
//! # Example
//! ```no_run
//! use admin::{Command, Limits, Rules, listen, router, stats::Stats};
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let (commands, mut asked) = tokio::sync::mpsc::channel(16);
//! let (socket, listener) = listen("/run/sluicegate/admin.sock".as_ref(), 0o660, Some("ops"))?;
//! let api = router(commands, Rules::new(false), axum::Router::new());
//! tokio::spawn(socket.keep(listener, api, Limits::default()));
//! while let Some(command) = asked.recv().await {
//!     // A command that is dropped unanswered is refused as unavailable.
//!     if let Command::Stats(answer) = command {
//!         let _ = answer.send(Stats::default());
//!     }
//! }
//! # Ok(())
//! # }
//! ```

#![forbid(unsafe_code)]

mod accounts;
mod app_state;
mod capture;
mod client_stream;
mod command;
mod connection_limiter;
mod document;
mod event_log;
mod guard;
mod handlers;
mod hot_keys;
// Name spaces: `metrics::serve`, `pcapng::Packet`, the rows of `view` and `stats` say little without them.
pub mod metrics;
mod page;
pub mod pcapng;
mod refuse;
mod roles;
mod routes;
mod server;
mod socket;
pub mod stats;
mod tls;
pub mod view;

pub use accounts::{User, user};
pub use app_state::Rules;
pub use command::{
    ANSWER_WITHIN_SECONDS, Answer, BackendAction, CONFIG_BYTES, CaptureOrder, CaptureStream, Command,
    EVENTS_AT_MOST, EventQuery, FLOWS_AT_MOST, FlowQuery, HOT_KEYS_AT_MOST, HOT_KEYS_SECONDS_AT_MOST,
    HotKeysOrder, LogOrder, MachineAction, OrderNote, ReloadTerms, SNAP_BYTES,
};
pub use event_log::EventLog;
pub use page::status_page;
pub use roles::{Role, Roles};
pub use routes::{Route, router, routes};
pub use server::{Limits, Listener, Tls, serve};
pub use socket::{Socket, SocketError, listen};
pub use tls::{TlsError, acceptor};
pub use view::{Refusal, RefusalKind};
