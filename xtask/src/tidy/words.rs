//! Names that were replaced by the field's own, and must not come back.
//!
//! In: a file of Rust. Out: a finding for each old name in its code; comments may use the word.
//! A name that is a common word is kept out of the files alone where it meant something private.

/// A name that was replaced.
struct Renamed {
    old: &'static str,
    /// Start of the paths where it may not stand.
    within: &'static str,
    new: &'static str,
}

/// Findings in a file, whose path is `name`.
pub(super) fn check(name: &str, text: &str) -> Vec<String> {
    if !name.ends_with(".rs") || name.ends_with("tidy/words.rs") {
        return Vec::new();
    }
    let rules: Vec<&Renamed> = RENAMED.iter().filter(|renamed| name.starts_with(renamed.within)).collect();
    let mut found = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let code = line.split("//").next().unwrap_or_default();
        for word in code.split(|c: char| !c.is_alphanumeric() && c != '_') {
            if let Some(Renamed { old, new, .. }) = rules.iter().find(|renamed| renamed.old == word) {
                found.push(format!("{name}:{}: {old} is called {new}", number + 1));
            }
        }
    }
    found
}

const fn renamed(old: &'static str, within: &'static str, new: &'static str) -> Renamed {
    Renamed { old, within, new }
}

const RENAMED: [Renamed; 0] = [];
