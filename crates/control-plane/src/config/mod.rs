//! The configuration file: strict, and checked as a whole before anything of it is used.
//!
//! In: TOML text, the files that it includes, the lists that it names, and a way to read secrets. Out: a [`Config`] of checked values with resolved references
//! and flattened pools, or every problem of the file at once, each with line, field, what was found and
//! what was allowed.
//! Not here: the snapshot that a configuration becomes, checking backends; BGP (a later version).
//! Values are read by hand and not by serde's derive, which stops at the first error.
//! Invariant: keys of the product's whole shape that this version does not serve are refused by name.

mod address;
mod admin;
mod check;
mod cluster;
mod consistency;
mod encapsulation;
mod flatten;
mod guard;
mod include;
mod io;
mod lists;
mod log;
mod machine;
mod near_miss;
mod pem;
mod pool;
mod ports;
mod problem;
mod quantity;
mod reader;
mod report;
mod secret;
mod shards;
mod source;
mod trace;
mod vip;

#[cfg(test)]
mod tests;

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

pub use self::address::Prefix;
pub use self::admin::{Admin, AdminSocket, AdminTcp};
pub use self::check::{
    Check, CheckKind, DnsCheck, DnsRecord, GrpcCheck, HttpCheck, MemcachedCheck, TcpCheck, Tls, Via,
};
pub use self::cluster::{Cluster, FlowTimeouts};
pub use self::encapsulation::{Encapsulation, EncapsulationKind, TooBig};
pub use self::guard::{Guard, Limits, PerSource, SourceList};
pub use self::io::{Fragments, Icmp, Idle, IdleThen, Io, IoMode, NextHop, NoSocket, Steering};
pub use self::log::{Log, LogFormat, LogLevel};
pub use self::machine::Machine;
pub use self::pem::PrivateKey;
pub use self::pool::{Backend, Fallback, Member, Pool};
pub use self::ports::{Ports, Protocol};
pub use self::problem::{Problem, Problems, Severity};
pub use self::quantity::{format_duration, parse_duration};
pub use self::secret::{HashKey, SecretError, SecretName, read_secret};
pub use self::source::{Source, digest_of};
pub use self::trace::Trace;
pub use self::vip::{Hash, Service, Vip};

use self::consistency::Sections;
use self::flatten::Flattener;
use self::lists::Lists;
use self::machine::MachineDraft;
use self::pem::Outside;
use self::pool::PoolDraft;
use self::reader::{Root, Section};
use self::report::Report;
use self::vip::VipDraft;

/// How [`parse`] reads a secret; [`load`] uses [`read_secret`] with the process's environment.
pub type ReadSecret<'a> = &'a dyn Fn(&SecretName) -> Result<String, SecretError>;

/// One configuration, checked: every value in its range, every reference resolved.
///
/// Two are equal when they say the same, whichever files they came from.
#[derive(Clone, Debug)]
pub struct Config {
    cluster: Cluster,
    machines: Vec<Machine>,
    io: Io,
    log: Log,
    admin: Admin,
    trace: Option<Trace>,
    pools: Vec<Arc<Pool>>,
    vips: Vec<Vip>,
    sources: Vec<Source>,
}

