//! The growth of costs with the number of VIPs, pools, backends and flows. `cargo xtask bench
//! scale` measures both figures.

use std::ops::Range;

use anyhow::{Context, Result, anyhow};

use crate::Csv;
use crate::plot::{self, Axes, COLORS, Line};

/// Draws one panel for each quantity. The lines of a panel are the counts that grow.
pub(crate) fn draw(csv: &Csv) -> Result<String> {
    let mut panels = Vec::new();
    for quantity in QUANTITIES {
        let mut lines = Vec::new();
        for (axis, color) in AXES.iter().zip(COLORS) {
            let series = Series::of(csv, axis, &quantity)?;
            let least = *series.counts.first().context("the file has no rows of an axis")?;
            let factors = series.counts.iter().map(|count| count / least);
            let points = factors.zip(series.values.iter().copied()).collect();
            lines.push(Line { name: axis.range(&series.counts)?, points, color });
        }
        panels.push((quantity, lines));
    }
    let note = "lowest median of repeated rounds for packets, minimum of repeated reloads";
    let sheet = plot::Sheet::with_note("Growth with VIPs, pools and backends", note, csv)?.with_height(772);
    plot::svg(&sheet, |area| {
        for (area, (quantity, lines)) in area.split_evenly((2, 2)).iter().zip(&panels) {
            let axes = Axes {
                x: "count / smallest count",
                y: quantity.label,
                x_range: 1.0..1_000.0,
                y_range: around(lines),
            };
            plot::lines_by_logarithms(area, &axes, lines)?;
        }
        Ok(())
    })
}

/// Draws the memory and the lookup time of the connection table.
pub(crate) fn draw_flows(csv: &Csv) -> Result<String> {
    let flows = csv.numbers("flows")?;
    let line = |name: &str, column, color| -> Result<Line> {
        let points = flows.iter().copied().zip(csv.numbers(column)?).collect();
        Ok(Line { name: name.into(), points, color })
    };
    let memory = [line("memory", "table_mb", COLORS[0])?];
    let lookups = [
        line("with huge pages (default)", "lookup_ns", COLORS[0])?,
        line("without huge pages", "lookup_4k_ns", COLORS[1])?,
    ];
    let times = [
        line("handover to a new process", "handover_ms", COLORS[1])?,
        line("sweep of the table", "sweep_ms", COLORS[2])?,
    ];
    let panels: [(&str, &[Line], Range<f64>); 3] = [
        ("memory (MB)", &memory, around(&memory)),
        ("time of a lookup (ns)", &lookups, 1.0..100.0),
        ("time for the whole table (ms)", &times, 0.01..10_000.0),
    ];
    let x_range = *flows.first().context("the file has no rows")?..*flows.last().unwrap_or(&1.0);
    let note = "one table, half full, random lookups in batches of 64; lowest median of repeated rounds";
    let sheet = plot::Sheet::with_note("Growth with flows", note, csv)?.with_height(422);
    plot::svg(&sheet, |area| {
        for (area, (y, lines, y_range)) in area.split_evenly((1, 3)).iter().zip(panels) {
            let axes = Axes { x: "flows", y, x_range: x_range.clone(), y_range };
            plot::lines_by_logarithms(area, &axes, lines)?;
        }
        Ok(())
    })
}

