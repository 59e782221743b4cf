//! The guard on a reload: `cluster.max_moved`.
//!
//! In: the configuration in force, and the one that is to replace it. Out: a refusal that names each table that would move too much.
//! The limit is that of the configuration in force: none that is refused could have raised it.
//! Not here: how much moves (`controller::moved_tables`, which `config diff` prints from), `--force`.
//! Tables are compared as the files have them, every backend serving: what fails at the moment changes no answer.

use compile::{CompileError, Compiler};
use config::Config;

use crate::controller::{MovedTable, moved_tables};
use crate::refused::Refused;

/// Refuses what moves a larger share of any pool's table than the configuration in force lets.
///
/// # Errors
/// [`Refused::Conflict`]: so many slots move, or the new configuration can't be compiled.
/// # Cost
/// Where there is a limit, both are compiled: not for the control loop.
pub fn guard(in_force: &Config, next: &Config, machine: &str) -> Result<(), Refused> {
    let Some(most) = in_force.cluster().max_moved else { return Ok(()) };
    let mut beyond = moved(in_force, next, machine).map_err(Refused::conflict)?;
    beyond.retain(|table| table.percent() > f64::from(most));
    if beyond.is_empty() {
        return Ok(());
    }
    beyond.sort_by(|one, other| other.percent().total_cmp(&one.percent()));
    let named = beyond.iter().take(NAMED);
    let named: Vec<_> =
        named.map(|table| format!("{:.2} % of pool {}", table.percent(), table.pool)).collect();
    let more = match beyond.len().saturating_sub(NAMED) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    Err(Refused::Conflict(format!(
        "{}{more} would get another backend, and cluster.max_moved lets {most} % of a table: --force takes it all the same",
        named.join(", ")
    )))
}

fn moved(in_force: &Config, next: &Config, machine: &str) -> Result<Vec<MovedTable>, CompileError> {
    // One compiler: tables of the same content are built once.
    let mut compiler = Compiler::default();
    let (from, to) = (compiler.compile_file(in_force, machine)?, compiler.compile_file(next, machine)?);
    Ok(moved_tables(&from.index, &to.index))
}

/// Tables that a refusal names.
const NAMED: usize = 10;

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    /// A configuration with a pool of each of these numbers of backends, and a limit.
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
        // The new file's own limit counts for the reload after it.
        let next = config("max_moved = \"0%\"\n", after);
        guard(&config(limit, before), &next, "lb1").err().map(|refused| refused.to_string())
    }

    #[test]
    fn the_table_that_moves_most_decides_and_each_beyond_the_limit_is_named() {
        let limit = "max_moved = \"20%\"\n";
        // Of ten one goes: a tenth moves, and little else.
        assert_eq!(refused(limit, &[10, 10], &[9, 10]), None);
        // Of two one goes: half of its table moves, a twentieth of all slots together would not.
        let said =
            refused(limit, &[2, 10, 10, 10, 10, 10, 10, 10, 10, 10], &[1, 10, 10, 10, 10, 10, 10, 10, 10, 9]);
        let said = said.unwrap();
        assert!(said.contains("% of pool p0 would get another backend") && !said.contains("p9"), "{said}");
        assert!(said.contains("lets 20 %"), "{said}");
        let said = refused(limit, &[3, 4], &[1, 2]).unwrap();
        let first: f64 = said.split(' ').next().unwrap().parse().unwrap();
        assert!(
            said.contains("% of pool p0, ") && said.contains("% of pool p1 would") && first > 60.0,
            "{said}"
        );
    }

    #[test]
    fn a_table_that_comes_or_goes_moves_nothing_and_no_limit_lets_everything_move() {
        assert_eq!(refused("max_moved = \"0%\"\n", &[2], &[2, 5]), None);
        assert_eq!(refused("max_moved = \"0%\"\n", &[2, 5], &[2]), None);
        assert!(refused("max_moved = \"0%\"\n", &[20], &[19]).is_some());
        assert_eq!(refused("", &[2], &[1]), None);
        assert_eq!(refused("max_moved = \"100%\"\n", &[2], &[1]), None);
    }
}
