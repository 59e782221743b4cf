//! Builds an RPM package.
//!
//! The package uses RPM format version 4 with a gzip payload, which every rpm since 4.0 can read.
//! The scripts are in `xtask/packages/scripts/rpm-*`. The package is not signed, because
//! distributors sign packages themselves.
//!
//! References: the crate `rpm`; the rpm manual on package format version 4.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::Result;
use rpm::{BuildConfig, CompressionType, Dependency, FileOptions, PackageBuilder, Scriptlet};

use crate::archive::{Entry, Kind};
use crate::{Release, contents};

/// Returns the package as bytes.
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

/// Returns the folders that contain completions. These folders are packaged explicitly, because rpm
/// removes a folder only if a package owns it, and possibly no other package owns these folders.
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
/// The RPM release number, which is 1 for every version.
pub(crate) const RELEASE: &str = "1";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scene::{Scene, entries, output, release};

    #[test]
    fn rpm_reads_the_metadata_and_scripts() {
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
    fn rpm_lists_files_with_modes_and_unpacks_them() {
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
        assert_eq!(flags, ",cn,,d,", "the configuration must be noreplace so that an upgrade keeps it");
        assert_eq!(of_kind("--docfiles"), "/usr/share/doc/sluicegate/copyright\n");
        let unpack = format!("rpm2archive - < {file} | tar -xzO ./etc/sluicegate/sluicegate.toml");
        assert_eq!(output("sh", &["-c", &unpack]), "[mine]\n");
    }

    #[test]
    fn completion_folders_belong_to_the_package() {
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
    fn entry_order_does_not_matter() {
        let turned: Vec<Entry> = entries().into_iter().rev().collect();
        assert_eq!(package(&release(), &entries()).unwrap(), package(&release(), &turned).unwrap());
    }
}
