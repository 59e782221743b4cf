//! Operators' orders to backends: which are given, what each means, and which are refused.
//!
//! In: an order, the controller that carries it out, the snapshot in force. Out: the snapshot to publish, notes for the answer.
//! Not here: publishing; the answer (`rows`); how an override enters states and tables (`runtime_state`, `controller`).

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use admin::{BackendAction, OrderNote};
use forwarder::Snapshot;

use crate::controller::Controller;
use crate::refused::Refused;
use compile::{CompileError, Membership, Mode, Override, OverrideKey};

/// Which operator gave each override that is in force, why and when.
#[derive(Debug, Default)]
pub struct Orders {
    given: HashMap<OverrideKey, Given>,
}

/// The orders behind the two parts of an override.
#[derive(Clone, Debug, Default)]
pub(crate) struct Given {
    pub(crate) mode: Option<Note>,
    pub(crate) weight: Option<Note>,
}

impl Given {
    fn or(self, note: &Note) -> Self {
        let or = |part: Option<Note>| part.or_else(|| Some(note.clone()));
        Self { mode: or(self.mode), weight: or(self.weight) }
    }
}

/// Beside an order. Times are from the start of the process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Note {
    pub(crate) at: Duration,
    pub(crate) until: Option<Duration>,
    pub(crate) by: Arc<str>,
    pub(crate) reason: Option<Arc<str>>,
}

impl Note {
    fn of(note: &OrderNote, now: Duration) -> Self {
        let reason = note.reason.as_deref().map(Arc::from);
        Self { at: now, until: note.lasts.map(|lasts| now + lasts), by: note.by.as_str().into(), reason }
    }
}

/// An order to a backend.
#[derive(Clone, Debug)]
pub struct BackendOrder {
    /// The backend, in one leaf pool or in all.
    pub backend: OverrideKey,
    /// What it is to do.
    pub action: BackendAction,
    /// Who gives it, why, for how long.
    pub note: OrderNote,
}

/// What follows from an order.
#[derive(Debug)]
pub struct Ordered {
    /// To publish; `None`: no state has changed.
    pub snapshot: Option<Snapshot>,
    /// Whether any override is another than before.
    pub changed: bool,
    /// What its giver should know.
    pub notes: Vec<String>,
}

