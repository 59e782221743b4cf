//! Tests that the cost of readers of untrusted input is linear in the length of the input.
//!
//! Valgrind's tool callgrind counts the instructions of each reader, including those of libraries,
//! so the readers need no code for the measurement. [`check`] runs the calling test again under
//! callgrind. There, every reader reads inputs of the lengths in [`SIZES`]. The calling test then
//! compares the growth of the counts. The counts include all threads of a reader. Unlike times, the
//! counts do not depend on the machine's load.

#![forbid(unsafe_code)]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs, hint, process, thread};

/// A reader and a kind of hostile input: the name for messages, a function that returns an input
/// with this number of repeated parts, and a function that reads the input.
pub type Case<'a> = (&'a str, fn(usize) -> Vec<u8>, fn(&[u8]));

/// Checks that the cost of each case is linear. `test` is the full name of the calling test.
///
/// The differences between the counts are compared, so that constant costs hide no growth.
///
/// # Panics
/// Panics if the cost of a case grows faster, or if valgrind is not installed.
pub fn check(test: &str, cases: &[Case<'_>]) {
    if env::var_os(COUNTING).is_some() {
        for (_, input, read) in cases {
            read(&input(1)); // Costs that occur once are not counted.
            SIZES.iter().for_each(|&size| measured(*read, &input(size)));
        }
        return;
    }
    let steps = count(test, cases.len() * SIZES.len());
    let mut faults = String::new();
    for ((name, ..), steps) in cases.iter().zip(steps.as_chunks().0) {
        let [few, more, most]: [u64; 3] = *steps;
        let line = format!("{name}: {few}, {more} and {most} instructions for {SIZES:?} parts\n");
        let [first, second] = [more.saturating_sub(few), most.saturating_sub(more)];
        if second > first * 23 / 10 + SLACK {
            faults += &line;
        }
        print!("{line}");
    }
    assert!(faults.is_empty(), "cost is not linear:\n{faults}");
}

/// Runs a reader. Callgrind finds this function by its name.
#[inline(never)]
fn measured(read: fn(&[u8]), input: &[u8]) {
    read(hint::black_box(input));
    hint::black_box(());
}

/// Runs `test` under callgrind, and returns the counts of all calls of [`measured`] in order.
fn count(test: &str, calls: usize) -> Vec<u64> {
    let folder = Folder::new();
    // Each call writes a file when it begins and a file when it ends. The second file has the
    // counts of all threads since the first. The option `--toggle-collect` would count only the
    // calling thread. Callgrind applies only the last of two options with the same pattern.
    let run = Command::new("valgrind")
        .args(["--tool=callgrind", "--dump-before=steps::measured*", "--dump-after=*steps::measured*"])
        .arg(format!("--callgrind-out-file={}", folder.0.join("counts").display()))
        .arg(env::current_exe().expect("the test program has a path"))
        .args([test, "--exact", "--nocapture", "--test-threads=1"])
        .env(COUNTING, "1")
        // Otherwise the allocator changes this size, and then clears some large buffers itself.
        .env("GLIBC_TUNABLES", "glibc.malloc.mmap_threshold=131072")
        .output()
        .expect("valgrind must be installed (apt-get install valgrind)");
    let said = [run.stdout, run.stderr].concat();
    let said = String::from_utf8_lossy(&said);
    assert!(run.status.success() && said.contains("1 passed"), "{test} failed under valgrind: {said}");
    let counts: Vec<u64> = (1..=calls).map_while(|call| folder.sum(2 * call)).collect();
    assert_eq!(counts.len(), calls, "valgrind wrote other files: {said}");
    counts
}

/// A temporary folder with two files per call of [`measured`].
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        let thread = format!("{:?}", thread::current().id()).replace(['(', ')'], "");
        let path = env::temp_dir().join(format!("sluicegate-steps-{}-{thread}", process::id()));
        fs::create_dir_all(&path).expect("the temporary folder is writable");
        Self(path)
    }

    /// Returns the number in the line `summary: 12345` of a file.
    fn sum(&self, number: usize) -> Option<u64> {
        let text = fs::read_to_string(Path::new(&self.0).join(format!("counts.{number}"))).ok()?;
        text.lines().find_map(|line| line.strip_prefix("summary: "))?.trim().parse().ok()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// The numbers of repeated parts in the inputs of each case. Each number is twice the previous one,
/// so that buffers and tables that double their size grow equally often.
pub const SIZES: [usize; 3] = [128, 256, 512];
/// The number of instructions by which costs may differ from linear growth, for example because an
/// allocation happens to be larger. One instruction for each pair of parts exceeds this number.
const SLACK: u64 = 16_000;
/// The environment variable that is set under callgrind.
const COUNTING: &str = "SLUICEGATE_STEPS";

#[cfg(test)]
mod tests {
    use std::panic;

    use super::*;

    fn input(size: usize) -> Vec<u8> {
        (0..size).map(|number| u8::try_from(number % 251).expect("a byte")).collect()
    }

    fn linear(bytes: &[u8]) {
        hint::black_box(bytes.iter().map(|byte| u64::from(*byte)).sum::<u64>());
    }

    /// Reads the rest of the input again after every 10 bytes.
    fn quadratic(bytes: &[u8]) {
        (0..bytes.len()).step_by(10).for_each(|start| linear(&bytes[start..]));
    }

    fn on_another_thread(bytes: &[u8]) {
        thread::scope(|scope| drop(scope.spawn(|| quadratic(bytes))));
    }

    #[test]
    fn linear_readers_pass() {
        check("tests::linear_readers_pass", &[("linear", input, linear), ("constant", input, |_| ())]);
    }

    #[test]
    fn quadratic_readers_fail() {
        let cases: [Case<'_>; 3] = [
            ("linear", input, linear),
            ("quadratic", input, quadratic),
            ("on another thread", input, on_another_thread),
        ];
        let checked = panic::catch_unwind(|| check("tests::quadratic_readers_fail", &cases));
        if env::var_os(COUNTING).is_none() {
            let message = checked.expect_err("the check fails");
            let message = message.downcast_ref::<String>().expect("a message");
            let lines: Vec<_> = message.lines().map(|line| line.split(": ").next()).collect();
            assert_eq!(
                lines,
                ["cost is not linear:", "quadratic", "on another thread"].map(Some),
                "{message}"
            );
        }
    }
}
