//! The table `kv.cache` of a pool, which enables a cache from which this machine answers reads of
//! hot keys.
//!
//! The crate `kv-switch` decides which values are cached and for how long. The module `strict`
//! checks whether `strict = true` is possible.

use std::time::Duration;

use config_text::{Expected, Node};
use serde::Serialize;

use super::canonical;

/// The settings of the cache for hot values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct KvCache {
    /// The memory for cached values in bytes. All packet threads share this memory. Required.
    pub memory: u64,
    /// The time for which a cached value is valid. A client never receives a value that is older
    /// than this time plus one round trip to the server. Default: 10 ms.
    #[serde(serialize_with = "canonical::span")]
    pub lease: Duration,
    /// The maximum number of concurrent fetches by one packet thread from one server. Default: 16.
    pub fills_per_server: u16,
    /// The maximum number of bytes per second that one source receives from the cache. Requests
    /// from a source that has reached the limit are forwarded to the server. Default: 32 MiB.
    pub source_bytes: u64,
    /// `true` if a cached value must never be older than the latest write whose reply this machine
    /// has forwarded. All writes and their replies then pass through this machine. `true` is not
    /// allowed if several machines serve the VIP, or with replicas. Default: `false`.
    pub strict: bool,
}

impl KvCache {
    /// Reads the value of `cache`, which is a table or `false`.
    pub(super) fn read(node: Option<Node<'_>>, is_memcached: bool) -> Option<Self> {
        let node = node?;
        let mut section = node.section_or_false()?;
        let memory = section.required("memory", MEMORY).and_then(|node| {
            let fits = |bytes: &u64| (LEAST_MEMORY..=MOST_MEMORY).contains(bytes);
            node.parse(MEMORY, |text| bytes(text).filter(fits))
        });
        let lease = section
            .or("lease", LEASE, |node| node.duration(Duration::from_millis(1)..=Duration::from_secs(1)));
        let fills_per_server = section.or("fills_per_server", FILLS, |node| node.number(1..=MOST_FILLS));
        let source_bytes = section.or("source_bytes", DEFAULT_SOURCE, |node| {
            let fits = |bytes: &u64| (LEAST_SOURCE..=MOST_MEMORY).contains(bytes);
            node.parse(SOURCE, |text| bytes(text).filter(fits))
        });
        let strict = section.or("strict", false, |node| node.boolean());
        section.finish();
        if !is_memcached {
            node.needs("protocol = \"memcached\"");
        }
        Some(Self { memory: memory?, lease, fills_per_server, source_bytes, strict })
    }
}

/// Parses a size: a whole number with the unit KiB, MiB or GiB.
fn bytes(text: &str) -> Option<u64> {
    let units = [("KiB", 1 << 10), ("MiB", 1 << 20), ("GiB", 1 << 30)];
    let (digits, unit) = units.iter().find_map(|(name, unit)| Some((text.strip_suffix(name)?, unit)))?;
    let is_number = !digits.is_empty() && digits.bytes().all(|digit| digit.is_ascii_digit());
    digits.parse::<u64>().ok().filter(|_| is_number)?.checked_mul(*unit)
}

const LEASE: Duration = Duration::from_millis(10);
const FILLS: u16 = 16;
const MOST_FILLS: u16 = 64;
const LEAST_MEMORY: u64 = 1 << 20;
const MOST_MEMORY: u64 = 64 << 30;
const LEAST_SOURCE: u64 = 64 << 10;
const DEFAULT_SOURCE: u64 = 32 << 20;
const MEMORY: Expected = Expected::new("a size from \"1MiB\" to \"64GiB\"").example("\"256MiB\"");
const SOURCE: Expected = Expected::new("a size from \"64KiB\" to \"64GiB\"").example("\"32MiB\"");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_a_whole_number_and_a_unit() {
        for (text, wanted) in [
            ("64MiB", Some(64 << 20)),
            ("1KiB", Some(1_024)),
            ("2GiB", Some(2 << 30)),
            ("0MiB", Some(0)),
            ("", None),
            ("MiB", None),
            ("64", None),
            ("64MB", None),
            ("64 MiB", None),
            ("+6MiB", None),
            ("1_0MiB", None),
            ("1.5MiB", None),
            ("99999999999999999999GiB", None),
            ("18446744073709551615KiB", None),
        ] {
            assert_eq!(bytes(text), wanted, "{text}");
        }
    }
}
