//! Measures the time to build a Maglev table with Sluicegate's code and with the paper's
//! pseudocode, alternately.

use std::hint::black_box;
use std::time::Instant;

use anyhow::{Result, ensure};
use maglev_hash::Rank;

use crate::maglev::{equal, names, pseudocode, seed, table};
use crate::plot::{self, Bar, COLORS};
use crate::{Csv, median};

/// Measures both builds in pairs and returns the medians. Returns an error if the tables differ.
pub(crate) fn run() -> Result<Csv> {
    let mut csv = Csv::new(&["slots", "backends", "pairs", "ours_ms", "pseudocode_ms", "ratio"]);
    for (slots, pairs) in [(65_537, 101), (655_373, 31)] {
        let names = names(BACKENDS);
        let backends = equal(&names);
        let [mut ours, mut theirs, mut ratios] = [const { Vec::new() }; 3];
        for _ in 0..pairs {
            let (slow, slow_ms) = timed(|| pseudocode(black_box(&names), black_box(slots), &seed(0)));
            let (table, ms) = timed(|| table(black_box(&backends), black_box(slots), seed(0)));
            ensure!(
                table.iter().map(Rank::index_by_name).eq(slow.iter().map(|&rank| usize::from(rank))),
                "the tables differ"
            );
            ours.push(ms);
            theirs.push(slow_ms);
            ratios.push(ms / slow_ms);
        }
        let counts = [slots as usize, BACKENDS, pairs].map(|count| count.to_string());
        let times = [median(&ours), median(&theirs), median(&ratios)].map(|x| format!("{x:.3}"));
        csv.push(counts.into_iter().chain(times).collect());
        eprintln!("{slots} slots: {:.2} ms, pseudocode {:.2} ms", median(&ours), median(&theirs));
    }
    Ok(csv)
}

fn timed<T>(work: impl FnOnce() -> T) -> (T, f64) {
    let start = Instant::now();
    let result = work();
    (result, start.elapsed().as_secs_f64() * 1e3)
}

/// Returns the build time in the paper, in ms.
fn paper(slots: &str) -> Option<f64> {
    match slots {
        "65537" => Some(1.8),
        "655373" => Some(22.9),
        _ => None,
    }
}

/// Draws both build times as bars, with the paper's values as rings on Sluicegate's bars.
pub(crate) fn draw(csv: &Csv) -> Result<String> {
    let mut bars = Vec::new();
    let rows =
        csv.words("slots")?.into_iter().zip(csv.numbers("ours_ms")?).zip(csv.numbers("pseudocode_ms")?);
    for ((slots, ours), theirs) in rows {
        let bar = |label: &str, value, color| Bar {
            label: format!("{label} {slots}"),
            value,
            range: None,
            paper: paper(slots),
            color,
        };
        bars.extend([bar("ours", ours, COLORS[0]), bar("pseudocode", theirs, COLORS[1])]);
    }
    plot::svg(
        &plot::Sheet::new(
            "Time to build a Maglev table for 1,000 backends",
            "1.8 and 22.9 ms on the authors' machine, shown as rings",
            csv,
        )?,
        |area| plot::bars(area, "time (ms)", &bars),
    )
}

/// Returns the section of the results page about the build time of tables.
pub(crate) fn section(csv: &Csv) -> Result<String> {
    let mut text = String::from(
        "This section shows how long one core needs to build a Maglev table for 1,000 backends of equal weight. Sluicegate's code and \
         a direct implementation of the paper's pseudocode 1 run in turn and build the same table. The values are medians. The \
         paper measured different code on a different machine, so only the ratio of the two columns measured here is meaningful.\n\n\
         | entries | Sluicegate | pseudocode on the same machine | ratio | time in the paper |\n|---|---|---|---|---|\n",
    );
    let [ours, theirs, ratio] = ["ours_ms", "pseudocode_ms", "ratio"].map(|column| csv.numbers(column));
    let (ours, theirs, ratio) = (ours?, theirs?, ratio?);
    for (i, slots) in csv.words("slots")?.into_iter().enumerate() {
        let paper = paper(slots).map_or("none".into(), |ms| format!("{ms} ms"));
        text +=
            &format!("| {slots} | {:.2} ms | {:.2} ms | {:.2} | {paper} |\n", ours[i], theirs[i], ratio[i]);
    }
    Ok(text)
}

const BACKENDS: usize = 1_000;
