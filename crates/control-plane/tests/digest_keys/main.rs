//! Tests the effect of every configuration key on the digest. Only keys that must be the same on
//! all machines may change the digest.
//!
//! The keys are read from the annotated example. Another test checks that the example contains
//! every key. A new key makes this test fail until a row for the key is added.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

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
use serde_json::Value as Json;
use toml::{Table, Value};

use crate::rows::{NOT_WRITTEN, OWN_SECTIONS, PEER_ROWS, ROWS, SAME, UNCHANGEABLE};
use crate::writer::{Writer, pattern};

/// Returns the example configuration with all optional keys set, with all checks in use, and with a
/// peer that no VIP uses.
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
    // A small table is built faster, and the test builds many tables.
    set(&mut tree, "cluster.table_size", "1009");
    set(&mut tree, "vip.edge-cache.remotes", "['fra2']");
    set(
        &mut tree,
        "pool.cache.checks",
        "['cache', 'redis', 'ldap', 'smtp', 'echo', 'stun', 'sip', 'api', 'rpc', 'names', 'time']",
    );
    // Keyed pools cannot have agent checks.
    set(&mut tree, "pool.web.checks", "['web', 'web-tcp', 'load', 'load-hex', 'database']");
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

/// Sets the key at `path` to `text`, or removes the key if `text` is empty.
fn set(tree: &mut Value, path: &str, text: &str) {
    let (last, parents) = path.rsplit_once('.').map_or((path, None), |(parents, last)| (last, Some(parents)));
    let mut at = tree;
    for part in parents.iter().flat_map(|parents| parents.split('.')) {
        at = at.as_table_mut().unwrap().entry(part).or_insert_with(|| Value::Table(Table::new()));
        if !at.is_table() {
            *at = Value::Table(Table::new()); // An absent section is represented by `false`.
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

/// Applies the changes of the given rows. If two rows change the same key, the last row applies.
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

/// Returns the keys that machines must agree on. Each file name is replaced by a name for the
/// content of the file.
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

/// Writes the configuration with its files, and parses it.
fn read(tree: &Value, order: u64) -> Result<Arc<Config>, String> {
    let folder = Folder::new();
    let file = folder.write("a.toml", &Writer(order).file(tree), 0o644);
    load(&file).map(|(config, _)| Arc::new(config)).map_err(|problems| problems.to_string())
}

fn digest(tree: &Value, order: u64) -> Result<[u8; 32], String> {
    read(tree, order).map(|config| of_configuration(&config))
}

/// Returns the sentences about differences for both machines, without the sentence that a machine
/// is not affected.
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
        |sentence: &String| sentence.starts_with("no change for") || sentence.starts_with("only comments");
    ["lb1", "lb2"].into_iter().flat_map(of).filter(|sentence| !nothing(sentence)).collect()
}

#[test]
fn each_key_is_in_the_diff_and_in_the_correct_digest() {
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
                    wrong.push(format!("{what}: the diff must report it: {}", !is_the_same));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_key_of_the_example_has_a_row() {
    let mut keys = BTreeSet::new();
    leaves("", &whole(), &mut keys);
    let mut touched: BTreeSet<String> = UNCHANGEABLE.iter().map(|key| (*key).to_owned()).collect();
    touched.extend(PEER_ROWS.iter().map(|(key, _)| format!("bgp.peers.{key}")));
    let known = whole();
    for (row, edits) in ROWS.iter().enumerate().map(|(number, row)| (number, row.edits)) {
        let now = changed([row]);
        for (path, text) in edits {
            // A row that removes a section removes all its keys. These keys still need separate
            // rows.
            if text.is_empty() && is_section(path, &known) {
                continue;
            }
            // The keys below `path` that this row changes.
            let (before, after) = (flat(path, &known), flat(path, &now));
            touched.extend(before.symmetric_difference(&after).map(|(key, _)| pattern(key)));
        }
    }
    let prefix = |key: &String| touched.iter().any(|path| key.starts_with(&format!("{path}.")));
    let absent: Vec<_> = keys.iter().filter(|key| !touched.contains(*key) && !prefix(key)).collect();
    assert!(absent.is_empty(), "no row changes {absent:#?}");
}

/// For each key with a documented default, compares setting the default with omitting the key.
#[test]
fn documented_defaults_match_the_code() {
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
            // The default conflicts with another key of the example, so the configuration is
            // invalid with the default and without the key.
            (Err(_), Err(_)) => {}
            (Ok(_), Ok(_)) => wrong.push(format!("{path}: the default is not {default}")),
            (with, without) => {
                wrong.push(format!("{path} = {default}: {:?} {:?}", with.err(), without.err()))
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(found > 40, "{found} defaults were found in the example");
}

/// Returns all keys that have a documented default, with the default.
fn defaults() -> Vec<(String, String)> {
    let mut found = Vec::new();
    collect("", &whole(), &config::schema(), &mut found);
    found
}

fn collect(path: &str, value: &Value, schema: &Json, found: &mut Vec<(String, String)>) {
    let Value::Table(table) = value else { return };
    let variants = schema["anyOf"].as_array().map_or_else(|| vec![schema], |all| all.iter().collect());
    let below = |key: &str| {
        let of = |schema: &&Json| {
            let named = schema["properties"].get(key).cloned();
            named.or_else(|| schema.get("additionalProperties").filter(|schema| schema.is_object()).cloned())
        };
        variants.iter().find_map(of)
    };
    for (key, value) in table {
        let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
        let Some(schema) = below(key) else { continue };
        if let Some(default) = schema.get("default") {
            let text = default.as_str().filter(|text| text.starts_with('{')).map(str::to_owned);
            found.push((path.clone(), text.unwrap_or_else(|| default.to_string())));
        }
        collect(&path, value, &schema, found);
    }
}

fn is_section(path: &str, tree: &Value) -> bool {
    path.split('.').try_fold(tree, |at, part| at.get(part)).is_some_and(Value::is_table)
}

/// Returns the keys below `path` with their values.
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

    /// Compares the digests of two machines. Their files have different changes, a different order
    /// and different spellings of numbers and addresses.
    #[test]
    fn digests_agree_exactly_if_the_agreed_keys_are_equal(
        both in some_rows(), one in some_rows(), other in prop::option::of(some_rows()), overrides: [u64; 2]
    ) {
        // Half of all pairs differ only in keys that may differ between machines.
        let only_own = |row: &usize| ROWS.get(*row).is_none_or(|row| !row.counts);
        let other = other.unwrap_or_else(|| one.iter().copied().filter(only_own).collect());
        let trees = [&one, &other].map(|more| changed(both.union(more).copied()));
        let digests = [digest(&trees[0], overrides[0]), digest(&trees[1], overrides[1])];
        // Skips combinations of changes that are not valid.
        prop_assume!(digests.iter().all(Result::is_ok));
        let [one, other] = trees.map(must_agree);
        prop_assert_eq!(digests[0] == digests[1], one == other);
    }
}

struct Folder(PathBuf);

impl Folder {
    /// Creates a folder that contains all files to which the configuration refers.
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
            ("secrets/client.key", &pem("PRIVATE KEY", "Y2xpZW50"), 0o600),
            ("client.pem", &pem("CERTIFICATE", "Y2xpZW50"), 0o644),
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

const EXAMPLE: &str = include_str!("../../../config/every-key.toml");
