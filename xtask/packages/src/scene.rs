//! Helpers for tests of the package formats: sample entries, and functions that run programs to
//! read packages.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use testbed::TempDir;

use crate::Release;
use crate::archive::{Entry, Kind};

pub(crate) struct Scene(TempDir);

impl Scene {
    pub(crate) fn new() -> Self {
        Self(TempDir::new().unwrap())
    }

    pub(crate) fn file(&self, name: &str, bytes: &[u8]) -> String {
        let path = self.path(name);
        fs::write(&path, bytes).unwrap();
        path.to_str().unwrap().to_owned()
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }
}

/// Returns unsorted sample entries: a binary, a document, a configuration file, and a folder that
/// only root can access.
pub(crate) fn entries() -> Vec<Entry> {
    vec![
        Entry::file("usr/share/doc/sluicegate/copyright", "words\n"),
        Entry { path: "usr/bin/sluicegate".into(), mode: 0o755, kind: Kind::File(b"#!/bin/sh\n".to_vec()) },
        Entry::folder("etc/sluicegate/secrets", 0o700),
        Entry {
            path: "etc/sluicegate/sluicegate.toml".into(),
            mode: 0o644,
            kind: Kind::Config(b"[mine]\n".to_vec()),
        },
    ]
}

pub(crate) fn release() -> Release {
    Release { version: "1.2.3".into(), epoch: 1_700_000_000 }
}

/// Runs a program that must succeed, and returns its standard output.
pub(crate) fn output(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output();
    let output = output.unwrap_or_else(|error| panic!("{program}: {error} (cargo xtask setup --lane unit)"));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {arguments:?} failed ({}): {said}", output.status);
    String::from_utf8(output.stdout).unwrap()
}
