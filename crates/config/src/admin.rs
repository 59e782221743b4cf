//! `[admin]`: the sockets through which operators and monitoring systems access the running
//! process.
//!
//! This module reads the section, and the certificate and key files that it refers to. The section
//! is the same on all machines of the cluster. [`Config::listens`](super::Config::listens) selects
//! the addresses that a machine listens on.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;

use config_text::{At, Expected, Node, Place, Section};
use serde::{Serialize, Serializer};

use super::canonical;
use super::pem::{Outside, PrivateKey};

/// The settings of the admin interface.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Admin {
    /// The Unix socket. `None` if the configuration has `socket = false`. Default:
    /// [`AdminSocket::default`].
    pub socket: Option<AdminSocket>,
    /// The admin interface on TCP with mutual TLS. Default: none.
    pub tcp: Option<AdminTcp>,
    /// `true` if clients may replace the whole configuration. Default: `false`.
    pub put: bool,
    /// Addresses on which any client can read metrics and liveness, but nothing else. Default:
    /// none.
    pub metrics: Vec<SocketAddr>,
    /// Host names that are accepted in the `Host` header of metrics requests, in lower case, such
    /// as `lb1.example.net` or `*.example.net`. IP addresses, `localhost` and the names of the
    /// machine are always accepted. Default: none.
    pub metrics_hosts: Vec<Arc<str>>,
}

/// The Unix socket of the admin interface.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct AdminSocket {
    /// The path of the socket. The path is absolute and at most 107 bytes long.
    pub path: PathBuf,
    /// The group that owns the socket file. If `None`, the file has the group of the process.
    pub group: Option<Arc<str>>,
    /// The permissions of the socket file, at most 0666. Default: 0600.
    #[serde(serialize_with = "octal")]
    pub mode: u32,
    /// `true` if the configuration does not contain the key `socket`. If the default socket cannot
    /// be created, the process runs without a socket.
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
    /// Returns the socket `/run/sluicegate/admin.sock`, which only its owner can access.
    fn default() -> Self {
        Self { path: DEFAULT_PATH.into(), group: None, mode: OWNER_ONLY, is_default: true }
    }
}

/// The admin interface on TCP with mutual TLS.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct AdminTcp {
    /// The addresses and ports of all machines in the cluster. The list is never empty.
    pub listen: Vec<SocketAddr>,
    /// The server's certificate in PEM, followed by the intermediate certificates.
    #[serde(rename = "certificate_file", serialize_with = "canonical::sealed")]
    pub certificates: Arc<str>,
    /// The private key of the server's certificate.
    #[serde(rename = "key_file")]
    pub key: PrivateKey,
    /// The CA certificates in PEM. Each client needs a certificate issued by one of these CAs.
    #[serde(rename = "client_ca_file", serialize_with = "canonical::sealed")]
    pub client_ca: Arc<str>,
    /// The certificate names of clients that may change the running state. Clients whose name is in
    /// neither `operate` nor `configure` may only read. Default: none.
    pub operate: Vec<Arc<str>>,
    /// The certificate names of clients that may also replace or reload the configuration. Default:
    /// none.
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
        let certificates = section.required("certificate_file", CERTIFICATE);
        let key = section.required("key_file", KEY);
        let client_ca = section.required("client_ca_file", CLIENT_CA);
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

/// Reads addresses to listen on. Reports addresses that `taken` already contains.
fn read_listen(nodes: &[Node<'_>], taken: &mut BTreeMap<SocketAddr, Place>) -> Vec<SocketAddr> {
    let mut addresses = Vec::with_capacity(nodes.len());
    for node in nodes {
        let Some(At { value, place }) = node.listen(ADDRESS).map(|address| node.at(address)) else {
            continue;
        };
        if let Some(first) = taken.get(&value) {
            let help = format!("the first use is {}", node.report.name(first, &place));
            node.report.error(&place, (format!("listen address {value} is used twice"), help));
        } else {
            taken.insert(value, place);
            addresses.push(value);
        }
    }
    addresses
}

/// Reads certificate names. Reports names that `taken` already contains.
fn read_names(nodes: &[Node<'_>], taken: &mut BTreeMap<Arc<str>, Place>) -> Vec<Arc<str>> {
    let mut names = Vec::with_capacity(nodes.len());
    for node in nodes {
        let good = |text: &str| (1..=255).contains(&text.len()) && !text.chars().any(char::is_control);
        let Some(name) = node.parse(ROLE_NAME, |text| good(text).then(|| Arc::<str>::from(text))) else {
            continue;
        };
        if let Some(first) = taken.insert(name.to_ascii_lowercase().into(), node.place.clone()) {
            let help = format!("the first entry is {}", node.report.name(&first, &node.place));
            node.refuse((format!("certificate name {} is listed twice", node.shown()), help));
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

const HOSTS: Expected =
    Expected::new("a list of host names").example("[\"lb1.example.net\", \"*.example.net\"]");
const HOST: Expected =
    Expected::new("a host name without a port, or `*.` and a domain").example("\"*.example.net\"");
const ROLE: Expected =
    Expected::new("a list of names in client certificates").example("[\"alice\", \"ci.example.net\"]");
const ROLE_NAME: Expected =
    Expected::new("a certificate name of 1 to 255 bytes without control characters").example("\"alice\"");
const DEFAULT_PATH: &str = "/run/sluicegate/admin.sock";
const SOCKET_PATH: Expected =
    Expected::new("an absolute path of at most 107 bytes").example("\"/run/sluicegate/admin.sock\"");
const SOCKET_MODE: Expected = Expected::new("four octal digits without execute bits").example("\"0660\"");
const GROUP: Expected = Expected::new("the name of a group, not its number").example("\"adm\"");
const LISTEN: Expected =
    Expected::new("a list of addresses with ports").example("[\"192.0.2.1:9851\", \"[2001:db8::1]:9851\"]");
const ADDRESS: Expected = Expected::new("an IP address with a port").example("\"192.0.2.1:9851\"");
const CERTIFICATE: Expected =
    Expected::new("a file with the certificate of the server in PEM").example("\"admin.pem\"");
const KEY: Expected = Expected::new("a PEM file that contains the private key for the certificate")
    .example("\"secrets/admin.key\"");
const CLIENT_CA: Expected =
    Expected::new("a file with the CA certificates of the clients in PEM").example("\"ca.pem\"");
const OWNER_ONLY: u32 = 0o600;
/// The maximum length of a path in `sockaddr_un`, without the terminating zero byte.
const SUN_PATH: usize = 107;
