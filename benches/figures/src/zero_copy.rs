//! The instructions per packet of the whole machine, by part. `cargo xtask bench zero-copy`
//! measures this figure.

use std::fmt::Write as _;

use anyhow::Result;

use crate::Csv;
use crate::plot::{self, Stack};

/// Draws one bar per device for 1,000 flows on igb. The segments of a bar are the parts of the
/// machine.
pub(crate) fn draw(csv: &Csv) -> Result<String> {
    let rows = csv.filter("nic", NIC)?.filter("traffic", TRAFFIC)?;
    let mut bars: Vec<Stack> = rows
        .words("device")?
        .into_iter()
        .map(|device| Stack { label: device.into(), segments: Vec::new() })
        .collect();
    for part in PARTS {
        for (bar, value) in bars.iter_mut().zip(rows.numbers(part)?) {
            bar.segments.push(value);
        }
    }
    let title = "Instructions per packet of the whole machine, 1,000 flows, igb";
    let note =
        "counted by QEMU: driver, kernel, XDP program and user space; no cache misses, no device registers";
    let sheet = plot::Sheet::with_note(title, note, csv)?;
    plot::svg(&sheet, |area| plot::stacks(area, "instructions per packet", &PARTS, &bars))
}

/// Returns the section of the results page.
pub(crate) fn section(csv: &Csv) -> Result<String> {
    let mut text = String::from(
        "QEMU emulates a machine with one processor and a NIC whose driver supports zero-copy, and counts all executed instructions. \
         The counts do not depend on the host. They do not contain cache misses or the cost of device registers, so they are not \
         times. Each forwarder gets bursts of frames that fit into the rings of the NIC. The exceptions are the rows `lone packet`, in which each frame arrives after the forwarder went to sleep, and `overload`, with eight times as many frames. Sluicegate runs with the default \
         configuration and all counters. `af-xdp` and `af-packet` are Sluicegate with GRE, and `virtio-copy` is a virtio NIC without \
         zero-copy. `xdp-swap` and `af-xdp-swap` only exchange the MAC addresses, with XDP_TX and with AF_XDP. A vector instruction \
         counts as one instruction, and iterations of string instructions are not included.\n\n\
         | NIC | device | traffic | instructions per packet | frames lost |",
    );
    for part in PARTS {
        let _ = write!(text, " {part} |");
    }
    text += "\n|---|---|---|---|---|";
    text += &"---|".repeat(PARTS.len());
    text += "\n";
    let [nics, devices, traffic] = ["nic", "device", "traffic"].map(|column| csv.words(column));
    let (nics, devices, traffic) = (nics?, devices?, traffic?);
    let (totals, lost, frames) = (csv.numbers("total")?, csv.numbers("lost")?, csv.numbers("frames")?);
    let parts = PARTS.iter().map(|part| csv.numbers(part)).collect::<Result<Vec<_>>>()?;
    for row in 0..nics.len() {
        let _ = write!(
            text,
            "| {} | {} | {} | {:.0} | {:.0} of {:.0} |",
            nics[row], devices[row], traffic[row], totals[row], lost[row], frames[row]
        );
        for part in &parts {
            let _ = write!(text, " {:.0} |", part[row]);
        }
        text += "\n";
    }
    Ok(text)
}

const NIC: &str = "igb";
const TRAFFIC: &str = "1000 flows";
/// The columns of the parts, in the order in which a packet passes them.
const PARTS: [&str; 9] =
    ["driver", "kernel", "system calls", "XDP", "rings", "engine", "pipeline", "table", "other user"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_other_nics_and_traffic_are_not_drawn() {
        let text = format!(
            "# command: c\n# commit: 0123456789abcdef\n# date: d\n# machine: m\n\
             nic,device,traffic,frames,lost,total,{}\n\
             igb,af-xdp,1000 flows,2000,0,450,10,20,30,40,50,60,70,80,90\n\
             igb,af-xdp,lone packet,1,0,999,9,9,9,9,9,9,9,9,9\n\
             virtio,other,1000 flows,1000,3,450,10,20,30,40,50,60,70,80,90\n",
            PARTS.join(",")
        );
        let csv = Csv::parse(&text).unwrap();
        let drawn = draw(&csv).unwrap();
        assert!(drawn.contains("af-xdp") && !drawn.contains("other<"), "{drawn}");
        let section = section(&csv).unwrap();
        assert!(section.contains("| igb | af-xdp | 1000 flows | 450 | 0 of 2000 | 10 | 20 |"), "{section}");
        assert!(section.contains("| virtio | other | 1000 flows | 450 | 3 of 1000 |"), "{section}");
    }
}
