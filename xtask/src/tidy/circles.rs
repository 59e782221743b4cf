//! Finds dependency cycles between the modules of a crate.
//!
//! A module uses another module if its code names an item that the other module defines. Imports
//! and re-exports are resolved to the module that defines the item. The declaration `mod child;`
//! and a re-export are not treated as uses. For modules in other folders, a folder counts as one
//! module. For modules in the same folder, each file counts as a separate module. A parent module
//! and its child may use each other, because the child is a part of the parent.

use std::collections::{BTreeMap, BTreeSet};

use proc_macro2::{TokenStream, TokenTree};
use syn::visit::{self, Visit};
use syn::{Attribute, Item, ItemUse, Macro, UseTree, Visibility};

use super::source::Crate;

/// The names in a crate, which can be resolved to their definitions.
pub(crate) struct Names {
    scopes: Vec<Scope>,
}

/// The declarations and imports of a module, and the paths that it uses.
struct Scope {
    parent: Option<usize>,
    children: BTreeMap<String, usize>,
    defined: BTreeSet<String>,
    imports: Vec<Import>,
    used: BTreeSet<Vec<String>>,
}

struct Import {
    path: Vec<String>,
    /// The local name of the import, or `None` for a glob import.
    name: Option<String>,
    /// `true` if the import is a re-export.
    opens: bool,
}

/// The definition to which a name resolves.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Found {
    Module(usize),
    /// An item that this module defines.
    Item(usize),
}

impl Names {
    pub(crate) fn read(whole: &Crate) -> Self {
        let mut scopes: Vec<Scope> = whole
            .modules
            .iter()
            .map(|module| {
                let mut reader = Reader::default();
                module.items.iter().for_each(|item| reader.visit_item(item));
                Scope {
                    parent: module.parent,
                    children: BTreeMap::new(),
                    defined: module.items.iter().filter_map(defined).collect(),
                    imports: reader.imports,
                    used: reader.used,
                }
            })
            .collect();
        for (number, module) in whole.modules.iter().enumerate() {
            if let Some(parent) = module.parent {
                scopes[parent].children.insert(module.name.clone(), number);
            }
        }
        Self { scopes }
    }

    /// Returns the module that defines the item at `path`, as seen from `module`. Returns `None` if
    /// another crate defines it.
    pub(crate) fn definition(&self, module: usize, path: &[String]) -> Option<usize> {
        match self.resolve(module, path, MAX_STEPS)? {
            Found::Item(at) => Some(at),
            Found::Module(_) => None,
        }
    }

    fn resolve(&self, from: usize, path: &[String], steps: usize) -> Option<Found> {
        let mut at = from;
        let mut rest = path;
        while let Some((first, others)) = rest.split_first() {
            match first.as_str() {
                "crate" => at = 0,
                "super" => at = self.scopes[at].parent?,
                "self" => {}
                name => match self.look_up(at, name, steps.checked_sub(1)?)? {
                    Found::Module(module) => at = module,
                    item => return Some(item),
                },
            }
            rest = others;
        }
        Some(Found::Module(at))
    }

    fn look_up(&self, module: usize, name: &str, steps: usize) -> Option<Found> {
        let scope = &self.scopes[module];
        if let Some(&child) = scope.children.get(name) {
            return Some(Found::Module(child));
        }
        if scope.defined.contains(name) {
            return Some(Found::Item(module));
        }
        // An import with the same name as a crate, such as `use packet::packet`, would resolve to
        // itself.
        let mut named = scope.imports.iter().filter(|import| import.name.as_deref() == Some(name));
        if let Some(import) = named.find(|import| import.path.first().is_none_or(|first| first != name)) {
            return self.resolve(module, &import.path, steps.checked_sub(1)?);
        }
        let mut all = scope.imports.iter().filter(|import| import.name.is_none());
        all.find_map(|import| match self.resolve(module, &import.path, steps.checked_sub(1)?)? {
            Found::Module(other) if other != module => self.look_up(other, name, steps - 1),
            _ => None,
        })
    }

    /// Returns the paths in the code of a module that lead to another crate, either by the crate's
    /// name or through an import.
    pub(crate) fn of_crate(&self, module: usize, other: &str) -> Vec<&Vec<String>> {
        let Scope { imports, used, .. } = &self.scopes[module];
        let foreign = |path: &[String]| path.first().is_some_and(|first| first == other);
        let known: BTreeSet<Option<&String>> = imports
            .iter()
            .filter(|import| foreign(&import.path))
            .map(|import| import.name.as_ref())
            .collect();
        let paths = used.iter().chain(imports.iter().map(|import| &import.path));
        paths.filter(|path| foreign(path) || known.contains(&None) || known.contains(&path.first())).collect()
    }

