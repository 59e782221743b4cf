//! Writes one file with the license texts of all linked crates and libraries.
//!
//! Each text appears once, below the names of all crates that use it. The license texts of C
//! libraries come from Debian's `/usr/share/common-licenses`. `cargo xtask tidy` checks that all
//! licenses are allowed. THIRD-PARTY.md explains the requirements of the LGPL.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use crate::linked::Linked;

/// Returns all license texts, sorted by the first crate name above each text.
pub(crate) fn texts(linked: &Linked) -> Result<String> {
    let mut by_text: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let mut bare = Vec::new();
    for one in linked.crates.iter().filter(|one| one.checksum.is_some()) {
        let texts = of_folder(&one.folder)?;
        if texts.is_empty() {
            bare.push(format!("{} {}: {}", one.name, one.version, one.licence));
        }
        for text in texts {
            by_text.entry(text).or_default().push(format!("{} {}", one.name, one.version));
        }
    }
    for (name, libraries) in COMMON {
        let path = Path::new("/usr/share/common-licenses").join(name);
        let text = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        by_text.entry(text).or_default().push((*libraries).to_owned());
    }
    Ok(page(by_text, &bare))
}

fn page(by_text: BTreeMap<String, Vec<String>>, bare: &[String]) -> String {
    let mut texts: Vec<_> = by_text.into_iter().map(|(text, names)| (names, text)).collect();
    texts.sort();
    let mut page = String::from(
        "License texts of the crates and libraries in the static binary. Each text is below the names of all crates that use it.\n",
    );
    if !bare.is_empty() {
        page += &format!("Crates without a license text, with their license:\n  {}\n", bare.join("\n  "));
    }
    for (names, text) in texts {
        page += &format!("\n{}\n{}\n\n{}\n", "=".repeat(80), names.join(", "), text.trim_end());
    }
    page
}

/// Returns the texts of the license and notice files in the folder of a crate, sorted by file name.
fn of_folder(folder: &Path) -> Result<Vec<String>> {
    let entries = fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))?;
    let mut paths = entries.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
    paths.sort();
    let is_text = |path: &Path| {
        let name = path.file_name().unwrap_or_default().to_string_lossy().to_uppercase();
        path.is_file() && STARTS.iter().any(|start| name.starts_with(start))
    };
    let texts = paths.iter().filter(|path| is_text(path)).map(fs::read);
    let texts = texts.collect::<std::io::Result<Vec<_>>>()?;
    // Line endings are normalized, so identical texts are merged.
    Ok(texts.iter().map(|text| String::from_utf8_lossy(text).replace("\r\n", "\n")).collect())
}

const STARTS: [&str; 5] = ["LICENSE", "LICENCE", "COPYING", "COPYRIGHT", "NOTICE"];
/// License texts that Debian provides, with the library that uses each text.
const COMMON: &[(&str, &str)] =
    &[("LGPL-2.1", "glibc"), ("LGPL-3", "libelf"), ("GPL-3", "libelf (amended by LGPL-3)")];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::linked::Crate;
    use crate::scene::Scene;

    #[test]
    fn text_appears_once_and_crates_without_one_are_named() {
        let scene = Scene::new();
        let named = |name: &str, file: &str, text: &str| {
            fs::create_dir_all(scene.path(name)).unwrap();
            fs::write(scene.path(name).join(file), text).unwrap();
            Crate {
                name: name.into(),
                version: "1.0.0".into(),
                licence: "MIT".into(),
                checksum: Some("abc".into()),
                folder: scene.path(name),
                ..Crate::default()
            }
        };
        let crates = vec![
            named("one", "LICENSE-MIT", "Do as you like.\r\n"),
            named("three", "README.md", "No licence."),
            named("two", "license.txt", "Do as you like.\n"),
            Crate { checksum: None, folder: "/gone".into(), ..Crate::default() },
        ];
        let page = texts(&Linked { crates, libraries: Vec::new() }).unwrap();
        assert_eq!(page.matches("Do as you like.").count(), 1, "{page}");
        assert!(page.contains("\none 1.0.0, two 1.0.0\n\nDo as you like.\n"), "{page}");
        assert!(page.contains("\n  three 1.0.0: MIT\n") && !page.contains("No licence."), "{page}");
        assert!(page.contains("\nglibc\n") && page.contains("GNU LESSER GENERAL PUBLIC LICENSE"), "{page}");
    }
}
