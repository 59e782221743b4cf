//! Tests of included files: which files are read, their order, and the positions of problems.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use proptest::prelude::*;

use super::admin::CERTIFICATE as PEM;
use super::files::Folder;
use super::{BASE, KEY, all_printed, printed, without_unchecked};
use crate::{Config, Problems, Severity, Source, load_with, parse_confined};

fn loaded(folder: &Folder) -> Result<(Config, Problems), Problems> {
    let loaded = load_with(&folder.0.join("a.toml"), &|_| Ok(KEY.to_owned()));
    loaded.map(|(config, all)| (config, without_unchecked(&all))).map_err(|all| without_unchecked(&all))
}

/// Creates a folder with these files. The base configuration is appended to `a.toml`.
fn folder(files: &[(&str, &str)]) -> Folder {
    let folder = Folder::new();
    for (name, text) in files {
        let path = folder.0.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        let text = if *name == "a.toml" { format!("{text}\n{BASE}") } else { (*text).to_owned() };
        fs::write(path, text).unwrap();
    }
    folder
}

/// Returns the problems without the path of the folder.
fn problems(folder: &Folder) -> Vec<String> {
    let problems = loaded(folder).map_or_else(|errors| errors, |(_, warnings)| warnings);
    let prefix = format!("{}/", folder.0.display());
    problems.iter().map(|problem| printed(problem).replace(&prefix, "")).collect()
}

fn names(folder: &Folder, sources: &[Source]) -> Vec<String> {
    let name = |source: &Source| source.path().strip_prefix(&folder.0).unwrap().display().to_string();
    sources.iter().map(name).collect()
}

fn vip(name: &str, last: u8) -> String {
    format!(
        "[vip.{name}]\naddresses = [\"203.0.113.{last}\"]\nservices = [{{ ports = [80], protocol = \"tcp\", pool = \"p\" }}]\n"
    )
}

#[test]
fn included_sections_merge_in_the_order_of_names() {
    let (x, y, z) = (vip("x", 2), vip("y", 3), vip("z", 4));
    let folder = folder(&[
        ("a.toml", "include = [\"z.toml\", \"vips/?[xyz].toml\", \"vips/*.toml\"]"),
        ("z.toml", &z),
        ("vips/1y.toml", &y),
        ("vips/1x.toml", &format!("include = [\"../pools/q.toml\"]\n{x}")),
        ("vips/.hidden.toml", "not = toml = at all"),
        ("vips/sub/deeper.toml", "not = toml = at all"),
        ("pools/q.toml", "[pool.q]\nbackends = [{ name = \"b2\", address = \"198.18.0.2\" }]\n"),
    ]);
    let (config, warnings) = loaded(&folder).unwrap();
    assert_eq!(warnings.len(), 1, "{warnings}"); // pool.q is not used
    let vips: Vec<&str> = config.vips().iter().map(|vip| &*vip.name).collect();
    assert_eq!((vips, config.pools().len()), (vec!["v", "x", "y", "z"], 2));
    let expected = ["a.toml", "z.toml", "vips/1x.toml", "vips/../pools/q.toml", "vips/1y.toml"];
    assert_eq!(names(&folder, config.sources()), expected);
}

#[test]
fn a_problem_names_the_file_that_it_stands_in() {
    let folder = folder(&[
        ("a.toml", "include = [\"b.toml\", \"c.toml\", \"none.toml\", \"*.nothing\"]"),
        (
            "b.toml",
            "# a comment\n[vip.w]\naddresses = [\"203.0.113.1\"]\nservices = [{ ports = [80], protocol = \"tcp\", pool = \"q\" }]\n",
        ),
        (
            "c.toml",
            "[pool.p]\nbackends = [{ name = \"b1\", address = \"198.18.0.9\" }]\n[io]\nbatch = 0\n[vip]\n",
        ),
    ]);
    assert_eq!(
        problems(&folder),
        [
            "a.toml:1:32: include[2]: cannot read \"none.toml\" (no such file)",
            "a.toml:1:45: warning: include[3]: no file matches \"*.nothing\"; help: fix the pattern or remove it",
            "b.toml:4:13: vip.w.services[0]: 203.0.113.1 tcp port 80 already belongs to another service; help: the other service is vip.v.services[0] in a.toml:17",
            "b.toml:4:54: vip.w.services[0].pool: unknown pool \"q\"; help: did you mean \"p\"?",
            "c.toml:1:1: pool.p: section [pool.p] is defined twice; help: the first definition is pool.p in a.toml:12",
            "c.toml:3:1: io: section [io] is defined twice; help: the first definition is io in a.toml:8; merge the two sections",
        ]
    );
}

