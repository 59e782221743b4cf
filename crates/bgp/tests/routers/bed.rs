//! A router and one or two machines that speak to it, each in a namespace of its own.
//!
//! Machine `n` is 192.0.2.(2n-1) and 2001:db8:0:n::1; the router's ends are 192.0.2.(2n-2) and 2001:db8:0:n::2.

use std::fs::{self, Permissions};
use std::net::{IpAddr, Ipv4Addr};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant, SystemTime};

use bgp::bfd::{Bfd, BfdChange, BfdConfig, BfdStatus, SessionState};
use bgp::{
    Attributes, Desired, Family, Md5Key, PeerConfig, PeerStatus, Prefix, Routes, Speaker, SpeakerConfig,
    State,
};
use testbed::{Namespace, Process, TempDir, Veth, eventually};
use tokio::runtime::Runtime;

/// Far more than anything here takes.
pub(crate) const BOUND: Duration = Duration::from_secs(60);
pub(crate) const ROUTER_ASN: u32 = 65_000;
pub(crate) const VIP_V4: &str = "203.0.113.10/32";
pub(crate) const VIP_V6: &str = "2001:db8:beef::10/128";

pub(crate) struct Bed {
    pub(crate) router: Namespace,
    pub(crate) machines: Vec<Namespace>,
    dir: TempDir,
}

impl Bed {
    pub(crate) fn new(machines: u8) -> Self {
        let router = Namespace::new("router").unwrap();
        router.sysctl(SETTINGS).unwrap();
        let dir = TempDir::new().unwrap();
        // FRR gives up root and must still find its files.
        fs::set_permissions(dir.path(), Permissions::from_mode(0o711)).unwrap();
        let machines = (1..=machines).map(|n| join(&router, n)).collect();
        Self { router, machines, dir }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(crate) fn write(&self, name: &str, text: &str) -> String {
        let path = self.path(name);
        fs::write(&path, text).unwrap();
        path.to_string_lossy().into_owned()
    }

    /// Next hops of a route in the router's kernel.
    pub(crate) fn next_hops(&self, prefix: &str) -> usize {
        let family = if prefix.contains(':') { "-6" } else { "-4" };
        let text = self.router.text("ip", &[family, "route", "show", prefix]).unwrap_or_default();
        text.matches("via ").count()
    }

    /// Looks at a route until `done`, and it is there: how long it was not, at most.
    pub(crate) fn gap(&self, prefix: &str, done: impl Fn() -> bool) -> Duration {
        let (mut there, mut gap) = (Instant::now(), Duration::ZERO);
        let found = eventually(BOUND, || {
            let is_there = self.next_hops(prefix) == 1;
            if is_there {
                gap = gap.max(there.elapsed());
                there = Instant::now();
            }
            (is_there && done()).then_some(())
        });
        assert!(found.is_some(), "{prefix} does not come back");
        gap
    }

    pub(crate) fn wait_for_next_hops(&self, prefix: &str, count: usize) {
        let found = eventually(BOUND, || (self.next_hops(prefix) == count).then_some(()));
        assert!(found.is_some(), "{prefix} has {} next hops, not {count}", self.next_hops(prefix));
    }
}

fn join(router: &Namespace, n: u8) -> Namespace {
    let machine = Namespace::new(&format!("lb{n}")).unwrap();
    machine.sysctl(SETTINGS).unwrap();
    let port = format!("lb{n}");
    Veth { queues: 1, mtu: 1500 }.join((&machine, "up0"), (router, &port)).unwrap();
    let (here, there) = (2 * n - 1, 2 * n - 2);
    machine
        .ip(&format!("addr add 192.0.2.{here}/31 dev up0\naddr add 2001:db8:0:{n}::1/64 dev up0 nodad"))
        .unwrap();
    router
        .ip(&format!(
            "addr add 192.0.2.{there}/31 dev {port}\naddr add 2001:db8:0:{n}::2/64 dev {port} nodad"
        ))
        .unwrap();
    machine
}

/// A speaker whose tasks and sockets are in a machine's namespace.
pub(crate) struct Running {
    pub(crate) speaker: Speaker,
    runtime: Option<Runtime>,
}

impl Running {
    pub(crate) fn start(machine: &Namespace, n: u8, asn: u32, peers: Vec<PeerConfig>) -> Self {
        let router_id = Ipv4Addr::new(192, 0, 2, 2 * n - 1);
        let listen = vec![([0, 0, 0, 0], 179).into(), (std::net::Ipv6Addr::UNSPECIFIED, 179).into()];
        let config = SpeakerConfig { asn, router_id, listen, peers };
        let (runtime, speaker) = machine.run(move || {
            let mut builder = tokio::runtime::Builder::new_multi_thread();
            let runtime = builder.worker_threads(1).enable_all().build().unwrap();
            let speaker = {
                let _inside = runtime.enter();
                Speaker::start(config).unwrap()
            };
            (runtime, speaker)
        });
        Self { speaker, runtime: Some(runtime) }
    }

