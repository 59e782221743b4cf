//! Rejects the old names of identifiers that were renamed to standard terms.
//!
//! The old name of an identifier is a finding in code, but comments may contain it. Some old names
//! are common words. Such a name is a finding only in the files in which the old identifier had a
//! special meaning.

/// An identifier that was renamed.
struct Renamed {
    old: &'static str,
    /// The old name is rejected only in files whose path begins with this prefix.
    within: &'static str,
    new: &'static str,
}

/// Returns the findings in one file. The argument `name` is the path of the file.
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
                found.push(format!("{name}:{}: rename {old} to {new}", number + 1));
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
    renamed("askers", "", "waiting or connected"),
    renamed("barred", "crates/", "excluded_slots"),
    renamed("growth", "crates/forwarder/", "encap_overhead"),
    renamed("told", "", "announced, reported or flushed"),
    renamed("too_big_told", "crates/", "packet_too_big_sent"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_name_is_a_finding_only_as_a_whole_word_in_code() {
        let code = "//! Work.\nstruct Work; // Work\nfn f() { let Workload = Works; }\n";
        let found = check("crates/forwarder/src/x.rs", code);
        assert_eq!(found, ["crates/forwarder/src/x.rs:2: rename Work to PacketState"]);
        assert_eq!(check("crates/bgp/src/x.rs", code), [""; 0]);
        assert_eq!(check("crates/forwarder/README.md", code), [""; 0]);
    }
}
