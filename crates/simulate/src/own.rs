//! Converts a user's configuration to a simulated cluster, and a change to this configuration to a
//! rollout.
//!
//! [`clusters`] returns a [`Cluster`] for each pool that services use before or after the change.
//! The model does not include keyed pools (their requests are not connections), other clusters,
//! fallback pools, health checks and slow start. A backend counts as the same server if its name
//! and address have not changed. Like the load balancer, the simulation hashes only the name of a
//! backend.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use config::{Config, Pool, Protocol, Service, Vip};

use crate::plan::{Cluster, Rollout};
use crate::scenario::{Backend, BackendState, FlowTables, Machine, Version};

/// Returns one cluster for each pool that services of `old` use. If `new` is given, returns only
/// clusters for pools that the change affects. If `only` is given, returns only the cluster for the
/// pool that has this name before or after the change.
#[must_use]
pub fn clusters(old: &Config, new: Option<&Config>, only: Option<&str>) -> Vec<Cluster> {
    let wanted =
        |pair: &Pair<'_>| only.is_none_or(|only| [pair.from, pair.to].iter().any(|pool| *pool.name == *only));
    let pairs = pairs(old, new).into_iter().filter(wanted);
    let clusters = pairs.map(|pair| cluster(old, new, &pair));
    clusters.filter(|cluster| new.is_none() || cluster.change.is_some()).collect()
}

/// Returns the names of the pools that a configuration's services use.
#[must_use]
pub fn pools(config: &Config) -> BTreeSet<Arc<str>> {
    let services = config.vips().iter().flat_map(|vip| &vip.services).filter(|service| !is_keyed(service));
    services.map(|service| Arc::clone(&service.pool.name)).collect()
}

/// The pools of a service before and after a change.
struct Pair<'a> {
    from: &'a Pool,
    to: &'a Pool,
    vip: &'a str,
}

/// Returns the pools of each service before and after the change. If several services have the same
/// pools on the same machines, their pools are returned once.
fn pairs<'a>(old: &'a Config, new: Option<&'a Config>) -> Vec<Pair<'a>> {
    let mut found = BTreeMap::new();
    for vip in old.vips() {
        for service in vip.services.iter().filter(|service| !is_keyed(service)) {
            let Some(after) = new.map_or(Some(service), |new| namesake(new, vip, service)) else { continue };
            let pair = Pair { from: &service.pool, to: &after.pool, vip: &vip.name };
            let key = (
                &*pair.from.name,
                &*pair.to.name,
                machines(old, &vip.name),
                new.map(|new| machines(new, &vip.name)),
            );
            found.entry(key).or_insert(pair);
        }
    }
    found.into_values().collect()
}

/// Returns the service in the new configuration that has the same VIP name, protocol and ports.
fn namesake<'a>(new: &'a Config, vip: &Vip, service: &Service) -> Option<&'a Service> {
    let vip = new.vips().iter().find(|other| other.name == vip.name)?;
    let same = |other: &&Service| other.protocol == service.protocol && other.ports == service.ports;
    vip.services.iter().find(same).filter(|other| !is_keyed(other))
}

fn is_keyed(service: &Service) -> bool {
    service.protocol == Protocol::Udp && service.pool.kv.is_some()
}

/// Returns the names of the machines that serve a VIP.
fn machines(config: &Config, vip: &str) -> BTreeSet<String> {
    let serves = |machine: &&config::Machine| config.vips_of(machine).any(|served| *served.name == *vip);
    config.machines().iter().filter(serves).map(|machine| machine.name().to_owned()).collect()
}

