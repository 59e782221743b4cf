//! Evaluates simulated days: CSV rows, plots and sections of the results page.

use anyhow::Result;

use super::{Assumptions, INTERVAL_SECONDS, Interval, Outcome, simulate};
use crate::Csv;
use crate::plot::{self, Axes, COLORS, Line};
use crate::stats::{Spread, median};

/// Simulates the day of Figure 7 and returns its CSV.
pub(crate) fn run() -> Csv {
    let (intervals, outcome) = measure(&DAY);
    let mean = intervals.iter().map(|one| one.connections.mean).sum::<f64>() / intervals.len() as f64;
    let mut csv = Csv::new(&[
        "hour",
        "mean",
        "deviation",
        "variation_percent",
        "overprovision",
        "packets_variation_percent",
        "packets_overprovision",
    ]);
    csv.add_note("connections", outcome.connections);
    csv.add_note("packets", outcome.packets);
    csv.add_note(MEAN, format!("{mean:.0}"));
    csv.add_note(FAILED, outcome.moved_off_failed);
    csv.add_note(NEEDLESS, outcome.moved_needlessly);
    csv.add_note(KEPT, outcome.kept_by_tracking);
    for (number, Load { connections, packets }) in (0u32..).zip(&intervals) {
        let hour = f64::from(number * INTERVAL_SECONDS) / 3_600.0;
        csv.push(vec![
            format!("{hour:.3}"),
            format!("{:.3}", connections.mean / mean),
            format!("{:.4}", connections.deviation / mean),
            format!("{:.2}", connections.variation_percent()),
            format!("{:.3}", connections.overprovision()),
            format!("{:.2}", packets.variation_percent()),
            format!("{:.3}", packets.overprovision()),
        ]);
    }
    csv
}

/// Simulates days with lower and higher connection rates.
pub(crate) fn run_rates() -> Csv {
    let mut csv = Csv::new(&[
        "arrivals",
        "connections_in_interval",
        "variation_percent",
        "by_chance_percent",
        "below_1_2_percent",
    ]);
    for arrivals in RATES {
        let (intervals, _) = measure(&Assumptions { arrivals, ..DAY });
        let of = |value: fn(&Spread) -> f64| {
            intervals.iter().map(|one| value(&one.connections)).collect::<Vec<_>>()
        };
        let mean = median(&of(|spread| spread.mean));
        let factors = of(Spread::overprovision);
        let below = factors.iter().filter(|factor| **factor < 1.2).count();
        csv.push(vec![
            arrivals.to_string(),
            format!("{mean:.0}"),
            format!("{:.2}", median(&of(Spread::variation_percent))),
            format!("{:.2}", 100.0 / mean.sqrt()),
            format!("{:.1}", 100.0 * below as f64 / factors.len() as f64),
        ]);
        eprintln!("simulated a day with {arrivals} connections per second per endpoint");
    }
    csv
}

/// The distribution of one interval's load over the endpoints.
struct Load {
    connections: Spread,
    packets: Spread,
}

fn measure(assumed: &Assumptions) -> (Vec<Load>, Outcome) {
    let mut intervals = Vec::new();
    let spread = |counts: &[u32]| Spread::of(&counts.iter().copied().map(f64::from).collect::<Vec<_>>());
    let outcome = simulate(assumed, &mut |Interval { connections, packets }| {
        intervals.push(Load { connections: spread(connections), packets: spread(packets) });
    });
    (intervals, outcome)
}

