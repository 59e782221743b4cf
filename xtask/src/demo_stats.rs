//! Defines the measurements of the demo and checks them.
//!
//! If the balancer worked correctly, [`Figures::faults`] is empty. The module `demo` takes the
//! measurements, and `report` prints them.

/// All measurements of one demo run.
#[derive(Debug, Default)]
pub(crate) struct Figures {
    pub(crate) families: Vec<Family>,
    pub(crate) shares: Vec<Share>,
    pub(crate) packet: Option<Packet>,
    /// The name of each interface and the mode of its sockets (zero-copy or copy).
    pub(crate) modes: Vec<(String, String)>,
    pub(crate) threads: usize,
    /// Drop reasons with their packet counts.
    pub(crate) drops: Vec<(String, u64)>,
    /// Packet counts during the HTTP requests.
    pub(crate) requests: Counts,
    pub(crate) blast: Blast,
    /// The number of requests that were sent after the balancer was stopped, and the number of
    /// responses. `None` if the testbed is kept.
    pub(crate) after_stop: Option<(usize, usize)>,
    /// The duration of the demo in seconds.
    pub(crate) seconds: f64,
}

/// The results of requests over one address family.
#[derive(Debug)]
pub(crate) struct Family {
    pub(crate) vip: String,
    pub(crate) asked: usize,
    pub(crate) answered: usize,
    /// The number of responses whose backend saw the client's own address and port.
    pub(crate) own_address_seen: usize,
    /// The number of reply packets that reached the client. The field `reply_packets_from_vip`
    /// counts the reply packets whose source is the VIP.
    pub(crate) reply_packets: usize,
    pub(crate) reply_packets_from_vip: usize,
    pub(crate) median_us: u128,
    /// The errors of the first requests that failed.
    pub(crate) failures: Vec<String>,
}

/// The number of requests that one backend received, compared with its weight.
#[derive(Debug)]
pub(crate) struct Share {
    pub(crate) backend: String,
    pub(crate) weight: u32,
    pub(crate) requests: u32,
    /// The total number of requests, over all backends.
    pub(crate) of_requests: u32,
    pub(crate) of_weight: u32,
}

/// A captured packet between the balancer and a backend.
#[derive(Debug)]
pub(crate) struct Packet {
    pub(crate) words: [String; 3],
    pub(crate) hex: String,
    pub(crate) checksums_ok: bool,
}

/// Counts of the same packets at successive points of their path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    /// Packets that the XDP program redirected to sockets.
    pub(crate) redirected: u64,
    /// Packets that the kernel dropped because the ring of a socket was full.
    pub(crate) lost_before_threads: u64,
    pub(crate) received: u64,
    pub(crate) dropped: u64,
    pub(crate) sent: u64,
    /// Packets that were dropped on the veth links between balancer and backends because a ring was
    /// full.
    pub(crate) lost_on_links: u64,
    /// Packets that the backends decapsulated.
    pub(crate) taken_off: u64,
}

/// The results of one burst of small packets.
#[derive(Debug, Default)]
pub(crate) struct Blast {
    pub(crate) seconds: f64,
    pub(crate) offered: u64,
    pub(crate) counts: Counts,
}

impl Counts {
    /// Returns `true` if the counts balance: every packet in one counter is either in the next
    /// counter, or was counted as lost between the two.
    pub(crate) fn agree(&self) -> bool {
        self.redirected == self.received + self.lost_before_threads
            && self.received == self.sent + self.dropped
            && self.sent == self.taken_off + self.lost_on_links
    }

    pub(crate) fn since(&self, before: &Self) -> Self {
        Self {
            redirected: self.redirected - before.redirected,
            lost_before_threads: self.lost_before_threads - before.lost_before_threads,
            received: self.received - before.received,
            dropped: self.dropped - before.dropped,
            sent: self.sent - before.sent,
            lost_on_links: self.lost_on_links - before.lost_on_links,
            taken_off: self.taken_off - before.taken_off,
        }
    }
}

impl Share {
    /// Returns the number of requests that the weight of the backend predicts.
    pub(crate) fn expected(&self) -> f64 {
        f64::from(self.of_requests) * f64::from(self.weight) / f64::from(self.of_weight)
    }

