//! The kinds of health checks, each with its request and the expected reply.
//!
//! This module reads the tables `http`, `https`, `grpc`, `dns`, `memcached` and `ntp`. The crate
//! `health` sends the requests. The parent module `check` reads intervals and timeouts, `exchange`,
//! `agent` and `exec` read the other tables, and `tls` reads the TLS settings.
//!
//! References: RFC 9110 §5.5, §5.6.2, §9.1 and §15 for HTTP; RFC 1035 §2.3.4 for names; RFC 5905
//! §7.3 for strata.

use std::ops::RangeInclusive;
use std::path::Path;
use std::sync::Arc;

use config_text::words::quote;
use config_text::{Expected, Node, Section};
use serde::ser::SerializeMap as _;
use serde::{Serialize, Serializer};

use super::agent::{AgentCheck, read_agent};
use super::exchange::{TcpCheck, UdpCheck, read_tcp, read_udp, refuse_probe_mtu, required_port};
use super::exec::{ExecCheck, read_exec};
use super::tls::Tls;
use crate::canonical;
use crate::pem::Outside;
use crate::ports::{Protocol, read_ranges};

/// The kind of a check, with its request and the expected reply.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum CheckKind {
    /// Opens a TCP connection, and can send bytes and match the response.
    Tcp(TcpCheck),
    /// Sends a UDP datagram, and can match the response.
    Udp(UdpCheck),
    /// Sends an HTTP request, over TLS for HTTPS. The response must have an accepted status.
    Http(HttpCheck),
    /// Sends a request of the gRPC health protocol v1. The reply must be SERVING.
    Grpc(GrpcCheck),
    /// Sends a DNS query over UDP.
    Dns(DnsCheck),
    /// Sends the memcached command `version`.
    Memcached(MemcachedCheck),
    /// Sends an NTP request. The server must be synchronized.
    Ntp(NtpCheck),
    /// Asks an agent on the backend for the state and the weight of the backend.
    Agent(AgentCheck),
    /// Runs a program on this machine. The exit status must be 0.
    Exec(ExecCheck),
}

impl CheckKind {
    /// Returns the name of the table in the configuration.
    pub fn word(&self) -> &'static str {
        match self {
            Self::Tcp(_) => "tcp",
            Self::Udp(_) => "udp",
            Self::Http(check) if check.tls.is_some() => "https",
            Self::Http(_) => "http",
            Self::Grpc(_) => "grpc",
            Self::Dns(_) => "dns",
            Self::Memcached(_) => "memcached",
            Self::Ntp(_) => "ntp",
            Self::Agent(_) => "agent",
            Self::Exec(_) => "exec",
        }
    }

    /// Returns the port to which probes are sent, or 0 for an exec check without a port.
    pub fn port(&self) -> u16 {
        match self {
            Self::Tcp(check) => check.port,
            Self::Udp(check) => check.port,
            Self::Http(check) => check.port,
            Self::Grpc(check) => check.port,
            Self::Dns(check) => check.port,
            Self::Memcached(check) => check.port,
            Self::Ntp(check) => check.port,
            Self::Agent(check) => check.port,
            Self::Exec(check) => check.port.unwrap_or_default(),
        }
    }

    /// Returns `true` if a probe passes when no response arrives.
    pub fn passes_in_silence(&self) -> bool {
        matches!(self, Self::Udp(check) if check.expect.is_none())
    }

    /// Returns the transport protocol of the probe.
    pub fn protocol(&self) -> Protocol {
        match self {
            Self::Udp(_) | Self::Dns(_) | Self::Ntp(_) => Protocol::Udp,
            Self::Memcached(check) if check.transport == Transport::Udp => Protocol::Udp,
            Self::Tcp(_)
            | Self::Http(_)
            | Self::Grpc(_)
            | Self::Memcached(_)
            | Self::Agent(_)
            | Self::Exec(_) => Protocol::Tcp,
        }
    }

    /// Returns the TLS settings, or `None` if the check does not use TLS.
    pub(crate) fn tls(&self) -> Option<&Tls> {
        match self {
            Self::Http(http) => http.tls.as_ref(),
            Self::Grpc(grpc) => grpc.tls.as_ref(),
            Self::Tcp(_)
            | Self::Udp(_)
            | Self::Dns(_)
            | Self::Memcached(_)
            | Self::Ntp(_)
            | Self::Agent(_)
            | Self::Exec(_) => None,
        }
    }
}

