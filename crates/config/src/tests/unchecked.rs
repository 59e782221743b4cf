//! Tests of the warning about pools without health checks.

use std::path::Path;

use super::{KEY, parse, printed, with_pools};

/// Returns the warnings about pools. `vips` lists the pools that VIPs use.
fn warnings(pools: &str, vips: &[&str]) -> Vec<String> {
    let vip = |(number, pool): (usize, &&str)| {
        format!(
            "[vip.v{number}]\naddresses = [\"203.0.113.{number}\"]\n\
             services = [{{ ports = [80], protocol = \"tcp\", pool = \"{pool}\" }}]\n"
        )
    };
    let vips: String = vips.iter().enumerate().map(vip).collect();
    let text = with_pools(&format!("{pools}[check.web]\ntcp = {{ port = 80 }}\n{vips}"));
    let (_, warnings) = parse(&text, Path::new("a.toml"), &|_| Ok(KEY.to_owned())).unwrap();
    let all = warnings.iter().map(printed);
    all.filter(|warning| warning.contains("health checks")).collect()
}

fn pool(name: &str, number: u8, more: &str) -> String {
    format!("[pool.{name}]\n{more}backends = [{{ name = \"{name}\", address = \"198.18.0.{number}\" }}]\n")
}

#[test]
fn pool_without_checks_is_a_warning_unless_the_list_is_empty() {
    let one = warnings(&pool("p", 1, ""), &["p"]);
    let wanted = "pool \"p\" has no health checks, so its backends get traffic even if they are down; \
                  help: add a check, such as checks = [\"NAME\"], or set checks = [] if this is intended";
    assert!(one.len() == 1 && one[0].ends_with(wanted) && one[0].contains("warning: pool.p: "), "{one:?}");
    for keys in ["checks = []\n", "checks = [\"web\"]\n"] {
        assert_eq!(warnings(&pool("p", 1, keys), &["p"]), [""; 0], "{keys}");
    }
    let unused = pool("p", 1, "checks = []\n") + &pool("q", 2, "");
    assert_eq!(warnings(&unused, &["p"]), [""; 0], "no VIP uses q");
}

#[test]
fn pools_without_checks_are_one_warning_and_inherit_the_key() {
    let two = warnings(&(pool("p", 1, "") + &pool("q", 2, "")), &["p", "q"]);
    assert!(two.len() == 1 && two[0].contains("pools \"p\", \"q\" have no health checks"), "{two:?}");
    let outer = "[pool.outer]\npools = [{ pool = \"p\" }]\n";
    assert_eq!(warnings(&(pool("p", 1, "") + outer), &["outer"]).len(), 1);
    let decided = outer.to_owned() + "checks = []\n";
    assert_eq!(warnings(&(pool("p", 1, "") + &decided), &["outer"]), [""; 0]);
    let with_fallback =
        pool("p", 1, "checks = [\"web\"]\nfallback = { pool = \"spare\" }\n") + &pool("spare", 2, "");
    let fallback = warnings(&with_fallback, &["p"]);
    assert!(fallback.len() == 1 && fallback[0].contains("pool \"spare\""), "{fallback:?}");
}
