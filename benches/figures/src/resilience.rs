//! Figure 12: how many table entries change when several backends fail at once.

use std::time::Instant;

use anyhow::Result;
use maglev_hash::{Table, disruption};
use rand::SeedableRng;
use rand::seq::index;
use rand_pcg::Pcg64Mcg;

use crate::Csv;
use crate::maglev::{equal, names, seed, table};
use crate::plot::{self, Axes, COLORS, Line};
use crate::stats::Spread;

/// Computes one row for each table size and each number of failed backends in [`FAILED`].
pub(crate) fn run() -> Result<Csv> {
    let mut csv = Csv::new(&COLUMNS);
    for slots in SIZES {
        let trial = Trial::new(BACKENDS, slots);
        for failed in FAILED {
            let start = Instant::now();
            csv.push(trial.row(failed, REPETITIONS)?);
            eprintln!("{slots} slots, {failed} failed: {:.1} s", start.elapsed().as_secs_f64());
        }
    }
    Ok(csv)
}

/// A Maglev table in which all backends are up.
struct Trial {
    names: Vec<Vec<u8>>,
    slots: u32,
    before: Table,
}

impl Trial {
    fn new(backends: usize, slots: u32) -> Self {
        let names = names(backends);
        let before = table(&equal(&names), slots, seed(0));
        Self { names, slots, before }
    }

    /// Simulates the failure of `failed` random backends. Returns two percentages: all entries that
    /// changed, and the changed entries whose old backend did not fail.
    fn changed(&self, failed: usize, random: &mut Pcg64Mcg) -> Result<[f64; 2]> {
        let mut gone = vec![false; self.names.len()];
        index::sample(random, self.names.len(), failed).into_iter().for_each(|place| gone[place] = true);
        let left: Vec<Vec<u8>> =
            self.names.iter().zip(gone).filter(|(_, gone)| !gone).map(|(name, _)| name.clone()).collect();
        let found = disruption(&self.before, &table(&equal(&left), self.slots, seed(0)))?;
        Ok([found.changed(), found.changed() - found.backend_gone]
            .map(|entries| 100.0 * f64::from(entries) / f64::from(self.slots)))
    }

    /// Computes a row. Each number of failed backends uses its own random generator, so no row
    /// depends on another row.
    fn row(&self, failed: usize, repetitions: usize) -> Result<Vec<String>> {
        let mut random = Pcg64Mcg::seed_from_u64(failed as u64);
        let found: Vec<[f64; 2]> =
            (0..repetitions).map(|_| self.changed(failed, &mut random)).collect::<Result<_>>()?;
        let changed = Spread::of(&found.iter().map(|one| one[0]).collect::<Vec<_>>());
        let needless = Spread::of(&found.iter().map(|one| one[1]).collect::<Vec<_>>());
        let counts =
            [self.slots as usize, self.names.len(), failed, repetitions].map(|count| count.to_string());
        let percents = [changed.mean, changed.least, changed.most, needless.mean].map(|x| format!("{x:.3}"));
        Ok(counts.into_iter().chain(percents).collect())
    }
}

/// Draws the changed entries as lines, with the percentage of failed backends on the x axis.
pub(crate) fn draw(csv: &Csv) -> Result<String> {
    let mut lines = Vec::new();
    for (slots, color) in SIZES.into_iter().zip(COLORS) {
        let rows = csv.filter("slots", &slots.to_string())?;
        let failed = rows.numbers("failed")?.into_iter().map(|failed| 100.0 * failed / BACKENDS as f64);
        let points = failed.zip(rows.numbers("changed_percent")?).collect();
        lines.push(Line { name: format!("{slots} entries"), points, color });
    }
    let least =
        FAILED.map(|failed| 100.0 * failed as f64 / BACKENDS as f64).map(|percent| (percent, percent));
    lines.push(Line {
        name: "minimum: share of failed backends".into(),
        points: least.into(),
        color: COLORS[3],
    });
    plot::svg(
        &plot::Sheet::new(
            "Figure 12: entries that change when backends fail",
            "more failures change more entries; the larger table is more resilient",
            csv,
        )?,
        |area| {
            let axes = Axes {
                x: "backends failed (percent)",
                y: "entries changed (percent)",
                x_range: 0.0..20.0,
                y_range: 0.0..32.0,
            };
            plot::lines(area, &axes, &lines)
        },
    )
}

