//! An RPM package.
//!
//! Out: a version 4 package, its payload packed by gzip, which every rpm since 4.0 reads. Scripts: `xtask/packages/scripts/rpm-*`.
//! It is not signed: `rpm --import` of a key is the business of who hands it on.
//! Source: the crate `rpm`; rpm's manual on package format version 4.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::Result;
use rpm::{BuildConfig, CompressionType, Dependency, FileOptions, PackageBuilder, Scriptlet};

use crate::archive::{Entry, Kind};
use crate::{Release, contents};

/// The package's bytes.
pub(crate) fn package(release: &Release, entries: &[Entry]) -> Result<Vec<u8>> {
    let mut builder =
        PackageBuilder::new("sluicegate", &release.version, contents::LICENCE, "x86_64", contents::SUMMARY);
    builder
        .using_config(BuildConfig::v4().source_date(release.epoch).compression(CompressionType::Gzip))
        .release(RELEASE)
        .description(contents::DESCRIPTION)
        .vendor(contents::MAINTAINER)
        .build_host("localhost")
        .requires(Dependency::any("systemd"))
        .post_install_script(shell(include_str!("../scripts/rpm-post")))
        .pre_uninstall_script(shell(include_str!("../scripts/rpm-preun")))
        .post_uninstall_script(shell(include_str!("../scripts/rpm-postun")));
    let mut entries = entries.to_vec();
    entries.extend(shell_folders(&entries));
    entries.sort_by(|a, b| a.path.cmp(&b.path));
    for Entry { path, mode, kind } in entries {
        let path = format!("/{path}");
        match kind {
            Kind::Folder => builder.with_dir_entry(FileOptions::dir(path).permissions(mode))?,
            Kind::Config(bytes) => builder
                .with_file_contents(bytes, FileOptions::new(path).permissions(mode).config().noreplace())?,
            Kind::File(bytes) => {
                let options = FileOptions::new(&path).permissions(mode);
                let is_document = path.contains("/share/doc/") || path.contains("/share/man/");
                builder.with_file_contents(bytes, if is_document { options.doc() } else { options })?
            }
        };
    }
    let mut bytes = Vec::new();
    builder.build()?.write(&mut bytes)?;
    Ok(bytes)
}

/// The folders of completions, which are there only where a shell's package has brought them: without an owner rpm leaves them when the
/// package goes.
fn shell_folders(entries: &[Entry]) -> Vec<Entry> {
    let folders = entries.iter().flat_map(|entry| Path::new(&entry.path).ancestors().skip(1));
    let of_shells = folders
        .filter(|folder| SHELLS.iter().any(|shell| folder.starts_with(Path::new("usr/share").join(shell))));
    let paths: BTreeSet<&str> = of_shells.filter_map(Path::to_str).collect();
    paths.into_iter().map(|path| Entry::folder(path, 0o755)).collect()
}

fn shell(text: &str) -> Scriptlet {
    Scriptlet::new(text).prog(vec!["/bin/sh"])
}

const SHELLS: [&str; 3] = ["bash-completion", "fish", "zsh"];
/// Of packages of one version.
pub(crate) const RELEASE: &str = "1";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scene::{Scene, entries, output, release};

    #[test]
    fn rpm_reads_what_is_said_of_the_package() {
        let scene = Scene::new();
        let file = scene.file("x.rpm", &package(&release(), &entries()).unwrap());
        let asked = "%{NAME} %{VERSION} %{RELEASE} %{ARCH} %{BUILDTIME} %{PAYLOADCOMPRESSOR} %{BUILDHOST}";
        let said = output("rpm", &["--query", "--package", "--queryformat", asked, &file]);
        assert_eq!(said, "sluicegate 1.2.3 1 x86_64 1700000000 gzip localhost");
        let scripts = output("rpm", &["--query", "--package", "--scripts", &file]);
        for name in ["postinstall", "preuninstall", "postuninstall"] {
            assert!(scripts.contains(&format!("{name} scriptlet (using /bin/sh):")), "{scripts}");
        }
        assert!(output("rpm", &["--query", "--package", "--requires", &file]).contains("systemd\n"));
        output("rpm", &["--checksig", "--nosignature", &file]);
    }

    #[test]
    fn rpm_lists_the_files_with_their_modes_and_unpacks_them() {
        let scene = Scene::new();
        let file = scene.file("x.rpm", &package(&release(), &entries()).unwrap());
        let asked = "[%{FILENAMES} %{FILEMODES:perms} %{FILEUSERNAME} %{FILEMTIMES}\n]";
        let said = output("rpm", &["--query", "--package", "--queryformat", asked, &file]);
        assert_eq!(
            said,
            "/etc/sluicegate/secrets drwx------ root 1700000000\n\
             /etc/sluicegate/sluicegate.toml -rw-r--r-- root 1700000000\n\
             /usr/bin/sluicegate -rwxr-xr-x root 1700000000\n\
             /usr/share/doc/sluicegate/copyright -rw-r--r-- root 1700000000\n"
        );
        let of_kind = |option| output("rpm", &["--query", "--package", option, &file]);
        assert_eq!(of_kind("--configfiles"), "/etc/sluicegate/sluicegate.toml\n");
        let flags =
            output("rpm", &["--query", "--package", "--queryformat", "[%{FILEFLAGS:fflags},]", &file]);
        assert_eq!(flags, ",cn,,d,", "an upgrade keeps the operator's file: configuration, noreplace");
        assert_eq!(of_kind("--docfiles"), "/usr/share/doc/sluicegate/copyright\n");
        let unpack = format!("rpm2archive - < {file} | tar -xzO ./etc/sluicegate/sluicegate.toml");
        assert_eq!(output("sh", &["-c", &unpack]), "[mine]\n");
    }

    #[test]
    fn folders_of_completions_go_with_the_package() {
        let completions = ["usr/share/zsh/site-functions/_x", "usr/share/zsh/other/_x", "usr/share/fish/x"];
        let entries: Vec<Entry> = completions.map(|path| Entry::file(path, "words\n")).into();
        let scene = Scene::new();
        let file = scene.file("x.rpm", &package(&release(), &entries).unwrap());
        let asked = "[%{FILENAMES} %{FILEMODES:perms}\n]";
        let said = output("rpm", &["--query", "--package", "--queryformat", asked, &file]);
        let folders: Vec<&str> = said.lines().filter_map(|line| line.strip_suffix(" drwxr-xr-x")).collect();
        let expected =
            ["/usr/share/fish", "/usr/share/zsh", "/usr/share/zsh/other", "/usr/share/zsh/site-functions"];
        assert_eq!(folders, expected);
    }

    #[test]
    fn the_order_of_entries_does_not_matter() {
        let turned: Vec<Entry> = entries().into_iter().rev().collect();
        assert_eq!(package(&release(), &entries()).unwrap(), package(&release(), &turned).unwrap());
    }
}
