//! Writes reproducible tar archives and gzip files: the same entries produce the same bytes on any
//! machine and for any user.
//!
//! References: pax(1) on ustar; the GNU header in tar(5); RFC 1952.

use std::io::Write;

use anyhow::{Context, Result, ensure};
use flate2::{Compression, GzBuilder};
use tar::{Builder, EntryType, Header};

/// A file or folder that a package installs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    /// The path relative to the root folder, without a leading slash, such as `usr/bin/sluicegate`.
    pub(crate) path: String,
    /// The permission bits.
    pub(crate) mode: u16,
    pub(crate) kind: Kind,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Folder,
    File(Vec<u8>),
    /// A configuration file, which an upgrade does not overwrite.
    Config(Vec<u8>),
}

impl Entry {
    pub(crate) fn folder(path: &str, mode: u16) -> Self {
        Self { path: path.to_owned(), mode, kind: Kind::Folder }
    }

    /// Creates a file that everyone can read and only root can write.
    pub(crate) fn file(path: impl Into<String>, bytes: impl Into<Vec<u8>>) -> Self {
        Self { path: path.into(), mode: 0o644, kind: Kind::File(bytes.into()) }
    }

    /// Returns the content of a file, or `None` for a folder.
    pub(crate) fn bytes(&self) -> Option<&[u8]> {
        match &self.kind {
            Kind::Folder => None,
            Kind::File(bytes) | Kind::Config(bytes) => Some(bytes),
        }
    }
}

/// Returns a tar archive of the entries and all their parent folders, owned by root. Each path in
/// the archive begins with `prefix`.
///
/// # Errors
/// Returns an error if a path is longer than 99 bytes, the limit of the basic tar header.
pub(crate) fn tar(entries: &[Entry], prefix: &str, epoch: u32) -> Result<Vec<u8>> {
    let mut archive = Builder::new(Vec::new());
    for Entry { path, mode, kind } in with_folders(entries) {
        let (kind, bytes, end) = match kind {
            Kind::Folder => (EntryType::Directory, Vec::new(), "/"),
            Kind::File(bytes) | Kind::Config(bytes) => (EntryType::Regular, bytes, ""),
        };
        let name = format!("{prefix}{path}{end}");
        let mut header = Header::new_gnu();
        let field = &mut header.as_old_mut().name;
        ensure!(name.len() < field.len(), "{name}: the path is too long for a package");
        field[..name.len()].copy_from_slice(name.as_bytes());
        header.set_entry_type(kind);
        header.set_mode(mode.into());
        header.set_size(bytes.len() as u64);
        header.set_mtime(epoch.into());
        header.set_uid(0);
        header.set_gid(0);
        header.set_username("root")?;
        header.set_groupname("root")?;
        header.set_cksum();
        archive.append(&header, bytes.as_slice())?;
    }
    archive.into_inner().context("cannot finish the archive")
}

/// Compresses bytes with gzip. The header contains no file name and no time.
pub(crate) fn gzip(bytes: &[u8]) -> Result<Vec<u8>> {
    let mut writer = GzBuilder::new().write(Vec::new(), Compression::best());
    writer.write_all(bytes)?;
    Ok(writer.finish()?)
}

/// Returns the entries and all their parent folders, sorted by path.
fn with_folders(entries: &[Entry]) -> Vec<Entry> {
    let mut all = entries.to_vec();
    for entry in entries {
        let above = entry.path.match_indices('/').map(|(at, _)| &entry.path[..at]);
        all.extend(above.map(|path| Entry::folder(path, 0o755)));
    }
    // An explicit entry of a folder replaces the generated entry.
    all.sort_by(|a, b| a.path.cmp(&b.path));
    all.dedup_by(|later, kept| later.path == kept.path);
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scene::{Scene, entries, output};

    #[test]
    fn gnu_tar_lists_entries_with_owner_mode_and_time() {
        let scene = Scene::new();
        let archive = scene.file("x.tar", &tar(&entries(), "./", 1_700_000_000).unwrap());
        let listed = output("tar", &["--utc", "--full-time", "-tvf", &archive]);
        let listed: Vec<String> =
            listed.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
        let time = "2023-11-14 22:13:20";
        assert_eq!(
            listed,
            [
                format!("drwxr-xr-x root/root 0 {time} ./etc/"),
                format!("drwxr-xr-x root/root 0 {time} ./etc/sluicegate/"),
                format!("drwx------ root/root 0 {time} ./etc/sluicegate/secrets/"),
                format!("-rw-r--r-- root/root 7 {time} ./etc/sluicegate/sluicegate.toml"),
                format!("drwxr-xr-x root/root 0 {time} ./usr/"),
                format!("drwxr-xr-x root/root 0 {time} ./usr/bin/"),
                format!("-rwxr-xr-x root/root 10 {time} ./usr/bin/sluicegate"),
                format!("drwxr-xr-x root/root 0 {time} ./usr/share/"),
                format!("drwxr-xr-x root/root 0 {time} ./usr/share/doc/"),
                format!("drwxr-xr-x root/root 0 {time} ./usr/share/doc/sluicegate/"),
                format!("-rw-r--r-- root/root 6 {time} ./usr/share/doc/sluicegate/copyright"),
            ]
        );
        assert_eq!(output("tar", &["-xOf", &archive, "./usr/bin/sluicegate"]), "#!/bin/sh\n");
    }

    #[test]
    fn entry_order_does_not_matter_and_a_long_path_fails() {
        let turned: Vec<Entry> = entries().into_iter().rev().collect();
        assert_eq!(tar(&entries(), "", 1).unwrap(), tar(&turned, "", 1).unwrap());
        let error = tar(&[Entry::file("x".repeat(100), "")], "", 1).unwrap_err().to_string();
        assert!(error.ends_with("the path is too long for a package"), "{error}");
    }

    #[test]
    fn gzip_output_has_no_name_and_no_time() {
        let (scene, text) = (Scene::new(), "sluicegate\n".repeat(1_000));
        let packed = gzip(text.as_bytes()).unwrap();
        assert_eq!(packed[3..8], [0; 5], "flags and time are zero");
        let file = scene.file("x.gz", &packed);
        assert_eq!(output("gzip", &["--decompress", "--stdout", &file]), text);
    }
}
