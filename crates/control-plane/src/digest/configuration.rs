//! What a configuration says that machines must agree on, line by line, in one digest.
//!
//! In: a [`Config`]. Out: SHA-256 over the digests of its lines, sorted, each once.
//! Not here: `[machine]`, `[bgp]`, `[io]`, `[log]`, `[admin]`, which may differ.

use ::bgp::Attributes;
use sha2::{Digest, Sha256};

use super::{add, hex, of_key};
use crate::controller::{Keys, check_keys, encapsulation_keys};
use config::{
    Announce, Cluster, Config, Fallback, Hash, Member, Pool, Ports, PrefixGroup, RemotePool, Service,
    SourceList, Trace, Vip, format_duration,
};

pub(super) fn digest(config: &Config) -> [u8; 32] {
    let mut said = Said::default();
    said.cluster(config.cluster());
    for check in config.peer_checks() {
        said.say(["cluster", "peer_check", &check.name]);
    }
    for member in config.members() {
        let encapsulation = member.encapsulation();
        said.keys("encapsulation", encapsulation.name(), &encapsulation_keys(encapsulation));
    }
    for check in config.members().flat_map(Member::checks).chain(config.peer_checks()) {
        said.keys("check", &check.name, &check_keys(check, true));
    }
    config.pools().iter().for_each(|pool| said.pool(pool));
    config.groups().iter().for_each(|group| said.group(group));
    for remote in config.remotes() {
        said.all(["remote", remote.name(), "source"], remote.sources());
    }
    config.vips().iter().for_each(|vip| said.vip(vip));
    config.trace().into_iter().for_each(|trace| said.trace(trace));
    said.digest()
}

/// The digest of each line, in any order.
#[derive(Default)]
struct Said(Vec<[u8; 32]>);

impl Said {
    fn say<const N: usize>(&mut self, line: [&str; N]) {
        let mut sum = Sha256::new();
        add(&mut sum, line.map(str::as_bytes));
        self.0.push(sum.finalize().into());
    }

    /// A line for each of a set.
    fn all(&mut self, [section, name, key]: [&str; 3], values: impl IntoIterator<Item: ToString>) {
        self.say([section, name, key]);
        for value in values {
            self.say([section, name, key, &value.to_string()]);
        }
    }

    fn keys(&mut self, section: &str, name: &str, keys: &Keys) {
        for (key, value) in keys.lines() {
            self.say([section, name, key, &value]);
        }
    }

    fn digest(mut self) -> [u8; 32] {
        self.0.sort_unstable();
        self.0.dedup();
        let mut sum = Sha256::new_with_prefix(b"sluicegate agreed configuration, version 1\0");
        add(&mut sum, self.0.iter().map(<[u8; 32]>::as_slice));
        sum.finalize().into()
    }

    fn cluster(&mut self, cluster: &Cluster) {
        self.say(["cluster", "name", cluster.name()]);
        self.say(["cluster", "hash_key", &hex(&of_key(cluster.hash_key()))]);
        self.say(["cluster", "table_size", &cluster.table_size().to_string()]);
        self.say(["cluster", "watch", &cluster.watch().to_string()]);
        let timeouts = cluster.flow_timeouts();
        for (key, time) in [
            ("drain_time", cluster.drain_time()),
            ("flow_timeouts.new", timeouts.new_flow()),
            ("flow_timeouts.established", timeouts.established()),
            ("flow_timeouts.closing", timeouts.closing()),
            ("flow_timeouts.udp", timeouts.udp()),
        ] {
            self.say(["cluster", key, &format_duration(time)]);
        }
        let mtu = cluster.mtu();
        self.say(["cluster", "mtu.clients", &mtu.clients().to_string()]);
        self.say(["cluster", "mtu.core", &mtu.core().unwrap_or_default().to_string()]);
        if let Some(arrivals) = cluster.arrivals() {
            self.all(["cluster", "arrivals", "source"], arrivals.sources());
            self.say(["cluster", "arrivals", "kinds", &arrivals.kinds().bits().to_string()]);
        }
    }

    fn pool(&mut self, pool: &Pool) {
        let name = &**pool.name();
        self.say(["pool", name]);
        if let Some(shard) = pool.shard() {
            self.say(["pool", name, "shard", shard]);
        }
        if let Some(fallback) = pool.fallback() {
            self.fallback(name, fallback);
        }
        if let Some(time) = pool.slow_start() {
            self.say(["pool", name, "slow_start", &format_duration(time)]);
        }
        for member in pool.members() {
            self.member(["pool", name, "backend"], member);
        }
    }