fn cluster(old: &Config, new: Option<&Config>, pair: &Pair<'_>) -> Cluster {
    let servers = servers(pair);
    let timeouts = old.cluster().flow_timeouts;
    let version = version(old, &servers, pair.from, BackendState::Gone);
    let before = machines(old, pair.vip);
    let after = new.map_or_else(|| before.clone(), |new| machines(new, pair.vip));
    let names: Vec<&String> = before.union(&after).collect();
    let changing = |from: &BTreeSet<String>, to: &BTreeSet<String>| {
        let changes = |name: &&String| to.contains(*name) && !from.contains(*name);
        names.iter().enumerate().filter(|(_, name)| changes(name)).map(|(place, _)| place).collect::<Vec<_>>()
    };
    let (joining, leaving) = (changing(&before, &after), changing(&after, &before));
    let change = new.map(|new| {
        let reloaded = self::version(new, &servers, pair.to, BackendState::Draining);
        let drained = self::version(new, &servers, pair.to, BackendState::Gone);
        let drained = Some(drained).filter(|drained| *drained != reloaded);
        Rollout { reloaded, drained, drain_ms: millis(new.cluster().drain_time), joining, leaving }
    });
    let change = change.filter(|change| {
        change.reloaded != version || !change.joining.is_empty() || !change.leaving.is_empty()
    });
    let is_there = |name: &&String| Machine { name: (*name).clone(), is_there: before.contains(*name) };
    Cluster {
        label: label(pair),
        machines: names.iter().map(is_there).collect(),
        backends: backends(&servers),
        version,
        flow_tables: FlowTables {
            places: None,
            idle_ms: millis(timeouts.established),
            closing_ms: millis(timeouts.closing),
        },
        change,
    }
}

fn label(pair: &Pair<'_>) -> String {
    if pair.from.name == pair.to.name {
        format!("pool {}", pair.from.name)
    } else {
        format!("pool {}, then {}", pair.from.name, pair.to.name)
    }
}

type Server = (Arc<str>, IpAddr);

/// Returns the servers of the old pool and of the new pool, sorted by name.
fn servers(pair: &Pair<'_>) -> Vec<Server> {
    let members = pair.from.members.iter().chain(&pair.to.members);
    let servers = members.map(|member| (Arc::clone(&member.backend.name), member.backend.address));
    servers.collect::<BTreeSet<_>>().into_iter().collect()
}

/// Returns the backends. If two servers have the same name, the report shows each name together
/// with the address.
fn backends(servers: &[Server]) -> Vec<Backend> {
    let shown = |server: &Server| {
        let (name, address) = server;
        let is_alone = servers.iter().filter(|other| other.0 == *name).count() == 1;
        if is_alone { name.to_string() } else { format!("{name}@{address}") }
    };
    let backend = |server: &Server| Backend { name: shown(server), hash_name: server.0.to_string() };
    servers.iter().map(backend).collect()
}

/// Creates a simulated configuration [`Version`], which consists of the hash key, the table size
/// and the state of each server. Servers that are not in the pool get the state `absent`.
fn version(config: &Config, servers: &[Server], pool: &Pool, absent: BackendState) -> Version {
    let members = pool.members.iter();
    let weights: BTreeMap<Server, u32> = members
        .map(|member| ((Arc::clone(&member.backend.name), member.backend.address), member.weight))
        .collect();
    let state = |server: &Server| weights.get(server).map_or(absent, |weight| BackendState::Serving(*weight));
    let cluster = config.cluster();
    let states = servers.iter().map(state).collect();
    Version { key: *cluster.hash_key.bytes(), table_size: cluster.table_size, states }
}

