//! Defines the development tasks of the workspace, which run as `cargo xtask TASK`.
//!
//! Every task needs a checkout, Rust and gcc. You do not need these tasks to run the load balancer.
//! The exit code is 0 after success, 1 if the task failed, and 2 after a usage error. The package
//! `xtask` builds without clang, so that the task `setup` can install clang.
#![forbid(unsafe_code)]

mod bare;
mod bench;
mod bench_kv;
mod bench_scale;
mod bench_zero_copy;
mod book;
mod build;
mod cargo;
mod demo;
mod demo_kv;
mod demo_kv_cache;
mod demo_kv_replicas;
mod demo_kv_stats;
mod demo_stats;
mod dist;
mod docs;
mod figures;
mod forwarders;
mod fuzz;
mod instructions;
mod keyed;
mod lanes;
mod latency;
mod leftovers;
mod libraries;
mod offer;
mod pace;
mod packages;
mod peers;
mod processors;
mod report;
mod setup;
mod stage;
mod statistics;
mod steps;
mod testpmd;
mod tidy;
mod try_packages;
mod zero_copy;

use std::path::PathBuf;
use std::process::ExitCode;
use std::slice;

use anyhow::Result;
use clap::{Parser, Subcommand};

use crate::bare::Readme;
use crate::lanes::Lane;

#[derive(Parser)]
#[command(name = "cargo xtask", about = "Tasks of the Sluicegate workspace", disable_version_flag = true)]
struct Arguments {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Run the load balancer on real traffic in network namespaces (needs root)
    Demo(Demo),
    /// Run the test lanes
    Test(Test),
    /// Run all lanes, as CI does
    Ci {
        /// Run all test cases instead of a reduced number, and also the checks `packages` and
        /// `bare`
        #[arg(long)]
        long: bool,
    },
    /// Run the fuzz targets of tests/fuzz with libFuzzer
    Fuzz {
        /// Run only this target [default: all targets]
        target: Option<String>,
        /// Run each target for this time, in seconds
        #[arg(long, default_value_t = 60)]
        seconds: u32,
    },
    /// Run benchmarks by name; `maglev` runs one benchmark file, `maglev/build` only a part of it
    ///
    /// `testpmd` (root) compares the balancer with DPDK's testpmd. `peers` (root) compares it with
    /// other load balancers; `peers nftables af-xdp-gre` selects two of them. `latency` (root)
    /// measures the latency that the balancer adds, and its CPU time when idle. `kv` (root)
    /// compares keyed requests through the balancer with clients that know all servers, and with
    /// nutcracker. `instructions` counts the instructions per packet with callgrind and records
    /// them in benches/results. `zero-copy` counts the instructions of the whole machine in a VM;
    /// `zero-copy igb af-xdp syn-flood` measures one device with one NIC and one kind of traffic.
    Bench(Bench),
    /// Run the commands of the README on the last commit, in a minimal Debian root (needs root)
    Bare {
        /// Run only this command [default: all commands]
        command: Option<Readme>,
    },
    /// Build the book of docs/ with mdBook; builds mdBook first if it is missing
    Book,
    /// Generate the pages in docs/reference from the code
    Docs,
    /// Build the static binary and check that it is static
    Dist,
    /// Package the static binary as .deb, .rpm and OCI image; writes a bill of materials and
    /// checksums
    Packages(Packages),
    /// Reproduce the evaluations in the papers; writes CSV files, plots and a page to
    /// benches/results
    Figures {
        /// Create only these figures, by their number in the paper, `7-rates`, `build`, or `kv`
        /// [default: all figures]
        names: Vec<String>,
        /// Only redraw the plots and the page from the CSV files in benches/results
        #[arg(long, conflicts_with = "names")]
        draw: bool,
        /// Measure this balancer binary in `8`, `9-veth` and `kv` instead of building one
        #[arg(long, value_name = "PATH")]
        bin: Option<PathBuf>,
    },
    /// Install the Debian packages that the lanes need; without root, print the command to run
    Setup {
        /// Prepare only these lanes [default: all lanes]
        #[arg(long = "lane")]
        lanes: Vec<Lane>,
    },
    /// Check the house rules: file sizes, module headers, words, addresses and dependency edges
    Tidy {
        /// Print code metrics with their limits and list the places that exceed them; the exit code
        /// is always 0
        #[arg(long)]
        report: bool,
        /// Measure this checkout instead of the current one
        #[arg(value_name = "PATH", requires = "report")]
        checkout: Option<PathBuf>,
    },
    /// Compare the public API of each standalone crate with its api.txt
    Api {
        /// Write the current API to api.txt
        #[arg(long)]
        write: bool,
    },
}

