//! Benchmarks by name.

use std::path::Path;

use anyhow::{Result, bail};

use crate::cargo::{self, Metadata, cargo};
use crate::{setup, testpmd};

/// Runs `names`, or all benchmarks: `maglev` is a file of `benches/`, `maglev/build` the part of it whose name holds that;
/// `testpmd` is none of them, and takes a balancer's binary.
pub(crate) fn run(names: &[String], binary: Option<&Path>, json: bool) -> Result<()> {
    setup::ensure(setup::BUILD)?;
    if names.is_empty() {
        return cargo::run(&mut cargo(&["bench", "--package", "sluicegate-benches"]));
    }
    let metadata = Metadata::read()?;
    names.iter().try_for_each(|name| match name.as_str() {
        "testpmd" => testpmd::run(binary, json),
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
        bail!("there is no benchmark {file:?}; there are: {}", known.join(", "));
    };
    let mut command = cargo(&["bench", "--package", owner.name(), "--bench", file]);
    if name != file {
        command.args(["--", name]);
    }
    cargo::run(&mut command)
}
