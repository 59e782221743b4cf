//! Evaluates and prints the results of `bench kv`: medians, performance goals, a table and CSV.
//!
//! A performance goal compares two systems with the same workload. The compared value is a ratio,
//! or for response times a difference in microseconds. The value is computed for each round, and
//! the result is the median over all rounds.

use std::fmt::Write as _;

use crate::statistics::median;

/// One measurement of a system with a workload.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Turn {
    /// Operations per second at full speed.
    pub(super) per_second: f64,
    /// The median response time in microseconds, at the fixed rate that all systems sustain.
    pub(super) p50: f64,
    pub(super) p99: f64,
    /// The processor time that the balancer or proxy process used at full speed, in seconds per
    /// million operations.
    pub(super) process: f64,
    /// Like `process`, but including the kernel thread that receives packets for the process.
    pub(super) machine: f64,
    /// The rate that was reached while response times were measured, in operations per second.
    pub(super) paced: f64,
    /// The fraction of operations that were answered from the cache.
    pub(super) hits: f64,
    /// Requests without a response.
    pub(super) lost: u64,
    /// Reads that returned a value older than the latest value, which the cache lease allows.
    pub(super) old: u64,
}

impl Turn {
    pub(super) fn words(&self) -> String {
        let Self { per_second, p50, p99, process, machine, paced, hits, lost, old } = self;
        format!(
            "{per_second:.0} operations/s, p50 {p50:.0} us, p99 {p99:.0} us at {paced:.0}/s, \
             {process:.2} CPU s a million ({machine:.2} including packet reception), hits {:.1} %, {lost} lost, {old} old",
            hits * 100.0
        )
    }
}

/// All measurements of one system with one workload. The list contains one measurement for each
/// round.
#[derive(Debug)]
struct Row {
    mix: &'static str,
    way: &'static str,
    turns: Vec<Turn>,
}

impl Row {
    fn median(&self, of: impl Fn(&Turn) -> f64) -> f64 {
        median(self.turns.iter().map(of))
    }

    fn words(&self) -> String {
        format!(
            "{:12}{:13}{:>9.0}{:>8.0}{:>8.0}{:>9.2}{:>10.2}{:>8.1}{:>6}{:>7}",
            self.mix,
            self.way,
            self.median(|turn| turn.per_second / 1e3),
            self.median(|turn| turn.p50),
            self.median(|turn| turn.p99),
            self.median(|turn| turn.process),
            self.median(|turn| turn.machine),
            self.median(|turn| turn.hits * 100.0),
            self.turns.iter().map(|turn| turn.lost).sum::<u64>(),
            self.turns.iter().map(|turn| turn.old).sum::<u64>(),
        )
    }
}

/// A performance goal that compares two systems.
struct Goal {
    /// The goal applies to workloads whose name begins with this prefix.
    mixes: &'static str,
    ours: &'static str,
    other: &'static str,
    what: &'static str,
    /// Computes the goal's value for one round from the measurements of both systems.
    of: fn(&Turn, &Turn) -> f64,
    bound: Bound,
}

/// The measured value of a performance goal.
#[derive(Debug, PartialEq)]
struct Bar {
    what: String,
    value: f64,
    bound: Bound,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Bound {
    AtLeast(f64),
    MoreThan(f64),
    AtMost(f64),
}

impl Bar {
    fn words(&self) -> String {
        let Self { what, value, bound } = self;
        let (is_met, word, bound) = match *bound {
            Bound::AtLeast(least) => (*value >= least, "at least", least),
            Bound::MoreThan(less) => (*value > less, "more than", less),
            Bound::AtMost(most) => (*value <= most, "at most", most),
        };
        format!("{what}: {value:.2}, goal {word} {bound}: {}", if is_met { "met" } else { "missed" })
    }
}

/// The measurements of one benchmark run.
#[derive(Debug)]
pub(super) struct Results(Vec<Row>);

impl Results {
    /// Creates an empty row for each pair of workload and system.
    pub(super) fn new(rows: impl Iterator<Item = (&'static str, &'static str)>) -> Self {
        Self(rows.map(|(mix, way)| Row { mix, way, turns: Vec::new() }).collect())
    }

    pub(super) fn add(&mut self, mix: &str, way: &str, turn: Turn) {
        self.0.iter_mut().filter(|row| (row.mix, row.way) == (mix, way)).for_each(|row| row.turns.push(turn));
    }

