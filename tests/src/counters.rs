//! Reads the counters of a balancer from the JSON response of its admin socket.
//!
//! A missing counter is read as 0, so that tests do not depend on the exact set of counters.

use serde_json::Value;

/// The values of all counters at one time.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Counters(pub Value);

impl Counters {
    /// Returns the number at a path such as `["xdp", "redirected"]`, or 0 if the path does not
    /// exist.
    #[must_use]
    pub fn at(&self, path: &[&str]) -> u64 {
        path.iter().try_fold(&self.0, |value, key| value.get(key)).and_then(Value::as_u64).unwrap_or_default()
    }

    /// Returns the sum of the counter at `path` over all packet threads.
    #[must_use]
    pub fn over_threads(&self, path: &[&str]) -> u64 {
        let threads = self.0.get("threads").and_then(Value::as_array);
        threads.into_iter().flatten().map(|thread| Self(thread.clone()).at(path)).sum()
    }

    /// Returns the number of packet threads.
    #[must_use]
    pub fn threads(&self) -> usize {
        self.0.get("threads").and_then(Value::as_array).map_or(0, Vec::len)
    }

    /// Returns the number of packets that the XDP program redirected to sockets.
    #[must_use]
    pub fn redirected(&self) -> u64 {
        self.at(&["xdp", "redirected"])
    }

    /// Returns the number of packets that the packet threads received.
    #[must_use]
    pub fn received(&self) -> u64 {
        self.over_threads(&["rx"])
    }

    /// Returns the number of packets that the packet threads sent.
    #[must_use]
    pub fn sent(&self) -> u64 {
        self.over_threads(&["tx"])
    }

    /// Returns the number of packets that the kernel dropped before a packet thread could receive
    /// them, because a receive ring was full, a fill ring was empty or a frame was too large.
    #[must_use]
    pub fn lost_before_threads(&self) -> u64 {
        // `rx_dropped` includes packets that found the fill ring empty.
        ["rx_dropped", "rx_ring_full", "rx_merged"]
            .iter()
            .map(|name| self.over_threads(&["socket", name]))
            .sum()
    }

    /// Returns the drops of all packet threads by drop reason. Reasons that never occurred are
    /// omitted.
    #[must_use]
    pub fn drops(&self) -> Vec<(String, u64)> {
        let threads = self.0.get("threads").and_then(Value::as_array);
        let mut sums = std::collections::BTreeMap::new();
        for drops in threads.into_iter().flatten().filter_map(|thread| thread.get("drops")?.as_object()) {
            for (reason, count) in drops {
                *sums.entry(reason.clone()).or_insert(0) += count.as_u64().unwrap_or_default();
            }
        }
        sums.into_iter().filter(|&(_, count)| count > 0).collect()
    }

    /// Returns the socket mode of each interface, as `(interface, mode)`.
    #[must_use]
    pub fn modes(&self) -> Vec<(String, String)> {
        let modes = self.0.get("mode").and_then(Value::as_object);
        modes
            .into_iter()
            .flatten()
            .map(|(name, mode)| (name.clone(), mode.as_str().unwrap_or("?").into()))
            .collect()
    }

    /// Returns the number of packets sent to a backend.
    #[must_use]
    pub fn to_backend(&self, name: &str) -> u64 {
        self.at(&["backends", name, "packets"])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_summed_and_default_to_zero() {
        let counters = Counters(serde_json::json!({
            "xdp": {"redirected": 7},
            "threads": [
                {"rx": 3, "tx": 2, "drops": {"no_vip": 1, "ttl": 0}, "socket": {"rx_dropped": 4}},
                {"rx": 4, "drops": {"no_vip": 2}},
            ],
            "mode": {"lb0": "copy"},
            "backends": {"b1": {"packets": 2}},
        }));
        assert_eq!((counters.redirected(), counters.received(), counters.sent()), (7, 7, 2));
        assert_eq!(counters.lost_before_threads(), 4);
        assert_eq!(counters.drops(), [("no_vip".into(), 3)]);
        assert_eq!(counters.modes(), [("lb0".into(), "copy".into())]);
        assert_eq!((counters.to_backend("b1"), counters.to_backend("b9")), (2, 0));
        assert_eq!(Counters::default().received(), 0);
    }
}
