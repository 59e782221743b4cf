//! Tests of configurations that a client sends with `config put`: the files that they may read, and
//! error messages without file content.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};

use super::admin::{CERTIFICATE, PRIVATE};
use super::files::Folder;
use super::{BASE, printed, without_unchecked};
use crate::{SecretName, parse_confined, read_secret};

/// Returns the problems in a configuration that was sent by a client.
fn refusals(folder: &Folder, text: &str) -> Vec<String> {
    let credentials = folder.0.join("credentials");
    let secrets = |name: &SecretName| read_secret(name, &|_| Some(credentials.clone().into()));
    let put = parse_confined(text, &folder.0.join("etc/a.toml"), &secrets);
    put.map_or_else(|problems| without_unchecked(&problems).iter().map(printed).collect(), |_| Vec::new())
}

/// Creates the configuration folder `etc`, a folder of credentials, and files outside both.
fn folder() -> Folder {
    let folder = Folder::new();
    for inner in ["etc/tls", "credentials"] {
        fs::create_dir_all(folder.0.join(inner)).unwrap();
    }
    let key = "00112233445566778899aabbccddeeff\n";
    for (name, text) in [("etc/k", key), ("k", key), ("credentials/k", key)] {
        folder.write(name, text, 0o600);
    }
    for at in ["etc/tls/", ""] {
        folder.write(&format!("{at}c.pem"), CERTIFICATE, 0o644);
        folder.write(&format!("{at}k.pem"), PRIVATE, 0o600);
    }
    symlink("../k", folder.0.join("etc/link")).unwrap();
    symlink("../c.pem", folder.0.join("etc/link.pem")).unwrap();
    folder
}

/// Returns a configuration that uses the given files for the hash key and for the certificate and
/// key of `admin.tcp`.
fn text(hash_key: &str, certificate: &str, key: &str) -> String {
    format!(
        "{}[admin]\ntcp = {{ listen = [\"192.0.2.1:9851\"], certificate_file = \"{certificate}\", key_file = \"{key}\", \
         client_ca_file = \"tls/c.pem\" }}\n",
        BASE.replace("\"k\"", &format!("\"{hash_key}\""))
    )
}

// Promise: config-confined
#[test]
fn secrets_lie_in_the_folder_or_are_credentials() {
    let folder = folder();
    let there = |name: &str| folder.0.join(name).display().to_string();
    assert_eq!(refusals(&folder, &text("k", "tls/c.pem", "tls/k.pem")), [""; 0]);
    assert_eq!(refusals(&folder, &text("credential:k", "./tls/c.pem", &there("etc/tls/k.pem"))), [""; 0]);
    for (good, bad) in [("k", "k"), ("tls/c.pem", "c.pem"), ("tls/k.pem", "k.pem")] {
        let absolute = there(bad);
        for outside in [&format!("../{bad}"), &absolute, "../no-such-file", "/dev/stdin", "link", "link.pem"]
        {
            let at = |name| if name == good { outside } else { name };
            let found = refusals(&folder, &text(at("k"), at("tls/c.pem"), at("tls/k.pem")));
            assert_eq!(found.len(), 1, "{good} {outside}: {found:#?}");
            let said = "is outside the configuration's folder";
            assert!(found[0].contains(said), "{good} {outside}: {found:#?}");
        }
    }
    let check = "[check.c]\nhttps = { port = 443, path = \"/\", ca_file = \"../c.pem\" }\n";
    let pool_checks = BASE.replace("[io]", &format!("{check}[io]"));
    let found = refusals(&folder, &pool_checks);
    assert!(found.iter().any(|said| said.contains("https.ca_file: \"../c.pem\" is outside")), "{found:#?}");
}

// Promise: config-confined
#[test]
fn a_refusal_says_nothing_of_what_a_file_holds() {
    let folder = folder();
    let mut first = None;
    for canary in [
        "canary",
        "canary canary\nca nary\n",
        "-----BEGIN canary\n",
        "-----BEGIN CERTIFICATE-----\ncanary!\n-----END canary",
        "ca\u{1}nary",
        "00112233445566778899aabbccddeeff-canary",
    ] {
        folder.write("etc/note", canary, 0o600);
        folder.write("credentials/note", canary, 0o600);
        let mut found = Vec::new();
        for (hash_key, certificate, key) in [
            ("note", "tls/c.pem", "tls/k.pem"),
            ("k", "note", "tls/k.pem"),
            ("k", "tls/c.pem", "note"),
            ("credential:note", "tls/c.pem", "tls/k.pem"),
        ] {
            found.extend(refusals(&folder, &text(hash_key, certificate, key)));
        }
        found.extend(refusals(&folder, &format!("include = [\"note\"]\n{BASE}")));
        assert_eq!(found.len(), 5, "{canary}: {found:#?}");
        for said in &found {
            assert!(!said.contains("nary"), "{canary}: {said}");
        }
        let first = first.get_or_insert_with(|| found.clone());
        assert_eq!(*first, found, "the messages do not depend on the content: {canary:?}");
    }
    // Messages may reveal that a file does not exist, or that other users can read it.
    fs::set_permissions(folder.0.join("etc/note"), fs::Permissions::from_mode(0o644)).unwrap();
    assert!(
        refusals(&folder, &text("note", "tls/c.pem", "tls/k.pem"))[0].contains("can be read by other users")
    );
    assert!(refusals(&folder, &text("absent", "tls/c.pem", "tls/k.pem"))[0].contains("no such file"));
}
