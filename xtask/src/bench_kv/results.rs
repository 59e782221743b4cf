//! What `bench kv` gave: medians, bars, and how they are written.
//!
//! In: turns, round by round. Out: a table and bars in words, and CSV. A bar is judged by the median of what two turns of the same round
//! differ in, as a ratio or, for times, in microseconds.

use std::fmt::Write as _;

use crate::statistics::median;

/// A way's turn at a mix.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Turn {
    /// Operations, at full pace.
    pub(super) per_second: f64,
    /// Microseconds, at the rate of all.
    pub(super) p50: f64,
    pub(super) p99: f64,
    /// Processor seconds of the balancer's or proxy's process for a million operations, at full pace.
    pub(super) process: f64,
    /// The same, with the kernel's that receives for it.
    pub(super) machine: f64,
    /// Operations a second while times were taken.
    pub(super) paced: f64,
    /// Part of operations answered from copies.
    pub(super) hits: f64,
    /// Requests without an answer.
    pub(super) lost: u64,
    /// Reads of an older value than the last, within their lease.
    pub(super) old: u64,
}

impl Turn {
    pub(super) fn words(&self) -> String {
        let Self { per_second, p50, p99, process, machine, paced, hits, lost, old } = self;
        format!(
            "{per_second:.0} operations/s, p50 {p50:.0} us, p99 {p99:.0} us at {paced:.0}/s, \
             {process:.2} CPU s a million ({machine:.2} with receiving), hits {:.1} %, {lost} lost, {old} old",
            hits * 100.0
        )
    }
}

/// A way's turns at a mix, one a round.
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

/// What a way is to reach beside another.
struct Goal {
    /// How the mixes begin that it is for.
    mixes: &'static str,
    ours: &'static str,
    other: &'static str,
    what: &'static str,
    /// By turns of the same round.
    of: fn(&Turn, &Turn) -> f64,
    bound: Bound,
}

/// How near a goal is.
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
        format!("{what}: {value:.2}, bar {word} {bound}: {}", if is_met { "met" } else { "missed" })
    }
}

/// All of a run.
#[derive(Debug)]
pub(super) struct Results(Vec<Row>);

impl Results {
    /// With a row for each of these mixes and ways, without turns.
    pub(super) fn new(rows: impl Iterator<Item = (&'static str, &'static str)>) -> Self {
        Self(rows.map(|(mix, way)| Row { mix, way, turns: Vec::new() }).collect())
    }

    pub(super) fn add(&mut self, mix: &str, way: &str, turn: Turn) {
        self.0.iter_mut().filter(|row| (row.mix, row.way) == (mix, way)).for_each(|row| row.turns.push(turn));
    }

    /// The table and the bars.
    pub(super) fn words(&self) -> String {
        let mut text = format!(
            "{:12}{:13}{:>9}{:>8}{:>8}{:>9}{:>10}{:>8}{:>6}{:>7}\n",
            "", "", "k op/s", "p50 us", "p99 us", "cpu s/M", "+receive", "hits %", "lost", "old"
        );
        self.0.iter().for_each(|row| text += &format!("{}\n", row.words()));
        self.bars().iter().for_each(|bar| text += &format!("{}\n", bar.words()));
        text
    }

    /// All goals at the mixes that they are for, where both ways had turns.
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

    /// Every turn, a line each.
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
        what: "CPU with receiving",
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
    fn a_bar_is_the_median_of_what_turns_of_a_round_differ_in() {
        let ours = [turn(1.0, 30.0, 1.0), turn(1.0, 50.0, 2.0), turn(1.0, 90.0, 3.0)];
        let direct = [turn(1.0, 20.0, 0.0), turn(1.0, 30.0, 0.0), turn(1.0, 10.0, 0.0)];
        let theirs = [turn(1.0, 0.0, 4.0), turn(1.0, 0.0, 10.0), turn(1.0, 0.0, 8.0)];
        let all =
            [("even", "direct", &direct[..]), ("even", "nutcracker", &theirs), ("even", "uncached", &ours)];
        let words: Vec<String> = results(&all).bars().iter().map(Bar::words).collect();
        // By rounds 10, 20 and 80 us; 0.25, 0.2 and 0.375.
        assert_eq!(
            words,
            [
                "even, uncached over direct, us added to p50: 20.00, bar at most 15: missed",
                "even, uncached over nutcracker, CPU of the process: 0.25, bar at most 0.25: met",
                "even, uncached over nutcracker, CPU with receiving: 0.25, bar at most 0.25: met",
            ]
        );
    }

    #[test]
    fn a_hot_set_and_zipf_have_bars_of_their_own() {
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
    fn the_table_has_medians_and_csv_every_turn_with_as_many_fields() {
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
