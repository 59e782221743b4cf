//! The configuration file: strict, and checked as a whole before anything of it is used.
//!
//! In: TOML text, the files that it includes, the lists that it names, and a way to read secrets. Out: a [`Config`] of checked
//! values with resolved references and flattened pools, or all [`Problems`] at once, each with line, field, what was found and
//! what is allowed.
//! Not here: the snapshot that a configuration becomes, checking backends, sessions with routers.
//! Values are read by hand and not by serde's derive, which stops at the first error.
//! Invariant: a key that no reader asks for is an error.
//!
//! ```
//! use std::path::Path;
//!
//! let text = "[cluster]\nname = \"edge\"\nhash_key_file = \"hash.key\"\ntable_sise = 65537\n";
//! let secret = |_: &config::SecretName| Ok("000102030405060708090a0b0c0d0e0f".to_owned());
//! let problems = config::parse(text, Path::new("lb.toml"), &secret).unwrap_err();
//! let problem = problems.iter().find(|problem| problem.field == "cluster.table_sise").unwrap();
//! assert_eq!((problem.line(), &*problem.found), (Some(4), "an unknown key"));
//! assert!(problem.allowed.ends_with("(did you mean \"table_size\"?)"), "{problem}");
//! ```

#![forbid(unsafe_code)]

mod address;
mod admin;
mod announce;
mod announcement_checks;
mod announcements;
mod arrivals;
mod bgp;
mod canonical;
mod check;
mod cluster;
mod config;
mod consistency;
mod drafts;
mod encapsulation;
mod flatten;
mod groups;
mod guard;
mod idle_keys;
mod io;
mod keyed;
mod kv;
mod kv_cache;
mod kv_replicas;
mod lists;
mod log;
mod machine;
mod mtu;
mod peers;
mod pem;
mod pool;
mod ports;
mod prefix_group;
mod remote;
mod remote_pool;
mod remotes;
mod replicas;
mod schema;
mod secret;
mod sections;
mod sessions;
mod shards;
mod source;
mod strict;
mod through;
mod trace;
mod vip;
mod vlan;

#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};

pub use self::admin::{Admin, AdminSocket, AdminTcp};
pub use self::announce::Announce;
pub use self::arrivals::Arrivals;
pub use self::bgp::{BfdTimes, Bgp, BgpPeer, NextHops};
pub use self::check::{
    Check, CheckKind, DnsCheck, DnsRecord, GrpcCheck, HttpCheck, MemcachedCheck, NtpCheck, TcpCheck, Tls,
    Transport, Via, dns_name, is_path,
};
pub use self::cluster::{Cluster, FlowTimeouts};
pub use self::config::Config;
pub use self::encapsulation::Encapsulation;
pub use self::guard::{Guard, Limits, PerSource, SourceList};
pub use self::io::{Fragments, Icmp, Idle, IdleThen, Io, IoMode, NextHop, Steering};
pub use self::kv::{Failover, Kv, KvGather, KvHash, KvKeys, KvMissing, KvPath, KvProtocol, KvRoute, Rejoin};
pub use self::kv_cache::KvCache;
pub use self::kv_replicas::{KvAck, KvReplicas};
pub use self::log::{Log, LogFormat, LogLevel};
pub use self::machine::Machine;
pub use self::mtu::Mtu;
pub use self::peers::is_of_peers;
pub use self::pem::PrivateKey;
pub use self::pool::{Backend, Fallback, Member, Pool};
pub use self::ports::{Ports, Protocol};
pub use self::prefix_group::PrefixGroup;
pub use self::remote::Remote;
pub use self::remote_pool::RemotePool;
pub use self::schema::schema;
pub use self::secret::{HashKey, SecretError, SecretName, read_secret};
pub use self::source::Source;
pub use self::trace::Trace;
pub use self::vip::{Service, Vip};
pub use self::vlan::{Vlan, VlanRule};
pub use config_text::{Problem, Problems, Severity, format_duration, parse_duration, words};
pub use forwarder::{Prefix, Suffix};