impl Orders {
    /// Carries an order out. `now` counts from the start of the process. One that takes something back takes it from every override
    /// that is for the memberships it names.
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
        let backend = &order.backend;
        if controller.memberships_of(backend).next().is_none() {
            return Err(absent(controller, backend));
        }
        let (before, mut notes) = (of(controller, &backend.backend), Vec::new());
        let next = replaced(controller, order, before.clone(), &mut notes)?;
        let differs =
            |(key, says): &(&OverrideKey, &Override)| before.get(key).copied().unwrap_or_default() != **says;
        let says: Vec<_> = next.iter().filter(differs).map(|(key, says)| (key.clone(), *says)).collect();
        let note = Note::of(&order.note, now);
        let renewed = !takes_back(order.action) && says.is_empty() && self.renew(order, &note);
        // What only stands for a part of what an order to all pools said keeps that order's note.
        let wide =
            self.given.get(&OverrideKey { pool: None, ..backend.clone() }).cloned().unwrap_or_default();
        for (key, says) in &says {
            let old = before.get(key).copied().unwrap_or_default();
            let wide = if key == backend { Given::default() } else { wide.clone() };
            self.remember(key, [old, *says], wide.or(&note));
        }
        let changed = !says.is_empty() || renewed;
        let snapshot = controller.order(says, current, now).map_err(Refused::conflict)?;
        self.note(controller, order, changed, &mut notes);
        Ok(Ordered { snapshot, changed, notes })
    }

    /// An order that is in force is given once more: whether for another time or reason.
    fn renew(&mut self, order: &BackendOrder, note: &Note) -> bool {
        let Some(given) = self.given.get_mut(&order.backend) else { return false };
        let part = match order.action {
            BackendAction::Weight(_) => &mut given.weight,
            _ => &mut given.mode,
        };
        let Some(known) = part else { return false };
        let is_other = note.until != known.until || note.reason != known.reason;
        if is_other {
            *known = note.clone();
        }
        is_other
    }

    /// What stands beside an override that changes from the first to the second.
    fn remember(&mut self, key: &OverrideKey, says: [Override; 2], by: Given) {
        let given = self.given.entry(key.clone()).or_default();
        let [old, new] = says;
        if old.mode != new.mode {
            given.mode = by.mode.filter(|_| new.mode.is_some());
        }
        if old.weight != new.weight {
            given.weight = by.weight.filter(|_| new.weight.is_some());
        }
        if new == Override::default() {
            self.given.remove(key);
        }
    }

    /// Takes back what has lasted as long as it should. Gives what to publish.
    ///
    /// # Errors
    /// As [`Controller::order`].
    pub fn expire(
        &mut self,
        controller: &mut Controller,
        current: &Snapshot,
        now: Duration,
    ) -> Result<Option<Snapshot>, CompileError> {
        let over =
            |note: &Option<Note>| note.as_ref().and_then(|note| note.until).is_some_and(|until| until <= now);
        let mut says = Vec::new();
        for (key, given) in &mut self.given {
            let mut left = controller.runtime_state().overrides.get(key).copied().unwrap_or_default();
            if over(&given.mode) {
                (given.mode, left.mode) = (None, None);
                tracing::info!(change = "order", backend = %key.backend, pool = key.pool.as_deref(), "a drain or down has ended by its time");
            }
            if over(&given.weight) {
                (given.weight, left.weight) = (None, None);
                tracing::info!(change = "order", backend = %key.backend, pool = key.pool.as_deref(), "a weight has ended by its time");
            }
            if controller.runtime_state().overrides.get(key).is_some_and(|says| *says != left) {
                says.push((key.clone(), left));
            }
        }
        self.given.retain(|_, given| given.mode.is_some() || given.weight.is_some());
        if says.is_empty() { Ok(None) } else { controller.order(says, current, now) }
    }

    /// Of each override that is in force.
    pub(crate) fn given(&self) -> impl Iterator<Item = (&OverrideKey, &Given)> {
        self.given.iter()
    }

    /// These orders are in force from now on, and no others. Returns the overrides for the controller.
    pub(crate) fn replace(
        &mut self,
        controller: &Controller,
        all: impl Iterator<Item = (OverrideKey, Override, Given)>,
    ) -> Vec<(OverrideKey, Override)> {
        let before = &controller.runtime_state().overrides;
        let mut says: BTreeMap<OverrideKey, Override> =
            before.keys().map(|key| (key.clone(), Override::default())).collect();
        self.given.clear();
        for (key, wanted, given) in all.filter(|(key, ..)| controller.memberships_of(key).next().is_some()) {
            says.insert(key.clone(), wanted);
            self.given.insert(key, given);
        }
        says.into_iter().filter(|(key, says)| before.get(key) != Some(says)).collect()
    }

    fn note(&self, controller: &Controller, order: &BackendOrder, changed: bool, notes: &mut Vec<String>) {
        let BackendOrder { backend, action, .. } = order;
        let says: Vec<Override> = controller
            .memberships_of(backend)
            .map(|one| controller.runtime_state().override_of(&one.key))
            .collect();
        if !changed {
            let why = if takes_back(*action) { "no such order is in force" } else { "it is ordered already" };
            notes.push(format!("nothing changed: {why}"));
        }
        if *action == BackendAction::Undrain && says.iter().any(|says| says.mode == Some(Mode::Down)) {
            notes.push("it stays down by an operator's order: `backend up` takes that back".to_owned());
        }
        if says.iter().all(|says| *says != Override::default()) {
            notes.push("an order is lost at a restart: write it into the file if it is to last".to_owned());
        }
    }

    /// The last order behind an override, and when the first part of it ends.
    pub(crate) fn of(&self, backend: &OverrideKey) -> Option<(&Note, Option<Duration>)> {
        let given = self.given.get(backend)?;
        let parts = || given.mode.iter().chain(&given.weight);
        Some((parts().max_by_key(|note| note.at)?, parts().filter_map(|note| note.until).min()))
    }
}

