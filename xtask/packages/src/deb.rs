//! Builds a Debian package.
//!
//! The package is an `ar` archive of `debian-binary`, `control.tar.gz` and `data.tar.gz`. The
//! maintainer scripts are in `xtask/packages/scripts/deb-*`.
//!
//! References: deb(5), deb-control(5), deb-conffiles(5); Debian Policy 4.6, chapters 6 and 10.7.

use std::fmt::Write as _;

use anyhow::Result;
use ar::{Builder, Header};
use md5::{Digest, Md5};

use crate::archive::{Entry, Kind, gzip, tar};
use crate::{Release, contents, hex};

/// Returns the package as bytes.
pub(crate) fn package(release: &Release, entries: &[Entry]) -> Result<Vec<u8>> {
    let mut entries = entries.to_vec();
    entries.sort_by(|a, b| a.path.cmp(&b.path));
    let script = |name: &str, text: &str| Entry { mode: 0o755, ..Entry::file(name, text) };
    let control = [
        Entry::file("control", control(release, &entries)),
        Entry::file("conffiles", conffiles(&entries)),
        Entry::file("md5sums", md5sums(&entries)),
        script("postinst", include_str!("../scripts/deb-postinst")),
        script("prerm", include_str!("../scripts/deb-prerm")),
        script("postrm", include_str!("../scripts/deb-postrm")),
    ];
    let mut archive = Builder::new(Vec::new());
    for (name, bytes) in [
        ("debian-binary", b"2.0\n".to_vec()),
        ("control.tar.gz", gzip(&tar(&control, "./", release.epoch)?)?),
        ("data.tar.gz", gzip(&tar(&entries, "./", release.epoch)?)?),
    ] {
        let mut header = Header::new(name.into(), bytes.len() as u64);
        header.set_mode(0o100_644);
        header.set_mtime(release.epoch.into());
        archive.append(&header, bytes.as_slice())?;
    }
    Ok(archive.into_inner()?)
}

fn control(release: &Release, entries: &[Entry]) -> String {
    let size_kib: usize =
        entries.iter().map(|entry| entry.bytes().map_or(1, <[u8]>::len).div_ceil(1024)).sum();
    let description: String = contents::DESCRIPTION.lines().map(|line| format!(" {line}\n")).collect();
    format!(
        "Package: sluicegate\n\
         Version: {}\n\
         Architecture: amd64\n\
         Maintainer: {}\n\
         Installed-Size: {size_kib}\n\
         Depends: systemd | systemd-standalone-sysusers | systemd-sysusers\n\
         Section: net\n\
         Priority: optional\n\
         Description: {}\n{description}",
        release.version,
        contents::MAINTAINER,
        contents::SUMMARY,
    )
}

fn conffiles(entries: &[Entry]) -> String {
    let of_the_operator = |entry: &&Entry| matches!(entry.kind, Kind::Config(_));
    entries.iter().filter(of_the_operator).map(|entry| format!("/{}\n", entry.path)).collect()
}