use config_text::{BaseDir, MAX_BYTES, Report, Root, gather, parallel, read_text};

use self::drafts::Drafts;
use self::pem::Outside;

/// How [`parse`] reads a secret; [`load`] uses [`read_secret`] with the process's environment.
pub type ReadSecret<'a> = &'a dyn Fn(&SecretName) -> Result<String, SecretError>;

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
    assemble(first_text(path)?, path, Outside { secrets: Some(secrets), within: None })
}

/// As [`load`], on a machine that has neither secrets nor certificates, such as a CI runner: their files are not read,
/// and stand-ins take their places. Such a configuration is for checking alone.
///
/// # Errors
/// As [`load`].
pub fn load_without_secrets(path: &Path) -> Result<(Config, Problems), Problems> {
    assemble(first_text(path)?, path, Outside { secrets: None, within: None })
}

/// Where the files say that the admin socket is, whatever else is wrong with them: the balancer that runs read them before
/// they were broken, and is asked about just then. `None`: they say nothing that can be read.
pub fn admin_socket(path: &Path) -> Option<PathBuf> {
    let report = Report::default();
    let parts = gather(&report, path, first_text(path).ok()?, NAMED, None);
    let admin = Root::new(&report, &parts).each("admin").into_iter();
    let socket = admin.filter_map(|admin| admin.section()?.optional("socket")).next();
    let Some(socket) = socket else { return Some(AdminSocket::default().path) };
    Some(PathBuf::from(socket.section()?.optional("path")?.as_str()?))
}

/// Checks the text of a file; `file` names it in messages and gives the folder of relative paths. With
/// the configuration come its warnings.
///
/// # Errors
/// All [`Problems`], sorted by file and line, warnings among them.
/// # Cost
/// Linear in the text, but for flattened pools: those cost their members, at most 4,194,304 in all.
pub fn parse(text: &str, file: &Path, secrets: ReadSecret<'_>) -> Result<(Config, Problems), Problems> {
    assemble(text.to_owned(), file, Outside { secrets: Some(secrets), within: None })
}

/// As [`parse`], for a text that came from elsewhere and stands in `file`'s place: what it includes, its lists of
/// prefixes, secrets and certificates must lie in `file`'s folder or below, links followed, so that it gives access to no other
/// file; but credentials are read. What such a file holds is in no message.
///
/// # Errors
/// As [`parse`], and for each file that lies elsewhere.
pub fn parse_confined(
    text: &str,
    file: &Path,
    secrets: ReadSecret<'_>,
) -> Result<(Config, Problems), Problems> {
    let within = BaseDir::around(file);
    assemble(text.to_owned(), file, Outside { secrets: Some(secrets), within: Some(&within) })
}

fn first_text(path: &Path) -> Result<String, Problems> {
    read_text(path, MAX_BYTES).map_err(Problems::from)
}

fn assemble(text: String, file: &Path, outside: Outside<'_>) -> Result<(Config, Problems), Problems> {
    let report = Report::default();
    let parts = gather(&report, file, text, NAMED, outside.within);
    let large = report.is_large();
    let (texts, config) = parallel::both(
        large,
        || Source::all(&report),
        || {
            let drafts = Drafts::read(&report, Root::new(&report, &parts), &outside);
            parallel::both(large, || drop(parts), || drafts.build()).1
        },
    );
    let problems = report.finish()?;
    // Without an error everything was read; should that fail to hold, no half configuration gets out.
    let unread = || Problems::from(Problem::of_file(file, "an incomplete configuration", "a complete one"));
    let whole = |config: Config| Config { sources: [texts, config.sources].concat(), ..config };
    config.map(|config| (whole(config), problems)).ok_or_else(unread)
}

/// The kinds of sections that have names, as `[pool.web]`.
const NAMED: &[&str] = &["check", "encapsulation", "machine", "pool", "prefix_group", "remote", "vip"];
