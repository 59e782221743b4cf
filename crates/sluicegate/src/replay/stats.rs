//! Counts the frames of a replay. The counters satisfy three equations:
//!
//! - read = left out + passed + too long + received
//! - received + originated = sent + replied + taken + dropped + held
//! - written = sent + replied

use forwarder::{DropReason, ThreadCounters};
use serde::Serialize;
use serde_json::{Map, Value};

use admin_client::{outln, print_json};

/// Frame counters, and the number of reloads.
#[derive(Debug, Default, Serialize)]
pub(super) struct Stats {
    pub(super) read: u64,
    pub(super) left_out: u64,
    pub(super) passed: u64,
    pub(super) too_long: u64,
    pub(super) cut_short: u64,
    pub(super) written: u64,
    pub(super) reloads: u64,
    received: u64,
    originated: u64,
    fragmented: u64,
    sent: u64,
    replied: u64,
    taken: u64,
    held: u64,
    drops: Map<String, Value>,
}

impl Stats {
    pub(super) fn take_counters(&mut self, counters: &ThreadCounters) {
        (self.received, self.originated) = (counters.rx.read(), counters.originated.read());
        (self.sent, self.replied) = (counters.tx.read(), counters.replies.read());
        self.taken = counters.taken.read();
        (self.held, self.fragmented) = (counters.held.read(), counters.fragmented.read());
        let happened = DropReason::ALL.iter().map(|reason| (reason.name(), counters.drops(*reason)));
        let happened = happened.filter(|(_, count)| *count > 0);
        self.drops = happened.map(|(name, count)| (name.to_owned(), count.into())).collect();
    }

    pub(super) fn print(&self, as_json: bool) -> anyhow::Result<()> {
        if as_json {
            return print_json(self);
        }
        let Self { read, left_out, passed, too_long, received, originated, .. } = self;
        let Self { sent, replied, taken, held, drops, written, fragmented, cut_short, reloads, .. } = self;
        outln!("read       {read} ({cut_short} truncated by the capture)");
        outln!("left out   {left_out} (outgoing or duplicate)");
        outln!("passed     {passed} (not for a VIP)");
        outln!("too long   {too_long}");
        outln!("received   {received}");
        outln!(
            "originated {originated} (later fragments of {fragmented} large packets, and upstream requests)"
        );
        outln!("sent       {sent}");
        outln!("replied    {replied}");
        outln!("taken      {taken} (requests for several backends)");
        for (reason, count) in drops {
            outln!("dropped    {count} {reason}");
        }
        outln!("held       {held} (at the end)");
        outln!("written    {written}");
        if *reloads > 0 {
            outln!("reloads    {reloads}");
        }
        Ok(())
    }
}
