//! Defines the measurements of the memcached demo, checks them, and formats the report.
//!
//! If all figures are correct, [`KvFigures::faults`] is empty.

use std::fmt::Write;

use serde_json::{Value, json};

use crate::demo_kv_cache::CacheFigures;
use crate::demo_kv_replicas::ReplicaFigures;
use crate::demo_stats::{Counts, Share};
use crate::report;

/// All measurements of one demo run.
#[derive(Debug, Default)]
pub(crate) struct KvFigures {
    pub(crate) memcaslap: Memcaslap,
    /// The number of keys on each server, compared with the number expected from the weights. The
    /// servers are queried directly.
    pub(crate) shares: Vec<Share>,
    /// The number of keys that were not on exactly one server.
    pub(crate) astray: usize,
    pub(crate) death: Death,
    /// The packet counters at the end of the demo, after the checks that follow the kill of a
    /// server.
    pub(crate) counts: Counts,
    /// Drop reasons and their packet counts. Packets are counted from the start of the demo until
    /// the end of the checks that follow the kill of a server.
    pub(crate) drops: Vec<(String, u64)>,
    pub(crate) cache: CacheFigures,
    pub(crate) replicas: ReplicaFigures,
    /// The number of keys that were requested after the balancer was stopped, and the number that
    /// were found.
    pub(crate) after_stop: (usize, usize),
    /// The duration of the demo in seconds.
    pub(crate) seconds: f64,
}

/// The counters that memcaslap printed.
#[derive(Debug, Default)]
pub(crate) struct Memcaslap {
    pub(crate) gets: u64,
    pub(crate) sets: u64,
    /// Values that were read and differ from the stored values.
    pub(crate) wrong: u64,
    pub(crate) missed: u64,
    /// Requests that got no response.
    pub(crate) lost: u64,
}

/// The results for the keys of the killed server, and for all other keys.
#[derive(Debug, Default)]
pub(crate) struct Death {
    pub(crate) server: String,
    /// The number of keys on the killed server.
    pub(crate) owned: usize,
    /// The time in seconds from the kill until the first response for one of these keys.
    pub(crate) seconds: f64,
    /// Among the keys of the killed server, the number that first caused a miss on the next server.
    /// Each key of the killed server should cause such a miss.
    pub(crate) missed: usize,
    /// The number of keys of the killed server that were stored again and read back.
    pub(crate) stored: usize,
    /// The distribution of the killed server's keys over the remaining servers.
    pub(crate) shares: Vec<Share>,
    /// The number of keys on the other servers. The field `stayed` counts the keys of these servers
    /// that kept their server and value.
    pub(crate) others: usize,
    pub(crate) stayed: usize,
    /// The number of responses, over all keys, that did not contain the last written value.
    pub(crate) wrong: usize,
}

impl KvFigures {
    /// Returns a description of each wrong figure. The result is empty if all figures are correct.
    pub(crate) fn faults(&self) -> Vec<String> {
        let Death { server, owned, missed, stored, others, stayed, wrong, .. } = &self.death;
        let Memcaslap { gets, sets, wrong: false_values, missed: misses, lost } = self.memcaslap;
        let shares = self.shares.iter().chain(&self.death.shares);
        let mut faults: Vec<String> = shares
            .filter(|share| !share.is_plausible())
            .map(|share| format!("{}: {} of {} keys", share.backend, share.requests, share.of_requests))
            .collect();
        let mut expect = |is_well: bool, fault: String| faults.extend((!is_well).then_some(fault));
        expect(gets > 0 && sets > 0, format!("memcaslap had {gets} gets and {sets} sets"));
        expect(
            false_values + misses + lost == 0,
            format!("memcaslap: {false_values} wrong values, {misses} misses, {lost} lost"),
        );
        expect(self.astray == 0, format!("{} keys were not on exactly one server", self.astray));
        expect(*wrong == 0, format!("{wrong} wrong values"));
        expect(
            *owned > 0 && missed == owned,
            format!("{server}: {missed} of its {owned} keys moved to another server"),
        );
        expect(stored == owned, format!("{server}: {stored} of its {owned} keys were stored again"));
        expect(
            *others > 0 && stayed == others,
            format!("{stayed} of {others} keys of the other servers stayed"),
        );
        expect(
            self.counts.agree() && self.counts.received > 0,
            format!("the packet counts do not agree: {:?}", self.counts),
        );
        expect(self.drops.is_empty(), format!("drops: {:?}", self.drops));
        let (asked, answered) = self.after_stop;
        expect(
            asked > 0 && answered == 0,
            format!("{answered} of {asked} keys were found after the balancer was stopped"),
        );
        faults.extend(self.cache.faults());
        faults.extend(self.replicas.faults());
        faults
    }

