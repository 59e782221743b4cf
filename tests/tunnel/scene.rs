//! The fixture of the tests: a testbed, and a health-check tunnel in the first balancer's
//! namespace. The tests open the tunnel in the same way as the control plane.

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use compile::{PathMtus, compile_file, destinations, refresh_next_hops};
use forwarder::{Live, Slot, SlotId, SlotState, Snapshot};
use health::{Tunnel, TunnelDialer, TunnelError, TunnelNumbers, TunnelSetup};
use next_hop::{self, Resolver, Unresolved};
use testbed::{Bed, BedSpec, Decap, Encapsulation, LbConfig, Namespace};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// The timeout of the tests, which is ten times the longest wait on two busy cores.
pub(crate) const BOUND: Duration = Duration::from_secs(20);
/// The time for which a test waits for a packet that must not arrive. On these links an answer
/// takes less than a millisecond.
pub(crate) const SILENCE: Duration = Duration::from_millis(500);
pub(crate) const DEVICE: &str = "sluice-check";

/// A testbed in which the backends run `decap`. Fields are dropped in this order.
pub(crate) struct Scene {
    pub(crate) decaps: Vec<Decap>,
    pub(crate) file: PathBuf,
    pub(crate) config: LbConfig,
    pub(crate) bed: Bed,
}

impl Scene {
    /// Starts a testbed with `backends` backends. `kind` is the encapsulation, and `outer_v4`
    /// selects the address family of the outer header.
    pub(crate) fn new(backends: u8, kind: Encapsulation, outer_v4: bool, keys: &str, from: &[&str]) -> Self {
        let switched = kind == Encapsulation::L2;
        let bed = Bed::new(&BedSpec { backends, switched, ..BedSpec::default() }).unwrap();
        let mut config = LbConfig::new(&bed).encapsulation(kind);
        if !outer_v4 {
            config = config.outer_v6(&bed);
        }
        config.encapsulation_keys = keys.into();
        let file = config.write(&bed, 0).unwrap();
        let decaps = match (switched, from) {
            (true, _) => vec![],
            (false, []) => Decap::start_all(&bed).unwrap(),
            (false, from) => {
                let from: Vec<String> = from.iter().map(|&prefix| prefix.into()).collect();
                (0..bed.backends.len()).map(|n| Decap::start(&bed, n, &from).unwrap()).collect()
            }
        };
        Self { decaps, file, config, bed }
    }

    pub(crate) fn gre() -> Self {
        Self::new(1, Encapsulation::Gre, true, "", &[])
    }

    pub(crate) fn ns(&self) -> &Namespace {
        &self.bed.balancers[0].ns
    }

    /// Opens a tunnel in the balancer's namespace, runs `task` with it, and closes it.
    pub(crate) fn with_tunnel<T: Send + 'static>(
        &self,
        task: impl AsyncFnOnce(&Checks) -> T + Send + 'static,
    ) -> T {
        let (file, host) = (self.file.clone(), &self.bed.balancers[0]);
        let (name, device) = (host.name.clone(), host.device);
        self.ns().run(move || {
            runtime().block_on(async {
                let checks = Checks::open_again(&file, &name, device).await;
                let result = task(&checks).await;
                checks.tunnel.close().await.unwrap();
                result
            })
        })
    }
}

/// Returns a runtime with two workers, so that a test that blocks one worker does not stop the
/// tunnel.
pub(crate) fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

/// An open tunnel and the snapshot that it uses.
pub(crate) struct Checks {
    pub(crate) tunnel: Tunnel,
    pub(crate) live: Live,
}