/// Returns the section of the results page for Figure 12.
pub(crate) fn section(csv: &Csv) -> Result<String> {
    let mut text = String::from(
        "As in the paper, *k* of 1,000 backends fail at the same time, and the table is built again. The figure shows which percentage \
         of the entries changes: the mean and the range of 200 repetitions for each *k*, with backends chosen at random. A change is \
         `needless` if the backend of the entry did not fail.\n\n\
         The paper shows a plot without numbers. The paper's two statements also hold for these results: more failures change more entries, and the larger \
         table is more resilient. Karger's and rendezvous hashing never change an entry needlessly.\n\n\
         | failed backends | 65,537 entries: changed | needless | 655,373 entries: changed | needless |\n|---|---|---|---|---|\n",
    );
    let [small, large] = SIZES.map(|slots| csv.filter("slots", &slots.to_string()));
    let cells = |rows: &Csv| -> Result<Vec<String>> {
        let [mean, least, most, needless] =
            ["changed_percent", "changed_least", "changed_most", "needless_percent"]
                .map(|column| rows.numbers(column));
        let (mean, least, most, needless) = (mean?, least?, most?, needless?);
        let cell =
            |i: usize| format!("{:.2} % ({:.2} to {:.2}) | {:.2} %", mean[i], least[i], most[i], needless[i]);
        Ok((0..mean.len()).map(cell).collect())
    };
    let (small, large) = (small?, large?);
    for ((failed, small), large) in small.words("failed")?.into_iter().zip(cells(&small)?).zip(cells(&large)?)
    {
        text += &format!("| {failed} | {small} | {large} |\n");
    }
    Ok(text)
}

const COLUMNS: [&str; 8] = [
    "slots",
    "backends",
    "failed",
    "repetitions",
    "changed_percent",
    "changed_least",
    "changed_most",
    "needless_percent",
];
const BACKENDS: usize = 1_000;
const SIZES: [u32; 2] = [65_537, 655_373];
const FAILED: [usize; 12] = [1, 2, 5, 10, 20, 30, 50, 75, 100, 125, 150, 200];
const REPETITIONS: usize = 200;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::maglev::pseudocode;
    use crate::page::committed;

    /// The expected changes come from tables that the paper's pseudocode built. The test compares
    /// entries by backend name.
    #[test]
    fn changes_equal_those_of_the_pseudocode() {
        let (backends, slots) = (9, 101);
        let trial = Trial::new(backends, slots);
        let before = pseudocode(&trial.names, slots, &seed(0));
        for failed in 1..backends {
            let found = trial.changed(failed, &mut Pcg64Mcg::seed_from_u64(7)).unwrap();
            let mut random = Pcg64Mcg::seed_from_u64(7);
            let gone: Vec<usize> = index::sample(&mut random, backends, failed).into_iter().collect();
            assert_eq!(gone.len(), failed);
            let left: Vec<usize> = (0..backends).filter(|place| !gone.contains(place)).collect();
            let names: Vec<Vec<u8>> = left.iter().map(|&place| trial.names[place].clone()).collect();
            let after = pseudocode(&names, slots, &seed(0));
            let pairs =
                before.iter().zip(&after).map(|(&was, &is)| (usize::from(was), left[usize::from(is)]));
            let changed: Vec<usize> = pairs.filter(|(was, is)| was != is).map(|(was, _)| was).collect();
            let needless = changed.iter().filter(|was| !gone.contains(was)).count();
            let percent = [changed.len(), needless].map(|entries| 100.0 * entries as f64 / 101.0);
            assert_eq!(found, percent, "{failed} failed");
        }
    }

    /// The rows in the repository must match the current code.
    #[test]
    fn committed_rows_match_the_code() {
        let csv = committed("12").expect("benches/results/figure-12.csv");
        let trial = Trial::new(BACKENDS, SIZES[0]);
        let rows = csv.to_string();
        for failed in [1, 100] {
            let row = trial.row(failed, REPETITIONS).unwrap().join(",");
            assert!(rows.lines().any(|line| line == row), "{row} is outdated; run cargo xtask figures 12");
        }
    }
}