    /// Formats the report as text.
    pub(crate) fn words(&self) -> String {
        let Memcaslap { gets, sets, wrong, missed, lost } = self.memcaslap;
        let mut text = format!(
            "memcaslap over UDP: {gets} gets, {sets} sets; {wrong} wrong values, {missed} misses, {lost} requests without a response\n\n"
        );
        let keys: u32 = self.shares.iter().map(|share| share.requests).sum();
        let _ = writeln!(text, "{keys} keys; not on exactly one server: {}", self.astray);
        text.extend(self.shares.iter().map(share_words));
        let Death { server, owned, seconds, missed, stored, shares, others, stayed, wrong } = &self.death;
        let _ = writeln!(
            text,
            "\n{server} killed: first response for one of its {owned} keys after {seconds:.1} s\n  \
             {missed} are missing on their new server at first, {stored} were stored again and found there:"
        );
        text.extend(shares.iter().map(share_words));
        let _ = writeln!(text, "  {stayed} of {others} keys of the other servers stayed in place");
        let _ = writeln!(text, "  wrong values: {wrong}");
        let drops: Vec<String> =
            self.drops.iter().map(|(reason, count)| format!("{reason} {count}")).collect();
        let _ =
            writeln!(text, "\ndrops: {}", if drops.is_empty() { "none".into() } else { drops.join(", ") });
        let _ = writeln!(text, "counts of all requests\n{}", report::counted(&self.counts));
        let _ = writeln!(text, "\n{}\n{}", self.cache.words(), self.replicas.words());
        let (asked, answered) = self.after_stop;
        let _ = writeln!(text, "balancer stopped: {answered} of {asked} keys found");
        let _ = writeln!(text, "{:.1} s in total", self.seconds);
        text
    }

    /// Formats the report as JSON. The field names are stable.
    pub(crate) fn json(&self) -> Value {
        let Death { server, owned, seconds, missed, stored, shares, others, stayed, wrong } = &self.death;
        let Memcaslap { gets, sets, wrong: false_values, missed: misses, lost } = self.memcaslap;
        let rows = |shares: &[Share]| shares.iter().map(share_json).collect::<Vec<_>>();
        json!({
            "memcaslap": {
                "gets": gets, "sets": sets, "wrong": false_values, "missed": misses, "lost": lost,
            },
            "shares": rows(&self.shares),
            "astray": self.astray,
            "death": {
                "server": server, "owned": owned, "seconds": seconds, "missed": missed, "stored": stored,
                "shares": rows(shares), "others": others, "stayed": stayed, "wrong": wrong,
            },
            "counts": report::counts_json(&self.counts),
            "drops": self.drops.iter().map(|(k, v)| (k.clone(), json!(v))).collect::<serde_json::Map<_, _>>(),
            "cache": self.cache.json(),
            "replicas": self.replicas.json(),
            "after_stop": { "asked": self.after_stop.0, "answered": self.after_stop.1 },
            "seconds": self.seconds,
            "faults": self.faults(),
        })
    }
}

fn share_words(share: &Share) -> String {
    let Share { backend, weight, requests, of_requests, .. } = share;
    let (expected, tolerance) = (share.expected(), share.tolerance());
    format!(
        "  {backend}: {requests} of {of_requests} keys; weight {weight}, expected {expected:.0} +- {tolerance:.0}\n"
    )
}

fn share_json(share: &Share) -> Value {
    json!({
        "server": share.backend, "weight": share.weight, "keys": share.requests,
        "expected": share.expected(), "tolerance": share.tolerance(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn share(requests: u32) -> Share {
        Share { backend: "b1".into(), weight: 1, requests, of_requests: 300, of_weight: 3 }
    }

    fn good() -> KvFigures {
        KvFigures {
            memcaslap: Memcaslap { gets: 9, sets: 1, ..Memcaslap::default() },
            shares: vec![share(100)],
            death: Death {
                server: "b3".into(),
                owned: 200,
                missed: 200,
                stored: 200,
                shares: vec![share(100)],
                others: 100,
                stayed: 100,
                ..Death::default()
            },
            cache: crate::demo_kv_cache::tests::good(),
            replicas: crate::demo_kv_replicas::tests::good(),
            counts: Counts { redirected: 9, received: 9, sent: 9, taken_off: 9, ..Counts::default() },
            after_stop: (20, 0),
            ..KvFigures::default()
        }
    }

    #[test]
    fn kv_faults_are_one_per_bad_figure() {
        assert_eq!(good().faults(), [""; 0]);
        type Change = fn(&mut KvFigures);
        let changes: [(Change, &str); 17] = [
            (|f| f.memcaslap.gets = 0, "0 gets"),
            (|f| f.memcaslap.wrong = 1, "1 wrong values, 0 misses"),
            (|f| f.memcaslap.missed = 1, "1 misses"),
            (|f| f.memcaslap.lost = 1, "1 lost"),
            // 100 +- 49
            (|f| f.shares[0] = share(150), "150 of 300 keys"),
            (|f| f.death.shares[0] = share(50), "50 of 300 keys"),
            (|f| f.astray = 1, "exactly one server"),
            (|f| f.death.wrong = 1, "1 wrong values"),
            (|f| f.death.missed = 199, "moved to another"),
            (|f| f.death.stored = 199, "stored again"),
            (|f| f.death.stayed = 99, "stayed"),
            (|f| f.counts.taken_off = 8, "do not agree"),
            (|f| f.counts = Counts::default(), "do not agree"),
            (|f| f.drops.push(("kv_split".into(), 1)), "kv_split"),
            (|f| f.after_stop = (20, 1), "1 of 20"),
            (|f| f.after_stop = (0, 0), "0 of 0"),
            (|f| (f.death.others, f.death.stayed) = (0, 0), "0 of 0"),
        ];
        for (change, word) in changes {
            let mut figures = good();
            change(&mut figures);
            let faults = figures.faults();
            assert!(faults.len() == 1 && faults[0].contains(word), "{word}: {faults:?}");
        }
    }
}
