//! `cache` of a pool's `kv`: reads of hot keys are answered from copies.
//!
//! In: the table. Out: [`KvCache`]. Not here: what a copy is and how long it is true (`kv-switch`), who takes its memory (`sluicegate`),
//! where `strict` may not stand (`strict`).

use std::time::Duration;

use config_text::Node;
use serde::Serialize;

use super::canonical;

/// How reads of hot keys are answered by this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct KvCache {
    /// Bytes of copies, in all packet threads together. Required.
    pub memory: u64,
    /// How long a copy is taken for true: no read is older than that and a round trip to the server. Default 10 ms.
    #[serde(serialize_with = "canonical::span")]
    pub lease: Duration,
    /// Values that each packet thread may be asking one server for. Default 16.
    pub fills_per_server: u16,
    /// Bytes a second that copies may send to one source; what it asks for beyond is forwarded. Default 32 MiB.
    pub source_bytes: u64,
    /// No copy is older than a write whose answer this machine has sent on: such writes pass it both ways. Not where several machines have
    /// the VIP, nor beside replicas. Default `false`.
    pub strict: bool,
}

impl KvCache {
    /// A table, or `false`.
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
            node.refuse("nothing here: it is for protocol = \"memcached\"");
        }
        Some(Self { memory: memory?, lease, fills_per_server, source_bytes, strict })
    }
}

/// A whole number of bytes with KiB, MiB or GiB.
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
const MEMORY: &str = "a whole number with KiB, MiB or GiB, from \"1MiB\" to \"64GiB\"";
const SOURCE: &str = "a whole number with KiB, MiB or GiB, from \"64KiB\" to \"64GiB\"";

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
