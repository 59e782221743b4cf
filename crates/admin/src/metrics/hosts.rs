//! The host names for which the metrics listener accepts requests, as a protection against DNS
//! rebinding.
//!
//! In a DNS rebinding attack, the name of a malicious web page resolves to this machine, and the
//! browser sends that name in the `Host` header. Requests with an unknown name are therefore
//! rejected. Requests without a `Host` header are accepted, because health probes send them and
//! browsers never do. IP addresses are also accepted, because an attacker cannot serve a web page
//! from an address of this machine.
//!
//! References: RFC 9110 §7.2, §15.5.20 (421 Misdirected Request).

use std::net::IpAddr;
use std::sync::{Arc, PoisonError, RwLock};

use axum::http::{HeaderMap, header};

/// The accepted host names, which all clones share.
#[derive(Clone, Debug, Default)]
pub struct Hosts(Arc<RwLock<Vec<String>>>);

impl Hosts {
    /// Creates the list from full names and from wildcards, which consist of `*.` and a domain.
    /// Case is ignored, and `localhost` is always included.
    pub fn new(names: impl IntoIterator<Item = String>) -> Self {
        let hosts = Self::default();
        hosts.replace(names);
        hosts
    }

    /// Replaces the names. The change applies from the next request on.
    pub fn replace(&self, names: impl IntoIterator<Item = String>) {
        let localhost = ["localhost".to_owned()];
        let names = localhost.into_iter().chain(names).map(|name| name.to_ascii_lowercase()).collect();
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = names;
    }

    /// Returns `true` if a request with these headers is accepted.
    pub(crate) fn allow(&self, headers: &HeaderMap) -> bool {
        let mut named = headers.get_all(header::HOST).iter();
        match (named.next().map(|host| host.to_str()), named.next()) {
            (None, None) => true,
            (Some(Ok(host)), None) => self.has(host),
            _ => false,
        }
    }

    fn has(&self, host: &str) -> bool {
        let digits = |port: &str| port.bytes().all(|byte| byte.is_ascii_digit());
        let (name, port) = match host.strip_prefix('[').map(|rest| rest.split_once(']')) {
            Some(Some((address, port))) => {
                return address.parse::<IpAddr>().is_ok()
                    && (port.is_empty() || port.strip_prefix(':').is_some_and(digits));
            }
            Some(None) => return false,
            None => host.split_once(':').map_or((host, ""), |(name, port)| (name, port)),
        };
        let name = name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase();
        let ours = |known: &String| match known.strip_prefix('*') {
            Some(domain) => name.len() > domain.len() && name.ends_with(domain),
            None => name == *known,
        };
        digits(port)
            && (name.parse::<IpAddr>().is_ok()
                || self.0.read().unwrap_or_else(PoisonError::into_inner).iter().any(ours))
    }
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    #[test]
    fn addresses_and_configured_names_are_accepted() {
        let hosts = Hosts::new(["lb1".to_owned(), "*.LB.example.net".to_owned()]);
        for good in [
            "192.0.2.1",
            "192.0.2.1:9850",
            "[2001:db8::1]",
            "[2001:db8::1]:9850",
            "localhost",
            "LOCALHOST:9850",
            "lb1",
            "lb1.",
            "lb1:9850",
            "a.lb.example.net",
            "A.b.Lb.Example.Net.:9850",
        ] {
            assert!(hosts.has(good), "{good}");
        }
        for bad in [
            "",
            ".",
            ":",
            "evil.example",
            "lb1.evil.example",
            "lb1x",
            "lb.example.net",
            ".lb.example.net",
            "alb.example.net",
            "192.0.2.1.evil.example",
            "192.0.2.1:9850x",
            "[2001:db8::1",
            "[2001:db8::1]x",
            "[lb1]",
            "2001:db8::1",
            "lb1:9850:1",
            "localhost@evil.example",
        ] {
            assert!(!hosts.has(bad), "{bad}");
        }
    }

    #[test]
    fn a_missing_host_is_accepted_and_two_hosts_are_rejected() {
        let (hosts, mut headers) = (Hosts::new([]), HeaderMap::new());
        assert!(hosts.allow(&headers));
        headers.append(header::HOST, HeaderValue::from_static("localhost"));
        assert!(hosts.allow(&headers));
        headers.append(header::HOST, HeaderValue::from_static("localhost"));
        assert!(!hosts.allow(&headers));
        headers.insert(header::HOST, HeaderValue::from_bytes(b"\xff").unwrap());
        assert!(!hosts.allow(&headers));
    }
}
