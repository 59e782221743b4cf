//! Rejects a reload that changes the hash key, or that moves too many table slots according to
//! `cluster.max_moved`.
//!
//! The limit is taken from the current configuration, so a new configuration cannot raise its own
//! limit. Tables are compared as if all backends were in service, so current failures do not affect
//! the result. `controller::moved_tables` counts the moved slots. A reload with `--force` skips
//! this check.

use compile::{CompileError, Compiler};
use config::Config;

use crate::controller::{MovedTable, moved_tables};
use crate::refused::Refused;

/// Rejects the configuration `next` if its hash key differs, or if a larger share of a table's
/// slots would move than `in_force` allows.
///
/// # Errors
/// Returns [`Refused::Conflict`] if the hash key changes, if too many slots would move, or if
/// `next` cannot be compiled.
/// # Cost
/// If the hash key changes or a limit is configured, both configurations are compiled. Do not call
/// this function on the control loop.
pub fn guard(in_force: &Config, next: &Config, machine: &str) -> Result<(), Refused> {
    if in_force.cluster().hash_key != next.cluster().hash_key {
        let tables = moved(in_force, next, machine).map_err(Refused::conflict)?;
        return Err(Refused::Conflict(new_key(tables)));
    }
    let Some(most) = in_force.cluster().max_moved else { return Ok(()) };
    let mut beyond = moved(in_force, next, machine).map_err(Refused::conflict)?;
    beyond.retain(|table| table.percent() > f64::from(most));
    if beyond.is_empty() {
        return Ok(());
    }
    Err(Refused::Conflict(format!(
        "{} would move to another backend, but cluster.max_moved allows {most} % per table; use --force to reload anyway",
        largest(beyond)
    )))
}

/// Describes what a new hash key breaks. The key is part of the hash by which a flow is found in
/// the connection table, so each flow is treated as a new one.
fn new_key(tables: Vec<MovedTable>) -> String {
    let broken = match tables.is_empty() {
        true => "existing flows are no longer found in the connection tables".to_owned(),
        false => format!(
            "existing flows are no longer found in the connection tables, so flows break if their entry moves: {}",
            largest(tables)
        ),
    };
    format!(
        "the key in cluster.hash_key_file has changed; {broken}; until all machines of the cluster have the new key, \
         they choose different backends; use --force to reload anyway"
    )
}

/// Lists the tables with the largest share of moved slots.
fn largest(mut beyond: Vec<MovedTable>) -> String {
    beyond.sort_by(|one, other| other.percent().total_cmp(&one.percent()));
    let named = beyond.iter().take(NAMED);
    let named: Vec<_> =
        named.map(|table| format!("{:.2} % of pool {}", table.percent(), table.pool)).collect();
    let more = match beyond.len().saturating_sub(NAMED) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    format!("{}{more}", named.join(", "))
}

fn moved(in_force: &Config, next: &Config, machine: &str) -> Result<Vec<MovedTable>, CompileError> {
    // Both configurations share a compiler, so identical tables are built only once.
    let mut compiler = Compiler::default();
    let (from, to) = (compiler.compile_file(in_force, machine)?, compiler.compile_file(next, machine)?);
    Ok(moved_tables(&from.index, &to.index))
}

