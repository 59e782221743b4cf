//! What the packages put where.
//!
//! In: a checkout, its binary, what is linked into it. Out: entries, the same for every kind of package.
//! Manual pages and completions are those of the binary itself, which is run for them.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::archive::{Entry, Kind, gzip};
use crate::licences;
use crate::linked::Linked;

pub(crate) const SUMMARY: &str = "layer-4 load balancer in user space on AF_XDP";
pub(crate) const DESCRIPTION: &str = "Spreads TCP, UDP and other IP traffic for virtual addresses over backends, by Maglev hashing and connection tables, as one static \
     binary. Packets enter through an XDP program and leave with an outer header; backends answer clients directly.";
pub(crate) const MAINTAINER: &str = "The Sluicegate authors";
/// Of Sluicegate's own code, by its SPDX name.
pub(crate) const LICENCE: &str = "Apache-2.0 OR MIT";

/// All entries, but for folders above them.
pub(crate) fn gather(checkout: &Path, binary: &Path, linked: &Linked) -> Result<Vec<Entry>> {
    let read = |name: &str| fs::read(checkout.join(name)).with_context(|| format!("can't read {name}"));
    let mut entries = vec![
        Entry { path: "usr/bin/sluicegate".into(), mode: 0o755, kind: Kind::File(fs::read(binary)?) },
        Entry::folder("etc/sluicegate", 0o755),
        Entry::folder("etc/sluicegate/secrets", 0o700),
        Entry {
            path: "etc/sluicegate/sluicegate.toml".into(),
            mode: 0o644,
            kind: Kind::Config(read("config/start.toml")?),
        },
        Entry::folder("usr/share/sluicegate", 0o755),
        Entry::folder("usr/share/doc/sluicegate", 0o755),
        Entry::folder("usr/share/doc/sluicegate/examples", 0o755),
        Entry::file("usr/share/doc/sluicegate/copyright", copyright(checkout)?),
        Entry::file("usr/share/doc/sluicegate/licences.gz", gzip(licences::texts(linked)?.as_bytes())?),
        Entry::file("usr/share/doc/sluicegate/changelog.gz", gzip(&read("CHANGELOG.md")?)?),
    ];
    for (from, to) in COPIED {
        entries.push(Entry::file(*to, read(from)?));
    }
    entries.extend(manual(binary)?);
    for (shell, to) in COMPLETIONS {
        entries.push(Entry::file(to, output(Command::new(binary).args(["completions", shell]))?));
    }
    Ok(entries)
}

/// What the binary's own code may be used under, and where the rest stands.
fn copyright(checkout: &Path) -> Result<String> {
    let mut text = String::from(
        "Sluicegate's own code: Apache-2.0 OR MIT, both texts below. The binary is static: THIRD-PARTY.md beside this file says what\n\
         else it links, under which licence, and how to link it anew; licences.gz has the texts.\n",
    );
    for name in ["LICENSE-MIT", "LICENSE-APACHE"] {
        let licence =
            fs::read_to_string(checkout.join(name)).with_context(|| format!("can't read {name}"))?;
        text += &format!("\n{licence}");
    }
    Ok(text)
}

/// The manual pages that the binary writes, packed.
fn manual(binary: &Path) -> Result<Vec<Entry>> {
    let folder = std::env::temp_dir().join(format!("sluicegate-manual-{}", std::process::id()));
    fs::create_dir(&folder).with_context(|| format!("can't make {}", folder.display()))?;
    let pages = output(Command::new(binary).arg("man").arg(&folder)).and_then(|_| packed(&folder));
    fs::remove_dir_all(&folder)?;
    pages
}

fn packed(folder: &Path) -> Result<Vec<Entry>> {
    let pages = fs::read_dir(folder)?.map(|page| {
        let page = page?;
        let name = page.file_name().into_string().ok().context("a page's name is no text")?;
        Ok(Entry::file(format!("usr/share/man/man1/{name}.gz"), gzip(&fs::read(page.path())?)?))
    });
    let pages = pages.collect::<Result<Vec<_>>>()?;
    ensure!(!pages.is_empty(), "the binary wrote no manual page");
    Ok(pages)
}

/// What a command prints.
fn output(command: &mut Command) -> Result<Vec<u8>> {
    let output = command.output().with_context(|| format!("can't run {command:?}"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{command:?}: {}: {said}", output.status);
    Ok(output.stdout)
}

/// From the checkout, as they are.
const COPIED: &[(&str, &str)] = &[
    ("config/sluicegate.service", "usr/lib/systemd/system/sluicegate.service"),
    ("config/sluicegate-decap.service", "usr/lib/systemd/system/sluicegate-decap.service"),
    ("config/sluicegate.sysusers", "usr/lib/sysusers.d/sluicegate.conf"),
    ("config/alerts.yml", "usr/share/sluicegate/alerts.yml"),
    ("config/alerts-probe.yml", "usr/share/sluicegate/alerts-probe.yml"),
    ("config/grafana-dashboard.json", "usr/share/sluicegate/grafana-dashboard.json"),
    ("config/sluicegate.toml", "usr/share/doc/sluicegate/examples/sluicegate.toml"),
    ("config/simulate.toml", "usr/share/doc/sluicegate/examples/simulate.toml"),
    ("THIRD-PARTY.md", "usr/share/doc/sluicegate/THIRD-PARTY.md"),
];
/// By their shells; each looks there on Debian and on Fedora.
const COMPLETIONS: [(&str, &str); 4] = [
    ("bash", "usr/share/bash-completion/completions/sluicegate"),
    ("zsh", "usr/share/zsh/site-functions/_sluicegate"),
    ("zsh", "usr/share/zsh/vendor-completions/_sluicegate"),
    ("fish", "usr/share/fish/vendor_completions.d/sluicegate.fish"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_copied_is_there_and_no_two_go_to_one_place() {
        let checkout = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap();
        let targets: std::collections::BTreeSet<_> = COPIED.iter().map(|(_, to)| to).collect();
        assert_eq!(targets.len(), COPIED.len());
        assert!(COPIED.iter().all(|(from, _)| checkout.join(from).is_file()), "{COPIED:?}");
        let text = copyright(checkout).unwrap();
        assert!(text.contains("MIT License") && text.contains("Apache License"), "{text}");
    }
}
