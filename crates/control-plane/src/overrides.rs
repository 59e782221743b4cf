//! Applies operator commands for backends: drain, undrain, up, down and weight.
//!
//! A command changes overrides in the controller, and returns the snapshot to publish with notes
//! for the operator. This module also records who set each override, why, and until when. `rows`
//! builds the API response. `compile::RuntimeState` applies overrides to states and weights.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use admin::{BackendAction, OverrideNote, ThenDown};
use forwarder::Snapshot;

use crate::controller::Controller;
use crate::refused::Refused;
use compile::{CompileError, Membership, Mode, Override, OverrideKey};

/// The active overrides, each with the operator who set it, the reason and the expiry time.
#[derive(Debug, Default)]
pub struct Overrides {
    given: HashMap<OverrideKey, Given>,
}

/// The origins of an override's state and weight.
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

/// The operator who set a state or weight, the reason, and the time at which it expires. Times are
/// measured from the start of the process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Note {
    pub(crate) at: Duration,
    pub(crate) until: Option<Duration>,
    /// The time at which a drained backend goes down.
    pub(crate) down_at: Option<Duration>,
    pub(crate) by: Arc<str>,
    pub(crate) reason: Option<Arc<str>>,
}

impl Note {
    /// Creates the note of a command at `now`.
    ///
    /// # Errors
    /// Returns [`Refused::Conflict`] if a drain would end before the backend goes down.
    fn of(note: &OverrideNote, now: Duration, drain_time: Duration) -> Result<Self, Refused> {
        let reason = note.reason.as_deref().map(Arc::from);
        let after = note.then_down.map(|then| match then {
            ThenDown::AfterDrainTime => drain_time,
            ThenDown::After(after) => after,
        });
        if let (Some(after), Some(lasts)) = (after, note.lasts)
            && lasts <= after
        {
            let (after, lasts) = (after.as_secs(), lasts.as_secs());
            let words = "the override would end before the backend goes down";
            return Err(Refused::Conflict(format!("{words}: {lasts} s and {after} s")));
        }
        let (until, down_at) = (note.lasts.map(|lasts| now + lasts), after.map(|after| now + after));
        Ok(Self { at: now, until, down_at, by: note.by.as_str().into(), reason })
    }
}

/// A command for a backend.
#[derive(Clone, Debug)]
pub struct BackendOverride {
    /// The backend, in one leaf pool or in all pools.
    pub backend: OverrideKey,
    /// The requested action.
    pub action: BackendAction,
    /// The operator, the reason and the duration of the override.
    pub note: OverrideNote,
}

/// The result of a command for a backend.
#[derive(Debug)]
pub struct Applied {
    /// The snapshot to publish, or `None` if it does not change.
    pub snapshot: Option<Snapshot>,
    /// `true` if the command changed an override.
    pub changed: bool,
    /// Notes for the operator.
    pub notes: Vec<String>,
}

impl Overrides {
    /// Applies a command. `now` is the time since the process started. If a command removes a state
    /// or a weight and does not specify a pool, the state or weight is removed from all overrides
    /// of the backend.
    ///
    /// # Errors
    /// Returns [`Refused`] if the backend does not exist or the weight is out of range.
    pub fn give(
        &mut self,
        controller: &mut Controller,
        command: &BackendOverride,
        current: &Snapshot,
        now: Duration,
    ) -> Result<Applied, Refused> {
        let backend = &command.backend;
        if controller.memberships_of(backend).next().is_none() {
            return Err(absent(controller, backend));
        }
        self.forget_removed(controller);
        let (before, mut notes) = (of(controller, &backend.backend), Vec::new());
        let next = replaced(controller, command, before.clone(), &mut notes)?;
        let differs =
            |(key, says): &(&OverrideKey, &Override)| before.get(key).copied().unwrap_or_default() != **says;
        let says: Vec<_> = next.iter().filter(differs).map(|(key, says)| (key.clone(), *says)).collect();
        let note = Note::of(&command.note, now, controller.config().cluster().drain_time)?;
        let renewed = !takes_back(command.action) && says.is_empty() && self.renew(command, &note);
        // If the command only splits an override for all pools, the resulting overrides keep the
        // origin of the split override.
        let wide =
            self.given.get(&OverrideKey { pool: None, ..backend.clone() }).cloned().unwrap_or_default();
        for (key, says) in &says {
            let old = before.get(key).copied().unwrap_or_default();
            let wide = if key == backend { Given::default() } else { wide.clone() };
            self.remember(key, [old, *says], wide.or(&note));
        }
        let changed = !says.is_empty() || renewed;
        let snapshot = controller.override_backends(says, current, now).map_err(Refused::conflict)?;
        if let Some(down_at) = note.down_at {
            let left = down_at.saturating_sub(now).as_secs();
            notes.push(format!("the backend goes down in {left} s; its flows then move to other backends"));
        }
        self.note(controller, command, changed, &mut notes);
        Ok(Applied { snapshot, changed, notes })
    }

