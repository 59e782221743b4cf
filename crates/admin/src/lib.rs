//! The HTTP API through which operators query and control a running load balancer, the metrics, and
//! the status page.
//!
//! The server accepts connections on a Unix socket, and on TCP with mutual TLS. Metrics are also
//! served over plain TCP. Each request becomes a [`Command`] for the run loop of the process, and
//! the reply from the run loop is returned to the client as JSON. The crate contains no domain
//! types. The modules `view` and `stats` define the types of responses, and the control plane
//! creates the values.
//!
//! A client that stops in the middle of a request is disconnected after a timeout and never delays
//! other clients.
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
//!     // The client receives status 503 for a command that is dropped without a reply.
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
#[cfg(test)]
mod linear;
// These modules are public because the names of their items are unclear without the module name, as
// in `metrics::serve` and `pcapng::Packet`.
pub mod metrics;
mod page;
pub mod pcapng;
mod readiness;
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
    ANSWER_WITHIN_SECONDS, Answer, BackendAction, CONFIG_BYTES, CaptureCommand, CaptureStream, Command,
    EVENTS_AT_MOST, EventQuery, FLOWS_AT_MOST, FlowQuery, HOT_KEYS_AT_MOST, HOT_KEYS_SECONDS_AT_MOST,
    HotKeysCommand, LogLevelOverride, MachineAction, OverrideNote, ReloadTerms, SNAP_BYTES, ThenDown,
};
pub use event_log::EventLog;
pub use page::status_page;
pub use readiness::{Announcement, Machine, Readiness, VipState};
pub use roles::{Role, Roles};
pub use routes::{Route, router, routes};
pub use server::{Limits, Listener, Tls, serve};
pub use socket::{Socket, SocketError, listen};
pub use tls::{TlsError, acceptor};
pub use view::{Refusal, RefusalKind, VipAction};
