//! How much of each pool's table a change of the configuration gives to other backends, before it is rolled out:
//! `cargo run --example moved -- OLD.toml NEW.toml MACHINE`. What moves are new connections; established ones are in flow tables.

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
    // One compiler for both: slots of backends that stay keep their numbers.
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
            false => println!("{name}: all, its table has another size"),
        }
    }
    for name in before.keys().filter(|name| !after.contains_key(*name)) {
        println!("{name}: gone");
    }
    Ok(())
}

/// The pools that services name, by their names.
fn pools(compiled: &Compiled) -> BTreeMap<Arc<str>, Arc<PoolTable>> {
    let of = |service: &forwarder::Service| (Arc::clone(&service.pool.name), Arc::clone(&service.pool));
    compiled.snapshot.services().iter().map(of).collect()
}

/// The slot that each place of a pool's table gives a new flow to; none while no backend has a weight.
fn slots(pool: &PoolTable) -> Vec<u32> {
    let ranks = pool.table.iter().flat_map(|table| table.iter());
    ranks.filter_map(|rank| Some(pool.slots.get(rank as usize)?.0)).collect()
}

/// Tables depend on the hash key, so it is read too.
fn read(file: &str) -> Result<Config, String> {
    config::load(Path::new(file)).map(|(config, _)| config).map_err(|problems| problems.to_string())
}
