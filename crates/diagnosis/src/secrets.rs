//! Secrets that this process reads, and the service's user may not.
//!
//! In: files that the configuration names as secrets, and the user of the systemd unit. Out: [`Finding`]s.
//! Not here: credentials, which systemd hands over; a secret that no user or every user can read, which the configuration refuses.
//! Invariant: a judgement is a function of owner, group and mode; the file's content is not looked at.

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

/// As [`config::load`], with the files that secrets were read from.
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

/// Nothing where this is that user already, or the machine has none of that name.
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

/// What decides who may read a file.
#[derive(Clone, Copy, Debug)]
struct Access {
    owner: u32,
    group: u32,
    mode: u32,
}

/// The first class that fits counts alone (path_resolution(7)).
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
        "{path} belongs to user {} with mode {:04o}: the user of the systemd unit, {USER}, may not read it",
        access.owner,
        access.mode & 0o7777
    );
    Finding::warning("secret-owner", what, "the service does not start, or refuses a reload")
        .command(format!("chown {USER} {path}"))
        .hint(format!("LoadCredential=NAME:{path} in the unit, and \"credential:NAME\" in the file; a credential is read anew by a restart alone"))
}

/// As in `config/sluicegate.service`.
const USER: &str = "sluicegate";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_class_that_fits_first_says_who_may_read() {
        let reader = User { id: 990, groups: vec![990, 7] };
        let may = |owner, group, mode| may_read(&reader, Access { owner, group, mode });
        assert!(may(990, 0, 0o600) && may(0, 7, 0o640) && may(0, 0, 0o604));
        assert!(!may(0, 0, 0o600) && !may(0, 7, 0o604) && !may(990, 7, 0o044), "nothing of a later class");
    }

    #[test]
    fn a_file_of_another_user_is_told_with_its_cure() {
        let found = finding(Path::new("/srv/bgp.key"), Access { owner: 0, group: 0, mode: 0o100_600 });
        assert_eq!(
            found.what,
            "/srv/bgp.key belongs to user 0 with mode 0600: the user of the systemd unit, sluicegate, may not read it"
        );
        assert_eq!(found.command.as_deref(), Some("chown sluicegate /srv/bgp.key"));
    }

    #[test]
    fn the_user_is_that_of_the_unit() {
        let unit = include_str!("../../../config/sluicegate.service");
        assert!(unit.lines().any(|line| line == format!("User={USER}")));
    }
}
