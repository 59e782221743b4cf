//! Findings about secret files that this process can read but the user of the service cannot.
//!
//! The check compares owner, group and mode of each secret file with the user of the systemd unit.
//! systemd credentials are not checked, because systemd makes them readable. Secret files that this
//! process cannot read, or that every user can read, are already rejected when the configuration is
//! read.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use admin::User;
use config::{self, Config, Problems, SecretName, read_secret};
use datapath::interface::Finding;
use nix::unistd::geteuid;

use crate::machine::quoted;

/// Loads the configuration like [`config::load`], and returns the paths of its secret files as
/// well.
pub(crate) fn load(path: &Path) -> (Result<(Config, Problems), Problems>, BTreeSet<PathBuf>) {
    let files = RefCell::new(BTreeSet::new());
    let loaded = config::load_with(path, &|name| {
        if let SecretName::File(file) = name {
            files.borrow_mut().insert(file.clone());
        }
        read_secret(name, &|variable| std::env::var_os(variable))
    });
    (loaded, files.into_inner())
}

/// Returns the findings. The list is empty if this process runs as the user of the service, or if
/// that user does not exist.
pub(crate) fn findings(files: &BTreeSet<PathBuf>) -> Vec<Finding> {
    let Some(reader) = admin::user(USER).filter(|reader| reader.id != geteuid().as_raw()) else {
        return Vec::new();
    };
    let seen = files.iter().filter_map(|file| {
        let found = fs::metadata(file).ok()?;
        Some((file, Access { owner: found.uid(), group: found.gid(), mode: found.mode() }))
    });
    seen.filter(|(_, access)| !may_read(&reader, *access))
        .map(|(file, access)| finding(file, access))
        .collect()
}

/// The properties of a file that decide who can read it.
#[derive(Clone, Copy, Debug)]
struct Access {
    owner: u32,
    group: u32,
    mode: u32,
}

/// Returns `true` if the user can read the file. Only the first class (owner, group or others) that
/// matches the user determines the permissions (path_resolution(7)).
fn may_read(reader: &User, access: Access) -> bool {
    let bit = if reader.id == access.owner {
        0o400
    } else if reader.groups.contains(&access.group) {
        0o040
    } else {
        0o004
    };
    access.mode & bit != 0
}

fn finding(file: &Path, access: Access) -> Finding {
    let path = quoted(&file.to_string_lossy());
    let what = format!(
        "user {USER} of the systemd unit cannot read {path}, which belongs to user {} with mode {:04o}",
        access.owner,
        access.mode & 0o7777
    );
    Finding::warning("secret-owner", what, "the service does not start, or rejects a reload")
        .command(format!("chown {USER} {path}"))
        .hint(format!("use LoadCredential=NAME:{path} in the unit and \"credential:NAME\" in the configuration, and restart the service after each change of the secret"))
}

/// The user in `config/sluicegate.service`.
const USER: &str = "sluicegate";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_matching_permission_class_decides() {
        let reader = User { id: 990, groups: vec![990, 7] };
        let may = |owner, group, mode| may_read(&reader, Access { owner, group, mode });
        assert!(may(990, 0, 0o600) && may(0, 7, 0o640) && may(0, 0, 0o604));
        assert!(!may(0, 0, 0o600) && !may(0, 7, 0o604) && !may(990, 7, 0o044), "later classes do not count");
    }

    #[test]
    fn a_secret_of_another_user_is_reported_with_its_fix() {
        let found = finding(Path::new("/srv/bgp.key"), Access { owner: 0, group: 0, mode: 0o100_600 });
        assert_eq!(
            found.what,
            "user sluicegate of the systemd unit cannot read /srv/bgp.key, which belongs to user 0 with mode 0600"
        );
        assert_eq!(found.command.as_deref(), Some("chown sluicegate /srv/bgp.key"));
    }

    #[test]
    fn the_user_is_the_user_of_the_systemd_unit() {
        let unit = include_str!("../../../config/sluicegate.service");
        assert!(unit.lines().any(|line| line == format!("User={USER}")));
    }
}
