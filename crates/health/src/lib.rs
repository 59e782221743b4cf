//! Health checks of backends: TCP, HTTP, gRPC, DNS, memcached and NTP, straight or through a load balancer's tunnel.
//!
//! In: the set of targets ([`Watched`]): an address, a check, the pools that it counts for; servers to be emptied ([`Flush`]).
//! Out: changes of state and what came of emptying ([`Event`]), and reports for operators ([`TargetReport`]).
//! Modules: `attempt` (one probe), `http`, `grpc`, `dns`, `memcached`, `ntp` (its kinds), `tls`, `dial` (how connections are made),
//! `tunnel` (the way of clients' packets), `failure`, `engine` (which target is probed when, what its answers mean).
//! Not here: what a state does to traffic.
//! Invariant: an attempt owns all that it opens, so that dropping it ends it, and no answer, however long, is held whole.
//!
//! ```
//! use config::{CheckKind, TcpCheck};
//! use health::{Dialer, Failure, attempt};
//!
//! # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
//! let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
//! let address = listener.local_addr().unwrap();
//! let check = CheckKind::Tcp(TcpCheck { port: address.port() });
//! assert_eq!(attempt(&check, address.ip(), &Dialer::Direct).await, Ok(()));
//! drop(listener);
//! assert_eq!(attempt(&check, address.ip(), &Dialer::Direct).await, Err(Failure::Refused));
//! # });
//! ```

#![forbid(unsafe_code)]

use std::sync::{Mutex, MutexGuard, PoisonError};

mod attempt;
mod dial;
mod dns;
mod engine;
mod failure;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod grpc;
#[cfg(test)]
mod hostile;
mod http;
mod memcached;
mod ntp;
mod tls;
mod tunnel;

pub use self::attempt::attempt;
pub use self::dial::Dialer;
pub use self::engine::{
    Event, Events, Flush, Flushed, Health, HealthState, StateChange, TargetKey, TargetReport, ThroughKey,
    Watched,
};
pub use self::failure::Failure;
pub use self::memcached::flush;
pub use self::tunnel::{
    Tunnel, TunnelCounts, TunnelDialer, TunnelError, TunnelNumbers, TunnelSetup, remove_leftovers,
};

/// Nothing panics while it holds one of these locks; if it did, what they hold would still be whole.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
