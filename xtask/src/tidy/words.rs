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

const RENAMED: [Renamed; 23] = [
    renamed("Ahead", "crates/", "BatchLookup"),
    renamed("Carriers", "crates/", "TunnelProtocols"),
    renamed("Catch", "crates/", "CaptureReceiver"),
    renamed("Circumstances", "crates/", "CompileInput"),
    renamed("Concerned", "crates/", "Affected"),
    renamed("Elsewhere", "crates/", "RemotePool"),
    renamed("Errand", "crates/", "HandoffReason"),
    renamed("Fence", "crates/", "BaseDir"),
    renamed("Figures", "crates/", "Stats"),
    renamed("Order", "crates/forwarder/", "RewriteParams"),
    renamed("Road", "crates/", "Stage"),
    renamed("Sender", "crates/forwarder/", "TunnelSourceKind"),
    renamed("Sighting", "crates/", "TraceEvent"),
    renamed("Standing", "crates/", "RuntimeState or VipStatus"),
    renamed("Strays", "crates/", "DetachedSlots"),
    renamed("Told", "", "Flush or Observed"),
    renamed("Way", "crates/", "Disposition, TxPath or Addressing"),
    renamed("Work", "crates/forwarder/", "PacketState"),
    renamed("askers", "", "what waits, or is connected"),
    renamed("barred", "crates/", "excluded_slots"),
    renamed("growth", "crates/forwarder/", "encap_overhead"),
    renamed("told", "", "what it was: announced, reported, flushed"),
    renamed("too_big_told", "crates/", "packet_too_big_sent"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_old_name_is_a_finding_in_code_and_none_in_a_comment_or_within_another_word() {
        let code = "//! Work.\nstruct Work; // Work\nfn f() { let Workload = Works; }\n";
        let found = check("crates/forwarder/src/x.rs", code);
        assert_eq!(found, ["crates/forwarder/src/x.rs:2: Work is called PacketState"]);
        assert_eq!(check("crates/bgp/src/x.rs", code), [""; 0]);
        assert_eq!(check("crates/forwarder/README.md", code), [""; 0]);
    }
}