    /// Handles a command that repeats an active override. Returns `true` if the expiry or the
    /// reason changed.
    fn renew(&mut self, command: &BackendOverride, note: &Note) -> bool {
        let Some(given) = self.given.get_mut(&command.backend) else { return false };
        let part = match command.action {
            BackendAction::Weight(_) => &mut given.weight,
            _ => &mut given.mode,
        };
        let Some(known) = part else { return false };
        let is_other =
            note.until != known.until || note.reason != known.reason || note.down_at != known.down_at;
        if is_other {
            *known = note.clone();
        }
        is_other
    }

    /// Updates the recorded origin of an override that changes from `says[0]` to `says[1]`.
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

    /// Removes expired overrides, and takes drained backends down whose time has passed. Returns
    /// the snapshot to publish, or `None` if it does not change.
    ///
    /// # Errors
    /// Returns the errors of [`Controller::override_backends`].
    pub fn expire(
        &mut self,
        controller: &mut Controller,
        current: &Snapshot,
        now: Duration,
    ) -> Result<Option<Snapshot>, CompileError> {
        self.forget_removed(controller);
        let over =
            |note: &Option<Note>| note.as_ref().and_then(|note| note.until).is_some_and(|until| until <= now);
        let mut says = Vec::new();
        for (key, given) in &mut self.given {
            let mut left = controller.runtime_state().overrides.get(key).copied().unwrap_or_default();
            if over(&given.mode) {
                (given.mode, left.mode) = (None, None);
                // log: A drain or down override with a duration (`--for`) has expired.
                tracing::info!(change = "override", backend = %key.backend, pool = key.pool.as_deref(), "state override expired");
            }
            let is_due = |note: &&mut Note| note.down_at.is_some_and(|at| at <= now);
            if let Some(note) = given.mode.as_mut().filter(|_| left.mode == Some(Mode::Drain)).filter(is_due)
            {
                (note.down_at, left.mode) = (None, Some(Mode::Down));
                // log: A backend was drained with `--then down`, and the time limit of the drain
                // has passed. The backend is down, and its remaining flows move to other backends.
                tracing::info!(change = "override", backend = %key.backend, pool = key.pool.as_deref(), "drained backend taken down");
            }
            if over(&given.weight) {
                (given.weight, left.weight) = (None, None);
                // log: A weight override with a duration (`--for`) has expired.
                tracing::info!(change = "override", backend = %key.backend, pool = key.pool.as_deref(), "weight override expired");
            }
            if controller.runtime_state().overrides.get(key).is_some_and(|says| *says != left) {
                says.push((key.clone(), left));
            }
        }
        self.given.retain(|_, given| given.mode.is_some() || given.weight.is_some());
        if says.is_empty() { Ok(None) } else { controller.override_backends(says, current, now) }
    }

    /// Forgets the origins of overrides that a reload deleted together with their backend. If the
    /// backend is added again, the old override does not apply to the backend.
    pub fn forget_removed(&mut self, controller: &Controller) {
        self.given.retain(|key, _| controller.runtime_state().overrides.contains_key(key));
    }

    /// Returns the recorded origin of each active override.
    pub(crate) fn given(&self) -> impl Iterator<Item = (&OverrideKey, &Given)> {
        self.given.iter()
    }

    /// Replaces the recorded origins of all overrides with `all`, except for backends that do not
    /// exist. Returns the changed overrides, which the caller must set in the controller.
    pub(crate) fn replace(
        &mut self,
        controller: &Controller,
        all: impl Iterator<Item = (OverrideKey, Override, Given)>,
    ) -> Vec<(OverrideKey, Override)> {
        let before = &controller.runtime_state().overrides;
        let mut says: BTreeMap<OverrideKey, Override> =
            before.keys().map(|key| (key.clone(), Override::default())).collect();
        self.given.clear();
        let known = controller.override_keys();
        for (key, wanted, given) in all.filter(|(key, ..)| known.contains(key)) {
            says.insert(key.clone(), wanted);
            self.given.insert(key, given);
        }
        says.into_iter().filter(|(key, says)| before.get(key) != Some(says)).collect()
    }