/// Serializes the kind in the same form as in the configuration: the name of its table, followed by
/// the table.
impl Serialize for CheckKind {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let mut map = to.serialize_map(Some(1))?;
        match self {
            Self::Tcp(check) => map.serialize_entry(self.word(), check),
            Self::Udp(check) => map.serialize_entry(self.word(), check),
            Self::Http(check) => map.serialize_entry(self.word(), check),
            Self::Grpc(check) => map.serialize_entry(self.word(), check),
            Self::Dns(check) => map.serialize_entry(self.word(), check),
            Self::Memcached(check) => map.serialize_entry(self.word(), check),
            Self::Ntp(check) => map.serialize_entry(self.word(), check),
            Self::Agent(check) => map.serialize_entry(self.word(), check),
            Self::Exec(check) => map.serialize_entry(self.word(), check),
        }?;
        map.end()
    }
}

/// An HTTP check: `http = { port, method, path, host, headers, status, body_contains,
/// probe_mtu }`. The table `https` also has the keys of [`Tls`].
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct HttpCheck {
    /// The port. Default: 80; 443 for `https`.
    pub port: u16,
    /// The TLS settings, only present for `https`.
    #[serde(flatten)]
    pub tls: Option<Tls>,
    /// The HTTP method in upper case. Default: `GET`.
    pub method: Arc<str>,
    /// The path and query. The path starts with `/`. Default: `/`.
    pub path: Arc<str>,
    /// The `Host` header. Default: the address and port of the probe.
    pub host: Option<Arc<str>>,
    /// Other headers, sorted by name. Default: none.
    #[serde(serialize_with = "canonical::sealed_values")]
    pub headers: Vec<(Arc<str>, Arc<str>)>,
    /// The accepted status codes: one or more ascending ranges from 100 to 599 that do not overlap.
    #[serde(serialize_with = "canonical::ranges")]
    pub status: Vec<RangeInclusive<u16>>,
    /// A string that must occur in the first 64 KiB of the body. Default: none.
    pub body_contains: Option<Arc<str>>,
    /// `true` if the request is padded to at least one packet of full size. Default: `false`.
    pub probe_mtu: bool,
}

/// A gRPC check: `grpc = { port, service, tls, probe_mtu }`. With `tls = true` the table also has
/// the keys of [`Tls`].
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct GrpcCheck {
    /// The port. Required.
    pub port: u16,
    /// The gRPC service to query. An empty string queries the whole server. Default: `""`.
    pub service: Arc<str>,
    /// The TLS settings. Default: no TLS.
    #[serde(flatten)]
    pub tls: Option<Tls>,
    /// `true` if the request is padded to at least one packet of full size. Default: `false`.
    pub probe_mtu: bool,
}

/// A DNS check over UDP: `dns = { port, name, record, probe_mtu }`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct DnsCheck {
    /// The port. Default: 53.
    pub port: u16,
    /// The domain name to query, without a trailing dot. `"."` is the root domain. Required.
    pub name: Arc<str>,
    /// The record type to query. The reply must have the code NOERROR and at least one record of
    /// this type. Default: [`DnsRecord::A`].
    pub record: DnsRecord,
    /// `true` if a query in a packet of full size follows. Default: `false`.
    pub probe_mtu: bool,
}

/// A memcached check: `memcached = { port, transport, probe_mtu }`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct MemcachedCheck {
    /// The port. Default: 11211.
    pub port: u16,
    /// The transport protocol. Default: [`Transport::Tcp`].
    pub transport: Transport,
    /// `true` if the request also fills a packet of full size. Default: `false`.
    pub probe_mtu: bool,
}

/// The transport protocol of a memcached check. Memcached disables UDP by default, so a server may
/// reply only over TCP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Transport {
    /// A TCP connection.
    Tcp,
    /// UDP datagrams, like requests to keyed pools.
    Udp,
}

