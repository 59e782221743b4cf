//! Overrides of announcements, which operators set with `vip withdraw` and `vip announce`.
//!
//! `withdraw` withdraws the routes of a VIP on this machine for maintenance, while the machine
//! keeps forwarding its packets. `announce` ends the hold-down of a VIP and suspends its flap
//! damping. A VIP has at most one override, and each override has an end time. Invariant: overrides
//! survive reloads and upgrades, but not a restart.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use admin::view::VipOverrideRow;
use admin::{OverrideNote, VipAction};
use serde::{Deserialize, Serialize};

/// The active overrides, by VIP name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VipOverrides(BTreeMap<Arc<str>, VipOverride>);

/// An override of one VIP. Times are measured from the start of the first process in a chain of
/// upgrades.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct VipOverride {
    pub(crate) withdraws: bool,
    at: Duration,
    until: Duration,
    pub(crate) by: String,
    pub(crate) reason: Option<String>,
}

impl VipOverride {
    /// Creates an override that is set at `now`. An override without a duration lasts for
    /// [`UNDAMPED`].
    pub(crate) fn new(action: VipAction, note: &OverrideNote, now: Duration) -> Self {
        let OverrideNote { by, reason, lasts, .. } = note.clone();
        let withdraws = action == VipAction::Withdraw;
        Self { withdraws, at: now, until: now + lasts.unwrap_or(UNDAMPED), by, reason }
    }

    /// Returns the remaining time.
    pub(crate) fn left(&self, now: Duration) -> Duration {
        self.until.saturating_sub(now)
    }
}

impl VipOverrides {
    pub(crate) fn of(&self, vip: &str) -> Option<&VipOverride> {
        self.0.get(vip)
    }

    /// Sets the override of a VIP, and returns the override that it replaces.
    pub(crate) fn give(&mut self, vip: &Arc<str>, given: VipOverride) -> Option<VipOverride> {
        self.0.insert(Arc::clone(vip), given)
    }

    /// Removes the overrides that have ended by `now`, and returns their VIPs.
    pub(crate) fn expire(&mut self, now: Duration) -> Vec<(Arc<str>, VipOverride)> {
        self.0.extract_if(.., |_, given| given.until <= now).collect()
    }

    /// Removes the overrides of all VIPs that are not `kept`.
    pub(crate) fn retain(&mut self, kept: impl Fn(&str) -> bool) {
        self.0.retain(|vip, _| kept(vip));
    }

    /// Returns the overrides by VIP name, for the hand-over to a new process.
    pub(crate) fn handed(&self) -> BTreeMap<String, VipOverride> {
        self.0.iter().map(|(vip, given)| (vip.to_string(), given.clone())).collect()
    }

    /// Creates the overrides that another process has handed over.
    pub(crate) fn taken(handed: &BTreeMap<String, VipOverride>) -> Self {
        Self(handed.iter().map(|(vip, given)| (vip.as_str().into(), given.clone())).collect())
    }

    /// Returns a row for each active override.
    pub(crate) fn rows(&self, now: Duration) -> Vec<VipOverrideRow> {
        let row = |(vip, given): (&Arc<str>, &VipOverride)| VipOverrideRow {
            vip: vip.to_string(),
            action: if given.withdraws { VipAction::Withdraw } else { VipAction::Announce },
            since_seconds: now.saturating_sub(given.at).as_secs_f64(),
            by: given.by.clone(),
            reason: given.reason.clone(),
            ends_in_seconds: given.left(now).as_secs_f64(),
        };
        self.0.iter().map(row).collect()
    }
}

/// The time for which `vip announce` suspends flap damping, unless the operator sets another time.
const UNDAMPED: Duration = Duration::from_secs(60);
