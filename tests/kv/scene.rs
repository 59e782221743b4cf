//! The fixture of most tests: a testbed with memcached on the backends, and a balancer with a keyed
//! pool.

use std::net::SocketAddr;
use std::time::Duration;

use testbed::{
    Balancer, Bed, BedSpec, Decap, Host, LbConfig, MEMCACHED_PORT, Process, QueryClient, Service, eventually,
    start_memcached,
};

/// The timeout of the tests, which is ten times the longest wait on two busy cores.
pub(crate) const BOUND: Duration = Duration::from_secs(20);
/// The time for which a test waits for a reply that must not arrive. On these links a reply takes
/// less than a millisecond.
pub(crate) const SILENCE: Duration = Duration::from_millis(300);
/// A setting for the `kv` table of a pool: a timeout that is long enough for slow machines.
pub(crate) const PATIENT: &str = ", gather = { timeout = \"1s\" }";
pub(crate) const PORT: u16 = MEMCACHED_PORT;

/// A testbed with memcached servers and a running balancer. Fields are dropped in this order, so
/// the balancer stops before the testbed is removed.
pub(crate) struct Scene {
    pub(crate) balancer: Balancer,
    /// The servers, one per backend, in the same order. An element is `None` while its server is
    /// stopped.
    pub(crate) servers: Vec<Option<Process>>,
    _decaps: Vec<Decap>,
    pub(crate) bed: Bed,
}

/// Returns a configuration with a keyed pool of all backends. The text `kv` is added to the `kv`
/// table of the pool. Health checks use UDP like the client's requests.
pub(crate) fn config(bed: &Bed, kv: &str) -> LbConfig {
    let mut config = LbConfig::new(bed);
    config.services = vec![Service { ports: PORT.to_string(), protocol: "udp", hash: None }];
    let (v4, v6) = (bed.client.v4, bed.client.v6);
    config.pool_keys = format!(
        "checks = [\"cache\"]\nkv = {{ protocol = \"memcached\", clients = [\"{v4}\", \"{v6}\"]{kv} }}\n"
    );
    // The limits of the health check are long enough for slow machines.
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

    /// Starts the fixture with a different testbed and different servers.
    pub(crate) fn with(
        spec: &BedSpec,
        config: impl FnOnce(&Bed) -> LbConfig,
        server: impl Fn(&Bed, &Host) -> Option<Process>,
    ) -> Self {
        Self::by(spec, config, server, |bed, config| Balancer::start(bed, 0, config).unwrap())
    }

    /// Starts the fixture with the balancer that `start` returns.
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

    /// Returns a client for the first VIP of this address family.
    pub(crate) fn client(&self, ipv4: bool) -> QueryClient {
        QueryClient::new(&self.bed.client.ns, self.bed.vip(ipv4, PORT))
    }

    /// Returns a client that runs on a server's own host and queries this server directly.
    pub(crate) fn beside(&self, backend: usize) -> QueryClient {
        let host = &self.bed.backends[backend];
        QueryClient::new(&host.ns, SocketAddr::new(host.v4.into(), PORT))
    }

    /// Sends a command through the balancer and returns the response.
    pub(crate) fn ask(&self, client: &QueryClient, command: &[u8]) -> Vec<u8> {
        client
            .ask_within(command, BOUND)
            .unwrap_or_else(|| panic!("no response to {}\n{}", command.escape_ascii(), self.diagnosis()))
    }

    /// Waits until `count` backends are serving.
    pub(crate) fn serving(&self, count: usize) {
        let serves = || are_serving(&self.balancer, count).then_some(());
        assert!(
            eventually(BOUND, serves).is_some(),
            "expected {count} serving backends\n{}",
            self.diagnosis()
        );
    }

    /// Waits until the drop counters have the values in `wanted`. All other drop counters must be
    /// 0.
    pub(crate) fn drops_become(&self, wanted: &[(&str, u64)]) {
        self.drops_become_beside(wanted, &[]);
    }

    /// Waits like [`Self::drops_become`], but ignores the drop reasons in `beside`.
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
        assert!(eventually(BOUND, have).is_some(), "expected drop counters {wanted:?}\n{}", self.diagnosis());
    }

    pub(crate) fn diagnosis(&self) -> String {
        let counters = self.balancer.counters().map(|counters| format!("{:#}", counters.0));
        format!("{}\n{}", self.balancer.process.tail(), counters.unwrap_or_else(|error| error.to_string()))
    }
}

/// Returns `true` if the balancer reports `count` backends that serve.
pub(crate) fn are_serving(balancer: &Balancer, count: usize) -> bool {
    let answer = balancer.ask("/v1/backends").unwrap_or_default();
    let backends = answer.as_array().map(Vec::as_slice).unwrap_or_default();
    backends.iter().filter(|backend| backend["state"] == "serving").count() == count
}

/// Starts a memcached server on a backend. The server listens on the VIPs and on the backend's own
/// address.
pub(crate) fn memcached(bed: &Bed, host: &Host) -> Process {
    memcached_with(bed, host, &[])
}

/// Starts a server like [`memcached`] with additional arguments.
pub(crate) fn memcached_with(bed: &Bed, host: &Host, more: &[&str]) -> Process {
    start_memcached(bed, host, more).unwrap()
}
