//! What one process tells the next one of operators' orders, verdicts and paths, when that comes in its place.
//!
//! In: the parts that own them. Out: a [`HandedState`] in plain words, and the same parts in the other process.
//! Not here: how it travels (the binary), connection tables and queues (`datapath`), numbers (`compile`).
//! Times are on the clock that both processes count by: since the start of the first one.

use std::collections::HashSet;
use std::net::IpAddr;
use std::time::Duration;

use compile::{LearnedMtu, Mode, Override, OverrideKey};
use forwarder::{Prefix, Snapshot};
use health::{HealthState, TargetKey};
use serde::{Deserialize, Serialize};

use crate::controller::Controller;
use crate::orders::{Given, Note, Orders};
use crate::refused::Refused;

/// All of it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HandedState {
    orders: Vec<HandedOrder>,
    verdicts: Vec<HandedVerdict>,
    /// Address and length of a way, its MTU, how long that holds.
    path_mtus: Vec<(IpAddr, u8, u16, Duration)>,
}

/// An override, and the orders behind its parts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct HandedOrder {
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
    by: String,
    reason: Option<String>,
}

/// What is known of a target, by the names that the file gives.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
struct HandedVerdict {
    address: IpAddr,
    check: String,
    /// The VIP and the encapsulation by which it is reached.
    through: Option<(IpAddr, String)>,
    is_up: bool,
}

impl HandedState {
    /// That of now, with what is learned of path MTUs.
    #[must_use]
    pub fn of(
        controller: &Controller,
        orders: &Orders,
        learned: impl IntoIterator<Item = LearnedMtu>,
    ) -> Self {
        let known = controller.results().filter(|(_, state)| *state != HealthState::Unknown);
        let verdict = |(target, state): (&TargetKey, HealthState)| HandedVerdict {
            is_up: state == HealthState::Up,
            ..HandedVerdict::of(target)
        };
        let path = |LearnedMtu { way, mtu, until }| (way.address(), way.length(), mtu, until);
        Self {
            orders: orders.given().map(|(key, given)| HandedOrder::of(controller, key, given)).collect(),
            verdicts: known.map(verdict).collect(),
            path_mtus: learned.into_iter().map(path).collect(),
        }
    }

    /// What was learned of path MTUs.
    pub fn learned(&self) -> impl Iterator<Item = LearnedMtu> {
        self.path_mtus.iter().filter_map(|(address, length, mtu, until)| {
            Some(LearnedMtu { way: Prefix::new(*address, *length)?, mtu: *mtu, until: *until })
        })
    }

    /// Takes verdicts over, and orders in place of all that are known here. Gives what to publish.
    ///
    /// # Errors
    /// `current` is not what the controller made last.
    pub fn give(
        &self,
        controller: &mut Controller,
        orders: &mut Orders,
        current: &Snapshot,
        now: Duration,
    ) -> Result<Option<Snapshot>, Refused> {
        let heard: HashSet<&HandedVerdict> = self.verdicts.iter().collect();
        let state = |target: &TargetKey| {
            let down = HandedVerdict::of(target);
            if heard.contains(&down) {
                return Some((target.clone(), HealthState::Down));
            }
            let is_up = heard.contains(&HandedVerdict { is_up: true, ..down });
            is_up.then(|| (target.clone(), HealthState::Up))
        };
        let verdicts: Vec<_> = controller.watched().iter().filter_map(|one| state(&one.key)).collect();
        let judged = controller.verdicts(&verdicts, current, now).map_err(Refused::conflict)?;
        let base = judged.as_ref().unwrap_or(current);
        let given = self.orders.iter().map(HandedOrder::given);
        let says = orders.replace(controller, given);
        let ordered = controller.order(says, base, now).map_err(Refused::conflict)?;
        Ok(ordered.or(judged))
    }
}

impl HandedVerdict {
    fn of(target: &TargetKey) -> Self {
        let through = target.through.as_ref().map(|through| (through.vip, through.encapsulation.to_string()));
        Self { address: target.address, check: target.check.name.to_string(), through, is_up: false }
    }
}

impl HandedOrder {
    fn of(controller: &Controller, key: &OverrideKey, given: &Given) -> Self {
        let says = controller.runtime_state().overrides.get(key).copied().unwrap_or_default();
        let note = |note: &Note| HandedNote {
            at: note.at,
            until: note.until,
            by: note.by.to_string(),
            reason: note.reason.as_ref().map(ToString::to_string),
        };
        Self {
            backend: key.backend.to_string(),
            pool: key.pool.as_ref().map(ToString::to_string),
            is_down: says.mode == Some(Mode::Down),
            mode: given.mode.as_ref().map(note),
            weight: says.weight.zip(given.weight.as_ref().map(note)),
        }
    }

