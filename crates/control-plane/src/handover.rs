//! The control-plane state that the old process hands over to the new process: overrides, health
//! states, announcements, learned path MTUs, and the memcached servers that must be flushed before
//! they serve.
//!
//! [`HandedState`] refers to objects by name instead of by ID, so the new process can apply the
//! state to its own configuration. The binary transfers the state between the processes. `datapath`
//! hands over connection tables and queues, and `compile` hands over slot and service IDs. Both
//! processes measure time from the start of the first process.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::net::IpAddr;
use std::time::Duration;

use compile::{LearnedMtu, Mode, Override, OverrideKey, SlotKey};
use forwarder::{Prefix, Snapshot};
use health::{Advice, FailingHops, HealthState, TargetKey};
use packet::Family;
use serde::{Deserialize, Serialize};

use crate::announce::HandedAnnouncements;
use crate::controller::Controller;
use crate::overrides::{Given, Note, Overrides};
use crate::refused::Refused;

/// Overrides, health states, learned path MTUs and unflushed servers of a process.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct HandedState {
    overrides: Vec<HandedOverride>,
    health_states: Vec<HandedHealthState>,
    /// The advice of agents: whether the backend drains, and its weight in tenths.
    #[serde(default)]
    advice: Vec<(HandedHealthState, bool, u8)>,
    /// The address, prefix length, MTU and expiry time of each path.
    path_mtus: Vec<(IpAddr, u8, u16, Duration)>,
    /// The members of keyed pools whose servers must be flushed before they serve, because they
    /// have values from before an outage. Older versions do not send this field.
    #[serde(default)]
    unflushed: BTreeSet<HandedMembership>,
    /// The next hops through which checks fail: the index of the interface and the address of the
    /// neighbor. Older versions do not send this field.
    #[serde(default)]
    failing_hops: Vec<(HandedHealthState, Vec<(u32, IpAddr)>)>,
    /// The history of announcements with its hold-downs, and the overrides of VIPs. Older versions
    /// do not send this field.
    #[serde(default)]
    pub announcements: HandedAnnouncements,
}

/// An override, with the origin of its state and of its weight.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct HandedOverride {
    backend: String,
    pool: Option<String>,
    is_down: bool,
    mode: Option<HandedNote>,
    weight: Option<(u32, HandedNote)>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct HandedNote {
    at: Duration,
    until: Option<Duration>,
    /// The time at which a drained backend goes down. Older versions do not send this field.
    #[serde(default)]
    down_at: Option<Duration>,
    by: String,
    reason: Option<String>,
}

/// A backend in a leaf pool. If the backend is checked through a VIP, this structure also contains
/// the name of the VIP, and `true` for its IPv4 addresses or `false` for its IPv6 addresses.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
struct HandedMembership {
    pool: String,
    backend: String,
    address: IpAddr,
    vip: Option<(String, bool)>,
}

/// The health state of a target. The target is identified by names from the configuration.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
struct HandedHealthState {
    address: IpAddr,
    check: String,
    /// The VIP address and the encapsulation name of a check through a VIP.
    through: Option<(IpAddr, String)>,
    is_up: bool,
}

impl HandedState {
    /// Collects the health states and unflushed servers of the controller, the overrides and the
    /// learned path MTUs. The announcements are empty.
    #[must_use]
    pub fn of(
        controller: &Controller,
        overrides: &Overrides,
        learned: impl IntoIterator<Item = LearnedMtu>,
    ) -> Self {
        let known = controller.results().filter(|(_, state)| *state != HealthState::Unknown);
        let health_state = |(target, state): (&TargetKey, HealthState)| HandedHealthState {
            is_up: state == HealthState::Up,
            ..HandedHealthState::of(target)
        };
        let path = |LearnedMtu { way, mtu, until }| (way.address(), way.length(), mtu, until);
        Self {
            overrides: overrides
                .given()
                .map(|(key, given)| HandedOverride::of(controller, key, given))
                .collect(),
            health_states: known.map(health_state).collect(),
            advice: controller
                .advice()
                .map(|(target, advice)| (HandedHealthState::of(target), advice.drains, advice.tenths))
                .collect(),
            path_mtus: learned.into_iter().map(path).collect(),
            unflushed: controller.unflushed().map(HandedMembership::of).collect(),
            failing_hops: Vec::new(),
            announcements: HandedAnnouncements::default(),
        }
    }

