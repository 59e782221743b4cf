//! For each pool, prints the share of table slots that move to other backends when the
//! configuration changes. Run it with `cargo run --example moved -- OLD.toml NEW.toml MACHINE`.
//! Only new connections move, because the connection table keeps established connections on their
//! backends.

use std::collections::BTreeMap;
use std::error::Error;
use std::path::Path;
use std::sync::Arc;

use compile::{Compiled, Compiler};
use config::Config;
use forwarder::PoolTable;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [old, new, machine] = &arguments[..] else { return Err("usage: moved OLD NEW MACHINE".into()) };
    let [old, new] = [read(old)?, read(new)?];
    // Both configurations are compiled with the same compiler, so unchanged backends keep their
    // slot numbers.
    let mut compiler = Compiler::default();
    let [old, new] = [compiler.compile_file(&old, machine)?, compiler.compile_file(&new, machine)?];
    let [before, after] = [pools(&old), pools(&new)];
    for (name, pool) in &after {
        let Some(old) = before.get(name) else {
            println!("{name}: new");
            continue;
        };
        let (old, new) = (slots(old), slots(pool));
        let moved = old.iter().zip(&new).filter(|(old, new)| old != new).count();
        match old.len() == new.len() {
            true => println!("{name}: {:.2} %", 100.0 * moved as f64 / new.len().max(1) as f64),
            false => println!("{name}: all (the table size changed)"),
        }
    }
    for name in before.keys().filter(|name| !after.contains_key(*name)) {
        println!("{name}: removed");
    }
    Ok(())
}

/// Returns the pools that services use, sorted by pool name.
fn pools(compiled: &Compiled) -> BTreeMap<Arc<str>, Arc<PoolTable>> {
    let of = |service: &forwarder::Service| (Arc::clone(&service.pool.name), Arc::clone(&service.pool));
    compiled.snapshot.services().iter().map(of).collect()
}

/// Returns the slot for each table entry, or an empty list if all weights are 0.
fn slots(pool: &PoolTable) -> Vec<u32> {
    let ranks = pool.table.iter().flat_map(|table| table.iter());
    ranks.filter_map(|rank| Some(pool.slots.get(rank.index_by_name())?.0)).collect()
}

/// Loads a configuration and its hash key. The tables depend on this key.
fn read(file: &str) -> Result<Config, String> {
    config::load(Path::new(file)).map(|(config, _)| config).map_err(|problems| problems.to_string())
}
