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

/// Returns the shell commands below each heading, together with a file name for the heading. The
/// heading `Debian: install` becomes `debian-install`. Headings without commands are omitted.
fn sections(page: &str) -> Vec<(String, String)> {
    let mut found: Vec<(String, String)> = Vec::new();
    let mut inside = false;
    for line in page.lines() {
        match line {
            "```sh" => inside = true,
            "```" => inside = false,
            _ if inside => {
                if let Some((_, commands)) = found.last_mut() {
                    *commands += &format!("{line}\n");
                }
            }
            _ if line.starts_with("##") => found.push((file_name(line), String::new())),
            _ => {}
        }
    }
    found.retain(|(_, commands)| !commands.is_empty());
    found
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
        let page = "# A\n```sh\nlost\n```\n## One: two\n\n```sh\na\n# b\n```\nwords\n```sh\nc\n```\n## None\n```toml\nd\n```\n### `x` y\n```sh\ne\n```\n";
        let named = |name: &str, commands: &str| (name.to_owned(), commands.to_owned());
        assert_eq!(sections(page), [named("one-two", "a\n# b\nc\n"), named("x-y", "e\n")]);
    }

    #[test]
    fn every_tested_section_is_in_the_page() {
        let script = include_str!("../try-packages");
        let text = fs::read_to_string(root().join("docs/how-to/install.md")).unwrap();
        let there = sections(&text);
        let tried = script.split_whitespace().filter(|word| {
            ["debian-", "rpm-"].iter().any(|start| word.starts_with(start)) && !word.contains(['.', '"', ','])
        });
        let tried: Vec<&str> = tried.collect();
        assert!(tried.len() > 10, "{tried:?}");
        for section in tried {
            assert!(there.iter().any(|(name, _)| name == section), "{section}: {there:?}");
        }
        for (section, _) in
            there.iter().filter(|(name, _)| name.starts_with("debian-") || name.starts_with("rpm-"))
        {
            assert!(
                script.contains(section.as_str()),
                "xtask/try-packages does not run the section {section}"
            );
        }
    }
}