    /// Adds the next hops through which checks fail.
    #[must_use]
    pub fn with_failing_hops<'a>(
        mut self,
        failing: impl Iterator<Item = (&'a TargetKey, &'a [(u32, IpAddr)])>,
    ) -> Self {
        let failing = failing.map(|(target, hops)| (HandedHealthState::of(target), hops.to_vec()));
        self.failing_hops = failing.collect();
        self
    }

    /// Returns the next hops through which checks of the controller's targets fail.
    #[must_use]
    pub fn failing_hops(&self, controller: &Controller) -> Vec<FailingHops> {
        let known: HashMap<_, _> = self.failing_hops.iter().map(|(target, hops)| (target, hops)).collect();
        let failing = |target: &TargetKey| {
            let hops = (*known.get(&HandedHealthState::of(target))?).clone();
            Some(FailingHops { key: target.clone(), hops })
        };
        controller.watched().iter().filter_map(|one| failing(&one.key)).collect()
    }

    /// Returns the learned path MTUs.
    pub fn learned(&self) -> impl Iterator<Item = LearnedMtu> {
        self.path_mtus.iter().filter_map(|(address, length, mtu, until)| {
            Some(LearnedMtu { way: Prefix::new(*address, *length)?, mtu: *mtu, until: *until })
        })
    }

    /// Applies the health states, and replaces all overrides and unflushed servers of `controller`.
    /// Returns the snapshot to publish, or `None` if it does not change.
    ///
    /// # Errors
    /// Returns [`Refused::Conflict`] if `current` is not derived from the last snapshot of the
    /// controller.
    pub fn give(
        &self,
        controller: &mut Controller,
        overrides: &mut Overrides,
        current: &Snapshot,
        now: Duration,
    ) -> Result<Option<Snapshot>, Refused> {
        let heard: HashSet<&HandedHealthState> = self.health_states.iter().collect();
        let state = |target: &TargetKey| {
            let down = HandedHealthState::of(target);
            if heard.contains(&down) {
                return Some((target.clone(), HealthState::Down));
            }
            let is_up = heard.contains(&HandedHealthState { is_up: true, ..down });
            is_up.then(|| (target.clone(), HealthState::Up))
        };
        let health_states: Vec<_> = controller.watched().iter().filter_map(|one| state(&one.key)).collect();
        // Advice is applied first, so that each backend already has its weight when it comes up.
        let known = self.advice.iter().map(|(target, drains, tenths)| (target, (*drains, *tenths)));
        let known: HashMap<_, _> = known.collect();
        let advice = |target: &TargetKey| {
            let (drains, tenths) = *known.get(&HandedHealthState::of(target))?;
            Some((target.clone(), Advice { drains, tenths: tenths.clamp(1, 20) }))
        };
        let advised: Vec<_> = controller.watched().iter().filter_map(|one| advice(&one.key)).collect();
        let advised = controller.advise(&advised, current, now).map_err(Refused::conflict)?;
        let base = advised.as_ref().unwrap_or(current);
        let judged = controller.health_states(&health_states, base, now).map_err(Refused::conflict)?;
        let judged = judged.or(advised);
        let base = judged.as_ref().unwrap_or(current);
        let given = self.overrides.iter().map(HandedOverride::given);
        let says = overrides.replace(controller, given);
        let ordered = controller.override_backends(says, base, now).map_err(Refused::conflict)?;
        let base = ordered.as_ref().unwrap_or(base);
        let is_unflushed = |key: &SlotKey| self.unflushed.contains(&HandedMembership::of(key));
        let flushing = controller.take_unflushed(is_unflushed, base, now).map_err(Refused::conflict)?;
        Ok(flushing.or(ordered).or(judged))
    }
}

