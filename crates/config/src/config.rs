//! Defines the whole configuration, with methods that combine several sections.
//!
//! A [`Config`] is created only by reading files, and it is read-only. All its values have
//! therefore been checked, including public fields. Each section has its own module.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use super::admin::Admin;
use super::bgp::Bgp;
use super::check::Check;
use super::cluster::Cluster;
use super::health::Health;
use super::io::Io;
use super::log::Log;
use super::machine::Machine;
use super::pool::{Member, Pool};
use super::prefix_group::PrefixGroup;
use super::remote::Remote;
use super::source::Source;
use super::trace::Trace;
use super::vip::Vip;
use super::{peers, source};

/// A checked configuration. Every value is within its range, and every reference is resolved.
///
/// Two configurations are equal if they have the same content, even if the content is split into
/// files differently.
#[derive(Clone, Debug)]
pub struct Config {
    pub(super) content: Content,
    pub(super) sources: Vec<Source>,
    /// The digest of the secrets and certificates to which the configuration refers, or `None` if
    /// they were not read.
    pub(super) references: Option<[u8; 32]>,
}

/// The content of the configuration files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Content {
    pub(super) cluster: Cluster,
    pub(super) machines: Vec<Machine>,
    /// A pool of peers for each shard, which contains the machines of the shard.
    pub(super) peers: BTreeMap<Arc<str>, Arc<Pool>>,
    pub(super) peer_checks: Vec<Arc<Check>>,
    pub(super) io: Io,
    pub(super) health: Health,
    pub(super) log: Log,
    pub(super) admin: Admin,
    pub(super) trace: Option<Trace>,
    pub(super) bgp: Option<Bgp>,
    pub(super) pools: Vec<Arc<Pool>>,
    pub(super) groups: Vec<Arc<PrefixGroup>>,
    pub(super) remotes: Vec<Arc<Remote>>,
    pub(super) vips: Vec<Vip>,
}

impl PartialEq for Config {
    fn eq(&self, other: &Self) -> bool {
        self.content == other.content
    }
}

impl Eq for Config {}

impl Config {
    /// Returns the settings that all machines share.
    pub fn cluster(&self) -> &Cluster {
        &self.content.cluster
    }

    /// Returns all machines, sorted by name. The list is never empty.
    pub fn machines(&self) -> &[Machine] {
        &self.content.machines
    }

    /// Returns the machine with this name.
    pub fn machine(&self, name: &str) -> Option<&Machine> {
        self.content.machines.iter().find(|machine| machine.name() == name)
    }

    /// Returns a copy in which the machine `from` is called `to`, for comparison with a
    /// configuration that uses the other name.
    #[must_use]
    pub fn renamed(&self, from: &str, to: &str) -> Self {
        let name = |name: &Arc<str>| if **name == *from { Arc::from(to) } else { Arc::clone(name) };
        let Content { machines, peer_checks, bgp, vips, .. } = &self.content;
        let mut machines: Vec<Machine> = machines.iter().map(|one| one.renamed(name)).collect();
        machines.sort_by(|one, other| one.name().cmp(other.name()));
        let content = Content {
            peers: peers::pools(&machines, peer_checks),
            machines,
            bgp: bgp.as_ref().map(|bgp| bgp.renamed(name)),
            vips: vips.iter().map(|vip| vip.renamed(name)).collect(),
            ..self.content.clone()
        };
        Self { content, sources: self.sources.clone(), references: self.references }
    }

    /// Returns all machines in the shard of `machine`, including `machine`. Returns `None` if
    /// the shard has no other machine.
    pub fn peers(&self, machine: &Machine) -> Option<&Arc<Pool>> {
        self.content.peers.get(machine.shard()?)
    }

    /// Returns the checks that the machines of a shard run on each other.
    pub fn peer_checks(&self) -> &[Arc<Check>] {
        &self.content.peer_checks
    }

    /// Returns the packet I/O settings.
    pub fn io(&self) -> &Io {
        &self.content.io
    }

    /// Returns the settings of the machine for health checks.
    pub fn health(&self) -> &Health {
        &self.content.health
    }

    /// Returns the log settings.
    pub fn log(&self) -> Log {
        self.content.log
    }

    /// Returns the settings of the admin interface.
    pub fn admin(&self) -> &Admin {
        &self.content.admin
    }

    /// Returns the settings of the packet tracer. Returns `None` if no trace reports are sent.
    pub fn trace(&self) -> Option<&Trace> {
        self.content.trace.as_ref()
    }

    /// Returns the BGP settings, or `None` if BGP is not used.
    pub fn bgp(&self) -> Option<&Bgp> {
        self.content.bgp.as_ref()
    }

    /// Returns all flattened pools, sorted by name.
    pub fn pools(&self) -> &[Arc<Pool>] {
        &self.content.pools
    }

    /// Returns the flattened pool with this name.
    pub fn pool(&self, name: &str) -> Option<&Arc<Pool>> {
        let at = self.content.pools.binary_search_by(|pool| (*pool.name).cmp(name)).ok()?;
        self.content.pools.get(at)
    }

    /// Returns all destinations of forwarded packets except peers: the members of all pools, and
    /// the remote clusters to which VIPs refer.
    pub fn members(&self) -> impl Iterator<Item = &Member> {
        let remotes = self.content.vips.iter().flat_map(|vip| &vip.remote_pools).map(|remote| &remote.pool);
        self.content.pools.iter().chain(remotes).flat_map(|pool| &pool.members)
    }

    /// Returns all prefix groups, sorted by name.
    pub fn groups(&self) -> &[Arc<PrefixGroup>] {
        &self.content.groups
    }

    /// Returns the remote clusters, sorted by name.
    pub fn remotes(&self) -> &[Arc<Remote>] {
        &self.content.remotes
    }

    /// Returns `true` if `machine` listens on this address from `[admin]`. A machine does not
    /// listen on addresses of other machines.
    pub fn listens(&self, machine: &Machine, address: SocketAddr) -> bool {
        let elsewhere =
            |other: &Machine| other.name() != machine.name() && other.addresses.contains(&address.ip());
        !self.content.machines.iter().any(elsewhere)
    }

    /// Returns the VIPs, sorted by name. A configuration without VIPs is allowed, but causes a
    /// warning.
    pub fn vips(&self) -> &[Vip] {
        &self.content.vips
    }

    /// Returns the VIPs that a machine serves: the VIPs of its shard, and the VIPs without a shard.
    pub fn vips_of(&self, machine: &Machine) -> impl Iterator<Item = &Vip> {
        let shard = machine.shard().map(str::to_owned);
        self.content
            .vips
            .iter()
            .filter(move |vip| vip.shard().is_none_or(|own| shard.as_deref() == Some(own)))
    }

    /// Returns the files that the configuration was read from: the first file, the included files,
    /// then the prefix lists.
    pub fn sources(&self) -> &[Source] {
        &self.sources
    }

    /// Returns `true` if `other` has the same files with the same content, in which case a reload
    /// keeps the generation number.
    #[must_use]
    pub fn is_same_text_as(&self, other: &Self) -> bool {
        self.sources == other.sources && self.digest() == other.digest() && self == other
    }

    /// Returns the SHA-256 of the files, the hash key and the CA certificates. The hash key cannot
    /// be derived from the result. Machine certificates are not included. After
    /// [`load_without_secrets`](crate::load_without_secrets), only the files are included.
    ///
    /// To compare machines of a cluster, use the digest of the crate `control-plane`.
    pub fn digest(&self) -> [u8; 32] {
        source::digest(&self.sources, self.references.as_ref())
    }
}