impl Checks {
    /// Opens a tunnel as soon as the device of the previous tunnel is gone. A child process of
    /// another test holds a copy of the device's descriptor until the child executes a program.
    async fn open_again(file: &Path, name: &str, device: &str) -> Self {
        let mut tries = 0;
        loop {
            match Self::open(file, name, device).await {
                Err(TunnelError::NameTaken(_)) if tries < 100 => tries += 1,
                opened => return opened.unwrap(),
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    /// Opens a tunnel in the network namespace of the calling thread.
    pub(crate) async fn open(file: &Path, machine: &str, interface: &str) -> Result<Self, TunnelError> {
        let (config, _) = config::load(file).unwrap();
        let next_hops = next_hops(&destinations(&config, machine, None)).await;
        let compiled = compile_file(&config, machine).unwrap();
        let snapshot =
            refresh_next_hops(&compiled.snapshot, &config, machine, &next_hops, &PathMtus::default())
                .unwrap();
        let live = Live::new(snapshot);
        let setup = TunnelSetup {
            tun: datapath::open_tun(DEVICE).map_err(|error| TunnelError::of_device(DEVICE, error))?,
            tun_name: DEVICE.into(),
            interfaces: vec![interface.into()],
            own: config.machine(machine).unwrap().addresses.to_vec(),
            numbers: TunnelNumbers::default(),
        };
        Ok(Self { tunnel: Tunnel::open(setup, live.clone()).await?, live })
    }

    /// Returns a dialer that connects to a VIP on this backend.
    pub(crate) fn dialer(&self, backend: &str, vip: IpAddr) -> TunnelDialer {
        let snapshot = self.live.current();
        let slot = snapshot.slots().iter().position(|slot| &*slot.backend == backend).unwrap();
        self.tunnel.dialer(SlotId(u32::try_from(slot).unwrap()), vip, None)
    }

    /// Publishes a snapshot in which `change` was applied to every slot.
    pub(crate) fn change(&self, change: impl FnMut(&mut Slot)) {
        let current: Arc<Snapshot> = self.live.current();
        let mut slots = current.slots().to_vec();
        slots.iter_mut().for_each(change);
        self.live.publish(current.with_slots(slots, current.next_hop_mode().clone()).unwrap());
    }

    /// Publishes a snapshot in which all slots have the same state.
    pub(crate) fn put(&self, state: SlotState) {
        let current: Arc<Snapshot> = self.live.current();
        self.live.publish(current.with_states(vec![state; current.slots().len()]).unwrap());
    }

    /// Sends an HTTP request to a VIP on a backend and returns the response.
    pub(crate) async fn http(&self, backend: &str, vip: SocketAddr) -> Result<String, String> {
        let dialer = self.dialer(backend, vip.ip());
        within(async {
            let mut stream = dialer.tcp(vip).await?;
            let seen = stream.peer_addr()?;
            assert_eq!(seen, vip, "the check used a different destination");
            ask_http(&mut stream).await
        })
        .await
    }

    /// Sends a UDP request to the echo port of a VIP on a backend and returns the response.
    pub(crate) async fn udp(&self, backend: &str, vip: IpAddr) -> Result<String, String> {
        let dialer = self.dialer(backend, vip);
        within(async {
            let socket = dialer.udp((vip, Bed::ECHO_PORT).into()).await?;
            socket.send(b"query").await?;
            let mut room = [0; 500];
            let len = socket.recv(&mut room).await?;
            Ok(String::from_utf8_lossy(&room[..len]).into_owned())
        })
        .await
    }
}

/// Sends an HTTP request to a backend's own address.
pub(crate) async fn direct(server: SocketAddr) -> Result<String, String> {
    within(async { ask_http(&mut tokio::net::TcpStream::connect(server).await?).await }).await
}

async fn ask_http(stream: &mut tokio::net::TcpStream) -> std::io::Result<String> {
    stream.write_all(b"GET / HTTP/1.1\r\nHost: bed\r\nConnection: close\r\n\r\n").await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    Ok(answer)
}

/// Returns `true` if the attempt fails or times out.
pub(crate) async fn fails(attempt: impl Future<Output = Result<String, String>>) -> bool {
    !tokio::time::timeout(SILENCE, attempt).await.is_ok_and(|answer| answer.is_ok())
}

async fn within(attempt: impl Future<Output = std::io::Result<String>>) -> Result<String, String> {
    match tokio::time::timeout(BOUND, attempt).await {
        Ok(done) => done.map_err(|error| error.to_string()),
        Err(_) => Err("timeout".into()),
    }
}

async fn next_hops(addresses: &[IpAddr]) -> next_hop::Table {
    let mut resolver = Resolver::open().unwrap();
    let since = std::time::Instant::now();
    loop {
        let next_hops = resolver.resolve(addresses).await.unwrap();
        let mut pending = false;
        for hops in next_hops.values() {
            if let Err(Unresolved::NeighbourPending { interface, neighbour }) = hops.first() {
                pending = true;
                resolver.ask(interface, neighbour).await.unwrap();
            }
        }
        if !pending || since.elapsed() > BOUND {
            return next_hop::Table { next_hops, ..next_hop::Table::default() };
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
