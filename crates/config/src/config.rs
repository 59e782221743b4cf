//! The whole configuration, and what its sections say together.
//!
//! In: what `drafts` makes of the files. Out: [`Config`], which only reading makes and only gives away by reference: so what its
//! parts say in their public fields is checked.
//! Not here: what one section says (its own file), comparing two configurations (the control plane).

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use super::admin::Admin;
use super::bgp::Bgp;
use super::check::Check;
use super::cluster::Cluster;
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

/// One configuration, checked: every value in its range, every reference resolved.
///
/// Two are equal when they say the same, whichever files they came from.
#[derive(Clone, Debug)]
pub struct Config {
    pub(super) content: Content,
    pub(super) sources: Vec<Source>,
    /// Of what the files refer to; `None`: it was not read.
    pub(super) references: Option<[u8; 32]>,
}

/// What the files say, whichever they are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Content {
    pub(super) cluster: Cluster,
    pub(super) machines: Vec<Machine>,
    /// By shard.
    pub(super) peers: BTreeMap<Arc<str>, Arc<Pool>>,
    pub(super) peer_checks: Vec<Arc<Check>>,
    pub(super) io: Io,
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
    /// What all machines agree on.
    pub fn cluster(&self) -> &Cluster {
        &self.content.cluster
    }

    /// The machines in the order of their names, at least one.
    pub fn machines(&self) -> &[Machine] {
        &self.content.machines
    }

    /// The machine of that name.
    pub fn machine(&self, name: &str) -> Option<&Machine> {
        self.content.machines.iter().find(|machine| machine.name() == name)
    }

    /// The same with machine `from` called `to` wherever it is named, as for a comparison with a file that calls it so.
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

    /// The machines of a machine's shard, itself among them, when there are others.
    pub fn peers(&self, machine: &Machine) -> Option<&Arc<Pool>> {
        self.content.peers.get(machine.shard()?)
    }

    /// How machines of a shard check each other.
    pub fn peer_checks(&self) -> &[Arc<Check>] {
        &self.content.peer_checks
    }

    /// How packets get in and out.
    pub fn io(&self) -> &Io {
        &self.content.io
    }

    /// What is logged, and how.
    pub fn log(&self) -> Log {
        self.content.log
    }

    /// Where it is administered.
    pub fn admin(&self) -> &Admin {
        &self.content.admin
    }

    /// Where reports of marked packets go; `None`: none are sent.
    pub fn trace(&self) -> Option<&Trace> {
        self.content.trace.as_ref()
    }

    /// The routers that its VIPs are announced to; `None`: there are none.
    pub fn bgp(&self) -> Option<&Bgp> {
        self.content.bgp.as_ref()
    }

    /// All pools, flattened, in the order of their names.
    pub fn pools(&self) -> &[Arc<Pool>] {
        &self.content.pools
    }

    /// The pool of that name, flattened.
    pub fn pool(&self, name: &str) -> Option<&Arc<Pool>> {
        let at = self.content.pools.binary_search_by(|pool| (*pool.name).cmp(name)).ok()?;
        self.content.pools.get(at)
    }

    /// The members of all pools, and other clusters where VIPs name them: all that packets are sent to but peers.
    pub fn members(&self) -> impl Iterator<Item = &Member> {
        let remotes = self.content.vips.iter().flat_map(|vip| &vip.remote_pools).map(|remote| &remote.pool);
        self.content.pools.iter().chain(remotes).flat_map(|pool| &pool.members)
    }

    /// All prefix groups, in the order of their names.
    pub fn groups(&self) -> &[Arc<PrefixGroup>] {
        &self.content.groups
    }

    /// The other clusters, in the order of their names.
    pub fn remotes(&self) -> &[Arc<Remote>] {
        &self.content.remotes
    }

    /// Whether a machine listens on this address of `[admin]`: not when it is another machine's own.
    pub fn listens(&self, machine: &Machine, address: SocketAddr) -> bool {
        let elsewhere =
            |other: &Machine| other.name() != machine.name() && other.addresses.contains(&address.ip());
        !self.content.machines.iter().any(elsewhere)
    }

    /// The VIPs in the order of their names; none is allowed, with a warning.
    pub fn vips(&self) -> &[Vip] {
        &self.content.vips
    }

    /// The VIPs that a machine serves: those of its shard and those without one.
    pub fn vips_of(&self, machine: &Machine) -> impl Iterator<Item = &Vip> {
        let shard = machine.shard().map(str::to_owned);
        self.content
            .vips
            .iter()
            .filter(move |vip| vip.shard().is_none_or(|own| shard.as_deref() == Some(own)))
    }

    /// The files that it was read from, the first file first, and behind all TOML the lists of prefixes that it names.
    pub fn sources(&self) -> &[Source] {
        &self.sources
    }

    /// Whether `other` is this one, text and files included, and those that they name: then a generation keeps its number.
    #[must_use]
    pub fn is_same_text_as(&self, other: &Self) -> bool {
        self.sources == other.sources && self.digest() == other.digest() && self == other
    }

    /// SHA-256 over the content of its files, the hash key (which it does not reveal) and the CAs that they name; not over a
    /// machine's own certificate. Without secrets ([`load_without_secrets`](crate::load_without_secrets)) over the files alone.
    /// What machines of a cluster must agree on is the control plane's digest.
    pub fn digest(&self) -> [u8; 32] {
        source::digest(&self.sources, self.references.as_ref())
    }
}