    /// Formats the table and the goals as text.
    pub(super) fn words(&self) -> String {
        let mut text = format!(
            "{:12}{:13}{:>9}{:>8}{:>8}{:>9}{:>10}{:>8}{:>6}{:>7}\n",
            "", "", "k op/s", "p50 us", "p99 us", "cpu s/M", "+receive", "hits %", "lost", "old"
        );
        self.0.iter().for_each(|row| text += &format!("{}\n", row.words()));
        self.bars().iter().for_each(|bar| text += &format!("{}\n", bar.words()));
        text
    }

    /// Returns the values of all goals that apply to a measured workload. Goals without
    /// measurements of both systems are omitted.
    fn bars(&self) -> Vec<Bar> {
        let goals = |mix: &'static str| GOALS.iter().filter(move |goal| mix.starts_with(goal.mixes));
        self.mixes()
            .into_iter()
            .flat_map(|mix| goals(mix).filter_map(move |goal| self.bar(mix, goal)))
            .collect()
    }

    fn bar(&self, mix: &str, goal: &Goal) -> Option<Bar> {
        let Goal { ours, other, what, of, bound, .. } = *goal;
        let turns = |way| Some(&self.0.iter().find(|row| (row.mix, row.way) == (mix, way))?.turns);
        let pairs = turns(ours)?.iter().zip(turns(other)?);
        pairs.clone().next()?;
        let value = median(pairs.map(|(ours, other)| of(ours, other)));
        Some(Bar { what: format!("{mix}, {ours} over {other}, {what}"), value, bound })
    }

    fn mixes(&self) -> Vec<&'static str> {
        let mut mixes: Vec<&str> = self.0.iter().map(|row| row.mix).collect();
        mixes.dedup();
        mixes
    }

    /// Formats one CSV line per measurement.
    pub(super) fn csv(&self) -> String {
        let mut text = String::from(
            "mix,way,round,operations_per_s,paced_per_s,p50_us,p99_us,process_cpu_s_per_million,\
             machine_cpu_s_per_million,hits,lost,old\n",
        );
        for Row { mix, way, turns } in &self.0 {
            for (round, turn) in (1..).zip(turns) {
                let Turn { per_second, p50, p99, process, machine, paced, hits, lost, old } = turn;
                let _ = writeln!(
                    text,
                    "{mix},{way},{round},{per_second:.0},{paced:.0},{p50:.1},{p99:.1},{process:.3},{machine:.3},\
                     {hits:.4},{lost},{old}"
                );
            }
        }
        text
    }
}

const OPERATIONS: &str = "operations/s";
const GOALS: [Goal; 15] = [
    Goal {
        mixes: "",
        ours: "uncached",
        other: "direct",
        what: "us added to p50",
        of: |ours, other| ours.p50 - other.p50,
        bound: Bound::AtMost(15.0),
    },
    Goal {
        mixes: "",
        ours: "uncached",
        other: "nutcracker",
        what: "CPU of the process",
        of: |ours, other| ours.process / other.process,
        bound: Bound::AtMost(0.25),
    },
    Goal {
        mixes: "",
        ours: "uncached",
        other: "nutcracker",
        what: "CPU including packet reception",
        of: |ours, other| ours.machine / other.machine,
        bound: Bound::AtMost(0.25),
    },
    operations("hot", "cached-10ms", "nutcracker", Bound::AtLeast(3.0)),
    operations("hot", "cached-50ms", "nutcracker", Bound::AtLeast(3.0)),
    operations("hot", "cached-1s", "nutcracker", Bound::AtLeast(3.0)),
    operations("hot", "cached-10ms", "direct", Bound::MoreThan(1.0)),
    operations("hot", "cached-50ms", "direct", Bound::MoreThan(1.0)),
    operations("hot", "cached-1s", "direct", Bound::MoreThan(1.0)),
    half_of_nutcrackers_time("cached-10ms"),
    half_of_nutcrackers_time("cached-50ms"),
    half_of_nutcrackers_time("cached-1s"),
    operations("zipf", "cached-10ms", "uncached", Bound::AtLeast(1.0)),
    operations("zipf", "cached-50ms", "uncached", Bound::AtLeast(1.0)),
    operations("zipf", "cached-1s", "uncached", Bound::AtLeast(1.0)),
];

