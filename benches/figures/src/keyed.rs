//! Plots and sections of the results page for the evaluations in the MemSwitch and AppSwitch
//! papers. `cargo xtask figures` measures the values.
//!
//! References: Zhang et al., *SmartSwitch*, HotCloud 2014, figures 3 and 4, table 1; Cidon et al.,
//! *AppSwitch*, APNet 2017, table 1.

use anyhow::{Context, Result};
use plotters::style::RGBColor;

use crate::Csv;
use crate::plot::{self, Axes, Bar, COLORS, Line};

/// Draws Figure 3 of MemSwitch. Each combination of path and number of servers is drawn as a line.
pub(crate) fn draw_rates(csv: &Csv) -> Result<String> {
    let mut lines = Vec::new();
    for series in series(csv)? {
        let points = series.rows.numbers("asked_per_s")?.into_iter().map(|rate| rate / 1e3);
        let points = points.zip(series.rows.numbers("mean_us")?).collect();
        let color = if series.servers == "1" { color(series.way) } else { lighter(color(series.way)) };
        lines.push(Line { name: series.name(), points, color });
    }
    let title = "MemSwitch, Figure 3: get latency by request rate, with 1 and 2 servers";
    let paper = "TwemProxy 90,000/s, direct and MemSwitch with one server 350,000/s, with two 720,000/s";
    let axes = axes("gets per second, thousands", &lines);
    // Above the maximum rate of a path, requests wait for up to a second.
    let axes = Axes { y: "time (us), logarithmic", y_range: 10.0..1e6, ..axes };
    plot::svg(&plot::Sheet::new(title, paper, csv)?, |area| plot::lines_by_logarithm(area, &axes, &lines))
}

/// Returns the section of the results page for Figure 3 of MemSwitch.
pub(crate) fn section_rates(csv: &Csv) -> Result<String> {
    let mut rows = String::new();
    for series in series(csv)? {
        let (name, of) = (series.name(), &series.rows);
        let most = of.numbers("answered_per_s")?.into_iter().fold(0.0, f64::max);
        let mean = *of.numbers("mean_us")?.first().context("the series has no rate")?;
        let paper = MOST.iter().find(|(known, _)| *known == name).map_or("none", |(_, most)| most);
        rows += &format!("| {name} | {mean:.0} us | {:.0},000 | {paper} |\n", most / 1e3);
    }
    Ok(format!(
        "Clients send gets for 32-byte values at even intervals. The rate is increased until less than 90 % of the gets are answered. Clients \
         send directly to the servers (`direct`), through the proxy nutcracker, or through the balancer without a cache \
         (`uncached`). The paper used separate machines. Here servers, clients and router share one processor, and the proxy or balancer has the other processor. A second server therefore adds little throughput, and the shared processor limits `direct` and `uncached`. \
         Values are medians of {} runs.\n\n\
         | path, number of servers | mean latency at the lowest rate | highest rate, gets per second | highest rate in the paper |\n|---|---|---|---|\n{rows}",
        csv.note("runs")?
    ))
}

/// Draws Table 1 of MemSwitch as bars of mean latencies.
pub(crate) fn draw_light(csv: &Csv) -> Result<String> {
    let rows = csv.words("way")?.into_iter().zip(csv.numbers("mean_us")?);
    let ranges = csv.numbers("least_us")?.into_iter().zip(csv.numbers("most_us")?);
    let bars: Vec<Bar> = rows
        .zip(ranges)
        .map(|((way, value), (least, _))| Bar {
            label: way.into(),
            value,
            range: Some((least, value)),
            paper: paper_light(way).map(|(_, mean, _)| mean),
            color: color(way),
        })
        .collect();
    let title = "MemSwitch, Table 1: mean latency of a get at 100 per second, 32-byte values";
    let paper = "direct UDP 175 us, TwemProxy 315, MemSwitch 208, with a cache 19";
    plot::svg(&plot::Sheet::new(title, paper, csv)?, |area| plot::bars(area, TIME, &bars))
}