#[test]
fn a_name_is_relative_and_names_files() {
    let folder = folder(&[
        ("a.toml", "include = [\"/etc/x.toml\", \"**/*.toml\", \"\", 3, \"[\", \"d\", \"d*\", \"u.toml\"]"),
        ("d/x", ""),
    ]);
    fs::write(folder.0.join("u.toml"), b"# \n\xff").unwrap();
    let shown = problems(&folder);
    let parts = [
        "include[0]: \"include[0]\" must be a file or a pattern with *, ? or [a-z] (without **), relative to this file's folder, got \"/etc/x.toml\"; help: for example \"vips/*.toml\"",
        "include[1]: \"include[1]\" must be a file or a pattern with *, ? or [a-z] (without **), relative to this file's folder, got \"**/*.toml\"; help: for example \"vips/*.toml\"",
        "include[2]: \"include[2]\" must be a file or a pattern with *, ? or [a-z] (without **), relative to this file's folder, got \"\"; help: for example \"vips/*.toml\"",
        "include[3]: \"include[3]\" must be a file or a pattern with *, ? or [a-z] (without **), relative to this file's folder, got 3; help: for example \"vips/*.toml\"",
        "include[4]: invalid pattern \"[\" (invalid range pattern)",
        "include[5]: cannot read \"d\" (it is a folder, not a file)",
        "include[6]: cannot read \"d\" (it is a folder, not a file)",
        "include[7]: cannot read \"u.toml\" (line 2 is not UTF-8)",
    ];
    assert_eq!(shown.len(), parts.len(), "{shown:#?}");
    for (shown, part) in shown.iter().zip(parts) {
        assert!(shown.contains(part), "{part:?} not in {shown}");
    }
    let status = std::process::Command::new("mkfifo").arg(folder.0.join("pipe")).status().unwrap();
    assert!(status.success());
    fs::write(folder.0.join("a.toml"), format!("include = [\"pipe\"]\n{BASE}")).unwrap();
    assert!(problems(&folder)[0].contains("cannot read \"pipe\" (not a regular file)"));
}

#[test]
fn a_loop_is_named() {
    let folder = folder(&[
        ("a.toml", "include = [\"d/b.toml\"]"),
        ("d/b.toml", "include = [\"c.toml\"]"),
        ("d/c.toml", "include = [\"b.toml\", \"../a.toml\", \"same.toml\"]"),
    ]);
    symlink("c.toml", folder.0.join("d/same.toml")).unwrap();
    let end = "help: remove one of these includes";
    assert_eq!(
        problems(&folder),
        [
            format!(
                "d/c.toml:1:12: include[0]: files include each other in a cycle, d/b.toml -> d/c.toml -> d/b.toml; {end}"
            ),
            format!(
                "d/c.toml:1:22: include[1]: files include each other in a cycle, a.toml -> d/b.toml -> d/c.toml -> d/../a.toml; {end}"
            ),
            format!(
                "d/c.toml:1:35: include[2]: files include each other in a cycle, d/c.toml -> d/same.toml; {end}"
            ),
        ]
    );
}

