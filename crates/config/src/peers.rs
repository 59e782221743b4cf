//! The machines of a shard as each other's peers: a pool that is in no file.
//!
//! In: machines, and the checks that `cluster.peer_checks` names. Out: for each shard with more than one machine a [`Pool`] of
//! all of them, carried to by GRE.
//! Not here: what is sent to peers (`forwarder`), which of them is this machine.
//! Source: paper §4.3 (a special backend pool consisting of all Maglevs within the cluster).

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use config_text::{At, Place, Report};

use super::check::{Check, Via};
use super::encapsulation::Encapsulation;
use super::machine::Machine;
use super::pool::{Backend, Member, Pool};
use super::sections::Sections;

/// Whether a pool is that of a shard's machines: they are checked as backends are, and are none.
#[must_use]
pub fn is_of_peers(pool: &str) -> bool {
    pool.starts_with(POOL)
}

/// The peers of each shard that has any, by its name.
pub(super) fn pools(machines: &[Machine], checks: &[Arc<Check>]) -> BTreeMap<Arc<str>, Arc<Pool>> {
    let mut shards: BTreeMap<Arc<str>, Vec<&Machine>> = BTreeMap::new();
    for machine in machines {
        if let Some(shard) = machine.shard() {
            shards.entry(shard.into()).or_default().push(machine);
        }
    }
    shards.retain(|_, machines| machines.len() > 1);
    let pool = |(shard, machines): (Arc<str>, Vec<&Machine>)| {
        let name: Arc<str> = format!("{POOL}{shard}").into();
        let members = machines.iter().filter_map(|machine| member(machine, &name, checks)).collect();
        let pool = Pool {
            name,
            shard: Some(Arc::clone(&shard)),
            members,
            fallback: None,
            slow_start: None,
            max_down: None,
            kv: None,
        };
        (shard, Arc::new(pool))
    };
    shards.into_iter().map(pool).collect()
}

fn member(machine: &Machine, pool: &Arc<str>, checks: &[Arc<Check>]) -> Option<Member> {
    let backend = Backend { name: machine.name().into(), address: own_address(machine)? };
    Some(Member {
        backend: Arc::new(backend),
        leaf: Arc::clone(pool),
        encapsulation: Arc::new(Encapsulation::for_peers()),
        ring_name: None,
        weight: 1,
        checks: checks.into(),
    })
}

/// Where a machine takes what its peers send: its first address.
fn own_address(machine: &Machine) -> Option<IpAddr> {
    machine.addresses.first().copied()
}

/// A machine without checks takes its share of the fragments with it when it dies.
pub(super) fn warn_of_unchecked(peers: &BTreeMap<Arc<str>, Arc<Pool>>, cluster: &Place, report: &Report) {
    let unchecked = |pool: &&Arc<Pool>| pool.members.iter().all(|member| member.checks.is_empty());
    let Some(shard) = peers.values().find(unchecked).and_then(|pool| pool.shard.as_ref()) else { return };
    let place = cluster.key("peer_checks");
    let found =
        format!("none, but shard \"{shard}\" has several machines: one that dies loses its fragments");
    report.warning(&place, found, "names of checks with via = \"backend\"");
}

/// The checks that are named, each once; one through the tunnel is reported, and that `direct` is allowed.
pub(super) fn checks(sections: &Sections<'_>, names: &[At<Arc<str>>], direct: &str) -> Vec<Arc<Check>> {
    let (known, report) = (&sections.checks, sections.report);
    let mut found = Vec::with_capacity(names.len());
    for name in names {
        match known.get(&name.value) {
            None => report.unknown(name, known.keys(), "a section [check.NAME]"),
            Some(draft) => match &draft.value {
                Some(check) if check.via == Via::Vip => {
                    report.error(&name.place, format!("\"{}\", a check via a VIP", name.value), direct);
                }
                check => found.extend(check.clone()),
            },
        }
    }
    found
}

/// What its name begins with. No name of a file has such a sign, so none is taken.
const POOL: &str = "peers@";
/// What checks of machines may be.
pub(super) const DIRECT: &str = "a check with via = \"backend\": machines have no VIP among themselves";
