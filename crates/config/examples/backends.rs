//! Prints the VIPs of a configuration and their backends as CSV: `cargo run --example backends --
//! sluicegate.toml`.
//!
//! The example does not read secrets, so it also works on machines without the secret files.

use std::path::PathBuf;
use std::process::ExitCode;

use config::load_without_secrets;

fn main() -> ExitCode {
    let Some(path) = std::env::args_os().nth(1).map(PathBuf::from) else {
        eprintln!("usage: backends FILE");
        return ExitCode::from(2);
    };
    let config = match load_without_secrets(&path) {
        Ok((config, warnings)) => {
            eprint!("{warnings}");
            config
        }
        Err(problems) => {
            eprintln!("{problems}");
            return ExitCode::FAILURE;
        }
    };
    println!("vip,pool,backend,address");
    for vip in config.vips() {
        for service in &vip.services {
            for member in &service.pool.members {
                let backend = &member.backend;
                println!("{},{},{},{}", vip.name, service.pool.name, backend.name, backend.address);
            }
        }
    }
    ExitCode::SUCCESS
}
