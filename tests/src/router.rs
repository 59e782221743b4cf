//! A real router in the bed's router namespace: bird, FRR or gobgpd, started, asked and ended in one way.
//!
//! In: sessions with the bed's balancers, or a configuration of the test's own. Out: a [`Router`], and next hops in its kernel.
//! Not here: the daemons' configuration (`router_config`).
//! Invariant: daemons, sockets and files are the bed's own, and go with it. Needs the packages bird2, frr, gobgpd.

use std::fmt;
use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};

use crate::router_config::{FRR_BFDD, config};
use crate::{Bed, Namespace, Process, RouterSession, eventually};

/// Whose router it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RouterKind {
    /// bird 2.
    Bird,
    /// FRR: zebra, bfdd, bgpd.
    Frr,
    /// gobgpd: without BFD, and without a hand in the kernel's routes.
    Gobgp,
}

/// A router's daemons. They end with it.
#[derive(Debug)]
pub struct Router {
    daemons: Vec<Process>,
    shell: Shell,
}

impl Router {
    /// Starts a router that has these sessions, and a route in its kernel for each VIP that it hears of.
    ///
    /// # Errors
    /// A daemon is missing, or does not come up.
    pub fn start(bed: &Bed, kind: RouterKind, sessions: &[RouterSession]) -> Result<Self> {
        Self::start_with(bed, kind, &config(kind, sessions))
    }

    /// Starts a router by a configuration of the test's own: bird's, that of FRR's bgpd, or gobgpd's.
    ///
    /// # Errors
    /// As [`Self::start`].
    pub fn start_with(bed: &Bed, kind: RouterKind, config: &str) -> Result<Self> {
        let (daemons, shell) = match kind {
            RouterKind::Bird => bird(bed, config)?,
            RouterKind::Frr => frr(bed, config)?,
            RouterKind::Gobgp => gobgpd(bed, config)?,
        };
        let router = Self { daemons, shell };
        // Its socket may be there before it listens.
        router.until(&router.shell.first, |_| true).map_err(|why| why.context(router.tail()))?;
        Ok(router)
    }

    /// Asks its command line: `birdc`, `vtysh` or `gobgp`.
    ///
    /// # Errors
    /// It does not answer, or does not know the question.
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

    /// Asks until the answer is as wanted, and gives it.
    ///
    /// # Errors
    /// It never was: the last answer is in the message.
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

    /// Ends its daemons at once: their connections close, and what they put into the kernel may stay.
    pub fn kill(&mut self) {
        self.daemons.iter_mut().for_each(Process::kill);
    }

    /// What its daemons said last, for a message.
    #[must_use]
    pub fn tail(&self) -> String {
        self.daemons.iter().map(Process::tail).collect::<Vec<_>>().join("\n")
    }
}

impl Bed {
    /// Next hops of a route, such as `203.0.113.10/32`, in the router's kernel.
    #[must_use]
    pub fn next_hops(&self, route: &str) -> usize {
        let family = if route.contains(':') { "-6" } else { "-4" };
        let text = self.router.text("ip", &[family, "route", "show", route]);
        text.unwrap_or_default().matches("via ").count()
    }

    /// Writes a file into the bed's folder; gives its path.
    fn write(&self, name: &str, text: &str) -> Result<String> {
        let path = self.path_of(name);
        fs::write(&path, text).with_context(|| format!("can't write {path}"))?;
        Ok(path)
    }

    fn path_of(&self, name: &str) -> String {
        self.dir().join(name).to_string_lossy().into_owned()
    }
}

/// How a router is asked.
#[derive(Debug)]
struct Shell {
    ns: Namespace,
    program: &'static str,
    args: Vec<String>,
    /// It takes a question as one word.
    whole: bool,
    /// What it can answer once it is up.
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

/// They run as the user frr, who owns the folder of their sockets.
fn frr(bed: &Bed, bgpd: &str) -> Result<(Vec<Process>, Shell)> {
    // FRR gives up root and must still find its files.
    fs::set_permissions(bed.dir(), Permissions::from_mode(0o711))?;
    let folder = bed.path_of("frr");
    if !Path::new(&folder).exists() {
        fs::create_dir(&folder)?;
        let (user, group) = frr_ids()?;
        chown(&folder, Some(user), Some(group))?;
    }
    let (zserv, control) = (format!("{folder}/zserv.api"), format!("{folder}/bfdd.sock"));
    let mut daemons = Vec::new();
    for (name, config) in [("zebra", "hostname er\n"), ("bfdd", FRR_BFDD), ("bgpd", bgpd)] {
        let file = bed.write(&format!("{name}.conf"), config)?;
        let (pid, socket) = (format!("{folder}/{name}.pid"), format!("{folder}/{name}.vty"));
        let mut args =
            vec!["--vty_socket", &folder, "-z", &zserv, "-A", "127.0.0.1", "-f", &file, "-i", &pid];
        if name == "bfdd" {
            args.extend(["--bfdctl", &control]);
        }
        let daemon = Process::start(&bed.router, name, format!("/usr/lib/frr/{name}"), &args)?;
        // One needs the sockets of those before it.
        let there = eventually(BOUND, || Path::new(&socket).exists().then_some(()));
        there.with_context(|| format!("no {socket}:\n{}", daemon.tail()))?;
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
    ids.context("no user frr: FRR's package makes it")
}

fn gobgpd(bed: &Bed, config: &str) -> Result<(Vec<Process>, Shell)> {
    let file = bed.write("gobgpd.toml", config)?;
    let args = ["-f", &file, "--api-hosts", "127.0.0.1:50051", "--pprof-disable", "-p"];
    let daemon = Process::start(&bed.router, "gobgpd", "gobgpd", &args)?;
    let (ns, first) = (bed.router.clone(), "neighbor".into());
    Ok((vec![daemon], Shell { ns, program: "gobgp", args: vec![], whole: false, first }))
}

/// Far more than a router takes for anything.
const BOUND: Duration = Duration::from_secs(60);
