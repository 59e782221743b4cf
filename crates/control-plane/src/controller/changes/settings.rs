//! Describes changes to the configuration sections that can occur only once, and tracks keys that
//! need a restart.
//!
//! [`Running`] contains the settings with which the process started. The modules `changes`,
//! `checks` and `routers` describe changes to sections that can occur several times, such as
//! `[pool.NAME]`.

use std::collections::BTreeMap;

use serde::Serialize;

use super::Changes;
use super::keys::{Difference, Keys};
use config::{Admin, Cluster, Config, Health, Io, Log, Machine, Trace};

/// The settings that are read only when the process starts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Running(Keys);

impl Running {
    /// Returns the settings that one machine reads from a configuration only at startup.
    #[must_use]
    pub fn of(config: &Config, machine: &str) -> Self {
        Self(keys(config, machine).filter(waits_for_start))
    }

    /// Returns the settings whose configured value differs from the running value, such as
    /// `io.batch: 64 -> 32`. If the result is empty, no restart is needed.
    #[must_use]
    pub fn pending(&self, config: &Config, machine: &str) -> Vec<String> {
        self.differing(config, machine).iter().map(Difference::sentence).collect()
    }

    fn differing(&self, config: &Config, machine: &str) -> Vec<Difference> {
        self.0.differing(&Self::of(config, machine).0)
    }
}

/// Reports each changed key. A key that changes back to its running value needs no restart.
pub(super) fn settings(changes: &mut Changes, running: &Running, old: &Keys, new: &Keys) {
    let pending = running.0.differing(&new.clone().filter(waits_for_start));
    for difference in old.differing(new) {
        let key = &difference.key;
        changes.say(match REPLACED.iter().find(|(path, _)| path == key) {
            Some((_, meaning)) => format!("{key}: {meaning}"),
            None if !waits_for_start(key) => difference.sentence(),
            None if pending.iter().any(|other| other.key == *key) => {
                format!("{} (takes effect at the next start)", difference.sentence())
            }
            None => format!("{} (already in use)", difference.sentence()),
        });
    }
}

/// Returns the keys of the sections that can occur only once, and the keys of the section
/// `[machine.NAME]` for `machine`.
pub(super) fn keys(config: &Config, machine: &str) -> Keys {
    #[derive(Serialize)]
    struct Sections<'a> {
        cluster: &'a Cluster,
        trace: Option<&'a Trace>,
        io: &'a Io,
        health: &'a Health,
        log: Log,
        admin: &'a Admin,
        machine: BTreeMap<&'a str, &'a Machine>,
    }
    let own = config.machine(machine);
    let sections = Sections {
        cluster: config.cluster(),
        trace: config.trace(),
        io: config.io(),
        health: config.health(),
        log: config.log(),
        admin: config.admin(),
        machine: own.into_iter().map(|own| (own.name(), own)).collect(),
    };
    let mut keys = Keys::of("", &sections);
    let checks: Vec<&str> = config.peer_checks().iter().map(|check| &*check.name).collect();
    keys.join(Keys::of("cluster.peer_checks", &checks));
    keys
}

fn waits_for_start(path: &str) -> bool {
    let is_interfaces = path.starts_with("machine.") && path.ends_with(".interfaces");
    is_interfaces || AT_START.iter().any(|section| path.starts_with(section))
}

/// The prefixes of the keys that are read only when the process starts.
const AT_START: [&str; 3] = ["cluster.flow_timeouts.", "io.", "log.format"];

/// The keys for which a fixed text is reported instead of the old and new value.
const REPLACED: [(&str, &str); 1] = [(
    "cluster.hash_key_file",
    "key changed (needs --force); existing flows break, because all tables change and their connection table entries are no longer found",
)];
