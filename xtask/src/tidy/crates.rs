//! Whether each crate that is built may be used: its licence, and where it comes from.
//!
//! In: the lists of `deny.toml`, which `cargo deny` reads too, and what `cargo metadata` says of each crate. Out: a finding for
//! each that the lists do not allow. Not here: advisories, which need the network (`lanes`, under `--long`).

use anyhow::{Context, Result};
use serde_json::Value;
use spdx::{Expression, ParseMode};
use toml::Table;

/// `packages` are those of `cargo metadata`.
pub(super) fn check(deny: &str, packages: &[Value]) -> Result<Vec<String>> {
    let deny: Table = deny.parse().with_context(|| format!("{DENY} is no TOML"))?;
    let (licences, registries) =
        (list(&deny, "licenses", "allow")?, list(&deny, "sources", "allow-registry")?);
    let findings = packages.iter().flat_map(|package| {
        let (name, licence) = (package["name"].as_str().unwrap_or_default(), package["license"].as_str());
        let refused = licence.is_none_or(|licence| !is_allowed(licence, &licences)).then(|| {
            format!("{DENY}: no licence of {name} is allowed: {}", licence.unwrap_or("it names none"))
        });
        // What stands in the checkout has no source.
        let source = package["source"].as_str().unwrap_or_default();
        let known = |registry: &&str| source.strip_prefix("registry+") == Some(registry);
        let foreign = !source.is_empty() && !registries.iter().any(known);
        refused.into_iter().chain(foreign.then(|| format!("{DENY}: {name} comes from {source}")))
    });
    Ok(findings.collect())
}

/// Libraries in C that crates bring with them stand in the notices with the version that is linked.
pub(super) fn noticed(notices: &str, packages: &[Value]) -> Vec<String> {
    let text = |package: &Value, key: &str| package[key].as_str().unwrap_or_default().to_owned();
    let bring = packages.iter().filter(|package| BRING_C.contains(&text(package, "name").as_str()));
    let names = bring.map(|package| format!("`{}` {}", text(package, "name"), text(package, "version")));
    names.filter(|name| !notices.contains(name)).map(|name| format!("{NOTICES}: names no {name}")).collect()
}

/// A list of names; that it is not there must not look like an empty one.
fn list<'a>(deny: &'a Table, section: &str, key: &str) -> Result<Vec<&'a str>> {
    let list = deny.get(section).and_then(|section| section.get(key)?.as_array());
    let list = list.with_context(|| format!("{DENY} has no list {section}.{key}"))?;
    Ok(list.iter().filter_map(|name| name.as_str()).collect())
}

/// Whether an SPDX expression can be met by these licences. Old crates write `/` for `OR`.
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

    #[test]
    fn a_crate_needs_a_licence_that_is_listed_whole() {
        for licence in ["MIT", "MIT/Apache-2.0", "GPL-3.0-only OR MIT", "(MIT OR Apache-2.0) AND ISC"] {
            assert_eq!(findings(licence.into(), Value::Null), 0, "{licence}");
        }
        for licence in
            ["GPL-3.0-only", "MIT AND Apache-2.0", "MIT-0", "ISC WITH LLVM-exception", "nonsense", ""]
        {
            assert_eq!(findings(licence.into(), Value::Null), 1, "{licence}");
        }
        assert_eq!(findings(Value::Null, Value::Null), 1, "none named");
    }

    #[test]
    fn a_crate_comes_from_a_listed_registry_or_the_checkout() {
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
    fn notices_name_the_version_of_a_library_that_is_linked() {
        let packages =
            ["libbpf-sys", "libxdp-sys", "other"].map(|name| json!({ "name": name, "version": "1.5.1" }));
        assert!(noticed("`libbpf-sys` 1.5.1, `libxdp-sys` 1.5.1", &packages).is_empty());
        assert_eq!(noticed("`libbpf-sys` 1.5.0, `libxdp-sys` 1.5.1", &packages).len(), 1);
        assert_eq!(noticed("", &packages).len(), 2);
    }

    #[test]
    fn a_file_without_its_lists_is_no_permission() {
        for lists in ["", "[licenses]\nallow = ['MIT']", "[licenses\n"] {
            assert!(check(lists, &[]).is_err(), "{lists}");
        }
    }
}
