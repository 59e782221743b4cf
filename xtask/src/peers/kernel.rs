//! Measures forwarders in the kernel: destination NAT with nftables, and IPVS.
//!
//! nftables and IPVS are configured as an operator would configure them, with forwarding enabled
//! and ICMP redirects disabled. With nftables, the kernel hashes the client address and port, and
//! looks up the hash in a map of backend addresses. The kernel's connection table stores the chosen
//! backend of each connection. Closing connections are removed from this table after one second.
//! IPVS uses the scheduler `mh`, which implements Maglev hashing. The kernel must also rewrite the
//! replies of backends, so replies pass through this machine (`peers::requests`).

use std::fs;
use std::process::Command;

use anyhow::{Context, Result};
use testbed::{Bed, Frame, Host};

use crate::forwarders::REQUEST_PORT;
use crate::stage::{Load, Peer, Stage, Worker};

/// Destination NAT with nftables.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Nftables;

impl Peer for Nftables {
    fn name(&self) -> &'static str {
        "nftables"
    }

    fn carries(&self, _load: Load) -> bool {
        true
    }

    fn start(&self, stage: &Stage, _load: Load) -> Result<Worker> {
        let file = stage.bed.dir().join("peer.nft");
        fs::write(&file, rules(stage))?;
        let ns = &stage.host().ns;
        ns.text("nft", &["-f", &file.to_string_lossy()])?;
        ns.sysctl(&[("netfilter/nf_conntrack_tcp_timeout_time_wait", "1")])?;
        Ok(Worker::Kernel)
    }

    fn clean_up(&self, stage: &Stage) -> Result<()> {
        stage.host().ns.text("nft", &["delete", "table", "ip", "peer"]).map(drop)
    }

    fn is_forwarded(&self, stage: &Stage, frame: &Frame) -> bool {
        is_rewritten(stage, frame)
    }
}

/// Returns the nftables rules for the backends of a testbed.
fn rules(stage: &Stage) -> String {
    let backends = &stage.bed.backends;
    let elements: Vec<String> =
        backends.iter().enumerate().map(|(n, Host { v4, .. })| format!("{n} : {v4}")).collect();
    let rule = |protocol: &str, port: u16| {
        format!(
            "    ip daddr {} {protocol} dport {port} dnat to jhash ip saddr . {protocol} sport mod {} map {{ {} }}\n",
            stage.bed.vip(true, port).ip(),
            backends.len(),
            elements.join(", ")
        )
    };
    format!(
        "table ip peer {{\n  chain in {{\n    type nat hook prerouting priority dstnat\n{}{}  }}\n}}\n",
        rule("udp", Bed::SINK_PORT),
        rule("tcp", REQUEST_PORT)
    )
}

/// IPVS with masquerading, which is skipped if the kernel does not support it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ipvs;

impl Peer for Ipvs {
    fn name(&self) -> &'static str {
        "ipvs"
    }

    fn carries(&self, _load: Load) -> bool {
        true
    }

    fn missing(&self, stage: &Stage) -> Result<Option<String>> {
        let ask = |program: &str, args: &[&str]| -> Result<Option<String>> {
            let mut command = Command::new(program);
            command.args(args);
            let words = format!("{program} {}", args.join(" "));
            let output = stage
                .host()
                .ns
                .run(move || command.output())
                .with_context(|| format!("cannot run {words}"))?;
            let said = String::from_utf8_lossy(&output.stderr).lines().next().unwrap_or_default().to_owned();
            Ok((!output.status.success()).then(|| format!("{words}: {said}")))
        };
        // If IPVS is built into the kernel, there is no module to load.
        let module = ask("modprobe", &["ip_vs"])?;
        let table = ask("ipvsadm", &["-L", "-n"])?;
        Ok(table.map(|table| module.into_iter().chain([table]).collect::<Vec<_>>().join("; ")))
    }

    fn start(&self, stage: &Stage, _load: Load) -> Result<Worker> {
        let mut script = String::new();
        for (flag, port) in [("-u", Bed::SINK_PORT), ("-t", REQUEST_PORT)] {
            let service = stage.bed.vip(true, port);
            script += &format!("-A {flag} {service} -s mh -b mh-port\n");
            for Host { v4, .. } in &stage.bed.backends {
                script += &format!("-a {flag} {service} -r {v4}:{port} -m\n");
            }
        }
        let file = stage.bed.dir().join("peer.ipvs");
        fs::write(&file, script)?;
        stage.own_vip(true)?;
        stage.host().ns.text("sh", &["-c", &format!("ipvsadm -R < {}", file.display())])?;
        Ok(Worker::Kernel)
    }

    fn clean_up(&self, stage: &Stage) -> Result<()> {
        stage.host().ns.text("ipvsadm", &["-C"])?;
        stage.own_vip(false)
    }

    fn is_forwarded(&self, stage: &Stage, frame: &Frame) -> bool {
        is_rewritten(stage, frame)
    }
}

/// Returns `true` if the destination of the frame is a backend, and its source is still the
/// client's address.
fn is_rewritten(stage: &Stage, frame: &Frame) -> bool {
    let to_a_backend = stage.bed.backends.iter().any(|backend| frame.ip.destination == backend.v4);
    to_a_backend && frame.ip.source == stage.bed.client.v4 && frame.outer().is_none()
}
