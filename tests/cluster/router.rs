//! bird or FRR in the router's namespace, for two machines over both families.
//!
//! Source: RFC 8326 for what a machine that leaves says: its routes are the last choice.

use std::fmt::Write as _;
use std::fs::{self, Permissions};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;
use std::time::Duration;

use testbed::{Bed, Process, eventually};

/// The key of all sessions.
pub(crate) const KEY: &str = "s3cret";
pub(crate) const ROUTER_ASN: u32 = 65_000;
pub(crate) const CLUSTER_ASN: u32 = 65_101;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Bird,
    Frr,
}

/// A session as the router has it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Session {
    /// The machine, from 1.
    pub(crate) machine: u8,
    pub(crate) ipv4: bool,
    pub(crate) key: &'static str,
    /// The AS number that it believes the machine to have.
    pub(crate) asn: u32,
}

impl Session {
    /// All that the bed needs.
    pub(crate) fn all() -> Vec<Self> {
        let session = |machine, ipv4| Self { machine, ipv4, key: KEY, asn: CLUSTER_ASN };
        [1, 2].into_iter().flat_map(|machine| [session(machine, true), session(machine, false)]).collect()
    }

    pub(crate) fn name(&self) -> String {
        name(self.machine, self.ipv4)
    }

    fn addresses(&self) -> (IpAddr, IpAddr) {
        ends(self.machine, self.ipv4)
    }
}

/// What both ends call the session.
pub(crate) fn name(machine: u8, ipv4: bool) -> String {
    format!("r{}lb{machine}", if ipv4 { 4 } else { 6 })
}

/// The router's end and the machine's, as the bed has them.
pub(crate) fn ends(machine: u8, ipv4: bool) -> (IpAddr, IpAddr) {
    if ipv4 {
        let end = |last| Ipv4Addr::new(192, 0, 2, last).into();
        (end(2 * machine - 2), end(2 * machine - 1))
    } else {
        let end = |last| Ipv6Addr::new(0x2001, 0xdb8, 0, machine.into(), 0, 0, 0, last).into();
        (end(0xff), end(1))
    }
}

/// Daemons that end with it.
pub(crate) struct Router {
    daemons: Vec<Process>,
}

impl Router {
    pub(crate) fn start(bed: &Bed, kind: Kind, sessions: &[Session]) -> Self {
        // FRR gives up root and must still find its files.
        fs::set_permissions(bed.dir(), Permissions::from_mode(0o711)).unwrap();
        let daemons = match kind {
            Kind::Bird => vec![bird(bed, sessions)],
            Kind::Frr => frr(bed, sessions),
        };
        Self { daemons }
    }

    /// What its daemons said last, for a message.
    pub(crate) fn tail(&self) -> String {
        self.daemons.iter().map(Process::tail).collect::<Vec<_>>().join("\n")
    }
}

fn write(bed: &Bed, name: &str, text: &str) -> String {
    let path = bed.dir().join(name);
    fs::write(&path, text).unwrap();
    path.to_string_lossy().into_owned()
}

fn bird(bed: &Bed, sessions: &[Session]) -> Process {
    let mut text = BIRD.to_owned();
    for session in sessions {
        let ((here, there), name) = (session.addresses(), session.name());
        let family = if session.ipv4 { "4" } else { "6" };
        let Session { key, asn, .. } = session;
        let _ = writeln!(
            text,
            "protocol bgp {name} {{ local {here} as {ROUTER_ASN}; neighbor {there} as {asn}; password \"{key}\"; passive on;\n \
             hold time 9; error wait time 1, 3; bfd on; ipv{family} {{ import filter vips; export none; }}; }}"
        );
    }
    let file = write(bed, "bird.conf", &text);
    let path = |name: &str| bed.dir().join(name).to_string_lossy().into_owned();
    let (socket, pid) = (path("bird.ctl"), path("bird.pid"));
    let args = ["-f", "-c", &file, "-s", &socket, "-P", &pid];
    let bird = Process::start(&bed.router, "bird", "bird", &args).unwrap();
    wait_for_file(&socket, &bird);
    bird
}

