//! Prints how many flows move when one of several backends is removed. Run it with `cargo run
//! --example disruption -- 20` for 20 backends.

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
    // All machines of a cluster need the same secret seed. With different seeds, the machines would
    // build different tables.
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
    println!("{count} backends, {} slots, after b0 was removed:", all.size());
    println!("  flows of b0, which must move: {:6.2} %", percent(moved.backend_gone));
    println!("  other flows that moved:       {:6.2} %", percent(moved.moved_needlessly));
    ExitCode::SUCCESS
}
