//! Rules of IPVS that a configuration of ours can't say, one a line, for a migration's list of things to settle by hand:
//! `ipvsadm -S -n | cargo run --example left_out`. Exits with 1 where a rule is left out whole.

use std::io::Read;
use std::path::Path;
use std::process::ExitCode;

fn main() -> ExitCode {
    let mut rules = String::new();
    if let Err(error) = std::io::stdin().read_to_string(&mut rules) {
        eprintln!("can't read rules: {error}");
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
