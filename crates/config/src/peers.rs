//! Builds a pool from the machines of each shard. These pools do not appear in the configuration
//! files.
//!
//! Each shard with more than one machine gets a [`Pool`] of all its machines, with GRE
//! encapsulation and the checks in `cluster.peer_checks`. The crate `forwarder` sends fragments to
//! these peers. Source: Eisenbud et al., *Maglev*, NSDI 2016, §4.3 ("a special backend pool
//! consisting of all Maglevs within the cluster").

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use config_text::{At, Place, Report};

use super::check::{Check, Via};
use super::encapsulation::Encapsulation;
use super::machine::Machine;
use super::pool::{Backend, Member, Pool};
use super::sections::Sections;

/// Returns `true` if the name belongs to a pool of peers. Peers are health-checked like backends,
/// but they are not backends.
#[must_use]
pub fn is_of_peers(pool: &str) -> bool {
    pool.starts_with(POOL)
}

/// Returns a pool of peers for each shard that has more than one machine. The key is the shard
/// name.
pub(super) fn pools(machines: &[Machine], checks: &[Arc<Check>]) -> BTreeMap<Arc<str>, Arc<Pool>> {
    let mut shards: BTreeMap<Arc<str>, Vec<&Machine>> = BTreeMap::new();
    for machine in machines {
        if let Some(shard) = machine.shard() {
            shards.entry(shard.into()).or_default().push(machine);
        }
    }
    shards.retain(|_, machines| machines.len() > 1);
    let checks: Arc<[_]> = checks.into();
    let pool = |(shard, machines): (Arc<str>, Vec<&Machine>)| {
        let name: Arc<str> = format!("{POOL}{shard}").into();
        let members = machines.iter().filter_map(|machine| member(machine, &name, &checks)).collect();
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

fn member(machine: &Machine, pool: &Arc<str>, checks: &Arc<[Arc<Check>]>) -> Option<Member> {
    let backend = Backend { name: machine.name().into(), address: own_address(machine)? };
    Some(Member {
        backend: Arc::new(backend),
        leaf: Arc::clone(pool),
        encapsulation: Arc::new(Encapsulation::for_peers()),
        ring_name: None,
        weight: 1,
        checks: Arc::clone(checks),
    })
}

/// Returns the first address of a machine, at which the machine receives packets from peers.
fn own_address(machine: &Machine) -> Option<IpAddr> {
    machine.addresses.first().copied()
}

/// Warns about peers without health checks. If such a machine fails, its share of the fragments is
/// lost.
pub(super) fn warn_of_unchecked(peers: &BTreeMap<Arc<str>, Arc<Pool>>, cluster: &Place, report: &Report) {
    let unchecked = |pool: &&Arc<Pool>| pool.members.iter().all(|member| member.checks.is_empty());
    let Some(shard) = peers.values().find(unchecked).and_then(|pool| pool.shard.as_ref()) else { return };
    let place = cluster.key("peer_checks");
    let message = format!("shard \"{shard}\" has several machines, but no peer checks");
    let help =
        "name checks with via = \"backend\" in cluster.peer_checks; fragments for a failed machine are lost";
    report.warning(&place, (message, help));
}

/// Returns the checks with these names, without duplicates. Reports checks that probe through the
/// VIP, with `direct` as the help line.
pub(super) fn checks(sections: &Sections<'_>, names: &[At<Arc<str>>], direct: &str) -> Vec<Arc<Check>> {
    let (known, report) = (&sections.checks, sections.report);
    let mut found = Vec::with_capacity(names.len());
    for name in names {
        match known.get(&name.value) {
            None => report.unknown(name, known.keys(), "check"),
            Some(draft) => match &draft.value {
                Some(check) if check.via == Via::Vip => {
                    let message = format!("check \"{}\" probes through the VIP", name.value);
                    report.error(&name.place, (message, direct));
                }
                check => found.extend(check.clone()),
            },
        }
    }
    found
}

/// The prefix of the pool name. The prefix contains `@`, which is not allowed in configured names.
const POOL: &str = "peers@";
/// The help line for a peer check that probes through the VIP.
pub(super) const DIRECT: &str =
    "use a check with via = \"backend\"; machines do not probe each other through a VIP";
