//! Tests of configuration and secret files: permissions, folders and credentials.

use std::ffi::OsString;
use std::fs;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use super::{EXAMPLE, KEY, all_printed};
use crate::{SecretName, admin_socket, load, parse, read_secret};

/// A temporary folder that is removed when it is dropped.
pub(super) struct Folder(pub(super) PathBuf);

impl Folder {
    pub(super) fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::SeqCst);
        let path = std::env::temp_dir().join(format!("sluicegate-config-{}-{number}", std::process::id()));
        fs::create_dir_all(path.join("secrets")).unwrap();
        Self(path)
    }

    pub(super) fn write(&self, name: &str, content: impl AsRef<[u8]>, mode: u32) -> PathBuf {
        let path = self.0.join(name);
        fs::write(&path, content).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn a_file_and_its_key_are_read_from_one_folder() {
    let folder = Folder::new();
    let path = folder.write("a.toml", EXAMPLE, 0o644);
    folder.write("secrets/hash.key", format!("{KEY}\n"), 0o600);
    let (config, warnings) = load(&path).unwrap();
    assert!(warnings.is_empty());
    assert_eq!(config.cluster().hash_key.bytes()[15], 15);
    folder.write("secrets/hash.key", KEY, 0o400);
    assert!(load(&path).is_ok());
}

#[test]
fn a_key_that_others_can_read_is_refused() {
    let folder = Folder::new();
    let path = folder.write("a.toml", EXAMPLE, 0o644);
    for mode in [0o640, 0o604, 0o620, 0o601, 0o666] {
        folder.write("secrets/hash.key", KEY, mode);
        let problems = all_printed(&load(&path).unwrap_err());
        assert_eq!(problems.lines().count(), 1);
        for part in ["cluster.hash_key_file: ", "hash.key", &format!("mode {mode:04o}"), "chmod 600"] {
            assert!(problems.contains(part), "{part:?} not in {problems}");
        }
        assert!(!problems.contains(KEY));
    }
}

#[test]
fn a_key_that_is_no_readable_text_file_is_refused() {
    let folder = Folder::new();
    let path = folder.write("a.toml", EXAMPLE, 0o644);
    let problem = |part: &str| {
        let problems = all_printed(&load(&path).unwrap_err());
        assert!(problems.contains(part) && problems.lines().count() == 1, "{part:?} not in {problems}");
    };
    problem("(no such file); help: the file must hold 32 hex digits");
    folder.write("secrets/hash.key", [0xff; 32], 0o600);
    problem("(it is not text)");
    folder.write("secrets/hash.key", "0".repeat(4_097), 0o600);
    problem("(larger than 4096 bytes)");
    fs::remove_file(folder.0.join("secrets/hash.key")).unwrap();
    fs::create_dir(folder.0.join("secrets/hash.key")).unwrap();
    problem("is not a regular file");
}

#[test]
fn credentials_come_from_the_folder_of_the_environment() {
    let folder = Folder::new();
    folder.write("key", KEY, 0o440);
    let text = EXAMPLE.replace("\"secrets/hash.key\"", "\"credential:key\"");
    let with = |folder: Option<&Path>| {
        let environment = |name: &str| {
            assert_eq!(name, "CREDENTIALS_DIRECTORY");
            folder.map(OsString::from)
        };
        parse(&text, Path::new("a.toml"), &|name| read_secret(name, &environment))
    };
    assert!(with(Some(&folder.0)).is_ok());
    assert!(with(None).unwrap_err().to_string().contains("needs $CREDENTIALS_DIRECTORY"));
    assert!(with(Some(Path::new(""))).unwrap_err().to_string().contains("needs $CREDENTIALS_DIRECTORY"));
    folder.write("key", KEY, 0o444);
    assert!(with(Some(&folder.0)).unwrap_err().to_string().contains("can be read by other users"));
}

#[test]
fn references_name_a_file_or_a_credential() {
    let folder = Path::new("/etc/x");
    let file = |path: &str| Ok(SecretName::File(PathBuf::from(path)));
    assert_eq!(SecretName::parse("s/k", folder), file("/etc/x/s/k"));
    assert_eq!(SecretName::parse("/run/k", folder), file("/run/k"));
    assert_eq!(SecretName::parse("credential:a.b", folder), Ok(SecretName::Credential("a.b".to_owned())));
    for bad in ["", "credential:", "credential:..", "credential:.", "credential:a/b", "credential:a\0"] {
        assert!(SecretName::parse(bad, folder).is_err(), "{bad:?}");
    }
}

#[test]
fn a_file_that_cannot_be_a_configuration_is_refused_in_words() {
    let folder = Folder::new();
    let of = |path: &Path| {
        let problems = load(path).unwrap_err();
        let problem = problems.iter().next().unwrap().clone();
        assert_eq!((problems.len(), problem.file(), problem.line()), (1, path, None));
        assert!(problem.to_string().starts_with(&format!("{}: ", path.display())), "{problem}");
        problem.message
    };
    assert_eq!(of(&folder.0), "it is a folder, not a file");
    let pipe = folder.0.join("pipe");
    nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
    assert_eq!(of(&pipe), "it is a pipe, not a file", "opening the pipe would block");
    let (reader, mut writer) = std::io::pipe().unwrap();
    writer.write_all(b"a = 1\n\n# \xff").unwrap();
    drop(writer);
    let open = PathBuf::from(format!("/dev/fd/{}", reader.as_raw_fd()));
    assert_eq!(of(&open), "line 3 is not UTF-8", "a pipe from the shell must be read");
    assert_eq!(of(&folder.0.join("none")), "no such file");
    assert_eq!(of(&folder.write("a", b"a = 1\n\n# \xff", 0o644)), "line 3 is not UTF-8");
    assert_eq!(of(Path::new("/dev/zero")), "the file is larger than 16 MiB");
    let (most, more) = (vec![b'\n'; 16 << 20], vec![b'\n'; (16 << 20) + 1]);
    assert_eq!(of(&folder.write("a", more, 0o644)), "the file is larger than 16 MiB");
    let read = load(&folder.write("a", most, 0o644)).unwrap_err();
    assert!(read.iter().any(|problem| problem.field.as_str() == "cluster"), "{read}");
}

#[test]
fn a_file_of_100_mb_is_refused_before_it_is_read() {
    let folder = Folder::new();
    let path = folder.write("a.toml", "", 0o644);
    fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(100_000_000).unwrap();
    let problems = load(&path).unwrap_err();
    assert_eq!(problems.to_string(), format!("error: {}: the file is larger than 16 MiB", path.display()));
}

#[test]
fn the_admin_socket_of_a_broken_file_is_still_found() {
    let folder = Folder::new();
    let found = |text: &str| admin_socket(&folder.write("a.toml", text, 0o644));
    let socket = "[admin]\nsocket = { path = \"/run/a.sock\" }\n";
    let there = Some(PathBuf::from("/run/a.sock"));
    assert_eq!(found(&format!("{socket}[cluster]\nname = 7\n[pol.x]\n")), there, "problems");
    assert_eq!(found(&format!("[cluster]\nname =\n{socket}")), there, "a syntax error before it");
    assert_eq!(found(&format!("{socket}[cluster\n")), there, "a syntax error after it");
    folder.write("b.toml", socket, 0o644);
    assert_eq!(found("include = [\"b.toml\"]\n[cluster]\nname = 7\n"), there, "in an included file");
    for none in ["[admin]\nsocket = 7\n", "[admin]\nsocket = false\n", "[admin.socket]\npath = 7\n"] {
        assert_eq!(found(none), None, "{none:?}");
    }
    for usual in ["", "[admin]\n", "admin = []\n"] {
        assert_eq!(found(usual), Some(PathBuf::from("/run/sluicegate/admin.sock")), "{usual:?}");
    }
    assert_eq!(admin_socket(&folder.0), None);
}