/// An NTP check over UDP: `ntp = { port, max_stratum }`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct NtpCheck {
    /// The port. Default: 123.
    pub port: u16,
    /// The highest accepted stratum (distance to a reference clock): 1 to 15. Default: 15.
    pub max_stratum: u8,
}

/// The record type of a DNS check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum DnsRecord {
    /// An IPv4 address.
    A,
    /// An IPv6 address.
    Aaaa,
    /// A text record.
    Txt,
    /// The SOA record (start of authority) of a zone.
    Soa,
    /// The name servers of a zone.
    Ns,
}

impl DnsRecord {
    /// All record types with their names.
    pub const WORDS: [(&str, Self); 5] =
        [("A", Self::A), ("AAAA", Self::Aaaa), ("TXT", Self::Txt), ("SOA", Self::Soa), ("NS", Self::Ns)];
}

/// Reads the kind of a check. A check must have exactly one kind. `socket` is the value of
/// `health.exec_socket`.
pub(super) fn read(
    section: &mut Section<'_>,
    outside: &Outside<'_>,
    socket: Option<&Arc<Path>>,
) -> Option<CheckKind> {
    let nodes = KINDS.map(|(word, _)| section.optional(word));
    let mut kinds = Vec::new();
    let mut first = None;
    for ((word, read), node) in KINDS.into_iter().zip(nodes) {
        let Some(node) = node else { continue };
        kinds.push(node.section().and_then(|section| read(section, outside, socket)));
        match first {
            Some(first) => {
                let message = format!("a check has one kind, but this one has \"{first}\" and \"{word}\"");
                node.refuse((
                    message,
                    format!("move \"{word}\" to a separate check; a pool may have several checks"),
                ));
            }
            None => first = Some(word),
        }
    }
    if kinds.is_empty() {
        let message = format!("{} has no kind of check", section.place().field.table());
        let help = format!("add one of {}", KINDS.map(|(word, _)| word).join(", "));
        section.report.absent(&section.place(), (message, help));
    }
    kinds.pop().flatten()
}

fn read_memcached(mut section: Section<'_>) -> MemcachedCheck {
    let port = section.or("port", 11_211, |node| node.number(1..=u16::MAX));
    let words = [("tcp", Transport::Tcp), ("udp", Transport::Udp)];
    let transport = section.or("transport", Transport::Tcp, |node| node.choice(&words));
    let probe_mtu = section.or("probe_mtu", false, |node| node.boolean());
    section.finish();
    MemcachedCheck { port, transport, probe_mtu }
}

fn read_ntp(mut section: Section<'_>) -> NtpCheck {
    let port = section.or("port", 123, |node| node.number(1..=u16::MAX));
    let max_stratum = section.or("max_stratum", 15, |node| node.number(1..=15));
    refuse_probe_mtu(&mut section, "many NTP servers ignore requests of full size");
    section.finish();
    NtpCheck { port, max_stratum }
}

/// Reads an HTTP or HTTPS check. `outside` is `Some` for HTTPS only.
fn read_http(mut section: Section<'_>, outside: Option<&Outside<'_>>) -> Option<HttpCheck> {
    let default = if outside.is_some() { 443 } else { 80 };
    let port = section.or("port", default, |node| node.number(1..=u16::MAX));
    let tls = outside.map(|outside| Tls::read(&mut section, outside));
    let method = section.or("method", Arc::from("GET"), |node| text(&node, METHOD, is_method));
    let path = section.or("path", Arc::from("/"), |node| text(&node, PATH, is_path));
    let host = section.optional("host").and_then(|node| text(&node, HOST, is_host));
    let headers = section.optional("headers").and_then(|node| node.section());
    let headers = headers.map(read_headers).unwrap_or_default();
    let status =
        section.optional("status").and_then(|node| read_ranges(&node, 100..=599, STATUS, STATUS_CODE));
    let body = section.optional("body_contains");
    let body_contains = body.as_ref().and_then(|node| text(node, BODY, is_body));
    let probe_mtu = section.or("probe_mtu", false, |node| node.boolean());
    section.finish();
    if let (Some(node), "HEAD") = (body, &*method) {
        node.refuse(("`body_contains` needs a method other than HEAD", "a response to HEAD has no body"));
    }
    let tls = match tls {
        Some(tls) => Some(tls?),
        None => None,
    };
    let status = status.map_or_else(|| vec![200..=299], joined);
    Some(HttpCheck { port, tls, method, path, host, headers, status, body_contains, probe_mtu })
}

