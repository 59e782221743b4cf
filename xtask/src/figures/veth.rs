//! Reproduces Figures 8 and 9 on a veth pair, with the testbed of `bench peers` and one packet
//! thread.
//!
//! The results are packets per second. The measurement needs root and two processors: one processor
//! runs the balancer, and the other generates packets.

use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use testbed::{BedSpec, Encapsulation, FrameSpec, Host, VIP_V4, mac_of};

use crate::forwarders::{Io, Ours, REQUEST_PORT};
use crate::offer::{FULL, Traffic};
use crate::pace;
use crate::processors::Priority;
use crate::stage::{Load, NOBODY, Rates, Receive, Stage};
use crate::statistics::median;
use crate::{cargo, setup};

/// Measures Figure 8: UDP packets, with and without the kernel's network stack.
pub(super) fn bypass(binary: Option<&Path>) -> Result<String> {
    let turns = |stage: &Stage| -> Result<Vec<Turn>> {
        let turn =
            |(name, io)| -> Result<Turn> { Ok(Turn { name, io, traffic: stage.smallest_udp(FLOWS)? }) };
        [("af-xdp", Io::AfXdp), ("af-packet", Io::AfPacket)].into_iter().map(turn).collect()
    };
    measure("mode", binary, turns)
}

/// Measures Figure 9: different types of TCP packets.
pub(super) fn traffic(binary: Option<&Path>) -> Result<String> {
    let turns = |stage: &Stage| -> Result<Vec<Turn>> {
        let turn = |(name, flags, flows)| -> Result<Turn> {
            let traffic =
                Traffic { frame: smallest_tcp(stage, flags)?, flows, pace: FULL, probes: Duration::ZERO };
            Ok(Turn { name, io: Io::AfXdp, traffic })
        };
        [("constant 5-tuple", ACK, 1), ("non-SYN", ACK, MANY), ("SYN", SYN, MANY)]
            .into_iter()
            .map(turn)
            .collect()
    };
    measure("traffic", binary, turns)
}

/// A case of a figure, which is measured once per round.
struct Turn {
    name: &'static str,
    io: Io,
    traffic: Traffic,
}

impl Turn {
    /// Measures the case at the offered rate at which the most packets are forwarded.
    fn run(&self, stage: &Stage, pace: &mut Option<u32>) -> Result<Rates> {
        let peer = Ours::new(self.io, Encapsulation::Gre);
        let running = stage.start(&peer, Load::Packets)?;
        stage.probe(&running, &self.traffic)?;
        let rates = pace::turn(stage, &running, self.traffic.clone(), pace)?;
        running.stop(stage)?;
        eprintln!("{}: {:.0} packets/s, ran {:.2}", self.name, rates.taken, rates.ran);
        Ok(rates)
    }
}

fn measure(
    column: &str,
    binary: Option<&Path>,
    turns: impl FnOnce(&Stage) -> Result<Vec<Turn>>,
) -> Result<String> {
    setup::ensure(&[setup::BUILD, setup::BED].concat())?;
    let program = match binary {
        Some(path) => {
            path.canonicalize().with_context(|| format!("cannot find a balancer at {}", path.display()))?
        }
        None => cargo::release_binary()?,
    };
    let spec = BedSpec { backends: 0, vips: vec![VIP_V4], program: Some(program), ..BedSpec::default() };
    let stage = Stage::build(&spec, Receive::OnDevice(Priority::Equal))?;
    let turns = turns(&stage)?;
    let mut measured = vec![Vec::new(); turns.len()];
    let mut paces = vec![None; turns.len()];
    for _ in 0..ROUNDS {
        for ((turn, rates), pace) in turns.iter().zip(&mut measured).zip(&mut paces) {
            rates.push(turn.run(&stage, pace).context(turn.name)?);
        }
    }
    let names: Vec<&str> = turns.iter().map(|turn| turn.name).collect();
    Ok(rows(column, &names, &measured))
}

fn rows(column: &str, names: &[&str], measured: &[Vec<Rates>]) -> String {
    let mut rows = format!("# runs: {ROUNDS}\n{column},packets_per_s,least,most,offered_over_taken,ran\n");
    for (name, rates) in names.iter().zip(measured) {
        let of = |value: fn(&Rates) -> f64| rates.iter().map(value);
        let (least, most) = of(|one| one.taken)
            .fold((f64::INFINITY, 0.0), |(least, most): (f64, f64), x| (least.min(x), most.max(x)));
        let [taken, excess, ran] =
            [median(of(|one| one.taken)), median(of(|one| one.excess())), median(of(|one| one.ran))];
        let _ = writeln!(rows, "{name},{taken:.0},{least:.0},{most:.0},{excess:.2},{ran:.2}");
    }
    rows
}

/// Returns the smallest TCP frame that is addressed to the TCP service.
fn smallest_tcp(stage: &Stage, flags: u8) -> Result<Vec<u8>> {
    let Host { ns, device, .. } = stage.host();
    let (client, vip) = ((stage.bed.client.v4, 10_000).into(), stage.bed.vip(true, REQUEST_PORT));
    let udp = FrameSpec::udp(NOBODY, mac_of(ns, device)?, client, vip);
    Ok(FrameSpec { tcp_flags: Some(flags), payload: vec![0; 6], ..udp }.bytes())
}

const ROUNDS: usize = 7;
const FLOWS: u16 = 1_024;
/// The number of source ports that the generator uses.
const MANY: u16 = 32_768;
const ACK: u8 = 0x10;
const SYN: u8 = 0x02;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn row_has_median_extremes_and_offered_rate() {
        let rates = |taken| Rates { offered: 400.0, taken, ran: 0.9, device: 1.0 };
        let measured = [vec![rates(100.0), rates(400.0), rates(200.0)], vec![rates(50.0)]];
        let text = rows("mode", &["a", "b"], &measured);
        let rows: Vec<&str> = text.lines().skip(1).collect();
        assert_eq!(rows[0], "mode,packets_per_s,least,most,offered_over_taken,ran");
        assert_eq!(rows[1..], ["a,200,100,400,2.00,0.90", "b,50,50,50,8.00,0.90"]);
    }
}
