//! Repeats the evaluations of the Maglev, MemSwitch and AppSwitch papers with Sluicegate's code,
//! and writes their results page.
//!
//! Each figure has a [`Csv`] that contains its rows. The figure's SVG plot and its section on the
//! page are generated only from this CSV. Simulations produce the same rows on every machine.
//! `cargo xtask figures` measures the figures that need network interfaces, and writes all files
//! except the CSVs of `zero-copy`, `scale` and `scale-flows`, which `cargo xtask bench zero-copy`
//! and `cargo xtask bench scale` measure.
//! The crate also implements Karger's consistent hashing and rendezvous hashing, which the figures
//! compare with Maglev hashing.
//!
//! Reference: Eisenbud et al., *Maglev*, NSDI 2016, §5. The module `keyed` names the other papers.
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
mod scale;
mod stats;
mod throughput;
mod zero_copy;

pub use csv::Csv;
pub use figure::Figure;
pub use maglev::{equal, names, pseudocode};
pub use page::page;
pub use stats::median;