impl HandedMembership {
    fn of(key: &SlotKey) -> Self {
        Self {
            pool: key.pool.to_string(),
            backend: key.backend.to_string(),
            address: key.address,
            vip: key.vip.as_ref().map(|at| (at.vip.to_string(), at.family == Family::V4)),
        }
    }
}

impl HandedHealthState {
    fn of(target: &TargetKey) -> Self {
        let through = target.through.as_ref().map(|through| (through.vip, through.encapsulation.to_string()));
        Self { address: target.address, check: target.check.name.to_string(), through, is_up: false }
    }
}

impl HandedOverride {
    fn of(controller: &Controller, key: &OverrideKey, given: &Given) -> Self {
        let says = controller.runtime_state().overrides.get(key).copied().unwrap_or_default();
        let note = |note: &Note| HandedNote {
            at: note.at,
            until: note.until,
            down_at: note.down_at,
            by: note.by.to_string(),
            reason: note.reason.as_ref().map(ToString::to_string),
        };
        Self {
            backend: key.backend.to_string(),
            pool: key.pool.as_ref().map(ToString::to_string),
            is_down: says.mode == Some(Mode::Down),
            mode: given.mode.as_ref().filter(|_| says.mode.is_some()).map(note),
            weight: says.weight.zip(given.weight.as_ref().map(note)),
        }
    }