#[test]
fn depth_number_and_size_are_bounded() {
    let chain = |last: usize| {
        let folder = folder(&[("a.toml", "include = [\"1\"]")]);
        for number in 1..last {
            fs::write(folder.0.join(number.to_string()), format!("include = [\"{}\"]\n", number + 1))
                .unwrap();
        }
        fs::write(folder.0.join(last.to_string()), "").unwrap();
        problems(&folder)
    };
    assert_eq!(chain(15), [""; 0]);
    assert_eq!(
        chain(16),
        [
            "15:1:12: include[0]: \"16\" is nested more than 16 files deep; help: include this file from a less deeply nested file"
        ]
    );
    let many = folder(&[("a.toml", "include = [\"f/*\"]")]);
    fs::create_dir(many.0.join("f")).unwrap();
    for number in 0..1_023 {
        fs::write(many.0.join(format!("f/{number}")), "").unwrap();
    }
    assert_eq!(problems(&many), [""; 0]);
    fs::write(many.0.join("f/x"), "").unwrap();
    assert_eq!(
        problems(&many),
        [
            "a.toml:1:12: include[0]: the configuration has more than 1024 files; help: merge some of the included files"
        ]
    );
    let large = folder(&[("a.toml", "include = [\"b\", \"c\"]"), ("c", "#")]);
    let first = fs::read(large.0.join("a.toml")).unwrap().len();
    fs::write(large.0.join("b"), vec![b'\n'; (16 << 20) - first - 1]).unwrap();
    assert_eq!(problems(&large), [""; 0]);
    fs::write(large.0.join("c"), "##").unwrap();
    assert_eq!(
        problems(&large),
        ["a.toml:1:17: include[1]: cannot read \"c\" (all files together are larger than 16 MiB)"]
    );
}

#[test]
fn the_digest_follows_every_files_text_and_not_where_it_lies() {
    let files = [("a.toml", "include = [\"b.toml\"]"), ("b.toml", "")];
    let (one, other) = (folder(&files), folder(&files));
    let (first, _) = loaded(&one).unwrap();
    let second = loaded(&other).unwrap().0;
    assert!(first == second && first.sources() != second.sources());
    assert_eq!(first.digest(), second.digest());
    fs::write(other.0.join("b.toml"), "#").unwrap();
    assert_ne!(first.digest(), loaded(&other).unwrap().0.digest());
    let output = std::process::Command::new("sha256sum").arg(one.0.join("b.toml")).output().unwrap();
    let hex: String = first.sources()[1].digest().iter().map(|byte| format!("{byte:02x}")).collect();
    assert!(
        String::from_utf8(output.stdout).unwrap().starts_with(&hex),
        "the digest of a file is the digest of its content"
    );
}

// Promise: secrets
#[test]
fn digest_depends_on_key_and_cas_without_showing_them() {
    let check = "[check.c]\nhttps = { ca_file = \"ca.pem\" }\n[check.idle]\nhttps = { ca_file = \"idle.pem\" }\n[pool.q]\nchecks = [\"c\"]\n\
                 backends = [{ name = \"b2\", address = \"198.18.0.2\" }]\n";
    let folder = folder(&[
        ("a.toml", "include = [\"b.toml\"]"),
        ("b.toml", check),
        ("ca.pem", PEM),
        ("idle.pem", PEM),
    ]);
    let with = |key: &str| load_with(&folder.0.join("a.toml"), &|_| Ok(key.to_owned())).unwrap().0;
    let (first, again) = (with(KEY), with(&format!(" {KEY}\n")));
    assert_eq!(first.digest(), again.digest(), "the digest does not depend on white space around the key");
    let other = KEY.replace("0f", "0e");
    assert_ne!(first.digest(), with(&other).digest(), "another key");
    let secretless = crate::load_without_secrets(&folder.0.join("a.toml")).unwrap().0;
    assert_ne!(first.digest(), secretless.digest(), "the digest depends on the key");
    let zeros = all_printed(&load_with(&folder.0.join("a.toml"), &|_| Ok("0".repeat(32))).unwrap_err());
    assert!(zeros.contains("cluster.hash_key") && zeros.contains("not all 0"), "{zeros}");
    fs::write(folder.0.join("ca.pem"), format!("another comment\n{PEM}")).unwrap();
    assert_ne!(first.digest(), with(KEY).digest(), "another CA file");
    assert!(first.sources() == with(KEY).sources(), "only files count for the comparison of sources");
    let before = with(KEY);
    fs::write(folder.0.join("idle.pem"), format!("another comment\n{PEM}")).unwrap();
    let after = with(KEY);
    assert!(before == after && before.digest() != after.digest(), "the CA belongs to an unused check");
    assert!(!before.is_same_text_as(&after), "a reload would keep a digest that a restart would change");
}

