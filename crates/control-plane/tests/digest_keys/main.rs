//! Every key of the configuration: which machines must agree on, which each may have of its own, and that order tells nothing.
//!
//! The keys are those of `config/sluicegate.toml`, which another test holds to have them all: a new one fails here until a row
//! says which it is.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod rows;
mod writer;

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use config::{Config, load};
use control_plane::digest::of_configuration;
use control_plane::{Controller, Running, Side, changes};
use proptest::collection::btree_set;
use proptest::prelude::*;
use toml::{Table, Value};

use crate::rows::{NOT_WRITTEN, OWN_SECTIONS, PEER_ROWS, ROWS, SAME, UNCHANGEABLE};
use crate::writer::{Writer, pattern};

/// The example with every key in force, every check in use, and a peer that no VIP names.
fn whole() -> Value {
    let opened = EXAMPLE.lines().map(|line| {
        let key = line
            .strip_prefix('#')
            .filter(|rest| rest.starts_with(|c: char| c.is_ascii_lowercase() || c == '['));
        format!("{}\n", key.unwrap_or(line))
    });
    let mut tree = Value::Table(opened.collect::<String>().parse().unwrap());
    set(&mut tree, "include", "");
    set(&mut tree, "io.steering", "'software'");
    // Small tables, as many are built.
    set(&mut tree, "cluster.table_size", "1009");
    set(&mut tree, "vip.edge-cache.remotes", "['fra2']");
    set(&mut tree, "pool.cache.checks", "['cache', 'api', 'rpc', 'names', 'time']");
    let peers = tree["bgp"]["peers"].as_array_mut().unwrap();
    let mut second = peers[0].clone();
    for (key, text) in
        [("name", "'tor2'"), ("address", "'192.0.2.6'"), ("machines", "['lb2']"), ("source", "")]
    {
        set(&mut second, key, text);
    }
    peers.push(second);
    tree
}

/// Puts `text` at a path; nothing, and the key goes.
fn set(tree: &mut Value, path: &str, text: &str) {
    let (last, parents) = path.rsplit_once('.').map_or((path, None), |(parents, last)| (last, Some(parents)));
    let mut at = tree;
    for part in parents.iter().flat_map(|parents| parents.split('.')) {
        at = at.as_table_mut().unwrap().entry(part).or_insert_with(|| Value::Table(Table::new()));
        if !at.is_table() {
            *at = Value::Table(Table::new()); // `false`, which says that there is none
        }
    }
    let table = at.as_table_mut().unwrap();
    if text.is_empty() {
        table.remove(last);
    } else {
        let value: Table = format!("it = {text}").parse().unwrap();
        table.insert(last.to_owned(), value["it"].clone());
    }
}

/// Whole with these rows' changes; the last of two that touch the same key counts.
fn changed(rows: impl IntoIterator<Item = usize>) -> Value {
    let mut tree = whole();
    for row in rows {
        match ROWS.get(row) {
            Some(row) => row.edits.iter().for_each(|(path, text)| set(&mut tree, path, text)),
            None => {
                let (key, text) = PEER_ROWS[row - ROWS.len()];
                if let Some(peers) = tree.get_mut("bgp").and_then(|bgp| bgp.get_mut("peers")) {
                    set(peers.as_array_mut().unwrap().last_mut().unwrap(), key, text);
                }
            }
        }
    }
    tree
}

/// What all machines must have alike, as written: names of files by what they hold.
fn must_agree(mut tree: Value) -> Value {
    let sections = tree.as_table_mut().unwrap();
    OWN_SECTIONS.iter().for_each(|section| drop(sections.remove(*section)));
    for (name, same) in [
        ("secrets/same.key", "secrets/hash.key"),
        ("same.pem", "ca.pem"),
        ("lists/same.txt", "lists/office.txt"),
    ] {
        rename(&mut tree, name, same);
    }
    tree
}

fn rename(value: &mut Value, from: &str, to: &str) {
    match value {
        Value::String(text) if text == from => to.clone_into(text),
        Value::Array(values) => values.iter_mut().for_each(|value| rename(value, from, to)),
        Value::Table(table) => table.iter_mut().for_each(|(_, value)| rename(value, from, to)),
        _ => {}
    }
}

/// The configuration, when it is valid.
fn read(tree: &Value, order: u64) -> Result<Arc<Config>, String> {
    let folder = Folder::new();
    let file = folder.write("a.toml", &Writer(order).file(tree), 0o644);
    load(&file).map(|(config, _)| Arc::new(config)).map_err(|problems| problems.to_string())
}

fn digest(tree: &Value, order: u64) -> Result<[u8; 32], String> {
    read(tree, order).map(|config| of_configuration(&config))
}

