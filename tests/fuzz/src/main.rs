//! The program of libFuzzer for one target, which `SLUICEGATE_FUZZ` names; without that it prints their names.
//!
//! It writes the target's seeds into the folder that stands first among its arguments, before libFuzzer reads that.
//! `cargo xtask fuzz` builds and runs it.
#![no_main]
#![forbid(unsafe_code)]

use std::path::PathBuf;
use std::sync::LazyLock;
use std::{env, fs, process};

use fuzz_targets::{TARGETS, Target, target};
use libfuzzer_sys::fuzz_target;

static TARGET: LazyLock<&Target> = LazyLock::new(|| {
    let Ok(name) = env::var("SLUICEGATE_FUZZ") else {
        TARGETS.iter().for_each(|target| println!("{}", target.name));
        process::exit(0);
    };
    target(&name).unwrap_or_else(|| panic!("no target {name}"))
});

fuzz_target!(init: write_seeds(), |input: &[u8]| (TARGET.run)(input));

fn write_seeds() {
    let seeds = (TARGET.seeds)();
    let folder = PathBuf::from(env::args_os().nth(1).expect("a folder for inputs"));
    for (number, seed) in seeds.into_iter().enumerate() {
        fs::write(folder.join(format!("seed-{number}")), seed).expect("a seed can be written");
    }
}
