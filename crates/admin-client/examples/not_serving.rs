//! Prints a table of the backends that receive less traffic than their configured weight, for a
//! chat room or a pager. Run it with `cargo run --example not_serving -- --socket PATH`. The exit
//! code is 1 if the table is not empty.

use std::process::ExitCode;

use admin::view::BackendRow;
use admin_client::{Client, Reach, table};
use clap::Parser;

#[derive(Parser)]
struct Arguments {
    #[command(flatten)]
    reach: Reach,
}

fn main() -> ExitCode {
    let asked = Client::new(&Arguments::parse().reach)
        .and_then(|client| client.get::<Vec<BackendRow>>("/v1/backends"));
    let rows = match asked {
        Ok(rows) => rows,
        Err(error) => {
            eprintln!("{error:#}");
            return ExitCode::from(3);
        }
    };
    let short = rows.iter().filter(|row| row.weight_effective < row.weight_configured || row.why.is_some());
    let lines: Vec<_> = short
        .map(|row| {
            let why = row.why.as_ref().map_or_else(String::new, |why| format!("{why:?}"));
            [
                row.name.clone(),
                row.pool.clone(),
                format!("{} of {}", row.weight_effective, row.weight_configured),
                why,
            ]
        })
        .collect();
    if lines.is_empty() {
        return ExitCode::SUCCESS;
    }
    #[expect(clippy::print_stdout, reason = "an example")]
    {
        print!("{}", table(["backend", "pool", ">weight", "why"], lines));
    }
    ExitCode::FAILURE
}