    pub(crate) fn shutdown(&self, text: &str) {
        self.runtime.as_ref().unwrap().block_on(self.speaker.shutdown(text));
    }

    pub(crate) fn until(&self, name: &str, wanted: impl Fn(&PeerStatus) -> bool) -> PeerStatus {
        let look = || self.speaker.status().get(name).filter(|status| wanted(status)).cloned();
        let found = eventually(BOUND, look);
        found.unwrap_or_else(|| panic!("{name} did not get there: {:#?}", self.speaker.status().get(name)))
    }

    pub(crate) fn established(&self, name: &str) -> PeerStatus {
        self.until(name, |status| status.state == State::Established)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_timeout(Duration::from_secs(5));
        }
    }
}

/// The router as machine `n` sees it.
pub(crate) fn peer(name: &str, family: Family, n: u8) -> PeerConfig {
    let address: IpAddr = match family {
        Family::Ipv4 => Ipv4Addr::new(192, 0, 2, 2 * n - 2).into(),
        Family::Ipv6 => format!("2001:db8:0:{n}::2").parse().unwrap(),
    };
    let mut config = PeerConfig::new(name, address, ROUTER_ASN);
    config.families = vec![family];
    config.hold = Duration::from_secs(9);
    config.first_retry = Duration::from_millis(500);
    config.longest_retry = Duration::from_secs(2);
    config.dial = Duration::from_secs(3);
    config
}

pub(crate) fn with_key(mut config: PeerConfig, key: &str) -> PeerConfig {
    config.md5 = Some(Md5Key::new(key).unwrap());
    config
}

pub(crate) fn table(routes: &[&str], attributes: &Attributes) -> Desired {
    let mut table = Routes::new();
    for route in routes {
        let prefix: Prefix = route.parse().unwrap();
        table.insert(prefix, attributes.clone()).unwrap();
    }
    Desired::everyone(table)
}

/// Asks a router's command line until its answer is as wanted.
pub(crate) fn ask(ns: &Namespace, program: &str, args: &[&str], wanted: impl Fn(&str) -> bool) -> String {
    let mut last = String::new();
    let found = eventually(BOUND, || {
        last = ns.text(program, args).unwrap_or_else(|error| format!("{error:#}"));
        wanted(&last).then(|| last.clone())
    });
    found.unwrap_or_else(|| panic!("{program} {args:?} says:\n{last}"))
}

pub(crate) fn start(ns: &Namespace, name: &str, program: &str, args: &[&str]) -> Process {
    Process::start(ns, name, program, args).unwrap()
}

/// A second of silence is a loss: tests share a machine with builds.
pub(crate) fn patient(mut config: BfdConfig) -> BfdConfig {
    config.multiplier = 10;
    config
}

/// Until all sessions are up, and for three seconds none changes.
pub(crate) fn wait_for_calm(bfd: &Bfd, changes: &Receiver<BfdChange>) {
    let calm = eventually(BOUND, || {
        let is_up = |status: &BfdStatus| status.state == SessionState::Up;
        let all_up = bfd.status().values().all(is_up);
        match changes.recv_timeout(Duration::from_secs(3)) {
            Ok(change) => println!("{:?} {change:?}", SystemTime::now()),
            Err(_) if all_up => return Some(()),
            Err(_) => {}
        }
        None
    });
    assert!(calm.is_some(), "no calm: {:#?}", bfd.status());
}

const SETTINGS: &[(&str, &str)] = &[
    ("ipv4/ip_forward", "1"),
    ("ipv6/conf/all/forwarding", "1"),
    ("ipv6/conf/all/accept_dad", "0"),
    ("ipv6/conf/default/accept_dad", "0"),
    ("ipv4/fib_multipath_hash_policy", "1"),
    ("ipv6/fib_multipath_hash_policy", "1"),
];
