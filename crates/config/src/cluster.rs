//! `[cluster]`: settings that must be the same on all machines of a cluster.

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use config_text::{At, Expected, Node, Place, Root, Section};
use serde::Serialize;

use super::canonical;
use super::mtu::Mtu;
use super::pem::Outside;
use super::pool::read_checks;
use super::secret::HashKey;
use super::upstream_tunnels::UpstreamTunnels;

/// The settings that all machines of a cluster share.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Cluster {
    name: Arc<str>,
    /// The secret key of the hash functions that select a backend.
    #[serde(rename = "hash_key_file")]
    pub hash_key: HashKey,
    /// The number of entries in a Maglev table: a prime from 101 to 16,777,213. Default: 65,537.
    pub table_size: u32,
    /// The times after which idle flows are removed from the connection table.
    pub flow_timeouts: FlowTimeouts,
    /// The time for which existing flows are still sent to a backend after a reload has removed the
    /// backend, up to 24 h. The same time limits the drain of a machine, but not a drain of a
    /// backend that an operator starts. Default: 60 s.
    #[serde(serialize_with = "canonical::span")]
    pub drain_time: Duration,
    /// `true` if the configuration is reloaded when one of its files changes. Default: `false`.
    pub watch: bool,
    /// The maximum percentage of entries that a reload may move to other backends in any Maglev
    /// table: 0 to 99. If `None` (the default), there is no limit.
    #[serde(serialize_with = "canonical::some_percent")]
    pub max_moved: Option<u8>,
    /// The tunnels through which upstream routers or load balancers may send packets for VIPs.
    /// Default: none.
    pub upstream_tunnels: Option<UpstreamTunnels>,
    /// The maximum lengths of client packets, and the MTU of the links behind the machines.
    pub mtu: Mtu,
}

impl Cluster {
    /// Returns the name of the cluster.
    pub fn name(&self) -> &str {
        &self.name
    }

    fn read(mut section: Section<'_>, mtu: Mtu, outside: &Outside<'_>) -> Option<Self> {
        let name = section.required("name", "the name of the cluster").and_then(|node| node.name());
        let hash_key = section
            .required("hash_key_file", HASH_KEY_FILE)
            .and_then(|node| outside.secret(&node, HASH_KEY, HashKey::STAND_IN, HashKey::parse));
        let table_size = section.or("table_size", DEFAULT_TABLE_SIZE, |node| read_table_size(&node));
        let flow_timeouts = section.optional("flow_timeouts").and_then(|node| node.section());
        let flow_timeouts = flow_timeouts.map_or_else(FlowTimeouts::default, FlowTimeouts::read);
        let drain_time =
            section.or("drain_time", DEFAULT_DRAIN_TIME, |node| node.duration(Duration::ZERO..=hours(24)));
        let watch = section.or("watch", false, |node| node.boolean());
        let max_moved = section.optional("max_moved").and_then(|node| node.percent(0..=100));
        let max_moved = max_moved.filter(|percent| *percent < 100);
        let upstream_tunnels =
            section.optional("upstream_tunnels").and_then(|node| UpstreamTunnels::read(&node));
        section.finish();
        let (name, hash_key) = (name?, hash_key?);
        Some(Self {
            name,
            hash_key,
            table_size,
            flow_timeouts,
            drain_time,
            watch,
            max_moved,
            upstream_tunnels,
            mtu,
        })
    }
}

/// The section `[cluster]`, with the positions of its values.
#[derive(Default)]
pub(super) struct ClusterDraft {
    pub(super) place: Option<Place>,
    pub(super) value: Option<Cluster>,
    /// The names of the health checks that machines run on each other.
    pub(super) peer_checks: Vec<At<Arc<str>>>,
    /// The position of `mtu.core`.
    pub(super) core: Option<Place>,
}

impl ClusterDraft {
    pub(super) fn read(root: &mut Root<'_>, outside: &Outside<'_>) -> Self {
        let Some(node) = root.required("cluster", "add a section [cluster] with name and hash_key_file")
        else {
            return Self::default();
        };
        let place = Some(node.place.clone());
        let Some(mut section) = node.section() else { return Self { place, ..Self::default() } };
        let peer_checks = read_checks(section.optional("peer_checks"));
        let mtu = section.optional("mtu").and_then(|node| node.section()).map(Mtu::read);
        let (mtu, core) = mtu.unwrap_or_default();
        Self { place, value: Cluster::read(section, mtu, outside), peer_checks, core }
    }
}

/// The idle timeouts of flows, by state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct FlowTimeouts {
    /// The timeout of a flow that has had only one packet: 1 s to 2 min. Default: 10 s.
    #[serde(serialize_with = "canonical::span")]
    pub new: Duration,
    /// The timeout of an established TCP flow: 10 s to 24 h. Default: 15 min. A flow is established
    /// once packets have arrived in eight different quarter-second intervals. Until a flow is
    /// established, its timeout is one eighth of this value.
    #[serde(serialize_with = "canonical::span")]
    pub established: Duration,
    /// The timeout of a TCP flow after a FIN or RST: 1 s to 10 min. Default: 10 s.
    #[serde(serialize_with = "canonical::span")]
    pub closing: Duration,
    /// The timeout for flows that use UDP or any other protocol: 1 s to 24 h. Default: 60 s.
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
    // The maximum table size is itself prime, so the search always finds a prime within the range.
    let next = (size..).find(|&size| is_prime(size)).unwrap_or(DEFAULT_TABLE_SIZE);
    node.wrong((
        format!("\"table_size\" must be a prime number, got {size}"),
        format!("the next prime is {next}"),
    ))
}

/// Returns `true` if a number is prime. Tries all odd divisors up to the square root. For any
/// allowed table size, these are at most 2,048 divisors.
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
const HASH_KEY_FILE: Expected =
    Expected::new("a file with 32 hex digits, the same on all machines").example("\"secrets/hash.key\"");
const HASH_KEY: &str = "the file must hold 32 hex digits, not all 0, and be the same on all machines of the cluster; create it with \
                        umask 077; openssl rand -hex 16 > FILE";

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
