//! TLS towards a backend: whose certificate is believed.
//!
//! In: `server_name`, `ca_file` and `verify` of an `https` or `grpc` check. Out: [`Tls`].
//! Not here: the handshake (the checker's). Backends have private names and private certificates, so the system's
//! roots are not used: without a CA there is nothing to verify by.

use std::sync::Arc;

use config_text::{Node, Section};
use serde::Serialize;

use crate::canonical;
use crate::pem::Outside;

/// How a checker's TLS treats the backend's certificate.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct Tls {
    /// The name for SNI and for the certificate. Default: the address.
    pub server_name: Option<Arc<str>>,
    /// PEM text of the CA's certificates; `None` only when `verify` is `false`.
    #[serde(rename = "ca_file", serialize_with = "canonical::some_sealed")]
    pub ca: Option<Arc<str>>,
    /// Whether the certificate is verified. Default `true`.
    pub verify: bool,
}

impl Tls {
    /// Reads the three keys from the table of a check's kind.
    pub(super) fn read(section: &mut Section<'_>, outside: &Outside<'_>) -> Option<Self> {
        let server_name = section.optional("server_name").and_then(|node| read_server_name(&node));
        let verify = section.or("verify", true, |node| node.boolean());
        let ca_file = section.optional("ca_file");
        if let Some(node) = ca_file.as_ref().filter(|_| !verify) {
            node.report.warning(&node.place, "a CA, and verify = false", "verify = true, or no ca_file");
        }
        if verify && ca_file.is_none() {
            section.report.absent(&section.place(), "verify = true without a CA", CA_FILE);
            return None;
        }
        let ca = match ca_file {
            Some(node) => Some(outside.certificates(&node)?),
            None => None,
        };
        Some(Self { server_name, ca, verify })
    }

    /// Refuses all three keys.
    pub(super) fn refuse(section: &mut Section<'_>, why: &str) {
        for key in ["server_name", "verify", "ca_file"] {
            if let Some(node) = section.optional(key) {
                node.refuse(why);
            }
        }
    }
}

fn read_server_name(node: &Node<'_>) -> Option<Arc<str>> {
    let label = |label: &str| {
        (1..=63).contains(&label.len())
            && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'))
    };
    let good = |text: &str| text.len() <= 253 && text.split('.').all(label);
    let address = |text: &str| text.parse::<std::net::IpAddr>().is_ok();
    node.parse(SERVER_NAME, |text| (good(text) || address(text)).then(|| Arc::from(text)))
}

const CA_FILE: &str = "ca_file = \"FILE\" with the CA of the backends' certificates (the system's roots do not \
                       know private names), or verify = false";
const SERVER_NAME: &str = "a host name or an address";