/// Returns the section of the results page for Table 1 of MemSwitch.
pub(crate) fn section_light(csv: &Csv) -> Result<String> {
    let numbers = |column| csv.numbers(column);
    let (least, mean, most) = (numbers("least_us")?, numbers("mean_us")?, numbers("most_us")?);
    let against = numbers("against_direct")?;
    let mut rows = String::new();
    for (at, way) in csv.words("way")?.into_iter().enumerate() {
        let paper = paper_light(way).map_or("none | none".into(), |(least, mean, most)| {
            format!("{least} / {mean} / {most} us | {:.2}", mean / DIRECT_MEAN)
        });
        rows += &format!(
            "| {way} | {:.0} / {:.0} / {:.0} us | {:.2} | {paper} |\n",
            least[at], mean[at], most[at], against[at]
        );
    }
    Ok(format!(
        "A client sends one get at a time for one of ten keys, and there is one server. `direct` has neither proxy nor balancer, \
         `nutcracker` is TwemProxy, and `uncached` is the balancer without a cache. `cached-1s` is the balancer with cached values \
         that expire after 1 s. At ten gets per second per key, the balancer would cache nothing with a shorter lease. At this rate \
         all threads sleep between two requests, so each hop includes the time to wake up. The paper prints ratios to direct TCP; the \
         ratios to direct UDP below are computed from the times in the paper. Direct TCP and MemSwitch over TCP are not measured here. \
         Values are medians of {} runs.\n\n\
         | path | minimum / mean / maximum latency | mean relative to direct | latency in the paper | mean relative to direct in the paper |\n|---|---|---|---|---|\n{rows}",
        csv.note("runs")?
    ))
}

/// Draws Figure 4 of MemSwitch. Each path is drawn as a line.
pub(crate) fn draw_sizes(csv: &Csv) -> Result<String> {
    let mut lines = Vec::new();
    for way in ways(csv)? {
        let rows = csv.filter("way", way)?;
        let kilobytes = rows.numbers("value_bytes")?.into_iter().map(|bytes| bytes / 1e3);
        let points = kilobytes.zip(rows.numbers("mean_us")?).collect();
        lines.push(Line { name: way.into(), points, color: color(way) });
    }
    let title = "MemSwitch, Figure 4: get latency by value size";
    let paper = "TwemProxy 2,151 us at 11 kB; MemSwitch is as fast as direct access at every size";
    let axes = axes("value size (thousand bytes)", &lines);
    plot::svg(&plot::Sheet::new(title, paper, csv)?, |area| plot::lines(area, &axes, &lines))
}

/// Returns the section of the results page for Figure 4 of MemSwitch.
pub(crate) fn section_sizes(csv: &Csv) -> Result<String> {
    let ways = ways(csv)?;
    let means: Vec<Vec<f64>> =
        ways.iter().map(|way| csv.filter("way", way)?.numbers("mean_us")).collect::<Result<_>>()?;
    let sizes = csv.filter("way", ways.first().context("the file has no way")?)?;
    let mut rows = String::new();
    for (at, bytes) in sizes.words("value_bytes")?.into_iter().enumerate() {
        let cells: String = means.iter().map(|means| format!(" {:.0} us |", means[at])).collect();
        rows += &format!("| {bytes} |{cells}\n");
    }
    Ok(format!(
        "Clients send 1,000 gets per second for ten keys to one server. The table shows the mean latency by value size. The paper shows \
         a plot and states only one number, 2,151 us for TwemProxy at 11 kB. The paper also states that MemSwitch is as fast as direct access, because responses do not pass through MemSwitch. The balancer does not cache values over 1,300 bytes, so `cached-1s` forwards gets for larger values. Values are medians of {} runs.\n\n\
         | value size in bytes | {} |\n|---|{}\n{rows}",
        csv.note("runs")?,
        ways.join(" | "),
        "---|".repeat(ways.len())
    ))
}

