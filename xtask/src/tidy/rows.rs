//! Finds modules that depend on API row types although they make decisions.
//!
//! An API row is a type in the crate `admin` that derives `Serialize`. Only four places may name
//! API rows: the crate `admin`, its client, the module that builds rows, and the command line.

use std::collections::BTreeSet;

use syn::{Attribute, Item};

use super::circles::Names;
use super::report::Measure;
use super::source::Crate;

pub(super) fn measure(product: &[&Crate]) -> Measure {
    let rows: BTreeSet<String> = product.iter().copied().flat_map(rows).collect();
    let mut offenders = BTreeSet::new();
    for one in product.iter().filter(|one| !THEIRS.contains(&one.name.as_str())) {
        let names = Names::read(one);
        for number in 0..one.modules.len() {
            let path = one.path(number);
            if path.starts_with("crate::admin") || BORDER.iter().any(|border| path.starts_with(border)) {
                continue;
            }
            let named = names.of_crate(number, "admin").into_iter().filter_map(|path| path.last());
            let used = named.filter(|name| rows.contains(*name));
            let used: BTreeSet<&str> = used.map(String::as_str).collect();
            if !used.is_empty() {
                let used: Vec<&str> = used.into_iter().collect();
                offenders.insert(format!("{} {}", one.file_of(number), used.join(", ")));
            }
        }
    }
    Measure {
        what: "domain modules that import API rows",
        now: offenders.len(),
        bar: 0,
        offenders: offenders.into_iter().collect(),
    }
}

fn rows(one: &Crate) -> Vec<String> {
    let modules = one.modules.iter().enumerate();
    let of_api =
        modules.filter(|(number, _)| one.name == "admin" || one.path(*number).starts_with("crate::admin"));
    of_api.flat_map(|(_, module)| &module.items).filter_map(row).collect()
}

fn row(item: &Item) -> Option<String> {
    let (name, attributes) = match item {
        Item::Struct(item) => (&item.ident, &item.attrs),
        Item::Enum(item) => (&item.ident, &item.attrs),
        _ => return None,
    };
    attributes.iter().any(serialises).then(|| name.to_string())
}

fn serialises(attribute: &Attribute) -> bool {
    attribute.path().is_ident("derive")
        && attribute.meta.require_list().is_ok_and(|list| list.tokens.to_string().contains("Serialize"))
}

/// The modules of `control-plane` that convert results of other modules to API rows.
const BORDER: [&str; 1] = ["crate::rows"];

/// The crates that may name API rows.
const THEIRS: [&str; 3] = ["admin", "admin-client", "sluicegate"];

#[cfg(test)]
mod tests {
    use super::super::source::inline;
    use super::*;

    #[test]
    fn only_the_border_module_may_name_a_row() {
        let admin =
            inline("admin", "mod view { #[derive(Clone, Serialize)] pub struct Row; } pub struct Command;");
        let domain =
            "use admin::Command; mod rows { use admin::view::Row; } mod config { use config::admin::Row; }";
        assert_eq!(measure(&[&admin, &inline("control-plane", domain)]).offenders, [""; 0]);
        let admin = inline("admin", "mod view { #[derive(Serialize)] pub enum Row {} } pub use view::Row;");
        for domain in [
            "fn f() -> admin::Row {}",
            "use admin::view as v; fn f() -> v::Row {}",
            "use admin::*; fn f(x: Row) {}",
        ] {
            let found = measure(&[&admin, &inline("health", domain)]).offenders;
            assert_eq!(found, ["crates/health/src/lib.rs Row"], "{domain}");
        }
    }
}