/// zebra, bfdd and bgpd. They run as the user frr, who owns the folder of their sockets.
fn frr(bed: &Bed, sessions: &[Session]) -> Vec<Process> {
    let folder = bed.dir().join("frr");
    fs::create_dir(&folder).unwrap();
    let (user, group) = frr_ids();
    chown(&folder, Some(user), Some(group)).unwrap();
    let folder = folder.to_string_lossy().into_owned();
    let (zserv, control) = (format!("{folder}/zserv.api"), format!("{folder}/bfdd.sock"));
    let mut daemons = Vec::new();
    for (name, config) in [("zebra", "hostname er\n"), ("bfdd", BFDD), ("bgpd", &bgpd(sessions))] {
        let file = write(bed, &format!("{name}.conf"), config);
        let pid = format!("{folder}/{name}.pid");
        let mut args =
            vec!["--vty_socket", &folder, "-z", &zserv, "-A", "127.0.0.1", "-f", &file, "-i", &pid];
        if name == "bfdd" {
            args.extend(["--bfdctl", &control]);
        }
        let daemon = Process::start(&bed.router, name, format!("/usr/lib/frr/{name}"), &args).unwrap();
        wait_for_file(&format!("{folder}/{name}.vty"), &daemon);
        daemons.push(daemon);
    }
    daemons
}

fn wait_for_file(path: &str, of: &Process) {
    let there = eventually(BOUND, || Path::new(path).exists().then_some(()));
    assert!(there.is_some(), "no {path}:\n{}", of.tail());
}

fn frr_ids() -> (u32, u32) {
    let users = fs::read_to_string("/etc/passwd").unwrap();
    let line = users.lines().find(|line| line.starts_with("frr:")).expect("FRR's package makes its user");
    let mut ids = line.split(':').skip(2).map(|id| id.parse().unwrap());
    (ids.next().unwrap(), ids.next().unwrap())
}

fn bgpd(sessions: &[Session]) -> String {
    let mut text = BGPD.to_owned();
    for session in sessions {
        let (_, there) = session.addresses();
        let Session { key, asn, .. } = session;
        let _ = writeln!(
            text,
            " neighbor {there} remote-as {asn}\n neighbor {there} password {key}\n neighbor {there} timers 3 9\n \
             neighbor {there} passive\n neighbor {there} bfd profile fast"
        );
    }
    for (family, ipv4) in [("ipv4", true), ("ipv6", false)] {
        let _ = writeln!(text, " address-family {family} unicast\n  maximum-paths 16");
        for session in sessions.iter().filter(|session| session.ipv4 == ipv4) {
            let (_, there) = session.addresses();
            let _ = writeln!(
                text,
                "  neighbor {there} activate\n  neighbor {there} route-map {family} in\n  neighbor {there} route-map none out"
            );
        }
        text.push_str(" exit-address-family\n");
    }
    text + MAPS
}

const BIRD: &str = "log stderr all;
router id 192.0.2.0;
protocol device { scan time 1; }
protocol direct { ipv4; ipv6; }
protocol kernel { ipv4 { import none; export where source = RTS_BGP; }; merge paths on limit 16; }
protocol kernel { ipv6 { import none; export where source = RTS_BGP; }; merge paths on limit 16; }
protocol bfd { interface \"*\" { min rx interval 100 ms; min tx interval 100 ms; multiplier 5; }; }
filter vips {
  if net.type = NET_IP4 && net !~ [ 203.0.113.0/24{32,32} ] then reject;
  if net.type = NET_IP6 && net !~ [ 2001:db8:f::/48{128,128} ] then reject;
  if (65535, 0) ~ bgp_community then bgp_local_pref = 0;
  accept;
}
";

const BFDD: &str = "bfd
 profile fast
  detect-multiplier 5
  receive-interval 100
  transmit-interval 100
";

const BGPD: &str = "ip prefix-list VIPS4 seq 5 permit 203.0.113.0/24 ge 32
ipv6 prefix-list VIPS6 seq 5 permit 2001:db8:f::/48 ge 128
bgp community-list standard GSHUT seq 5 permit graceful-shutdown
router bgp 65000
 bgp router-id 192.0.2.0
 no bgp default ipv4-unicast
 bgp bestpath as-path multipath-relax
";

const MAPS: &str = "route-map ipv4 permit 5
 match community GSHUT
 match ip address prefix-list VIPS4
 set local-preference 0
route-map ipv4 permit 10
 match ip address prefix-list VIPS4
route-map ipv6 permit 5
 match community GSHUT
 match ipv6 address prefix-list VIPS6
 set local-preference 0
route-map ipv6 permit 10
 match ipv6 address prefix-list VIPS6
 set ipv6 next-hop prefer-global
route-map none deny 10
";

const BOUND: Duration = Duration::from_secs(60);
