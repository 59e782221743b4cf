//! Sections that are one of a kind: their keys as they serialize, what a change of each means, and what waits for a start.
//!
//! In: configurations. Out: sentences, and [`Running`], which remembers what a start took.
//! Not here: what there are many of by name (`changes`, `checks`, `routers`).

use std::collections::BTreeMap;

use serde::Serialize;

use super::Changes;
use super::keys::{Difference, Keys};
use config::{Admin, Cluster, Config, Io, Log, Machine, Trace};

/// The settings that a start took, and that hold until the next one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Running(Keys);

impl Running {
    /// Those of a configuration, for one machine.
    #[must_use]
    pub fn of(config: &Config, machine: &str) -> Self {
        Self(keys(config, machine).filter(waits_for_start))
    }

    /// What is configured and does not run: one sentence a key, such as `io.batch: 64 -> 32`. Empty: nothing waits for a
    /// start.
    #[must_use]
    pub fn pending(&self, config: &Config, machine: &str) -> Vec<String> {
        self.differing(config, machine).iter().map(Difference::sentence).collect()
    }

    fn differing(&self, config: &Config, machine: &str) -> Vec<Difference> {
        self.0.differing(&Self::of(config, machine).0)
    }
}

/// One sentence a key. One that goes back to what runs waits for nothing.
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
            None => format!("{} (as it runs already)", difference.sentence()),
        });
    }
}

/// The keys of these sections, for one machine.
pub(super) fn keys(config: &Config, machine: &str) -> Keys {
    #[derive(Serialize)]
    struct Sections<'a> {
        cluster: &'a Cluster,
        trace: Option<&'a Trace>,
        io: &'a Io,
        log: Log,
        admin: &'a Admin,
        machine: BTreeMap<&'a str, &'a Machine>,
    }
    let own = config.machine(machine);
    let sections = Sections {
        cluster: config.cluster(),
        trace: config.trace(),
        io: config.io(),
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

/// What a start takes, and a reload does not.
const AT_START: [&str; 3] = ["cluster.flow_timeouts.", "io.", "log.format"];

/// What is said of a key in place of its values.
const REPLACED: [(&str, &str); 1] = [(
    "cluster.hash_key_file",
    "another key: all tables change, and the connection tables are of no more use",
)];
