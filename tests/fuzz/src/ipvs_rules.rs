//! A fuzz target for the import of IPVS rules. Rules must be either rejected or converted to a
//! valid configuration.

use std::path::Path;

use config::Severity;

/// Checks that a conversion produces a valid configuration, and that a second conversion produces
/// the same result.
pub(crate) fn check(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let Ok(import) = import::ipvs(text, Path::new("rules")) else { return };
    let key = |_: &config::SecretName| Ok("000102030405060708090a0b0c0d0e0f".to_owned());
    if let Err(problems) = config::parse(&import.toml, Path::new("a.toml"), &key) {
        let errors = problems.iter().filter(|problem| problem.severity == Severity::Error);
        panic!("{:?}\n{}", errors.map(ToString::to_string).collect::<Vec<_>>(), import.toml);
    }
    let lines = text.lines().count();
    assert!(import.notes.iter().all(|note| (1..=lines).contains(&note.line)), "{:?}", import.notes);
    assert!(import.notes.iter().all(|note| !note.words.contains(char::is_control)), "{:?}", import.notes);
}

pub(crate) fn saves() -> Vec<Vec<u8>> {
    vec![include_bytes!("../../../crates/import/src/tests/ipvs.rules").to_vec()]
}
