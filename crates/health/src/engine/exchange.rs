//! The queues between the health thread and other threads.
//!
//! Other threads send changes of the target set and requests for reports. The health thread sends
//! events and reports.
//!
//! The memory is bounded by the number of targets, even if the reader is slow. For each target,
//! only the latest change and the latest state are kept.

use std::collections::{BTreeMap, HashMap};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};

use tokio::sync::Notify;

use super::flights::Ready;
use super::record::Ability;
use super::target::{Difference, Spec, TargetKey, TargetReport};
use super::{Event, FailingHops, Flushed, StateChange};
use crate::{Advice, HopNeighbour, lock};

#[derive(Debug, Default)]
pub(super) struct Exchange {
    inbox: Mutex<Inbox>,
    outbox: Mutex<Outbox>,
    news: Notify,
    /// The slots of attempts that can continue, with the waker of the main loop.
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
    failing_hops: HashMap<TargetKey, Vec<HopNeighbour>>,
    advised: BTreeMap<u32, (TargetKey, Advice)>,
    flushed: BTreeMap<u64, Flushed>,
    local_failure: bool,
    /// The value of `local_failure` that the reader received last.
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

    /// Removes at most `most` changes, and returns them with `true` if there are more.
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
            // Sending fails only if the requester is no longer waiting.
            let _ = sender.try_send(reports.clone());
        }
        if let Some(sender) = waiting.first() {
            let _ = sender.try_send(reports);
        }
    }

    /// Publishes state changes to the reader.
    pub(super) fn publish(
        &self,
        turned: impl Iterator<Item = (u32, StateChange)>,
        local_failure: Option<bool>,
        abilities: impl Iterator<Item = (TargetKey, Ability)>,
        failing_hops: impl Iterator<Item = (TargetKey, Vec<HopNeighbour>)>,
    ) {
        let mut outbox = lock(&self.outbox);
        outbox.turned.extend(turned);
        outbox.local_failure = local_failure.unwrap_or(outbox.local_failure);
        outbox.abilities.extend(abilities.map(|(key, ability)| match ability {
            Ability::Lost(why) => (key, Some(why)),
            Ability::Back => (key, None),
        }));
        outbox.failing_hops.extend(failing_hops);
        drop(outbox);
        self.news.notify_one();
    }

    /// Publishes the advice of an agent.
    pub(super) fn advise(&self, id: u32, key: TargetKey, advice: Advice) {
        lock(&self.outbox).advised.insert(id, (key, advice));
        self.news.notify_one();
    }

    /// Publishes the result of an attempt to flush a server.
    pub(super) fn flushed(&self, flushed: Flushed) {
        lock(&self.outbox).flushed.insert(flushed.number, flushed);
        self.news.notify_one();
    }

    /// Drops unread flush results, except for requests that are still wanted.
    pub(super) fn keep_flushed(&self, is_wanted: impl Fn(u64) -> bool) {
        lock(&self.outbox).flushed.retain(|number, _| is_wanted(*number));
    }

    /// Drops unread state changes and advice of a target.
    pub(super) fn forget(&self, id: u32) {
        let mut outbox = lock(&self.outbox);
        outbox.turned.remove(&id);
        outbox.advised.remove(&id);
    }

    /// Closes the queues when the thread ends.
    pub(super) fn close(&self) {
        let mut inbox = lock(&self.inbox);
        *inbox = Inbox { closed: true, ..Inbox::default() };
        drop(inbox);
        lock(&self.outbox).closed = true;
        self.news.notify_one();
    }

    /// Returns the next event, or `Ok(None)` if there is none now. Returns an error after the last
    /// event.
    fn event(&self) -> Result<Option<Event>, Closed> {
        let mut outbox = lock(&self.outbox);
        if outbox.local_failure != outbox.reported_failure {
            outbox.reported_failure = outbox.local_failure;
            return Ok(Some(Event::LocalFailure(outbox.local_failure)));
        }
        // Advice is returned first, so that a backend comes up with the weight that its agent
        // requests.
        if !outbox.advised.is_empty() {
            let advised = std::mem::take(&mut outbox.advised);
            return Ok(Some(Event::Advised(advised.into_values().collect())));
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
        if !outbox.failing_hops.is_empty() {
            let changed = std::mem::take(&mut outbox.failing_hops).into_iter();
            return Ok(Some(Event::Hops(changed.map(|(key, hops)| FailingHops { key, hops }).collect())));
        }
        if outbox.closed { Err(Closed) } else { Ok(None) }
    }
}

struct Closed;

/// The events of the health thread. Only one thread reads the events.
#[derive(Debug)]
pub struct Events(pub(super) Arc<Exchange>);

impl Events {
    /// Waits for the next event. A slow reader receives only the latest state of each target.
    /// Returns `None` after [`super::Health`] was dropped. This future is cancel-safe.
    pub async fn recv(&mut self) -> Option<Event> {
        loop {
            match self.0.event() {
                Ok(Some(event)) => return Some(event),
                Ok(None) => self.0.news.notified().await,
                Err(Closed) => return None,
            }
        }
    }

    /// Returns the next event if one is available. Does not wait.
    pub fn try_recv(&mut self) -> Option<Event> {
        self.0.event().ok().flatten()
    }
}
