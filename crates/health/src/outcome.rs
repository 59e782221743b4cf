//! The results of an attempt other than a failure: how the attempt passed, and its result if the
//! time limit expires.

use std::sync::{Arc, Mutex};

use super::{Failure, lock};

/// The state and weight that an agent requests for its backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Advice {
    /// `true` if the backend must not receive new flows.
    pub drains: bool,
    /// The weight in tenths of the configured weight: 1 to 20. The steps are coarse, because each
    /// weight change requires a table rebuild and moves flows.
    pub tenths: u8,
}

/// How an attempt passed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Pass {
    /// The backend sent the expected response.
    Answered,
    /// The backend sent nothing and the check needs no response, or a program passed. Such a result
    /// does not show that the network of this machine works.
    Silent,
    /// The agent of the backend reports that the backend is up.
    Agent(Advice),
}

/// The result of an attempt whose time limit expires. The attempt updates the result while
/// it runs.
#[derive(Clone, Debug, Default)]
pub struct Interim(Arc<Mutex<Option<Result<Pass, Failure>>>>);

impl Interim {
    pub(super) fn set(&self, result: Result<Pass, Failure>) {
        *lock(&self.0) = Some(result);
    }

    /// Resets the result before another attempt.
    pub(super) fn clear(&self) {
        *lock(&self.0) = None;
    }

    /// Returns the result of an attempt that the time limit has ended.
    ///
    /// # Errors
    /// Returns the failure that the attempt has recorded so far, or else [`Failure::NoAnswer`].
    pub fn expired(&self) -> Result<Pass, Failure> {
        lock(&self.0).take().unwrap_or(Err(Failure::NoAnswer))
    }
}
