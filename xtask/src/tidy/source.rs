//! The code of the workspace, read by the compiler's grammar.
//!
//! In: a checkout. Out: its crates, each a tree of [`Module`]s, without what is compiled for tests alone.
//! Not here: what is judged of it (`circles`, `sizes`, `structs`).
//! Invariant: a file belongs to one crate; the first module of a crate is its root.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use proc_macro2::TokenTree;
use syn::{Attribute, ImplItem, Item, ItemMod, Meta};

/// A crate, or a program of one: what has a root of its own.
pub(crate) struct Crate {
    /// Its folder, below `crates/` or the checkout.
    pub(crate) name: String,
    pub(crate) modules: Vec<Module>,
    pub(crate) files: Vec<File>,
}

/// A source file.
pub(crate) struct File {
    /// Below the checkout.
    pub(crate) path: String,
    /// Without those of its tests.
    pub(crate) lines: usize,
}

/// A module, in a file of its own or within another's.
pub(crate) struct Module {
    pub(crate) name: String,
    pub(crate) parent: Option<usize>,
    /// Place in [`Crate::files`].
    pub(crate) file: usize,
    /// All but modules and tests.
    pub(crate) items: Vec<Item>,
}

/// Which crates are read.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    /// Those of the product: `crates/*`.
    Product,
    /// What builds, tests and measures it.
    Tools,
}

/// Reads one part of a checkout.
///
/// # Errors
/// A file that is missing, or no Rust.
pub(crate) fn read(checkout: &Path, part: Part) -> Result<Vec<Crate>> {
    let roots = match part {
        Part::Product => folder(&checkout.join("crates"))?.iter().flat_map(|path| programs(path)).collect(),
        Part::Tools => {
            let mut roots = folder(&checkout.join("benches/benches"))?;
            roots.extend(
                ["xtask", "tests", "benches", "benches/figures"]
                    .iter()
                    .flat_map(|name| programs(&checkout.join(name))),
            );
            roots
        }
    };
    roots.iter().map(|root| Crate::read(checkout, root)).collect()
}

fn folder(path: &Path) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(path).with_context(|| format!("can't list {}", path.display()))?;
    let mut paths = entries.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
    paths.sort();
    Ok(paths)
}

fn programs(folder: &Path) -> Vec<PathBuf> {
    ["lib.rs", "main.rs"]
        .iter()
        .map(|name| folder.join("src").join(name))
        .filter(|path| path.is_file())
        .collect()
}

impl Crate {
    fn read(checkout: &Path, root: &Path) -> Result<Self> {
        let folders = root.strip_prefix(checkout)?.iter().map(|part| part.to_string_lossy());
        let name = folders.take_while(|part| part != "src").filter(|part| part != "crates").last();
        let mut made =
            Self { name: name.unwrap_or_default().into_owned(), modules: Vec::new(), files: Vec::new() };
        let place = Place { parent: None, name: "crate".into(), path: root.into(), leads: true };
        made.read_file(checkout, &place)?;
        Ok(made)
    }

    fn read_file(&mut self, checkout: &Path, place: &Place) -> Result<()> {
        let path = place.path.strip_prefix(checkout)?.to_string_lossy().into_owned();
        let text = fs::read_to_string(&place.path).with_context(|| format!("can't read {path}"))?;
        let items = syn::parse_file(&text).with_context(|| format!("{path} is no Rust"))?.items;
        let lines = text.lines().count() - items.iter().map(test_lines).sum::<usize>();
        self.files.push(File { path, lines });
        let beside = place.path.parent().unwrap_or(checkout);
        let below = if place.leads { beside.into() } else { place.path.with_extension("") };
        let within = Folders { checkout, beside, below: &below };
        self.read_items(
            &within,
            self.files.len() - 1,
            Named { parent: place.parent, name: &place.name },
            items,
        )
    }

    fn read_items(
        &mut self,
        at: &Folders<'_>,
        file: usize,
        named: Named<'_>,
        items: Vec<Item>,
    ) -> Result<()> {
        let here = self.modules.len();
        let (modules, others): (Vec<Item>, Vec<Item>) =
            items.into_iter().filter(|item| !is_test(item)).partition(|item| matches!(item, Item::Mod(_)));
        let items = others.into_iter().map(without_tests).collect();
        self.modules.push(Module { name: named.name.into(), parent: named.parent, file, items });
        for module in modules {
            let Item::Mod(module) = module else { continue };
            self.read_module(at, file, here, module)?;
        }
        Ok(())
    }

    fn read_module(&mut self, at: &Folders<'_>, file: usize, parent: usize, module: ItemMod) -> Result<()> {
        let name = module.ident.to_string();
        let below = at.below.join(&name);
        if let Some((_, items)) = module.content {
            let at = Folders { below: &below, ..*at };
            return self.read_items(&at, file, Named { parent: Some(parent), name: &name }, items);
        }
        let named = path_attribute(&module.attrs).map(|path| at.beside.join(path));
        let leading = named.unwrap_or_else(|| below.join("mod.rs"));
        let leads = leading.is_file();
        let path = if leads { leading } else { below.with_extension("rs") };
        self.read_file(at.checkout, &Place { parent: Some(parent), name, path, leads })
    }

