//! Prints how many connections break if a machine leaves the cluster while a backend drains. Run
//! the example with `cargo run --release --example machines`. The output has one line for each
//! cluster size and one column for each hashing method.

use std::error::Error;
use std::path::Path;

use simulate::{Hashing, script};

const FLOWS: u32 = 20_000;

fn main() -> Result<(), Box<dyn Error>> {
    println!("broken connections of {FLOWS} if a machine leaves while one of 50 backends drains");
    println!("machines {}", Hashing::ALL.map(|hashing| format!("{:>12}", hashing.name())).concat());
    for machines in [2, 4, 8, 16] {
        let text = format!(
            "duration = \"30s\"
             [cluster]
             machines = {machines}
             backends = 50
             [traffic]
             flows = {FLOWS}
             lifetime = \"1h\"
             [[event]]
             at = \"10s\"
             backend_drains = \"b7\"
             [[event]]
             at = \"20s\"
             machine_leaves = \"m2\"
            "
        );
        let scenario = script::parse(&text, Path::new("example"), None)?;
        print!("{machines:>8} ");
        for hashing in Hashing::ALL {
            let outcome = simulate::run(&scenario, hashing, true)?;
            print!("{:>12}", outcome.counts.broken);
        }
        println!();
    }
    Ok(())
}