/// Returns the file with the checksums that `dpkg --verify` checks. Configuration files have no
/// checksum.
fn md5sums(entries: &[Entry]) -> String {
    let mut sums = String::new();
    for Entry { path, kind, .. } in entries {
        if let Kind::File(bytes) = kind {
            let _ = writeln!(sums, "{}  {path}", hex(&Md5::digest(bytes)));
        }
    }
    sums
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;
    use crate::scene::{Scene, entries, output, release};

    #[test]
    fn dpkg_deb_reads_the_control_fields() {
        let scene = Scene::new();
        let file = scene.file("x.deb", &package(&release(), &entries()).unwrap());
        let field = |name| output("dpkg-deb", &["--field", &file, name]);
        assert_eq!(field("Package"), "sluicegate\n");
        assert_eq!(field("Version"), "1.2.3\n");
        assert_eq!(field("Architecture"), "amd64\n");
        assert_eq!(field("Installed-Size"), "4\n", "three files and a folder count at least one KiB each");
        assert!(field("Description").starts_with(contents::SUMMARY), "{}", field("Description"));
        let part = |name| output("dpkg-deb", &["--info", &file, name]);
        assert_eq!(part("conffiles"), "/etc/sluicegate/sluicegate.toml\n");
        let sums = part("md5sums");
        assert!(
            sums.lines().all(|line| !line.contains("etc/")),
            "a configuration file has a checksum: {sums}"
        );
        for script in ["postinst", "prerm", "postrm"] {
            assert!(part(script).starts_with("#!/bin/sh\n"), "{script}");
        }
    }

    /// The commands of the script are replaced by programs that record their arguments and fail.
    #[test]
    fn check_runner_restarts_only_if_policy_permits_and_failures_do_not_end_the_script() {
        let scene = Scene::new();
        let (bin, record) = (scene.path("bin"), scene.path("record"));
        fs::create_dir(&bin).unwrap();
        let stub = |name: &str, text: &str| {
            fs::write(bin.join(name), format!("#!/bin/sh\n{text}\n")).unwrap();
            fs::set_permissions(bin.join(name), fs::Permissions::from_mode(0o755)).unwrap();
        };
        stub("systemd-sysusers", "exit 0");
        let says = format!("echo \"$@\" >> {}", record.display());
        stub("systemctl", &format!("{says}; [ \"$1\" = daemon-reload ]"));
        let script = include_str!("../scripts/deb-postinst")
            .replace("/run/systemd/system", bin.to_str().unwrap())
            .replace("/usr/sbin/policy-rc.d", bin.join("policy").to_str().unwrap());
        let path = format!("PATH={}:/usr/bin:/bin", bin.display());
        for (policy, restarts) in [(0, true), (101, false)] {
            stub("policy", &format!("exit {policy}"));
            fs::write(&record, "").unwrap();
            output("env", &[&path, "sh", "-c", &script, "postinst", "configure", "1.0"]);
            let said = fs::read_to_string(&record).unwrap();
            assert_eq!(said.contains("try-restart sluicegate-checks.service"), restarts, "{policy}: {said}");
        }
    }

    #[test]
    fn ar_lists_the_parts_in_order_and_gzip_reads_them() {
        let scene = Scene::new();
        let file = scene.file("x.deb", &package(&release(), &entries()).unwrap());
        assert_eq!(output("ar", &["t", &file]), "debian-binary\ncontrol.tar.gz\ndata.tar.gz\n");
        assert_eq!(output("ar", &["p", &file, "debian-binary"]), "2.0\n");
        // The explicit check is needed because dpkg-deb also accepts uncompressed parts.
        for part in ["control.tar.gz", "data.tar.gz"] {
            output("sh", &["-euc", &format!("ar p {file} {part} > {file}.part; gzip --test < {file}.part")]);
        }
    }

    #[test]
    fn dpkg_deb_unpacks_files_with_modes_and_checksums() {
        let scene = Scene::new();
        let file = scene.file("x.deb", &package(&release(), &entries()).unwrap());
        let root = scene.path("root");
        let folder = root.to_str().unwrap();
        output("dpkg-deb", &["--raw-extract", &file, folder]);
        let mode = |path| root.join(path).metadata().unwrap().permissions().mode() & 0o7777;
        assert_eq!(mode("usr/bin/sluicegate"), 0o755);
        assert_eq!(mode("etc/sluicegate/secrets"), 0o700);
        assert_eq!(mode("DEBIAN/postinst"), 0o755);
        assert_eq!(fs::read(root.join("etc/sluicegate/sluicegate.toml")).unwrap(), b"[mine]\n");
        let sums = root.join("DEBIAN/md5sums");
        output("env", &["-C", folder, "md5sum", "--check", "--strict", sums.to_str().unwrap()]);
    }
}