/// What `config diff` says of both machines, less that nothing is for one.
fn said(old: &Arc<Config>, new: &Arc<Config>) -> Vec<String> {
    let of = |machine| {
        let [before, after] = [old, new].map(|config| {
            Controller::start(Arc::clone(config), machine, Arc::default(), Duration::ZERO).unwrap().0
        });
        let (old, new) =
            (Side { config: old, index: before.index() }, Side { config: new, index: after.index() });
        changes(&Running::of(old.config, machine), old, new, machine).sentences
    };
    let nothing =
        |sentence: &String| sentence.starts_with("nothing for") || sentence.starts_with("only the text");
    ["lb1", "lb2"].into_iter().flat_map(of).filter(|sentence| !nothing(sentence)).collect()
}

#[test]
fn each_key_is_in_the_diff_and_in_the_digest_exactly_when_machines_must_agree_on_it() {
    let whole = read(&whole(), 0).unwrap();
    let known = of_configuration(&whole);
    let mut wrong = Vec::new();
    for row in 0..ROWS.len() + PEER_ROWS.len() {
        let (what, counts) = match ROWS.get(row) {
            Some(row) => (format!("{:?}", row.edits), row.counts),
            None => (format!("{:?}", PEER_ROWS[row - ROWS.len()]), false),
        };
        match read(&changed([row]), 0) {
            Err(problems) => wrong.push(format!("{what}: {problems}")),
            Ok(config) => {
                if (of_configuration(&config) != known) != counts {
                    wrong.push(format!("{what}: counts must be {counts}"));
                }
                let is_the_same = SAME.iter().any(|value| what.contains(value));
                if said(&whole, &config).is_empty() != is_the_same {
                    wrong.push(format!("{what}: the diff must say it: {}", !is_the_same));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn there_is_a_row_for_every_key_of_the_example() {
    let mut keys = BTreeSet::new();
    leaves("", &whole(), &mut keys);
    let mut touched: BTreeSet<String> = UNCHANGEABLE.iter().map(|key| (*key).to_owned()).collect();
    touched.extend(PEER_ROWS.iter().map(|(key, _)| format!("bgp.peers.{key}")));
    let known = whole();
    for (row, edits) in ROWS.iter().enumerate().map(|(number, row)| (number, row.edits)) {
        let now = changed([row]);
        for (path, text) in edits {
            // A section that goes takes all its keys along: that is no row of theirs.
            if text.is_empty() && is_section(path, &known) {
                continue;
            }
            // What the row changes below its path, key by key.
            let (before, after) = (flat(path, &known), flat(path, &now));
            touched.extend(before.symmetric_difference(&after).map(|(key, _)| pattern(key)));
        }
    }
    let prefix = |key: &String| touched.iter().any(|path| key.starts_with(&format!("{path}.")));
    let absent: Vec<_> = keys.iter().filter(|key| !touched.contains(*key) && !prefix(key)).collect();
    assert!(absent.is_empty(), "no row changes {absent:#?}");
}

/// `default VALUE` behind a key of the example is what the key's absence means.
#[test]
fn each_default_of_the_example_is_that_of_the_code() {
    let (mut wrong, mut found) = (Vec::new(), 0);
    for (path, default) in defaults() {
        if NOT_WRITTEN.contains(&path.as_str()) {
            continue;
        }
        let [mut with, mut without] = [whole(), whole()];
        set(&mut with, &path, &default);
        set(&mut without, &path, "");
        match (read(&with, 0), read(&without, 0)) {
            (Ok(with), Ok(without)) if with == without => found += 1,
            (Ok(_), Ok(_)) => wrong.push(format!("{path}: the default is not {default}")),
            (with, without) => {
                wrong.push(format!("{path} = {default}: {:?} {:?}", with.err(), without.err()))
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(found > 40, "{found} defaults were found in the example");
}

/// Paths of keys, each with what the comment behind it calls the default.
fn defaults() -> Vec<(String, String)> {
    let (mut section, mut key, mut found) = (String::new(), String::new(), Vec::new());
    for line in EXAMPLE.lines() {
        let line = line.strip_prefix('#').filter(|rest| !rest.starts_with(' ')).unwrap_or(line);
        if let Some(name) = line.strip_prefix('[') {
            section = name.split(']').next().unwrap().to_owned();
            key.clear();
        } else if line.starts_with(|c: char| c.is_ascii_lowercase()) {
            key = line.split(" =").next().unwrap().to_owned();
        } else if !line.starts_with("    ") {
            key.clear();
        }
        let Some((_, default)) = line.split_once('#').and_then(|(_, comment)| comment.split_once("default "))
        else {
            continue;
        };
        if key.is_empty() {
            continue;
        }
        let word = default.split([' ', ';']).next().unwrap().trim_end_matches([',', '.']);
        let plain = word.replace(',', "");
        let is_bare = plain.parse::<u64>().is_ok() || plain == "true" || plain == "false";
        let value = if is_bare { plain } else { format!("{word:?}") };
        let dot = if section.is_empty() { "" } else { "." };
        found.push((format!("{section}{dot}{key}"), value));
    }
    found
}

fn is_section(path: &str, tree: &Value) -> bool {
    path.split('.').try_fold(tree, |at, part| at.get(part)).is_some_and(Value::is_table)
}

/// Its keys below a path with what each says.
fn flat(path: &str, tree: &Value) -> BTreeSet<(String, String)> {
    let mut at = Some(tree);
    for part in path.split('.') {
        at = at.and_then(|value| value.get(part));
    }
    let mut found = BTreeSet::new();
    fn walk(path: &str, value: &Value, found: &mut BTreeSet<(String, String)>) {
        match value {
            Value::Table(table) => {
                table.iter().for_each(|(key, value)| walk(&format!("{path}.{key}"), value, found))
            }
            Value::Array(values) if values.iter().any(Value::is_table) => {
                values.iter().for_each(|value| walk(path, value, found));
            }
            value => drop(found.insert((path.to_owned(), value.to_string()))),
        }
    }
    at.into_iter().for_each(|value| walk(path, value, &mut found));
    found
}

fn leaves(path: &str, tree: &Value, found: &mut BTreeSet<String>) {
    for (key, value) in tree.as_table().unwrap() {
        let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
        match value {
            Value::Table(_) => leaves(&path, value, found),
            Value::Array(values) if values.iter().any(Value::is_table) => {
                values.iter().for_each(|value| leaves(&path, value, found));
            }
            _ => drop(found.insert(pattern(&path))),
        }
    }
}

fn some_rows() -> impl Strategy<Value = BTreeSet<usize>> {
    btree_set(0..ROWS.len() + PEER_ROWS.len(), 0..6)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(192) })]

    /// Two machines' files, each with its own changes, sections, keys and lists in another order, numbers and addresses in
    /// other spellings.
    #[test]
    fn machines_agree_exactly_when_their_files_say_the_same_of_what_counts(
        both in some_rows(), one in some_rows(), other in prop::option::of(some_rows()), orders: [u64; 2]
    ) {
        // Half of all pairs differ in what is a machine's own alone.
        let only_own = |row: &usize| ROWS.get(*row).is_none_or(|row| !row.counts);
        let other = other.unwrap_or_else(|| one.iter().copied().filter(only_own).collect());
        let trees = [&one, &other].map(|more| changed(both.union(more).copied()));
        let digests = [digest(&trees[0], orders[0]), digest(&trees[1], orders[1])];
        // Changes that do not go together are no configuration.
        prop_assume!(digests.iter().all(Result::is_ok));
        let [one, other] = trees.map(must_agree);
        prop_assert_eq!(digests[0] == digests[1], one == other);
    }
}

struct Folder(PathBuf);

impl Folder {
    /// With all that the file names.
    fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::SeqCst);
        let path = std::env::temp_dir().join(format!("sluicegate-keys-{}-{number}", std::process::id()));
        for folder in ["secrets", "lists"] {
            fs::create_dir_all(path.join(folder)).unwrap();
        }
        let folder = Self(path);
        let pem = |kind: &str, text: &str| format!("-----BEGIN {kind}-----\n{text}\n-----END {kind}-----\n");
        let key = "000102030405060708090a0b0c0d0e0f";
        for (name, text, mode) in [
            ("secrets/hash.key", key, 0o600),
            ("secrets/same.key", key, 0o600),
            ("secrets/other.key", "ff0102030405060708090a0b0c0d0e0f", 0o600),
            ("secrets/bgp.key", "s3cret", 0o600),
            ("secrets/admin.key", &pem("PRIVATE KEY", "YSBwcml2YXRlIGtleQ=="), 0o600),
            ("secrets/admin2.key", &pem("PRIVATE KEY", "YW5vdGhlcg=="), 0o600),
            ("admin.pem", &pem("CERTIFICATE", "YSBjZXJ0aWZpY2F0ZQ=="), 0o644),
            ("ca.pem", &pem("CERTIFICATE", "YSBjZXJ0aWZpY2F0ZQ=="), 0o644),
            ("same.pem", &pem("CERTIFICATE", "YSBjZXJ0aWZpY2F0ZQ=="), 0o644),
            ("other.pem", &pem("CERTIFICATE", "YW5vdGhlcg=="), 0o644),
            ("lists/office.txt", "198.51.100.0/24\n", 0o644),
            ("lists/same.txt", "# the same\n198.51.100.0/24\n", 0o644),
            ("lists/other.txt", "203.0.113.0/24\n", 0o644),
            ("lists/abuse.txt", "# nobody yet\n", 0o644),
        ] {
            folder.write(name, text, mode);
        }
        folder
    }

    fn write(&self, name: &str, text: &str, mode: u32) -> PathBuf {
        let path = self.0.join(name);
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

const EXAMPLE: &str = include_str!("../../../../config/sluicegate.toml");
