//! Measures the number of fields of structs that have methods.
//!
//! A struct has methods if a function in one of its `impl` blocks takes `self`. The block may be an
//! inherent `impl` or a trait `impl`.

use std::collections::{BTreeMap, BTreeSet};

use syn::{Fields, FnArg, ImplItem, Item, ItemImpl, Type};

use super::circles::Names;
use super::source::Crate;

/// A struct with methods.
pub(crate) struct Struct {
    /// The location as `file:line`, relative to the checkout.
    pub(crate) at: String,
    pub(crate) name: String,
    pub(crate) fields: usize,
}

pub(crate) fn with_methods(whole: &Crate, names: &Names) -> Vec<Struct> {
    let mut all = BTreeMap::new();
    let mut acting = BTreeSet::new();
    for (number, module) in whole.modules.iter().enumerate() {
        for item in &module.items {
            match item {
                Item::Struct(item) => {
                    all.insert((number, item.ident.to_string()), item);
                }
                Item::Impl(block) if has_method(block) => {
                    acting.extend(
                        target(block)
                            .and_then(|path| Some((names.definition(number, &path)?, path.last()?.clone()))),
                    );
                }
                _ => {}
            }
        }
    }
    let acting = all.into_iter().filter(|(key, _)| acting.contains(key));
    acting
        .map(|((module, name), item)| Struct {
            at: format!("{}:{}", whole.file_of(module), item.struct_token.span.start().line),
            name,
            fields: match &item.fields {
                Fields::Named(fields) => fields.named.len(),
                Fields::Unnamed(fields) => fields.unnamed.len(),
                Fields::Unit => 0,
            },
        })
        .collect()
}

fn has_method(block: &ItemImpl) -> bool {
    block.items.iter().any(|item| {
        matches!(item, ImplItem::Fn(function) if matches!(function.sig.inputs.first(), Some(FnArg::Receiver(_))))
    })
}

fn target(block: &ItemImpl) -> Option<Vec<String>> {
    let Type::Path(path) = &*block.self_ty else { return None };
    Some(path.path.segments.iter().map(|segment| segment.ident.to_string()).collect())
}

#[cfg(test)]
mod tests {
    use super::super::source::inline;
    use super::*;

    #[test]
    fn struct_counts_if_any_implementation_has_a_method() {
        let code = "
            struct Plain { a: u8 }
            struct Made { a: u8 } impl Made { fn new() -> Self {} }
            struct Acts { a: u8, b: u8 } mod a { use super::Acts; impl Acts { fn act(&self) {} } }
            struct Shown(u8, u8, u8); impl Show for Shown { fn show(&self) {} }
            mod b { struct Acts; }
        ";
        let whole = inline("x", code);
        let found = with_methods(&whole, &Names::read(&whole));
        let found: Vec<_> = found.iter().map(|found| (found.name.as_str(), found.fields)).collect();
        assert_eq!(found, [("Acts", 2), ("Shown", 3)]);
    }
}
