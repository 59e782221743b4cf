//! Runs speakers in the network namespaces of a testbed, and configures the routers for them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant, SystemTime};

use bgp::bfd::{Bfd, BfdChange, BfdConfig, BfdStatus, SessionState};
use bgp::{
    Attributes, Desired, Family, Md5Key, PeerConfig, PeerStatus, Prefix, Routes, Speaker, SpeakerConfig,
    State,
};
use testbed::{Bed, BedSpec, Namespace, RouterSession, eventually};
use tokio::runtime::Runtime;

/// The timeout of every wait, which is much longer than any step takes.
pub(crate) const BOUND: Duration = Duration::from_secs(60);
pub(crate) const VIP_V4: &str = "203.0.113.10/32";
pub(crate) const VIP_V6: &str = "2001:db8:f::10/128";

/// Creates a testbed with machines and a router, but without backends.
pub(crate) fn bed(machines: u8) -> Bed {
    let spec = BedSpec { balancers: machines, backends: 0, vips: vec![], ..BedSpec::default() };
    Bed::new(&spec).unwrap()
}

/// Waits until the router's kernel has `count` next hops for a route.
pub(crate) fn wait_for_next_hops(bed: &Bed, route: &str, count: usize) {
    let found = eventually(BOUND, || (bed.next_hops(route) == count).then_some(()));
    assert!(found.is_some(), "{route} has {} next hops, not {count}", bed.next_hops(route));
}

/// Polls a route until `done` returns `true` and the route exists. Returns the longest time for
/// which the route was missing.
pub(crate) fn gap(bed: &Bed, route: &str, done: impl Fn() -> bool) -> Duration {
    let (mut there, mut gap) = (Instant::now(), Duration::ZERO);
    let found = eventually(BOUND, || {
        let is_there = bed.next_hops(route) == 1;
        if is_there {
            gap = gap.max(there.elapsed());
            there = Instant::now();
        }
        (is_there && done()).then_some(())
    });
    assert!(found.is_some(), "{route} is not announced again");
    gap
}

/// A speaker whose tasks and sockets are in the network namespace of a machine.
pub(crate) struct Running {
    pub(crate) speaker: Speaker,
    runtime: Option<Runtime>,
}

impl Running {
    /// Starts a speaker on the machine of these sessions, with the routers as peers.
    pub(crate) fn start(bed: &Bed, sessions: &[RouterSession]) -> Self {
        Self::start_with(bed, &sessions[0], sessions.iter().map(peer).collect())
    }

    /// Starts a speaker on the machine of a session. `peers` may differ from the configuration of
    /// the router.
    pub(crate) fn start_with(bed: &Bed, session: &RouterSession, peers: Vec<PeerConfig>) -> Self {
        let machine = &bed.balancers[usize::from(session.machine) - 1];
        Self::start_in(&machine.ns, session.asn, machine.v4, peers)
    }

    pub(crate) fn start_in(ns: &Namespace, asn: u32, router_id: Ipv4Addr, peers: Vec<PeerConfig>) -> Self {
        let listen = vec![([0, 0, 0, 0], 179).into(), (Ipv6Addr::UNSPECIFIED, 179).into()];
        let mut config = SpeakerConfig::new(asn, router_id);
        (config.listen, config.peers) = (listen, peers);
        let (runtime, speaker) = ns.run(move || {
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

    /// Waits until each peer has acknowledged all routes. Returns the names of the peers that have
    /// not acknowledged all routes.
    pub(crate) fn flushed(&self) -> Vec<String> {
        self.runtime.as_ref().unwrap().block_on(self.speaker.flushed(BOUND))
    }

    pub(crate) fn until(&self, name: &str, wanted: impl Fn(&PeerStatus) -> bool) -> PeerStatus {
        let look = || self.speaker.status().get(name).filter(|status| wanted(status)).cloned();
        let found = eventually(BOUND, look);
        found.unwrap_or_else(|| {
            panic!("{name} did not reach the state: {:#?}", self.speaker.status().get(name))
        })
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

/// Returns the configuration of the router as a peer of the speaker on the machine.
pub(crate) fn peer(session: &RouterSession) -> PeerConfig {
    let family = if session.ipv4 { Family::Ipv4 } else { Family::Ipv6 };
    let mut config = PeerConfig::new(&session.name(), session.ends().0, session.own_asn);
    config.families = if session.both { Family::ALL.to_vec() } else { vec![family] };
    config.md5 = (!session.key.is_empty()).then(|| Md5Key::new(session.key).unwrap());
    config.gtsm_hops = session.near.then_some(1);
    config.times.hold = Duration::from_secs(9);
    config.times.first_retry = Duration::from_millis(500);
    config.times.max_retry = Duration::from_secs(2);
    config.times.dial = Duration::from_secs(3);
    if let (true, IpAddr::V6(own)) = (session.both, RouterSession { ipv4: false, ..*session }.ends().1) {
        config.next_hops.extended = !session.ipv4;
        config.next_hops.v6 = session.ipv4.then_some(own);
    }
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

/// Sets a detection time of ten intervals, because the machine may be busy with builds.
pub(crate) fn patient(mut config: BfdConfig) -> BfdConfig {
    config.multiplier = 10;
    config
}

/// Waits until all sessions are up and no session changes for three seconds.
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
    assert!(calm.is_some(), "sessions keep changing: {:#?}", bfd.status());
}
