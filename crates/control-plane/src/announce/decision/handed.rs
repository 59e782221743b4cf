//! The announcement history and the overrides that the old process of an upgrade hands over.
//!
//! A hold-down therefore continues in the new process, with its remaining time and its penalty.
//! Both processes measure time from the start of the first process.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{Decider, Memory};
use crate::announce::vip_overrides::{VipOverride, VipOverrides};

/// The announcement history and the overrides of all VIPs.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct HandedAnnouncements {
    vips: BTreeMap<String, Memory>,
    overrides: BTreeMap<String, VipOverride>,
}

impl Decider {
    /// Returns the state that a new process continues. Counters are not included, because they
    /// count from the start of a process.
    #[must_use]
    pub fn handed(&self) -> HandedAnnouncements {
        HandedAnnouncements {
            vips: self.vips.iter().map(|(name, memory)| (name.to_string(), memory.clone())).collect(),
            overrides: self.overrides.handed(),
        }
    }

    /// Continues the state of the old process.
    pub fn take(&mut self, handed: &HandedAnnouncements) {
        let vips = handed.vips.iter().map(|(name, memory)| (name.as_str().into(), memory.clone()));
        (self.vips, self.overrides) = (vips.collect(), VipOverrides::taken(&handed.overrides));
    }
}
