//! Runs a real router daemon in the router's network namespace: BIRD, FRR or gobgpd.
//!
//! A router is started with a list of sessions to the balancers or with a complete configuration.
//! Tests can query the daemon and the kernel routes. The module `router_config` writes the
//! configuration. Daemons, sockets and files are removed with the testbed. The packages bird2, frr
//! and gobgpd are required.

use std::fmt;
use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};

use crate::router_config::{FRR_BFDD, config};
use crate::{Bed, Namespace, Process, RouterSession, eventually};

/// The routing software.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RouterKind {
    /// BIRD, version 2.
    Bird,
    /// FRR with the daemons zebra, bfdd and bgpd.
    Frr,
    /// gobgpd, which does not support BFD and does not install kernel routes.
    Gobgp,
}

/// The daemons of a router. Dropping the handle stops the daemons.
#[derive(Debug)]
pub struct Router {
    kind: RouterKind,
    daemons: Vec<Process>,
    shell: Shell,
}

impl Router {
    /// Starts a router with these BGP sessions. The router installs a kernel route for each VIP
    /// prefix that it receives.
    ///
    /// # Errors
    /// Returns an error if a daemon is missing or does not start.
    pub fn start(bed: &Bed, kind: RouterKind, sessions: &[RouterSession]) -> Result<Self> {
        Self::start_with(bed, kind, &config(kind, sessions))
    }

    /// Starts a router with a complete configuration for BIRD, FRR's bgpd or gobgpd.
    ///
    /// # Errors
    /// Fails in the same cases as [`Self::start`].
    pub fn start_with(bed: &Bed, kind: RouterKind, config: &str) -> Result<Self> {
        let (daemons, shell) = match kind {
            RouterKind::Bird => bird(bed, config)?,
            RouterKind::Frr => frr(bed, config)?,
            RouterKind::Gobgp => gobgpd(bed, config)?,
        };
        let router = Self { kind, daemons, shell };
        // The socket may exist before the daemon listens on it, so the first query is repeated
        // until it succeeds.
        router.until(&router.shell.first, |_| true).map_err(|why| why.context(router.tail()))?;
        Ok(router)
    }

    /// Runs a query with the router's command-line client: `birdc`, `vtysh` or `gobgp`.
    ///
    /// # Errors
    /// Returns an error if the daemon does not respond or rejects the query.
    pub fn ask(&self, question: &str) -> Result<String> {
        let Shell { ns, program, args, whole, .. } = &self.shell;
        let mut args: Vec<&str> = args.iter().map(String::as_str).collect();
        if *whole {
            args.push(question);
        } else {
            args.extend(question.split_whitespace());
        }
        ns.text(program, &args)
    }

    /// Restarts a session. gobgpd does not support this.
    ///
    /// # Errors
    /// Fails in the same cases as [`Self::ask`].
    pub fn restart(&self, session: &RouterSession) -> Result<()> {
        let command = match self.kind {
            RouterKind::Frr => format!("clear bgp {}", session.ends().1),
            RouterKind::Bird | RouterKind::Gobgp => format!("restart {}", session.name()),
        };
        self.ask(&command).map(drop)
    }

    /// Repeats a query until `wanted` accepts its output, and returns that output.
    ///
    /// # Errors
    /// Returns an error on timeout. The message contains the last output.
    pub fn until(&self, question: &str, wanted: impl Fn(&str) -> bool) -> Result<String> {
        let mut last = String::new();
        let found = eventually(BOUND, || {
            let answer = self.ask(question);
            let is_wanted = answer.as_deref().is_ok_and(&wanted);
            last = answer.unwrap_or_else(|error| format!("{error:#}"));
            is_wanted.then_some(())
        });
        found.map(|()| last.clone()).ok_or_else(|| anyhow!("{}: {question}:\n{last}", self.shell))
    }

    /// Kills the daemons with SIGKILL. The BGP connections of the daemons close, but routes that
    /// the daemons installed may remain in the kernel.
    pub fn kill(&mut self) {
        self.daemons.iter_mut().for_each(Process::kill);
    }

    /// Returns the last log lines of all daemons, for error messages.
    #[must_use]
    pub fn tail(&self) -> String {
        self.daemons.iter().map(Process::tail).collect::<Vec<_>>().join("\n")
    }
}

impl Bed {
    /// Returns the number of next hops that the kernel has for a route such as `203.0.113.10/32`.
    #[must_use]
    pub fn next_hops(&self, route: &str) -> usize {
        let family = if route.contains(':') { "-6" } else { "-4" };
        let text = self.router.text("ip", &[family, "route", "show", route]);
        text.unwrap_or_default().matches("via ").count()
    }