/// Returns the section of the results page about the size of the configuration.
pub(crate) fn section(csv: &Csv) -> Result<String> {
    let mut text = String::from(
        "One number of the configuration grows by a factor of 1,000, and the others stay the same. In the last lines, all three numbers \
         grow, up to 10,000 VIPs, 1,000 pools and 100,000 backends. The Maglev tables have 65,537 entries, or 100,003 entries in the \
         rows that vary the number of backends. The packets belong to 100,000 IPv6 flows to random VIPs, and are encapsulated with GRE over IPv6. \
         Memory is the memory of the configuration and its snapshot. A reload reads and checks the file, and builds a snapshot in which \
         every Maglev table has changed. Its time is the processor time of all threads.\n\n\
         The table shows the smallest and the largest value. *N* is the count that grows, and the exponent describes the growth over the last factor of \
         ten.\n\n| what grows | ",
    );
    let labels: Vec<&str> = QUANTITIES.iter().map(|quantity| quantity.label).collect();
    text += &format!("{} |\n|---|{}\n", labels.join(" | "), "---|".repeat(labels.len()));
    for axis in &AXES {
        let mut cells = Vec::new();
        let mut counts = Vec::new();
        for quantity in &QUANTITIES {
            let series = Series::of(csv, axis, quantity)?;
            cells.push(format!("{}, {}", series.ends()?, growth(series.exponent()?)));
            counts = series.counts;
        }
        text += &format!("| {} | {} |\n", axis.range(&counts)?, cells.join(" | "));
    }
    text += "\n";
    text += &each_adds(csv)?;
    text += CONFIGURATION_GROWTH;
    text += &format!(
        "\n| VIPs | pools | backends | file (kB) | {} | peak during a reload (MB) |\n",
        labels.join(" | ")
    );
    text += &format!("|---|---|---|---|{}---|\n", "---|".repeat(labels.len()));
    let columns = ["vips", "pools", "backends", "file_kb"];
    let counts = columns.iter().map(|column| csv.numbers(column)).collect::<Result<Vec<_>>>()?;
    let peaks = csv.numbers("peak_mb")?;
    let values = QUANTITIES.iter().map(|quantity| quantity.values(csv)).collect::<Result<Vec<_>>>()?;
    for (row, peak) in peaks.into_iter().enumerate() {
        counts.iter().for_each(|counts| text += &format!("| {} ", count(counts[row])));
        values.iter().for_each(|values| text += &format!("| {} ", digits(values[row])));
        text += &format!("| {} |\n", digits(peak));
    }
    Ok(text)
}

/// Returns a sentence about the memory and reload time of one more VIP, pool or backend.
fn each_adds(csv: &Csv) -> Result<String> {
    let adds = |axis: &Axis| -> Result<String> {
        let per = |quantity: &Quantity| Series::of(csv, axis, quantity)?.slope();
        let [memory, reload] = [per(&QUANTITIES[1])?, per(&QUANTITIES[2])?];
        Ok(format!("{} kB and {} us", digits(memory * 1e3), digits(reload * 1e3)))
    };
    let [vip, pool, backend] = [adds(&AXES[0])?, adds(&AXES[1])?, adds(&AXES[2])?];
    Ok(format!(
        "Over the last factor of ten, one VIP adds {vip} of reload time, one pool of ten backends adds {pool}, and one backend in an \
         existing pool adds {backend}.\n"
    ))
}

/// Returns the section of the results page about the number of flows.
pub(crate) fn section_flows(csv: &Csv) -> Result<String> {
    let mut text = String::from(
        "One connection table contains the flows, and half of its entries are free. Random flows are looked up in batches of 64. Packet \
         threads request huge pages for their tables, and the column `4 KiB pages` shows lookups without huge pages. A sweep examines \
         the whole table for expired flows. A handover sends the whole table to a new process through a Unix socket, as an upgrade \
         does.\n\n\
         | flows | memory | lookup | lookup with 4 KiB pages | allocation | sweep | handover |\n|---|---|---|---|---|---|---|\n",
    );
    let columns = ["table_mb", "lookup_ns", "lookup_4k_ns", "build_ms", "sweep_ms", "handover_ms"];
    let values = columns.iter().map(|column| csv.numbers(column)).collect::<Result<Vec<_>>>()?;
    let flows = csv.numbers("flows")?;
    for (row, flows) in flows.iter().enumerate() {
        text += &format!("| {} |", count(*flows));
        for (values, unit) in values.iter().zip(["MB", "ns", "ns", "ms", "ms", "ms"]) {
            text += &format!(" {} {unit} |", digits(values[row]));
        }
        text += "\n";
    }
    let exponent = |column| -> Result<String> {
        let values = csv.numbers(column)?;
        let decade = flows.iter().zip(values).filter(|(now, _)| **now * 10.0 >= flows[flows.len() - 1]);
        let (counts, values): (Vec<f64>, Vec<f64>) = decade.unzip();
        let ends = |all: Vec<f64>| Some(vec![*all.first()?, *all.last()?]);
        let series = Series {
            counts: ends(counts).context("the file has no rows")?,
            values: ends(values).context("the file has no rows")?,
        };
        Ok(format!("*N*^{:.2}", series.exponent()?))
    };
    text += &format!(
        "\nOver the last factor of ten, the time of a lookup grows with {}, or {} with 4 KiB pages, the time of a sweep with {}, and the \
         time of a handover with {}.\n",
        exponent("lookup_ns")?,
        exponent("lookup_4k_ns")?,
        exponent("sweep_ms")?,
        exponent("handover_ms")?
    );
    text += FLOW_GROWTH;
    text += &on_paper(&Measured::of(csv)?);
    Ok(text)
}

