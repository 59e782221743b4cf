//! Checks the license and the source of every third-party crate that is built.
//!
//! The file `deny.toml`, which `cargo deny` reads too, lists the allowed licenses and sources.
//! Security advisories are not checked here, because they need the network; a long run of the lanes
//! checks them.

use anyhow::{Context, Result};
use serde_json::Value;
use spdx::{Expression, ParseMode};
use toml::Table;

/// Checks the given packages, which have the format of `cargo metadata`.
pub(super) fn check(deny: &str, packages: &[Value]) -> Result<Vec<String>> {
    let deny: Table = deny.parse().with_context(|| format!("{DENY} is not valid TOML"))?;
    let (licences, registries) =
        (list(&deny, "licenses", "allow")?, list(&deny, "sources", "allow-registry")?);
    let findings = packages.iter().flat_map(|package| {
        let (name, licence) = (package["name"].as_str().unwrap_or_default(), package["license"].as_str());
        let refused = licence.is_none_or(|licence| !is_allowed(licence, &licences)).then(|| {
            format!(
                "{DENY}: license of {name} is not allowed ({})",
                licence.unwrap_or("the crate names none")
            )
        });
        // Packages in the checkout have no `source` field, and are always allowed.
        let source = package["source"].as_str().unwrap_or_default();
        let known = |registry: &&str| source.strip_prefix("registry+") == Some(registry);
        let foreign = !source.is_empty() && !registries.iter().any(known);
        refused
            .into_iter()
            .chain(foreign.then(|| format!("{DENY}: source of {name} is not allowed ({source})")))
    });
    Ok(findings.collect())
}

/// Checks that the notices file names each C library that a crate contains, with its linked
/// version.
pub(super) fn noticed(notices: &str, packages: &[Value]) -> Vec<String> {
    let text = |package: &Value, key: &str| package[key].as_str().unwrap_or_default().to_owned();
    let bring = packages.iter().filter(|package| BRING_C.contains(&text(package, "name").as_str()));
    let names = bring.map(|package| format!("`{}` {}", text(package, "name"), text(package, "version")));
    names.filter(|name| !notices.contains(name)).map(|name| format!("{NOTICES}: {name} is missing")).collect()
}

/// Returns a list of names in `deny.toml`. A missing list is an error, because it must not be
/// treated as an empty list.
fn list<'a>(deny: &'a Table, section: &str, key: &str) -> Result<Vec<&'a str>> {
    let list = deny.get(section).and_then(|section| section.get(key)?.as_array());
    let list = list.with_context(|| format!("{DENY} has no list {section}.{key}"))?;
    Ok(list.iter().filter_map(|name| name.as_str()).collect())
}

/// Returns `true` if the allowed licenses satisfy an SPDX expression. Old crates write `/` instead
/// of `OR`.
fn is_allowed(licence: &str, allowed: &[&str]) -> bool {
    let expression = Expression::parse_mode(licence, ParseMode::LAX);
    expression.is_ok_and(|any| any.evaluate(|one| allowed.contains(&one.to_string().as_str())))
}

pub(super) const DENY: &str = "deny.toml";
pub(super) const NOTICES: &str = "THIRD-PARTY.md";
const BRING_C: [&str; 2] = ["libbpf-sys", "libxdp-sys"];

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const LISTS: &str =
        "[licenses]\nallow = ['MIT', 'ISC']\n[sources]\nallow-registry = ['https://crates.example/index']";

    fn findings(licence: Value, source: Value) -> usize {
        check(LISTS, &[json!({ "name": "one", "license": licence, "source": source })]).unwrap().len()
    }

    // Promise: licenses
    #[test]
    fn license_of_a_crate_must_be_listed_completely() {
        for licence in ["MIT", "MIT/Apache-2.0", "GPL-3.0-only OR MIT", "(MIT OR Apache-2.0) AND ISC"] {
            assert_eq!(findings(licence.into(), Value::Null), 0, "{licence}");
        }
        for licence in
            ["GPL-3.0-only", "MIT AND Apache-2.0", "MIT-0", "ISC WITH LLVM-exception", "nonsense", ""]
        {
            assert_eq!(findings(licence.into(), Value::Null), 1, "{licence}");
        }
        assert_eq!(findings(Value::Null, Value::Null), 1, "the crate has no license field");
    }

    // Promise: licenses
    #[test]
    fn source_is_a_listed_registry_or_the_checkout() {
        assert_eq!(findings("MIT".into(), "registry+https://crates.example/index".into()), 0);
        for source in [
            "registry+https://other.example/index",
            "git+https://crates.example/index",
            "https://crates.example/index",
        ] {
            assert_eq!(findings("MIT".into(), source.into()), 1, "{source}");
        }
    }

    #[test]
    fn notices_name_the_linked_version_of_a_library() {
        let packages =
            ["libbpf-sys", "libxdp-sys", "other"].map(|name| json!({ "name": name, "version": "1.5.1" }));
        assert!(noticed("`libbpf-sys` 1.5.1, `libxdp-sys` 1.5.1", &packages).is_empty());
        assert_eq!(noticed("`libbpf-sys` 1.5.0, `libxdp-sys` 1.5.1", &packages).len(), 1);
        assert_eq!(noticed("", &packages).len(), 2);
    }

    #[test]
    fn file_without_its_lists_permits_nothing() {
        for lists in ["", "[licenses]\nallow = ['MIT']", "[licenses\n"] {
            assert!(check(lists, &[]).is_err(), "{lists}");
        }
    }
}
