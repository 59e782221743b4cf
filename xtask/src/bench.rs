//! Runs benchmarks by name.

use anyhow::{Result, bail};

use crate::Bench;
use crate::cargo::{self, Metadata, cargo};
use crate::peers::{self, Options};
use crate::{bench_kv, bench_scale, bench_zero_copy, instructions, latency, setup, testpmd};

/// Runs the requested benchmarks, or all default benchmarks if none is requested.
///
/// A name such as `maglev` selects a file in `benches/`. A name such as `maglev/build` selects the
/// benchmarks in that file whose names contain `maglev/build`. The benchmarks `testpmd`, `peers`,
/// `latency`, `kv`, `instructions` and `zero-copy` are implemented in this crate. Names that follow
/// `peers` select load balancers, and names that follow `zero-copy` select devices, kinds of
/// traffic and NICs. The benchmark `scale` is a file in `benches/`, and its results are written to
/// `benches/results`.
pub(crate) fn run(asked: &Bench) -> Result<()> {
    setup::ensure(setup::BUILD)?;
    let binary = asked.bin.as_deref();
    if asked.names.is_empty() {
        return cargo::run(&mut cargo(&[
            "bench",
            "--package",
            "sluicegate-benches",
            "--package",
            "sluicegate-control-benches",
        ]));
    }
    if let [first, names @ ..] = &asked.names[..]
        && first == "peers"
    {
        let Bench { json, ref katran, .. } = *asked;
        let rounds = asked.pairs.unwrap_or(ROUNDS);
        return peers::run(&Options { names, binary, rounds, json, katran: katran.as_deref() });
    }
    if let [first, names @ ..] = &asked.names[..]
        && first == "zero-copy"
    {
        if asked.keep {
            return bench_zero_copy::keep(binary);
        }
        return bench_zero_copy::run(names, binary, asked.katran.as_deref());
    }
    let metadata = Metadata::read()?;
    asked.names.iter().try_for_each(|name| match name.as_str() {
        "testpmd" => testpmd::run(binary, asked.json),
        "latency" => latency::run(binary, asked.pairs.unwrap_or(ROUNDS)),
        "kv" => bench_kv::run(binary, asked.pairs, asked.quick),
        "instructions" => instructions::run(),
        "scale" => bench_scale::run(),
        name => run_one(&metadata, name),
    })
}

fn run_one(metadata: &Metadata, name: &str) -> Result<()> {
    let file = name.split('/').next().unwrap_or(name);
    let owner =
        metadata.packages().find(|package| package.targets("bench", false).any(|bench| bench == file));
    let Some(owner) = owner else {
        let known: Vec<&str> = metadata
            .packages()
            .flat_map(|package| package.targets("bench", false).collect::<Vec<_>>())
            .collect();
        bail!("there is no benchmark {file:?} (benchmarks: {})", known.join(", "));
    };
    let mut command = cargo(&["bench", "--package", owner.name(), "--bench", file]);
    if name != file {
        command.args(["--", name]);
    }
    cargo::run(&mut command)
}

/// The default number of rounds for `peers` and `latency`.
const ROUNDS: usize = 10;
