//! Structs that have methods, by their number of fields.
//!
//! In: a crate. Out: every struct with an implementation, of its own or of a trait, one of whose functions takes `self`.

use std::collections::{BTreeMap, BTreeSet};

use syn::{Fields, FnArg, ImplItem, Item, ItemImpl, Type};

use super::circles::Names;
use super::source::Crate;

/// A struct that has methods.
pub(crate) struct Struct {
    /// `file:line`, below the checkout.
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
            at: format!(
                "{}:{}",
                whole.files[whole.modules[module].file].path,
                item.struct_token.span.start().line
            ),
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
