//! Reads the keys `server_name`, `ca_file` and `verify` of `https` and `grpc` checks. Verification
//! needs a CA file, because backends usually have certificates from a private CA, and the system's
//! root certificates are not used.

use std::sync::Arc;

use config_text::{Expected, Node, Section};
use serde::Serialize;

use crate::canonical;
use crate::pem::Outside;

/// The TLS settings of a check.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct Tls {
    /// The server name for SNI and certificate verification. Default: the address.
    pub server_name: Option<Arc<str>>,
    /// The CA certificates in PEM. `None` is allowed only if `verify` is `false`.
    #[serde(rename = "ca_file", serialize_with = "canonical::some_sealed")]
    pub ca: Option<Arc<str>>,
    /// `true` if the server's certificate is verified. Default: `true`.
    pub verify: bool,
}

impl Tls {
    /// Reads the keys `server_name`, `ca_file` and `verify`.
    pub(super) fn read(section: &mut Section<'_>, outside: &Outside<'_>) -> Option<Self> {
        let server_name = section.optional("server_name").and_then(|node| read_server_name(&node));
        let verify = section.or("verify", true, |node| node.boolean());
        let ca_file = section.optional("ca_file");
        if let Some(node) = ca_file.as_ref().filter(|_| !verify) {
            let message = "ca_file has no effect with verify = false";
            node.report.warning(&node.place, (message, "set verify = true, or remove ca_file"));
        }
        if verify && ca_file.is_none() {
            let message =
                format!("{} verifies certificates, but has no \"ca_file\"", section.place().field.table());
            section.report.absent(&section.place(), (message, NO_CA));
            return None;
        }
        let ca = match ca_file {
            Some(node) => Some(outside.certificates(&node)?),
            None => None,
        };
        Some(Self { server_name, ca, verify })
    }

    /// Reports the keys `server_name`, `ca_file` and `verify` without `tls = true`, which they
    /// require.
    pub(super) fn refuse(section: &mut Section<'_>) {
        for key in ["server_name", "verify", "ca_file"] {
            if let Some(node) = section.optional(key) {
                node.needs("tls = true");
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

const NO_CA: &str = "add ca_file = \"FILE\" with the CA of the backends (the roots of the system are not used), or \
                     verify = false";
const SERVER_NAME: Expected = Expected::new("a host name or an IP address").example("\"b1.example.net\"");
