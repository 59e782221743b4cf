//! Reads the configuration files strictly, and checks the whole configuration before any part of it
//! is used.
//!
//! The crate reads TOML files, the files that they include, prefix lists, and secrets. The crate
//! returns a [`Config`] with checked values, resolved references and flattened pools. If the
//! configuration has an error, the crate returns all [`Problems`], each with a line number, a
//! message and a help line.
//!
//! Values are read by handwritten code, because code derived with serde would stop at the first
//! error. Invariant: an unknown key is an error.
//!
//! ```
//! use std::path::Path;
//!
//! let text = "[cluster]\nname = \"edge\"\nhash_key_file = \"hash.key\"\ntable_sise = 65537\n";
//! let secret = |_: &config::SecretName| Ok("000102030405060708090a0b0c0d0e0f".to_owned());
//! let problems = config::parse(text, Path::new("lb.toml"), &secret).unwrap_err();
//! let problem = problems.iter().find(|problem| problem.field == "cluster.table_sise").unwrap();
//! assert_eq!(problem.to_string(), "lb.toml:4:1: unknown key \"table_sise\" in [cluster]");
//! assert_eq!(problem.help.as_deref(), Some("did you mean \"table_size\"?"));
//! ```

#![forbid(unsafe_code)]

mod address;
mod admin;
mod announce;
mod announcement_checks;
mod announcements;
mod bgp;
mod canonical;
mod check;
mod cluster;
mod config;
mod consistency;
mod descriptions;
mod drafts;
mod encapsulation;
mod flatten;
mod groups;
mod guard;
mod health;
mod idle_keys;
mod index;
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
mod proxied;
mod remote;
mod remote_pool;
mod remotes;
mod renamed;
mod replicas;
mod schema;
mod secret;
mod sections;
mod sessions;
mod shards;
mod source;
mod strict;
mod trace;
mod unchecked;
mod upstream_tunnels;
mod vip;
mod vlan;

#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};

pub use self::admin::{Admin, AdminSocket, AdminTcp};
pub use self::announce::Announce;
pub use self::bgp::{BfdTimes, Bgp, BgpPeer, NextHops};
pub use self::check::{
    AgentCheck, Check, CheckKind, ClientCertificate, DnsCheck, DnsRecord, ExecCheck, Expect, ExpectForm,
    GrpcCheck, HttpCheck, MOST_ARGUMENTS, MemcachedCheck, NtpCheck, Payload, TcpCheck, Tls, Transport,
    UdpCheck, Via, dns_name, is_argument, is_path, is_program,
};
pub use self::cluster::{Cluster, FlowTimeouts};
pub use self::config::Config;
pub use self::encapsulation::Encapsulation;
pub use self::guard::{Guard, Limits, PerSource, SourceList};
pub use self::health::Health;
pub use self::io::{Fragments, Icmp, Idle, IdlePrefer, IdleThen, Io, IoMode, NextHop, Steering};
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
pub use self::upstream_tunnels::UpstreamTunnels;
pub use self::vip::{OnDrain, Service, Unserved, Vip};
pub use self::vlan::{Vlan, VlanRule};
pub use config_text::{Problem, Problems, Severity, format_duration, natural, parse_duration, words};
pub use forwarder::{Prefix, Suffix};

use config_text::{BaseDir, MAX_BYTES, Report, Root, gather, parallel, read_text};

use self::drafts::Drafts;
use self::pem::Outside;
use self::renamed::RENAMED;

/// The function that reads a secret for [`parse`]. [`load`] uses [`read_secret`] with the
/// environment variables of the process.
pub type ReadSecret<'a> = &'a dyn Fn(&SecretName) -> Result<String, SecretError>;

/// Reads and checks the file at `path`. Returns the configuration with its warnings.
///
/// # Errors
/// Returns all [`Problems`] of the file and of its content. A file has a problem if it is missing,
/// is a folder, is larger than 16 MiB, or is not UTF-8.
pub fn load(path: &Path) -> Result<(Config, Problems), Problems> {
    load_with(path, &|name| read_secret(name, &|variable| std::env::var_os(variable)))
}

/// Reads and checks the file at `path`. Secrets are read by the function `secrets`.
///
/// # Errors
/// Returns the same errors as [`load`].
pub fn load_with(path: &Path, secrets: ReadSecret<'_>) -> Result<(Config, Problems), Problems> {
    assemble(first_text(path)?, path, Outside { secrets: Some(secrets), within: None })
}

/// Reads and checks the file at `path` on a machine without secrets and certificates, such as a CI
/// runner. Uses placeholders instead of secrets and certificates. The resulting configuration is
/// only suitable for checks and must not be run.
///
/// # Errors
/// Returns the same errors as [`load`].
pub fn load_without_secrets(path: &Path) -> Result<(Config, Problems), Problems> {
    assemble(first_text(path)?, path, Outside { secrets: None, within: None })
}

/// Returns the path of the admin socket, even if the files contain errors, which may have been
/// introduced after the process was started. Returns `None` if the path cannot be read.
pub fn admin_socket(path: &Path) -> Option<PathBuf> {
    let report = Report::default();
    let parts = gather(&report, path, first_text(path).ok()?, NAMED, None);
    let admin = Root::new(&report, &parts).each("admin").into_iter();
    let socket = admin.filter_map(|admin| admin.section()?.optional("socket")).next();
    let Some(socket) = socket else { return Some(AdminSocket::default().path) };
    Some(PathBuf::from(socket.section()?.optional("path")?.as_str()?))
}

/// Checks the text of a file. Returns the configuration with its warnings. `file` is the file name
/// for messages, and relative paths are resolved in its folder.
///
/// # Errors
/// Returns all [`Problems`], sorted by file and line, including warnings.
/// # Cost
/// Linear in the length of the text, plus the number of members of all flattened pools (at most
/// 4,194,304).
pub fn parse(text: &str, file: &Path, secrets: ReadSecret<'_>) -> Result<(Config, Problems), Problems> {
    assemble(text.to_owned(), file, Outside { secrets: Some(secrets), within: None })
}

/// Checks a configuration that a client has sent to replace `file`. The files to which the text
/// refers (included files, prefix lists, secrets, certificates) must be in the folder of `file` or
/// below, after symbolic links are resolved. Credentials may be in a different folder. Messages
/// never quote the content of these files.
///
/// # Errors
/// Returns the same errors as [`parse`], and an error for each file outside the folder.
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
    let report = Report::default().with_renamed(RENAMED);
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
    // This problem cannot occur: without an error, all sections have been read.
    let unread = || Problems::from(Problem::of_file(file, "the configuration is incomplete"));
    let whole = |config: Config| Config { sources: [texts, config.sources].concat(), ..config };
    config.map(|config| (whole(config), problems)).ok_or_else(unread)
}

/// The kinds of sections that have a name, such as `[pool.web]`.
const NAMED: &[&str] = &["check", "encapsulation", "machine", "pool", "prefix_group", "remote", "vip"];