    fn note(
        &self,
        controller: &Controller,
        command: &BackendOverride,
        changed: bool,
        notes: &mut Vec<String>,
    ) {
        let BackendOverride { backend, action, .. } = command;
        let says: Vec<Override> = controller
            .memberships_of(backend)
            .map(|one| controller.runtime_state().override_of(&one.key))
            .collect();
        if !changed {
            let why =
                if takes_back(*action) { "no override is active" } else { "this override is already active" };
            notes.push(format!("nothing changed, because {why}"));
        }
        if *action == BackendAction::Undrain && says.iter().any(|says| says.mode == Some(Mode::Down)) {
            notes.push("an override keeps the backend down; use `backend up` to remove it".to_owned());
        }
        if says.iter().all(|says| *says != Override::default()) {
            notes.push(
                "overrides are lost at a restart; change the configuration to make this permanent".to_owned(),
            );
        }
    }

    /// Returns the time at which a drained backend goes down.
    pub(crate) fn down_at(&self, backend: &OverrideKey) -> Option<Duration> {
        self.given.get(backend)?.mode.as_ref()?.down_at
    }

    /// An override's state and weight can have different origins. Returns the more recent origin,
    /// with the earlier of the two expiry times.
    pub(crate) fn of(&self, backend: &OverrideKey) -> Option<(&Note, Option<Duration>)> {
        let given = self.given.get(backend)?;
        let parts = || given.mode.iter().chain(&given.weight);
        Some((parts().max_by_key(|note| note.at)?, parts().filter_map(|note| note.until).min()))
    }
}

/// Returns all overrides of a backend: for single pools and for all pools.
fn of(controller: &Controller, backend: &str) -> BTreeMap<OverrideKey, Override> {
    let all = controller.runtime_state().overrides.iter().filter(|(key, _)| *key.backend == *backend);
    all.map(|(key, says)| (key.clone(), *says)).collect()
}

/// Returns the overrides of the backend after a command. Overrides to remove are included with an
/// empty value.
fn replaced(
    controller: &Controller,
    command: &BackendOverride,
    mut overrides: BTreeMap<OverrideKey, Override>,
    notes: &mut Vec<String>,
) -> Result<BTreeMap<OverrideKey, Override>, Refused> {
    let BackendOverride { backend, action, .. } = command;
    overrides.entry(backend.clone()).or_default();
    let everywhere = takes_back(*action) && backend.pool.is_none();
    if takes_back(*action) && backend.pool.is_some() {
        split(controller, command, &mut overrides, notes)?;
    }
    for (_, says) in overrides.iter_mut().filter(|(key, _)| everywhere || *key == backend) {
        *says = after(*says, *action)?;
    }
    Ok(overrides)
}

/// Replaces an override for all pools with one override per pool, so that the command can remove it
/// from a single pool.
fn split(
    controller: &Controller,
    command: &BackendOverride,
    overrides: &mut BTreeMap<OverrideKey, Override>,
    notes: &mut Vec<String>,
) -> Result<(), Refused> {
    let all = OverrideKey { pool: None, ..command.backend.clone() };
    let Some(wide) = overrides.get(&all).copied() else { return Ok(()) };
    let left = after(wide, command.action)?;
    if left == wide {
        return Ok(());
    }
    overrides.insert(all.clone(), left);
    let others = controller.memberships_of(&all).map(|one| Arc::clone(&one.key.pool));
    let others: BTreeSet<Arc<str>> =
        others.filter(|pool| Some(pool) != command.backend.pool.as_ref()).collect();
    for pool in &others {
        let says = overrides.entry(OverrideKey { pool: Some(Arc::clone(pool)), ..all.clone() }).or_default();
        says.mode = says.mode.or(wide.mode.filter(|_| left.mode.is_none()));
        says.weight = says.weight.or(wide.weight.filter(|_| left.weight.is_none()));
    }
    if !others.is_empty() {
        let names = others.into_iter().collect::<Vec<_>>().join(", ");
        notes.push(format!("the override for all pools stays active for {names}"));
    }
    Ok(())
}

fn takes_back(action: BackendAction) -> bool {
    matches!(action, BackendAction::Undrain | BackendAction::Up | BackendAction::Weight(None))
}

