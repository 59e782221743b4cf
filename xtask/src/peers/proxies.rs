//! Measures two proxies with one thread each: HAProxy (TCP), and nginx's stream module (TCP and
//! UDP).
//!
//! A proxy terminates the client's connection and opens a separate connection to a backend, so the
//! backend sees the proxy's address. Both proxies run without access logs. nginx keeps one UDP
//! session per client port, so it does not create a socket for each packet.

use std::fs;

use anyhow::Result;
use testbed::{Bed, Frame, Host};

use crate::forwarders::REQUEST_PORT;
use crate::stage::{Load, Peer, Stage, Worker};

#[derive(Clone, Copy, Debug)]
pub(crate) struct Haproxy;

impl Peer for Haproxy {
    fn name(&self) -> &'static str {
        "haproxy"
    }

    fn carries(&self, load: Load) -> bool {
        load == Load::Requests
    }

    fn start(&self, stage: &Stage, _load: Load) -> Result<Worker> {
        let file = stage.bed.dir().join("haproxy.cfg");
        fs::write(&file, haproxy(stage))?;
        stage.own_vip(true)?;
        Ok(Worker::Process(stage.process("haproxy", &["haproxy", "-db", "-f", &file.to_string_lossy()])?))
    }

    fn clean_up(&self, stage: &Stage) -> Result<()> {
        stage.own_vip(false)
    }

    fn is_forwarded(&self, stage: &Stage, frame: &Frame) -> bool {
        is_proxied(stage, frame)
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Nginx;

impl Peer for Nginx {
    fn name(&self) -> &'static str {
        "nginx"
    }

    fn carries(&self, _load: Load) -> bool {
        true
    }

    fn start(&self, stage: &Stage, _load: Load) -> Result<Worker> {
        let file = stage.bed.dir().join("nginx.conf");
        fs::write(&file, nginx(stage))?;
        stage.own_vip(true)?;
        let command = ["nginx", "-e", "stderr", "-c", &file.to_string_lossy()];
        Ok(Worker::Process(stage.process("nginx", &command)?))
    }

    fn clean_up(&self, stage: &Stage) -> Result<()> {
        stage.own_vip(false)
    }

    fn is_forwarded(&self, stage: &Stage, frame: &Frame) -> bool {
        is_proxied(stage, frame)
    }
}

fn haproxy(stage: &Stage) -> String {
    let servers = stage
        .bed
        .backends
        .iter()
        .map(|Host { name, v4, .. }| format!("  server {name} {v4}:{REQUEST_PORT}\n"));
    format!(
        "global\n  nbthread 1\n  maxconn 4000\n\
         defaults\n  mode tcp\n  timeout connect 5s\n  timeout client 30s\n  timeout server 30s\n\
         listen www\n  bind {}\n  balance roundrobin\n{}",
        stage.bed.vip(true, REQUEST_PORT),
        servers.collect::<String>()
    )
}

fn nginx(stage: &Stage) -> String {
    let upstream = |name: &str, port: u16| {
        let servers = stage.bed.backends.iter().map(|Host { v4, .. }| format!("    server {v4}:{port};\n"));
        format!("  upstream {name} {{\n{}  }}\n", servers.collect::<String>())
    };
    format!(
        "load_module /usr/lib/nginx/modules/ngx_stream_module.so;\n\
         user root;\ndaemon off;\nmaster_process off;\nworker_processes 1;\nworker_rlimit_nofile 65536;\n\
         pid {}/nginx.pid;\nerror_log stderr crit;\n\
         events {{ worker_connections 16384; multi_accept on; }}\n\
         stream {{\n{}{}  \
         server {{ listen {} udp rcvbuf=4m; proxy_pass packets; proxy_timeout 60s; }}\n  \
         server {{ listen {} backlog=4096; proxy_pass requests; }}\n}}\n",
        stage.bed.dir().display(),
        upstream("packets", Bed::SINK_PORT),
        upstream("requests", REQUEST_PORT),
        stage.bed.vip(true, Bed::SINK_PORT),
        stage.bed.vip(true, REQUEST_PORT),
    )
}

/// Returns `true` if the destination of the frame is a backend, and its source is the proxy's
/// address.
fn is_proxied(stage: &Stage, frame: &Frame) -> bool {
    let to_a_backend = stage.bed.backends.iter().any(|backend| frame.ip.destination == backend.v4);
    to_a_backend && frame.ip.source == stage.host().v4 && frame.outer().is_none()
}
