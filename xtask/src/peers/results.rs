//! Evaluates the results of `bench peers`, and formats them as text, JSON, CSV and a plot.
//!
//! A ratio compares measurements of the same round, and the result is the median of the ratios of
//! all rounds.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use crate::peers::plot;
use crate::peers::requests::Requests;
use crate::stage::{LEAST_EXCESS, Rates};
use crate::statistics::median;

/// All measurements of one peer. The list contains one measurement per round.
#[derive(Debug)]
pub(crate) struct Row {
    pub(crate) name: &'static str,
    /// The reason why the peer cannot be measured.
    pub(crate) missing: Option<String>,
    pub(crate) packets: Vec<Rates>,
    pub(crate) requests: Vec<Requests>,
}

impl Row {
    /// Creates a row that has no measurements yet.
    pub(crate) fn new(name: &'static str, missing: Option<String>) -> Self {
        Self { name, missing, packets: vec![], requests: vec![] }
    }

    /// Returns the median of a value over all packet measurements, or `None` if there are none.
    pub(crate) fn of_packets(&self, measure: impl Fn(Rates) -> f64) -> Option<f64> {
        (!self.packets.is_empty()).then(|| median(self.packets.iter().map(|&turn| measure(turn))))
    }

    /// Returns the median of a value over all request measurements, or `None` if there are none.
    pub(crate) fn of_requests(&self, measure: impl Fn(Requests) -> f64) -> Option<f64> {
        (!self.requests.is_empty()).then(|| median(self.requests.iter().map(|&turn| measure(turn))))
    }

    /// Names the loads for which the generator might have been the bottleneck. With a faster
    /// generator, the peer could reach higher rates with these loads.
    fn limited(&self) -> Option<String> {
        let below = |excess: Option<f64>| excess.is_some_and(|excess| excess < LEAST_EXCESS);
        let what = match (below(self.of_packets(Rates::excess)), below(self.of_requests(Requests::excess))) {
            (false, false) => return None,
            (true, false) => "packets",
            (false, true) => "requests",
            (true, true) => "packets, requests",
        };
        Some(format!("generator-limited: {what}"))
    }

    fn words(&self) -> String {
        if let Some(why) = &self.missing {
            return format!("{:15} not available: {why}", self.name);
        }
        let number = |value: Option<f64>, digits: usize| {
            value.map_or_else(|| "-".into(), |value| format!("{value:.digits$}"))
        };
        let undisturbed = self.packets.iter().filter(|rates| rates.undisturbed()).count();
        format!(
            "{:15}{:>8}{:>6}{:>9}{:>7}{:>9}{:>6}{:>9}{:>8}{:>8}{:>7}  {}",
            self.name,
            number(self.of_packets(|turn| turn.taken / 1e3), 0),
            number(self.of_packets(Rates::excess), 1),
            number(self.of_packets(Rates::seconds_a_million), 2),
            if self.packets.is_empty() {
                "-".into()
            } else {
                format!("{undisturbed}/{}", self.packets.len())
            },
            number(self.of_requests(|turn| turn.answered), 0),
            number(self.of_requests(Requests::excess), 1),
            number(self.of_requests(Requests::micros_each), 1),
            number(self.of_requests(|turn| micros(turn.p50)), 0),
            number(self.of_requests(|turn| micros(turn.p99)), 0),
            if self.requests.is_empty() { "-".into() } else { self.failed().to_string() },
            self.limited().unwrap_or_default(),
        )
    }

    fn failed(&self) -> u64 {
        self.requests.iter().map(|turn| turn.failed).sum()
    }

