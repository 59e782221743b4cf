//! Lists keys and values that were renamed. A configuration with an old name is rejected with a
//! message that contains the new name.

use config_text::Renamed;

const fn renamed(path: &'static str, old: &'static str, new: &'static str) -> Renamed {
    Renamed { path, old, new }
}

/// All renamed keys and values. The path refers to the table of a renamed key, or to the key of a
/// renamed value.
pub(super) const RENAMED: &[Renamed] = &[
    renamed("io", "own_ports", "source_ports"),
    renamed("io.icmp", "replies_to_source", "replies_per_source"),
    renamed("io.icmp", "errors_of_source", "errors_per_source"),
    renamed("cluster", "arrivals", "upstream_tunnels"),
    renamed("pool.*.kv.path", "through", "proxied"),
    renamed("vip.*.announce", "anchors", "backups"),
    renamed("bgp", "anchor_med", "backup_med"),
    renamed("bgp", "longest_hold_down", "max_hold_down"),
    renamed("bgp.peers.[]", "longest_retry", "max_retry"),
];
