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

    fn against_constant(&self) -> Result<String> {
        let constant = self.of_name("constant 5-tuple")?;
        let (non_syn, syn) = (self.of_name("non-SYN")? / constant, self.of_name("SYN")? / constant);
        Ok(format!("Against constant 5-tuple, non-SYN has {non_syn:.2} and SYN {syn:.2} of the packets."))
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
    let title = "Figure 8: one packet thread with and without kernel bypass, on a veth";
    let paper = "on a NIC, the kernel's stack takes less than 30 % of what kernel bypass takes";
    plot::svg(&plot::Sheet::new(title, paper, csv)?, |area| plot::bars(area, UNIT, &bars))
}

/// Bars by type of traffic.
pub(crate) fn draw_traffic(csv: &Csv, place: &str) -> Result<String> {
    let bars = Rates::of(csv, "traffic")?.bars();
    let title = format!("Figure 9: one packet thread by type of traffic, {place}");
    let paper = "on a NIC, constant 5-tuple is fastest, non-SYN slightly slower, SYN slowest";
    plot::svg(&plot::Sheet::new(&title, paper, csv)?, |area| plot::bars(area, UNIT, &bars))
}

/// Its part of the page.
pub(crate) fn section_bypass(csv: &Csv) -> Result<String> {
    let rates = Rates::of(csv, "mode")?;
    Ok(format!(
        "The paper varies packet threads from 1 to 7 on a 10 Gbit/s NIC: kernel bypass grows up to 5 threads, where the NIC is full, and \
         the kernel's stack takes less than 30 % of it. Here both ends of a veth are on a machine of two processors, one of which makes the \
         packets, so there is one packet thread; a veth has no driver to bypass, and AF_XDP copies on it. 64-byte UDP packets of 1,024 \
         flows, GRE; what the kernel does to receive them counts as the balancer's. The modes run by turns. `af-packet` takes {:.0} % of \
         `af-xdp`. {}\n\n{}{}",
        100.0 * rates.of_name("af-packet")? / rates.of_name("af-xdp")?,
        offered(csv)?,
        head("`io.mode`", csv)?,
        rates.rows(),
    ))
}

/// Its part of the page.
pub(crate) fn section_traffic(csv: &Csv) -> Result<String> {
    let rates = Rates::of(csv, "traffic")?;
    Ok(format!(
        "The paper, on a NIC: constant 5-tuple is fastest, non-SYN slightly slower for cache misses in the connection table, and SYN needs 6 \
         packet threads where the others fill the NIC with 5. Ours is the pipeline of one packet thread in memory, without a NIC or a kernel \
         that would hide the difference: 64-byte TCP packets, GRE, 100 backends, default configuration, all counters on. `SYN` opens a flow \
         with each packet, `non-SYN` goes through a million established flows in an order without pattern, `constant 5-tuple` is one \
         flow. {}\n\n{}{}",
        rates.against_constant()?,
        head("traffic", csv)?,
        rates.rows(),
    ))
}

/// Its part of the page.
pub(crate) fn section_on_veth(csv: &Csv) -> Result<String> {
    let rates = Rates::of(csv, "traffic")?;
    Ok(format!(
        "The same three through AF_XDP on a veth, with one packet thread, as in Figure 8. Most of the time is the kernel's, which copies \
         each packet twice here, so the types differ less than in memory. `SYN` and `non-SYN` have 32,768 flows, as many as the generator \
         has source ports; SYNs after each flow's first belong to a flow that is known. {} {}\n\n{}{}",
        rates.against_constant()?,
        offered(csv)?,
        head("traffic", csv)?,
        rates.rows(),
    ))
}

fn head(what: &str, csv: &Csv) -> Result<String> {
    let runs = csv.note("runs")?;
    Ok(format!("| {what} | packets per second, median of {runs} | least to most |\n|---|---|---|\n"))
}

/// How far the generator and other programs may have been the limit.
fn offered(csv: &Csv) -> Result<String> {
    let least =
        |column: &str| -> Result<f64> { Ok(csv.numbers(column)?.into_iter().fold(f64::INFINITY, f64::min)) };
    let (excess, ran) = (least("offered_over_taken")?, least("ran")?);
    let limited = if excess < LEAST_EXCESS { " So the figure is generator-limited." } else { "" };
    Ok(format!(
        "The generator offered at least {excess:.1} times what was taken, and generator and balancer had their processors for at least {:.0} % \
         of the time (medians); the rest other programs had.{limited}",
        100.0 * ran
    ))
}

const UNIT: &str = "packets per second (millions)";
/// Below it the generator may have been the limit.
const LEAST_EXCESS: f64 = 1.2;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_generator_that_offers_too_little_is_named() {
        let csv = |excess: &str| {
            let text = format!(
                "# runs: 7\nmode,packets_per_s,least,most,offered_over_taken,ran\n\
                 af-xdp,900000,8,9,{excess},0.91\naf-packet,450000,4,5,3.0,0.95\n"
            );
            Csv::parse(&text).unwrap()
        };
        let good = section_bypass(&csv("1.30")).unwrap();
        assert!(good.contains("takes 50 % of `af-xdp`") && good.contains("at least 1.3 times"), "{good}");
        assert!(good.contains("91 % of the time") && !good.contains("generator-limited"), "{good}");
        assert!(section_bypass(&csv("1.10")).unwrap().contains("generator-limited"));
    }
}