impl PartialEq for Config {
    fn eq(&self, other: &Self) -> bool {
        let Self { cluster, machines, io, log, admin, trace, pools, vips, sources: _ } = self;
        (cluster, machines, io, log, admin, trace, pools, vips)
            == (
                &other.cluster,
                &other.machines,
                &other.io,
                &other.log,
                &other.admin,
                &other.trace,
                &other.pools,
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

    /// All pools, flattened, in the order of their names.
    pub fn pools(&self) -> &[Arc<Pool>] {
        &self.pools
    }

    /// The pool of that name, flattened.
    pub fn pool(&self, name: &str) -> Option<&Arc<Pool>> {
        let at = self.pools.binary_search_by(|pool| (**pool.name()).cmp(name)).ok()?;
        self.pools.get(at)
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

    /// SHA-256 of the content of its files: of one file its own; of several that of their digests in order.
    pub fn digest(&self) -> [u8; 32] {
        source::digest(&self.sources)
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
    assemble(first_text(path)?, path, Outside { secrets: Some(secrets) })
}

/// As [`load`], on a machine that has neither secrets nor certificates, such as a CI runner: their files are not read,
/// and stand-ins take their places. Such a configuration is for checking alone.
///
/// # Errors
/// As [`load`].
pub fn load_without_secrets(path: &Path) -> Result<(Config, Problems), Problems> {
    assemble(first_text(path)?, path, Outside { secrets: None })
}

/// Checks the text of a file; `file` names it in messages and gives the folder of relative paths. With
/// the configuration come its warnings.
///
/// # Errors
/// All [`Problems`], sorted by file and line, warnings among them.
/// # Cost
/// Linear in the text, but for flattened pools: those cost their members, at most 4,194,304 in all.
pub fn parse(text: &str, file: &Path, secrets: ReadSecret<'_>) -> Result<(Config, Problems), Problems> {
    assemble(text.to_owned(), file, Outside { secrets: Some(secrets) })
}

fn first_text(path: &Path) -> Result<String, Problems> {
    include::read_text(path, include::MAX_BYTES).map_err(|problem| Problems(vec![problem]))
}

fn assemble(text: String, file: &Path, outside: Outside<'_>) -> Result<(Config, Problems), Problems> {
    let report = Report::new();
    let config = {
        let parts = include::gather(&report, file, text);
        let sections = parts.iter().map(|part| Section::of_file(&report, part.base, part.table.get_ref()));
        read(Root::new(&report, sections.collect()), &outside)
    };
    let texts = Source::all(&report);
    let problems = report.finish()?;
    // Without an error everything was read; should that fail to hold, no half configuration gets out.
    let unread = || Problems(vec![Problem::of_file(file, "an incomplete configuration", "a complete one")]);
    let whole = |config: Config| Config { sources: [texts, config.sources].concat(), ..config };
    config.map(|config| (whole(config), problems)).ok_or_else(unread)
}

/// Reads all sections before any is judged missing, so that every problem is reported.
fn read(mut root: Root<'_>, outside: &Outside<'_>) -> Option<Config> {
    let report = root.report;
    root.each("include");
    for node in root.each("schema") {
        node.number(1..=1);
    }
    let log = root.once("log").and_then(|node| node.section()).map(Log::read);
    let cluster = root.required("cluster", "a section [cluster]").and_then(|node| node.section());
    let cluster = cluster.and_then(|section| Cluster::read(section, outside));
    let machines = MachineDraft::read_all(&mut root);
    let io = root.once("io").and_then(|node| node.section()).map(Io::read).unwrap_or_default();
    let encapsulations = encapsulation::read_all(&mut root);
    let checks = check::read_all(&mut root, outside);
    let pools = PoolDraft::read_all(&mut root);
    let lists = Lists::new();
    let vips = VipDraft::read_all(&mut root, &lists);
    let admin = root.once("admin").and_then(|node| node.section());
    let admin = admin.map(|section| Admin::read(section, outside)).unwrap_or_default();
    let trace = root.once("trace").and_then(|node| node.section());
    let trace = trace.map(Trace::read);
    root.finish(&["prefix_group", "bgp"]);
    let flattened =
        Flattener { report, pools: &pools, encapsulations: &encapsulations, checks: &checks }.flatten();
    let sections = Sections {
        report,
        io: &io,
        machines: &machines,
        encapsulations: &encapsulations,
        pools: &pools,
        vips: &vips,
        checks: &checks,
    };
    sections.check(&flattened, cluster.as_ref().map(Cluster::table_size));
    Some(Config {
        cluster: cluster?,
        machines: machines.iter().map(MachineDraft::build).collect(),
        io,
        log: log.unwrap_or_default(),
        admin,
        trace: trace.flatten(),
        vips: vips.iter().map(|vip| vip.build(&flattened)).collect::<Option<_>>()?,
        pools: flattened,
        sources: lists.into_sources(),
    })
}
