//! Figure 11: how evenly Maglev, Karger's and rendezvous hashing distribute the table entries over
//! the backends.

use std::time::Instant;

use anyhow::Result;

use crate::maglev::{equal, names, seed, table};
use crate::plot::{self, Bar, COLORS};
use crate::stats::Spread;
use crate::{Csv, karger, rendezvous};

/// Fills `seeds` tables with each method and measures their balance.
pub(crate) fn run(seeds: u64) -> Csv {
    let mut csv = Csv::new(&COLUMNS);
    let names = names(BACKENDS);
    for slots in SIZES {
        for method in METHODS {
            let start = Instant::now();
            let found: Vec<Imbalance> = (0..seeds)
                .map(|number| Imbalance::of(&method.fill(&names, slots, seed(number)), BACKENDS))
                .collect();
            let over = Spread::of(&found.iter().map(|one| one.over_percent).collect::<Vec<_>>());
            let under = Spread::of(&found.iter().map(|one| one.under_percent).collect::<Vec<_>>());
            let mut row =
                vec![method.name().into(), slots.to_string(), BACKENDS.to_string(), seeds.to_string()];
            row.extend(
                [over.mean, over.least, over.most, under.mean, under.least, under.most]
                    .map(|x| format!("{x:.2}")),
            );
            csv.push(row);
            eprintln!("{} of {slots} slots: {:.1} s", method.name(), start.elapsed().as_secs_f64());
        }
    }
    csv
}

/// The deviation of the most and the least loaded backend from the mean load.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Imbalance {
    over_percent: f64,
    under_percent: f64,
}

impl Imbalance {
    fn of(owners: &[u32], backends: usize) -> Self {
        let mut shares = vec![0.0; backends];
        owners.iter().for_each(|&owner| shares[owner as usize] += 1.0);
        let Spread { mean, least, most, .. } = Spread::of(&shares);
        Self { over_percent: 100.0 * (most / mean - 1.0), under_percent: 100.0 * (1.0 - least / mean) }
    }
}

#[derive(Clone, Copy)]
enum Method {
    Maglev,
    Karger,
    Rendezvous,
}

impl Method {
    fn name(self) -> &'static str {
        match self {
            Self::Maglev => "maglev",
            Self::Karger => "karger",
            Self::Rendezvous => "rendezvous",
        }
    }

    fn fill(self, names: &[Vec<u8>], slots: u32, seed: [u8; 16]) -> Vec<u32> {
        match self {
            Self::Maglev => {
                table(&equal(names), slots, seed).iter().map(|rank| number(rank.index_by_name())).collect()
            }
            Self::Karger => karger::Ring::new(names, VIEWS, &seed).owners(slots),
            Self::Rendezvous => rendezvous::owners(names, slots, &seed),
        }
    }
}

fn number(backend: usize) -> u32 {
    u32::try_from(backend).expect("at most 65,535 backends")
}

/// Returns the overprovision that the paper measured with one table, in percent.
fn paper(method: &str, slots: &str) -> Option<f64> {
    match (method, slots) {
        ("karger", "65537") => Some(29.7),
        ("karger", "655373") => Some(10.3),
        ("rendezvous", "65537") => Some(49.5),
        ("rendezvous", "655373") => Some(12.3),
        _ => None,
    }
}

/// Returns the hashing method, the number of slots and the values of the given columns for each
/// row.
fn rows(csv: &Csv, columns: [&str; 3]) -> Result<Vec<(String, String, [f64; 3])>> {
    let [a, b, c] = columns.map(|column| csv.numbers(column));
    let (a, b, c) = (a?, b?, c?);
    let names = csv.words("method")?.into_iter().zip(csv.words("slots")?).enumerate();
    Ok(names.map(|(i, (method, slots))| (method.into(), slots.into(), [a[i], b[i], c[i]])).collect())
}

