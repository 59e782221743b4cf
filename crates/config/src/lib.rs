//! The configuration file: strict, and checked as a whole before anything of it is used.
//!
//! In: TOML text, the files that it includes, the lists that it names, and a way to read secrets. Out: a [`Config`] of checked values with resolved references
//! and flattened pools, or every problem of the file at once, each with line, field, what was found and
//! what was allowed.
//! Not here: the snapshot that a configuration becomes, checking backends, sessions with routers.
//! Values are read by hand and not by serde's derive, which stops at the first error.
//! Invariant: keys of the product's whole shape that this version does not serve are refused by name.

#![forbid(unsafe_code)]

mod address;
mod admin;
mod announce;
mod announcement_checks;
mod announcements;
mod arrivals;
mod base_dir;
mod bgp;
mod canonical;
mod check;
mod cluster;
mod consistency;
mod drafts;
mod encapsulation;
mod field;
mod flatten;
mod groups;
mod guard;
mod idle_keys;
mod include;
mod io;
mod lists;
mod log;
mod machine;
mod mtu;
mod near_miss;
mod parallel;
mod peers;
mod pem;
mod pieces;
mod pool;
mod ports;
mod prefix_group;
mod problem;
mod quantity;
mod reader;
mod remote;
mod remote_pool;
mod remotes;
mod report;
mod secret;
mod sections;
mod sessions;
mod shards;
mod source;
mod trace;
mod vip;
mod vlan;
pub mod words;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub use self::admin::{Admin, AdminSocket, AdminTcp};
pub use self::announce::Announce;
pub use self::arrivals::Arrivals;
pub use self::bgp::{BfdTimes, Bgp, BgpPeer};
pub use self::check::{
    Check, CheckKind, DnsCheck, DnsRecord, GrpcCheck, HttpCheck, MemcachedCheck, TcpCheck, Tls, Via,
};
pub use self::cluster::{Cluster, FlowTimeouts};
pub use self::encapsulation::{Encapsulation, EncapsulationKind, TooBig};
pub use self::guard::{Guard, Limits, PerSource, SourceList};
pub use self::io::{Fragments, Icmp, Idle, IdleThen, Io, IoMode, NextHop, NoSocket, Steering};
pub use self::log::{Log, LogFormat, LogLevel};
pub use self::machine::Machine;
pub use self::mtu::Mtu;
pub use self::pem::PrivateKey;
pub use self::pool::{Backend, Fallback, Member, Pool};
pub use self::ports::{Ports, Protocol};
pub use self::prefix_group::PrefixGroup;
pub use self::problem::{Problem, Problems, Severity};
pub use self::quantity::{format_duration, parse_duration};
pub use self::remote::Remote;
pub use self::remote_pool::RemotePool;
pub use self::secret::{HashKey, SecretError, SecretName, read_secret};
pub use self::source::{Source, digest_of};
pub use self::trace::Trace;
pub use self::vip::{Hash, Service, Vip};
pub use self::vlan::{Vlan, VlanRule};
pub use forwarder::{Prefix, Suffix};

use self::base_dir::BaseDir;
use self::drafts::Drafts;
use self::pem::Outside;
use self::reader::{Root, Section};
use self::report::Report;

/// How [`parse`] reads a secret; [`load`] uses [`read_secret`] with the process's environment.
pub type ReadSecret<'a> = &'a dyn Fn(&SecretName) -> Result<String, SecretError>;

/// One configuration, checked: every value in its range, every reference resolved.
///
/// Two are equal when they say the same, whichever files they came from.
#[derive(Clone, Debug)]
pub struct Config {
    cluster: Cluster,
    machines: Vec<Machine>,
    /// By shard.
    peers: BTreeMap<Arc<str>, Arc<Pool>>,
    peer_checks: Vec<Arc<Check>>,
    io: Io,
    log: Log,
    admin: Admin,
    trace: Option<Trace>,
    bgp: Option<Bgp>,
    pools: Vec<Arc<Pool>>,
    groups: Vec<Arc<PrefixGroup>>,
    remotes: Vec<Arc<Remote>>,
    vips: Vec<Vip>,
    sources: Vec<Source>,
    /// Of what the files refer to; `None`: it was not read.
    references: Option<[u8; 32]>,
}

