//! What the demo measures, and what of it is wrong.
//!
//! In: counts. Out: [`Figures::faults`], empty when the balancer did its work.
//! Not here: how they are got (`demo`), how they look (`report`).

/// All figures of one run.
#[derive(Debug, Default)]
pub(crate) struct Figures {
    pub(crate) families: Vec<Family>,
    pub(crate) shares: Vec<Share>,
    pub(crate) packet: Option<Packet>,
    /// Interface and mode of its sockets.
    pub(crate) modes: Vec<(String, String)>,
    pub(crate) threads: usize,
    /// Drop reason and packets.
    pub(crate) drops: Vec<(String, u64)>,
    /// After the requests.
    pub(crate) requests: Counts,
    pub(crate) blast: Blast,
    /// Requests tried and answered without the balancer; `None` while the bed is kept.
    pub(crate) after_stop: Option<(usize, usize)>,
    /// From the first namespace to the last figure.
    pub(crate) seconds: f64,
}

/// Requests over one family.
#[derive(Debug)]
pub(crate) struct Family {
    pub(crate) vip: String,
    pub(crate) asked: usize,
    pub(crate) answered: usize,
    /// The backend saw the client's own address and port.
    pub(crate) own_address_seen: usize,
    /// Reply packets that reached the client, and those of them whose source is the VIP.
    pub(crate) reply_packets: usize,
    pub(crate) reply_packets_from_vip: usize,
    pub(crate) median_us: u128,
    /// Why requests failed: the first few.
    pub(crate) failures: Vec<String>,
}

/// A backend's part of the requests.
#[derive(Debug)]
pub(crate) struct Share {
    pub(crate) backend: String,
    pub(crate) weight: u32,
    pub(crate) requests: u32,
    /// All requests, and all weight.
    pub(crate) of_requests: u32,
    pub(crate) of_weight: u32,
}

/// A captured packet between balancer and backend.
#[derive(Debug)]
pub(crate) struct Packet {
    pub(crate) words: [String; 3],
    pub(crate) hex: String,
    pub(crate) checksums_ok: bool,
}

/// The same packets, counted along the road.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    /// By XDP, to sockets.
    pub(crate) redirected: u64,
    /// By the kernel, for want of room in a socket's rings.
    pub(crate) lost_before_threads: u64,
    pub(crate) received: u64,
    pub(crate) dropped: u64,
    pub(crate) sent: u64,
    /// By the veth links between balancer and backends, for want of room.
    pub(crate) lost_on_links: u64,
    /// At the backends.
    pub(crate) taken_off: u64,
}

/// Many small packets for a short time.
#[derive(Debug, Default)]
pub(crate) struct Blast {
    pub(crate) seconds: f64,
    pub(crate) offered: u64,
    pub(crate) counts: Counts,
}

impl Counts {
    /// Each packet is where the next counter says, or counted as lost between.
    pub(crate) fn agree(&self) -> bool {
        self.redirected == self.received + self.lost_before_threads
            && self.received == self.sent + self.dropped
            && self.sent == self.taken_off + self.lost_on_links
    }

    /// What was counted since `before`.
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
    /// What its weight lets expect.
    pub(crate) fn expected(&self) -> f64 {
        f64::from(self.of_requests) * f64::from(self.weight) / f64::from(self.of_weight)
    }

    /// How far random flows may stray: six standard deviations of the binomial distribution, 1 run in 500 million beyond.
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
            faults.push(format!("{vip}: {answered} of {asked} requests answered: {:?}", self.failures));
        }
        if own_address_seen < answered {
            faults.push(format!(
                "{vip}: only {own_address_seen} of {answered} backends saw the client's address"
            ));
        }
        if reply_packets_from_vip < reply_packets || reply_packets < answered {
            faults.push(format!("{vip}: {reply_packets_from_vip} of {reply_packets} reply packets carry it"));
        }
    }
}

impl Figures {
    /// What is wrong, in words; nothing when all is well.
    pub(crate) fn faults(&self) -> Vec<String> {
        let mut faults = Vec::new();
        for family in &self.families {
            family.add_faults(&mut faults);
        }
        for share in self.shares.iter().filter(|share| !share.is_plausible()) {
            let Share { backend, requests, .. } = share;
            let (expected, tolerance) = (share.expected(), share.tolerance());
            faults.push(format!("{backend}: {requests} requests, {expected:.0} +- {tolerance:.0} expected"));
        }
        if self.packet.as_ref().is_none_or(|packet| !packet.checksums_ok) {
            faults.push("no encapsulated packet with right checksums was captured".into());
        }
        if !self.requests.agree() || self.requests.received == 0 {
            faults.push(format!("the counts of the requests don't agree: {:?}", self.requests));
        }
        if !self.blast.counts.agree() || self.blast.counts.sent == 0 {
            faults.push(format!("the counts of the blast don't agree: {:?}", self.blast.counts));
        }
        if let Some((asked, answered @ 1..)) = self.after_stop {
            faults.push(format!("{answered} of {asked} requests were answered without the balancer"));
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
    fn good_figures_have_no_fault_and_each_bad_one_has_its_own() {
        assert_eq!(good().faults(), [""; 0]);
        type Change = fn(&mut Figures);
        let changes: [(Change, &str); 9] = [
            (|f| f.families[0].answered = 299, "299 of 300"),
            (|f| f.families[0].own_address_seen = 299, "client's address"),
            (|f| f.families[0].reply_packets_from_vip = 899, "carry it"),
            // 100 +- 49
            (|f| f.shares[0].requests = 150, "expected"),
            (|f| f.packet = None, "captured"),
            (|f| f.requests.taken_off = 8, "of the requests"),
            (|f| f.blast.counts.lost_before_threads = 1, "of the blast"),
            (|f| f.blast.counts = Counts::default(), "of the blast"),
            (|f| f.after_stop = Some((20, 1)), "without the balancer"),
        ];
        for (change, word) in changes {
            let mut figures = good();
            change(&mut figures);
            let faults = figures.faults();
            assert!(faults.len() == 1 && faults[0].contains(word), "{word}: {faults:?}");
        }
    }
}