const fn operations(mixes: &'static str, ours: &'static str, other: &'static str, bound: Bound) -> Goal {
    Goal { mixes, ours, other, what: OPERATIONS, of: |ours, other| ours.per_second / other.per_second, bound }
}

const fn half_of_nutcrackers_time(ours: &'static str) -> Goal {
    Goal {
        mixes: "hot",
        ours,
        other: "nutcracker",
        what: "p50",
        of: |ours, other| ours.p50 / other.p50,
        bound: Bound::AtMost(0.5),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn results(rows: &[(&'static str, &'static str, &[Turn])]) -> Results {
        let mut results = Results::new(rows.iter().map(|(mix, way, _)| (*mix, *way)));
        for (mix, way, turns) in rows {
            turns.iter().for_each(|turn| results.add(mix, way, *turn));
        }
        results
    }

    fn turn(per_second: f64, p50: f64, process: f64) -> Turn {
        Turn { per_second, p50, process, machine: 2.0 * process, ..Turn::default() }
    }

    #[test]
    fn bar_is_the_median_of_the_differences_within_rounds() {
        let ours = [turn(1.0, 30.0, 1.0), turn(1.0, 50.0, 2.0), turn(1.0, 90.0, 3.0)];
        let direct = [turn(1.0, 20.0, 0.0), turn(1.0, 30.0, 0.0), turn(1.0, 10.0, 0.0)];
        let theirs = [turn(1.0, 0.0, 4.0), turn(1.0, 0.0, 10.0), turn(1.0, 0.0, 8.0)];
        let all =
            [("even", "direct", &direct[..]), ("even", "nutcracker", &theirs), ("even", "uncached", &ours)];
        let words: Vec<String> = results(&all).bars().iter().map(Bar::words).collect();
        // The differences in the three rounds are 10, 20 and 80 us. The ratios are 0.25, 0.2 and
        // 0.375.
        assert_eq!(
            words,
            [
                "even, uncached over direct, us added to p50: 20.00, goal at most 15: missed",
                "even, uncached over nutcracker, CPU of the process: 0.25, goal at most 0.25: met",
                "even, uncached over nutcracker, CPU including packet reception: 0.25, goal at most 0.25: met",
            ]
        );
    }

    #[test]
    fn bars_of_hot_and_zipf_mixes_apply_only_to_them() {
        let turns = |rate, p50| [turn(rate, p50, 1.0)];
        let (cached, direct, theirs) = (turns(300.0, 50.0), turns(300.0, 1.0), turns(100.0, 100.0));
        let hot =
            [("hot", "direct", &direct[..]), ("hot", "nutcracker", &theirs), ("hot", "cached-10ms", &cached)];
        let verdicts = |rows: &[(&'static str, &'static str, &[Turn])]| -> Vec<String> {
            let bars = results(rows).bars();
            bars.iter().map(|bar| bar.words().rsplit(": ").next().unwrap().to_owned()).collect()
        };
        assert_eq!(verdicts(&hot), ["met", "missed", "met"]);
        let (uncached, slow) = (turns(300.0, 1.0), turns(299.0, 1.0));
        let zipf = [
            ("zipf", "uncached", &uncached[..]),
            ("zipf", "cached-10ms", &slow),
            ("zipf", "cached-1s", &cached),
        ];
        assert_eq!(verdicts(&zipf), ["missed", "met"]);
        assert_eq!(verdicts(&[("zipf", "uncached", &[]), ("zipf", "cached-1s", &cached)]), [""; 0]);
    }

    #[test]
    fn table_has_medians_and_csv_has_every_turn() {
        let turns = [turn(1_000.0, 10.0, 1.0), turn(5_000.0, 30.0, 2.0), turn(3_000.0, 20.0, 3.0)];
        let results = results(&[("even", "direct", &turns)]);
        let row: Vec<String> =
            results.words().lines().nth(1).unwrap().split_whitespace().map(Into::into).collect();
        assert_eq!(row, ["even", "direct", "3", "20", "0", "2.00", "4.00", "0.0", "0", "0"]);
        let csv = results.csv();
        let lines: Vec<&str> = csv.lines().collect();
        assert_eq!(lines[3], "even,direct,3,3000,0,20.0,0.0,3.000,6.000,0.0000,0,0");
        assert!(lines.iter().all(|line| line.split(',').count() == 12), "{csv}");
        assert_eq!(lines.len(), 4);
    }
}
