//! Figures 8 and 9: packets per second with and without kernel bypass, and packets per second by
//! type of traffic. `cargo xtask figures` measures these figures.

use anyhow::{Context, Result};

use crate::Csv;
use crate::plot::{self, Bar, COLORS};

/// The packets per second of each row. All vectors have the same order as the rows.
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
        let place = self
            .names
            .iter()
            .position(|known| *known == name)
            .with_context(|| format!("the file has no row {name}"))?;
        Ok(self.taken[place])
    }

    fn against_constant(&self) -> Result<String> {
        let constant = self.of_name("constant 5-tuple")?;
        let (non_syn, syn) = (self.of_name("non-SYN")? / constant, self.of_name("SYN")? / constant);
        Ok(format!(
            "The rate for non-SYN is {non_syn:.2} times the rate for constant 5-tuple. The rate for SYN is {syn:.2} times the rate for constant 5-tuple."
        ))
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

/// Draws one bar per I/O mode.
pub(crate) fn draw_bypass(csv: &Csv) -> Result<String> {
    let bars = Rates::of(csv, "mode")?.bars();
    let title = "Figure 8: one packet thread with and without kernel bypass, on a veth";
    let paper = "on a NIC, the kernel's network stack reaches less than 30 % of the rate of kernel bypass";
    plot::svg(&plot::Sheet::new(title, paper, csv)?, |area| plot::bars(area, UNIT, &bars))
}

/// Draws one bar per type of traffic.
pub(crate) fn draw_traffic(csv: &Csv, place: &str) -> Result<String> {
    let bars = Rates::of(csv, "traffic")?.bars();
    let title = format!("Figure 9: one packet thread by type of traffic, {place}");
    let paper = "on a NIC, constant 5-tuple is fastest, non-SYN slightly slower, SYN slowest";
    plot::svg(&plot::Sheet::new(&title, paper, csv)?, |area| plot::bars(area, UNIT, &bars))
}

/// Returns the section of the results page for Figure 8.
pub(crate) fn section_bypass(csv: &Csv) -> Result<String> {
    let rates = Rates::of(csv, "mode")?;
    Ok(format!(
        "The paper measures 1 to 7 packet threads on a 10 Gbit/s NIC. With kernel bypass, throughput grows up to 5 threads, which \
         saturate the NIC. With the kernel's network stack, throughput is less than 30 % of the throughput with kernel bypass.\n\n\
         Here a veth pair connects the generator and the balancer on a machine with two processors. The generator needs one processor, so the balancer has only one packet thread. A veth has no hardware driver to bypass, and AF_XDP copies packets on a veth. The traffic is \
         64-byte UDP packets of 1,024 flows, forwarded with GRE. The balancer's processor also does the kernel's receive \
         processing. Runs of the two modes alternate. `af-packet` reaches {:.0} % of the rate of `af-xdp`. {}\n\n{}{}",
        100.0 * rates.of_name("af-packet")? / rates.of_name("af-xdp")?,
        offered(csv)?,
        head("`io.mode`", csv)?,
        rates.rows(),
    ))
}

/// Returns the section of the results page for Figure 9, measured in memory.
pub(crate) fn section_traffic(csv: &Csv) -> Result<String> {
    let rates = Rates::of(csv, "traffic")?;
    Ok(format!(
        "In the paper, which uses a NIC, packets with a constant 5-tuple are fastest. Non-SYN packets are slightly slower because of \
         cache misses in the connection table. SYN packets need 6 packet threads to saturate the NIC, and the other types need 5.\n\n\
         Here the pipeline of one packet thread runs in memory, because the cost of a NIC or of the kernel would hide the difference. \
         Packets are 64-byte TCP packets and are forwarded with GRE to 100 backends, with the default configuration and all counters. \
         With `SYN`, each packet opens a flow. With `non-SYN`, packets belong to a million established flows in random order. With \
         `constant 5-tuple`, all packets belong to one flow. {}\n\n{}{}",
        rates.against_constant()?,
        head("traffic", csv)?,
        rates.rows(),
    ))
}

/// Returns the section of the results page for Figure 9, measured on a veth.
pub(crate) fn section_on_veth(csv: &Csv) -> Result<String> {
    let rates = Rates::of(csv, "traffic")?;
    Ok(format!(
        "This section measures the same types of traffic with AF_XDP on a veth and one packet thread, as in Figure 8. The kernel copies \
         each packet twice on a veth and uses most of the processor time, so the types differ less than in memory. `SYN` and \
         `non-SYN` have 32,768 flows, because the generator has that many source ports. Only the first SYN of each flow is new to the \
         connection table. {} {}\n\n{}{}",
        rates.against_constant()?,
        offered(csv)?,
        head("traffic", csv)?,
        rates.rows(),
    ))
}

fn head(what: &str, csv: &Csv) -> Result<String> {
    let runs = csv.note("runs")?;
    Ok(format!("| {what} | packets per second, median of {runs} | range |\n|---|---|---|\n"))
}

/// Returns a sentence that states whether the generator or other programs might have limited the
/// result.
fn offered(csv: &Csv) -> Result<String> {
    let least =
        |column: &str| -> Result<f64> { Ok(csv.numbers(column)?.into_iter().fold(f64::INFINITY, f64::min)) };
    let (excess, ran) = (least("offered_over_taken")?, least("ran")?);
    let limited = if excess < LEAST_EXCESS {
        " The result is therefore generator-limited: a faster generator might have given a higher rate."
    } else {
        ""
    };
    Ok(format!(
        "The generator sent at least {excess:.1} times as many packets as the balancer forwarded. Generator and balancer ran on their \
         processors for at least {:.0} % of the time (medians), and other programs used the rest.{limited}",
        100.0 * ran
    ))
}

const UNIT: &str = "packets per second (millions)";
/// Below this ratio of generated to forwarded packets, the generator might have limited the
/// throughput.
const LEAST_EXCESS: f64 = 1.2;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generator_that_offers_too_little_is_reported() {
        let csv = |excess: &str| {
            let text = format!(
                "# runs: 7\nmode,packets_per_s,least,most,offered_over_taken,ran\n\
                 af-xdp,900000,8,9,{excess},0.91\naf-packet,450000,4,5,3.0,0.95\n"
            );
            Csv::parse(&text).unwrap()
        };
        let good = section_bypass(&csv("1.30")).unwrap();
        assert!(
            good.contains("reaches 50 % of the rate of `af-xdp`") && good.contains("at least 1.3 times"),
            "{good}"
        );
        assert!(good.contains("91 % of the time") && !good.contains("generator-limited"), "{good}");
        assert!(section_bypass(&csv("1.10")).unwrap().contains("generator-limited"));
    }
}
