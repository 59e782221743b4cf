//! Requests by key: the evaluations of MemSwitch and AppSwitch. Measured by `cargo xtask figures`.
//!
//! Source: Zhang et al., *SmartSwitch*, HotCloud 2014, figures 3 and 4, table 1; Cidon et al., *AppSwitch*, APNet 2017, table 1.

use anyhow::{Context, Result};
use plotters::style::RGBColor;

use crate::Csv;
use crate::plot::{self, Axes, Bar, COLORS, Line};

/// Figure 3: lines by way and servers.
pub(crate) fn draw_rates(csv: &Csv) -> Result<String> {
    let mut lines = Vec::new();
    for series in series(csv)? {
        let points = series.rows.numbers("asked_per_s")?.into_iter().map(|rate| rate / 1e3);
        let points = points.zip(series.rows.numbers("mean_us")?).collect();
        let color = if series.servers == "1" { color(series.way) } else { lighter(color(series.way)) };
        lines.push(Line { name: series.name(), points, color });
    }
    let title = "MemSwitch, Figure 3: time of a get by their rate, 1 and 2 servers";
    let paper = "TwemProxy carries 90,000/s, direct and MemSwitch with a server 350,000/s, MemSwitch with two 720,000/s";
    let axes = axes("gets asked for, thousands a second", &lines);
    // Beyond what a way carries requests wait, for up to a second.
    let axes = Axes { y: "time (us), by its logarithm", y_range: 10.0..1e6, ..axes };
    plot::svg(&plot::Sheet::new(title, paper, csv)?, |area| plot::lines_by_logarithm(area, &axes, &lines))
}

/// Its part of the page.
pub(crate) fn section_rates(csv: &Csv) -> Result<String> {
    let mut rows = String::new();
    for series in series(csv)? {
        let (name, of) = (series.name(), &series.rows);
        let most = of.numbers("answered_per_s")?.into_iter().fold(0.0, f64::max);
        let mean = *of.numbers("mean_us")?.first().context("a rate")?;
        let paper = MOST.iter().find(|(known, _)| *known == name).map_or("none", |(_, most)| most);
        rows += &format!("| {name} | {mean:.0} us | {:.0},000 | {paper} |\n", most / 1e3);
    }
    Ok(format!(
        "Values of 32 bytes, gets alone, at even intervals, up to the first rate of which less than nine tenths are answered. Here servers, clients and router share one \
         processor and the proxy or balancer has the other, so a second server adds little, and what is direct or goes through the balancer ends where the first processor does; the \
         paper's have machines of their own. `uncached` is the balancer without a cache. Medians of {} runs.\n\n\
         | way, servers | mean at the lowest rate | most a second | the paper's most |\n|---|---|---|---|\n{rows}",
        csv.note("runs")?
    ))
}

/// Table 1: bars of means.
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
    let title = "MemSwitch, Table 1: mean time of a get at 100 a second, values of 32 bytes";
    let paper = "direct UDP 175 us, TwemProxy 315, MemSwitch 208, with a cache 19";
    plot::svg(&plot::Sheet::new(title, paper, csv)?, |area| plot::bars(area, TIME, &bars))
}

/// Its part of the page.
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
        "A get at a time of one of ten keys, one server. The paper's ratios are to its direct UDP (it prints them to direct TCP, which is not here, nor is MemSwitch over TCP); `nutcracker` \
         is TwemProxy. `cached-1s` answers from copies with a lease of 1 s: at ten gets a second of a key shorter leases make none. At this rate every thread sleeps in between, so each hop has a \
         wake-up. Medians of {} runs of least, mean and most.\n\n\
         | way | least / mean / most | against direct | the paper's | against direct |\n|---|---|---|---|---|\n{rows}",
        csv.note("runs")?
    ))
}

/// Figure 4: lines by way.
pub(crate) fn draw_sizes(csv: &Csv) -> Result<String> {
    let mut lines = Vec::new();
    for way in ways(csv)? {
        let rows = csv.filter("way", way)?;
        let kilobytes = rows.numbers("value_bytes")?.into_iter().map(|bytes| bytes / 1e3);
        let points = kilobytes.zip(rows.numbers("mean_us")?).collect();
        lines.push(Line { name: way.into(), points, color: color(way) });
    }
    let title = "MemSwitch, Figure 4: time of a get by the size of its value";
    let paper = "TwemProxy 2,151 us at 11 kB; MemSwitch as direct at every size";
    let axes = axes("bytes of a value, thousands", &lines);
    plot::svg(&plot::Sheet::new(title, paper, csv)?, |area| plot::lines(area, &axes, &lines))
}

/// Its part of the page.
pub(crate) fn section_sizes(csv: &Csv) -> Result<String> {
    let ways = ways(csv)?;
    let means: Vec<Vec<f64>> =
        ways.iter().map(|way| csv.filter("way", way)?.numbers("mean_us")).collect::<Result<_>>()?;
    let sizes = csv.filter("way", ways.first().context("a way")?)?;
    let mut rows = String::new();
    for (at, bytes) in sizes.words("value_bytes")?.into_iter().enumerate() {
        let cells: String = means.iter().map(|means| format!(" {:.0} us |", means[at])).collect();
        rows += &format!("| {bytes} |{cells}\n");
    }
    Ok(format!(
        "1,000 gets a second of ten keys, one server, mean times. The paper shows a plot and names one number, 2,151 us of TwemProxy at 11 kB; what it says of MemSwitch is that it stays beside \
         direct, because a value never passes it. Values over 1,300 bytes fit no copy, so `cached-1s` forwards them. Medians of {} runs.\n\n\
         | bytes | {} |\n|---|{}\n{rows}",
        csv.note("runs")?,
        ways.join(" | "),
        "---|".repeat(ways.len())
    ))
}

