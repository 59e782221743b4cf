//! Prints the IPVS rules that have no exact counterpart in a configuration, so that they can be
//! checked by hand during a migration. Run the example as `ipvsadm -S -n | cargo run --example
//! left_out`. The exit code is 1 if a rule is missing from the configuration.

use std::io::Read;
use std::path::Path;
use std::process::ExitCode;

fn main() -> ExitCode {
    let mut rules = String::new();
    if let Err(error) = std::io::stdin().read_to_string(&mut rules) {
        eprintln!("cannot read rules: {error}");
        return ExitCode::from(2);
    }
    let import = match import::ipvs(&rules, Path::new("standard input")) {
        Ok(import) => import,
        Err(problems) => {
            eprintln!("{problems}");
            return ExitCode::from(2);
        }
    };
    for note in &import.notes {
        let fate = if note.is_left_out { "left out" } else { "different" };
        let rule = rules.lines().nth(note.line - 1).unwrap_or_default();
        println!("{fate}: {rule}\n    {}", note.words);
    }
    let left_out = import.notes.iter().filter(|note| note.is_left_out).count();
    println!("{} notes, {left_out} rules left out", import.notes.len());
    if left_out == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
