//! Reads the TLS keys of `https` and `grpc` checks: `server_name`, `ca_file`, `verify`,
//! `certificate_file` and `key_file`. Verification needs a CA file, because backends usually have
//! certificates from a private CA, and the system's root certificates are not used.

use std::sync::Arc;

use config_text::{Expected, Node, Section};
use serde::Serialize;

use crate::canonical;
use crate::pem::{Outside, PrivateKey};

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
    /// The certificate that the check presents to the server. Default: none.
    #[serde(flatten)]
    pub client: Option<ClientCertificate>,
}

/// A client certificate with its private key.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct ClientCertificate {
    /// The certificate and its intermediate certificates, in PEM.
    #[serde(rename = "certificate_file", serialize_with = "canonical::sealed")]
    pub certificates: Arc<str>,
    /// The private key.
    #[serde(rename = "key_file")]
    pub key: PrivateKey,
}

impl Tls {
    /// Reads the TLS keys.
    pub(super) fn read(section: &mut Section<'_>, outside: &Outside<'_>) -> Option<Self> {
        let server_name = section.optional("server_name").and_then(|node| read_server_name(&node));
        let verify = section.or("verify", true, |node| node.boolean());
        let ca_file = section.optional("ca_file");
        let client = read_client(section, outside);
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
        Some(Self { server_name, ca, verify, client: client? })
    }

    /// Reports TLS keys that are present, because they require `tls = true`.
    pub(super) fn refuse(section: &mut Section<'_>) {
        for key in ["server_name", "verify", "ca_file", "certificate_file", "key_file"] {
            if let Some(node) = section.optional(key) {
                node.needs("tls = true");
            }
        }
    }
}

/// Reads the client certificate. The outer value is `None` after an error, and the inner value is
/// `None` if the check has no client certificate.
fn read_client(section: &mut Section<'_>, outside: &Outside<'_>) -> Option<Option<ClientCertificate>> {
    match (section.optional("certificate_file"), section.optional("key_file")) {
        (None, None) => Some(None),
        (Some(certificates), Some(key)) => {
            let (certificates, key) = (outside.certificates(&certificates), outside.private_key(&key));
            Some(Some(ClientCertificate { certificates: certificates?, key: key? }))
        }
        (Some(_), None) => {
            section.lacks(
                "key_file",
                "set key_file to the file that contains the private key for the certificate",
            );
            None
        }
        (None, Some(_)) => {
            section.lacks(
                "certificate_file",
                "set certificate_file to the file that contains the certificate for the private key",
            );
            None
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