    fn json(&self) -> Value {
        json!({
            "peer": self.name,
            "missing": self.missing,
            "packets_per_s": self.of_packets(|turn| turn.taken),
            "packets_offered_over_taken": self.of_packets(Rates::excess),
            "cpu_s_per_million_packets": self.of_packets(Rates::seconds_a_million),
            "undisturbed": self.packets.iter().filter(|rates| rates.undisturbed()).count(),
            "requests_per_s": self.of_requests(|turn| turn.answered),
            "requests_direct_over_answered": self.of_requests(Requests::excess),
            "cpu_us_per_request": self.of_requests(Requests::micros_each),
            "request_p50_us": self.of_requests(|turn| micros(turn.p50)),
            "request_p99_us": self.of_requests(|turn| micros(turn.p99)),
            "requests_failed": self.failed(),
            "verdict": self.limited(),
        })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    /// The generator offered too few packets to one of the peers for a valid result.
    GeneratorLimited,
    Met,
    Missed,
}

impl Verdict {
    /// Decides whether a ratio meets the goal. The argument `excess` is the ratio of offered to
    /// forwarded packets for the peer with the lower ratio.
    fn of(ratio: f64, least: f64, excess: f64) -> Self {
        if excess < LEAST_EXCESS {
            Self::GeneratorLimited
        } else if ratio >= least {
            Self::Met
        } else {
            Self::Missed
        }
    }

    fn word(self) -> &'static str {
        match self {
            Self::GeneratorLimited => "generator-limited",
            Self::Met => "met",
            Self::Missed => "missed",
        }
    }
}

/// A performance goal that compares the balancer with a different peer.
#[derive(Debug)]
struct Bar {
    what: String,
    ratio: f64,
    least: f64,
    verdict: Verdict,
}

/// All measurements of one benchmark run.
#[derive(Debug, Default)]
pub(crate) struct Results {
    pub(crate) rows: Vec<Row>,
}

impl Results {
    fn row(&self, name: &str) -> Option<&Row> {
        self.rows.iter().find(|row| row.name == name)
    }

    /// Returns the performance goals that compare the balancer with each of the other measured
    /// peers.
    fn bars(&self) -> Vec<Bar> {
        let mut bars = Vec::new();
        for ours in [OURS, OURS_WITHOUT_XDP].iter().filter_map(|name| self.row(name)) {
            for rival in RIVALS.iter().filter_map(|name| self.row(name)) {
                bars.extend(packets_bars(ours, rival, 1.0));
                bars.extend(requests_bars(ours, rival));
            }
        }
        if let (Some(ours), Some(without)) = (self.row(OURS), self.row(OURS_WITHOUT_XDP)) {
            bars.extend(packets_bars(ours, without, LEAST_OVER_AF_PACKET).into_iter().take(1));
        }
        bars
    }

    /// Formats the table and the goals as text.
    pub(crate) fn words(&self) -> String {
        let mut text = format!(
            "{:15}{:>8}{:>6}{:>9}{:>7}{:>9}{:>6}{:>9}{:>8}{:>8}{:>7}\n",
            "", "k pkt/s", "x", "cpu s/M", "quiet", "req/s", "x", "cpu us", "p50 us", "p99 us", "failed"
        );
        self.rows.iter().for_each(|row| text += &format!("{}\n", row.words()));
        text +=
            "x: offered packets per forwarded packet, or requests without a balancer per answered request\n";
        for Bar { what, ratio, least, verdict } in self.bars() {
            let _ = writeln!(text, "{what}: {ratio:.2}, goal {least}: {}", verdict.word());
        }
        text
    }

    /// Formats the table and the goals as JSON. The numbers in the JSON have more digits than in
    /// the text.
    pub(crate) fn json(&self) -> Value {
        let bar = |Bar { what, ratio, least, verdict }: Bar| json!({ "what": what, "ratio": ratio, "bar": least, "verdict": verdict.word() });
        json!({
            "rows": self.rows.iter().map(Row::json).collect::<Vec<_>>(),
            "bars": self.bars().into_iter().map(bar).collect::<Vec<_>>(),
        })
    }

