//! Writes the bill of materials, which lists all crates and libraries in the binary. Operators use
//! it to find machines that run a version with a known vulnerability.
//!
//! The format is CycloneDX 1.5 in JSON. The optional serial number is omitted, because it would be
//! different in each build.
//!
//! References: the CycloneDX 1.5 specification; the purl specification of package URLs.

use anyhow::Result;
use serde_json::{Value, json};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use crate::linked::{Crate, Library, Linked};
use crate::{Release, contents};

/// Returns the bill of materials as bytes.
pub(crate) fn bill(release: &Release, linked: &Linked) -> Result<Vec<u8>> {
    let url = format!("pkg:generic/sluicegate@{}", release.version);
    let libraries = linked.libraries.iter();
    let components: Vec<Value> =
        linked.crates.iter().map(of_crate).chain(libraries.map(of_library)).collect();
    let uses = |one: &Crate| {
        let used = linked.crates.iter().filter(|other| one.uses.contains(&other.key()));
        json!({ "ref": one_url(one), "dependsOn": used.map(one_url).collect::<Vec<_>>() })
    };
    let mut dependencies: Vec<Value> = linked.crates.iter().map(uses).collect();
    dependencies.push(json!({
        "ref": url,
        "dependsOn": components.iter().map(|component| component["bom-ref"].clone()).collect::<Vec<_>>(),
    }));
    let bill = json!({
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {
            "timestamp": OffsetDateTime::from_unix_timestamp(release.epoch.into())?.format(&Rfc3339)?,
            "component": {
                "type": "application",
                "bom-ref": url,
                "name": "sluicegate",
                "version": release.version,
                "description": contents::SUMMARY,
                "licenses": [{ "expression": contents::LICENCE }],
                "purl": url,
            },
        },
        "components": components,
        "dependencies": dependencies,
    });
    Ok(format!("{bill:#}\n").into_bytes())
}

fn one_url(one: &Crate) -> String {
    format!("pkg:cargo/{}@{}", one.name, one.version.replace('+', "%2B"))
}

fn of_crate(one: &Crate) -> Value {
    let mut component = json!({
        "type": "library",
        "bom-ref": one_url(one),
        "name": one.name,
        "version": one.version,
        "licenses": [{ "expression": one.licence }],
        "purl": one_url(one),
    });
    if let Some(checksum) = &one.checksum {
        component["hashes"] = json!([{ "alg": "SHA-256", "content": checksum }]);
    }
    component
}

fn of_library(library: &Library) -> Value {
    json!({
        "type": "library",
        "bom-ref": library.url,
        "name": library.name,
        "version": library.version,
        "licenses": [{ "expression": library.licence }],
        "purl": library.url,
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::scene::release;

    #[test]
    fn each_component_is_listed_once_and_references_resolve() {
        let one = |name: &str, uses: &[&str]| Crate {
            name: name.into(),
            version: "1.0.0+c".into(),
            licence: "MIT".into(),
            checksum: (name != "sluicegate").then(|| "abc".into()),
            uses: uses.iter().map(|&name| format!("{name} 1.0.0+c")).collect(),
            ..Crate::default()
        };
        let zlib = Library {
            name: "zlib",
            version: "1".into(),
            licence: "Zlib",
            url: "pkg:deb/debian/zlib1g-dev@1".into(),
        };
        let crates = vec![one("aya", &[]), one("sluicegate", &["aya"])];
        let linked = Linked { crates, libraries: vec![zlib] };
        let bill: Value = serde_json::from_slice(&bill(&release(), &linked).unwrap()).unwrap();
        assert_eq!((&bill["bomFormat"], &bill["specVersion"]), (&json!("CycloneDX"), &json!("1.5")));
        assert_eq!(bill["metadata"]["timestamp"], "2023-11-14T22:13:20Z");
        let components = bill["components"].as_array().unwrap();
        let known: BTreeSet<&str> =
            components.iter().map(|component| component["bom-ref"].as_str().unwrap()).collect();
        assert_eq!(components.len(), known.len());
        assert!(known.contains("pkg:cargo/aya@1.0.0%2Bc") && known.contains("pkg:deb/debian/zlib1g-dev@1"));
        assert_eq!(components[0]["hashes"][0]["content"], "abc");
        assert_eq!(components[1]["hashes"], Value::Null);
        let dependencies = bill["dependencies"].as_array().unwrap();
        assert_eq!(dependencies[1]["dependsOn"], json!(["pkg:cargo/aya@1.0.0%2Bc"]));
        let used = dependencies.iter().flat_map(|row| row["dependsOn"].as_array().unwrap());
        assert!(used.clone().count() > 3 && used.clone().all(|to| known.contains(to.as_str().unwrap())));
        assert!(
            known.len() + 1 == dependencies.len() + linked.libraries.len(),
            "one dependency list for the product and for each crate"
        );
    }
}