/// Parses a configuration with this `include` list as if a client had sent it. Returns the problems
/// if the configuration is rejected.
fn put(folder: &Folder, names: &str) -> Result<(), Vec<String>> {
    let text = format!("include = [{names}]\n{BASE}");
    let file = folder.0.join("etc/a.toml");
    let put = parse_confined(&text, &file, &|_| Ok(KEY.to_owned()));
    put.map(drop).map_err(|problems| without_unchecked(&problems).iter().map(printed).collect())
}

#[test]
fn confined_configuration_includes_its_folder_only() {
    let (x, secret) = (vip("x", 2), "root:x:0:0");
    let folder = folder(&[
        ("etc/vips/x.toml", &format!("include = [\"../pools/q.toml\"]\n{x}")),
        ("etc/pools/q.toml", "[pool.q]\nbackends = [{ name = \"b2\", address = \"198.18.0.2\" }]\n"),
        ("etc/climbs.toml", "include = [\"../secret\"]\n"),
        ("secret", secret),
        ("etcetera/y.toml", &vip("y", 3)),
    ]);
    symlink("../secret", folder.0.join("etc/link.toml")).unwrap();
    symlink("pools/q.toml", folder.0.join("etc/inside.toml")).unwrap();
    let outside = folder.0.join("secret").display().to_string();
    for good in ["\"vips/*.toml\"", "\"vips/../vips/x.toml\"", "\"./vips/x.toml\"", "\"inside.toml\""] {
        assert_eq!(put(&folder, good), Ok(()), "{good}");
    }
    for bad in [
        "../secret",
        "../sec*",
        "vips/../../secret",
        "vips/.?/.?/secret",
        ".*/secret",
        "../no-such-file",
        "../etcetera/y.toml",
        "../etc/../secret",
        "link.toml",
        "l*.toml",
        "climbs.toml",
        &outside,
        "/etc/passwd",
    ] {
        let problems = put(&folder, &format!("\"{bad}\"")).unwrap_err();
        assert_eq!(problems.len(), 1, "{bad}: {problems:#?}");
        assert!(problems[0].contains("is outside the configuration's folder"), "{bad}: {problems:#?}");
        assert!(!problems[0].contains("root:x"), "{bad}: {problems:#?}");
    }
    let absent = put(&folder, "\"absent.toml\"").unwrap_err();
    assert!(absent[0].contains("no such file"), "{absent:?}");
    // If the configuration is not sent by a client, any file may be included, because only its
    // owner can change the configuration.
    fs::write(folder.0.join("etc/a.toml"), format!("include = [\"../etcetera/y.toml\"]\n{BASE}")).unwrap();
    load_with(&folder.0.join("etc/a.toml"), &|_| Ok(KEY.to_owned())).unwrap();
}

#[test]
fn confined_file_without_folder_includes_siblings() {
    let secrets: crate::ReadSecret<'_> = &|_| Ok(KEY.to_owned());
    let problems = |name: &str| {
        let text = format!("include = [\"{name}\"]\n{BASE}");
        all_printed(&parse_confined(&text, Path::new("a.toml"), secrets).unwrap_err())
    };
    assert!(problems("no-such.toml").contains("no such file"));
    assert!(problems("../Cargo.toml").contains("is outside"));
}

#[test]
fn a_syntax_error_in_one_file_leaves_the_others_checked() {
    let folder = folder(&[("a.toml", "include = [\"b.toml\"]\n"), ("b.toml", "[io2\n")]);
    fs::write(folder.0.join("a.toml"), format!("include = [\"b.toml\"]\n{}", BASE.replace("64", "0")))
        .unwrap();
    let shown = problems(&folder);
    assert_eq!(shown.len(), 2, "{shown:#?}");
    assert!(
        shown[0].starts_with("a.toml:9:9: io.batch: \"batch\" must be between 1 and 256, got 0")
            && shown[1].starts_with("b.toml:1:"),
        "{shown:#?}"
    );
}

