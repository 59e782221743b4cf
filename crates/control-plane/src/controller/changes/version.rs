//! Compares the configurations before and after a reload.
//!
//! Moved slots are counted as if all backends were in service, like in `config diff` and in
//! `cluster.max_moved`. A new backend has no slots before its first check result, so the tables of
//! the controller would show only a part of the moves.

use std::sync::Arc;

use compile::{CompileError, Compiled, Compiler, Index};
use config::Config;
use health::HealthState;

use super::{Changes, Running, Side, changes};
use crate::Controller;

/// A configuration that a controller has activated, with its tables.
#[derive(Clone, Debug)]
pub struct Version {
    config: Arc<Config>,
    index: Arc<Index>,
    /// `true` if the tables are the same as with all backends in service.
    is_full: bool,
}

impl Version {
    /// Returns the current configuration of `controller`.
    #[must_use]
    pub fn of(controller: &Controller) -> Self {
        let state = &controller.runtime_state;
        let is_full = !controller.stale
            && controller.compiler.is_some()
            && state.health.values().all(|health| *health == HealthState::Up)
            && state.overrides.is_empty()
            && state.quarters.is_empty()
            && state.advice.is_empty()
            && state.flushing.is_empty();
        Self { config: Arc::clone(&controller.config), index: Arc::clone(&controller.index), is_full }
    }

    /// Describes the changes from this version to `new`. See [`changes`].
    ///
    /// # Cost
    /// If a backend of either version is not in service with its full weight, both configurations
    /// are compiled. Do not call this function on the control loop.
    #[must_use]
    pub fn changes(&self, new: &Self, running: &Running, machine: &str) -> Changes {
        let full = if self.is_full && new.is_full { None } else { self.compiled(new, machine).ok() };
        let indexes = full.as_ref().map(|[from, to]| [&from.index, &to.index]);
        let [from, to] = indexes.unwrap_or([&self.index, &new.index]);
        let side = |version, index| Side { config: version, index };
        changes(running, side(&self.config, from), side(&new.config, to), machine)
    }

    fn compiled(&self, new: &Self, machine: &str) -> Result<[Compiled; 2], CompileError> {
        // Both configurations share a compiler, so identical tables are built only once.
        let mut compiler = Compiler::default();
        Ok([compiler.compile_file(&self.config, machine)?, compiler.compile_file(&new.config, machine)?])
    }
}
