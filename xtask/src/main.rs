//! Tasks: `cargo xtask demo|test|ci|fuzz|bench|figures|bare|book|dist|packages|setup|tidy|api`.
//!
//! In: a checkout, Rust and gcc. Out: what the task shows; exit 0 well, 1 a finding, 2 wrong usage.
//! Not here: anything that the product needs to run.
//! It builds without clang, so that it can install clang.
#![forbid(unsafe_code)]

mod bare;
mod bench;
mod bench_kv;
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
    /// The main job on real traffic, in network namespaces (root)
    Demo(Demo),
    /// Run the test lanes
    Test(Test),
    /// What CI runs: every lane
    Ci {
        /// Full counts instead of short ones, `packages` and `bare`
        #[arg(long)]
        long: bool,
    },
    /// Try readers of bytes from elsewhere with any bytes, chosen by coverage (tests/fuzz)
    Fuzz {
        /// One of them; none means all
        target: Option<String>,
        /// How long for each
        #[arg(long, default_value_t = 60)]
        seconds: u32,
    },
    /// Run benchmarks, by name: `maglev`, or `maglev/build` for a part; `testpmd` (root) compares with DPDK's forwarder,
    /// `peers` (root) with what else would balance: `peers nftables af-xdp-gre` with one of them;
    /// `latency` (root) shows what it adds to a packet's time, and its CPU when idle;
    /// `kv` (root) compares requests by key with clients that know all servers, and with nutcracker;
    /// `instructions` counts those of a packet by callgrind and keeps them in benches/results
    Bench(Bench),
    /// The README's commands in a bare Debian root (root; the last commit)
    Bare {
        /// One of them; none means all
        command: Option<Readme>,
    },
    /// Build the book of docs/ by mdBook, which is built first where it is missing
    Book,
    /// Build the static binary, and check that it is static
    Dist,
    /// Build the packages of the static binary: .deb, .rpm, OCI image, bill of materials, checksums
    Packages(Packages),
    /// Make the papers' evaluations anew with our code: rows, plots and their page in benches/results
    Figures {
        /// Figures by their number in the paper, `7-rates`, `build`, or `kv` for requests by key; none means all
        names: Vec<String>,
        /// Only draw and write what the rows that are there say
        #[arg(long, conflicts_with = "names")]
        draw: bool,
        /// `8`, `9-veth` and `kv`: measure this balancer, of this checkout, instead of building one
        #[arg(long, value_name = "PATH")]
        bin: Option<PathBuf>,
    },
    /// Install what the lanes need (apt-get when root, else the line to run)
    Setup {
        /// Lanes to prepare; none means all
        #[arg(long = "lane")]
        lanes: Vec<Lane>,
    },
    /// Check sizes, headers, words, addresses and dependency edges
    Tidy {
        /// Print the measures of the code and what is over their bars, and fail on nothing
        #[arg(long)]
        report: bool,
        /// The checkout that `--report` measures, instead of this one
        #[arg(value_name = "PATH", requires = "report")]
        checkout: Option<PathBuf>,
    },
    /// Compare the public API of each crate that stands alone with its api.txt
    Api {
        /// Keep it as it is now
        #[arg(long)]
        write: bool,
    },
}

#[derive(clap::Args)]
struct Packages {
    /// Build the last commit in two folders instead, and compare all files
    #[arg(long, conflicts_with = "attempt")]
    twice: bool,
    /// Then do what docs/install.md says with them, in a bare Debian root (root)
    #[arg(long = "try")]
    attempt: bool,
}

#[derive(clap::Args)]
struct Demo {
    /// The figures as one JSON object on standard output
    #[arg(long)]
    json: bool,
    /// Requests by key: three memcached servers, one of which is killed
    #[arg(long, conflicts_with = "keep")]
    kv: bool,
    /// Leave the bed standing until Ctrl-C, and say how to play with it
    #[arg(long)]
    keep: bool,
    /// Show this balancer instead of building one
    #[arg(long, value_name = "PATH")]
    bin: Option<PathBuf>,
}

#[derive(clap::Args)]
pub(crate) struct Bench {
    /// Benchmarks; none means all but `testpmd`, `peers`, `latency`, `kv` and `instructions`
    pub(crate) names: Vec<String>,
    /// `testpmd` and `peers`: the figures as one JSON object on standard output
    #[arg(long)]
    pub(crate) json: bool,
    /// `testpmd`, `peers`, `latency` and `kv`: measure this balancer instead of building one
    #[arg(long, value_name = "PATH")]
    pub(crate) bin: Option<PathBuf>,
    /// `peers`, `latency` and `kv`: rounds in which each has its turns; 10, of `kv` 5
    #[arg(long, value_name = "N")]
    pub(crate) pairs: Option<usize>,
    /// `kv`: one round of short turns
    #[arg(long, conflicts_with = "pairs")]
    pub(crate) quick: bool,
    /// `peers`: a checkout of github.com/facebookincubator/katran, which is built and has turns too
    #[arg(long, value_name = "PATH")]
    pub(crate) katran: Option<PathBuf>,
}

#[derive(clap::Args)]
struct Test {
    /// Lanes to run; none means all
    #[arg(long = "lane")]
    lanes: Vec<Lane>,
    /// Full counts instead of short ones; with all lanes, `packages` and `bare` too
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
    println!("nothing is missing");
    Ok(())
}