/// The largest measured table.
struct Measured {
    flows: f64,
    entries: f64,
    megabytes: f64,
    lookup_ns: f64,
    build_ms: f64,
    sweep_ms: f64,
    handover_ms: f64,
}

impl Measured {
    fn of(csv: &Csv) -> Result<Self> {
        let last = |column| csv.numbers(column)?.last().copied().context("the file has no rows");
        Ok(Self {
            flows: last("flows")?,
            entries: last("entries")?,
            megabytes: last("table_mb")?,
            lookup_ns: last("lookup_ns")?,
            build_ms: last("build_ms")?,
            sweep_ms: last("sweep_ms")?,
            handover_ms: last("handover_ms")?,
        })
    }
}

/// Returns the computed table for 100 million flows.
fn on_paper(measured: &Measured) -> String {
    let Measured { flows, entries, megabytes, lookup_ns, build_ms, sweep_ms, handover_ms } = *measured;
    let (per_flow, of) = (megabytes * 1e6 / flows, count(flows));
    let thread = MANY_FLOWS / THREADS;
    let seconds = |millis: f64, flows_now: f64| millis / flows * flows_now / 1e3;
    let [sweep, sweep_all] = [thread, MANY_FLOWS].map(|flows_now| seconds(sweep_ms, flows_now));
    let mut text = format!(
        "\n### 100 million flows\n\n\
         This table is computed for a machine with {THREADS} packet threads. Memory and times are those of the row with {of} flows, \
         multiplied by the number of flows.\n\n\
         | quantity | derivation | per thread | machine |\n|---|---|---|---|\n"
    );
    let mut row = |name: &str, from: &str, thread: String, machine: String| {
        text += &format!("| {name} | {from} | {thread} | {machine} |\n");
    };
    row("flows", "evenly distributed", count(thread), count(MANY_FLOWS));
    row(
        "entries, `io.flows_per_thread`",
        &format!("{:.0} × flows", entries / flows),
        count(thread * entries / flows),
        count(MANY_FLOWS * entries / flows),
    );
    row(
        "memory of the tables",
        &format!("{per_flow:.1} bytes per flow"),
        format!("{:.0} MB", thread * per_flow / 1e6),
        format!("{:.1} GB", MANY_FLOWS * per_flow / 1e9),
    );
    row(
        "memory during an upgrade",
        "tables of both processes",
        format!("{:.0} MB", 2.0 * thread * per_flow / 1e6),
        format!("{:.1} GB", 2.0 * MANY_FLOWS * per_flow / 1e9),
    );
    row(
        "allocation at the start",
        &format!("{:.1} ns per flow", build_ms * 1e6 / flows),
        format!("{:.2} s", seconds(build_ms, thread)),
        format!("{:.1} s, one table after the other", seconds(build_ms, MANY_FLOWS)),
    );
    row(
        "sweep of the table",
        &format!("{:.1} ns per flow", sweep_ms * 1e6 / flows),
        format!("{:.0} ms", sweep * 1e3),
        format!("{:.0} ms", sweep_all * 1e3),
    );
    row(
        "processor time for sweeps",
        &format!("one sweep per hour, or per {HURRIED_SECONDS} s if more than half of the table is used"),
        format!("{:.4} % or {:.1} %", sweep / 36.0, sweep / HURRIED_SECONDS * 100.0),
        "the same share of each thread".into(),
    );
    row(
        "handover in an upgrade",
        &format!("{:.1} ns per flow", handover_ms * 1e6 / flows),
        format!("{:.2} s", seconds(handover_ms, thread)),
        format!("{:.1} s, one queue after the other", seconds(handover_ms, MANY_FLOWS)),
    );
    row("lookup", &format!("as with {of} flows"), format!("{lookup_ns:.0} ns"), "the same".into());
    text + ON_PAPER
}

struct Axis {
    /// The word in the column `axis`.
    name: &'static str,
    /// The column that contains the count.
    column: &'static str,
}

