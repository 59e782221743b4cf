//! Where the health thread and all others meet.
//!
//! In: changes of the set and requests for a report, from the handle. Out: events and reports.
//! Not here: what a change means (`runner`), which numbers targets have (`registry`).
//! Invariant: bounded by the number of targets, however slow a reader is: of a target, the latest change and the latest
//! state wait, no more.

use std::collections::{BTreeMap, HashMap};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};

use tokio::sync::Notify;

use super::flights::Ready;
use super::record::Ability;
use super::target::{Difference, Spec, TargetKey, TargetReport};
use super::{Event, Flushed, StateChange};
use crate::lock;

#[derive(Debug, Default)]
pub(super) struct Exchange {
    inbox: Mutex<Inbox>,
    outbox: Mutex<Outbox>,
    news: Notify,
    /// Of the attempts; the loop is woken through it.
    pub(super) ready: Arc<Ready>,
}

#[derive(Debug, Default)]
struct Inbox {
    changes: BTreeMap<u32, Option<Arc<Spec>>>,
    reports: Vec<SyncSender<Vec<TargetReport>>>,
    closed: bool,
}

#[derive(Debug, Default)]
struct Outbox {
    turned: BTreeMap<u32, StateChange>,
    abilities: HashMap<TargetKey, Option<String>>,
    flushed: BTreeMap<u64, Flushed>,
    local_failure: bool,
    /// What the reader got last.
    reported_failure: bool,
    closed: bool,
}

impl Exchange {
    pub(super) fn change(&self, changes: Difference) {
        let mut inbox = lock(&self.inbox);
        if inbox.closed {
            return;
        }
        inbox.changes.extend(changes);
        drop(inbox);
        self.ready.wake();
    }

    /// At most `most` changes, and whether there are more.
    pub(super) fn take_changes(&self, most: usize) -> (Difference, bool) {
        let mut inbox = lock(&self.inbox);
        let taken = std::iter::from_fn(|| inbox.changes.pop_first()).take(most).collect();
        (taken, !inbox.changes.is_empty())
    }

    pub(super) fn ask_report(&self) -> Receiver<Vec<TargetReport>> {
        let (sender, receiver) = sync_channel(1);
        let mut inbox = lock(&self.inbox);
        if !inbox.closed {
            inbox.reports.push(sender);
        }
        drop(inbox);
        self.ready.wake();
        receiver
    }

    pub(super) fn report_wanted(&self) -> bool {
        !lock(&self.inbox).reports.is_empty()
    }

    pub(super) fn give_report(&self, reports: Vec<TargetReport>) {
        let waiting = std::mem::take(&mut lock(&self.inbox).reports);
        for sender in waiting.iter().skip(1) {
            // The caller may have given up.
            let _ = sender.try_send(reports.clone());
        }
        if let Some(sender) = waiting.first() {
            let _ = sender.try_send(reports);
        }
    }

    /// Publishes changes of state to the reader.
    pub(super) fn publish(
        &self,
        turned: impl Iterator<Item = (u32, StateChange)>,
        local_failure: Option<bool>,
        abilities: impl Iterator<Item = (TargetKey, Ability)>,
    ) {
        let mut outbox = lock(&self.outbox);
        outbox.turned.extend(turned);
        outbox.local_failure = local_failure.unwrap_or(outbox.local_failure);
        outbox.abilities.extend(abilities.map(|(key, ability)| match ability {
            Ability::Lost(why) => (key, Some(why)),
            Ability::Back => (key, None),
        }));
        drop(outbox);
        self.news.notify_one();
    }

    /// Publishes what came of emptying a server.
    pub(super) fn flushed(&self, flushed: Flushed) {
        lock(&self.outbox).flushed.insert(flushed.number, flushed);
        self.news.notify_one();
    }

    /// Drops what waits for the reader about servers that need not be emptied.
    pub(super) fn keep_flushed(&self, is_wanted: impl Fn(u64) -> bool) {
        lock(&self.outbox).flushed.retain(|number, _| is_wanted(*number));
    }

    /// Drops what waits for the reader about this target.
    pub(super) fn forget(&self, id: u32) {
        lock(&self.outbox).turned.remove(&id);
    }

    /// The thread has ended.
    pub(super) fn close(&self) {
        let mut inbox = lock(&self.inbox);
        *inbox = Inbox { closed: true, ..Inbox::default() };
        drop(inbox);
        lock(&self.outbox).closed = true;
        self.news.notify_one();
    }

    /// The next event; `None`: there is none now, and `Err`: there never will be one.
    fn event(&self) -> Result<Option<Event>, Closed> {
        let mut outbox = lock(&self.outbox);
        if outbox.local_failure != outbox.reported_failure {
            outbox.reported_failure = outbox.local_failure;
            return Ok(Some(Event::LocalFailure(outbox.local_failure)));
        }
        if !outbox.turned.is_empty() {
            let turned = std::mem::take(&mut outbox.turned);
            return Ok(Some(Event::Changed(turned.into_values().collect())));
        }
        if !outbox.flushed.is_empty() {
            let flushed = std::mem::take(&mut outbox.flushed);
            return Ok(Some(Event::Flushed(flushed.into_values().collect())));
        }
        if !outbox.abilities.is_empty() {
            return Ok(Some(Event::Unable(std::mem::take(&mut outbox.abilities).into_iter().collect())));
        }
        if outbox.closed { Err(Closed) } else { Ok(None) }
    }
}

struct Closed;

/// Events of the health thread, for one reader.
#[derive(Debug)]
pub struct Events(pub(super) Arc<Exchange>);

impl Events {
    /// The next event, as soon as there is one. A slow reader gets the latest state of each target alone. `None` when the
    /// [`super::Health`] is gone. May be dropped while it waits: nothing is lost.
    pub async fn recv(&mut self) -> Option<Event> {
        loop {
            match self.0.event() {
                Ok(Some(event)) => return Some(event),
                Ok(None) => self.0.news.notified().await,
                Err(Closed) => return None,
            }
        }
    }

    /// An event that is there already.
    pub fn try_recv(&mut self) -> Option<Event> {
        self.0.event().ok().flatten()
    }
}
