//! A bed whose backends run memcached, and a balancer with a keyed pool of them.

use std::net::SocketAddr;
use std::time::Duration;

use testbed::{
    Asker, Balancer, Bed, BedSpec, Decap, Host, LbConfig, MEMCACHED_PORT, Process, Service, eventually,
    start_memcached,
};

/// Ten times what any wait here takes on two busy cores.
pub(crate) const BOUND: Duration = Duration::from_secs(20);
/// For what must not come: on these links a reply takes less than a millisecond.
pub(crate) const SILENCE: Duration = Duration::from_millis(300);
/// Further keys of `kv`: a slow machine is no silent server.
pub(crate) const PATIENT: &str = ", gather = { timeout = \"1s\" }";
pub(crate) const PORT: u16 = MEMCACHED_PORT;

/// Dropped in this order: the balancer first, the bed last.
pub(crate) struct Scene {
    pub(crate) balancer: Balancer,
    /// In the order of the backends.
    pub(crate) servers: Vec<Option<Process>>,
    _decaps: Vec<Decap>,
    pub(crate) bed: Bed,
}

/// A keyed pool of all backends, for the bed's client, checked as its requests come; with further keys of `kv`.
pub(crate) fn config(bed: &Bed, kv: &str) -> LbConfig {
    let mut config = LbConfig::new(bed);
    let service = |protocol| Service { ports: PORT.to_string(), protocol, hash: None };
    config.services = vec![service("udp"), service("tcp")];
    let (v4, v6) = (bed.client.v4, bed.client.v6);
    config.pool_keys = format!(
        "checks = [\"cache\"]\nkv = {{ protocol = \"memcached\", clients = [\"{v4}\", \"{v6}\"]{kv} }}\n"
    );
    // A slow machine is no dead server.
    config.more = "[check.cache]\nmemcached = { transport = \"udp\" }\nvia = \"vip\"\n\
                   interval = \"1s\"\ntimeout = \"900ms\"\nfall = 4\n"
        .into();
    config
}

impl Scene {
    pub(crate) fn new(config: impl FnOnce(&Bed) -> LbConfig) -> Self {
        let server = |bed: &Bed, host: &Host| Some(memcached(bed, host));
        Self::with(&BedSpec::default(), config, server)
    }

    /// On another bed, with other servers.
    pub(crate) fn with(
        spec: &BedSpec,
        config: impl FnOnce(&Bed) -> LbConfig,
        server: impl Fn(&Bed, &Host) -> Option<Process>,
    ) -> Self {
        Self::by(spec, config, server, |bed, config| Balancer::start(bed, 0, config).unwrap())
    }

    /// The same with a balancer that `start` starts.
    pub(crate) fn by(
        spec: &BedSpec,
        config: impl FnOnce(&Bed) -> LbConfig,
        server: impl Fn(&Bed, &Host) -> Option<Process>,
        start: impl FnOnce(&Bed, &LbConfig) -> Balancer,
    ) -> Self {
        let bed = Bed::new(spec).unwrap();
        let servers = bed.backends.iter().map(|host| server(&bed, host)).collect();
        let decaps = Decap::start_all(&bed).unwrap();
        let balancer = start(&bed, &config(&bed));
        let scene = Self { balancer, servers, _decaps: decaps, bed };
        scene.serving(scene.bed.backends.len());
        scene
    }

    /// A client of the first VIP of a family.
    pub(crate) fn client(&self, ipv4: bool) -> Asker {
        Asker::new(&self.bed.client.ns, self.bed.vip(ipv4, PORT))
    }

    /// A client of one server, on its own machine.
    pub(crate) fn beside(&self, backend: usize) -> Asker {
        let host = &self.bed.backends[backend];
        Asker::new(&host.ns, SocketAddr::new(host.v4.into(), PORT))
    }

    /// The answer through the balancer.
    pub(crate) fn ask(&self, client: &Asker, command: &[u8]) -> Vec<u8> {
        client
            .ask_within(command, BOUND)
            .unwrap_or_else(|| panic!("no answer to {}\n{}", command.escape_ascii(), self.diagnosis()))
    }

    /// Waits until so many backends serve.
    pub(crate) fn serving(&self, count: usize) {
        let serves = || are_serving(&self.balancer, count).then_some(());
        assert!(eventually(BOUND, serves).is_some(), "not {count} serving\n{}", self.diagnosis());
    }

    /// Waits until so many packets have been dropped for that reason; none was for another.
    pub(crate) fn drops_become(&self, wanted: &[(&str, u64)]) {
        self.drops_become_beside(wanted, &[]);
    }

    /// As [`Self::drops_become`], with any number for the reasons in `beside`.
    pub(crate) fn drops_become_beside(&self, wanted: &[(&str, u64)], beside: &[&str]) {
        let mut wanted: Vec<_> =
            wanted.iter().map(|(reason, count)| ((*reason).to_owned(), *count)).collect();
        wanted.sort();
        let have = || {
            let mut drops = self.balancer.counters().unwrap().drops();
            drops.retain(|(reason, _)| !beside.contains(&reason.as_str()));
            drops.sort();
            (drops == wanted).then_some(())
        };
        assert!(eventually(BOUND, have).is_some(), "not {wanted:?}\n{}", self.diagnosis());
    }

    pub(crate) fn diagnosis(&self) -> String {
        let counters = self.balancer.counters().map(|counters| format!("{:#}", counters.0));
        format!("{}\n{}", self.balancer.process.tail(), counters.unwrap_or_else(|error| error.to_string()))
    }
}

/// Whether so many backends serve, as a balancer says.
pub(crate) fn are_serving(balancer: &Balancer, count: usize) -> bool {
    let answer = balancer.ask("/v1/backends").unwrap_or_default();
    let backends = answer.as_array().map(Vec::as_slice).unwrap_or_default();
    backends.iter().filter(|backend| backend["state"] == "serving").count() == count
}

/// A server at the VIPs, to answer clients itself, and at its own address.
pub(crate) fn memcached(bed: &Bed, host: &Host) -> Process {
    memcached_with(bed, host, &[])
}

/// The same with further arguments.
pub(crate) fn memcached_with(bed: &Bed, host: &Host, more: &[&str]) -> Process {
    start_memcached(bed, host, more).unwrap()
}