    /// Returns the accepted deviation from the expected number. Flows are chosen at random, so the
    /// deviation is six standard deviations of the binomial distribution. One run in 500 million
    /// exceeds this deviation.
    pub(crate) fn tolerance(&self) -> f64 {
        let part = f64::from(self.weight) / f64::from(self.of_weight);
        6.0 * (f64::from(self.of_requests) * part * (1.0 - part)).sqrt()
    }

    pub(crate) fn is_plausible(&self) -> bool {
        (f64::from(self.requests) - self.expected()).abs() <= self.tolerance()
    }
}

impl Family {
    fn add_faults(&self, faults: &mut Vec<String>) {
        let Self { vip, asked, answered, own_address_seen, reply_packets, reply_packets_from_vip, .. } = self;
        if answered < asked {
            faults.push(format!(
                "{vip}: {answered} of {asked} requests answered, first errors {:?}",
                self.failures
            ));
        }
        if own_address_seen < answered {
            faults.push(format!(
                "{vip}: only {own_address_seen} of {answered} backends saw the client's address"
            ));
        }
        if reply_packets_from_vip < reply_packets || reply_packets < answered {
            faults.push(format!(
                "{vip}: {reply_packets_from_vip} of {reply_packets} reply packets have the VIP as source"
            ));
        }
    }
}

impl Figures {
    /// Returns a description of each wrong figure. The result is empty if all figures are correct.
    pub(crate) fn faults(&self) -> Vec<String> {
        let mut faults = Vec::new();
        for family in &self.families {
            family.add_faults(&mut faults);
        }
        for share in self.shares.iter().filter(|share| !share.is_plausible()) {
            let Share { backend, requests, .. } = share;
            let (expected, tolerance) = (share.expected(), share.tolerance());
            faults.push(format!("{backend}: {requests} requests, expected {expected:.0} +- {tolerance:.0}"));
        }
        if self.packet.as_ref().is_none_or(|packet| !packet.checksums_ok) {
            faults.push("no encapsulated packet with correct checksums was captured".into());
        }
        if !self.requests.agree() || self.requests.received == 0 {
            faults.push(format!("the packet counts of the requests do not agree: {:?}", self.requests));
        }
        if !self.blast.counts.agree() || self.blast.counts.sent == 0 {
            faults.push(format!("the packet counts of the burst do not agree: {:?}", self.blast.counts));
        }
        if let Some((asked, answered @ 1..)) = self.after_stop {
            faults
                .push(format!("{answered} of {asked} requests were answered after the balancer was stopped"));
        }
        faults
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn good() -> Figures {
        let counts = Counts { redirected: 9, received: 9, sent: 9, taken_off: 9, ..Counts::default() };
        Figures {
            families: vec![Family {
                vip: "203.0.113.10".into(),
                asked: 300,
                answered: 300,
                own_address_seen: 300,
                reply_packets: 900,
                reply_packets_from_vip: 900,
                median_us: 1,
                failures: vec![],
            }],
            shares: vec![Share {
                backend: "b1".into(),
                weight: 1,
                requests: 100,
                of_requests: 300,
                of_weight: 3,
            }],
            packet: Some(Packet { words: Default::default(), hex: String::new(), checksums_ok: true }),
            requests: counts,
            blast: Blast { counts, ..Blast::default() },
            after_stop: Some((20, 0)),
            ..Figures::default()
        }
    }

    #[test]
    fn faults_are_one_per_bad_figure() {
        assert_eq!(good().faults(), [""; 0]);
        type Change = fn(&mut Figures);
        let changes: [(Change, &str); 9] = [
            (|f| f.families[0].answered = 299, "299 of 300"),
            (|f| f.families[0].own_address_seen = 299, "client's address"),
            (|f| f.families[0].reply_packets_from_vip = 899, "the VIP as source"),
            // 100 +- 49
            (|f| f.shares[0].requests = 150, "expected"),
            (|f| f.packet = None, "captured"),
            (|f| f.requests.taken_off = 8, "of the requests"),
            (|f| f.blast.counts.lost_before_threads = 1, "of the burst"),
            (|f| f.blast.counts = Counts::default(), "of the burst"),
            (|f| f.after_stop = Some((20, 1)), "after the balancer was stopped"),
        ];
        for (change, word) in changes {
            let mut figures = good();
            change(&mut figures);
            let faults = figures.faults();
            assert!(faults.len() == 1 && faults[0].contains(word), "{word}: {faults:?}");
        }
    }
}