/// Draws the overprovision as bars, with the paper's values as rings.
pub(crate) fn draw(csv: &Csv) -> Result<String> {
    let mut bars = Vec::new();
    for (method, slots, [value, least, most]) in rows(csv, ["over_percent", "over_least", "over_most"])? {
        let color = COLORS[METHODS.iter().position(|known| known.name() == method).unwrap_or(0)];
        let (range, paper) = (Some((least, most)), paper(&method, &slots));
        bars.push(Bar { label: format!("{method} {slots}"), value, range, paper, color });
    }
    plot::svg(
        &plot::Sheet::new(
            "Figure 11: overprovision of hashing methods, 1,000 backends",
            "one table per method, shown as rings; almost 0 for Maglev",
            csv,
        )?,
        |area| plot::bars(area, "fullest backend above mean (percent)", &bars),
    )
}

/// Returns the text about Figure 11 for the results page.
pub(crate) fn section(csv: &Csv) -> Result<String> {
    let mut text = String::from(
        "1,000 backends of equal weight share the entries of a lookup table. The load of a backend is the number of its entries. \
         Karger's ring has 1,000 virtual nodes per backend. The paper measured one table per method. Here each method fills 20 \
         tables with different seeds, and the values below are the mean and the range.\n\n\
         | method | entries | fullest backend above mean | fullest backend above mean in the paper | emptiest backend below mean |\n|---|---|---|---|---|\n",
    );
    let over = rows(csv, ["over_percent", "over_least", "over_most"])?;
    let under = rows(csv, ["under_percent", "under_least", "under_most"])?;
    for ((method, slots, [mean, least, most]), (_, _, [low, low_least, low_most])) in
        over.into_iter().zip(under)
    {
        let outside =
            |value| if (least..=most).contains(&value) { "" } else { ", outside the range measured here" };
        let paper = paper(&method, &slots)
            .map_or("almost 0".into(), |value| format!("{value:.1} %{}", outside(value)));
        text += &format!(
            "| {method} | {slots} | {mean:.1} % ({least:.1} to {most:.1}) | {paper} | {low:.1} % ({low_least:.1} to {low_most:.1}) |\n"
        );
    }
    Ok(text)
}

const COLUMNS: [&str; 10] = [
    "method",
    "slots",
    "backends",
    "seeds",
    "over_percent",
    "over_least",
    "over_most",
    "under_percent",
    "under_least",
    "under_most",
];
const METHODS: [Method; 3] = [Method::Maglev, Method::Karger, Method::Rendezvous];
const BACKENDS: usize = 1_000;
const SIZES: [u32; 2] = [65_537, 655_373];
const VIEWS: u32 = 1_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn imbalance_matches_hand_computed_values() {
        let close = |found: Imbalance, over: f64, under: f64| {
            (found.over_percent - over).abs() < 1e-9 && (found.under_percent - under).abs() < 1e-9
        };
        assert!(close(Imbalance::of(&[0, 0, 0, 1, 1, 2], 3), 50.0, 50.0));
        assert!(close(Imbalance::of(&[1, 0, 2], 3), 0.0, 0.0));
        assert!(close(Imbalance::of(&[0, 0, 0, 0], 2), 100.0, 100.0), "one backend has no entry");
    }

    /// With 65,537 slots, each of 1,000 backends gets 65 or 66 slots.
    #[test]
    fn maglev_overprovision_is_at_most_one_slot() {
        let found = Imbalance::of(&Method::Maglev.fill(&names(BACKENDS), 65_537, seed(0)), BACKENDS);
        assert!((found.over_percent - 100.0 * (66.0 / 65.537 - 1.0)).abs() < 1e-9, "{found:?}");
        assert!((found.under_percent - 100.0 * (1.0 - 65.0 / 65.537)).abs() < 1e-9, "{found:?}");
    }

    #[test]
    fn methods_differ_and_a_seed_repeats() {
        let names = names(20);
        for method in METHODS {
            assert_eq!(method.fill(&names, 1_009, seed(1)), method.fill(&names, 1_009, seed(1)));
            assert_ne!(method.fill(&names, 1_009, seed(1)), method.fill(&names, 1_009, seed(2)));
        }
        assert_ne!(
            Method::Karger.fill(&names, 1_009, seed(1)),
            Method::Rendezvous.fill(&names, 1_009, seed(1))
        );
    }
}
