//! How much a turn offers: the pace at which a forwarder takes most packets.
//!
//! In: a running peer. Out: its [`Rates`] at that pace, in a window in which others had little of the processors. At full speed
//! a process on the device's processor has no time beside the thread that receives for it what will be dropped.
//! Not here: what offers and counts (`offer`, `stage`).

use std::time::Duration;

use anyhow::Result;

use crate::offer::{FULL, Traffic};
use crate::stage::{LEAST_EXCESS, Rates, Running, Stage, WINDOW};

/// One turn of a peer, at `pace`, or at the best of [`PACES`] while that is not known. Paces go up while they offer too little.
pub(crate) fn turn(
    stage: &Stage,
    running: &Running<'_>,
    mut traffic: Traffic,
    pace: &mut Option<u32>,
) -> Result<Rates> {
    traffic.pace = match *pace {
        Some(known) => known,
        None => best(stage, running, &traffic)?,
    };
    loop {
        let rates = quietest(stage, running, &traffic)?;
        if rates.excess() >= LEAST_EXCESS || traffic.pace == FULL {
            *pace = Some(traffic.pace);
            return Ok(rates);
        }
        traffic.pace = faster(traffic.pace);
    }
}

/// Of a few windows the one in which generator and device had most of their processors.
fn quietest(stage: &Stage, running: &Running<'_>, traffic: &Traffic) -> Result<Rates> {
    let mut best = Rates::default();
    for _ in 0..TRIES {
        let rates = stage.rates(running, traffic, WINDOW)?;
        if rates.ran > best.ran {
            best = rates;
        }
        if best.undisturbed() {
            break;
        }
    }
    Ok(best)
}

fn best(stage: &Stage, running: &Running<'_>, traffic: &Traffic) -> Result<u32> {
    let mut tried = Vec::new();
    for pace in PACES {
        let rates = stage.rates(running, &Traffic { pace, ..traffic.clone() }, GLANCE)?;
        tried.push((pace, rates));
        // Less than it takes: so are all that follow.
        if rates.excess() < ENOUGH {
            break;
        }
    }
    Ok(best_of(&tried))
}

/// The pace at which most was taken while enough was offered.
fn best_of(tried: &[(u32, Rates)]) -> u32 {
    let enough = tried.iter().filter(|(_, rates)| rates.excess() >= ENOUGH);
    enough.max_by(|one, other| one.1.taken.total_cmp(&other.1.taken)).map_or(FULL, |row| row.0)
}

/// The next pace above this one.
fn faster(pace: u32) -> u32 {
    PACES.into_iter().rfind(|&other| other > pace).unwrap_or(FULL)
}

/// Packets a second that are tried, from most to least.
const PACES: [u32; 10] =
    [FULL, 1_600_000, 1_200_000, 900_000, 675_000, 500_000, 375_000, 280_000, 210_000, 160_000];
/// Times what is taken: a little more than what a row needs.
const ENOUGH: f64 = 1.25;
/// For each pace.
const GLANCE: Duration = Duration::from_millis(500);
/// For a window in which nothing else has much of the processors.
const TRIES: usize = 3;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_pace_takes_most_of_those_that_offer_enough() {
        let tried = |pace, offered, taken| (pace, Rates { offered, taken, ..Rates::default() });
        let rows = [
            tried(FULL, 2e6, 10e3),
            tried(500_000, 500e3, 300e3),
            tried(375_000, 375e3, 299e3),
            tried(280_000, 280e3, 260e3),
        ];
        assert_eq!(best_of(&rows), 500_000);
        assert_eq!(best_of(&[tried(FULL, 2e6, 10e3), tried(9_000, 9e3, 8e3)]), FULL);
        // A generator that is too slow at its best has one pace.
        assert_eq!(best_of(&[tried(FULL, 2e6, 1.9e6)]), FULL);
    }

    #[test]
    fn the_next_pace_is_the_least_that_is_faster() {
        assert_eq!([FULL, 1_600_000, 160_000].map(faster), [FULL, FULL, 210_000]);
    }
}