    /// Returns which modules use which sibling modules, each with one used path as an example. If a
    /// submodule uses another module, its ancestor is recorded as the user. The result does not
    /// include uses of items in the parent module.
    fn edges(&self) -> Edges {
        let mut edges = Edges::new();
        for (module, scope) in self.scopes.iter().enumerate() {
            let imported = scope.imports.iter().filter(|import| !import.opens).map(|import| &import.path);
            for path in scope.used.iter().chain(imported) {
                let siblings = self.definition(module, path).and_then(|target| self.siblings(module, target));
                if let Some([from, to]) = siblings {
                    edges
                        .entry(from)
                        .or_default()
                        .entry(to)
                        .or_insert_with(|| Use { module, path: path.join("::") });
                }
            }
        }
        edges
    }

    /// Returns one ancestor for each of two modules: the ancestor that is a direct child of the
    /// closest common ancestor of both modules. Returns `None` if one module is an ancestor of the
    /// other.
    fn siblings(&self, from: usize, to: usize) -> Option<[usize; 2]> {
        let (from, to) = (self.line(from), self.line(to));
        let shared = from.iter().zip(&to).take_while(|(a, b)| a == b).count();
        Some([*from.get(shared)?, *to.get(shared)?])
    }

    /// Returns the ancestors of a module, from the root down to `module` itself.
    fn line(&self, module: usize) -> Vec<usize> {
        let mut line: Vec<usize> =
            std::iter::successors(Some(module), |&module| self.scopes[module].parent).collect();
        line.reverse();
        line
    }
}

/// For each module, the modules that it uses.
type Edges = BTreeMap<usize, BTreeMap<usize, Use>>;

/// One use of a module, as an example.
struct Use {
    /// The module whose code contains the path.
    module: usize,
    path: String,
}

/// Returns one finding for each module in a cycle. The finding names the modules in the cycle that
/// this module uses.
pub(super) fn members(whole: &Crate) -> Vec<String> {
    let edges = Names::read(whole).edges();
    let mut found = Vec::new();
    for circle in circles(&edges) {
        for &module in &circle {
            let inner = edges.get(&module).into_iter().flatten().filter(|(to, _)| circle.contains(to));
            let uses = inner.map(|(&to, Use { module, path })| {
                format!("{} ({path} in {})", whole.path(to), whole.file_of(*module))
            });
            let uses = uses.collect::<Vec<_>>().join(", ");
            found.push(format!(
                "{}:1: {} is in a cycle, uses {uses}",
                whole.file_of(module),
                whole.path(module)
            ));
        }
    }
    found
}

/// Returns all sorted sets of two or more nodes that can reach each other.
fn circles(edges: &Edges) -> Vec<Vec<usize>> {
    let reach: BTreeMap<usize, BTreeSet<usize>> =
        edges.keys().map(|&start| (start, reached(edges, start))).collect();
    let mut circles: BTreeSet<Vec<usize>> = BTreeSet::new();
    for (&node, far) in reach.iter().filter(|(node, far)| far.contains(node)) {
        let back = |other: &usize| reach.get(other).is_some_and(|far| far.contains(&node));
        circles.insert(far.iter().copied().filter(back).collect());
    }
    circles.into_iter().collect()
}

fn reached(edges: &Edges, start: usize) -> BTreeSet<usize> {
    let mut seen = BTreeSet::new();
    let mut open = vec![start];
    while let Some(node) = open.pop() {
        let next = edges.get(&node).into_iter().flat_map(BTreeMap::keys);
        open.extend(next.copied().filter(|&next| seen.insert(next)));
    }
    seen
}

fn defined(item: &Item) -> Option<String> {
    Some(match item {
        Item::Const(item) => item.ident.to_string(),
        Item::Enum(item) => item.ident.to_string(),
        Item::Fn(item) => item.sig.ident.to_string(),
        Item::Macro(item) => item.ident.as_ref()?.to_string(),
        Item::Static(item) => item.ident.to_string(),
        Item::Struct(item) => item.ident.to_string(),
        Item::Trait(item) => item.ident.to_string(),
        Item::Type(item) => item.ident.to_string(),
        Item::Union(item) => item.ident.to_string(),
        _ => return None,
    })
}

/// Collects the imports of a module, and the paths that it uses.
#[derive(Default)]
struct Reader {
    imports: Vec<Import>,
    used: BTreeSet<Vec<String>>,
}

