//! The health scheduler: which target is probed when, and what state its answers give it.
//!
//! In: the set of targets, as each generation of the configuration has it. Out: changes of state, and reports.
//! It runs on a thread of its own, so that neither a reload nor a table build delays it.
//! Beside them it empties servers (`flushes`), which says nothing of how they are.
//! Modules: `target`, `verdicts` (results to verdicts; the rule of local failure), `runner` (the loop), `flights` (attempts under
//! way), `schedule`, `wheel`, `pace` (when), `record` (the past), `registry`, `exchange` (the way in and out).
//! Not here: what one attempt does (`attempt`), what a state does to traffic (the caller).
//! Invariant: memory, descriptors and attempts under way are bounded by the number of targets and by RLIMIT_NOFILE.

mod exchange;
mod flights;
mod flushes;
mod pace;
mod record;
mod registry;
mod runner;
mod schedule;
mod target;
mod verdicts;
mod wheel;

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use nix::sys::resource::{Resource, getrlimit};
use tokio::sync::{oneshot, watch};

pub use self::exchange::Events;
pub use self::target::{HealthState, TargetKey, TargetReport, ThroughKey, Watched};

use self::exchange::Exchange;
use self::registry::Registry;
use self::runner::Runner;
use crate::{Dialer, lock};

/// What the health thread reports.
#[derive(Clone, Debug)]
pub enum Event {
    /// Changes of state, all of one moment together.
    Changed(Vec<StateChange>),
    /// No check of any backend passes, so that this machine's network is taken to have failed: the last states hold.
    /// `false`: no longer.
    LocalFailure(bool),
    /// Targets that this machine has not been able to ask several times in a row, and why: no port, no permission. Their
    /// verdicts stay, since it says nothing of the backend. `None`: it was asked again, or is watched no more.
    Unable(Vec<(TargetKey, Option<String>)>),
    /// What came of emptying servers: of each the latest.
    Flushed(Vec<Flushed>),
}

/// A new state of a target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateChange {
    /// Which target.
    pub key: TargetKey,
    /// Its state now.
    pub state: HealthState,
    /// Of one that is down: why the last attempt failed.
    pub why: Option<String>,
}

/// A server that is to be emptied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flush {
    /// Another for each time that one is to be emptied: what came of an earlier time says nothing of this one.
    pub number: u64,
    /// Its own address, and the port that it serves at.
    pub server: SocketAddr,
    /// Between two attempts.
    pub interval: Duration,
    /// Of each.
    pub timeout: Duration,
}

/// What came of an attempt to empty a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flushed {
    /// Its [`Flush::number`].
    pub number: u64,
    /// It is empty; else why that is not known. It is tried again then.
    pub result: Result<(), String>,
}

/// The running scheduler. Dropping it ends its thread and every attempt.
#[derive(Debug)]
pub struct Health {
    exchange: Arc<Exchange>,
    registry: Mutex<Registry>,
    flushes: watch::Sender<Vec<Flush>>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// How a target is reached.
type Dialing = Box<dyn Fn(&Watched) -> Dialer + Send>;

impl Health {
    /// Starts the thread, with nothing to watch. `dialers` says how a target is reached; it is asked on that thread when the
    /// target is added and when its slot, backend or pools change, and must not wait for anything.
    ///
    /// # Errors
    /// No thread, or no epoll instance.
    pub fn start(dialers: impl Fn(&Watched) -> Dialer + Send + 'static) -> io::Result<(Self, Events)> {
        Self::start_with(Box::new(dialers), most_attempts())
    }

    fn start_with(dialing: Dialing, most: usize) -> io::Result<(Self, Events)> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let exchange = Arc::new(Exchange::default());
        let (stop, stopped) = oneshot::channel();
        let shared = Arc::clone(&exchange);
        let (flushes, wanted) = watch::channel(Vec::new());
        let emptied = Arc::clone(&exchange);
        let thread = std::thread::Builder::new().name("health".into()).spawn(move || {
            runtime.block_on(async {
                // A task of its own, which sockets wake without a write to the runtime's eventfd.
                tokio::spawn(tokio::task::unconstrained(Runner::new(shared, dialing, most)));
                tokio::spawn(flushes::carry_out(wanted, emptied));
                let _ = stopped.await;
            });
        })?;
        let events = Events(Arc::clone(&exchange));
        let (stop, thread) = (Some(stop), Some(thread));
        Ok((Self { exchange, registry: Mutex::default(), flushes, stop, thread }, events))
    }

    /// Makes `wanted` the set of targets. Those that were watched before keep verdict, history and schedule; those that are
    /// asked the same at another pace, or with another `rise` or `fall`, verdict and history, which is published under the new key;
    /// those that are gone stop at once, in the middle of an attempt too. Returns before it has taken effect.
    ///
    /// # Cost
    /// About a microsecond a target on the caller's thread.
    pub fn watch(&self, wanted: Vec<Watched>) {
        // Held until the change is handed over: two callers' sets must not be handed over in another order than found.
        let mut registry = lock(&self.registry);
        self.exchange.change(registry.replace(wanted));
    }

    /// Makes `wanted` the servers to be emptied, each by its number; attempts for a number that is gone end. A server is asked until it
    /// says that it is empty, and then not again under that number. Nothing of this is a check's result.
    pub fn flush(&self, wanted: Vec<Flush>) {
        self.flushes.send_replace(wanted);
    }

    /// What is known of all targets, in no order. Waits for the health thread: some milliseconds with 20,000 targets.
    pub fn report(&self) -> Vec<TargetReport> {
        self.exchange.ask_report().recv().unwrap_or_default()
    }
}

impl Drop for Health {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // It fails when the thread panicked, and the panic was logged then.
            let _ = thread.join();
        }
    }
}

/// Most attempts under way at once: half the descriptors that the process may have, since each takes one.
fn most_attempts() -> usize {
    let (soft, _) = getrlimit(Resource::RLIMIT_NOFILE).unwrap_or((1024, 1024));
    usize::try_from(soft / 2).unwrap_or(usize::MAX).clamp(16, 16_384)
}

#[cfg(test)]
mod tests;
