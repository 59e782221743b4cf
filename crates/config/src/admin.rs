//! `[admin]`: where an operator's tools reach the running balancer.
//!
//! In: the section, and the certificates and the key that it names. Out: [`Admin`]. Not here: listening, routes.
//! The file is the whole cluster's: which of the addresses are a machine's own,
//! [`Config::listens`](super::Config::listens) says.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;

use config_text::words::quote;
use config_text::{At, Node, Place, Section};
use serde::{Serialize, Serializer};

use super::canonical;
use super::pem::{Outside, PrivateKey};

/// The admin interface.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Admin {
    /// Its Unix socket. Default: [`AdminSocket::default`]; `None`: the file says `false`.
    pub socket: Option<AdminSocket>,
    /// The same interface on TCP with mutual TLS. Default: none.
    pub tcp: Option<AdminTcp>,
    /// Whether the whole configuration may be put through the interface. Default `false`.
    pub put: bool,
    /// Where metrics and liveness alone are served, to anyone. Default: nowhere.
    pub metrics: Vec<SocketAddr>,
    /// Names that a request for them may have as its host, beside addresses, `localhost` and the machine's names: `lb1.example.net`,
    /// or `*.example.net`. In lower case. Default: none.
    pub metrics_hosts: Vec<Arc<str>>,
}

/// A Unix socket.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct AdminSocket {
    /// An absolute path, at most 107 bytes.
    pub path: PathBuf,
    /// The name of the group that owns its file; `None`: the process's own.
    pub group: Option<Arc<str>>,
    /// Its file's permissions, at most 0666. Default 0600.
    #[serde(serialize_with = "octal")]
    pub mode: u32,
    /// Nobody has asked for it: where it can't be made, there is none.
    #[serde(skip)]
    pub is_default: bool,
}

impl Default for Admin {
    fn default() -> Self {
        let socket = Some(AdminSocket::default());
        Self { socket, tcp: None, put: false, metrics: Vec::new(), metrics_hosts: Vec::new() }
    }
}

impl Default for AdminSocket {
    /// `/run/sluicegate/admin.sock`, for its owner alone.
    fn default() -> Self {
        Self { path: DEFAULT_PATH.into(), group: None, mode: OWNER_ONLY, is_default: true }
    }
}

/// TCP with mutual TLS.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct AdminTcp {
    /// Addresses and ports, at least one, of all machines together.
    pub listen: Vec<SocketAddr>,
    /// The server's certificate and those between it and its CA, in PEM.
    #[serde(rename = "certificate_file", serialize_with = "canonical::sealed")]
    pub certificates: Arc<str>,
    /// The key of the first certificate.
    #[serde(rename = "key_file")]
    pub key: PrivateKey,
    /// The CA's certificates in PEM: a client without a certificate of theirs is refused.
    #[serde(rename = "client_ca_file", serialize_with = "canonical::sealed")]
    pub client_ca: Arc<str>,
    /// Names of certificates that may give orders; certificates in neither list may ask. Default: none.
    pub operate: Vec<Arc<str>>,
    /// Names of certificates that may put and reload configurations, and give orders. Default: none.
    pub configure: Vec<Arc<str>>,
}

impl Admin {
    pub(super) fn read(mut section: Section<'_>, outside: &Outside<'_>) -> Self {
        let mut taken = BTreeMap::new();
        let socket = section.optional("socket");
        let socket = socket.map_or_else(
            || Some(AdminSocket::default()),
            |node| node.section_or_false().and_then(AdminSocket::read),
        );
        let tcp = section.optional("tcp").and_then(|node| node.section());
        let tcp = tcp.and_then(|section| AdminTcp::read(section, outside, &mut taken));
        let put = section.or("put", false, |node| node.boolean());
        let metrics = section.optional("metrics").and_then(|node| node.list(LISTEN)).unwrap_or_default();
        let metrics = read_listen(&metrics, &mut taken);
        let hosts = section.optional("metrics_hosts").and_then(|node| node.list(HOSTS)).unwrap_or_default();
        let host = |node: &Node<'_>| {
            node.parse(HOST, |text| is_host(text).then(|| text.to_ascii_lowercase().into()))
        };
        let metrics_hosts = hosts.iter().filter_map(host).collect();
        section.finish();
        Self { socket, tcp, put, metrics, metrics_hosts }
    }
}

impl AdminSocket {
    fn read(mut section: Section<'_>) -> Option<Self> {
        let path = section.required("path", SOCKET_PATH).and_then(|node| read_path(&node));
        let group = section.optional("group");
        let group = group.and_then(|node| node.parse(GROUP, |text| is_group(text).then(|| Arc::from(text))));
        let mode = section.or("mode", OWNER_ONLY, |node| node.parse(SOCKET_MODE, read_mode));
        section.finish();
        Some(Self { path: path?, group, mode, is_default: false })
    }
}