/// The overrides of a backend.
fn of(controller: &Controller, backend: &str) -> BTreeMap<OverrideKey, Override> {
    let all = controller.runtime_state().overrides.iter().filter(|(key, _)| *key.backend == *backend);
    all.map(|(key, says)| (key.clone(), *says)).collect()
}

/// Those that an order makes of the ones in force; one that is taken back says nothing.
fn replaced(
    controller: &Controller,
    order: &BackendOrder,
    mut overrides: BTreeMap<OverrideKey, Override>,
    notes: &mut Vec<String>,
) -> Result<BTreeMap<OverrideKey, Override>, Refused> {
    let BackendOrder { backend, action, .. } = order;
    overrides.entry(backend.clone()).or_default();
    let everywhere = takes_back(*action) && backend.pool.is_none();
    if takes_back(*action) && backend.pool.is_some() {
        split(controller, order, &mut overrides, notes)?;
    }
    for (_, says) in overrides.iter_mut().filter(|(key, _)| everywhere || *key == backend) {
        *says = after(*says, *action)?;
    }
    Ok(overrides)
}

/// What an order without a pool said, and this one takes back for one pool, is from now on said of each of the others.
fn split(
    controller: &Controller,
    order: &BackendOrder,
    overrides: &mut BTreeMap<OverrideKey, Override>,
    notes: &mut Vec<String>,
) -> Result<(), Refused> {
    let all = OverrideKey { pool: None, ..order.backend.clone() };
    let Some(wide) = overrides.get(&all).copied() else { return Ok(()) };
    let left = after(wide, order.action)?;
    if left == wide {
        return Ok(());
    }
    overrides.insert(all.clone(), left);
    let others = controller.memberships_of(&all).map(|one| Arc::clone(&one.key.pool));
    let others: BTreeSet<Arc<str>> =
        others.filter(|pool| Some(pool) != order.backend.pool.as_ref()).collect();
    for pool in &others {
        let says = overrides.entry(OverrideKey { pool: Some(Arc::clone(pool)), ..all.clone() }).or_default();
        says.mode = says.mode.or(wide.mode.filter(|_| left.mode.is_none()));
        says.weight = says.weight.or(wide.weight.filter(|_| left.weight.is_none()));
    }
    if !others.is_empty() {
        let names = others.into_iter().collect::<Vec<_>>().join(", ");
        notes.push(format!("what was ordered of all its pools stays in force for {names}"));
    }
    Ok(())
}

fn takes_back(action: BackendAction) -> bool {
    matches!(action, BackendAction::Undrain | BackendAction::Up | BackendAction::Weight(None))
}

