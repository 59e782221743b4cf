//! Checks whether the measured figures in `benches/results` match the current code.
//!
//! Each results file names the commit at which it was measured, and the source folders that it
//! depends on. A figure is outdated if these folders have changed since that commit. The folders
//! are compared by content, so a figure stays valid after a rebase. An outdated figure is reported
//! but is not an error: any change in these folders makes figures outdated, and the author of the
//! change might not have a suitable machine for measurements.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use super::files;
use super::report::Measure;

/// The origin of a results file, read from its comment lines.
#[derive(Debug, PartialEq, Eq)]
struct Origin<'a> {
    commit: &'a str,
    measures: Vec<&'a str>,
}

/// Counts the figures that are older than the code that they measure.
pub(super) fn measure(checkout: &Path) -> Result<Measure> {
    let mut offenders = Vec::new();
    let folder = checkout.join(RESULTS);
    for path in if folder.is_dir() { files(&folder, &["csv"])? } else { Vec::new() } {
        let text = fs::read_to_string(&path)?;
        let name = path.strip_prefix(checkout)?.display();
        match origin(&text) {
            None => offenders.push(format!("{name} has no lines `# {COMMIT}: ...` and `# {MEASURES}: ...`")),
            Some(origin) => offenders.extend(origin.old(checkout)?.map(|why| format!("{name} {why}"))),
        }
    }
    Ok(Measure { what: "figures older than the measured code", now: offenders.len(), bar: 0, offenders })
}

/// Parses the comment lines of a results file. Returns `None` if the comment lines do not name the
/// origin.
fn origin(text: &str) -> Option<Origin<'_>> {
    let note = |key: &str| {
        let lines = text.lines().take_while(|line| line.starts_with('#'));
        lines.filter_map(|line| line.strip_prefix("# ")?.strip_prefix(key)?.strip_prefix(": ")).next()
    };
    let measures: Vec<&str> = note(MEASURES)?.split_whitespace().collect();
    (!measures.is_empty()).then_some(Origin { commit: note(COMMIT)?, measures })
}

impl Origin<'_> {
    /// Returns the reason why the figure is outdated, or `None` if it is current.
    fn old(&self, checkout: &Path) -> Result<Option<String>> {
        let Self { commit, measures } = self;
        if !commit.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Ok(Some(format!("was measured with uncommitted changes ({commit})")));
        }
        let mut git = Command::new("git");
        git.current_dir(checkout).args(["diff", "--name-only", commit, "--"]).args(measures);
        let output = git.output().context("cannot run git")?;
        if !output.status.success() {
            return Ok(Some(format!("was measured at {commit}, which is not in this repository")));
        }
        let changed = String::from_utf8_lossy(&output.stdout).into_owned();
        let Some(first) = changed.lines().next() else { return Ok(None) };
        let others = changed.lines().count() - 1;
        Ok(Some(format!(
            "was measured at {:.12}; {first} and {others} other files have changed since then",
            commit
        )))
    }
}

/// The folder that contains the results.
pub(crate) const RESULTS: &str = "benches/results";
/// The keys in the comment lines at the top of a results file.
pub(crate) const COMMIT: &str = "commit";
pub(crate) const MEASURES: &str = "measures";

#[cfg(test)]
mod tests {
    use testbed::TempDir;

    use super::*;

    #[test]
    fn origin_is_read_from_the_comment_lines() {
        let good = "# commit: 12ab\n# measures: crates/a/src crates/b/src\n# date: x\nslots\n1\n";
        let found = origin(good).unwrap();
        assert_eq!(found, Origin { commit: "12ab", measures: vec!["crates/a/src", "crates/b/src"] });
        for bad in [
            "slots\n1\n# commit: 12ab\n# measures: a\n",
            "# commit: 12ab\nx\n",
            "# measures: a\nx\n",
            "# commit: 12ab\n# measures: \nx\n",
        ] {
            assert_eq!(origin(bad), None, "{bad}");
        }
    }

    #[test]
    fn figure_is_outdated_after_a_change_of_its_folders() {
        let folder = TempDir::new().unwrap();
        let git = |arguments: &[&str]| {
            let mut git = Command::new("git");
            git.current_dir(folder.path()).args(["-c", "user.name=a", "-c", "user.email=a@example.org"]);
            let output = git.args(arguments).output().unwrap();
            assert!(output.status.success(), "{arguments:?}: {output:?}");
            String::from_utf8(output.stdout).unwrap().trim().to_owned()
        };
        let write = |name: &str, text: &str| {
            let path = folder.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        let old = || measure(folder.path()).unwrap().offenders;
        git(&["init", "--quiet"]);
        write("crates/a/src/lib.rs", "1");
        write("crates/b/src/lib.rs", "1");
        git(&["add", "."]);
        git(&["commit", "--quiet", "--message", "a"]);
        let commit = git(&["rev-parse", "HEAD"]);
        let figure = |commit: &str| {
            write("benches/results/f.csv", &format!("# commit: {commit}\n# measures: crates/a/src\nx\n1\n"));
        };
        assert_eq!(old(), [""; 0], "there is no figure");
        figure(&commit);
        assert_eq!(old(), [""; 0]);
        write("crates/b/src/lib.rs", "2");
        assert_eq!(old(), [""; 0], "the change is in a different folder");
        write("crates/a/src/lib.rs", "2");
        git(&["commit", "--quiet", "--all", "--message", "b"]);
        let found = old();
        assert!(found.len() == 1 && found[0].contains("crates/a/src/lib.rs"), "{found:?}");
        figure(&git(&["rev-parse", "HEAD"]));
        assert_eq!(old(), [""; 0], "the figure was measured again");
        for (commit, why) in
            [("0123456789", "is not in this repository"), ("12ab and changes", "uncommitted")]
        {
            figure(commit);
            assert!(old()[0].contains(why), "{commit}: {:?}", old());
        }
        write("benches/results/f.csv", "x\n1\n");
        assert!(old()[0].contains("has no lines"), "{:?}", old());
    }
}
