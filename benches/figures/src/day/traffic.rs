//! Generates the traffic of a simulated day: the start time, the number of packets and the packet
//! times of each connection.
//!
//! All traffic parameters are assumptions, which the results page lists.

use conntrack::TICKS_PER_SECOND;
use rand::{Rng, SeedableRng};
use rand_distr::{Distribution, LogNormal, Pareto, Poisson};
use rand_pcg::Pcg64Mcg;
use siphasher::sip::SipHasher13;

/// A TCP connection after its SYN, with the packets that the client will still send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Connection {
    /// The keyed hash of the 5-tuple. The hash function is the same as in a packet thread.
    pub(super) hash: u64,
    /// The number of packets that the client will still send. The last of these packets is a FIN.
    pub(super) left: u16,
    /// The number of packets that are sent in the same tick.
    pub(super) burst: u16,
    /// The number of ticks between two bursts.
    gap: u16,
    has_answered: bool,
}

impl Connection {
    /// Returns the number of ticks until the next packets. The client acknowledges the SYN-ACK one
    /// tick after its SYN.
    pub(super) fn next_gap(&mut self) -> usize {
        let gap = if self.has_answered { self.gap } else { 1 };
        self.has_answered = true;
        gap.into()
    }
}

/// Generates the connections of a day.
pub(super) struct Traffic {
    random: Pcg64Mcg,
    hasher: SipHasher13,
    packets: Pareto<f64>,
    seconds: LogNormal<f64>,
    /// The mean number of new connections per tick over the day.
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

    /// Returns the number of connections that are opened in a tick. `second` is the time since
    /// midnight in seconds.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "the value is small")]
    pub(super) fn arrivals(&mut self, second: f64) -> u32 {
        let mean = self.per_tick * activity(second);
        Poisson::new(mean).expect("the mean is positive").sample(&mut self.random) as u32
    }

    /// Returns a new connection with a random number of packets and a random duration.
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

    /// Returns the hash of a 5-tuple with random client address and port.
    fn flow_hash(&mut self) -> u64 {
        let mut tuple = *b"aaaapp\xcb\x00\x71\x0a\x01\xbb\x06";
        self.random.fill_bytes(&mut tuple[..6]);
        self.hasher.hash(&tuple)
    }
}

/// Returns the load at this time relative to the mean load of the day. Loads between two full hours
/// are interpolated.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "the value is small")]
fn activity(second: f64) -> f64 {
    let hour = (second / 3_600.0).rem_euclid(24.0);
    let (whole, part) = (hour as usize % 24, hour.fract());
    let mean = HOURLY.iter().sum::<f64>() / 24.0;
    (HOURLY[whole] * (1.0 - part) + HOURLY[(whole + 1) % 24] * part) / mean
}

/// The load at each hour relative to the mean. The load has its minimum before dawn and its maximum
/// in the evening.
const HOURLY: [f64; 24] = [
    0.70, 0.52, 0.42, 0.36, 0.34, 0.38, 0.50, 0.68, 0.88, 1.03, 1.12, 1.17, 1.20, 1.21, 1.22, 1.23, 1.25,
    1.28, 1.33, 1.40, 1.44, 1.38, 1.18, 0.94,
];
const LEAST_PACKETS: u16 = 4;
/// The shape of the Pareto distribution of packets per connection. A small number of connections
/// send most of the packets.
const PACKETS_SHAPE: f64 = 1.3;
const MOST_PACKETS: f64 = 1_000.0;
const MEDIAN_SECONDS: f64 = 4.0;
/// The standard deviation of the logarithm of the connection duration.
const SECONDS_SIGMA: f64 = 1.5;
const MOST_SECONDS: f64 = 600.0;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::{Spread, median};

    #[test]
    fn day_has_its_rate_and_hourly_profile() {
        let hours: Vec<f64> = (0..96).map(|quarter| activity(f64::from(quarter) * 900.0)).collect();
        assert!((Spread::of(&hours).mean - 1.0).abs() < 1e-9);
        assert!(
            (activity(-3_600.0) - activity(23.0 * 3_600.0)).abs() < 1e-9,
            "times before midnight wrap around"
        );
        assert!((activity(4.5 * 3_600.0) - 0.36 / 0.96458).abs() < 1e-3, "{}", activity(4.5 * 3_600.0));
        // A rate of 8 connections per second gives 691,200 connections in 24 h. The tolerance of
        // the test is six standard deviations.
        let mut traffic = Traffic::new(1, 8.0);
        let all: u32 = (0..86_400 * 4).map(|tick| traffic.arrivals(f64::from(tick) / 4.0)).sum();
        assert!((f64::from(all) - 691_200.0).abs() < 6.0 * 691_200_f64.sqrt(), "{all}");
    }

    #[test]
    fn connections_match_the_assumptions_of_the_page() {
        let mut traffic = Traffic::new(2, 1.0);
        let many: Vec<Connection> = (0..20_000).map(|_| traffic.connection()).collect();
        let packets: Vec<f64> = many.iter().map(|one| f64::from(one.left + 1)).collect();
        let spread = Spread::of(&packets);
        assert!(
            spread.least >= 4.0 && spread.most <= 1_000.0 && (10.0..20.0).contains(&spread.mean),
            "{spread:?}"
        );
        // The SYN is sent in the first tick, and the next packets are sent in the second tick.
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