    /// Formats one CSV line per measurement.
    fn csv(&self) -> String {
        let mut text = String::from(
            "peer,round,load,offered_per_s,taken_per_s,device_cpus,ran,p50_us,p99_us,failed,missing\n",
        );
        for Row { name, missing, packets, requests } in &self.rows {
            if let Some(why) = missing {
                let _ = writeln!(text, "{name},,,,,,,,,,\"{}\"", why.replace('"', "\"\""));
            }
            for (n, Rates { offered, taken, ran, device }) in packets.iter().enumerate() {
                let round = n + 1;
                let _ =
                    writeln!(text, "{name},{round},packets,{offered:.0},{taken:.0},{device:.3},{ran:.3},,,,");
            }
            for (n, turn) in requests.iter().enumerate() {
                let Requests { answered, direct, p50, p99, failed, device } = turn;
                let (round, p50, p99) = (n + 1, micros(*p50), micros(*p99));
                let _ = writeln!(
                    text,
                    "{name},{round},requests,{direct:.0},{answered:.0},{device:.3},,{p50:.0},{p99:.0},{failed},"
                );
            }
        }
        text
    }

    /// Writes `peers.csv` and `peers.svg` into a folder. The CSV file begins with the comment lines
    /// in `origin`.
    pub(crate) fn keep(&self, folder: &Path, origin: &str) -> Result<()> {
        fs::create_dir_all(folder)?;
        for (end, text) in [("csv", origin.to_owned() + &self.csv()), ("svg", plot::svg(&self.rows))] {
            let path = folder.join(format!("peers.{end}"));
            fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
        }
        Ok(())
    }
}

/// Returns the goals for packets: one for the rate and one for the CPU time.
fn packets_bars(ours: &Row, rival: &Row, least: f64) -> Vec<Bar> {
    let pairs = || ours.packets.iter().zip(&rival.packets);
    if pairs().next().is_none() {
        return vec![];
    }
    let excess = [ours, rival].map(|row| row.of_packets(Rates::excess).unwrap_or(0.0));
    let excess = excess[0].min(excess[1]);
    let rate = median(pairs().map(|(ours, rival)| ours.taken / rival.taken));
    let cost = median(pairs().map(|(ours, rival)| rival.seconds_a_million() / ours.seconds_a_million()));
    let bar = |what: &str, ratio| Bar {
        what: format!("{} over {}, {what}", ours.name, rival.name),
        ratio,
        least,
        verdict: Verdict::of(ratio, least, excess),
    };
    vec![bar("packets per second", rate), bar("packets per CPU second", cost)]
}

/// Returns the goals for requests: one for the rate and one for the CPU time.
fn requests_bars(ours: &Row, rival: &Row) -> Vec<Bar> {
    let pairs = || ours.requests.iter().zip(&rival.requests);
    if pairs().next().is_none() {
        return vec![];
    }
    let excess = [ours, rival].map(|row| row.of_requests(Requests::excess).unwrap_or(0.0));
    let excess = excess[0].min(excess[1]);
    let rate = median(pairs().map(|(ours, rival)| ours.answered / rival.answered));
    let cost = median(pairs().map(|(ours, rival)| rival.micros_each() / ours.micros_each()));
    let bar = |what: &str, ratio, excess| Bar {
        what: format!("{} over {}, {what}", ours.name, rival.name),
        ratio,
        least: 1.0,
        verdict: Verdict::of(ratio, 1.0, excess),
    };
    // The CPU time per request does not depend on the offered load, so it needs no minimum excess.
    vec![bar("requests per second", rate, excess), bar("requests per CPU second", cost, f64::INFINITY)]
}

/// Formats one packet measurement.
pub(crate) fn packets_words(rates: Rates) -> String {
    format!(
        "{:.0} k packets/s of {:.0} k/s ({:.2} x offered), {:.2} CPU s per million{}",
        rates.taken / 1e3,
        rates.offered / 1e3,
        rates.excess(),
        rates.seconds_a_million(),
        if rates.undisturbed() { "" } else { ", disturbed" }
    )
}

/// Formats one request measurement.
pub(crate) fn requests_words(turn: Requests) -> String {
    format!(
        "{:.0} requests/s, {:.1} CPU us each, device {:.2} CPUs, p50 {:.0} us, p99 {:.0} us, {} failed",
        turn.answered,
        turn.micros_each(),
        turn.device,
        micros(turn.p50),
        micros(turn.p99),
        turn.failed
    )
}

