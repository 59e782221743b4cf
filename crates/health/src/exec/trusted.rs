//! Finds the file of a program, and rejects it if other users could replace it.
//!
//! Symbolic links are resolved one at a time. Each link and folder on the way, and the file itself,
//! must belong to root or to the owner of the check folder, and must not be writable by others. The
//! folders above the check folder are checked only if a link leads out of the check folder.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::fs::{self, Metadata};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Component, Path, PathBuf};

/// Returns the path of a program without links.
pub(super) fn program(folder: &Path, name: &str) -> Result<PathBuf, String> {
    let folder = folder.canonicalize().map_err(|error| unreadable(folder, &error))?;
    let owner = fs::metadata(&folder).map_err(|error| unreadable(&folder, &error))?.uid();
    let look = |path: &Path| {
        let found = fs::symlink_metadata(path).map_err(|error| unreadable(path, &error))?;
        secured(path, &found, owner).map(|()| found)
    };
    look(&folder)?;
    let (mut path, mut rest) = (folder, VecDeque::from([OsString::from(name)]));
    let mut links = 0;
    while let Some(next) = rest.pop_front() {
        if next == ".." {
            path.pop();
            continue;
        }
        path.push(&next);
        if !look(&path)?.is_symlink() {
            continue;
        }
        links += 1;
        if links > MOST_LINKS {
            return Err(format!("{name} has too many links"));
        }
        let target = fs::read_link(&path).map_err(|error| unreadable(&path, &error))?;
        path.pop();
        let leaves =
            target.components().any(|part| matches!(part, Component::RootDir | Component::ParentDir));
        if leaves {
            prepend(&path.join(target), &mut rest);
            path = PathBuf::from("/");
            look(&path)?;
        } else {
            prepend(&target, &mut rest);
        }
    }
    Ok(path)
}

fn prepend(path: &Path, rest: &mut VecDeque<OsString>) {
    let names = path.components().filter(|part| matches!(part, Component::Normal(_) | Component::ParentDir));
    let names: Vec<OsString> = names.map(|part| part.as_os_str().to_owned()).collect();
    names.into_iter().rev().for_each(|name| rest.push_front(name));
}

fn secured(path: &Path, found: &Metadata, owner: u32) -> Result<(), String> {
    // All links have the mode 0777.
    if !found.is_symlink() && found.mode() & 0o022 != 0 {
        return Err(format!("{} is writable by its group or others", path.display()));
    }
    if found.uid() != 0 && found.uid() != owner {
        return Err(format!("{} belongs to neither root nor the owner of the check folder", path.display()));
    }
    Ok(())
}

fn unreadable(path: &Path, error: &std::io::Error) -> String {
    format!("cannot read {}: {error}", path.display())
}

/// The limit of the kernel.
const MOST_LINKS: u32 = 40;

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::*;

    fn make(path: &Path, mode: u32) {
        if !path.exists() {
            fs::write(path, "").unwrap();
        }
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn only_programs_that_nobody_else_can_replace_are_trusted() {
        let base = std::env::temp_dir().canonicalize().unwrap();
        let base = base.join(format!("sluicegate-trusted-{}", std::process::id()));
        let checks = base.join("checks");
        fs::create_dir_all(checks.join("more")).unwrap();
        for folder in [&base, &checks, &checks.join("more")] {
            make(folder, 0o755);
        }
        make(&checks.join("plain"), 0o755);
        make(&checks.join("group"), 0o775);
        make(&checks.join("more/inner"), 0o755);
        make(&base.join("outside"), 0o755);
        for (name, target) in [
            ("same", "plain"),
            ("below", "./more/inner"),
            ("system", "/bin/sh"),
            ("to-group", "group"),
            ("shared", "../outside"),
            ("twice", "shared"),
            ("loop", "loop"),
            ("gone", "nothing"),
        ] {
            symlink(target, checks.join(name)).unwrap();
        }
        let find = |name| program(&checks, name);
        assert_eq!(find("plain"), Ok(checks.join("plain")));
        assert_eq!(find("same"), Ok(checks.join("plain")));
        assert_eq!(find("below"), Ok(checks.join("more/inner")));
        assert_eq!(find("system"), Ok(Path::new("/bin/sh").canonicalize().unwrap()));
        // The folder for temporary files is writable by others.
        for (name, words) in [
            ("group", "is writable by its group or others"),
            ("to-group", "is writable by its group or others"),
            ("shared", "is writable by its group or others"),
            ("twice", "is writable by its group or others"),
            ("loop", "too many links"),
            ("gone", "No such file"),
        ] {
            let error = find(name).expect_err(name);
            assert!(error.contains(words), "{name}: {error}");
        }
        make(&checks.join("more"), 0o777);
        assert!(find("below").is_err_and(|error| error.contains("is writable by")));
        if nix::unistd::Uid::effective().is_root() {
            std::os::unix::fs::lchown(checks.join("same"), Some(65_534), None).unwrap();
            assert!(find("same").is_err_and(|error| error.contains("belongs to neither root")));
            std::os::unix::fs::lchown(checks.join("plain"), Some(65_534), None).unwrap();
            assert!(find("plain").is_err_and(|error| error.contains("belongs to neither root")));
        }
        make(&checks, 0o775);
        assert!(find("system").is_err_and(|error| error.contains("is writable by")));
        fs::remove_dir_all(base).unwrap();
    }
}