impl Axis {
    /// Returns the range of the count in words.
    fn range(&self, counts: &[f64]) -> Result<String> {
        if self.name == "all" {
            return Ok("all three".into());
        }
        let (first, last) = counts.first().zip(counts.last()).context("the file has no rows of an axis")?;
        Ok(format!(
            "{}, {} to {}",
            if self.name == "vips" { "VIPs" } else { self.name },
            count(*first),
            count(*last)
        ))
    }
}

#[derive(Clone, Copy)]
struct Quantity {
    label: &'static str,
    /// The columns whose sum is the quantity.
    columns: &'static [&'static str],
}

impl Quantity {
    fn values(&self, csv: &Csv) -> Result<Vec<f64>> {
        let mut sums = vec![0.0; csv.words("axis")?.len()];
        for column in self.columns {
            sums.iter_mut().zip(csv.numbers(column)?).for_each(|(sum, value)| *sum += value);
        }
        Ok(sums)
    }
}

/// The values of a quantity by the count of an axis.
struct Series {
    counts: Vec<f64>,
    values: Vec<f64>,
}

impl Series {
    fn of(csv: &Csv, axis: &Axis, quantity: &Quantity) -> Result<Self> {
        let rows = csv.filter("axis", axis.name)?;
        Ok(Self { counts: rows.numbers(axis.column)?, values: quantity.values(&rows)? })
    }

    /// Returns the exponent of the growth between the last two points.
    fn exponent(&self) -> Result<f64> {
        let last = |values: &[f64]| match values {
            [.., before, last] => Ok((last / before).ln()),
            _ => Err(anyhow!("an axis has fewer than two rows")),
        };
        Ok(last(&self.values)? / last(&self.counts)?)
    }

    /// Returns the growth per counted object between the last two points.
    fn slope(&self) -> Result<f64> {
        let last = |values: &[f64]| match values {
            [.., before, last] => Ok(last - before),
            _ => Err(anyhow!("an axis has fewer than two rows")),
        };
        Ok(last(&self.values)? / last(&self.counts)?)
    }

    fn ends(&self) -> Result<String> {
        let (first, last) = self.values.first().zip(self.values.last()).context("an axis has no rows")?;
        Ok(format!("{} to {}", digits(*first), digits(*last)))
    }
}

/// Describes an exponent in words.
fn growth(exponent: f64) -> String {
    if exponent.abs() < CONSTANT { "constant".into() } else { format!("*N*^{exponent:.2}") }
}

