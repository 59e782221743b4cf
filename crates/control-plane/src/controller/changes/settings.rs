//! What takes effect at the next start: its keys and their values, and what of it waits.
//!
//! In: configurations. Out: [`Running`], which remembers what a start took, and is compared with what is configured now.
//! Not here: what a reload takes over (`changes`).

use std::net::SocketAddr;

use super::keys::{Difference, Keys};
use config::{
    Admin, AdminSocket, AdminTcp, Cluster, Config, IdleThen, Io, IoMode, Log, LogFormat, LogLevel, NextHop,
    NoSocket, Steering, format_duration,
};

/// The settings that a start took, and that hold until the next one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Running(Keys);

impl Running {
    /// Those of a configuration, for one machine.
    #[must_use]
    pub fn of(config: &Config, machine: &str) -> Self {
        let mut keys = Keys::default();
        io(&mut keys, config.io());
        log(&mut keys, config.log());
        admin(&mut keys, config.admin());
        flow_timeouts(&mut keys, config.cluster());
        let interfaces = config.machine(machine).map(|machine| machine.interfaces().join(", "));
        keys.set(format!("machine.{machine}.interfaces"), interfaces.unwrap_or_default());
        Self(keys)
    }

    /// What is configured and does not run: one sentence a key, such as `io.batch: 64 -> 32`. Empty: nothing waits for a
    /// start.
    #[must_use]
    pub fn pending(&self, config: &Config, machine: &str) -> Vec<String> {
        self.differing(&Self::of(config, machine)).iter().map(Difference::sentence).collect()
    }

    pub(super) fn differing(&self, new: &Self) -> Vec<Difference> {
        self.0.differing(&new.0)
    }
}

fn io(keys: &mut Keys, io: &Io) {
    keys.set(
        "io.mode",
        match io.mode() {
            IoMode::AfXdp => "af-xdp",
        },
    );
    keys.set(
        "io.steering",
        match io.steering() {
            Steering::Hardware => "hardware",
        },
    );
    keys.set(
        "io.next_hop",
        match io.next_hop() {
            NextHop::Resolve => "resolve",
            NextHop::Reflect => "reflect",
        },
    );
    keys.set("io.flows_per_thread", io.flows_per_thread());
    keys.time("io.idle.spin", io.idle().spin());
    keys.set(
        "io.idle.then",
        match io.idle().then() {
            IdleThen::Sleep => "sleep",
            IdleThen::Spin => "spin",
        },
    );
    keys.set("io.queues", io.queues().map_or_else(|| "all".to_owned(), |queues| queues.to_string()));
    keys.set("io.frames_per_queue", io.frames_per_queue());
    keys.set("io.frame_size", io.frame_size());
    keys.set("io.batch", io.batch());
    keys.set(
        "io.no_socket",
        match io.no_socket() {
            NoSocket::Pass => "pass",
            NoSocket::Drop => "drop",
        },
    );
    keys.set("io.max_vips", io.max_vips());
    keys.set("io.limit_sources", io.limit_sources());
    let (fragments, frames) = (io.fragments(), io.frames_per_queue());
    keys.set("io.fragments.datagrams", fragments.datagrams());
    keys.set("io.fragments.buffered", fragments.buffered(frames));
    keys.set("io.fragments.per_datagram", fragments.per_datagram(frames));
    keys.set("io.fragments.per_source", fragments.per_source(frames));
    keys.set("io.fragments.lifetime", format_duration(fragments.lifetime()));
    let icmp = io.icmp();
    keys.set("io.icmp.replies_per_second", icmp.replies_per_second());
    keys.set("io.icmp.replies_to_source", icmp.replies_to_source());
    keys.set("io.icmp.errors_per_second", icmp.errors_per_second());
    keys.set("io.icmp.errors_of_source", icmp.errors_of_source());
}

fn log(keys: &mut Keys, log: Log) {
    keys.set(
        "log.level",
        match log.level() {
            LogLevel::Error => "error",
            LogLevel::Warn => "warn",
            LogLevel::Info => "info",
            LogLevel::Debug => "debug",
            LogLevel::Trace => "trace",
        },
    );
    keys.set(
        "log.format",
        match log.format() {
            LogFormat::Human => "human",
            LogFormat::Journald => "journald",
            LogFormat::Json => "json",
        },
    );
}

fn admin(keys: &mut Keys, admin: &Admin) {
    if let Some(socket) = admin.socket() {
        admin_socket(keys, socket);
    }
    if let Some(tcp) = admin.tcp() {
        admin_tcp(keys, tcp);
    }
    keys.set("admin.put", admin.put());
    keys.set("admin.metrics", addresses(admin.metrics()));
}

fn admin_socket(keys: &mut Keys, socket: &AdminSocket) {
    keys.set("admin.socket.path", socket.path().display());
    if let Some(group) = socket.group() {
        keys.set("admin.socket.group", group);
    }
    keys.set("admin.socket.mode", format!("{:04o}", socket.mode()));
}

fn admin_tcp(keys: &mut Keys, tcp: &AdminTcp) {
    keys.set("admin.tcp.listen", addresses(tcp.listen()));
    keys.content("admin.tcp.certificate_file", tcp.certificates());
    keys.content("admin.tcp.key_file", tcp.key().pem());
    keys.content("admin.tcp.client_ca_file", tcp.client_ca());
}

fn addresses(all: &[SocketAddr]) -> String {
    if all.is_empty() {
        return "none".to_owned();
    }
    all.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

fn flow_timeouts(keys: &mut Keys, cluster: &Cluster) {
    let timeouts = cluster.flow_timeouts();
    keys.time("cluster.flow_timeouts.new", timeouts.new_flow());
    keys.time("cluster.flow_timeouts.established", timeouts.established());
    keys.time("cluster.flow_timeouts.closing", timeouts.closing());
    keys.time("cluster.flow_timeouts.udp", timeouts.udp());
}