    fn given(&self) -> (OverrideKey, Override, Given) {
        let key =
            OverrideKey { backend: self.backend.as_str().into(), pool: self.pool.as_deref().map(Into::into) };
        let note = |note: &HandedNote| Note {
            at: note.at,
            until: note.until,
            down_at: note.down_at,
            by: note.by.as_str().into(),
            reason: note.reason.as_deref().map(Into::into),
        };
        let mode = if self.is_down { Mode::Down } else { Mode::Drain };
        let says = Override {
            mode: self.mode.as_ref().map(|_| mode),
            weight: self.weight.as_ref().map(|(weight, _)| *weight),
        };
        let given = Given {
            mode: self.mode.as_ref().map(note),
            weight: self.weight.as_ref().map(|(_, given)| note(given)),
        };
        (key, says, given)
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::Arc;

    use admin::{BackendAction, OverrideNote, ThenDown};
    use config::Config;
    use forwarder::SlotState;

    use super::*;
    use crate::BackendOverride;

    const FILE: &str = "[cluster]\nname = \"c\"\nhash_key_file = \"k\"\ntable_size = 1009\n[machine.lb1]\n\
        addresses = [\"192.0.2.1\"]\ninterfaces = [\"eth0\"]\n[check.web]\ntcp = { port = 80 }\n[pool.p]\n\
        checks = [\"web\"]\nbackends = [{ name = \"a\", address = \"198.18.0.1\" }, \
        { name = \"b\", address = \"198.18.0.2\" }, { name = \"c\", address = \"198.18.0.3\" }]\n\
        [vip.www]\naddresses = [\"203.0.113.1\"]\n\
        services = [{ ports = [80], protocol = \"tcp\", pool = \"p\" }]\n";

    fn started() -> (Controller, Snapshot) {
        start(FILE)
    }

    fn start(file: &str) -> (Controller, Snapshot) {
        let secret = |_: &_| Ok("00112233445566778899aabbccddeeff".to_owned());
        let config: Config = config::parse(file, Path::new("a.toml"), &secret).unwrap().0;
        Controller::start(Arc::new(config), "lb1", Arc::default(), Duration::ZERO).unwrap()
    }

    /// Returns the slot states of the backends `a`, `b` and `c`.
    fn states(snapshot: &Snapshot, controller: &Controller) -> Vec<SlotState> {
        let index = controller.index();
        let mut of: Vec<_> =
            index.memberships().iter().map(|one| (one.key.backend.clone(), one.slot)).collect();
        of.sort();
        of.into_iter().map(|(_, slot)| snapshot.states()[slot.0 as usize]).collect()
    }

    #[test]
    fn next_process_has_the_same_overrides_states_and_paths() {
        let ((mut old, mut current), mut overrides) = (started(), Overrides::default());
        let at = Duration::from_secs;
        let health_states: Vec<_> = old
            .watched()
            .iter()
            .map(|one| {
                let is_c = one.key.address == IpAddr::from([198, 18, 0, 3]);
                (one.key.clone(), if is_c { HealthState::Down } else { HealthState::Up })
            })
            .collect();
        current = old.health_states(&health_states, &current, at(1)).unwrap().unwrap();
        let c = old.watched().into_iter().find(|one| one.key.address == IpAddr::from([198, 18, 0, 3]));
        let advice = [(c.unwrap().key, Advice { drains: false, tenths: 4 })];
        assert!(old.advise(&advice, &current, at(2)).unwrap().is_none());
        for (name, action, lasts) in
            [("a", BackendAction::Drain, Some(at(60))), ("b", BackendAction::Weight(Some(7)), None)]
        {
            let backend = OverrideKey { backend: name.into(), pool: None };
            let then_down = lasts.map(|_| ThenDown::After(at(30)));
            let note =
                OverrideNote { by: "uid 0".into(), reason: Some("a kernel".to_owned()), lasts, then_down };
            let order = BackendOverride { backend, action, note };
            current = overrides.give(&mut old, &order, &current, at(5)).unwrap().snapshot.unwrap_or(current);
        }
        let way = Prefix::new([198, 18, 0, 1].into(), 32).unwrap();
        let learned = [LearnedMtu { way, mtu: 1_400, until: at(700) }];
        let (a, hops) = (old.watched().remove(0).key, [(7, IpAddr::from([192, 0, 2, 9]))]);
        let handed =
            HandedState::of(&old, &overrides, learned).with_failing_hops([(&a, &hops[..])].into_iter());
        let text = serde_json::to_string(&handed).unwrap();
        let heard: HandedState = serde_json::from_str(&text).unwrap();
        assert_eq!(heard, handed);

        let ((mut new, first), mut taken) = (started(), Overrides::default());
        let next = heard.give(&mut new, &mut taken, &first, at(9)).unwrap().unwrap();
        assert_eq!(heard.failing_hops(&new), [FailingHops { key: a, hops: hops.to_vec() }]);
        assert_eq!(states(&next, &new), states(&current, &old));
        assert_eq!(states(&next, &new), [SlotState::Draining, SlotState::Serving, SlotState::Down]);
        assert_eq!(new.runtime_state().overrides, old.runtime_state().overrides);
        assert_eq!(new.runtime_state().advice, old.runtime_state().advice);
        assert_eq!(new.runtime_state().advice.len(), 1);
        assert_eq!(taken.rows(&new, at(20)), overrides.rows(&old, at(20)));
        assert_eq!((new.unknown(), heard.learned().collect::<Vec<_>>()), (0, learned.to_vec()));
        let next = taken.expire(&mut new, &next, at(35)).unwrap().expect("the backend goes down");
        assert_eq!(states(&next, &new), [SlotState::Down, SlotState::Serving, SlotState::Down]);
        let next = taken.expire(&mut new, &next, at(66)).unwrap().expect("the drain override expires");

        // If the state has no overrides, the overrides of the new process are removed.
        let last = HandedState { overrides: Vec::new(), ..handed };
        let next = last.give(&mut new, &mut taken, &next, at(67)).unwrap().unwrap_or(next);
        assert!(new.runtime_state().overrides.is_empty() && taken.rows(&new, at(68)).is_empty());
        assert_eq!(states(&next, &new), [SlotState::Serving, SlotState::Serving, SlotState::Down]);
    }

    /// Reloads `controller` with the configuration `file`.
    fn reload(controller: &mut Controller, current: &Snapshot, file: &str, now: Duration) -> Snapshot {
        let secret = |_: &_| Ok("00112233445566778899aabbccddeeff".to_owned());
        let config: Config = config::parse(file, Path::new("a.toml"), &secret).unwrap().0;
        let states = current.states().to_vec();
        let job = controller.job(Some(Arc::new(config)), Arc::default(), states, now).unwrap();
        controller.finish(job.run(), now).unwrap()
    }

    #[test]
    fn override_of_removed_backend_does_not_return() {
        let ((mut controller, current), mut overrides) = (started(), Overrides::default());
        let at = Duration::from_secs;
        let backend = OverrideKey { backend: "a".into(), pool: None };
        let then_down = Some(ThenDown::After(at(30)));
        let note = OverrideNote { by: "uid 0".into(), reason: None, lasts: None, then_down };
        let drain = BackendOverride { backend, action: BackendAction::Drain, note };
        let drained = overrides.give(&mut controller, &drain, &current, at(1)).unwrap();
        let current = drained.snapshot.unwrap_or(current);
        let without_a = FILE.replace("{ name = \"a\", address = \"198.18.0.1\" }, ", "");
        let current = reload(&mut controller, &current, &without_a, at(2));
        let current = reload(&mut controller, &current, FILE, at(3));
        let handed = HandedState::of(&controller, &overrides, []);
        let ((mut new, first), mut taken) = (started(), Overrides::default());
        handed.give(&mut new, &mut taken, &first, at(4)).unwrap();
        assert!(new.runtime_state().overrides.is_empty(), "{:?}", new.runtime_state().overrides);

        assert!(overrides.expire(&mut controller, &current, at(40)).unwrap().is_none());
        assert!(controller.runtime_state().overrides.is_empty() && overrides.given().next().is_none());
    }

    /// Starts a controller with a keyed pool of the servers `a`, `b` and `c`, which are flushed
    /// after an outage.
    fn started_keyed() -> (Controller, Snapshot) {
        let kv = "checks = [\"web\"]\nkv = { protocol = \"memcached\", clients = [\"198.51.100.0/24\"] }";
        let file = FILE.replace("checks = [\"web\"]", kv).replace("protocol = \"tcp\"", "protocol = \"udp\"");
        start(&file)
    }

    #[test]
    fn next_process_flushes_servers_before_they_serve() {
        let ((mut old, mut current), at) = (started_keyed(), Duration::from_secs);
        let b = IpAddr::from([198, 18, 0, 2]);
        let watched: Vec<TargetKey> = old.watched().into_iter().map(|one| one.key).collect();
        let all = |state| watched.iter().map(|key| (key.clone(), state)).collect::<Vec<_>>();
        let only_b = |state| all(state).into_iter().filter(|(key, _)| key.address == b).collect::<Vec<_>>();
        for (states, now) in
            [(all(HealthState::Up), 1), (only_b(HealthState::Down), 2), (only_b(HealthState::Up), 3)]
        {
            current = old.health_states(&states, &current, at(now)).unwrap().unwrap();
        }
        let flushing = [SlotState::Serving, SlotState::Draining, SlotState::Serving];
        assert_eq!((states(&current, &old), old.flushes().len()), (flushing.into(), 1));

        let hand = |old: &Controller| {
            let handed = HandedState::of(old, &Overrides::default(), []);
            serde_json::from_str::<HandedState>(&serde_json::to_string(&handed).unwrap()).unwrap()
        };
        let ((mut new, first), mut taken) = (started_keyed(), Overrides::default());
        let next = hand(&old).give(&mut new, &mut taken, &first, at(4)).unwrap().unwrap();
        assert_eq!((states(&next, &new), new.flushes().len()), (flushing.into(), 1));
        let done = health::Flushed { number: new.flushes()[0].number, result: Ok(()) };
        let served = new.flushed(&[done], &next, at(5)).unwrap().unwrap();
        assert_eq!((states(&served, &new), new.flushes().len()), (vec![SlotState::Serving; 3], 0));

        // The old process has flushed the server between its offer and the end of the takeover.
        let ((mut new, first), mut taken) = (started_keyed(), Overrides::default());
        let next = hand(&old).give(&mut new, &mut taken, &first, at(4)).unwrap().unwrap();
        let done = health::Flushed { number: old.flushes()[0].number, result: Ok(()) };
        old.flushed(&[done], &current, at(5)).unwrap().unwrap();
        let next = hand(&old).give(&mut new, &mut taken, &next, at(6)).unwrap().unwrap();
        assert_eq!((states(&next, &new), new.flushes().len()), (vec![SlotState::Serving; 3], 0));
    }
}
