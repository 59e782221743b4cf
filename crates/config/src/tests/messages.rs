//! Snapshot tests of the error messages. Each case in `messages/` has a title, TOML text, and the
//! printed problems.
//!
//! `UPDATE_SNAPSHOTS=1 cargo test -p sluicegate-config messages` rewrites the snapshot files.

use std::path::Path;

use super::*;

/// Sections that are appended to each case. A section is omitted if the case already has it, or has
/// the line `# without [SECTION]`.
const SECTIONS: [(&str, &str); 4] = [
    ("[cluster]", "name = \"fra1\"\nhash_key_file = \"k\""),
    ("[machine.lb1]", "addresses = [\"192.0.2.1\"]\ninterfaces = [\"eth0\"]"),
    ("[pool.web]", "backends = [{ name = \"b1\", address = \"198.18.1.1\" }]"),
    (
        "[vip.www]",
        "addresses = [\"203.0.113.10\"]\nservices = [{ ports = [80], protocol = \"tcp\", pool = \"web\" }]",
    ),
];
const SNAPSHOTS: [(&str, &str); 2] = [
    ("values.txt", include_str!("messages/values.txt")),
    ("sections.txt", include_str!("messages/sections.txt")),
];

/// Appends the missing sections. The sections are added after `case`, so that the line numbers of
/// `case` do not change.
fn complete(case: &str) -> String {
    let has = |header: &str| {
        let dropped = format!("# without {header}");
        case.lines().any(|line| line == header || line == dropped)
    };
    let missing = SECTIONS.iter().filter(|(header, _)| !has(header));
    let missing: String = missing.map(|(header, keys)| format!("{header}\n{keys}\n")).collect();
    format!("{case}\n{missing}")
}

fn printed_for(case: &str) -> String {
    match parse(&complete(case), Path::new("lb.toml"), &|_| Ok(KEY.to_owned())) {
        Ok((_, problems)) | Err(problems) => without_unchecked(&problems).to_string(),
    }
}

#[test]
fn messages_are_as_in_the_snapshots() {
    let mut count = 0;
    for (name, snapshot) in SNAPSHOTS {
        let (head, cases) = snapshot.split_once("\n## ").unwrap();
        let mut now = head.to_owned();
        for case in cases.trim_end().split("\n\n## ") {
            let (title, rest) = case.split_once('\n').unwrap();
            let input = rest.split("\n--\n").next().unwrap();
            now += &format!("\n## {title}\n{input}\n--\n{}\n", printed_for(input));
            count += 1;
        }
        if std::env::var_os("UPDATE_SNAPSHOTS").is_some() {
            let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/tests/messages");
            std::fs::write(folder.join(name), &now).unwrap();
            continue;
        }
        let line = now.lines().zip(snapshot.lines()).find(|(now, then)| now != then);
        assert!(now == snapshot, "UPDATE_SNAPSHOTS=1 rewrites {name}, which differs first in {line:#?}");
    }
    assert!(count >= 60, "{count}");
}

/// No message contains a secret, even if the secret is the value of a wrong key or next to another
/// error.
#[test]
fn reports_show_no_secrets() {
    let secret = "c4nary-9f8e";
    for case in [
        "[bgp]\nasn = 65101\npeers = [{ address = \"192.0.2.0\", asn = 0, password = \"SECRET\" }]",
        "[bgp]\nasn = 65101\npeers = [{ passwrd = \"SECRET\", address = \"192.0.2.0\", asn = 0 }]",
        "[bgp]\nasn = 65101\n[[bgp.peers]]\naddress = \"192.0.2.0\"\nasn = 65000\npassword = \"\"\"\nSECRET\"\"\"",
        "[cluster]\nname = \"c\"\nhash_key = \"SECRET\"",
        "[cluster]\nname = \"c\"\nhash_key_file = \"k\"\nhash = { key = \"SECRET\" }",
        "[check.c]\nhttp = { headers = { X-Auth = \" SECRET\" }, port = 0 }",
        "[check.c]\nhttp = { port = 0, headers = { authorization = \"Basic SECRET\" } }",
        "[check.c]\nhttp = [{ headers = { authorization = \"Basic SECRET\" } }]",
        "[check.c]\nhttp = { headers = [\"cookie=SECRET\"] }",
        "password = \"SECRET",
    ] {
        let printed = printed_for(&case.replace("SECRET", secret));
        assert!(printed.contains("error: ") && !printed.contains(secret), "{case}:\n{printed}");
    }
}
