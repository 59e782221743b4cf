//! Finds the offered rate at which a forwarder forwards the largest number of packets.
//!
//! A higher offered rate does not always lead to more forwarded packets. At full speed, the kernel
//! thread that receives packets uses all the time of its processor, even for packets that are
//! dropped later, and leaves no time for the process under test. The module returns the [`Rates`]
//! that were measured at the offered rate with the most forwarded packets, in a time window in
//! which other programs used little processor time.

use std::time::Duration;

use anyhow::Result;

use crate::offer::{FULL, Traffic};
use crate::stage::{LEAST_EXCESS, Rates, Running, Stage, WINDOW};

/// Measures a forwarder at the offered rate `pace`. If no pace is known yet, the function first
/// determines the pace in [`PACES`] at which the forwarder forwards the most packets. If the
/// generator offers too few packets for a valid result at this pace, the pace is raised.
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

/// Measures the rates in several time windows. Returns the window in which the generator and the
/// device got the largest share of processor time.
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
        // If the generator sends hardly more packets than the device forwards at this pace, it
        // sends too few to saturate the device at any lower pace.
        if rates.excess() < ENOUGH {
            break;
        }
    }
    Ok(best_of(&tried))
}

/// Returns the pace at which the most packets were forwarded. Paces at which the generator offered
/// too few packets are ignored.
fn best_of(tried: &[(u32, Rates)]) -> u32 {
    let enough = tried.iter().filter(|(_, rates)| rates.excess() >= ENOUGH);
    enough.max_by(|one, other| one.1.taken.total_cmp(&other.1.taken)).map_or(FULL, |row| row.0)
}

fn faster(pace: u32) -> u32 {
    PACES.into_iter().rfind(|&other| other > pace).unwrap_or(FULL)
}

/// The offered rates to try, in packets per second, in descending order.
const PACES: [u32; 10] =
    [FULL, 1_600_000, 1_200_000, 900_000, 675_000, 500_000, 375_000, 280_000, 210_000, 160_000];
/// The required ratio of offered to forwarded packets, which is slightly higher than the ratio that
/// a valid result needs.
const ENOUGH: f64 = 1.25;
/// The time for which each pace is tried.
const GLANCE: Duration = Duration::from_millis(500);
/// The number of attempts to find a time window in which other programs cause little load.
const TRIES: usize = 3;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn best_pace_forwards_most_of_those_that_offer_enough() {
        let tried = |pace, offered, taken| (pace, Rates { offered, taken, ..Rates::default() });
        let rows = [
            tried(FULL, 2e6, 10e3),
            tried(500_000, 500e3, 300e3),
            tried(375_000, 375e3, 299e3),
            tried(280_000, 280e3, 260e3),
        ];
        assert_eq!(best_of(&rows), 500_000);
        assert_eq!(best_of(&[tried(FULL, 2e6, 10e3), tried(9_000, 9e3, 8e3)]), FULL);
        // A generator that is too slow even at full speed leaves only one pace to choose.
        assert_eq!(best_of(&[tried(FULL, 2e6, 1.9e6)]), FULL);
    }

    #[test]
    fn next_pace_is_the_least_that_is_faster() {
        assert_eq!([FULL, 1_600_000, 160_000].map(faster), [FULL, FULL, 210_000]);
    }
}
