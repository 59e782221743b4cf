//! Checks whether the process has the capabilities that AF_XDP, packet sockets and BPF need. The
//! capabilities are read from `/proc/self/status`. This module only reads the capabilities, and the
//! binary drops them.
//!
//! See capabilities(7).

use std::io;

use super::Finding;

/// The effective capabilities of the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Privileges {
    effective: u64,
}

impl Privileges {
    /// Creates the value from a bit mask. Bit `n` is set if the process has capability `n`.
    #[must_use]
    pub const fn from_mask(effective: u64) -> Self {
        Self { effective }
    }

    /// Reads the capabilities of this process.
    ///
    /// # Errors
    /// The call fails if `/proc` is not mounted, or if `/proc/self/status` does not list
    /// capabilities.
    pub fn read() -> io::Result<Self> {
        Self::parse(&std::fs::read_to_string("/proc/self/status")?)
            .ok_or_else(|| io::Error::other("/proc/self/status has no CapEff line"))
    }

    fn parse(status: &str) -> Option<Self> {
        let mask = status.lines().find_map(|line| line.strip_prefix("CapEff:"))?;
        u64::from_str_radix(mask.trim(), 16).ok().map(Self::from_mask)
    }

    /// Returns `true` if the process has the capability with the number `bit`.
    #[must_use]
    pub const fn has(self, bit: u32) -> bool {
        self.effective & 1 << bit != 0
    }

    /// Returns `true` if the process has none of the alternative capabilities in `needed`. Any one
    /// of them would be sufficient.
    fn lacks(self, needed: &Needed) -> bool {
        needed.any_of.iter().all(|(bit, _)| !self.has(*bit))
    }
}

/// Returns a finding for each missing capability. Each finding explains what the capability is
/// needed for.
#[must_use]
pub fn privilege_findings(privileges: Privileges) -> Vec<Finding> {
    NEEDED.iter().filter(|needed| privileges.lacks(needed)).map(missing).collect()
}

fn missing(needed: &Needed) -> Finding {
    let names: Vec<&str> = needed.any_of.iter().map(|(_, name)| *name).collect();
    let capability = names.first().copied().unwrap_or_default();
    let what = format!("the process lacks {}, needed to {}", names.join(" or "), needed.purpose);
    Finding::error("capability", what, "the load balancer does not start without it")
        .hint(format!("run as root, or under systemd with AmbientCapabilities={capability}"))
}

struct Needed {
    any_of: &'static [(u32, &'static str)],
    purpose: &'static str,
}

const NEEDED: [Needed; 4] = [
    Needed { any_of: &[(12, "CAP_NET_ADMIN")], purpose: "attach an XDP program" },
    Needed { any_of: &[(13, "CAP_NET_RAW")], purpose: "open packet and AF_XDP sockets" },
    // Without CAP_PERFMON, the verifier also analyzes speculative execution paths, and refuses the
    // program with the message "attempt to corrupt spilled pointer on stack" on Linux 6.1, or "The
    // sequence of 8193 jumps is too complex" on Linux 6.18.
    Needed {
        any_of: &[(38, "CAP_PERFMON"), (21, "CAP_SYS_ADMIN")],
        purpose: "pass the BPF verifier of the kernel",
    },
    // Kernels before 5.8 do not have CAP_BPF and require CAP_SYS_ADMIN.
    Needed {
        any_of: &[(39, "CAP_BPF"), (21, "CAP_SYS_ADMIN")],
        purpose: "load BPF programs and create their maps",
    },
];

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: u64 = 1 << 12 | 1 << 13 | 1 << 21 | 1 << 38 | 1 << 39;

    const PERFMON: &str = "CAP_PERFMON or CAP_SYS_ADMIN";

    #[test]
    fn each_missing_capability_is_named() {
        for (mask, names) in [
            (ALL, vec![]),
            (ALL & !(1 << 39), vec![]), // CAP_SYS_ADMIN replaces CAP_BPF
            (ALL & !(1 << 21), vec![]), // CAP_BPF replaces CAP_SYS_ADMIN
            (ALL & !(1 << 38), vec![]),
            (ALL & !(1 << 12), vec!["CAP_NET_ADMIN"]),
            (ALL & !(1 << 13), vec!["CAP_NET_RAW"]),
            (1 << 12 | 1 << 13 | 1 << 39, vec![PERFMON]),
            (1 << 12 | 1 << 13, vec![PERFMON, "CAP_BPF or CAP_SYS_ADMIN"]),
            (0, vec!["CAP_NET_ADMIN", "CAP_NET_RAW", PERFMON, "CAP_BPF or CAP_SYS_ADMIN"]),
            (!ALL, vec!["CAP_NET_ADMIN", "CAP_NET_RAW", PERFMON, "CAP_BPF or CAP_SYS_ADMIN"]),
        ] {
            let findings = privilege_findings(Privileges::from_mask(mask));
            assert_eq!(findings.len(), names.len(), "{mask:x}: {findings:?}");
            for (finding, name) in findings.iter().zip(names) {
                assert!(finding.what.contains(&format!("lacks {name},")), "{mask:x}: {}", finding.what);
                assert_eq!(finding.severity, super::super::Severity::Error);
            }
        }
    }

    #[test]
    fn the_effective_set_is_read_from_the_status_file() {
        let status =
            "Name:\tx\nCapPrm:\t000001ffffffffff\nCapEff:\t0000000000003000\nCapBnd:\t000001ffffffffff\n";
        assert_eq!(Privileges::parse(status), Some(Privileges::from_mask(0x3000)));
        assert_eq!(Privileges::parse("Name:\tx\n"), None);
        assert_eq!(Privileges::parse("CapEff:\tzebra\n"), None);
    }
}
