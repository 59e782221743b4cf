//! The evaluations of the papers on Maglev, MemSwitch and AppSwitch with Sluicegate's code: simulations, timings, their plots and their page.
//!
//! In: nothing but seeds, and for throughput what was measured elsewhere. Out: a [`Csv`] each, an SVG and a section of the page.
//! Not here: files, commits, machines, traffic on interfaces (`cargo xtask figures`).
//! Invariant: a simulation gives the same rows on every machine; what is drawn and written is of the CSV alone.
//! Source: Eisenbud et al., *Maglev*, NSDI 2016, §5 (of the others `keyed`). Karger's and rendezvous hashing are here for comparison alone.
#![forbid(unsafe_code)]

mod balance;
mod build_time;
mod csv;
mod day;
mod figure;
mod karger;
mod keyed;
mod maglev;
mod page;
mod plot;
mod rendezvous;
mod resilience;
mod stats;
mod throughput;

pub use csv::Csv;
pub use figure::Figure;
pub use maglev::{equal, names, pseudocode};
pub use page::page;
pub use stats::median;