/// Formats a value with at least two significant digits.
fn digits(value: f64) -> String {
    match value {
        _ if value >= 1_000.0 => count(value),
        _ if value >= 100.0 => format!("{value:.0}"),
        _ if value >= 1.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

/// Formats a count with separators between groups of three digits.
fn count(value: f64) -> String {
    let number = format!("{value:.0}");
    let mut text = String::new();
    for (place, digit) in number.char_indices() {
        if place > 0 && (number.len() - place) % 3 == 0 {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Returns a range of whole powers of ten that contains all values of the lines.
fn around(lines: &[Line]) -> Range<f64> {
    let values = || lines.iter().flat_map(|line| &line.points).map(|point| point.1.log10());
    let least = values().fold(f64::INFINITY, f64::min).floor();
    let most = values().fold(f64::NEG_INFINITY, f64::max).ceil();
    10_f64.powf(least)..10_f64.powf(most)
}

const AXES: [Axis; 4] = [
    Axis { name: "vips", column: "vips" },
    Axis { name: "pools", column: "pools" },
    Axis { name: "backends", column: "backends" },
    Axis { name: "all", column: "backends" },
];
const QUANTITIES: [Quantity; 4] = [
    Quantity { label: "time per packet (ns)", columns: &["packet_ns"] },
    Quantity { label: "memory (MB)", columns: &["resident_mb"] },
    Quantity { label: "reload (ms of processor time)", columns: &["read_ms", "compile_ms"] },
    Quantity { label: "of which build the snapshot (ms)", columns: &["compile_ms"] },
];
/// An exponent below this value is described as constant.
const CONSTANT: f64 = 0.05;
const MANY_FLOWS: f64 = 100e6;
const THREADS: f64 = 8.0;
/// The duration of a sweep when more than half of the table is used.
const HURRIED_SECONDS: f64 = 10.0;
const CONFIGURATION_GROWTH: &str = "
- **Time per packet.** The number of lookups per packet does not depend on the counts, so only cache misses increase the time. \
The time is nearly constant up to 100 VIPs or 1,000 backends. With more VIPs or backends, their data exceeds first the L1 cache \
(48 KiB on the measured machine) and then the L2 cache (2 MiB). A VIP needs a cache line in the VIP table, its service and its \
counters. A backend needs its prepared headers and its counters. Random flows miss the cache for each of them, and the misses \
for VIPs and backends add up. The cause is inferred from the sizes, because this virtual machine has no hardware counters.
- **Memory.** The memory grows linearly in each count, above a fixed part for the other two counts. The exponent is below 1 \
because of the fixed part.
- **Reload.** The time to build the snapshot grows linearly with the number of changed Maglev tables. The time for a table depends on its number of entries, and not on \
the number of backends. The rest of the time grows with the number of backends. The snapshot is built on all processors, so the \
elapsed time is shorter. The file is read on one processor, and a larger file needs more time per kB, because its data exceeds the caches.
";
const ON_PAPER: &str = "
A queue receives no packets during the handover of its table, in addition to the time to move the queue itself. To tolerate the failure \
of one of *n* machines, multiply the number of flows by *n* / (*n* − 1).
";
const FLOW_GROWTH: &str = "
- **Memory** is proportional to the number of flows.
- **Lookup.** The time has two knees. The first is at about 60,000 flows, where the table exceeds the L2 cache (2 MiB). Batches \
prefetch their buckets and hide most of these misses. The second is above 500,000 flows (16 MB). From there, more and more buckets come from \
main memory instead of the L3 cache, which other virtual machines share. Without huge pages, TLB misses are added, and their cost is the \
difference between the two columns.
- **Sweep and handover** read the table in order. Both grow in proportion to the number of flows, except that the time per flow \
rises when the table exceeds the caches.
";

#[cfg(test)]
mod tests {
    use super::*;

    const NOTES: &str = "# commit: 0123456789ab\n# command: c\n# date: d\n# machine: m\n";

    #[test]
    fn growth_of_configuration_is_the_exponent_of_the_last_decade() {
        let head =
            "axis,vips,pools,backends,file_kb,read_ms,compile_ms,resident_mb,peak_mb,packet_ns,median_ns";
        let mut text = format!("{NOTES}{head}\n");
        for axis in AXES {
            text += &format!("{},10,1,100,9,0.5,1.5,1.0,2.0,40.0,41.0\n", axis.name);
            text += &format!("{},100,10,1000,90,5,15,2.0,3.0,40.4,41.0\n", axis.name);
        }
        let csv = Csv::parse(&text).unwrap();
        let section = section(&csv).unwrap();
        let wanted = "| VIPs, 10 to 100 | 40.0 to 40.4, constant | 1.0 to 2.0, *N*^0.30 | 2.0 to 20.0, *N*^1.00 | 1.5 to 15.0, *N*^1.00 |";
        assert!(section.contains(wanted), "{section}");
        assert!(section.contains("| 100 | 10 | 1,000 | 90 | 40.4 | 2.0 | 20.0 | 15.0 | 3.0 |"), "{section}");
        let drawn = draw(&csv).unwrap();
        assert!(drawn.contains("VIPs, 10 to 100") && drawn.contains("backends, 100 to 1,000"), "{drawn}");
    }

    #[test]
    fn a_hundred_million_flows_are_computed_from_the_largest_table() {
        let head =
            "flows,entries,table_mb,lookup_ns,lookup_median_ns,lookup_4k_ns,build_ms,sweep_ms,handover_ms";
        let text = format!(
            "{NOTES}{head}\n1000,2000,0.1,5,5,5,1,1,1\n100000,200000,3.2,10,5,5,1,1,4\n1000000,2000000,32,20,21,30,10,8,40\n"
        );
        let csv = Csv::parse(&text).unwrap();
        let section = section_flows(&csv).unwrap();
        assert!(section.contains("| 1,000,000 | 32.0 MB | 20.0 ns | 30.0 ns | 10.0 ms |"), "{section}");
        assert!(section.contains("a lookup grows with *N*^0.30,"), "{section}");
        assert!(section.contains("| 2 × flows | 25,000,000 | 200,000,000 |"), "{section}");
        assert!(section.contains("| 32.0 bytes per flow | 400 MB | 3.2 GB |"), "{section}");
        assert!(
            section.contains("| 40.0 ns per flow | 0.50 s | 4.0 s, one queue after the other |"),
            "{section}"
        );
        assert!(draw_flows(&csv).unwrap().contains("without huge pages"));
    }
}