#[test]
fn keys_lie_beside_the_file_that_names_them() {
    let folder = folder(&[("a.toml", "include = [\"d/c.toml\"]")]);
    let cluster = "[cluster]\nname = \"c\"\nhash_key_file = \"k\"\n";
    fs::write(folder.0.join("a.toml"), format!("include = [\"d/c.toml\"]\n{}", BASE.replace(cluster, "")))
        .unwrap();
    fs::create_dir(folder.0.join("d")).unwrap();
    fs::write(folder.0.join("d/c.toml"), cluster).unwrap();
    let asked = std::cell::RefCell::new(Vec::new());
    load_with(&folder.0.join("a.toml"), &|name| {
        asked.borrow_mut().push(name.clone());
        Ok(KEY.to_owned())
    })
    .unwrap();
    assert_eq!(asked.take(), [crate::SecretName::File(folder.0.join("d/k"))]);
}

/// Follows includes in a tree of file numbers. Adds each file to `order`, and returns `true` if a
/// file includes itself directly or indirectly.
fn follow(tree: &[Vec<usize>], at: usize, path: &mut Vec<usize>, order: &mut Vec<usize>) -> bool {
    let mut ring = false;
    order.push(at);
    path.push(at);
    for next in &tree[at] {
        if path.contains(next) {
            ring = true;
        } else if !order.contains(next) {
            ring |= follow(tree, *next, path, order);
        }
    }
    path.pop();
    ring
}

/// Computes from the transitive closure whether a cycle can be reached from the first file.
fn has_ring(tree: &[Vec<usize>]) -> bool {
    let mut reach: BTreeSet<(usize, usize)> =
        tree.iter().enumerate().flat_map(|(at, next)| next.iter().map(move |next| (at, *next))).collect();
    for _ in 0..tree.len() {
        let longer: Vec<_> = reach
            .iter()
            .flat_map(|(a, b)| reach.iter().filter(move |(c, _)| b == c).map(move |(_, d)| (*a, *d)))
            .collect();
        reach.extend(longer);
    }
    reach.iter().any(|(a, b)| a == b && (*a == 0 || reach.contains(&(0, *a))))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn include_trees_agree_with_walking_them_by_hand(tree in prop::collection::vec(prop::collection::vec(0..7_usize, 0..4), 7)) {
        let folder = Folder::new();
        let name = |number: usize| if number == 0 { "a.toml".to_owned() } else { format!("{number}.toml") };
        for (number, next) in tree.iter().enumerate() {
            let list: Vec<String> = next.iter().map(|next| format!("\"{}\"", name(*next))).collect();
            let rest = if number == 0 { BASE.to_owned() } else { vip(&format!("x{number}"), u8::try_from(number).unwrap() + 1) };
            fs::write(folder.0.join(name(number)), format!("include = [{}]\n{rest}", list.join(", "))).unwrap();
        }
        let mut order = Vec::new();
        let ring = follow(&tree, 0, &mut Vec::new(), &mut order);
        prop_assert_eq!(ring, has_ring(&tree));
        match loaded(&folder) {
            Ok((config, _)) => {
                prop_assert!(!ring);
                let expected: Vec<PathBuf> = order.iter().map(|number| folder.0.join(name(*number))).collect();
                let read: Vec<PathBuf> = config.sources().iter().map(|source| source.path().to_owned()).collect();
                prop_assert_eq!(read, expected);
                prop_assert_eq!(config.vips().len(), order.len());
            }
            Err(problems) => {
                prop_assert!(ring);
                let errors = problems.iter().filter(|problem| problem.severity == Severity::Error);
                prop_assert!(errors.into_iter().all(|problem| problem.message.starts_with("files include each other in a cycle, ")));
            }
        }
    }
}
