//! How many flows move when a backend goes, for a number of backends: `cargo run --example disruption -- 20`.

use std::process::ExitCode;

use maglev_hash::{Backend, Options, Seed, build, disruption};

fn main() -> ExitCode {
    let wanted = std::env::args().nth(1).map_or(Ok(10), |text| text.parse::<usize>());
    let Ok(count @ 2..=500) = wanted else {
        eprintln!("usage: disruption [2..500]");
        return ExitCode::from(2);
    };
    let names: Vec<String> = (0..count).map(|n| format!("b{n}")).collect();
    let backends: Vec<Backend<'_>> =
        names.iter().map(|name| Backend { name: name.as_bytes(), weight: 1 }).collect();
    // A cluster's machines share one secret seed, or they build different tables.
    let options = Options::new(Seed::new(*b"a demonstration!"));
    let tables = build(&backends, &options).and_then(|all| Ok((all, build(&backends[1..], &options)?)));
    let (all, rest) = match tables {
        Ok(tables) => tables,
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::FAILURE;
        }
    };
    let Ok(moved) = disruption(&all, &rest) else { return ExitCode::FAILURE };
    let percent = |slots: u32| 100.0 * f64::from(slots) / f64::from(all.size());
    println!("{count} backends, {} slots; b0 goes:", all.size());
    println!("  its own flows that must move: {:6.2} %", percent(moved.backend_gone));
    println!("  others that move with them:   {:6.2} %", percent(moved.moved_needlessly));
    ExitCode::SUCCESS
}