#[derive(clap::Args)]
struct Packages {
    /// Build the last commit twice in different folders, and compare all files
    #[arg(long, conflicts_with = "attempt")]
    twice: bool,
    /// Run the commands of docs/how-to/install.md in a minimal Debian root with the new packages
    /// (needs root)
    #[arg(long = "try")]
    attempt: bool,
}

#[derive(clap::Args)]
struct Demo {
    /// Print the figures as one JSON object on standard output
    #[arg(long)]
    json: bool,
    /// Show keyed services with three memcached servers, one of which is killed
    #[arg(long, conflicts_with = "keep")]
    kv: bool,
    /// Keep the testbed until Ctrl-C and print how to use it
    #[arg(long)]
    keep: bool,
    /// Run this balancer binary instead of building one
    #[arg(long, value_name = "PATH")]
    bin: Option<PathBuf>,
}

#[derive(clap::Args)]
pub(crate) struct Bench {
    /// Run these benchmarks [default: all except `testpmd`, `peers`, `latency`, `kv`,
    /// `instructions` and `zero-copy`]
    pub(crate) names: Vec<String>,
    /// Print the figures of `testpmd` and `peers` as one JSON object on standard output
    #[arg(long)]
    pub(crate) json: bool,
    /// Measure this balancer binary in `testpmd`, `peers`, `latency`, `kv` and `zero-copy` instead
    /// of building one
    #[arg(long, value_name = "PATH")]
    pub(crate) bin: Option<PathBuf>,
    /// Run this number of rounds in `peers`, `latency` and `kv` [default: 10; 5 for `kv`]
    #[arg(long, value_name = "N")]
    pub(crate) pairs: Option<usize>,
    /// Run one round of short measurements in `kv`
    #[arg(long, conflicts_with = "pairs")]
    pub(crate) quick: bool,
    /// Compare with Katran in `peers` and `zero-copy`; the path is a checkout of
    /// github.com/facebookincubator/katran, which is built first
    #[arg(long, value_name = "PATH")]
    pub(crate) katran: Option<PathBuf>,
    /// Measure the build of the test lanes in `zero-copy`, and record the counts that the lane
    /// `zero-copy` compares
    #[arg(long)]
    pub(crate) keep: bool,
}

#[derive(clap::Args)]
struct Test {
    /// Run only these lanes [default: all lanes]
    #[arg(long = "lane")]
    lanes: Vec<Lane>,
    /// Run tests with their full number of cases; if all lanes run, also the checks `packages` and
    /// `bare`
    #[arg(long)]
    long: bool,
}

fn main() -> ExitCode {
    let done = match Arguments::parse().task {
        Task::Demo(Demo { kv: true, json, bin, .. }) => demo_kv::run(bin, json),
        Task::Demo(Demo { json, keep, bin, .. }) => demo::run(bin, json, keep),
        Task::Test(Test { lanes, long }) => lanes::run(&lanes, long),
        Task::Ci { long } => lanes::run(&[], long),
        Task::Fuzz { target, seconds } => fuzz::run(target.as_deref(), seconds),
        Task::Bench(asked) => bench::run(&asked),
        Task::Bare { command } => bare::run(command.as_ref().map_or(&Readme::ALL, slice::from_ref)),
        Task::Book => book::run(),
        Task::Docs => docs::run(),
        Task::Dist => dist::run(),
        Task::Packages(Packages { twice: true, .. }) => packages::run_twice(),
        Task::Packages(Packages { attempt, .. }) => {
            packages::run().and_then(|out| if attempt { try_packages::run(&out) } else { Ok(()) })
        }
        Task::Figures { names, draw, bin } => figures::run(&names, draw, bin.as_deref()),
        Task::Setup { lanes } => setup_all(&lanes),
        Task::Tidy { report: false, .. } => tidy::run(),
        Task::Api { write } => libraries::api(write),
        Task::Tidy { checkout, .. } => tidy::report(checkout.as_deref().unwrap_or(cargo::root())),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn setup_all(lanes: &[Lane]) -> Result<()> {
    let packages: Vec<&str> = lanes::chosen(lanes).iter().flat_map(|lane| lane.packages()).collect();
    setup::ensure(&packages)?;
    println!("all packages are installed");
    Ok(())
}