/// Draws three panels, with the hour of the day on the x axis.
pub(crate) fn draw(csv: &Csv) -> Result<String> {
    let line = |column: &str, name: &str, color| -> Result<Line> {
        let points = csv.numbers("hour")?.into_iter().zip(csv.numbers(column)?).collect();
        Ok(Line { name: name.into(), points, color: COLORS[color] })
    };
    let load = [line("mean", "mean", 0)?, line("deviation", "standard deviation", 1)?];
    let variation =
        [line("variation_percent", "connections", 0)?, line("packets_variation_percent", "packets", 2)?];
    let bound = Line { name: "1.2".into(), points: vec![(0.0, 1.2), (24.0, 1.2)], color: COLORS[3] };
    let factor = [line("overprovision", "connections", 0)?, bound];
    let sheet = plot::Sheet::new(
        "Figure 7: a simulated day, 458 endpoints",
        "variation 6 to 7 % most of the day; factor below 1.2 for over 60 % of the time, higher outside the peak",
        csv,
    )?
    .with_height(900);
    plot::svg(&sheet, |area| {
        let panels = area.split_evenly((3, 1));
        let axes = |y, y_range| Axes { x: "time (hours)", y, x_range: 0.0..24.0, y_range };
        plot::lines(&panels[0], &axes("normalized load", 0.0..2.4), &load)?;
        plot::lines(&panels[1], &axes("coefficient of variation (percent)", 0.0..40.0), &variation)?;
        plot::lines(&panels[2], &axes("overprovision factor", 1.0..1.6), &factor)
    })
}

/// Draws the coefficient of variation against the number of connections per interval.
pub(crate) fn draw_rates(csv: &Csv) -> Result<String> {
    let line = |column: &str, name: &str, color: usize| -> Result<Line> {
        let points = csv.numbers("connections_in_interval")?.into_iter().zip(csv.numbers(column)?).collect();
        Ok(Line { name: name.into(), points, color: COLORS[color] })
    };
    let lines = [
        line("variation_percent", "simulated, median of the day", 0)?,
        line("by_chance_percent", "1/sqrt(n): by chance", 3)?,
    ];
    let most = csv.numbers("connections_in_interval")?.into_iter().fold(0.0, f64::max);
    plot::svg(
        &plot::Sheet::new(
            "Figure 7 at other rates: variation by number of connections",
            "no such figure",
            csv,
        )?,
        |area| {
            let axes = Axes {
                x: "connections per endpoint in five minutes (median of the day)",
                y: "coefficient of variation (percent)",
                x_range: 0.0..most * 1.05,
                y_range: 0.0..16.0,
            };
            plot::lines(area, &axes, &lines)
        },
    )
}

/// Returns the section of the results page for Figure 7.
pub(crate) fn section(csv: &Csv) -> Result<String> {
    let mut text = format!(
        "The paper shows a real day of one cluster: the connections per second of 458 endpoints, in intervals of five minutes. The day \
         shown here is simulated, with {} connections and {} packets. As in a packet thread, `maglev_hash::build` builds \
         the Maglev table (65,537 entries), and `conntrack::FlowTable` is the connection table (a million entries).\n\n| quantity | paper | Sluicegate |\n|---|---|---|\n",
        millions(csv, "connections")?,
        millions(csv, "packets")?,
    );
    for [what, paper, ours] in comparison(csv)? {
        text += &format!("| {what} | {paper} | {ours} |\n");
    }
    text += &format!(
        "\nThe paper does not describe its traffic. The simulation makes these assumptions:\n\n\
         - Connections arrive at random (Poisson) and independently, {} per second per endpoint on average.\n\
         - The rate varies over the day. The maximum at 20:00 is 4.2 times the minimum at 4:00.\n\
         - A client sends 4 to 1,000 packets on a connection (Pareto, shape 1.3). The second packet follows a quarter of a second after the SYN.\n\
         - The median duration of a connection is 4 s (log-normal, sigma 1.5, at most 10 minutes). The packets of a connection are evenly spaced.\n\
         - Every endpoint has weight 1 and fails once in the day, at a random time, for 60 s.\n\n\
         At this rate an endpoint gets about {} connections in five minutes. With so few connections, their random arrival is enough to cause the variation that the paper reports. The next figure shows higher and lower rates.\n",
        DAY.arrivals,
        csv.note(MEAN)?,
    );
    Ok(text)
}

fn millions(csv: &Csv, note: &str) -> Result<String> {
    Ok(format!("{:.1} million", csv.note(note)?.parse::<f64>()? / 1e6))
}