    /// Writes a file to the directory of the testbed and returns its path.
    fn write(&self, name: &str, text: &str) -> Result<String> {
        let path = self.path_of(name);
        fs::write(&path, text).with_context(|| format!("cannot write {path}"))?;
        Ok(path)
    }

    fn path_of(&self, name: &str) -> String {
        self.dir().join(name).to_string_lossy().into_owned()
    }
}

/// The command-line client of a router and its arguments.
#[derive(Debug)]
struct Shell {
    ns: Namespace,
    program: &'static str,
    args: Vec<String>,
    /// `true` if the client expects the whole query as one argument.
    whole: bool,
    /// A query that succeeds once the router is up.
    first: String,
}

impl fmt::Display for Shell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} in {}", self.program, self.ns.name())
    }
}

fn bird(bed: &Bed, config: &str) -> Result<(Vec<Process>, Shell)> {
    let file = bed.write("bird.conf", config)?;
    let (socket, pid) = (bed.path_of("bird.ctl"), bed.path_of("bird.pid"));
    let args = ["-f", "-c", &file, "-s", &socket, "-P", &pid];
    let daemon = Process::start(&bed.router, "bird", "bird", &args)?;
    let args = vec!["-s".into(), socket];
    let (ns, first) = (bed.router.clone(), "show status".into());
    Ok((vec![daemon], Shell { ns, program: "birdc", args, whole: true, first }))
}

/// Starts the FRR daemons. The daemons run as the user `frr`, which must own the directory of their
/// sockets. With nexthop objects, the kernel removes the next hops of a link that goes down, and
/// FRR 8.4 does not add them again when the link comes up.
fn frr(bed: &Bed, bgpd: &str) -> Result<(Vec<Process>, Shell)> {
    // FRR drops root privileges, but must still be able to read its files in this directory.
    fs::set_permissions(bed.dir(), Permissions::from_mode(0o711))?;
    let folder = bed.path_of("frr");
    if !Path::new(&folder).exists() {
        fs::create_dir(&folder)?;
        let (user, group) = frr_ids()?;
        chown(&folder, Some(user), Some(group))?;
    }
    let (zserv, control) = (format!("{folder}/zserv.api"), format!("{folder}/bfdd.sock"));
    let mut daemons = Vec::new();
    for (name, config) in
        [("zebra", "hostname er\nno zebra nexthop kernel enable\n"), ("bfdd", FRR_BFDD), ("bgpd", bgpd)]
    {
        let file = bed.write(&format!("{name}.conf"), config)?;
        let (pid, socket) = (format!("{folder}/{name}.pid"), format!("{folder}/{name}.vty"));
        let mut args =
            vec!["--vty_socket", &folder, "-z", &zserv, "-A", "127.0.0.1", "-f", &file, "-i", &pid];
        if name == "bfdd" {
            args.extend(["--bfdctl", &control]);
        }
        let daemon = Process::start(&bed.router, name, format!("/usr/lib/frr/{name}"), &args)?;
        // Each daemon needs the sockets of the daemons that were started before it.
        let there = eventually(BOUND, || Path::new(&socket).exists().then_some(()));
        there.with_context(|| format!("{socket} does not exist, last log lines:\n{}", daemon.tail()))?;
        daemons.push(daemon);
    }
    let args = ["--vty_socket", &folder, "-c"].map(String::from).into();
    let (ns, first) = (bed.router.clone(), "show bgp summary".into());
    Ok((daemons, Shell { ns, program: "vtysh", args, whole: true, first }))
}

fn frr_ids() -> Result<(u32, u32)> {
    let users = fs::read_to_string("/etc/passwd")?;
    let ids = users.lines().find_map(|line| {
        let mut ids = line.strip_prefix("frr:")?.split(':').skip(1).map(str::parse);
        Some((ids.next()?.ok()?, ids.next()?.ok()?))
    });
    ids.context("the user frr does not exist, install the package frr")
}

fn gobgpd(bed: &Bed, config: &str) -> Result<(Vec<Process>, Shell)> {
    let file = bed.write("gobgpd.toml", config)?;
    let args = ["-f", &file, "--api-hosts", "127.0.0.1:50051", "--pprof-disable", "-p"];
    let daemon = Process::start(&bed.router, "gobgpd", "gobgpd", &args)?;
    let (ns, first) = (bed.router.clone(), "neighbor".into());
    Ok((vec![daemon], Shell { ns, program: "gobgp", args: vec![], whole: false, first }))
}

/// The timeout for all router operations, which is far longer than any operation takes.
const BOUND: Duration = Duration::from_secs(60);
