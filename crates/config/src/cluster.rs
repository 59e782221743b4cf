//! `[cluster]`: what all machines of a cluster must agree on.
//!
//! In: the section and a way to read secrets. Out: [`Cluster`].
//! Not here: machines (`machine`), table building (`maglev-hash`), flow time (`conntrack`).

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use config_text::{At, Node, Place, Root, Section};
use serde::Serialize;

use super::arrivals::Arrivals;
use super::canonical;
use super::mtu::Mtu;
use super::pem::Outside;
use super::pool::read_checks;
use super::secret::HashKey;

/// What all machines of a cluster share.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Cluster {
    name: Arc<str>,
    /// The key of the hashes that choose a backend.
    #[serde(rename = "hash_key_file")]
    pub hash_key: HashKey,
    /// Slots of a Maglev table: a prime from 101 to 16,777,213. Default 65,537.
    pub table_size: u32,
    /// How long an idle flow is remembered.
    pub flow_timeouts: FlowTimeouts,
    /// How long flows go on whose backend a reload took from them; and the machine's own drain at most: up to 24 h. Default
    /// 60 s. An operator's drain of a backend has no such end.
    #[serde(serialize_with = "canonical::span")]
    pub drain_time: Duration,
    /// Whether a change of a file is a reload. Default `false`.
    pub watch: bool,
    /// Of any table's slots, the percentage that a reload may give to other backends: 0 to 99. `None`: all of them, the default.
    #[serde(serialize_with = "canonical::some_percent")]
    pub max_moved: Option<u8>,
    /// Which sources may send packets for VIPs in tunnels. Default: none.
    pub arrivals: Option<Arrivals>,
    /// How long packets are, and may be.
    pub mtu: Mtu,
}

impl Cluster {
    /// The cluster's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    fn read(mut section: Section<'_>, mtu: Mtu, outside: &Outside<'_>) -> Option<Self> {
        let name = section.required("name", "the name of the cluster").and_then(|node| node.name());
        let hash_key = section
            .required("hash_key_file", HASH_KEY)
            .and_then(|node| outside.secret(&node, HASH_KEY, HashKey::STAND_IN, HashKey::parse));
        let table_size = section.or("table_size", DEFAULT_TABLE_SIZE, |node| read_table_size(&node));
        let flow_timeouts = section.optional("flow_timeouts").and_then(|node| node.section());
        let flow_timeouts = flow_timeouts.map_or_else(FlowTimeouts::default, FlowTimeouts::read);
        let drain_time =
            section.or("drain_time", DEFAULT_DRAIN_TIME, |node| node.duration(Duration::ZERO..=hours(24)));
        let watch = section.or("watch", false, |node| node.boolean());
        let max_moved = section.optional("max_moved").and_then(|node| node.percent(0..=100));
        let max_moved = max_moved.filter(|percent| *percent < 100);
        let arrivals = section.optional("arrivals").and_then(|node| Arrivals::read(&node));
        section.finish();
        let (name, hash_key) = (name?, hash_key?);
        Some(Self { name, hash_key, table_size, flow_timeouts, drain_time, watch, max_moved, arrivals, mtu })
    }
}

/// A cluster as written.
#[derive(Default)]
pub(super) struct ClusterDraft {
    pub(super) place: Option<Place>,
    pub(super) value: Option<Cluster>,
    /// The names of the checks of peers.
    pub(super) peer_checks: Vec<At<Arc<str>>>,
    /// Where `mtu.core` stands.
    pub(super) core: Option<Place>,
}

impl ClusterDraft {
    pub(super) fn read(root: &mut Root<'_>, outside: &Outside<'_>) -> Self {
        let Some(node) = root.required("cluster", "a section [cluster]") else { return Self::default() };
        let place = Some(node.place.clone());
        let Some(mut section) = node.section() else { return Self { place, ..Self::default() } };
        let peer_checks = read_checks(section.optional("peer_checks"));
        let mtu = section.optional("mtu").and_then(|node| node.section()).map(Mtu::read);
        let (mtu, core) = mtu.unwrap_or_default();
        Self { place, value: Cluster::read(section, mtu, outside), peer_checks, core }
    }
}

