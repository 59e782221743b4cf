//! From a text to values and problems, by what the crate exports.

mod syntax;

use std::path::{Path, PathBuf};
use std::time::Duration;

use super::*;

/// What `read` makes of a text whose kind of named sections is `job`, and the problems.
fn read<T>(text: &str, read: impl FnOnce(&mut Root<'_>) -> T) -> (T, Vec<String>) {
    let report = Report::default();
    let parts = gather(&report, Path::new("a.toml"), text.to_owned(), &["job"], None);
    let mut root = Root::new(&report, &parts);
    let value = read(&mut root);
    root.finish();
    let problems = report.finish().unwrap_or_else(|problems| problems);
    (value, problems.iter().map(ToString::to_string).collect())
}

/// What `read` makes of the value of `x`, and the one problem.
fn value<T>(text: &str, of: impl FnOnce(Node<'_>) -> Option<T>) -> Result<Option<T>, String> {
    let (value, mut problems) = read(&format!("x = {text}\n"), |root| root.once("x").and_then(of));
    assert!(problems.len() <= 1, "{problems:#?}");
    problems.pop().map_or(Ok(value), Err)
}

fn refused<T: std::fmt::Debug>(text: &str, of: impl FnOnce(Node<'_>) -> Option<T>) -> String {
    let problem = value(text, of).unwrap_err();
    problem.strip_prefix("a.toml:1:5: x: ").unwrap_or_else(|| panic!("{problem}")).to_owned()
}

#[test]
fn values_are_what_they_may_be_or_are_refused_with_what_is_allowed() {
    assert_eq!(value("0x10", |x| x.number(1..=16_u8)), Ok(Some(16)));
    for text in ["17", "0", "-1", "99999999999999999999"] {
        assert_eq!(
            refused(text, |x| x.number(1..=16_u8)),
            format!("found {text}, allowed an integer from 1 to 16")
        );
    }
    assert_eq!(value("false", |x| x.boolean()), Ok(Some(false)));
    assert_eq!(refused("\"yes\"", |x| x.boolean()), "found \"yes\", allowed true or false");
    let minute = Duration::from_secs(1)..=Duration::from_secs(60);
    assert_eq!(value("\"1m\"", |x| x.duration(minute.clone())), Ok(Some(Duration::from_secs(60))));
    let allowed = "allowed a whole number with us, ms, s, m or h, from \"1s\" to \"1m\"";
    assert_eq!(refused("\"61s\"", |x| x.duration(minute.clone())), format!("found \"61s\", {allowed}"));
    assert_eq!(refused("60", |x| x.duration(minute)), format!("found 60, {allowed}"));
    assert_eq!(value("\"7%\"", |x| x.percent(7..=50)), Ok(Some(7)));
    assert_eq!(
        refused("\"6%\"", |x| x.percent(7..=50)),
        "found \"6%\", allowed a whole percentage from \"7%\" to \"50%\""
    );
    assert_eq!(value("\"b\"", |x| x.choice(&[("a", 1), ("b", 2)])), Ok(Some(2)));
    assert_eq!(refused("\"c\"", |x| x.choice(&[("a", 1), ("b", 2)])), "found \"c\", allowed \"a\", \"b\"");
    assert_eq!(refused("1.5", |x| x.choice(&[("a", 1)])), "found 1.5, allowed \"a\"");
    assert_eq!(refused("[1, 2]", |x| x.section().map(|_| ())), "found a list of 2, allowed a table");
    assert_eq!(refused("[]", |x| x.items("a word").map(|_| ())), "found an empty list, allowed a word");
    assert_eq!(value("false", |x| x.section_or_false().map(|_| ())), Ok(None));
    assert_eq!(value("\"[2001:db8::1]:80\"", |x| x.listen("").map(|a| a.port())), Ok(Some(80)));
    for text in ["\"192.0.2.1:0\"", "\"224.0.0.1:80\""] {
        assert_eq!(refused(text, |x| x.listen("one")), format!("found {text}, allowed one"));
    }
    for text in ["\".a\"", "\"-a\"", "\"\"", "\"a b\"", &format!("\"{}\"", "a".repeat(65))] {
        assert!(refused(text, |x| x.name()).contains("allowed a name of 1 to 64 letters"), "{text}");
    }
    assert_eq!(value("\"A.b_c-1\"", |x| x.name()).unwrap().as_deref(), Some("A.b_c-1"));
}

#[test]
fn a_long_value_is_cut_and_a_control_character_escaped() {
    let shown = refused(&format!("\"\\u001b{}\"", "a".repeat(100)), |x| x.boolean());
    assert_eq!(
        shown,
        format!("found \"\\u{{1b}}{}\"... of 101 bytes, allowed true or false", "a".repeat(59))
    );
}

#[test]
fn keys_that_nobody_asks_for_are_problems_and_so_is_their_absence() {
    let text = "planned = 1\n[job]\nkeep = 1\nkepp = 2\nzz = 3\n";
    let (_, problems) = read(text, |root| {
        let mut job = root.once("job").unwrap().section().unwrap();
        assert_eq!(job.or("keep", 0, |node| node.number(0..=9)), 1);
        assert!(job.required("every", "how often").is_none());
        job.finish();
        assert!(root.required("host", "a section [host]").is_none());
    });
    assert_eq!(
        problems,
        [
            "a.toml:1:1: host: found nothing, allowed a section [host]",
            "a.toml:1:1: planned: found an unknown key, allowed host, job",
            "a.toml:2:1: job.every: found nothing, allowed how often",
            "a.toml:4:1: job.kepp: found an unknown key, allowed every, keep (did you mean \"keep\"?)",
            "a.toml:5:1: job.zz: found an unknown key, allowed every, keep",
        ]
    );
}

#[test]
fn names_come_sorted_and_one_that_is_none_is_read_all_the_same() {
    let text = "[job.z]\n[job.\"a b\"]\nx = 1\n[job.c]\n";
    let (names, problems) = read(text, |root| {
        let jobs = root.named("job").into_iter();
        let read = jobs.map(|(name, node)| {
            node.section().unwrap().finish();
            name.to_string()
        });
        read.collect::<Vec<_>>()
    });
    assert_eq!(names, ["\"a b\"", "c", "z"]);
    assert_eq!(problems.len(), 2, "{problems:#?}");
    assert!(
        problems[0].starts_with("a.toml:2:6: job.\"a b\": found \"a b\", allowed a name of"),
        "{problems:#?}"
    );
    assert!(problems[1].starts_with("a.toml:3:1: job.\"a b\".x: found an unknown key"), "{problems:#?}");
}

#[test]
fn a_list_has_each_value_once_at_its_place() {
    let (found, problems) = read("x = [3, 1,\n 3, 'y']\n", |root| {
        let nodes = root.once("x").unwrap().list("numbers").unwrap();
        let again = |node: &Node<'_>| node.refuse("each once");
        distinct(&nodes, |node| node.number(1..=9_u8), again)
    });
    assert_eq!(values(&found), [3, 1]);
    assert_eq!(found[1].place.field.to_string(), "x[1]");
    assert_eq!(
        problems,
        [
            "a.toml:2:2: x[2]: found 3, allowed each once",
            "a.toml:2:5: x[3]: found \"y\", allowed an integer from 1 to 9"
        ]
    );
}

#[test]
fn behind_broken_toml_nothing_is_missed_that_was_not_read() {
    let (_, problems) = read("x = [1\n[job]\nkeep = 0\n", |root| {
        root.required("host", "a section [host]");
        let mut job = root.once("job").unwrap().section().unwrap();
        job.or("keep", 1, |node| node.number(1..=9_u8));
        job.finish();
    });
    assert_eq!(
        problems,
        [
            "a.toml:1:7: found a syntax error (`[` is not closed, expected `]`), allowed TOML 1.0",
            "a.toml:3:8: job.keep: found 0, allowed an integer from 1 to 9",
        ]
    );
}

/// A folder of its own for one test; gone with it.
struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn folder(name: &str, files: &[(&str, &str)]) -> Folder {
    let path = std::env::temp_dir().join(format!("config-text-{}-{name}", std::process::id()));
    for (name, text) in files {
        let file = path.join(name);
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(file, text).unwrap();
    }
    Folder(path)
}

/// The names of the jobs of `in/a.toml`, and the problems, with the folder's name cut off.
fn jobs(folder: &Folder, within: Option<&BaseDir>) -> (Vec<String>, Vec<String>) {
    let (report, first) = (Report::default(), folder.0.join("in/a.toml"));
    let text = read_text(&first, MAX_BYTES).unwrap();
    let parts = gather(&report, &first, text, &["job"], within);
    let mut root = Root::new(&report, &parts);
    root.each("include");
    let names = root.named("job").iter().map(|(name, _)| name.to_string()).collect();
    root.finish();
    let problems = report.finish().unwrap_or_else(|problems| problems);
    let prefix = format!("{}/", folder.0.display());
    (names, problems.iter().map(|problem| problem.to_string().replace(&prefix, "")).collect())
}

#[test]
fn files_that_are_included_say_what_one_would_and_problems_name_both() {
    let folder = folder(
        "include",
        &[
            ("in/a.toml", "include = [\"more/*.toml\", \"../b.toml\", \".?/*.txt\"]\n[job.a]\n"),
            ("b.txt", "[job.d]\n"),
            ("in/more/2.toml", "[job.c]\n"),
            ("in/more/1.toml", "[job.b]\n"),
            ("b.toml", "# other\n[job.c]\n"),
        ],
    );
    let (names, problems) = jobs(&folder, None);
    assert_eq!(names, ["a", "b", "c", "c", "d"]);
    let second = "in/../b.toml:2:1: job.c: found a second job \"c\", after job.c in in/more/2.toml:1";
    assert_eq!(problems, [format!("{second}, allowed each name once in all files")]);
    let beyond = BaseDir::around(&folder.0.join("in/a.toml"));
    let (names, problems) = jobs(&folder, Some(&beyond));
    assert_eq!(names, ["a", "b", "c"]);
    assert_eq!(problems.len(), 2, "{problems:#?}");
    assert!(problems[0].starts_with("in/a.toml:1:27: include[1]: found \"../b.toml\", which leads out of"));
    assert!(problems[1].starts_with("in/a.toml:1:40: include[2]: found \".?/*.txt\", which leads out of"));
}