impl AdminTcp {
    fn read(
        mut section: Section<'_>,
        outside: &Outside<'_>,
        taken: &mut BTreeMap<SocketAddr, Place>,
    ) -> Option<Self> {
        let listen = section.required("listen", LISTEN).and_then(|node| node.items(LISTEN));
        let certificates =
            section.required("certificate_file", "a file with the server's certificate in PEM");
        let key = section.required("key_file", "a file with the certificate's private key in PEM");
        let client_ca = section.required("client_ca_file", "a file with the CA of the clients in PEM");
        let [operate, configure] = ["operate", "configure"]
            .map(|role| section.optional(role).and_then(|node| node.list(ROLE)).unwrap_or_default());
        section.finish();
        let listen = read_listen(&listen.unwrap_or_default(), taken);
        let mut named = BTreeMap::new();
        let [operate, configure] = [operate, configure].map(|nodes| read_names(&nodes, &mut named));
        let certificates = certificates.and_then(|node| outside.certificates(&node));
        let key = key.and_then(|node| outside.private_key(&node));
        let client_ca = client_ca.and_then(|node| outside.certificates(&node));
        let (certificates, key, client_ca) = (certificates?, key?, client_ca?);
        Some(Self { listen, certificates, key, client_ca, operate, configure })
    }
}

fn octal<S: Serializer>(mode: &u32, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(&format_args!("{mode:04o}"))
}

/// Addresses to listen on, none of them in `taken`.
fn read_listen(nodes: &[Node<'_>], taken: &mut BTreeMap<SocketAddr, Place>) -> Vec<SocketAddr> {
    let mut addresses = Vec::with_capacity(nodes.len());
    for node in nodes {
        let Some(At { value, place }) = node.listen(ADDRESS).map(|address| node.at(address)) else {
            continue;
        };
        if let Some(first) = taken.get(&value) {
            let found = format!("{value}, which is also {}", node.report.name(first, &place));
            node.report.error(&place, found, "each address and port once");
        } else {
            taken.insert(value, place);
            addresses.push(value);
        }
    }
    addresses
}

/// Names of certificates, none of them in `taken`: one that two roles have is a mistake in one of them.
fn read_names(nodes: &[Node<'_>], taken: &mut BTreeMap<Arc<str>, Place>) -> Vec<Arc<str>> {
    let mut names = Vec::with_capacity(nodes.len());
    for node in nodes {
        let good = |text: &str| (1..=255).contains(&text.len()) && !text.chars().any(char::is_control);
        let Some(name) = node.parse(ROLE_NAME, |text| good(text).then(|| Arc::<str>::from(text))) else {
            continue;
        };
        if let Some(first) = taken.insert(name.to_ascii_lowercase().into(), node.place.clone()) {
            let found = format!("{}, which is also {}", quote(&name), node.report.name(&first, &node.place));
            node.report.error(&node.place, found, "each name once");
        }
        names.push(name);
    }
    names
}

fn read_path(node: &Node<'_>) -> Option<PathBuf> {
    node.parse(SOCKET_PATH, |text| (text.starts_with('/') && text.len() <= SUN_PATH).then(|| text.into()))
}

fn read_mode(text: &str) -> Option<u32> {
    let digits = text.strip_prefix('0')?;
    let octal = digits.len() == 3 && digits.bytes().all(|digit| matches!(digit, b'0' | b'2' | b'4' | b'6'));
    u32::from_str_radix(digits, 8).ok().filter(|_| octal)
}

fn is_group(text: &str) -> bool {
    let good = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
    let number = text.bytes().all(|byte| byte.is_ascii_digit());
    (1..=32).contains(&text.len()) && !number && !text.starts_with('-') && text.bytes().all(good)
}

fn is_host(text: &str) -> bool {
    let label = |label: &str| {
        let good = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-');
        (1..=63).contains(&label.len()) && label.bytes().all(good)
    };
    let name = text.strip_prefix("*.").unwrap_or(text);
    text.len() <= 253 && name.parse::<IpAddr>().is_err() && name.split('.').all(label)
}

const HOSTS: &str = "a list of host names, such as [\"lb1.example.net\", \"*.example.net\"]";
const HOST: &str = "a host name, or `*.` and a domain; addresses are allowed anyway";
const ROLE: &str = "a list of names in clients' certificates, such as [\"alice\", \"ci.example.net\"]";
const ROLE_NAME: &str = "a name as a certificate has it, of at most 255 bytes";
const DEFAULT_PATH: &str = "/run/sluicegate/admin.sock";
const SOCKET_PATH: &str = "an absolute path of at most 107 bytes";
const SOCKET_MODE: &str = "four octal digits without execute bits, such as \"0660\"";
const GROUP: &str = "the name of a group, not its number";
const LISTEN: &str = "a list of addresses with ports, such as [\"192.0.2.1:9851\", \"[2001:db8::1]:9851\"]";
const ADDRESS: &str = "an address with a port, such as \"192.0.2.1:9851\" or \"[2001:db8::1]:9851\"";
const OWNER_ONLY: u32 = 0o600;
/// What `sockaddr_un` holds, less the zero at its end.
const SUN_PATH: usize = 107;