fn micros(time: std::time::Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

/// The balancer mode for which performance goals are printed.
const OURS: &str = "af-xdp-gre";
const OURS_WITHOUT_XDP: &str = "af-packet-gre";
/// The other load balancers with which the balancer is compared.
const RIVALS: [&str; 5] = ["nftables", "ipvs", "haproxy", "nginx", "katran"];
const LEAST_OVER_AF_PACKET: f64 = 1.15;

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn packets(name: &'static str, offered: f64, taken: [f64; 3]) -> Row {
        let turn = |taken| Rates { offered, taken, ran: 1.0, device: 1.0 };
        Row { packets: taken.map(turn).into(), ..Row::new(name, None) }
    }

    fn verdict(results: &Results, what: &str) -> Verdict {
        results.bars().into_iter().find(|bar| bar.what == what).expect("the goal exists").verdict
    }

    #[test]
    fn bar_is_the_median_of_ratios_and_needs_enough_offered() {
        let what = "af-xdp-gre over nftables, packets per second";
        let against = |ours, theirs| Results {
            rows: vec![packets(OURS, 300.0, ours), packets("nftables", 300.0, theirs)],
        };
        // The ratios in the three rounds are 0.5, 1.1 and 1.1. The medians of the rates are 100 and
        // 110.
        assert_eq!(verdict(&against([100.0, 110.0, 99.0], [200.0, 100.0, 90.0]), what), Verdict::Met);
        assert_eq!(verdict(&against([99.0, 99.0, 200.0], [100.0; 3]), what), Verdict::Missed);
        assert_eq!(verdict(&against([251.0; 3], [100.0; 3]), what), Verdict::GeneratorLimited);
        assert_eq!(verdict(&against([100.0; 3], [251.0; 3]), what), Verdict::GeneratorLimited);
        assert_eq!(verdict(&against([250.0; 3], [100.0; 3]), what), Verdict::Met);
    }

    #[test]
    fn af_xdp_must_exceed_af_packet_by_a_margin() {
        let against = |ours| Results {
            rows: vec![packets(OURS_WITHOUT_XDP, 900.0, [100.0; 3]), packets(OURS, 900.0, [ours; 3])],
        };
        let what = "af-xdp-gre over af-packet-gre, packets per second";
        assert_eq!(verdict(&against(115.1), what), Verdict::Met);
        assert_eq!(verdict(&against(114.9), what), Verdict::Missed);
    }

    #[test]
    fn row_shows_generator_limit_or_why_it_is_missing() {
        assert!(packets("nginx", 119.0, [100.0; 3]).words().ends_with("generator-limited: packets"));
        assert!(!packets("nginx", 121.0, [100.0; 3]).words().contains("limited"));
        let missing = Row::new("ipvs", Some("modprobe ip_vs: not found".into()));
        assert_eq!(missing.words(), "ipvs            not available: modprobe ip_vs: not found");
    }

    #[test]
    fn csv_has_every_turn_with_the_same_number_of_fields() {
        let mut row = packets("nginx", 119.4, [100.0, 101.0, 102.6]);
        let [p50, p99] = [80, 200].map(Duration::from_micros);
        row.requests =
            vec![Requests { answered: 9_000.0, direct: 12_000.0, p50, p99, failed: 1, device: 0.5 }];
        let missing = Row::new("ipvs", Some("no \"ip_vs\"".into()));
        let csv = Results { rows: vec![row, missing] }.csv();
        let lines: Vec<&str> = csv.lines().collect();
        assert_eq!(lines[1], "nginx,1,packets,119,100,1.000,1.000,,,,");
        assert_eq!(lines[3], "nginx,3,packets,119,103,1.000,1.000,,,,");
        assert_eq!(lines[4], "nginx,1,requests,12000,9000,0.500,,80,200,1,");
        assert_eq!(lines[5], "ipvs,,,,,,,,,,\"no \"\"ip_vs\"\"\"");
        assert!(lines.iter().all(|line| line.split(',').count() == 11), "{csv}");
    }
}