impl PartialEq for Config {
    fn eq(&self, other: &Self) -> bool {
        let Self {
            cluster,
            machines,
            peers,
            peer_checks,
            io,
            log,
            admin,
            trace,
            bgp,
            pools,
            groups,
            remotes,
            vips,
            ..
        } = self;
        (cluster, machines, (peers, peer_checks), io, log, admin, (trace, bgp), pools, groups, remotes, vips)
            == (
                &other.cluster,
                &other.machines,
                (&other.peers, &other.peer_checks),
                &other.io,
                &other.log,
                &other.admin,
                (&other.trace, &other.bgp),
                &other.pools,
                &other.groups,
                &other.remotes,
                &other.vips,
            )
    }
}

impl Eq for Config {}

impl Config {
    /// What all machines agree on.
    pub fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    /// The machines in the order of their names, at least one.
    pub fn machines(&self) -> &[Machine] {
        &self.machines
    }

    /// The machine of that name.
    pub fn machine(&self, name: &str) -> Option<&Machine> {
        self.machines.iter().find(|machine| machine.name() == name)
    }

    /// The same with machine `from` called `to` wherever it is named, as for a comparison with a file that calls it so.
    #[must_use]
    pub fn renamed(&self, from: &str, to: &str) -> Self {
        let name = |name: &Arc<str>| if **name == *from { Arc::from(to) } else { Arc::clone(name) };
        let mut machines: Vec<Machine> = self.machines.iter().map(|one| one.renamed(name)).collect();
        machines.sort_by(|one, other| one.name().cmp(other.name()));
        Self {
            peers: peers::pools(&machines, &self.peer_checks),
            machines,
            bgp: self.bgp.as_ref().map(|bgp| bgp.renamed(name)),
            vips: self.vips.iter().map(|vip| vip.renamed(name)).collect(),
            ..self.clone()
        }
    }

    /// The machines of a machine's shard, itself among them, when there are others.
    pub fn peers(&self, machine: &Machine) -> Option<&Arc<Pool>> {
        self.peers.get(machine.shard()?)
    }

    /// How machines of a shard check each other.
    pub fn peer_checks(&self) -> &[Arc<Check>] {
        &self.peer_checks
    }

    /// How packets get in and out.
    pub fn io(&self) -> &Io {
        &self.io
    }

    /// What is logged, and how.
    pub fn log(&self) -> Log {
        self.log
    }

    /// Where it is administered.
    pub fn admin(&self) -> &Admin {
        &self.admin
    }

    /// Whom it tells of marked packets; `None`: nobody.
    pub fn trace(&self) -> Option<&Trace> {
        self.trace.as_ref()
    }

    /// The routers that are told of its VIPs; `None`: nobody is.
    pub fn bgp(&self) -> Option<&Bgp> {
        self.bgp.as_ref()
    }

    /// All pools, flattened, in the order of their names.
    pub fn pools(&self) -> &[Arc<Pool>] {
        &self.pools
    }

    /// The pool of that name, flattened.
    pub fn pool(&self, name: &str) -> Option<&Arc<Pool>> {
        let at = self.pools.binary_search_by(|pool| (**pool.name()).cmp(name)).ok()?;
        self.pools.get(at)
    }

    /// The members of all pools, and other clusters where VIPs name them: all that packets are sent to but peers.
    pub fn members(&self) -> impl Iterator<Item = &Member> {
        let remotes = self.vips.iter().flat_map(Vip::remote_pools).map(RemotePool::pool);
        self.pools.iter().chain(remotes).flat_map(|pool| pool.members())
    }

    /// All prefix groups, in the order of their names.
    pub fn groups(&self) -> &[Arc<PrefixGroup>] {
        &self.groups
    }

    /// The other clusters, in the order of their names.
    pub fn remotes(&self) -> &[Arc<Remote>] {
        &self.remotes
    }

    /// Whether a machine listens on this address of `[admin]`: not when it is another machine's own.
    pub fn listens(&self, machine: &Machine, address: SocketAddr) -> bool {
        let elsewhere =
            |other: &Machine| other.name() != machine.name() && other.addresses().contains(&address.ip());
        !self.machines.iter().any(elsewhere)
    }

    /// The VIPs in the order of their names; none is allowed, with a warning.
    pub fn vips(&self) -> &[Vip] {
        &self.vips
    }

