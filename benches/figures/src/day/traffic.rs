//! What comes in a day: when connections open, how many packets clients send in each, and how long it lasts.
//!
//! In: a seed, a rate. Out: numbers of arrivals, and connections. All of it is assumed; the page says so.

use conntrack::TICKS_PER_SECOND;
use rand::{Rng, SeedableRng};
use rand_distr::{Distribution, LogNormal, Pareto, Poisson};
use rand_pcg::Pcg64Mcg;
use siphasher::sip::SipHasher13;

/// A connection of TCP, by what its client has yet to send after the SYN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Connection {
    /// Keyed hash of its 5-tuple, as a packet thread's.
    pub(super) hash: u64,
    /// Packets, the last of which is a FIN.
    pub(super) left: u16,
    /// Packets at once.
    pub(super) burst: u16,
    /// Ticks between two bursts.
    gap: u16,
    has_answered: bool,
}

impl Connection {
    /// Ticks until the next packets: the client answers the SYN's answer in the next tick.
    pub(super) fn next_gap(&mut self) -> usize {
        let gap = if self.has_answered { self.gap } else { 1 };
        self.has_answered = true;
        gap.into()
    }
}

/// A generator of arrivals and connections.
pub(super) struct Traffic {
    random: Pcg64Mcg,
    hasher: SipHasher13,
    packets: Pareto<f64>,
    seconds: LogNormal<f64>,
    /// On average of the day.
    per_tick: f64,
}

impl Traffic {
    pub(super) fn new(seed: u64, per_second: f64) -> Self {
        Self {
            random: Pcg64Mcg::seed_from_u64(seed),
            hasher: SipHasher13::new_with_key(b"key of flow hash"),
            packets: Pareto::new(f64::from(LEAST_PACKETS), PACKETS_SHAPE).expect("positive"),
            seconds: LogNormal::new(MEDIAN_SECONDS.ln(), SECONDS_SIGMA).expect("finite"),
            per_tick: per_second / f64::from(TICKS_PER_SECOND),
        }
    }

    /// How many connections open in a tick; `second` counts from midnight.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a small count")]
    pub(super) fn arrivals(&mut self, second: f64) -> u32 {
        let mean = self.per_tick * activity(second);
        Poisson::new(mean).expect("above 0").sample(&mut self.random) as u32
    }

    /// The next connection.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "clamped to 16 bits")]
    pub(super) fn connection(&mut self) -> Connection {
        let packets = self.packets.sample(&mut self.random).min(MOST_PACKETS) as u16;
        let ticks = self.seconds.sample(&mut self.random).min(MOST_SECONDS) * f64::from(TICKS_PER_SECOND);
        let ticks = (ticks as u16).max(1);
        let left = packets - 1;
        let bursts = left.min(ticks);
        Connection {
            hash: self.flow_hash(),
            left,
            burst: left.div_ceil(bursts),
            gap: ticks / bursts,
            has_answered: false,
        }
    }

    /// A client's address and port are random; the rest of the 5-tuple is the service's.
    fn flow_hash(&mut self) -> u64 {
        let mut tuple = *b"aaaapp\xcb\x00\x71\x0a\x01\xbb\x06";
        self.random.fill_bytes(&mut tuple[..6]);
        self.hasher.hash(&tuple)
    }
}

/// Load over that of an average moment, between two hours on a line.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a small count")]
fn activity(second: f64) -> f64 {
    let hour = (second / 3_600.0).rem_euclid(24.0);
    let (whole, part) = (hour as usize % 24, hour.fract());
    let mean = HOURLY.iter().sum::<f64>() / 24.0;
    (HOURLY[whole] * (1.0 - part) + HOURLY[(whole + 1) % 24] * part) / mean
}

/// Load at each hour of the day: least before dawn, most in the evening.
const HOURLY: [f64; 24] = [
    0.70, 0.52, 0.42, 0.36, 0.34, 0.38, 0.50, 0.68, 0.88, 1.03, 1.12, 1.17, 1.20, 1.21, 1.22, 1.23, 1.25,
    1.28, 1.33, 1.40, 1.44, 1.38, 1.18, 0.94,
];
const LEAST_PACKETS: u16 = 4;
/// Of the Pareto distribution: few connections have most packets.
const PACKETS_SHAPE: f64 = 1.3;
const MOST_PACKETS: f64 = 1_000.0;
const MEDIAN_SECONDS: f64 = 4.0;
/// Of the logarithm.
const SECONDS_SIGMA: f64 = 1.5;
const MOST_SECONDS: f64 = 600.0;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::{Spread, median};

    #[test]
    fn a_day_has_its_rate_its_night_and_its_evening() {
        let hours: Vec<f64> = (0..96).map(|quarter| activity(f64::from(quarter) * 900.0)).collect();
        assert!((Spread::of(&hours).mean - 1.0).abs() < 1e-9);
        assert!((activity(-3_600.0) - activity(23.0 * 3_600.0)).abs() < 1e-9, "before midnight");
        assert!((activity(4.5 * 3_600.0) - 0.36 / 0.96458).abs() < 1e-3, "{}", activity(4.5 * 3_600.0));
        // 24 h at 8 a second: 691,200, and six standard deviations of chance.
        let mut traffic = Traffic::new(1, 8.0);
        let all: u32 = (0..86_400 * 4).map(|tick| traffic.arrivals(f64::from(tick) / 4.0)).sum();
        assert!((f64::from(all) - 691_200.0).abs() < 6.0 * 691_200_f64.sqrt(), "{all}");
    }

    #[test]
    fn connections_are_as_the_page_says() {
        let mut traffic = Traffic::new(2, 1.0);
        let many: Vec<Connection> = (0..20_000).map(|_| traffic.connection()).collect();
        let packets: Vec<f64> = many.iter().map(|one| f64::from(one.left + 1)).collect();
        let spread = Spread::of(&packets);
        assert!(
            spread.least >= 4.0 && spread.most <= 1_000.0 && (10.0..20.0).contains(&spread.mean),
            "{spread:?}"
        );
        // The SYN is in the first tick, the next packets in the second.
        let ticks = many.iter().map(|one| {
            let bursts = one.left.div_ceil(one.burst);
            f64::from(1 + (bursts - 1) * one.gap)
        });
        let ticks: Vec<f64> = ticks.collect();
        assert!(
            (2.0..20.0).contains(&median(&ticks)) && Spread::of(&ticks).most <= 2_400.0,
            "{}",
            median(&ticks)
        );
        let mut hashes: Vec<u64> = many.iter().map(|one| one.hash).collect();
        hashes.sort_unstable();
        hashes.dedup();
        assert_eq!(hashes.len(), many.len());
    }
}