fn read_headers(section: Section<'_>) -> Vec<(Arc<str>, Arc<str>)> {
    let mut headers: Vec<(Arc<str>, Arc<str>)> = Vec::new();
    for (name, node) in section.entries() {
        // Header values are never printed, because they may be passwords.
        node.hide();
        let lower = name.to_ascii_lowercase();
        let taken = |(other, _): &(Arc<str>, Arc<str>)| other.eq_ignore_ascii_case(name);
        if !is_token(name) {
            let help = "use letters, digits and !#$%&'*+-.^_`|~ (RFC 9110)";
            node.refuse((format!("invalid header name {}", quote(name)), help));
        } else if let Some((_, why)) = NOT_HEADERS.iter().find(|(word, _)| *word == lower) {
            node.refuse((format!("the header \"{lower}\" cannot be set"), *why));
        } else if headers.iter().any(taken) {
            node.refuse(format!("the header \"{lower}\" is set twice"));
        } else if let Some(value) = node.as_str().filter(|text| is_value(text)) {
            headers.push((Arc::from(name), Arc::from(value)));
        } else {
            let help = "use at most 1024 printable ASCII characters, without a space at either end";
            node.refuse((format!("invalid value of the header \"{lower}\""), help));
        }
    }
    headers
}

fn read_grpc(mut section: Section<'_>, outside: &Outside<'_>) -> Option<GrpcCheck> {
    let port = required_port(&mut section);
    let service = section.or("service", Arc::from(""), |node| text(&node, SERVICE, is_service));
    let encrypted = section.or("tls", false, |node| node.boolean());
    let tls = if encrypted { Some(Tls::read(&mut section, outside)) } else { None };
    if !encrypted {
        Tls::refuse(&mut section);
    }
    let probe_mtu = section.or("probe_mtu", false, |node| node.boolean());
    section.finish();
    let tls = match tls {
        Some(tls) => Some(tls?),
        None => None,
    };
    Some(GrpcCheck { port: port?, service, tls, probe_mtu })
}

fn read_dns(mut section: Section<'_>) -> Option<DnsCheck> {
    let port = section.or("port", 53, |node| node.number(1..=u16::MAX));
    let name = section.required("name", NAME).and_then(|node| node.parse(NAME, dns_name));
    let record = section.or("record", DnsRecord::A, |node| node.choice(&DnsRecord::WORDS));
    let probe_mtu = section.or("probe_mtu", false, |node| node.boolean());
    section.finish();
    Some(DnsCheck { port, name: name?, record, probe_mtu })
}

/// Reads a string for which `good` returns `true`.
fn text(node: &Node<'_>, expected: Expected, good: fn(&str) -> bool) -> Option<Arc<str>> {
    node.parse(expected, |text| good(text).then(|| Arc::from(text)))
}

/// Joins adjacent ranges, so that identical sets of status codes result in identical lists.
fn joined(ranges: Vec<RangeInclusive<u16>>) -> Vec<RangeInclusive<u16>> {
    let mut joined: Vec<RangeInclusive<u16>> = Vec::with_capacity(ranges.len());
    for range in ranges {
        match joined.last_mut() {
            Some(last) if *range.start() == last.end() + 1 => *last = *last.start()..=*range.end(),
            _ => joined.push(range),
        }
    }
    joined
}

/// Returns a domain name in the form of [`DnsCheck::name`]. Returns `None` if `text` is not a
/// domain name (RFC 1035 §2.3.4).
pub fn dns_name(text: &str) -> Option<Arc<str>> {
    let name = if text == "." { text } else { text.strip_suffix('.').unwrap_or(text) };
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    let label = |label: &str| (1..=63).contains(&label.len()) && label.bytes().all(plain);
    (text == "." || name.len() <= 253 && name.split('.').all(label)).then(|| Arc::from(name))
}

fn is_token(text: &str) -> bool {
    let sign = |byte: u8| b"!#$%&'*+-.^_`|~".contains(&byte);
    (1..=64).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || sign(byte))
}