/// The maximum number of tables that the error message names.
const NAMED: usize = 10;

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    /// Creates a configuration with the setting `limit`. Each entry of `pools` adds a pool with
    /// that number of backends.
    fn config(limit: &str, pools: &[usize]) -> Config {
        let mut text = format!(
            "[cluster]\nname = \"c\"\nhash_key_file = \"k\"\ntable_size = 1009\n{limit}[machine.lb1]\n\
             addresses = [\"192.0.2.1\"]\ninterfaces = [\"eth0\"]\n"
        );
        for (pool, backends) in pools.iter().enumerate() {
            let rows = (1..=*backends)
                .map(|n| format!("{{ name = \"b{pool}-{n}\", address = \"198.18.{pool}.{n}\" }}"));
            let rows = rows.collect::<Vec<_>>().join(", ");
            text += &format!(
                "[pool.p{pool}]\nbackends = [{rows}]\n[vip.v{pool}]\naddresses = [\"203.0.113.{pool}\"]\n\
                 services = [{{ ports = [80], protocol = \"tcp\", pool = \"p{pool}\" }}]\n"
            );
        }
        let secret = |_: &_| Ok("00112233445566778899aabbccddeeff".to_owned());
        config::parse(&text, Path::new("a.toml"), &secret).unwrap().0
    }

    fn refused(limit: &str, before: &[usize], after: &[usize]) -> Option<String> {
        // The new configuration has a limit of 0 %, which would reject the change if it applied to
        // the reload itself.
        let next = config("max_moved = \"0%\"\n", after);
        guard(&config(limit, before), &next, "lb1").err().map(|refused| refused.to_string())
    }

    #[test]
    fn guard_lists_each_table_above_the_limit() {
        let limit = "max_moved = \"20%\"\n";
        // Pool `p1` loses one of its ten backends, so about a tenth of its table slots move.
        assert_eq!(refused(limit, &[10, 10], &[9, 10]), None);
        // Pool `p0` loses one of its two backends, so half of its table slots move. The moved slots
        // are only a twentieth of all table slots.
        let said =
            refused(limit, &[2, 10, 10, 10, 10, 10, 10, 10, 10, 10], &[1, 10, 10, 10, 10, 10, 10, 10, 10, 9]);
        let said = said.unwrap();
        assert!(
            said.contains("% of pool p0 would move to another backend") && !said.contains("p9"),
            "{said}"
        );
        assert!(said.contains("allows 20 %"), "{said}");
        let said = refused(limit, &[3, 4], &[1, 2]).unwrap();
        let first: f64 = said.split(' ').next().unwrap().parse().unwrap();
        assert!(
            said.contains("% of pool p0, ") && said.contains("% of pool p1 would") && first > 60.0,
            "{said}"
        );
    }

    #[test]
    fn new_hash_key_is_rejected_with_what_it_breaks() {
        let keyed = |digit: &str| {
            let text = "[cluster]\nname = \"c\"\nhash_key_file = \"k\"\ntable_size = 1009\n[machine.lb1]\n\
                 addresses = [\"192.0.2.1\"]\ninterfaces = [\"eth0\"]\n[pool.p]\nbackends = [\
                 { name = \"a\", address = \"198.18.0.1\" }, { name = \"b\", address = \"198.18.0.2\" }]\n\
                 [vip.v]\naddresses = [\"203.0.113.1\"]\n\
                 services = [{ ports = [80], protocol = \"tcp\", pool = \"p\" }]\n";
            let secret = |_: &_| Ok(digit.repeat(32));
            config::parse(text, Path::new("a.toml"), &secret).unwrap().0
        };
        assert!(guard(&keyed("1"), &keyed("1"), "lb1").is_ok());
        let said = guard(&keyed("1"), &keyed("2"), "lb1").unwrap_err().to_string();
        let words = "the key in cluster.hash_key_file has changed; existing flows are no longer found";
        assert!(said.starts_with(words) && said.contains(" % of pool p;"), "{said}");
        assert!(said.ends_with("use --force to reload anyway") && !said.contains("11111111"), "{said}");
    }

    #[test]
    fn added_and_removed_tables_and_no_limit_are_accepted() {
        assert_eq!(refused("max_moved = \"0%\"\n", &[2], &[2, 5]), None);
        assert_eq!(refused("max_moved = \"0%\"\n", &[2, 5], &[2]), None);
        assert!(refused("max_moved = \"0%\"\n", &[20], &[19]).is_some());
        assert_eq!(refused("", &[2], &[1]), None);
        assert_eq!(refused("max_moved = \"100%\"\n", &[2], &[1]), None);
    }
}
