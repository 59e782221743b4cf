//! Converts the configuration to the settings of the data plane.

use compile::{find_machine, timeouts};
use config::{self, Config};
use datapath::interface::{Interface, frame_size};
use datapath::{Idle, IoMode, Settings, inspect};
use forwarder::{FragmentConfig, IcmpRates};

/// Inspects the interfaces of the machine in the order in which the configuration lists them. The
/// error lists the problems with all interfaces.
pub(super) fn inspected(config: &Config, machine: &str) -> anyhow::Result<Vec<Interface>> {
    let (mut found, mut refusals) = (Vec::new(), Vec::new());
    for name in &find_machine(config, machine)?.interfaces {
        match inspect(name, mode(config), config.io().frame_size) {
            Ok(interface) => found.push(interface),
            Err(error) => refusals.push(error.to_string()),
        }
    }
    anyhow::ensure!(refusals.is_empty(), "{}", refusals.join("\n"));
    Ok(found)
}

pub(crate) fn settings(config: &Config, interfaces: &[Interface]) -> Settings {
    let io = config.io();
    Settings {
        mode: mode(config),
        queues: io.queues,
        steer_over: io.threads,
        frames_per_queue: io.frames_per_queue,
        frame_size: frame_size(interfaces, io.frame_size),
        batch: io.batch,
        flows_per_thread: io.flows_per_thread,
        timeouts: timeouts(config),
        idle: idle(io.idle),
        busy_poll: io.busy_poll,
        max_vips: io.max_vips,
        max_slots: COUNTED_SLOTS,
        no_socket: io.no_socket,
        icmp: icmp(io),
        limit_sources: io.limit_sources,
        fragments: fragments(io),
        source_ports: io.source_ports.clone(),
    }
}

fn mode(config: &Config) -> IoMode {
    match config.io().mode {
        config::IoMode::AfXdp => IoMode::AfXdp,
        config::IoMode::AfPacket => IoMode::AfPacket,
    }
}

fn idle(idle: config::Idle) -> Idle {
    Idle {
        spin: idle.spin,
        wake_up_price: idle.prefer.wake_up_price(),
        sleep: idle.then == config::IdleThen::Sleep,
    }
}

/// Returns the ICMP rate limits for each packet thread.
fn icmp(io: &config::Io) -> IcmpRates {
    let icmp = io.icmp;
    IcmpRates {
        replies: icmp.replies_per_second,
        replies_per_source: icmp.replies_per_source,
        errors: icmp.errors_per_second,
        errors_per_source: icmp.errors_per_source,
    }
}

/// Returns the limits of the fragment table in each packet thread.
fn fragments(io: &config::Io) -> FragmentConfig {
    let (fragments, frames) = (io.fragments, io.frames_per_queue);
    FragmentConfig {
        datagrams: fragments.datagrams,
        buffered: fragments.buffered(frames),
        per_datagram: fragments.per_datagram(frames),
        per_source: fragments.per_source(frames),
        lifetime: fragments.lifetime,
    }
}

/// The maximum number of slots with separate traffic counters. The limit for services is the same.
/// Each counter takes 24 bytes per packet thread, which are allocated on first use.
const COUNTED_SLOTS: usize = 65_536;

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn rates(io: &str) -> IcmpRates {
        let text = format!(
            "[cluster]\nname = \"c\"\nhash_key_file = \"k\"\n[machine.lb1]\naddresses = [\"192.0.2.1\"]\n\
             interfaces = [\"eth0\"]\n[io]\n{io}"
        );
        let secret = |_: &_| Ok("00112233445566778899aabbccddeeff".to_owned());
        settings(&config::parse(&text, Path::new("a.toml"), &secret).unwrap().0, &[]).icmp
    }

    // Promise: icmp-rate-limits
    #[test]
    fn icmp_rates_are_those_of_the_configuration() {
        assert_eq!(rates("").replies_per_source, 100);
        let keys =
            "replies_per_second = 1, replies_per_source = 2, errors_per_second = 3, errors_per_source = 4";
        let expected = IcmpRates { replies: 1, replies_per_source: 2, errors: 3, errors_per_source: 4 };
        assert_eq!(rates(&format!("icmp = {{ {keys} }}\n")), expected);
    }
}