/// Returns the override that results from applying `action` to `old`.
fn after(old: Override, action: BackendAction) -> Result<Override, Refused> {
    Ok(match action {
        BackendAction::Drain => Override { mode: Some(Mode::Drain), ..old },
        BackendAction::Undrain => Override { mode: old.mode.filter(|mode| *mode != Mode::Drain), ..old },
        BackendAction::Down => Override { mode: Some(Mode::Down), ..old },
        BackendAction::Up => Override::default(),
        BackendAction::Weight(Some(weight)) if weight > MAX_WEIGHT => {
            return Err(Refused::Conflict(format!("weight must be between 0 and {MAX_WEIGHT}")));
        }
        BackendAction::Weight(weight) => Override { weight, ..old },
    })
}

fn absent(controller: &Controller, backend: &OverrideKey) -> Refused {
    let is_it = |one: &Membership| one.key.is_peer() && one.key.backend == backend.backend;
    if controller.index().memberships().iter().any(is_it) {
        let name = &backend.backend;
        let words = "is a peer, not a backend; run `sluicegate machine drain` on that machine";
        return Refused::Conflict(format!("\"{name}\" {words}"));
    }
    let pool = backend.pool.as_ref().map(|pool| format!(" in pool \"{pool}\"")).unwrap_or_default();
    Refused::NotFound(format!("no backend \"{}\"{pool}", backend.backend))
}