impl Reader {
    fn import(&mut self, tree: &UseTree, mut path: Vec<String>, opens: bool) {
        let name = match tree {
            UseTree::Path(step) => {
                path.push(step.ident.to_string());
                return self.import(&step.tree, path, opens);
            }
            UseTree::Group(group) => {
                return group.items.iter().for_each(|tree| self.import(tree, path.clone(), opens));
            }
            UseTree::Name(name) if name.ident == "self" => path.last().cloned(),
            UseTree::Name(name) => {
                path.push(name.ident.to_string());
                path.last().cloned()
            }
            UseTree::Rename(rename) => {
                path.push(rename.ident.to_string());
                Some(rename.rename.to_string())
            }
            UseTree::Glob(_) => None,
        };
        self.imports.push(Import { path, name, opens });
    }

    /// Collects the paths in the arguments of a macro. The grammar of the arguments is unknown, so
    /// the tokens are scanned.
    fn scan(&mut self, tokens: TokenStream) {
        let mut path: Vec<String> = Vec::new();
        let mut colons = 0;
        for token in tokens {
            match token {
                TokenTree::Ident(word) => {
                    if colons != 2 {
                        self.used.insert(std::mem::take(&mut path));
                    }
                    path.push(word.to_string());
                    colons = 0;
                }
                TokenTree::Punct(mark) if mark.as_char() == ':' => colons += 1,
                TokenTree::Group(group) => {
                    self.scan(group.stream());
                    colons = 0;
                }
                _ => colons = 0,
            }
        }
        self.used.insert(path);
    }
}

impl<'ast> Visit<'ast> for Reader {
    fn visit_item_use(&mut self, item: &'ast ItemUse) {
        self.import(&item.tree, Vec::new(), !matches!(item.vis, Visibility::Inherited));
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        if path.leading_colon.is_none() {
            self.used.insert(path.segments.iter().map(|segment| segment.ident.to_string()).collect());
        }
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, call: &'ast Macro) {
        self.visit_path(&call.path);
        self.scan(call.tokens.clone());
    }

    fn visit_visibility(&mut self, _: &'ast Visibility) {}

    fn visit_attribute(&mut self, _: &'ast Attribute) {}
}

/// The maximum number of re-exports that are followed for one name. Only a cycle of re-exports
/// exceeds this number.
const MAX_STEPS: usize = 24;

#[cfg(test)]
mod tests {
    use super::super::source::inline;
    use super::*;

    fn circular(code: &str) -> Vec<String> {
        members(&inline("x", code)).iter().filter_map(|line| Some(line.split(' ').nth(1)?.into())).collect()
    }

    #[test]
    fn modules_that_use_each_other_form_a_cycle() {
        let pair = ["crate::a", "crate::b"];
        for (a, b) in [
            ("use crate::b::Y; pub struct X;", "use super::a::X; pub struct Y;"),
            ("pub struct X; fn f() { crate::b::y(); }", "pub fn y() { super::a::X; }"),
            ("pub struct X; fn f() { assert!(crate::b::y()); }", "use super::X; pub fn y() -> X {}"),
            ("use super::*; pub struct X(Y);", "use crate::*; pub struct Y(X);"),
            ("use super::b; pub struct X(b::Y);", "pub struct Y(super::X);"),
            ("mod c { use crate::b::Y; } pub struct X;", "mod d { fn f(x: crate::a::X) {} } pub struct Y;"),
        ] {
            let code = format!("pub use a::X; pub use self::b::Y; mod a {{ {a} }} mod b {{ {b} }}");
            assert_eq!(circular(&code), pair, "{code}");
        }
    }

    #[test]
    fn re_exports_tests_and_parents_form_no_cycle() {
        for code in [
            "mod a { pub use super::b::Y; pub struct X; } mod b { use super::a::X; pub struct Y; }",
            "mod a { pub struct X; #[cfg(test)] mod tests { use crate::b::Y; } } mod b { use crate::a::X; pub struct Y; }",
            "mod a { use crate::Root; pub struct X; } use a::X; struct Root(X);",
            "mod a { use b::Y; pub struct X; } mod b { use crate::a::X; pub struct Y; }",
            "mod a { pub struct X; fn b() { b(); } } mod b { use crate::a::X; pub fn b() {} }",
        ] {
            assert_eq!(circular(code), [""; 0], "{code}");
        }
    }

    #[test]
    fn cycle_of_three_has_three_members() {
        let code = "mod a { pub fn f() { super::b::f() } } mod b { pub fn f() { super::c::f() } }
            mod c { pub fn f() { super::a::f() } } mod d { pub fn f() { super::a::f(); super::e::f() } } mod e { pub fn f() {} }";
        assert_eq!(circular(code), ["crate::a", "crate::b", "crate::c"]);
    }
}
