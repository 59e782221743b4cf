//! Tests of the public API, from TOML text to values and problems.

mod syntax;

use std::path::{Path, PathBuf};
use std::time::Duration;

use super::*;

/// Reads a configuration with sections `[job.NAME]`. Returns the result of `read` and the problems.
fn read<T>(text: &str, read: impl FnOnce(&mut Root<'_>) -> T) -> (T, Vec<String>) {
    let report = Report::default().with_renamed(&[Renamed { path: "job", old: "often", new: "every" }]);
    let parts = gather(&report, Path::new("a.toml"), text.to_owned(), &["job"], None);
    let mut root = Root::new(&report, &parts);
    let value = read(&mut root);
    root.finish();
    let problems = report.finish().unwrap_or_else(|problems| problems);
    (value, problems.iter().map(printed).collect())
}

/// Formats the message and the help text in one line.
fn printed(problem: &Problem) -> String {
    let help = problem.help.as_ref().map(|help| format!("; help: {help}")).unwrap_or_default();
    format!("{problem}{help}")
}

/// Reads the value of the key `x`. Returns the value, or the problem.
fn value<T>(text: &str, of: impl FnOnce(Node<'_>) -> Option<T>) -> Result<Option<T>, String> {
    let (value, mut problems) = read(&format!("x = {text}\n"), |root| root.once("x").and_then(of));
    assert!(problems.len() <= 1, "{problems:#?}");
    problems.pop().map_or(Ok(value), Err)
}

fn refused<T: std::fmt::Debug>(text: &str, of: impl FnOnce(Node<'_>) -> Option<T>) -> String {
    let problem = value(text, of).unwrap_err();
    problem.strip_prefix("a.toml:1:5: ").unwrap_or_else(|| panic!("{problem}")).to_owned()
}

/// The numbers of characters are stored only for some positions of a file.
#[test]
fn problems_at_the_end_of_files_of_any_length_have_their_column() {
    for length in (100..300).chain([1_024, 2_048, 2_049]) {
        let comment = "\u{e9}".repeat(length / 2 - 6);
        let text = format!("{:>1$}{comment}\nx = [", "#", 1 + length % 2);
        let problems = read(&text, |_| ()).1;
        assert!(problems.iter().any(|problem| problem.starts_with("a.toml:2:6: ")), "{length}: {problems:?}");
    }
}

#[test]
fn values_are_read_or_refused() {
    assert_eq!(value("0x10", |x| x.number(1..=16_u8)), Ok(Some(16)));
    for text in ["17", "0", "-1", "99999999999999999999"] {
        assert_eq!(
            refused(text, |x| x.number(1..=16_u8)),
            format!("\"x\" must be between 1 and 16, got {text}")
        );
    }
    assert_eq!(
        refused("\"7\"", |x| x.number(1..=16_u8)),
        "\"x\" must be an integer, got \"7\"; help: remove the quotes"
    );
    assert_eq!(
        refused("1.5", |x| x.number(1..=16_u8)),
        "\"x\" must be an integer, got 1.5; help: use a number between 1 and 16"
    );
    assert_eq!(value("false", |x| x.boolean()), Ok(Some(false)));
    assert_eq!(refused("\"yes\"", |x| x.boolean()), "\"x\" must be true or false, got \"yes\"");
    let minute = Duration::from_secs(1)..=Duration::from_secs(60);
    assert_eq!(value("\"1m\"", |x| x.duration(minute.clone())), Ok(Some(Duration::from_secs(60))));
    let help = "help: use a whole number with us, ms, s, m or h, such as \"30s\"";
    assert_eq!(
        refused("\"61s\"", |x| x.duration(minute.clone())),
        "\"x\" must be between 1s and 1m, got \"61s\""
    );
    assert_eq!(
        refused("\"1 s\"", |x| x.duration(minute.clone())),
        format!("invalid duration \"1 s\" for \"x\"; {help}")
    );
    assert_eq!(
        refused("60", |x| x.duration(minute)),
        format!("\"x\" must be a duration in quotes, got 60; {help}")
    );
    assert_eq!(value("\"7%\"", |x| x.percent(7..=50)), Ok(Some(7)));
    assert_eq!(
        refused("\"6%\"", |x| x.percent(7..=50)),
        "\"x\" must be a percentage between \"7%\" and \"50%\", got \"6%\""
    );
    let words = [("ab", 1), ("bc", 2), ("CD", 3)];
    assert_eq!(value("\"bc\"", |x| x.choice(&words)), Ok(Some(2)));
    for (text, help) in [
        ("\"z\"", ""),
        ("1.5", ""),
        ("\"abc\"", "; help: did you mean \"ab\"?"),
        ("\"BC\"", "; help: write \"bc\" in lower case"),
        ("\"cd\"", "; help: write \"CD\" in upper case"),
    ] {
        assert_eq!(
            refused(text, |x| x.choice(&words)),
            format!("\"x\" must be \"ab\", \"bc\" or \"CD\", got {text}{help}")
        );
    }
    assert_eq!(
        refused("[1, 2]", |x| x.section().map(|_| ())),
        "\"x\" must be a table, got a list; help: write a section [x]"
    );
    let words = Expected::new("a list of words").example("[\"a\"]");
    assert_eq!(
        refused("[]", |x| x.items(words).map(|_| ())),
        "\"x\" must not be empty; help: for example [\"a\"]"
    );
    assert_eq!(
        refused("{}", |x| x.items(words).map(|_| ())),
        "\"x\" must be a list of words, got an empty table; help: for example [\"a\"]"
    );
    assert_eq!(value("false", |x| x.section_or_false().map(|_| ())), Ok(None));
    let at = Expected::new("an address with a port");
    assert_eq!(value("\"[2001:db8::1]:80\"", |x| x.listen(at).map(|a| a.port())), Ok(Some(80)));
    for (text, fault) in [
        ("\"192.0.2.1:0\"", "\"192.0.2.1:0\" has port 0; help: use a port from 1 to 65535"),
        ("\"224.0.0.1:80\"", "\"224.0.0.1:80\" is a multicast address"),
        ("\"a:80\"", "\"x\" must be an address with a port, got \"a:80\""),
    ] {
        assert_eq!(refused(text, |x| x.listen(at)), fault);
    }
    for text in ["\".a\"", "\"-a\"", "\"\"", "\"a b\"", &format!("\"{}\"", "a".repeat(65))] {
        let refused = refused(text, |x| x.name());
        assert!(
            refused.starts_with("invalid name \"") && refused.contains("help: use 1 to 64 letters"),
            "{text}"
        );
    }
    assert_eq!(value("\"A.b_c-1\"", |x| x.name()).unwrap().as_deref(), Some("A.b_c-1"));
}

#[test]
fn a_long_value_is_cut_and_a_control_character_escaped() {
    let shown = refused(&format!("\"\\u001b{}\"", "a".repeat(100)), |x| x.boolean());
    assert_eq!(
        shown,
        format!("\"x\" must be true or false, got \"\\u{{1b}}{}\"... of 101 bytes", "a".repeat(59))
    );
}

#[test]
fn unknown_and_missing_keys_are_reported() {
    let text = "planned = 1\n[job]\nkeep = 1\nkepp = 2\nzz = 3\noften = 4\n[jobs]\n";
    let (_, problems) = read(text, |root| {
        let mut job = root.once("job").unwrap().section().unwrap();
        assert_eq!(job.or("keep", 0, |node| node.number(0..=9)), 1);
        let every = Expected::new("the interval of the job").example("\"1h\"");
        assert!(job.required("every", every).is_none());
        job.finish();
        assert!(root.required("host", "add it").is_none());
    });
    assert_eq!(
        problems,
        [
            "a.toml:1:1: missing section [host]; help: add it",
            "a.toml:1:1: unknown key \"planned\" outside of a section; help: known keys: host, job",
            "a.toml:2:1: [job] needs an \"every\" key; help: \"every\" is the interval of the job, for example every = \"1h\"",
            "a.toml:4:1: unknown key \"kepp\" in [job]; help: did you mean \"keep\"?",
            "a.toml:5:1: unknown key \"zz\" in [job]; help: known keys: every, keep",
            "a.toml:6:1: \"often\" was renamed to \"every\"; help: write \"every\" here",
            "a.toml:7:2: unknown section [jobs]; help: did you mean \"job\"?",
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
        problems[0].starts_with("a.toml:2:6: invalid name \"a b\"; help: use 1 to 64 letters"),
        "{problems:#?}"
    );
    assert!(problems[1].starts_with("a.toml:3:1: unknown key \"x\" in [job.\"a b\"]"), "{problems:#?}");
}

#[test]
fn a_list_has_each_value_once_at_its_place() {
    let (found, problems) = read("x = [3, 1,\n 3, 'y']\n", |root| {
        let nodes = root.once("x").unwrap().list("numbers").unwrap();
        distinct(&nodes, |node| node.number(1..=9_u8), Node::again)
    });
    assert_eq!(values(&found), [3, 1]);
    assert_eq!(found[1].place.field.to_string(), "x[1]");
    assert_eq!(
        problems,
        [
            "a.toml:2:2: \"x\" lists 3 twice",
            "a.toml:2:5: \"x[3]\" must be an integer, got \"y\"; help: use a number between 1 and 9"
        ]
    );
}

#[test]
fn behind_broken_toml_nothing_is_missed_that_was_not_read() {
    let (_, problems) = read("x = [1\n[job]\nkeep = 0\n", |root| {
        root.required("host", "add it");
        let mut job = root.once("job").unwrap().section().unwrap();
        job.or("keep", 1, |node| node.number(1..=9_u8));
        job.finish();
    });
    assert_eq!(
        problems,
        [
            "a.toml:1:7: `[` is not closed; help: add `]`",
            "a.toml:3:8: \"keep\" must be between 1 and 9, got 0",
        ]
    );
}

/// A temporary folder that is removed when it is dropped.
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

/// Returns the job names in `in/a.toml`, and the problems without the path of the temporary folder.
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
    (names, problems.iter().map(|problem| printed(problem).replace(&prefix, "")).collect())
}

#[test]
fn included_files_are_merged_and_named() {
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
    let second = "in/../b.toml:2:1: section [job.c] is defined twice; help: the first definition is job.c in in/more/2.toml:1";
    assert_eq!(problems, [second]);
    let beyond = BaseDir::around(&folder.0.join("in/a.toml"));
    let (names, problems) = jobs(&folder, Some(&beyond));
    assert_eq!(names, ["a", "b", "c"]);
    assert_eq!(problems.len(), 2, "{problems:#?}");
    assert!(problems[0].starts_with("in/a.toml:1:27: \"../b.toml\" is outside the configuration's folder"));
    assert!(problems[1].starts_with("in/a.toml:1:40: \".?/*.txt\" is outside the configuration's folder"));
}

#[test]
fn cost_of_many_problems_on_one_line_is_linear() {
    let steps = |count: usize| {
        let text = format!("x = [{}]\n", "\"\u{e9}\",".repeat(count));
        steps::of(|| {
            let (_, problems) = read(&text, |root| {
                let list = root.once("x").and_then(|node| node.list("a list")).unwrap();
                for node in list {
                    node.number::<u8>(1..=9);
                }
            });
            assert_eq!(problems.len(), count);
            assert!(problems[1].starts_with("a.toml:1:10: "), "{}", problems[1]);
        })
    };
    let few = steps(1_000);
    let many = steps(8_000);
    assert!(many <= 9 * few, "{few} steps, {many} steps for a line 8 times as long");
}

#[test]
fn only_the_first_problems_have_excerpts() {
    let text: String = (0..1_200).map(|number| format!("z{number} = 1\n")).collect();
    let report = Report::default();
    let parts = gather(&report, Path::new("a.toml"), text, &[], None);
    Root::new(&report, &parts).finish();
    let problems = report.finish().unwrap_err();
    let shown: Vec<bool> = problems.iter().map(|problem| problem.excerpt.is_some()).collect();
    assert_eq!(shown, [vec![true; 1_000], vec![false; 200]].concat());
}

#[test]
fn hints_of_a_report_take_bounded_work() {
    let known: Vec<String> = (0..1_000).map(|number| format!("{number:060}")).collect();
    let report = Report::default();
    let work = steps::of(|| {
        (0..20)
            .for_each(|number| _ = report.hint(&format!("{number:061}"), known.iter().map(String::as_str)));
    });
    assert!(work < 2 << 24, "{work} pairs of characters were compared");
}