    fn fallback(&mut self, pool: &str, fallback: &Fallback) {
        self.say(["pool", pool, "fallback", fallback.pool()]);
        self.say(["pool", pool, "fallback.below", &fallback.below().to_string()]);
        self.say(["pool", pool, "fallback.hold", &format_duration(fallback.hold())]);
    }

    fn member(&mut self, [section, pool, what]: [&str; 3], member: &Member) {
        let (name, address) = (&**member.backend().name(), member.backend().address().to_string());
        let (weight, encapsulation) = (member.weight().to_string(), member.encapsulation().name());
        self.say([section, pool, what, name, &address, member.leaf(), &weight, encapsulation]);
        for check in member.checks() {
            self.say([section, pool, what, name, "check", &check.name]);
        }
    }

    /// The first prefix of a family says where a VIP of the group is asked: here order counts.
    fn group(&mut self, group: &PrefixGroup) {
        self.all(["prefix_group", group.name(), "prefix"], group.prefixes());
        for first in [true, false].into_iter().filter_map(|ipv4| group.first(ipv4)) {
            self.say(["prefix_group", group.name(), "first", &first.to_string()]);
        }
    }

    fn vip(&mut self, vip: &Vip) {
        let name = &**vip.name();
        self.all(["vip", name, "address"], vip.shown_addresses());
        self.say(["vip", name, "fragments", &vip.fragments().to_string()]);
        if let Some(shard) = vip.shard() {
            self.say(["vip", name, "shard", shard]);
        }
        vip.services().iter().for_each(|service| self.service(name, service));
        let guard = vip.guard();
        for (key, list) in [("allow", guard.allow()), ("deny", guard.deny())] {
            if let Some(list) = list {
                self.all(["vip", name, key], SourceList::digests(list).iter().map(|part| hex(part)));
            }
        }
        self.say(["vip", name, "limits", &guard.limits().to_string()]);
        for remote in vip.remote_pools() {
            self.remote_pool(name, remote);
        }
        vip.announce().into_iter().for_each(|announce| self.announce(name, announce));
    }

    /// Which peers there are, each machine says for itself; when a VIP is announced, and how, is the cluster's.
    fn announce(&mut self, vip: &str, announce: &Announce) {
        self.say(["vip", vip, "min_serving", &announce.min_serving().to_string()]);
        self.say(["vip", vip, "return_serving", &announce.return_serving().to_string()]);
        self.say(["vip", vip, "announce.remotes", &announce.remotes().to_string()]);
        self.all(["vip", vip, "announce.peers"], announce.peers());
        self.all(["vip", vip, "anchors"], announce.anchors());
        self.all(["vip", vip, "aggregates"], announce.aggregates());
        let Attributes { med, local_pref, prepend, communities, large_communities } = announce.attributes();
        self.say(["vip", vip, "attributes", &format!("{med:?} {local_pref:?} {prepend}")]);
        self.all(["vip", vip, "communities"], communities.iter().map(|one| format!("{one:?}")));
        self.all(["vip", vip, "large_communities"], large_communities.iter().map(|one| format!("{one:?}")));
    }

    fn service(&mut self, vip: &str, service: &Service) {
        let hash = match service.hash() {
            Hash::FiveTuple => "5-tuple",
            Hash::Addresses => "addresses",
            Hash::Source => "source",
        };
        let ports = match service.ports() {
            Ports::Any => "any".to_owned(),
            Ports::Listed(ranges) => {
                let range =
                    |range: &std::ops::RangeInclusive<u16>| format!("{}-{}", range.start(), range.end());
                ranges.iter().map(range).collect::<Vec<_>>().join(",")
            }
        };
        let protocol = service.protocol().number().to_string();
        self.say(["vip", vip, "service", &protocol, &ports, service.pool().name(), hash]);
    }

    fn remote_pool(&mut self, vip: &str, remote: &RemotePool) {
        let pool = remote.pool();
        self.all(["elsewhere", vip, pool.name()], remote.ours());
        for (member, theirs) in pool.members().iter().zip(remote.theirs()) {
            self.member(["elsewhere", vip, pool.name()], member);
            self.say(["elsewhere", vip, pool.name(), member.backend().name(), "prefix", &theirs.to_string()]);
        }
    }

    fn trace(&mut self, trace: &Trace) {
        self.all(["trace", "", "receiver"], trace.receivers());
        self.say(["trace", "max_per_second", &trace.max_per_second().to_string()]);
    }
}