    /// The module's path from its crate: `crate::announce::plan`.
    pub(crate) fn path(&self, module: usize) -> String {
        let Module { name, parent, .. } = &self.modules[module];
        parent.map_or_else(|| name.clone(), |parent| format!("{}::{name}", self.path(parent)))
    }

    /// The path of the file that a module stands in.
    pub(crate) fn file_of(&self, module: usize) -> &str {
        &self.files[self.modules[module].file].path
    }

    pub(crate) fn lines(&self) -> usize {
        self.files.iter().map(|file| file.lines).sum()
    }
}

/// A file that is to be read.
struct Place {
    parent: Option<usize>,
    name: String,
    path: PathBuf,
    /// Its modules stand beside it, not in a folder of its name.
    leads: bool,
}

struct Named<'a> {
    parent: Option<usize>,
    name: &'a str,
}

/// Where the modules that a file declares are looked for.
#[derive(Clone, Copy)]
struct Folders<'a> {
    checkout: &'a Path,
    beside: &'a Path,
    below: &'a Path,
}

fn path_attribute(attributes: &[Attribute]) -> Option<String> {
    let attribute = attributes.iter().find(|attribute| attribute.path().is_ident("path"))?;
    let Meta::NameValue(pair) = &attribute.meta else { return None };
    let syn::Expr::Lit(syn::ExprLit { lit: syn::Lit::Str(path), .. }) = &pair.value else { return None };
    Some(path.value())
}

/// Leaves out the tests among an implementation's functions.
fn without_tests(item: Item) -> Item {
    let Item::Impl(mut block) = item else { return item };
    block.items.retain(|item| !matches!(item, ImplItem::Fn(function) if for_tests(&function.attrs)));
    Item::Impl(block)
}

fn is_test(item: &Item) -> bool {
    for_tests(attributes(item))
}

/// Lines of an item that is compiled for tests alone.
fn test_lines(item: &Item) -> usize {
    if !is_test(item) {
        return 0;
    }
    let end = match item {
        Item::Mod(module) => module.content.as_ref().map(|(brace, _)| brace.span.close()),
        Item::Fn(function) => Some(function.block.brace_token.span.close()),
        Item::Impl(block) => Some(block.brace_token.span.close()),
        _ => None,
    };
    let Some(first) = attributes(item).first().map(|attribute| attribute.pound_token.span) else { return 0 };
    end.map_or(0, |end| end.end().line + 1 - first.start().line)
}

fn attributes(item: &Item) -> &[Attribute] {
    match item {
        Item::Const(item) => &item.attrs,
        Item::Enum(item) => &item.attrs,
        Item::Fn(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        Item::Macro(item) => &item.attrs,
        Item::Mod(item) => &item.attrs,
        Item::Static(item) => &item.attrs,
        Item::Struct(item) => &item.attrs,
        Item::Trait(item) => &item.attrs,
        Item::Type(item) => &item.attrs,
        Item::Use(item) => &item.attrs,
        _ => &[],
    }
}

/// Whether only tests are built with it: `#[test]`, `#[cfg(test)]`, `#[cfg(all(test, …))]`.
fn for_tests(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| match &attribute.meta {
        Meta::Path(path) => path.segments.last().is_some_and(|segment| segment.ident == "test"),
        Meta::List(list) if list.path.is_ident("cfg") => needs_test(list.tokens.clone()),
        _ => false,
    })
}

fn needs_test(condition: proc_macro2::TokenStream) -> bool {
    let mut all = true;
    condition.into_iter().any(|token| match token {
        TokenTree::Ident(word) => {
            all = word == "all";
            word == "test"
        }
        TokenTree::Group(group) => all && needs_test(group.stream()),
        _ => false,
    })
}

/// A crate of one file.
#[cfg(test)]
pub(super) fn inline(name: &str, text: &str) -> Crate {
    let mut made = Crate { name: name.into(), modules: Vec::new(), files: Vec::new() };
    let nowhere = Path::new("");
    let at = Folders { checkout: nowhere, beside: nowhere, below: nowhere };
    let items = syn::parse_file(text).expect("Rust").items;
    let lines = text.lines().count() - items.iter().map(test_lines).sum::<usize>();
    made.files.push(File { path: format!("crates/{name}/src/lib.rs"), lines });
    made.read_items(&at, 0, Named { parent: None, name: "crate" }, items).expect("no other file");
    made
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_tests_alone_need_is_left_out_and_not_counted() {
        let code = "mod a { mod b { struct X; } }\nfn x() {}\n\n#[cfg(test)]\nmod tests {\n}\n#[cfg(not(test))]\nfn y() {}\n#[cfg(any(test, z))]\nfn z() {}\n";
        let made = inline("x", code);
        assert_eq!(made.lines(), 7);
        let paths: Vec<String> = (0..made.modules.len()).map(|module| made.path(module)).collect();
        assert_eq!(paths, ["crate", "crate::a", "crate::a::b"]);
        assert_eq!(made.modules[0].items.len(), 3);
    }

    #[test]
    fn every_crate_of_the_product_is_read_whole() {
        let product = read(crate::cargo::root(), Part::Product).unwrap();
        for one in product {
            assert!(one.lines() > 0 && one.files.len() <= one.modules.len(), "{}", one.name);
        }
    }
}
