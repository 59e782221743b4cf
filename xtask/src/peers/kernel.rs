//! Peers in the kernel: destination NAT by nftables, and IPVS.
//!
//! Both are on the device's machine as an operator has them: forwarding on, redirects off, connections that wait for their end
//! forgotten after a second (nftables), or a scheduler of Maglev's kind (IPVS). nftables chooses by a hash of the source, in an
//! address map; the connection table of the kernel has what was chosen.
//! The answers of backends come back this way (`peers::requests`): the kernel rewrites them too.

use std::fs;
use std::process::Command;

use anyhow::{Context, Result};
use testbed::{Bed, Frame, Host};

use crate::forwarders::REQUEST_PORT;
use crate::stage::{Load, Peer, Stage, Worker};

/// Destination NAT.
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

/// What the rules of nftables are for the backends of a stage.
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

/// IPVS with masquerading, where the kernel has it.
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
                .with_context(|| format!("can't run {words}"))?;
            let said = String::from_utf8_lossy(&output.stderr).lines().next().unwrap_or_default().to_owned();
            Ok((!output.status.success()).then(|| format!("{words}: {said}")))
        };
        // A kernel that has it built in knows no module.
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

/// To a backend, from the client itself.
fn is_rewritten(stage: &Stage, frame: &Frame) -> bool {
    let to_a_backend = stage.bed.backends.iter().any(|backend| frame.ip.destination == backend.v4);
    to_a_backend && frame.ip.source == stage.bed.client.v4 && frame.outer().is_none()
}
