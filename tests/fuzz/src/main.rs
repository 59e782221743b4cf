//! The libFuzzer program. The environment variable `SLUICEGATE_FUZZ` selects the target. If it is
//! not set, the program prints the names of all targets.
//!
//! The first argument is the input folder. The program writes the seeds of the target to this
//! folder before libFuzzer reads it. `cargo xtask fuzz` builds and runs the program.
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
    target(&name).unwrap_or_else(|| panic!("unknown target {name}"))
});

fuzz_target!(init: write_seeds(), |input: &[u8]| (TARGET.run)(input));

fn write_seeds() {
    let seeds = (TARGET.seeds)();
    let folder = PathBuf::from(env::args_os().nth(1).expect("the first argument must be an input folder"));
    for (number, seed) in seeds.into_iter().enumerate() {
        fs::write(folder.join(format!("seed-{number}")), seed).expect("cannot write the seed");
    }
}