fn is_method(text: &str) -> bool {
    // CONNECT opens a tunnel, and TRACE echoes the request. A reply to either method does not show
    // that a server is healthy.
    let other = matches!(text, "CONNECT" | "TRACE");
    (1..=16).contains(&text.len()) && !other && text.bytes().all(|byte| byte.is_ascii_uppercase())
}

/// Returns `true` if the text is a valid path and query for an HTTP request. See
/// [`HttpCheck::path`].
pub fn is_path(text: &str) -> bool {
    let good = |byte: u8| byte.is_ascii_graphic() && byte != b'#';
    text.starts_with('/') && text.len() <= 1_024 && text.bytes().all(good)
}

fn is_host(text: &str) -> bool {
    let good = |byte: u8| byte.is_ascii_alphanumeric() || b"-._:[]".contains(&byte);
    (1..=255).contains(&text.len()) && text.bytes().all(good)
}

fn is_value(text: &str) -> bool {
    let inside = text.len() <= 1_024 && text.bytes().all(|byte| byte == b' ' || byte.is_ascii_graphic());
    inside && !text.starts_with(' ') && !text.ends_with(' ')
}

fn is_body(text: &str) -> bool {
    (1..=1_024).contains(&text.len())
}

fn is_service(text: &str) -> bool {
    text.len() <= 255 && text.bytes().all(|byte| byte.is_ascii_graphic())
}

/// A function that reads the table for one kind of check.
type Read = fn(Section<'_>, &Outside<'_>, Option<&Arc<Path>>) -> Option<CheckKind>;

const KINDS: [(&str, Read); 10] = [
    ("tcp", |section, _, _| read_tcp(section).map(CheckKind::Tcp)),
    ("udp", |section, _, _| read_udp(section).map(CheckKind::Udp)),
    ("http", |section, _, _| read_http(section, None).map(CheckKind::Http)),
    ("https", |section, outside, _| read_http(section, Some(outside)).map(CheckKind::Http)),
    ("grpc", |section, outside, _| read_grpc(section, outside).map(CheckKind::Grpc)),
    ("dns", |section, _, _| read_dns(section).map(CheckKind::Dns)),
    ("memcached", |section, _, _| Some(CheckKind::Memcached(read_memcached(section)))),
    ("ntp", |section, _, _| Some(CheckKind::Ntp(read_ntp(section)))),
    ("agent", |section, _, _| read_agent(section).map(CheckKind::Agent)),
    ("exec", |section, _, socket| read_exec(section, socket).map(CheckKind::Exec)),
];
/// Headers that a configuration must not set, with the reason. Some of these headers are set by the
/// check itself, and others contain secrets.
const NOT_HEADERS: [(&str, &str); 7] = [
    ("host", "use the key host"),
    ("connection", "the check sets it"),
    ("content-length", "the check sends no body"),
    ("transfer-encoding", "the check sends no body"),
    ("authorization", NO_SECRETS),
    ("proxy-authorization", NO_SECRETS),
    ("cookie", NO_SECRETS),
];
const NO_SECRETS: &str = "this file must not contain secrets; check a path that needs no authentication";
const METHOD: Expected =
    Expected::new("an HTTP method in upper case, except CONNECT and TRACE").example("\"HEAD\"");
const PATH: Expected = Expected::new(
    "a path of at most 1024 ASCII characters that starts with '/' and has no spaces and no '#'",
)
.example("\"/healthz\"");
const HOST: Expected =
    Expected::new("a host name or an IP address, with or without a port").example("\"www.example.net\"");
const STATUS: Expected =
    Expected::new("a list of status codes and ranges from 100 to 599").example("[200, \"301-302\"]");
const STATUS_CODE: Expected =
    Expected::new("a status code from 100 to 599, or a range of them").example("\"301-302\"");
const BODY: Expected = Expected::new("a string of 1 to 1024 bytes").example("\"ok\"");
const SERVICE: Expected =
    Expected::new("a service name of at most 255 ASCII characters, or \"\"").example("\"shop.Cart\"");
const NAME: Expected = Expected::new("a domain name of at most 253 characters in labels of 1 to 63")
    .example("\"www.example.net\"");
