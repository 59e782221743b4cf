//! The health scheduler. The scheduler decides when each target is probed, and computes health
//! states from the results.
//!
//! The scheduler runs on its own thread, so that neither a reload nor a table build delays it. The
//! module `flushes` flushes memcached servers, which does not affect their health states.
//!
//! The module `runner` has the main loop. `schedule`, `wheel` and `pace` handle the timing.
//! `flights` holds the running attempts, `health_states` has the rules for health states, `damper`
//! limits changes of weights, and `record` has the history. `registry` and `exchange` are the
//! interface to other threads.
//!
//! Memory, file descriptors and running attempts are bounded by the number of targets and by
//! RLIMIT_NOFILE.

mod damper;
mod exchange;
mod flights;
mod flushes;
mod health_states;
mod hops;
mod pace;
mod record;
mod registry;
mod runner;
mod schedule;
mod target;
mod wheel;

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use nix::sys::resource::{Resource, getrlimit};
use tokio::sync::{oneshot, watch};

pub use self::exchange::Events;
pub use self::target::{HealthState, ProxiedTargetKey, TargetKey, TargetReport, Watched};

use self::exchange::Exchange;
use self::registry::Registry;
use self::runner::Runner;
use crate::{Advice, CheckHop, CheckHops, Dialer, HopNeighbour, lock};

/// An event from the health thread.
#[derive(Clone, Debug)]
pub enum Event {
    /// Health state changes that were published together.
    Changed(Vec<StateChange>),
    /// The start (`true`) or end (`false`) of a local failure. In a local failure, no check of any
    /// backend passes. The network of this machine is then assumed to have failed, and all health
    /// states stay as they are.
    LocalFailure(bool),
    /// Targets that this machine can no longer probe, or can probe again. The value is the reason
    /// why a target could not be probed several times in a row, such as no free port or no
    /// permission. `None` means that the target was probed again or is no longer watched. The
    /// health states do not change, because the backends may be healthy.
    Unable(Vec<(TargetKey, Option<String>)>),
    /// Targets whose set of failing hops has changed.
    Hops(Vec<FailingHops>),
    /// New advice from agents about the weights and drains of backends.
    Advised(Vec<(TargetKey, Advice)>),
    /// The latest result for each server that is being flushed.
    Flushed(Vec<Flushed>),
}

/// A change of a target's health state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateChange {
    /// The target.
    pub key: TargetKey,
    /// The new state.
    pub state: HealthState,
    /// The reason for the last failed attempt, if the target is down.
    pub why: Option<String>,
}

/// The failing hops of one target. The list contains all failing hops of the target, and is empty
/// if the target was removed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailingHops {
    /// The target.
    pub key: TargetKey,
    /// The hops through which the check fails while the check passes through a different hop.
    pub hops: Vec<HopNeighbour>,
}

/// A request to flush a memcached server, which removes all its entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flush {
    /// The number that uniquely identifies this request, so that an old result is not used for a
    /// new request.
    pub number: u64,
    /// The address and port of the server.
    pub server: SocketAddr,
    /// The pause between two attempts to flush the server.
    pub interval: Duration,
    /// The timeout of each attempt.
    pub timeout: Duration,
}

/// The result of an attempt to flush a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flushed {
    /// The [`Flush::number`] of the request.
    pub number: u64,
    /// `Ok` if the server was flushed, or the reason why the attempt to flush the server failed. A
    /// failed attempt is repeated.
    pub result: Result<(), String>,
}

/// The handle of the health thread. Dropping the handle ends the thread and every attempt.
#[derive(Debug)]
pub struct Health {
    exchange: Arc<Exchange>,
    registry: Mutex<Registry>,
    flushes: watch::Sender<Vec<Flush>>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// The function that creates the dialer for a target. If a hop is given, the dialer sends
/// through this hop.
type Dialing = Box<dyn Fn(&Watched, Option<&CheckHop>) -> Dialer + Send>;

impl Health {
    /// Starts the health thread without targets. The thread calls `dialers` to create the dialer
    /// for a target. The thread calls this function when a target is added and when its slot,
    /// backend or pools change, and at each attempt for each hop of a backend in `hops`. The
    /// function must not block.
    ///
    /// # Errors
    /// Returns an error if the system cannot create the thread or its epoll instance.
    pub fn start(
        dialers: impl Fn(&Watched, Option<&CheckHop>) -> Dialer + Send + 'static,
        hops: CheckHops,
    ) -> io::Result<(Self, Events)> {
        Self::start_with(Box::new(dialers), hops, most_descriptors())
    }

    fn start_with(dialing: Dialing, hops: CheckHops, most: usize) -> io::Result<(Self, Events)> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let exchange = Arc::new(Exchange::default());
        let (stop, stopped) = oneshot::channel();
        let shared = Arc::clone(&exchange);
        let (flushes, wanted) = watch::channel(Vec::new());
        let emptied = Arc::clone(&exchange);
        let thread = std::thread::Builder::new().name("health".into()).spawn(move || {
            runtime.block_on(async {
                // The loop runs as its own task, because sockets can wake a task without a write to
                // the eventfd of the runtime.
                tokio::spawn(tokio::task::unconstrained(Runner::new(shared, dialing, hops, most)));
                tokio::spawn(flushes::carry_out(wanted, emptied));
                let _ = stopped.await;
            });
        })?;
        let events = Events(Arc::clone(&exchange));
        let (stop, thread) = (Some(stop), Some(thread));
        Ok((Self { exchange, registry: Mutex::default(), flushes, stop, thread }, events))
    }

    /// Replaces the set of targets. Targets that are also in the new set keep their health state,
    /// history and schedule. If only the interval, `rise` or `fall` of a target has changed, the
    /// target keeps its health state and history, and the state is published under the new target
    /// key. The attempts of removed targets are canceled. This method returns before the change
    /// takes effect.
    ///
    /// # Cost
    /// About a microsecond per target on the calling thread.
    pub fn watch(&self, wanted: Vec<Watched>) {
        // The lock is held until the difference was handed over to the health thread. Otherwise,
        // the differences of two callers could be handed over in the wrong order.
        let mut registry = lock(&self.registry);
        self.exchange.change(registry.replace(wanted));
    }

    /// Sets the hops through which checks failed in the previous process. Call this method before
    /// the first call of [`Health::watch`], so that the targets start with these states.
    pub fn know_failing_hops(&self, known: impl IntoIterator<Item = FailingHops>) {
        lock(&self.registry).know_failing_hops(known.into_iter());
    }

    /// Replaces the set of flush requests. Each request is attempted until one attempt succeeds.
    /// Requests that are not in `wanted` are canceled. The results do not affect health states.
    pub fn flush(&self, wanted: Vec<Flush>) {
        self.flushes.send_replace(wanted);
    }

    /// Returns a report of all targets, in no particular order. This function waits until the
    /// health thread has created the report, which takes a few milliseconds for 20,000 targets.
    pub fn report(&self) -> Vec<TargetReport> {
        self.exchange.ask_report().recv().unwrap_or_default()
    }
}

impl Drop for Health {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // Joining fails only if the thread panicked, and that panic was logged.
            let _ = thread.join();
        }
    }
}

/// Returns the maximum number of file descriptors that running attempts may use, which is half of
/// the file descriptor limit. An attempt uses one, or one for each next hop.
fn most_descriptors() -> usize {
    let (soft, _) = getrlimit(Resource::RLIMIT_NOFILE).unwrap_or((1024, 1024));
    usize::try_from(soft / 2).unwrap_or(usize::MAX).clamp(16, 16_384)
}

#[cfg(test)]
mod tests;