/// Draws Table 1 of AppSwitch as bars of operations per second.
pub(crate) fn draw_mixed(csv: &Csv) -> Result<String> {
    let rows = csv.words("way")?.into_iter().zip(csv.numbers("operations_per_s")?);
    let bars: Vec<Bar> = rows
        .map(|(way, rate)| Bar {
            label: way.into(),
            value: rate / 1e3,
            range: None,
            paper: None,
            color: color(way),
        })
        .collect();
    let title = "AppSwitch, Table 1: sets and gets in equal numbers, one server";
    let paper = "McRouter 631.0 queries/s, mean 1,696.7 ms; AppSwitch 1,156.8 queries/s, mean 967.8 ms";
    plot::svg(&plot::Sheet::new(title, paper, csv)?, |area| {
        plot::bars(area, "operations per second (thousands)", &bars)
    })
}

/// Returns the section of the results page for Table 1 of AppSwitch.
pub(crate) fn section_mixed(csv: &Csv) -> Result<String> {
    let [rate, mean, p95, p99] =
        ["operations_per_s", "mean_us", "p95_us", "p99_us"].map(|column| csv.numbers(column));
    let (rate, mean, p95, p99) = (rate?, mean?, p95?, p99?);
    let ways = csv.words("way")?;
    let place = |way: &str| {
        ways.iter().position(|known| *known == way).with_context(|| format!("the file has no row {way}"))
    };
    let (ours, theirs) = (place("uncached")?, place("nutcracker")?);
    let mut rows = String::new();
    for (at, way) in ways.iter().enumerate() {
        rows += &format!(
            "| {way} | {:.0} | {:.0} us | {:.0} us | {:.0} us |\n",
            rate[at], mean[at], p95[at], p99[at]
        );
    }
    Ok(format!(
        "Clients send sets and gets of 64-byte values as fast as the responses arrive, with 128 requests in flight. Debian does not package \
         McRouter, so the proxy is nutcracker. The balancer (`uncached`) reaches {:.2} times as many operations per second as nutcracker, \
         and {:.2} times the mean latency. In the paper, AppSwitch reaches 1.83 times as many queries per second as McRouter, and 0.57 \
         times the mean latency. (The paper's table labels its second row McRouter, but the text attributes it to AppSwitch.) Values are \
         medians of {} runs.\n\n\
         | path | operations per second | mean latency | p95 | p99 |\n|---|---|---|---|---|\n{rows}\
         | McRouter in the paper | 631.0 | 1,696.7 ms | 2,025.4 ms | 4,122.5 ms |\n\
         | AppSwitch in the paper | 1,156.8 | 967.8 ms | 1,368.2 ms | 1,547.7 ms |\n",
        rate[ours] / rate[theirs],
        mean[ours] / mean[theirs],
        csv.note("runs")?
    ))
}

/// Returns the color of a path. A path has the same color in all plots.
fn color(way: &str) -> RGBColor {
    match way {
        "direct" => COLORS[3],
        "nutcracker" => COLORS[1],
        "uncached" => COLORS[0],
        _ => COLORS[2],
    }
}

/// Returns a lighter shade of the color.
fn lighter(RGBColor(red, green, blue): RGBColor) -> RGBColor {
    let [red, green, blue] = [red, green, blue].map(|part| part / 2 + 127);
    RGBColor(red, green, blue)
}

/// The rows for one path and a given number of servers.
struct Series<'a> {
    way: &'a str,
    servers: &'static str,
    rows: Csv,
}

impl Series<'_> {
    fn name(&self) -> String {
        format!("{}, {}", self.way, self.servers)
    }
}

fn series(csv: &Csv) -> Result<Vec<Series<'_>>> {
    let mut found = Vec::new();
    for way in ways(csv)? {
        for servers in ["1", "2"] {
            let rows = csv.filter("way", way)?.filter("servers", servers)?;
            if !rows.words("way")?.is_empty() {
                found.push(Series { way, servers, rows });
            }
        }
    }
    Ok(found)
}

/// Returns the different paths, ordered by first occurrence.
fn ways(csv: &Csv) -> Result<Vec<&str>> {
    let mut ways = Vec::new();
    for way in csv.words("way")? {
        if !ways.contains(&way) {
            ways.push(way);
        }
    }
    Ok(ways)
}

