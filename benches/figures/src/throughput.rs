//! Figures 8 and 9: packets per second, with and without kernel bypass and by type of traffic. Measured by `cargo xtask figures`.

use anyhow::{Context, Result};

use crate::Csv;
use crate::plot::{self, Bar, COLORS};

/// Packets per second of each row, in the order of the rows.
struct Rates<'a> {
    names: Vec<&'a str>,
    taken: Vec<f64>,
    least: Vec<f64>,
    most: Vec<f64>,
}

impl<'a> Rates<'a> {
    fn of(csv: &'a Csv, column: &str) -> Result<Self> {
        let [taken, least, most] = ["packets_per_s", "least", "most"].map(|column| csv.numbers(column));
        Ok(Self { names: csv.words(column)?, taken: taken?, least: least?, most: most? })
    }

    fn bars(&self) -> Vec<Bar> {
        let bar = |place: usize| Bar {
            label: self.names[place].into(),
            value: self.taken[place] / 1e6,
            range: Some((self.least[place] / 1e6, self.most[place] / 1e6)),
            paper: None,
            color: COLORS[place % 3],
        };
        (0..self.names.len()).map(bar).collect()
    }

    fn of_name(&self, name: &str) -> Result<f64> {
        let place =
            self.names.iter().position(|known| *known == name).with_context(|| format!("no row {name}"))?;
        Ok(self.taken[place])
    }

    fn rows(&self) -> String {
        let row = |place: usize| {
            let [taken, least, most] =
                [&self.taken, &self.least, &self.most].map(|values| format!("{:.3} M", values[place] / 1e6));
            format!("| {} | {taken} | {least} to {most} |\n", self.names[place])
        };
        (0..self.names.len()).map(row).collect()
    }
}

/// Bars by mode.
pub(crate) fn draw_bypass(csv: &Csv) -> Result<String> {
    let bars = Rates::of(csv, "mode")?.bars();
    plot::svg(
        &plot::Sheet::new("Figure 8: one packet thread with and without kernel bypass, on veth", csv)?,
        |area| plot::bars(area, "packets per second (millions)", &bars),
    )
}

/// Bars by type of traffic.
pub(crate) fn draw_traffic(csv: &Csv) -> Result<String> {
    let bars = Rates::of(csv, "traffic")?.bars();
    plot::svg(&plot::Sheet::new("Figure 9: one packet thread by type of traffic, in memory", csv)?, |area| {
        plot::bars(area, "packets per second (millions)", &bars)
    })
}

/// Its part of the page.
pub(crate) fn section_bypass(csv: &Csv) -> Result<String> {
    let rates = Rates::of(csv, "mode")?;
    Ok(format!(
        "The paper varies packet threads from 1 to 7 on a 10 Gbit/s NIC: kernel bypass grows up to 5 threads, where the NIC is full, and \
         the kernel's stack takes less than 30 % of it. Here both ends of a veth are on a machine of two processors, one of which makes the \
         packets, so there is one packet thread; a veth has no NIC whose driver is bypassed, and AF_XDP copies on it. The modes run by turns, \
         {pairs} times each: 64-byte UDP packets of 1,024 flows, GRE; the generator offers at least {offered:.1} times what is taken. \
         `af-packet` takes {share:.0} % of `af-xdp`.\n\n\
         | `io.mode` | packets per second, median | least to most |\n|---|---|---|\n{rows}",
        pairs = csv.note("pairs")?,
        offered = csv.numbers("offered_over_taken")?.into_iter().fold(f64::INFINITY, f64::min),
        share = 100.0 * rates.of_name("af-packet")? / rates.of_name("af-xdp")?,
        rows = rates.rows(),
    ))
}

/// Its part of the page.
pub(crate) fn section_traffic(csv: &Csv) -> Result<String> {
    let rates = Rates::of(csv, "traffic")?;
    let constant = rates.of_name("constant 5-tuple")?;
    Ok(format!(
        "The paper, on a NIC: constant 5-tuple is fastest, non-SYN slightly slower for cache misses in the connection table, and SYN needs 6 \
         packet threads where the others fill the NIC with 5. Ours is the pipeline of one packet thread in memory, without a NIC or a kernel \
         that would hide the difference: 64-byte TCP packets, GRE, 100 backends, default configuration, all counters on. `SYN` opens a flow \
         with each packet, `non-SYN` goes through a million established flows in an order without pattern, `constant 5-tuple` is one \
         flow. Against the last, non-SYN has {non_syn:.2} and SYN {syn:.2} of the packets. On veth all three are as fast as what the kernel \
         does for each packet, which is ten times the pipeline's cost.\n\n\
         | traffic | packets per second, median of {runs} | least to most |\n|---|---|---|\n{rows}",
        non_syn = rates.of_name("non-SYN")? / constant,
        syn = rates.of_name("SYN")? / constant,
        runs = csv.note("runs")?,
        rows = rates.rows(),
    ))
}
