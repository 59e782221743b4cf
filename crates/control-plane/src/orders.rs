//! Operators' orders to backends: which are given, what each means, and which are refused.
//!
//! In: an order, the controller that carries it out, the snapshot in force. Out: the snapshot to publish, notes for the answer.
//! Not here: publishing; the answer (`rows`); how an override enters states and tables (`runtime_state`, `controller`).

use std::collections::HashMap;
use std::time::Duration;

use admin::BackendAction;
use forwarder::Snapshot;

use crate::controller::Controller;
use crate::refused::Refused;
use crate::runtime_state::{Mode, Override, OverrideKey};

/// When each override that is in force was given, from the start of the process.
#[derive(Debug, Default)]
pub struct Orders {
    given: HashMap<OverrideKey, Duration>,
}

/// An order to a backend.
#[derive(Clone, Debug)]
pub struct BackendOrder {
    /// The backend, in one leaf pool or in all.
    pub backend: OverrideKey,
    /// What it is to do.
    pub action: BackendAction,
}

/// What follows from an order.
#[derive(Debug)]
pub struct Ordered {
    /// To publish; `None`: no state has changed.
    pub snapshot: Option<Snapshot>,
    /// What its giver should know.
    pub notes: Vec<String>,
}

impl Orders {
    /// Carries an order out. `now` counts from the start of the process.
    ///
    /// # Errors
    /// There is no such backend, or the weight is not one that a file may have.
    pub fn give(
        &mut self,
        controller: &mut Controller,
        order: &BackendOrder,
        current: &Snapshot,
        now: Duration,
    ) -> Result<Ordered, Refused> {
        let BackendOrder { backend, action } = order;
        if controller.memberships_of(backend).next().is_none() {
            return Err(absent(backend));
        }
        let old = controller.runtime_state().overrides.get(backend).copied().unwrap_or_default();
        let new = replaced(old, *action)?;
        let mut notes = Vec::new();
        if *action == BackendAction::Undrain && old.mode == Some(Mode::Down) {
            notes.push("it stays down by an operator's order: `backend up` takes that back".to_owned());
        }
        let new = (new != Override::default()).then_some(new);
        let snapshot = controller.order(backend.clone(), new, current, now).map_err(Refused::conflict)?;
        match new {
            Some(_) => self.given.insert(backend.clone(), now),
            None => self.given.remove(backend),
        };
        let runtime_state = controller.runtime_state();
        if controller
            .memberships_of(backend)
            .all(|one| runtime_state.override_of(&one.key) != Override::default())
        {
            notes.push("an order is lost at a restart: write it into the file if it is to last".to_owned());
        }
        Ok(Ordered { snapshot, notes })
    }

    /// How long ago the override of a backend was given.
    pub(crate) fn age(&self, backend: &OverrideKey, now: Duration) -> Duration {
        self.given.get(backend).map(|given| now.saturating_sub(*given)).unwrap_or_default()
    }
}

/// The override that an action makes of the one in force.
fn replaced(old: Override, action: BackendAction) -> Result<Override, Refused> {
    Ok(match action {
        BackendAction::Drain => Override { mode: Some(Mode::Drain), ..old },
        BackendAction::Undrain => Override { mode: old.mode.filter(|mode| *mode != Mode::Drain), ..old },
        BackendAction::Down => Override { mode: Some(Mode::Down), ..old },
        BackendAction::Up => Override::default(),
        BackendAction::Weight(Some(weight)) if weight > MAX_WEIGHT => {
            return Err(Refused::Conflict(format!("a weight is from 0 to {MAX_WEIGHT}")));
        }
        BackendAction::Weight(weight) => Override { weight, ..old },
    })
}

fn absent(backend: &OverrideKey) -> Refused {
    let pool = backend.pool.as_ref().map(|pool| format!(" in pool \"{pool}\"")).unwrap_or_default();
    Refused::NotFound(format!("no backend \"{}\"{pool}", backend.backend))
}

/// As in the file.
const MAX_WEIGHT: u32 = 65_535;

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::Arc;

    use admin::view::BackendState;

    use super::*;

    fn started() -> (Controller, Snapshot) {
        let text = "[cluster]\nname = \"c\"\nhash_key_file = \"k\"\ntable_size = 1009\n[machine.lb1]\n\
                    addresses = [\"192.0.2.1\"]\ninterfaces = [\"eth0\"]\n[pool.p]\nbackends = [\
                    { name = \"a\", address = \"198.18.0.1\" }, { name = \"b\", address = \"198.18.0.2\" }]\n\
                    [vip.www]\naddresses = [\"203.0.113.1\"]\n\
                    services = [{ ports = [80], protocol = \"tcp\", pool = \"p\" }]\n";
        let secret = |_: &_| Ok("00112233445566778899aabbccddeeff".to_owned());
        let (config, _) = config::parse(text, Path::new("a.toml"), &secret).unwrap();
        Controller::start(Arc::new(config), "lb1", Arc::default(), Duration::ZERO).unwrap()
    }

    #[test]
    fn an_order_says_what_it_changed_and_lasts_until_it_is_taken_back() {
        let ((mut controller, mut current), mut orders) = (started(), Orders::default());
        let whole: OverrideKey = OverrideKey { backend: Arc::from("a"), pool: None };
        let at = Duration::from_secs;
        let mut give = |orders: &mut Orders, controller: &mut Controller, action, now| {
            let order = BackendOrder { backend: whole.clone(), action };
            let (snapshot, change) = orders.answer(controller, &order, &current, now).unwrap();
            current = snapshot.unwrap_or(current.clone());
            change
        };
        let drained = give(&mut orders, &mut controller, BackendAction::Drain, at(1));
        let one = &drained.memberships[0];
        assert_eq!((one.before, one.after), (BackendState::Serving, BackendState::Draining));
        assert_eq!((one.weight_after, drained.notes.len()), (0, 1), "lost at a restart");
        let weighed = give(&mut orders, &mut controller, BackendAction::Weight(Some(7)), at(2));
        assert_eq!(weighed.memberships[0].after, BackendState::Draining, "it drains on");
        let rows = orders.rows(&controller, at(5));
        assert_eq!((rows.len(), rows[0].says.weight, rows[0].since_seconds), (1, Some(7), 3.0));
        give(&mut orders, &mut controller, BackendAction::Down, at(3));
        let undrained = give(&mut orders, &mut controller, BackendAction::Undrain, at(4));
        assert!(undrained.notes[0].starts_with("it stays down"), "{:?}", undrained.notes);
        let up = give(&mut orders, &mut controller, BackendAction::Up, at(5));
        assert_eq!((up.memberships[0].after, up.notes.len()), (BackendState::Serving, 0));
        assert!(orders.rows(&controller, at(6)).is_empty());
    }

    #[test]
    fn what_is_not_there_and_what_no_file_could_say_is_refused_and_changes_nothing() {
        let ((mut controller, current), mut orders) = (started(), Orders::default());
        for (name, pool, weight, words) in [
            ("c", None, 1, "no backend \"c\""),
            ("a", Some("q"), 1, "no backend \"a\" in pool \"q\""),
            ("a", None, 65_536, "a weight is from 0 to 65535"),
        ] {
            let backend = OverrideKey { backend: Arc::from(name), pool: pool.map(Arc::from) };
            let order = BackendOrder { backend, action: BackendAction::Weight(Some(weight)) };
            let refused = orders.give(&mut controller, &order, &current, Duration::ZERO).unwrap_err();
            assert_eq!(refused.to_string(), words);
            assert!(controller.runtime_state().overrides.is_empty() && orders.given.is_empty());
        }
    }
}