/// Returns axes that start at zero and end slightly above the highest point.
fn axes<'a>(x: &'a str, lines: &[Line]) -> Axes<'a> {
    let most =
        |of: fn(&(f64, f64)) -> f64| lines.iter().flat_map(|line| &line.points).map(of).fold(0.0, f64::max);
    Axes { x, y: TIME, x_range: 0.0..1.05 * most(|point| point.0), y_range: 0.0..1.1 * most(|point| point.1) }
}

/// Returns the minimum, mean and maximum latency in Table 1 of the paper, in microseconds.
fn paper_light(way: &str) -> Option<(f64, f64, f64)> {
    match way {
        "direct" => Some((39.0, DIRECT_MEAN, 527.0)),
        "nutcracker" => Some((107.0, 315.0, 716.0)),
        "uncached" => Some((41.0, 208.0, 365.0)),
        "cached-1s" => Some((4.0, 19.0, 39.0)),
        _ => None,
    }
}

const DIRECT_MEAN: f64 = 175.0;
/// The maximum rates that the paper states for Figure 3 in its text.
const MOST: [(&str, &str); 5] = [
    ("direct, 1", "350,000"),
    ("nutcracker, 1", "90,000"),
    ("nutcracker, 2", "90,000"),
    ("uncached, 1", "350,000"),
    ("uncached, 2", "720,000"),
];
const TIME: &str = "time (us)";

#[cfg(test)]
mod tests {
    use super::*;

    const NOTES: &str = "# commit: 0123456789ab\n# command: c\n# date: d\n# machine: m\n# runs: 3\n";

    fn csv(rows: &str) -> Csv {
        Csv::parse(&format!("{NOTES}{rows}")).unwrap()
    }

    #[test]
    fn rates_section_compares_way_and_servers_with_paper() {
        let csv = csv("way,servers,asked_per_s,answered_per_s,mean_us,p99_us,lost\n\
             direct,1,10000,10000,40.4,90,0\ndirect,1,200000,151600,900,990,0\nuncached,2,10000,9999,60,80,0\n");
        let text = section_rates(&csv).unwrap();
        assert!(text.contains("| direct, 1 | 40 us | 152,000 | 350,000 |"), "{text}");
        assert!(text.contains("| uncached, 2 | 60 us | 10,000 | 720,000 |"), "{text}");
        let drawn = draw_rates(&csv).unwrap();
        assert!(
            drawn.contains("direct, 1") && drawn.contains("uncached, 2") && !drawn.contains("nutcracker")
        );
    }

    #[test]
    fn light_section_compares_with_paper_and_direct() {
        let csv = csv(
            "way,least_us,mean_us,most_us,against_direct\ndirect,30,50,300,1\ncached-1s,10,25.4,100,0.508\n",
        );
        let text = section_light(&csv).unwrap();
        assert!(text.contains("| cached-1s | 10 / 25 / 100 us | 0.51 | 4 / 19 / 39 us | 0.11 |"), "{text}");
        assert!(draw_light(&csv).unwrap().contains("cached-1s"));
    }

    #[test]
    fn sizes_section_has_a_row_per_size_and_a_column_per_way() {
        let csv = csv(
            "way,value_bytes,mean_us,p50_us\ndirect,32,50,1\nnutcracker,32,90,1\ndirect,11000,99,1\nnutcracker,11000,800,1\n",
        );
        let text = section_sizes(&csv).unwrap();
        let wanted = "| value size in bytes | direct | nutcracker |\n|---|---|---|\n| 32 | 50 us | 90 us |\n| 11000 | 99 us | 800 us |\n";
        assert!(text.ends_with(wanted), "{text}");
        assert!(draw_sizes(&csv).unwrap().contains("nutcracker"));
    }

    #[test]
    fn mixed_section_compares_with_the_proxy() {
        let csv = csv(
            "way,operations_per_s,mean_us,p95_us,p99_us\ndirect,150000,1,1,1\nnutcracker,50000,200,3,4\nuncached,100000,100,3,4\n",
        );
        let text = section_mixed(&csv).unwrap();
        assert!(
            text.contains(
                "2.00 times as many operations per second as nutcracker, and 0.50 times the mean latency"
            ),
            "{text}"
        );
        assert!(draw_mixed(&csv).unwrap().contains("uncached"));
    }
}
