//! What handlers share: where commands go, what the configuration allows, and how much is read at a time.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::{Semaphore, mpsc};

use super::command::Command;

/// What the configuration says of the API, now: every copy follows a change.
#[derive(Clone, Debug, Default)]
pub struct Rules(Arc<AtomicBool>);

impl Rules {
    /// `put`: `admin.put`, whether a whole configuration may be put.
    #[must_use]
    pub fn new(put: bool) -> Self {
        Self(Arc::new(put.into()))
    }

    /// From the next request on.
    pub fn set_put(&self, put: bool) {
        self.0.store(put, Ordering::Relaxed);
    }

    pub(super) fn put(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// What handlers share.
#[derive(Clone, Debug)]
pub(super) struct AppState {
    pub(super) commands: mpsc::Sender<Command>,
    pub(super) rules: Rules,
    /// One permit for each large body that is being read.
    pub(super) large_bodies: Arc<Semaphore>,
}

impl AppState {
    pub(super) fn new(commands: mpsc::Sender<Command>, rules: Rules) -> Self {
        Self { commands, rules, large_bodies: Arc::new(Semaphore::new(LARGE_BODIES)) }
    }
}

/// The only route that takes a large body.
pub(super) const PUT_CONFIG: &str = "/v1/config";
/// The route by which the file is read again.
pub(super) const RELOAD: &str = "/v1/reload";
/// The route by which a reload is confirmed.
pub(super) const CONFIRM: &str = "/v1/config/confirm";
/// The route by which what was in force before is again.
pub(super) const ROLLBACK: &str = "/v1/config/rollback";
pub(super) const UPGRADE: &str = "/v1/machine/upgrade";
/// How many large bodies are read at a time: together they bound the memory that clients can take.
const LARGE_BODIES: usize = 2;
