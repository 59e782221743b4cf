//! Defines the measured forwarders that run as a process: the balancer and DPDK's testpmd.
//!
//! Forwarders inside the kernel are in `peers::kernel`, and proxies are in `peers::proxies`.

use std::fmt::Write as _;

use anyhow::Result;
use testbed::{Balancer, Encapsulation, Frame, Host, Kind, LbConfig, PoolMember, Service};

use crate::processors::DEVICE_CPU;
use crate::stage::{Load, NOBODY, Peer, START_BOUND, Stage, Worker};

/// The interface through which the balancer receives and sends packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Io {
    AfXdp,
    AfPacket,
}

/// The balancer with one packet thread.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ours {
    pub(crate) io: Io,
    pub(crate) encapsulation: Encapsulation,
    /// The value of `io.idle.prefer`. If `None`, the key is not configured.
    pub(crate) prefer: Option<&'static str>,
}

impl Ours {
    /// The balancer with the default settings for idle threads.
    pub(crate) const fn new(io: Io, encapsulation: Encapsulation) -> Self {
        Self { io, encapsulation, prefer: None }
    }

    fn config(&self, stage: &Stage) -> LbConfig {
        let mut config = LbConfig::new(&stage.bed).encapsulation(self.encapsulation);
        if config.pool.is_empty() {
            config.pool.push(PoolMember {
                name: "b1".into(),
                address: [198, 18, 1, 1].into(),
                weight: 1,
                ring_name: None,
            });
        }
        config.services.push(Service { ports: REQUEST_PORT.to_string(), protocol: "tcp", hash: None });
        if self.io == Io::AfPacket {
            config.io = "mode = \"af-packet\"\nqueues = 1".into();
        }
        if let Some(prefer) = self.prefer {
            let _ = write!(config.io, "\nidle = {{ prefer = \"{prefer}\" }}");
        }
        config
    }

    /// Adds or removes the neighbor entries and the route that MAC rewriting needs. MAC rewriting
    /// requires backends on the same link, but on this link no host has the backend addresses.
    fn link(&self, stage: &Stage, verb: &str) -> Result<()> {
        if self.encapsulation != Encapsulation::L2 {
            return Ok(());
        }
        let Host { ns, device, .. } = stage.host();
        let nobody = NOBODY.map(|byte| format!("{byte:02x}")).join(":");
        let neighbours = stage.bed.backends.iter().map(|Host { v4, .. }| match verb {
            "add" => format!("neigh add {v4} lladdr {nobody} nud permanent dev {device}\n"),
            _ => format!("neigh del {v4} dev {device}\n"),
        });
        ns.ip(&format!("route {verb} 198.18.1.0/24 dev {device}\n{}", neighbours.collect::<String>()))
    }
}

impl Peer for Ours {
    fn name(&self) -> &'static str {
        match (self.io, self.encapsulation) {
            (Io::AfXdp, Encapsulation::Gre) => "af-xdp-gre",
            (Io::AfXdp, Encapsulation::Ipip) => "af-xdp-ipip",
            (Io::AfXdp, Encapsulation::Gue) => "af-xdp-gue",
            (Io::AfXdp, Encapsulation::L2) => "af-xdp-l2",
            (Io::AfPacket, Encapsulation::Gre) => "af-packet-gre",
            (Io::AfPacket, Encapsulation::Ipip) => "af-packet-ipip",
            (Io::AfPacket, Encapsulation::Gue) => "af-packet-gue",
            (Io::AfPacket, Encapsulation::L2) => "af-packet-l2",
        }
    }

    /// Packets with rewritten MAC addresses do not reach the backends, which are behind the router.
    /// MAC rewriting is therefore not measured with requests.
    fn carries(&self, load: Load) -> bool {
        load == Load::Packets || self.encapsulation != Encapsulation::L2
    }

    fn has_xdp(&self) -> bool {
        self.io == Io::AfXdp
    }

    fn start(&self, stage: &Stage, _load: Load) -> Result<Worker> {
        self.link(stage, "add")?;
        let (program, cpu) = (stage.bed.program()?, DEVICE_CPU.to_string());
        let command = ["taskset", "-c", &cpu, &program.to_string_lossy()];
        Ok(Worker::Balancer(Balancer::start_by(&command, &stage.bed, 0, &self.config(stage))?))
    }

    fn clean_up(&self, stage: &Stage) -> Result<()> {
        self.link(stage, "del")
    }

    fn is_forwarded(&self, stage: &Stage, frame: &Frame) -> bool {
        let kind = frame.outer().map(|outer| outer.kind);
        match self.encapsulation {
            Encapsulation::Gre => kind == Some(Kind::Gre),
            Encapsulation::Ipip => kind == Some(Kind::Ipip),
            Encapsulation::Gue => kind == Some(Kind::Gue),
            Encapsulation::L2 => kind.is_none() && stage.bed.spec.vips.contains(&frame.ip.destination),
        }
    }
}

/// DPDK's testpmd over AF_XDP, which swaps MAC addresses without any lookup. The rate of this
/// forwarder is therefore an upper limit for AF_XDP forwarders.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Testpmd;

impl Peer for Testpmd {
    fn name(&self) -> &'static str {
        "testpmd"
    }

    fn carries(&self, load: Load) -> bool {
        load == Load::Packets
    }

    fn has_xdp(&self) -> bool {
        true
    }

    fn start(&self, stage: &Stage, _load: Load) -> Result<Worker> {
        let script = format!(
            "export RUNTIME_DIRECTORY={} && mount -t bpf bpf /sys/fs/bpf && exec dpdk-testpmd --no-huge -m 512 --no-pci --no-shconf --no-telemetry \
             --lcores=0@{DEVICE_CPU},1@{DEVICE_CPU} --vdev net_af_xdp0,iface={} -- --forward-mode=macswap \
             --no-lsc-interrupt --total-num-mbufs=16384 --stats-period=1",
            stage.bed.dir().display(),
            stage.host().device
        );
        let mut process = stage.process("testpmd", &["unshare", "--mount", "sh", "-c", &script])?;
        process.wait_for_line(START_BOUND, |line| line.contains("NIC statistics for port 0"))?;
        Ok(Worker::Process(process))
    }

    /// Detaches the XDP program, which stays attached if testpmd was killed.
    fn clean_up(&self, stage: &Stage) -> Result<()> {
        let Host { ns, device, .. } = stage.host();
        ns.ip(&format!("link set dev {device} xdp off"))
    }

    fn is_forwarded(&self, stage: &Stage, frame: &Frame) -> bool {
        frame.outer().is_none() && stage.bed.spec.vips.contains(&frame.ip.destination)
    }
}

/// The TCP port that VIPs and backends use for [`Load::Requests`].
pub(crate) const REQUEST_PORT: u16 = 8080;