    /// The VIPs that a machine serves: those of its shard and those without one.
    pub fn vips_of(&self, machine: &Machine) -> impl Iterator<Item = &Vip> {
        let shard = machine.shard().map(str::to_owned);
        self.vips.iter().filter(move |vip| vip.shard().is_none_or(|own| shard.as_deref() == Some(own)))
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

    /// What tells its files from others: SHA-256 over their content, the hash key (of which it tells nothing) and the CAs that
    /// they name; not over a machine's own certificate. Without secrets ([`load_without_secrets`]) over the files alone. What
    /// machines of a cluster must agree on is the control plane's digest.
    pub fn digest(&self) -> [u8; 32] {
        source::digest(&self.sources, self.references.as_ref())
    }
}

/// Reads and checks the file at `path`; with the configuration come its warnings.
///
/// # Errors
/// All [`Problems`]: of the file itself (missing, a folder, over 16 MiB, not UTF-8) and of its content.
pub fn load(path: &Path) -> Result<(Config, Problems), Problems> {
    load_with(path, &|name| read_secret(name, &|variable| std::env::var_os(variable)))
}

/// As [`load`], with secrets from elsewhere.
///
/// # Errors
/// As [`load`].
pub fn load_with(path: &Path, secrets: ReadSecret<'_>) -> Result<(Config, Problems), Problems> {
    assemble(first_text(path)?, path, Outside { secrets: Some(secrets) }, None)
}

/// As [`load`], on a machine that has neither secrets nor certificates, such as a CI runner: their files are not read,
/// and stand-ins take their places. Such a configuration is for checking alone.
///
/// # Errors
/// As [`load`].
pub fn load_without_secrets(path: &Path) -> Result<(Config, Problems), Problems> {
    assemble(first_text(path)?, path, Outside { secrets: None }, None)
}

/// Where the files say that the admin socket is, whatever else is wrong with them: the balancer that runs read them before
/// they were broken, and is asked about just then. `None`: they say nothing that can be read.
pub fn admin_socket(path: &Path) -> Option<PathBuf> {
    let report = Report::new();
    let parts = include::gather(&report, path, first_text(path).ok()?, None);
    parts.iter().find_map(|part| {
        let socket = part.table.get_ref().get("admin")?.get_ref().get("socket")?.get_ref();
        Some(PathBuf::from(socket.get("path")?.get_ref().as_str()?))
    })
}

/// Checks the text of a file; `file` names it in messages and gives the folder of relative paths. With
/// the configuration come its warnings.
///
/// # Errors
/// All [`Problems`], sorted by file and line, warnings among them.
/// # Cost
/// Linear in the text, but for flattened pools: those cost their members, at most 4,194,304 in all.
pub fn parse(text: &str, file: &Path, secrets: ReadSecret<'_>) -> Result<(Config, Problems), Problems> {
    assemble(text.to_owned(), file, Outside { secrets: Some(secrets) }, None)
}

/// As [`parse`], for a text that came from elsewhere and stands in `file`'s place: what it includes, and its lists of
/// prefixes, must lie in `file`'s folder or below, links followed, so that nobody reads other files through it.
///
/// # Errors
/// As [`parse`], and for each file that lies elsewhere.
pub fn parse_confined(
    text: &str,
    file: &Path,
    secrets: ReadSecret<'_>,
) -> Result<(Config, Problems), Problems> {
    assemble(text.to_owned(), file, Outside { secrets: Some(secrets) }, Some(BaseDir::around(file)))
}

fn first_text(path: &Path) -> Result<String, Problems> {
    include::read_text(path, include::MAX_BYTES).map_err(|problem| Problems(vec![problem]))
}

fn assemble(
    text: String,
    file: &Path,
    outside: Outside<'_>,
    within: Option<BaseDir>,
) -> Result<(Config, Problems), Problems> {
    let report = Report::new();
    let parts = include::gather(&report, file, text, within.as_ref());
    let large = report.is_large();
    let (texts, config) = parallel::both(
        large,
        || Source::all(&report),
        || {
            let sections =
                parts.iter().map(|part| Section::of_file(&report, part.base, part.table.get_ref()));
            let drafts = Drafts::read(Root::new(&report, sections.collect()), &outside, within.as_ref());
            parallel::both(large, || drop(parts), || drafts.build(&report)).1
        },
    );
    let problems = report.finish()?;
    // Without an error everything was read; should that fail to hold, no half configuration gets out.
    let unread = || Problems(vec![Problem::of_file(file, "an incomplete configuration", "a complete one")]);
    let whole = |config: Config| Config { sources: [texts, config.sources].concat(), ..config };
    config.map(|config| (whole(config), problems)).ok_or_else(unread)
}
