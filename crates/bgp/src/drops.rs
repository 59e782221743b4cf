//! Reads the kernel's counters of dropped TCP segments, which can reveal wrong router settings.
//!
//! The module compares two readings of the counters and returns a hint as text. The counters cover
//! all connections of the network namespace, so connections with other peers may have caused an
//! increase.
//!
//! See Linux `net/ipv4/proc.c` (TcpExt of /proc/net/netstat), RFC 5082 and RFC 2385.

use std::fs;

use crate::config::PeerConfig;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Drops {
    from_afar: u64,
    unsigned: u64,
    signed: u64,
    wrongly_signed: u64,
}

impl Drops {
    /// Reads the counters of the calling thread's network namespace. All counters are zero if the
    /// file does not exist.
    pub(crate) fn now() -> Self {
        fs::read_to_string("/proc/thread-self/net/netstat").map(|text| Self::parse(&text)).unwrap_or_default()
    }

    /// Parses the `TcpExt` lines. The first line contains the names of the counters, and the second
    /// line contains their values.
    fn parse(text: &str) -> Self {
        let mut lines = text.lines().filter_map(|line| line.strip_prefix("TcpExt: "));
        let (names, numbers) = (lines.next().unwrap_or_default(), lines.next().unwrap_or_default());
        let of = |wanted: &str| {
            let mut pairs = names.split(' ').zip(numbers.split(' '));
            pairs.find(|(name, _)| *name == wanted).and_then(|(_, number)| number.parse().ok()).unwrap_or(0)
        };
        Self {
            from_afar: of("TCPMinTTLDrop"),
            unsigned: of("TCPMD5NotFound"),
            signed: of("TCPMD5Unexpected"),
            wrongly_signed: of("TCPMD5Failure"),
        }
    }

    /// Returns a hint for the operator if a counter has increased since `before` and the settings
    /// in `config` can explain the increase.
    pub(crate) fn hint_since(self, before: Self, config: &PeerConfig) -> Option<&'static str> {
        let (has_key, has_hops) = (config.md5.is_some(), config.gtsm_hops.is_some());
        if has_hops && self.from_afar > before.from_afar {
            Some(
                "the kernel dropped segments whose TTL was too low; the router must send TTL 255 (GTSM, `ttl security`), or `hops` must be larger",
            )
        } else if has_key && self.wrongly_signed > before.wrongly_signed {
            Some("the kernel dropped segments signed with a different MD5 key")
        } else if has_key && self.unsigned > before.unsigned {
            Some("the kernel dropped segments without an MD5 signature; only this machine has a key")
        } else if !has_key && self.signed > before.signed {
            Some("the kernel dropped segments with an MD5 signature; only the router has a key")
        } else {
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Md5Key;

    const TEXT: &str = "TcpExt: SyncookiesSent TCPMD5NotFound TCPMD5Unexpected TCPMD5Failure TCPMinTTLDrop\n\
        TcpExt: 9 1 2 3 4\nIpExt: InNoRoutes\nIpExt: 7\n";

    #[test]
    fn counters_are_found_by_their_names() {
        let drops = Drops { unsigned: 1, signed: 2, wrongly_signed: 3, from_afar: 4 };
        assert_eq!(Drops::parse(TEXT), drops);
        assert_eq!(Drops::parse("TcpExt: A B\n"), Drops::default());
        assert_eq!(Drops::parse(""), Drops::default());
    }

    #[test]
    fn a_hint_is_given_for_what_rose_and_is_set() {
        let before = Drops::parse(TEXT);
        let plain = PeerConfig::new("r", [192, 0, 2, 0].into(), 65_000);
        let near = PeerConfig { gtsm_hops: Some(1), ..plain.clone() };
        let keyed = PeerConfig { md5: Some(Md5Key::new("k").unwrap()), ..plain.clone() };
        let word = |now: Drops, config: &PeerConfig| now.hint_since(before, config).unwrap_or_default();
        let more = |change: fn(&mut Drops)| {
            let mut now = before;
            change(&mut now);
            now
        };
        assert!(word(more(|now| now.from_afar += 1), &near).contains("TTL"));
        assert!(word(more(|now| now.wrongly_signed += 1), &keyed).contains("a different MD5 key"));
        assert!(word(more(|now| now.unsigned += 1), &keyed).contains("without an MD5 signature"));
        assert!(word(more(|now| now.signed += 1), &plain).contains("only the router has a key"));
        assert_eq!(
            word(more(|now| now.from_afar += 1), &plain),
            "",
            "a peer without a hop limit gets no hint"
        );
        assert_eq!(word(before, &near), "");
    }
}