/// The maximum weight. The configuration check enforces the same limit.
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
    fn override_reports_changes_and_lasts_until_removed() {
        let ((mut controller, mut current), mut overrides) = (started(), Overrides::default());
        let whole: OverrideKey = OverrideKey { backend: Arc::from("a"), pool: None };
        let at = Duration::from_secs;
        let mut give = |overrides: &mut Overrides, controller: &mut Controller, action, now| {
            let command = BackendOverride { backend: whole.clone(), action, note: OverrideNote::default() };
            let (snapshot, change) = overrides.answer(controller, &command, &current, now).unwrap();
            current = snapshot.unwrap_or(current.clone());
            change
        };
        let drained = give(&mut overrides, &mut controller, BackendAction::Drain, at(1));
        let one = &drained.memberships[0];
        assert_eq!((one.before, one.after), (BackendState::Serving, BackendState::Draining));
        assert_eq!(
            (one.weight_after, drained.notes.len()),
            (0, 1),
            "one note that overrides are lost at a restart"
        );
        let weighed = give(&mut overrides, &mut controller, BackendAction::Weight(Some(7)), at(2));
        assert_eq!(weighed.memberships[0].after, BackendState::Draining, "the drain continues");
        let rows = overrides.rows(&controller, at(5));
        assert_eq!((rows.len(), rows[0].says.weight, rows[0].since_seconds), (1, Some(7), 3.0));
        give(&mut overrides, &mut controller, BackendAction::Down, at(3));
        let undrained = give(&mut overrides, &mut controller, BackendAction::Undrain, at(4));
        assert!(
            undrained.notes.iter().any(|note| note.starts_with("an override keeps the backend down")),
            "{:?}",
            undrained.notes
        );
        let up = give(&mut overrides, &mut controller, BackendAction::Up, at(5));
        assert_eq!((up.memberships[0].after, up.notes.len()), (BackendState::Serving, 0));
        assert!(overrides.rows(&controller, at(6)).is_empty());
    }

    #[test]
    fn override_with_duration_expires_and_keeps_other_parts() {
        let ((mut controller, mut current), mut overrides) = (started(), Overrides::default());
        let at = Duration::from_secs;
        let backend = OverrideKey { backend: Arc::from("a"), pool: None };
        let mut give =
            |overrides: &mut Overrides, controller: &mut Controller, action, note: OverrideNote, now| {
                let command = BackendOverride { backend: backend.clone(), action, note };
                let (snapshot, change) = overrides.answer(controller, &command, &current, now).unwrap();
                current = snapshot.unwrap_or(current.clone());
                change.changed
            };
        let brief = |reason: &str, lasts| OverrideNote {
            by: "uid 0".into(),
            reason: Some(reason.to_owned()),
            lasts: Some(at(lasts)),
            then_down: None,
        };
        assert!(give(&mut overrides, &mut controller, BackendAction::Drain, brief("a kernel", 60), at(1)));
        assert!(give(
            &mut overrides,
            &mut controller,
            BackendAction::Weight(Some(7)),
            OverrideNote::default(),
            at(2)
        ));
        assert!(!give(
            &mut overrides,
            &mut controller,
            BackendAction::Weight(Some(7)),
            OverrideNote::default(),
            at(3)
        ));
        assert!(
            give(&mut overrides, &mut controller, BackendAction::Drain, brief("a disk", 100), at(5)),
            "a second drain command extends the override"
        );
        let row = overrides.rows(&controller, at(6)).remove(0);
        assert_eq!(
            (&*row.by, row.reason.as_deref(), row.ends_in_seconds),
            ("uid 0", Some("a disk"), Some(99.0))
        );
        assert!(overrides.expire(&mut controller, &current, at(104)).unwrap().is_none());
        let next = overrides.expire(&mut controller, &current, at(105)).unwrap().expect("the drain expired");
        let row = overrides.rows(&controller, at(106)).remove(0);
        assert_eq!((row.says.state, row.says.weight, row.ends_in_seconds), (None, Some(7), None));
        let rows = controller.backend_rows(&next, |_| Default::default(), None, &[]);
        assert!(rows.iter().all(|row| row.state == BackendState::Serving));
        assert!(overrides.expire(&mut controller, &next, at(9_999)).unwrap().is_none());
    }

    /// Applies commands to backend `a`. Returns the overrides of `a` in the pools `p` and `q`. For
    /// the last command, also returns `changed` and the notes.
    fn after_all(given: &[(Option<&str>, BackendAction)]) -> ([Override; 2], bool, Vec<String>) {
        let ((mut controller, mut current), mut overrides) = (started(), Overrides::default());
        let mut last = (false, Vec::new());
        for (pool, action) in given {
            let backend = OverrideKey { backend: Arc::from("a"), pool: pool.map(Arc::from) };
            let command = BackendOverride { backend, action: *action, note: OverrideNote::default() };
            let applied = overrides.give(&mut controller, &command, &current, Duration::ZERO).unwrap();
            current = applied.snapshot.unwrap_or(current);
            last = (applied.changed, applied.notes);
        }
        let in_force: BTreeSet<_> = controller.runtime_state().overrides.keys().cloned().collect();
        assert_eq!(in_force, overrides.given.keys().cloned().collect(), "each override has an origin");
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
    fn removal_applies_to_every_matching_override() {
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
            assert_eq!(notes, ["the override for all pools stays active for q"]);
        }
        let (says, ..) = after_all(&[(None, Weight(Some(7))), (None, Drain), (Some("q"), Weight(None))]);
        let weighed = Override { mode: Some(Mode::Drain), weight: Some(7) };
        assert_eq!(says, [weighed, drained], "removal of the weight keeps the drain");
        let (says, ..) = after_all(&[(Some("p"), Weight(Some(7))), (None, Weight(None))]);
        assert_eq!(says, [none; 2]);
        let (says, _, notes) = after_all(&[(Some("q"), Down), (None, Undrain)]);
        assert_eq!(says[1].mode, Some(Mode::Down));
        assert!(notes[1].starts_with("an override keeps the backend down"), "{notes:?}");
    }

    #[test]
    fn command_without_effect_is_reported() {
        use BackendAction::{Down, Drain, Undrain, Up, Weight};
        for (given, words) in [
            (&[(None, Undrain)][..], "no override is active"),
            (&[(None, Up)], "no override is active"),
            (&[(Some("p"), Weight(None))], "no override is active"),
            (&[(Some("p"), Drain), (Some("q"), Undrain)], "no override is active"),
            (&[(None, Drain), (None, Drain)], "this override is already active"),
            (&[(Some("p"), Down), (Some("p"), Down)], "this override is already active"),
        ] {
            let (_, changed, notes) = after_all(given);
            assert!(
                !changed && notes[0] == format!("nothing changed, because {words}"),
                "{given:?}: {notes:?}"
            );
        }
        assert!(after_all(&[(None, Drain), (None, Down)]).1);
    }

    #[test]
    fn unknown_backend_and_invalid_weight_are_rejected() {
        let ((mut controller, current), mut overrides) = (started(), Overrides::default());
        for (name, pool, weight, words) in [
            ("c", None, 1, "no backend \"c\""),
            ("a", Some("r"), 1, "no backend \"a\" in pool \"r\""),
            ("a", None, 65_536, "weight must be between 0 and 65535"),
        ] {
            let backend = OverrideKey { backend: Arc::from(name), pool: pool.map(Arc::from) };
            let command = BackendOverride {
                backend,
                action: BackendAction::Weight(Some(weight)),
                note: OverrideNote::default(),
            };
            let refused = overrides.give(&mut controller, &command, &current, Duration::ZERO).unwrap_err();
            assert_eq!(refused.to_string(), words);
            assert!(controller.runtime_state().overrides.is_empty() && overrides.given.is_empty());
        }
    }
}
