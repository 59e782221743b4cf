//! Implements `packages --try`, which runs the commands in `docs/how-to/install.md` in a minimal
//! Debian root, while clients send traffic.
//!
//! To test the upgrade, the task also builds packages of a previous version. The task fails if a
//! command fails, or if the removal of a package leaves files behind. The script
//! `xtask/try-packages` runs the commands. All traces of the test are removed even if this process
//! is killed, as in the module `bare`.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use crate::bare::Folder;
use crate::cargo::{self, root};
use crate::{packages, setup};

/// Tests the packages in the folder `made`.
pub(crate) fn run(made: &Path) -> Result<()> {
    setup::require_root("trying packages")?;
    setup::ensure(
        &[setup::BED, setup::QUICK_START, setup::SERVICE, setup::BARE, setup::TRY_PACKAGES].concat(),
    )?;
    let folder = Folder::new("try-packages")?;
    let pages = folder.path().join("pages");
    for page in PAGES {
        let text = fs::read_to_string(root().join("docs").join(page))?;
        fs::create_dir_all(pages.join(page))?;
        for (section, commands) in sections(&text) {
            fs::write(pages.join(page).join(section), commands)?;
        }
    }
    let [work, before] = ["work", "before"].map(|name| folder.path().join(name));
    fs::create_dir(&work)?;
    packages::pack_before(made, &before)?;
    cargo::run(
        Command::new("setpriv")
            .args(["--pdeathsig", "KILL", "unshare", "--mount", "--pid", "--fork", "--kill-child"])
            .arg(root().join("xtask/try-packages"))
            .args([&*work, made, &*before, &*pages, &*root().join("tests/net/systemctl.sh")]),
    )
    .context("the commands of docs/how-to/install.md failed with these packages")
}

/// Returns the shell commands below each heading of a page, together with a file name for the
/// heading. For example, the heading `Debian: install` becomes the file name `debian-install`.
fn sections(page: &str) -> Vec<(String, String)> {
    let found = testbed::sections(page).into_iter();
    found.map(|section| (file_name(&section.heading), section.commands)).collect()
}

fn file_name(heading: &str) -> String {
    let words = heading.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty());
    words.collect::<Vec<_>>().join("-").to_lowercase()
}

const PAGES: [&str; 2] = ["how-to/install.md", "tutorial/first-traffic.md"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_named_by_their_heading() {
        let named = |name: &str, commands: &str| (name.to_owned(), commands.to_owned());
        let page = "## One: two\n```sh\na\n```\n### `x` y\n```sh\ne\n```\n";
        assert_eq!(sections(page), [named("one-two", "a\n"), named("x-y", "e\n")]);
    }

    #[test]
    fn script_runs_every_section_of_the_page() {
        let script = include_str!("../try-packages");
        let text = fs::read_to_string(root().join("docs/how-to/install.md")).unwrap();
        let there = sections(&text);
        for (section, _) in &there {
            // The script has no container engine. For sections with container commands, the script
            // runs only the program of the image, with the options in the section.
            assert!(
                script.contains(section.as_str()),
                "xtask/try-packages does not run the section {section}"
            );
        }
        let named = script.split_whitespace().filter(|word| {
            ["debian-", "rpm-"].iter().any(|start| word.starts_with(start)) && !word.contains(['.', '"', ','])
        });
        let named: Vec<&str> = named.collect();
        assert!(named.len() > 10, "{named:?}");
        for section in named {
            assert!(there.iter().any(|(name, _)| name == section), "{section}: {there:?}");
        }
    }
}