/// Idle timeouts of a flow by its state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct FlowTimeouts {
    /// A flow of which one packet was seen: 1 s to 2 min. Default 10 s.
    #[serde(serialize_with = "canonical::span")]
    pub new: Duration,
    /// A TCP flow that has sent in eight quarters of a second, and before that an eighth of it: 10 s to 24 h. Default 15 min.
    #[serde(serialize_with = "canonical::span")]
    pub established: Duration,
    /// A TCP flow after FIN or RST: 1 s to 10 min. Default 10 s.
    #[serde(serialize_with = "canonical::span")]
    pub closing: Duration,
    /// A UDP flow, and one of any other protocol: 1 s to 24 h. Default 60 s.
    #[serde(serialize_with = "canonical::span")]
    pub udp: Duration,
}

impl FlowTimeouts {
    fn read(mut section: Section<'_>) -> Self {
        let default = Self::default();
        let mut timeout = |key: &'static str, default: Duration, range: RangeInclusive<Duration>| {
            section.or(key, default, |node| node.duration(range))
        };
        let timeouts = Self {
            new: timeout("new", default.new, SECOND..=seconds(120)),
            established: timeout("established", default.established, seconds(10)..=hours(24)),
            closing: timeout("closing", default.closing, SECOND..=seconds(600)),
            udp: timeout("udp", default.udp, SECOND..=hours(24)),
        };
        section.finish();
        timeouts
    }
}

impl Default for FlowTimeouts {
    fn default() -> Self {
        Self { new: seconds(10), established: seconds(900), closing: seconds(10), udp: seconds(60) }
    }
}

fn read_table_size(node: &Node<'_>) -> Option<u32> {
    let size = node.number(101..=16_777_213)?;
    if is_prime(size) {
        return Some(size);
    }
    // The largest allowed size is prime, so this search ends within the range.
    let next = (size..).find(|&size| is_prime(size)).unwrap_or(DEFAULT_TABLE_SIZE);
    node.wrong(format!("a prime (the next is {next})"))
}

/// Trial division: at most 2,048 odd divisors in the allowed range.
fn is_prime(number: u32) -> bool {
    let divisors = (3..).step_by(2).take_while(|&divisor: &u32| divisor <= number / divisor);
    number == 2 || (number > 2 && number % 2 == 1 && divisors.into_iter().all(|d| !number.is_multiple_of(d)))
}

const fn seconds(count: u64) -> Duration {
    Duration::from_secs(count)
}

const fn hours(count: u64) -> Duration {
    Duration::from_secs(count * 3_600)
}

const SECOND: Duration = seconds(1);
const DEFAULT_TABLE_SIZE: u32 = 65_537;
const DEFAULT_DRAIN_TIME: Duration = seconds(60);
const HASH_KEY: &str = "a file with 32 hex digits, not all of them 0, equal on all machines of the cluster \
                        (make one with: umask 077; openssl rand -hex 16 > FILE)";

#[cfg(test)]
mod tests {
    use super::is_prime;

    #[test]
    fn primes_agree_with_a_sieve() {
        let mut composite = vec![false; 70_000];
        for factor in 2..composite.len() {
            for multiple in (2 * factor..composite.len()).step_by(factor) {
                composite[multiple] = true;
            }
        }
        for (number, &composite) in composite.iter().enumerate().skip(2) {
            assert_eq!(is_prime(u32::try_from(number).unwrap()), !composite, "{number}");
        }
        assert!(!is_prime(0) && !is_prime(1));
    }

    #[test]
    fn the_largest_allowed_size_is_prime() {
        assert!(is_prime(16_777_213) && is_prime(655_373));
        assert!(!is_prime(16_777_211));
    }
}