/// AppSwitch's Table 1: bars of operations a second.
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
    let title = "AppSwitch, Table 1: as many sets as gets, of one server";
    let paper = "by McRouter 631.0 queries/s, 1,696.7 ms on average; by AppSwitch 1,156.8, 967.8 ms";
    plot::svg(&plot::Sheet::new(title, paper, csv)?, |area| {
        plot::bars(area, "operations per second (thousands)", &bars)
    })
}

/// Its part of the page.
pub(crate) fn section_mixed(csv: &Csv) -> Result<String> {
    let [rate, mean, p95, p99] =
        ["operations_per_s", "mean_us", "p95_us", "p99_us"].map(|column| csv.numbers(column));
    let (rate, mean, p95, p99) = (rate?, mean?, p95?, p99?);
    let ways = csv.words("way")?;
    let place =
        |way: &str| ways.iter().position(|known| *known == way).with_context(|| format!("no row {way}"));
    let (ours, theirs) = (place("uncached")?, place("nutcracker")?);
    let mut rows = String::new();
    for (at, way) in ways.iter().enumerate() {
        rows += &format!(
            "| {way} | {:.0} | {:.0} us | {:.0} us | {:.0} us |\n",
            rate[at], mean[at], p95[at], p99[at]
        );
    }
    Ok(format!(
        "As fast as they are answered, 128 at a time, values of 64 bytes. In Debian there is no McRouter, so the proxy is nutcracker. Ours has {:.2} times its operations and {:.2} of its mean time; AppSwitch had \
         1.83 times McRouter's queries and 0.57 of their time. (The paper's table calls its second row McRouter; its text makes that AppSwitch's.) Medians of {} runs.\n\n\
         | way | operations/s | mean | p95 | p99 |\n|---|---|---|---|---|\n{rows}\
         | the paper's McRouter | 631.0 | 1,696.7 ms | 2,025.4 ms | 4,122.5 ms |\n\
         | the paper's AppSwitch | 1,156.8 | 967.8 ms | 1,368.2 ms | 1,547.7 ms |\n",
        rate[ours] / rate[theirs],
        mean[ours] / mean[theirs],
        csv.note("runs")?
    ))
}

/// Of a way, the same in all plots.
fn color(way: &str) -> RGBColor {
    match way {
        "direct" => COLORS[3],
        "nutcracker" => COLORS[1],
        "uncached" => COLORS[0],
        _ => COLORS[2],
    }
}

/// Halfway to white.
fn lighter(RGBColor(red, green, blue): RGBColor) -> RGBColor {
    let [red, green, blue] = [red, green, blue].map(|part| part / 2 + 127);
    RGBColor(red, green, blue)
}

/// Rows of a way with so many servers.
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

/// Each once, in the order of the rows.
fn ways(csv: &Csv) -> Result<Vec<&str>> {
    let mut ways = Vec::new();
    for way in csv.words("way")? {
        if !ways.contains(&way) {
            ways.push(way);
        }
    }
    Ok(ways)
}

/// From zero to a little above all points.
fn axes<'a>(x: &'a str, lines: &[Line]) -> Axes<'a> {
    let most =
        |of: fn(&(f64, f64)) -> f64| lines.iter().flat_map(|line| &line.points).map(of).fold(0.0, f64::max);
    Axes { x, y: TIME, x_range: 0.0..1.05 * most(|point| point.0), y_range: 0.0..1.1 * most(|point| point.1) }
}

/// Least, mean and most of the paper's Table 1, in microseconds.
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
/// What the paper's text says of Figure 3.
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
    fn rates_are_told_by_way_and_servers_beside_the_paper_s_most() {
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
    fn light_load_stands_beside_the_paper_s_and_its_ratio_to_direct() {
        let csv = csv(
            "way,least_us,mean_us,most_us,against_direct\ndirect,30,50,300,1\ncached-1s,10,25.4,100,0.508\n",
        );
        let text = section_light(&csv).unwrap();
        assert!(text.contains("| cached-1s | 10 / 25 / 100 us | 0.51 | 4 / 19 / 39 us | 0.11 |"), "{text}");
        assert!(draw_light(&csv).unwrap().contains("cached-1s"));
    }

    #[test]
    fn sizes_are_rows_and_ways_columns() {
        let csv = csv(
            "way,value_bytes,mean_us,p50_us\ndirect,32,50,1\nnutcracker,32,90,1\ndirect,11000,99,1\nnutcracker,11000,800,1\n",
        );
        let text = section_sizes(&csv).unwrap();
        let wanted = "| bytes | direct | nutcracker |\n|---|---|---|\n| 32 | 50 us | 90 us |\n| 11000 | 99 us | 800 us |\n";
        assert!(text.ends_with(wanted), "{text}");
        assert!(draw_sizes(&csv).unwrap().contains("nutcracker"));
    }

    #[test]
    fn a_mixed_load_is_compared_with_the_proxy_s() {
        let csv = csv(
            "way,operations_per_s,mean_us,p95_us,p99_us\ndirect,150000,1,1,1\nnutcracker,50000,200,3,4\nuncached,100000,100,3,4\n",
        );
        let text = section_mixed(&csv).unwrap();
        assert!(text.contains("2.00 times its operations and 0.50 of its mean time"), "{text}");
        assert!(draw_mixed(&csv).unwrap().contains("uncached"));
    }
}
