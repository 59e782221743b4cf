//! The configuration file: strict, and checked as a whole before anything of it is used.
//!
//! In: TOML text, and a way to read secrets. Out: a [`Config`] of checked values with resolved references
//! and flattened pools, or every problem of the file at once, each with line, field, what was found and
//! what was allowed.
//! Not here: the snapshot that a configuration becomes; health, BGP (later versions).
//! Values are read by hand and not by serde's derive, which stops at the first error.
//! Invariant: keys of the product's whole shape that this version does not serve are refused by name.

mod address;
mod admin;
mod check;
mod cluster;
mod consistency;
mod encapsulation;
mod flatten;
mod io;
mod log;
mod machine;
mod near_miss;
mod pool;
mod ports;
mod problem;
mod quantity;
mod reader;
mod report;
mod secret;
mod vip;

#[cfg(test)]
mod tests;

use std::fs::{self, File};
use std::io::Read;
use std::path::Path;
use std::sync::Arc;

use toml::de::DeTable;

pub use self::address::Prefix;
pub use self::admin::{Admin, AdminSocket};
pub use self::check::{
    Check, CheckKind, DnsCheck, DnsRecord, GrpcCheck, HttpCheck, MemcachedCheck, TcpCheck, Tls, Via,
};
pub use self::cluster::{Cluster, FlowTimeouts};
pub use self::encapsulation::{Encapsulation, EncapsulationKind, TooBig};
pub use self::io::{Idle, IdleThen, Io, IoMode, NextHop, NoSocket, Steering};
pub use self::log::{Log, LogFormat, LogLevel};
pub use self::machine::Machine;
pub use self::pool::{Backend, Member, Pool};
pub use self::ports::{Ports, Protocol};
pub use self::problem::{Problem, Problems, Severity};
pub use self::quantity::parse_duration;
pub use self::secret::{HashKey, SecretError, SecretName, read_secret};
pub use self::vip::{Hash, Service, Vip};

use self::consistency::Sections;
use self::flatten::Flattener;
use self::machine::MachineDraft;
use self::pool::PoolDraft;
use self::reader::Section;
use self::report::Report;
use self::vip::VipDraft;

/// How [`parse`] reads a secret; [`load`] uses [`read_secret`] with the process's environment.
pub type ReadSecret<'a> = &'a dyn Fn(&SecretName) -> Result<String, SecretError>;

/// One file, checked: every value in its range, every reference resolved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    cluster: Cluster,
    machines: Vec<Machine>,
    io: Io,
    log: Log,
    admin: Admin,
    pools: Vec<Arc<Pool>>,
    vips: Vec<Vip>,
}

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

    /// All pools, flattened, in the order of their names.
    pub fn pools(&self) -> &[Arc<Pool>] {
        &self.pools
    }

    /// The VIPs in the order of their names; none is allowed, with a warning.
    pub fn vips(&self) -> &[Vip] {
        &self.vips
    }
}

/// Reads and checks the file at `path`; with the configuration come its warnings.
///
/// # Errors
/// All [`Problems`]: of the file itself (missing, a folder, over 16 MiB, not UTF-8) and of its content.
pub fn load(path: &Path) -> Result<(Config, Problems), Problems> {
    load_with(path, &|name| read_secret(name, &|variable| std::env::var_os(variable)))
}

/// As [`load`], with secrets from elsewhere: a machine that only checks a file has none.
///
/// # Errors
/// As [`load`].
pub fn load_with(path: &Path, secrets: ReadSecret<'_>) -> Result<(Config, Problems), Problems> {
    let text = read_text(path).map_err(|problem| Problems(vec![problem]))?;
    parse(&text, path, secrets)
}

/// Checks the text of a file; `file` names it in messages and gives the folder of relative paths. With
/// the configuration come its warnings.
///
/// # Errors
/// All [`Problems`], sorted by line, warnings among them.
/// # Cost
/// Linear in the text, but for flattened pools: those cost their members, at most 4,194,304 in all.
pub fn parse(text: &str, file: &Path, secrets: ReadSecret<'_>) -> Result<(Config, Problems), Problems> {
    let report = Report::new(file, text);
    let (table, errors) = DeTable::parse_recoverable(text);
    for error in errors {
        report.syntax(error.span().map_or(text.len(), |span| span.start), error.message());
    }
    let folder = file.parent().unwrap_or(Path::new(""));
    let config = read(Section::root(&report, table.get_ref()), folder, secrets);
    let problems = report.finish()?;
    // Without an error everything was read; should that fail to hold, no half configuration gets out.
    let unread = || Problems(vec![Problem::of_file(file, "an incomplete configuration", "a complete one")]);
    config.map(|config| (config, problems)).ok_or_else(unread)
}

/// Reads all sections before any is judged missing, so that every problem is reported.
fn read(mut root: Section<'_>, folder: &Path, secrets: ReadSecret<'_>) -> Option<Config> {
    let report = root.report;
    root.or("schema", 1, |node| node.number(1..=1));
    let log = root.optional("log").and_then(|node| node.section()).map(Log::read);
    let cluster = root.required("cluster", "a section [cluster]").and_then(|node| node.section());
    let cluster = cluster.and_then(|section| Cluster::read(section, folder, secrets));
    let machines = MachineDraft::read_all(&mut root);
    let io = root.optional("io").and_then(|node| node.section()).map(Io::read).unwrap_or_default();
    let encapsulations = encapsulation::read_all(&mut root);
    let pools = PoolDraft::read_all(&mut root);
    let vips = VipDraft::read_all(&mut root);
    let admin = root.optional("admin").and_then(|node| node.section()).map(Admin::read).unwrap_or_default();
    root.finish(&["include", "check", "prefix_group", "bgp"]);
    let flattened = Flattener { report, pools: &pools, encapsulations: &encapsulations }.flatten();
    let sections = Sections {
        report,
        io: &io,
        machines: &machines,
        encapsulations: &encapsulations,
        pools: &pools,
        vips: &vips,
    };
    sections.check(&flattened, cluster.as_ref().map(Cluster::table_size));
    Some(Config {
        cluster: cluster?,
        machines: machines.iter().map(MachineDraft::build).collect(),
        io,
        log: log.unwrap_or_default(),
        admin,
        vips: vips.iter().map(|vip| vip.build(&flattened)).collect::<Option<_>>()?,
        pools: flattened,
    })
}

fn read_text(path: &Path) -> Result<String, Problem> {
    const READABLE: &str = "a readable TOML file";
    let failed = |error: std::io::Error| match error.kind() {
        std::io::ErrorKind::NotFound => Problem::of_file(path, "no such file", READABLE),
        _ => Problem::of_file(path, error.to_string(), READABLE),
    };
    if fs::metadata(path).map_err(failed)?.is_dir() {
        return Err(Problem::of_file(path, "a folder", READABLE));
    }
    let mut bytes = Vec::new();
    // A device or a pipe may have no end: one byte past the limit is enough to know.
    File::open(path).map_err(failed)?.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() as u64 > MAX_FILE_BYTES {
        return Err(Problem::of_file(path, "over 16 MiB", "at most 16 MiB"));
    }
    String::from_utf8(bytes).map_err(|error| {
        let valid = error.utf8_error().valid_up_to();
        let line = error.as_bytes().iter().take(valid).filter(|&&byte| byte == b'\n').count() + 1;
        Problem::of_file(path, format!("a byte that is not UTF-8 in line {line}"), "UTF-8")
    })
}

const MAX_FILE_BYTES: u64 = 16 << 20;
