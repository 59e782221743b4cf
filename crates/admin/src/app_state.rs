//! The shared state of all request handlers: the channel to the run loop, the configured rules, and
//! a limit on concurrent large request bodies.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::{Semaphore, mpsc};

use super::command::Command;

/// Settings of the API that a reload can change. All clones share one value.
#[derive(Clone, Debug, Default)]
pub struct Rules(Arc<AtomicBool>);

impl Rules {
    /// Creates the rules. `put` is the value of `admin.put`, which enables `PUT /v1/config`.
    #[must_use]
    pub fn new(put: bool) -> Self {
        Self(Arc::new(put.into()))
    }

    /// Changes the value of `admin.put`. The change applies from the next request on.
    pub fn set_put(&self, put: bool) {
        self.0.store(put, Ordering::Relaxed);
    }

    pub(super) fn put(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// The state of the request handlers.
#[derive(Clone, Debug)]
pub(super) struct AppState {
    pub(super) commands: mpsc::Sender<Command>,
    pub(super) rules: Rules,
    /// One permit for each large request body that is being read.
    pub(super) large_bodies: Arc<Semaphore>,
}

impl AppState {
    pub(super) fn new(commands: mpsc::Sender<Command>, rules: Rules) -> Self {
        Self { commands, rules, large_bodies: Arc::new(Semaphore::new(LARGE_BODIES)) }
    }
}

/// The route that replaces the configuration. Only this route accepts a large request body.
pub(super) const PUT_CONFIG: &str = "/v1/config";
/// The route that reads the configuration file again.
pub(super) const RELOAD: &str = "/v1/reload";
/// The route that confirms a reload.
pub(super) const CONFIRM: &str = "/v1/config/confirm";
/// The route that restores an earlier generation.
pub(super) const ROLLBACK: &str = "/v1/config/rollback";
pub(super) const UPGRADE: &str = "/v1/machine/upgrade";
/// The maximum number of large request bodies that are read in parallel. The limit bounds the
/// memory that clients can occupy.
const LARGE_BODIES: usize = 2;