fn millis(time: std::time::Duration) -> u32 {
    u32::try_from(time.as_millis()).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::owners::{Hashing, owners};

    const FILE: &str = r#"
[cluster]
name = "c"
hash_key_file = "hash.key"
table_size = 1009
drain_time = "30s"
[machine.lb1]
addresses = ["192.0.2.1"]
interfaces = ["eth0"]
[machine.lb2]
addresses = ["192.0.2.2"]
interfaces = ["eth0"]
[pool.web]
backends = [
    { name = "b1", address = "198.18.1.1" },
    { name = "b10", address = "198.18.1.10", weight = 3 },
    { name = "b2", address = "198.18.1.2", weight = 2 },
]
[pool.spare]
backends = [{ name = "s1", address = "198.18.2.1" }, { name = "s2", address = "198.18.2.2" }]
[pool.all]
pools = [{ pool = "web", weight = 2 }, { pool = "spare" }]
[vip.www]
addresses = ["203.0.113.10"]
services = [{ ports = [80], protocol = "tcp", pool = "all" }, { ports = [81], protocol = "tcp", pool = "web" }]
"#;

    fn config(text: &str) -> Config {
        let key = |_: &_| Ok("00112233445566778899aabbccddeeff".to_owned());
        config::parse(text, Path::new("lb.toml"), &key).unwrap_or_else(|problems| panic!("{problems}")).0
    }

    fn changed(from: &str, to: &str) -> Vec<Cluster> {
        let text = FILE.replace(from, to);
        assert_ne!(text, FILE);
        clusters(&config(FILE), Some(&config(&text)), None)
    }

    #[test]
    fn cluster_tables_match_the_tables_of_the_product() {
        let config = config(FILE);
        let compiled = compile::compile_file(&config, "lb1").unwrap();
        let clusters = clusters(&config, None, None);
        assert_eq!(clusters.len(), 2);
        for cluster in clusters {
            let pools = compiled.index.pools();
            let (_, pool) = pools.into_iter().find(|(view, _)| cluster.label.ends_with(&*view.pool)).unwrap();
            let table = pool.table.as_ref().unwrap();
            let names: Vec<&[u8]> = table.backends().map(|backend| backend.name).collect();
            let theirs = table.iter().map(|rank| names[rank.index_by_name()]);
            let ours = owners(Hashing::Maglev, &cluster.backends, &cluster.version).unwrap();
            assert!(
                ours.iter()
                    .map(|owner| cluster.backends[usize::from(*owner)].hash_name.as_bytes())
                    .eq(theirs)
            );
        }
    }

    #[test]
    fn removed_backends_drain_and_are_then_gone() {
        use BackendState::{Draining, Gone, Serving};
        let [all, web] = &changed("{ name = \"b1\", address = \"198.18.1.1\" },", "")[..] else { panic!() };
        assert_eq!((&*all.label, &*web.label), ("pool all", "pool web"));
        let change = web.change.as_ref().unwrap();
        assert_eq!(web.version.states, [Serving(1), Serving(3), Serving(2)]);
        assert_eq!(change.reloaded.states, [Draining, Serving(3), Serving(2)]);
        assert_eq!(change.drained.as_ref().unwrap().states, [Gone, Serving(3), Serving(2)]);
        assert_eq!((change.drain_ms, change.joining.len() + change.leaving.len()), (30_000, 0));
    }

    #[test]
    fn same_name_at_another_address_is_another_server() {
        let [all, _] = &changed("198.18.1.2\"", "198.18.9.2\"")[..] else { panic!() };
        let names: Vec<&str> = all.backends.iter().map(|backend| &*backend.name).collect();
        assert_eq!(names, ["b1", "b10", "b2@198.18.1.2", "b2@198.18.9.2", "s1", "s2"]);
        assert!(all.backends.iter().filter(|backend| backend.hash_name == "b2").count() == 2);
    }

    #[test]
    fn added_or_removed_machines_are_a_change() {
        let machine = "[machine.lb2]\naddresses = [\"192.0.2.2\"]\ninterfaces = [\"eth0\"]\n";
        let gone = changed(machine, "");
        assert_eq!(
            gone.iter().map(|one| one.change.as_ref().unwrap().leaving.clone()).collect::<Vec<_>>(),
            [[1], [1]]
        );
        let come = changed(
            "[machine.lb2]",
            "[machine.lb0]\naddresses = [\"192.0.2.3\"]\ninterfaces = [\"eth0\"]\n[machine.lb2]",
        );
        assert_eq!(come[0].change.as_ref().unwrap().joining, [0]);
        assert!(!come[0].machines[0].is_there && come[0].machines[1].is_there);
    }

    #[test]
    fn another_pool_for_a_service_is_a_change_of_its_backends() {
        let [one] = &changed(
            "[81], protocol = \"tcp\", pool = \"web\"",
            "[81], protocol = \"tcp\", pool = \"spare\"",
        )[..] else {
            panic!()
        };
        assert_eq!((&*one.label, one.backends.len()), ("pool web, then spare", 5));
        assert_eq!(changed("name = \"c\"", "name = \"d\""), []);
        assert_eq!(changed("table_size = 1009", "table_size = 2003").len(), 2);
        let web = FILE.replace("table_size = 1009", "table_size = 2003");
        assert_eq!(clusters(&config(FILE), Some(&config(&web)), Some("web")).len(), 1);
        assert_eq!(pools(&config(FILE)).iter().map(|name| &**name).collect::<Vec<_>>(), ["all", "web"]);
    }
}
