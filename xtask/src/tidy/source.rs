//! Parses the Rust sources of the workspace.
//!
//! The result is a list of crates with their [`Module`]s. The result excludes code that is compiled
//! only for tests. Each file belongs to one crate, and the first module of a crate is its root. The
//! modules `circles`, `sizes` and `structs` evaluate the result.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use proc_macro2::TokenTree;
use syn::{Attribute, ImplItem, Item, ItemMod, Meta};

/// A library or program with its modules.
pub(crate) struct Crate {
    /// The name of the folder, relative to `crates/` or to the checkout.
    pub(crate) name: String,
    pub(crate) modules: Vec<Module>,
    pub(crate) files: Vec<File>,
}

pub(crate) struct File {
    /// The path relative to the checkout.
    pub(crate) path: String,
    /// The number of lines, without tests.
    pub(crate) lines: usize,
}

/// A module, either inline or in its own file.
pub(crate) struct Module {
    pub(crate) name: String,
    pub(crate) parent: Option<usize>,
    /// The index of the file in [`Crate::files`].
    pub(crate) file: usize,
    /// All items except submodules and tests.
    pub(crate) items: Vec<Item>,
}

/// The part of the workspace whose crates are read.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    /// The crates of Sluicegate, which are in `crates/`.
    Product,
    /// The crates that build, test and measure Sluicegate.
    Tools,
}

/// Reads the selected crates of a checkout.
///
/// # Errors
/// Returns an error if a file is missing or is not valid Rust.
pub(crate) fn read(checkout: &Path, part: Part) -> Result<Vec<Crate>> {
    let roots = match part {
        Part::Product => folder(&checkout.join("crates"))?.iter().flat_map(|path| programs(path)).collect(),
        Part::Tools => {
            let mut roots = folder(&checkout.join("benches/benches"))?;
            roots.extend(folder(&checkout.join("benches/control/benches"))?);
            // A benchmark with several files is a folder.
            roots.iter_mut().filter(|root| root.is_dir()).for_each(|root| root.push("main.rs"));
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
    let entries = fs::read_dir(path).with_context(|| format!("cannot list {}", path.display()))?;
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
        let text = fs::read_to_string(&place.path).with_context(|| format!("cannot read {path}"))?;
        let items = syn::parse_file(&text).with_context(|| format!("{path} is not valid Rust"))?.items;
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

    /// Returns the path of the module within its crate, such as `crate::announce::plan`.
    pub(crate) fn path(&self, module: usize) -> String {
        let Module { name, parent, .. } = &self.modules[module];
        parent.map_or_else(|| name.clone(), |parent| format!("{}::{name}", self.path(parent)))
    }

    /// Returns the path of the file that contains the module.
    pub(crate) fn file_of(&self, module: usize) -> &str {
        &self.files[self.modules[module].file].path
    }

    pub(crate) fn lines(&self) -> usize {
        self.files.iter().map(|file| file.lines).sum()
    }
}

/// A file to read.
struct Place {
    parent: Option<usize>,
    name: String,
    path: PathBuf,
    /// `true` if submodules are in the same folder as this file, as for `lib.rs` and `mod.rs`.
    leads: bool,
}

struct Named<'a> {
    parent: Option<usize>,
    name: &'a str,
}

/// The folders that are searched for the submodules of a file.
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

/// Removes test functions from an `impl` block.
fn without_tests(item: Item) -> Item {
    let Item::Impl(mut block) = item else { return item };
    block.items.retain(|item| !matches!(item, ImplItem::Fn(function) if for_tests(&function.attrs)));
    Item::Impl(block)
}

fn is_test(item: &Item) -> bool {
    for_tests(attributes(item))
}

/// Returns the number of lines of an item if it is compiled only for tests, or 0 otherwise.
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

/// Returns `true` if the attributes restrict the item to tests, as do `#[test]`, `#[cfg(test)]` and
/// `#[cfg(all(test, …))]`.
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

/// Returns a crate that consists of a single file, for tests.
#[cfg(test)]
pub(super) fn inline(name: &str, text: &str) -> Crate {
    let mut made = Crate { name: name.into(), modules: Vec::new(), files: Vec::new() };
    let nowhere = Path::new("");
    let at = Folders { checkout: nowhere, beside: nowhere, below: nowhere };
    let items = syn::parse_file(text).expect("Rust").items;
    let lines = text.lines().count() - items.iter().map(test_lines).sum::<usize>();
    made.files.push(File { path: format!("crates/{name}/src/lib.rs"), lines });
    made.read_items(&at, 0, Named { parent: None, name: "crate" }, items)
        .expect("an inline crate reads no other file");
    made
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_code_is_left_out_and_not_counted() {
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
