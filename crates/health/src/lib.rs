//! Health checks of backends, for TCP, UDP, HTTP, gRPC, DNS, memcached, NTP, agents and programs.
//! Checks are sent directly or through the tunnel of a load balancer.
//!
//! The program passes the targets ([`Watched`]) and the memcached servers to flush ([`Flush`]). The
//! crate returns state changes and results ([`Event`]), and reports for operators
//! ([`TargetReport`]). The function `attempt` runs one probe, and each protocol has its own module.
//! The module `engine` schedules the probes and computes the health states. The module `tunnel`
//! sends probes in the same way as client packets.
//!
//! An attempt owns all its resources, so dropping it releases them. Only a limited part of a
//! response is stored.
//!
//! ```
//! use config::{CheckKind, TcpCheck};
//! use health::{Dialer, Failure, Interim, Pass, attempt};
//!
//! # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
//! let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
//! let address = listener.local_addr().unwrap();
//! let check = CheckKind::Tcp(TcpCheck { port: address.port(), send: None, expect: None });
//! let interim = Interim::default();
//! let result = attempt(&check, address.ip(), &Dialer::Direct, &interim).await;
//! assert_eq!(result, Ok(Pass::Answered));
//! drop(listener);
//! let result = attempt(&check, address.ip(), &Dialer::Direct, &interim).await;
//! assert_eq!(result, Err(Failure::Refused));
//! # });
//! ```

#![forbid(unsafe_code)]

use std::sync::{Mutex, MutexGuard, PoisonError};

mod agent;
mod attempt;
mod check_hops;
mod dial;
mod dns;
mod engine;
mod exchange;
mod exec;
mod failure;
mod full_size;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod grpc;
#[cfg(test)]
mod hostile;
mod http;
#[cfg(test)]
mod linear;
mod memcached;
mod ntp;
mod outcome;
mod tls;
mod tunnel;

pub use self::attempt::attempt;
pub use self::check_hops::{CheckHop, CheckHops, HopNeighbour};
pub use self::dial::Dialer;
pub use self::engine::{
    Event, Events, FailingHops, Flush, Flushed, Health, HealthState, ProxiedTargetKey, StateChange,
    TargetKey, TargetReport, Watched,
};
pub use self::exec::{RunnerSetup, kill_programs, serve as run_checks};
pub use self::failure::Failure;
pub use self::memcached::flush;
pub use self::outcome::{Advice, Interim, Pass};
pub use self::tunnel::{
    Tunnel, TunnelCounts, TunnelDialer, TunnelError, TunnelNumbers, TunnelSetup, remove_leftovers,
};

/// Locks a mutex. A poisoned lock can be used, because the code under these locks leaves the data
/// consistent.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
