//! Measures the functions of a crate: their number of lines, parameters and tuple parameters.
//!
//! Lines are counted from `fn` to the closing brace. As in clippy, `self` is counted as a
//! parameter. Closures and functions in tests are not measured.

use syn::visit::{self, Visit};
use syn::{Block, FnArg, ImplItemFn, ItemFn, Pat, Signature, TraitItemFn, Type};

use super::source::{Crate, Module};

/// The metrics of one function.
pub(crate) struct Function {
    /// The location as `file:line`, relative to the checkout.
    pub(crate) at: String,
    pub(crate) name: String,
    pub(crate) lines: usize,
    pub(crate) parameters: usize,
    pub(crate) tuples: usize,
}

/// Returns the metrics of all functions in a crate, including nested functions.
pub(crate) fn functions(whole: &Crate) -> Vec<Function> {
    whole.modules.iter().flat_map(|module| in_module(whole, module)).collect()
}

fn in_module(whole: &Crate, module: &Module) -> Vec<Function> {
    let mut reader = Reader { file: &whole.files[module.file].path, found: Vec::new() };
    module.items.iter().for_each(|item| reader.visit_item(item));
    reader.found
}

struct Reader<'a> {
    file: &'a str,
    found: Vec<Function>,
}

impl Reader<'_> {
    fn add(&mut self, signature: &Signature, body: Option<&Block>) {
        let start = signature.fn_token.span.start().line;
        let end = body.map(|body| body.brace_token.span.close().end().line);
        let is_tuple = |input: &&FnArg| matches!(input, FnArg::Typed(typed) if is_tuple(&typed.ty) || takes_apart(&typed.pat));
        self.found.push(Function {
            at: format!("{}:{start}", self.file),
            name: signature.ident.to_string(),
            lines: end.unwrap_or(start) + 1 - start,
            parameters: signature.inputs.len(),
            tuples: signature.inputs.iter().filter(is_tuple).count(),
        });
    }
}

impl<'ast> Visit<'ast> for Reader<'_> {
    fn visit_item_fn(&mut self, function: &'ast ItemFn) {
        self.add(&function.sig, Some(&function.block));
        visit::visit_item_fn(self, function);
    }

    fn visit_impl_item_fn(&mut self, function: &'ast ImplItemFn) {
        self.add(&function.sig, Some(&function.block));
        visit::visit_impl_item_fn(self, function);
    }

    fn visit_trait_item_fn(&mut self, function: &'ast TraitItemFn) {
        self.add(&function.sig, function.default.as_ref());
        visit::visit_trait_item_fn(self, function);
    }
}

fn is_tuple(kind: &Type) -> bool {
    match kind {
        Type::Tuple(tuple) => !tuple.elems.is_empty(),
        Type::Reference(reference) => is_tuple(&reference.elem),
        Type::Paren(inner) => is_tuple(&inner.elem),
        _ => false,
    }
}

fn takes_apart(pattern: &Pat) -> bool {
    match pattern {
        Pat::Tuple(_) => true,
        Pat::Reference(reference) => takes_apart(&reference.pat),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::super::source::inline;
    use super::*;

    #[test]
    fn functions_are_measured_except_in_tests() {
        let code = "
            /// Not counted.
            pub fn first(
                (a, b): (u8, u8), c: &(u8, u8), d: Option<(u8, u8)>, e: (),
            ) -> u8 {
                fn within() {}
                0
            }
            impl X {
                async fn second(&mut self, a: u8) {}
                #[cfg(test)]
                fn third() {}
            }
            trait Y { fn fourth(&self); }
            #[test]
            fn fifth() {}
            #[cfg(all(test, loom))]
            mod tests { fn sixth() {} }
        ";
        let found = functions(&inline("x", code));
        let found: Vec<_> =
            found.iter().map(|f| (f.name.as_str(), f.lines, f.parameters, f.tuples)).collect();
        let wanted = [("first", 6, 4, 2), ("within", 1, 0, 0), ("second", 1, 2, 0), ("fourth", 1, 1, 0)];
        assert_eq!(found, wanted);
    }
}