/// Returns one row per quantity: its name, the paper's value and the simulated value.
fn comparison(csv: &Csv) -> Result<Vec<[String; 3]>> {
    let (variation, factor) = (csv.numbers("variation_percent")?, csv.numbers("overprovision")?);
    let packets = [csv.numbers("packets_variation_percent")?, csv.numbers("packets_overprovision")?];
    let percent = |is: &dyn Fn(f64) -> bool, of: &[f64]| {
        format!("{:.0} %", 100.0 * of.iter().filter(|value| is(**value)).count() as f64 / of.len() as f64)
    };
    let below = percent(&|factor| factor < 1.2, &factor);
    let between = percent(&|variation| (6.0..=7.0).contains(&variation), &variation);
    let Spread { least, most, .. } = Spread::of(&variation);
    let hour = |hour: usize| median(&factor[hour * 12..(hour + 1) * 12]);
    let (medians, highest) = ([median(&variation), median(&factor)], Spread::of(&factor).most);
    let of_packets = packets.map(|values| median(&values));
    let ours = [
        format!("median {:.1} % ({least:.1} to {most:.1}); 6 to 7 % for {between} of the day", medians[0]),
        format!("below 1.2 for {below} of the time; median {:.2}, maximum {highest:.2}", medians[1]),
        format!("{:.2} at 4:00, {:.2} at 20:00 (medians)", hour(4), hour(20)),
        format!("variation {:.1} %, factor {:.2} (medians)", of_packets[0], of_packets[1]),
        format!("{} connections", csv.note(FAILED)?),
        format!(
            "{} connections; the connection table kept {} more on their endpoint",
            csv.note(NEEDLESS)?,
            csv.note(KEPT)?
        ),
    ];
    Ok(PAPER.into_iter().zip(ours).map(|((what, paper), ours)| [what.into(), paper.into(), ours]).collect())
}

/// The quantities that the results page compares, each with the value that the paper states.
const PAPER: [(&str, &str); 6] = [
    ("coefficient of variation", "6 to 7 % most of the day"),
    ("overprovision factor", "below 1.2 for over 60 % of the time"),
    ("overprovision factor outside the peak", "notably higher than at the peak"),
    ("variation and overprovision factor of packets instead of connections", "not given"),
    ("connections that moved because their endpoint failed", "not given"),
    ("connections that moved although their endpoint was up", "not given"),
];

/// Returns the section of the results page for the other rates.
pub(crate) fn section_rates(csv: &Csv) -> Result<String> {
    let mut text = String::from(
        "This figure is not in the paper. It repeats the simulated day with fewer and more connections. All endpoints have the same \
         number of table entries, give or take one, so almost all of the variation is random. If an endpoint gets *n* connections \
         per interval on average, random arrival leads to a coefficient of variation of 1/sqrt(*n*).\n\n\
         | connections per second per endpoint | connections per endpoint in five minutes | coefficient of variation, median | \
         coefficient of variation by chance | share of the day with an overprovision factor below 1.2 |\n|---|---|---|---|---|\n",
    );
    let columns = [
        "arrivals",
        "connections_in_interval",
        "variation_percent",
        "by_chance_percent",
        "below_1_2_percent",
    ];
    let [arrivals, n, variation, chance, below] = columns.map(|column| csv.words(column));
    let (arrivals, n, variation, chance, below) = (arrivals?, n?, variation?, chance?, below?);
    for i in 0..arrivals.len() {
        text += &format!(
            "| {} | {} | {} % | {} % | {} % |\n",
            arrivals[i], n[i], variation[i], chance[i], below[i]
        );
    }
    Ok(text)
}

/// The parameters of Figure 7.
const DAY: Assumptions = Assumptions {
    endpoints: 458,
    slots: 65_537,
    arrivals: 0.8,
    seconds: 86_400,
    warm_up_seconds: 900,
    outage_seconds: 60,
    flows: 1_000_000,
    seed: 7,
};
/// The keys of notes in the CSV file.
const MEAN: &str = "connections of an endpoint in five minutes, mean";
const FAILED: &str = "moved off a failed endpoint";
const NEEDLESS: &str = "moved off an endpoint that serves";
const KEPT: &str = "kept by tracking";
const RATES: [f64; 4] = [0.2, 0.4, 0.8, 1.6];