/// What an action makes of one override.
fn after(old: Override, action: BackendAction) -> Result<Override, Refused> {
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

fn absent(controller: &Controller, backend: &OverrideKey) -> Refused {
    let is_it = |one: &Membership| one.key.is_peer() && one.key.backend == backend.backend;
    if controller.index().memberships().iter().any(is_it) {
        let name = &backend.backend;
        let words = "is a machine of this shard and no backend: `sluicegate machine drain` there drains it";
        return Refused::Conflict(format!("\"{name}\" {words}"));
    }
    let pool = backend.pool.as_ref().map(|pool| format!(" in pool \"{pool}\"")).unwrap_or_default();
    Refused::NotFound(format!("no backend \"{}\"{pool}", backend.backend))
}

/// As in the file.
const MAX_WEIGHT: u32 = 65_535;

#[cfg(test)]
mod tests {
    use std::path::Path;

    use admin::view::BackendState;

    use super::*;

    fn started() -> (Controller, Snapshot) {
        let text = "[cluster]\nname = \"c\"\nhash_key_file = \"k\"\ntable_size = 1009\n[machine.lb1]\n\
                    addresses = [\"192.0.2.1\"]\ninterfaces = [\"eth0\"]\n[pool.p]\nbackends = [\
                    { name = \"a\", address = \"198.18.0.1\" }, { name = \"b\", address = \"198.18.0.2\" }]\n[pool.q]\n\
                    backends = [{ name = \"a\", address = \"198.18.0.1\" }]\n\
                    [vip.www]\naddresses = [\"203.0.113.1\"]\n\
                    services = [{ ports = [80], protocol = \"tcp\", pool = \"p\" }, \
                    { ports = [81], protocol = \"tcp\", pool = \"q\" }]\n";
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
            let order = BackendOrder { backend: whole.clone(), action, note: OrderNote::default() };
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
        assert!(
            undrained.notes.iter().any(|note| note.starts_with("it stays down")),
            "{:?}",
            undrained.notes
        );
        let up = give(&mut orders, &mut controller, BackendAction::Up, at(5));
        assert_eq!((up.memberships[0].after, up.notes.len()), (BackendState::Serving, 0));
        assert!(orders.rows(&controller, at(6)).is_empty());
    }

    #[test]
    fn an_order_with_a_time_ends_by_itself_and_leaves_what_another_said() {
        let ((mut controller, mut current), mut orders) = (started(), Orders::default());
        let at = Duration::from_secs;
        let backend = OverrideKey { backend: Arc::from("a"), pool: None };
        let mut give = |orders: &mut Orders, controller: &mut Controller, action, note: OrderNote, now| {
            let order = BackendOrder { backend: backend.clone(), action, note };
            let (snapshot, change) = orders.answer(controller, &order, &current, now).unwrap();
            current = snapshot.unwrap_or(current.clone());
            change.changed
        };
        let brief = |reason: &str, lasts| OrderNote {
            by: "uid 0".into(),
            reason: Some(reason.to_owned()),
            lasts: Some(at(lasts)),
        };
        assert!(give(&mut orders, &mut controller, BackendAction::Drain, brief("a kernel", 60), at(1)));
        assert!(give(
            &mut orders,
            &mut controller,
            BackendAction::Weight(Some(7)),
            OrderNote::default(),
            at(2)
        ));
        assert!(!give(
            &mut orders,
            &mut controller,
            BackendAction::Weight(Some(7)),
            OrderNote::default(),
            at(3)
        ));
        assert!(
            give(&mut orders, &mut controller, BackendAction::Drain, brief("a disk", 100), at(5)),
            "longer"
        );
        let row = orders.rows(&controller, at(6)).remove(0);
        assert_eq!(
            (&*row.by, row.reason.as_deref(), row.ends_in_seconds),
            ("uid 0", Some("a disk"), Some(99.0))
        );
        assert!(orders.expire(&mut controller, &current, at(104)).unwrap().is_none());
        let next = orders.expire(&mut controller, &current, at(105)).unwrap().expect("it serves again");
        let row = orders.rows(&controller, at(106)).remove(0);
        assert_eq!((row.says.state, row.says.weight, row.ends_in_seconds), (None, Some(7), None));
        let rows = controller.backend_rows(&next, |_| Default::default(), None, &[]);
        assert!(rows.iter().all(|row| row.state == BackendState::Serving));
        assert!(orders.expire(&mut controller, &next, at(9_999)).unwrap().is_none());
    }

    /// What the memberships in `p` and `q` have after these orders, and of the last whether it changed anything, and its notes.
    fn after_all(given: &[(Option<&str>, BackendAction)]) -> ([Override; 2], bool, Vec<String>) {
        let ((mut controller, mut current), mut orders) = (started(), Orders::default());
        let mut last = (false, Vec::new());
        for (pool, action) in given {
            let backend = OverrideKey { backend: Arc::from("a"), pool: pool.map(Arc::from) };
            let order = BackendOrder { backend, action: *action, note: OrderNote::default() };
            let ordered = orders.give(&mut controller, &order, &current, Duration::ZERO).unwrap();
            current = ordered.snapshot.unwrap_or(current);
            last = (ordered.changed, ordered.notes);
        }
        let in_force: BTreeSet<_> = controller.runtime_state().overrides.keys().cloned().collect();
        assert_eq!(in_force, orders.given.keys().cloned().collect(), "each with its time, and no other");
        let state = controller.runtime_state();
        let all = OverrideKey { backend: Arc::from("a"), pool: None };
        let mut says: Vec<_> = controller
            .memberships_of(&all)
            .map(|one| (one.key.pool.clone(), state.override_of(&one.key)))
            .collect();
        says.sort_by(|one, other| one.0.cmp(&other.0));
        ([says[0].1, says[1].1], last.0, last.1)
    }

    #[test]
    fn what_is_taken_back_is_gone_wherever_it_was_ordered() {
        use BackendAction::{Down, Drain, Undrain, Up, Weight};
        let none = Override::default();
        let drained = Override { mode: Some(Mode::Drain), weight: None };
        for back in [Undrain, Up] {
            for given in [
                &[(None, Drain)][..],
                &[(Some("p"), Drain)],
                &[(Some("p"), Drain), (Some("q"), Drain), (None, Drain)],
            ] {
                let all = [given, &[(None, back)]].concat();
                let (says, changed, notes) = after_all(&all);
                assert_eq!((says, changed, notes.len()), ([none; 2], true, 0), "{all:?}");
            }
            let (says, changed, notes) = after_all(&[(None, Drain), (Some("p"), back)]);
            assert_eq!((says, changed), ([none, drained], true));
            assert_eq!(notes, ["what was ordered of all its pools stays in force for q"]);
        }
        let (says, ..) = after_all(&[(None, Weight(Some(7))), (None, Drain), (Some("q"), Weight(None))]);
        let weighed = Override { mode: Some(Mode::Drain), weight: Some(7) };
        assert_eq!(says, [weighed, drained], "the drain is not taken back with the weight");
        let (says, ..) = after_all(&[(Some("p"), Weight(Some(7))), (None, Weight(None))]);
        assert_eq!(says, [none; 2]);
        let (says, _, notes) = after_all(&[(Some("q"), Down), (None, Undrain)]);
        assert_eq!(says[1].mode, Some(Mode::Down));
        assert!(notes[1].starts_with("it stays down"), "{notes:?}");
    }

    #[test]
    fn an_order_that_changes_nothing_says_so() {
        use BackendAction::{Down, Drain, Undrain, Up, Weight};
        for (given, words) in [
            (&[(None, Undrain)][..], "no such order is in force"),
            (&[(None, Up)], "no such order is in force"),
            (&[(Some("p"), Weight(None))], "no such order is in force"),
            (&[(Some("p"), Drain), (Some("q"), Undrain)], "no such order is in force"),
            (&[(None, Drain), (None, Drain)], "it is ordered already"),
            (&[(Some("p"), Down), (Some("p"), Down)], "it is ordered already"),
        ] {
            let (_, changed, notes) = after_all(given);
            assert!(!changed && notes[0] == format!("nothing changed: {words}"), "{given:?}: {notes:?}");
        }
        assert!(after_all(&[(None, Drain), (None, Down)]).1);
    }

    #[test]
    fn what_is_not_there_and_what_no_file_could_say_is_refused_and_changes_nothing() {
        let ((mut controller, current), mut orders) = (started(), Orders::default());
        for (name, pool, weight, words) in [
            ("c", None, 1, "no backend \"c\""),
            ("a", Some("r"), 1, "no backend \"a\" in pool \"r\""),
            ("a", None, 65_536, "a weight is from 0 to 65535"),
        ] {
            let backend = OverrideKey { backend: Arc::from(name), pool: pool.map(Arc::from) };
            let order = BackendOrder {
                backend,
                action: BackendAction::Weight(Some(weight)),
                note: OrderNote::default(),
            };
            let refused = orders.give(&mut controller, &order, &current, Duration::ZERO).unwrap_err();
            assert_eq!(refused.to_string(), words);
            assert!(controller.runtime_state().overrides.is_empty() && orders.given.is_empty());
        }
    }
}