    fn given(&self) -> (OverrideKey, Override, Given) {
        let key =
            OverrideKey { backend: self.backend.as_str().into(), pool: self.pool.as_deref().map(Into::into) };
        let note = |note: &HandedNote| Note {
            at: note.at,
            until: note.until,
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

    use admin::{BackendAction, OrderNote};
    use config::Config;
    use forwarder::SlotState;

    use super::*;
    use crate::BackendOrder;

    const FILE: &str = "[cluster]\nname = \"c\"\nhash_key_file = \"k\"\ntable_size = 1009\n[machine.lb1]\n\
        addresses = [\"192.0.2.1\"]\ninterfaces = [\"eth0\"]\n[check.web]\ntcp = { port = 80 }\n[pool.p]\n\
        checks = [\"web\"]\nbackends = [{ name = \"a\", address = \"198.18.0.1\" }, \
        { name = \"b\", address = \"198.18.0.2\" }, { name = \"c\", address = \"198.18.0.3\" }]\n\
        [vip.www]\naddresses = [\"203.0.113.1\"]\n\
        services = [{ ports = [80], protocol = \"tcp\", pool = \"p\" }]\n";

    fn started() -> (Controller, Snapshot) {
        let secret = |_: &_| Ok("00112233445566778899aabbccddeeff".to_owned());
        let config: Config = config::parse(FILE, Path::new("a.toml"), &secret).unwrap().0;
        Controller::start(Arc::new(config), "lb1", Arc::default(), Duration::ZERO).unwrap()
    }

    /// What is said of `a`, `b` and `c`.
    fn states(snapshot: &Snapshot, controller: &Controller) -> Vec<SlotState> {
        let index = controller.index();
        let mut of: Vec<_> =
            index.memberships().iter().map(|one| (one.key.backend.clone(), one.slot)).collect();
        of.sort();
        of.into_iter().map(|(_, slot)| snapshot.states()[slot.0 as usize]).collect()
    }

    #[test]
    fn the_next_process_has_the_same_orders_verdicts_and_paths() {
        let ((mut old, mut current), mut orders) = (started(), Orders::default());
        let at = Duration::from_secs;
        let verdicts: Vec<_> = old
            .watched()
            .iter()
            .map(|one| {
                let is_c = one.key.address == IpAddr::from([198, 18, 0, 3]);
                (one.key.clone(), if is_c { HealthState::Down } else { HealthState::Up })
            })
            .collect();
        current = old.verdicts(&verdicts, &current, at(1)).unwrap().unwrap();
        for (name, action, lasts) in
            [("a", BackendAction::Drain, Some(at(60))), ("b", BackendAction::Weight(Some(7)), None)]
        {
            let backend = OverrideKey { backend: name.into(), pool: None };
            let note = OrderNote { by: "uid 0".into(), reason: Some("a kernel".to_owned()), lasts };
            let order = BackendOrder { backend, action, note };
            current = orders.give(&mut old, &order, &current, at(5)).unwrap().snapshot.unwrap_or(current);
        }
        let way = Prefix::new([198, 18, 0, 1].into(), 32).unwrap();
        let learned = [LearnedMtu { way, mtu: 1_400, until: at(700) }];
        let handed = HandedState::of(&old, &orders, learned);
        let text = serde_json::to_string(&handed).unwrap();
        let heard: HandedState = serde_json::from_str(&text).unwrap();
        assert_eq!(heard, handed);

        let ((mut new, first), mut taken) = (started(), Orders::default());
        let next = heard.give(&mut new, &mut taken, &first, at(9)).unwrap().unwrap();
        assert_eq!(states(&next, &new), states(&current, &old));
        assert_eq!(states(&next, &new), [SlotState::Draining, SlotState::Serving, SlotState::Down]);
        assert_eq!(new.runtime_state().overrides, old.runtime_state().overrides);
        assert_eq!(taken.rows(&new, at(20)), orders.rows(&old, at(20)));
        assert_eq!((new.unknown(), heard.learned().collect::<Vec<_>>()), (0, learned.to_vec()));
        let next = taken.expire(&mut new, &next, at(66)).unwrap().expect("the drain ends by its time");

        // What was taken back meanwhile is not in the next word.
        let last = HandedState { orders: Vec::new(), ..handed };
        let next = last.give(&mut new, &mut taken, &next, at(67)).unwrap().unwrap_or(next);
        assert!(new.runtime_state().overrides.is_empty() && taken.rows(&new, at(68)).is_empty());
        assert_eq!(states(&next, &new), [SlotState::Serving, SlotState::Serving, SlotState::Down]);
    }
}
