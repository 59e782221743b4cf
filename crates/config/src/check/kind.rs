//! The kinds of checks: what each asks, and which answer is good.
//!
//! In: the table behind `tcp`, `http`, `https`, `grpc`, `dns`, `memcached` or `ntp`. Out: plain data that checkers read.
//! Not here: when and how often (`check`), TLS keys (`tls`).
//! Source: RFC 9110 §5.5, §5.6.2, §9.1 and §15 for HTTP; RFC 1035 §2.3.4 for names; RFC 5905 §7.3 for strata.

use std::ops::RangeInclusive;
use std::sync::Arc;

use config_text::{Node, Section};
use serde::ser::SerializeMap as _;
use serde::{Serialize, Serializer};

use super::tls::Tls;
use crate::canonical;
use crate::pem::Outside;
use crate::ports::{Protocol, read_ranges};

/// What is asked of a backend.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum CheckKind {
    /// A TCP connection opens.
    Tcp(TcpCheck),
    /// An HTTP request is answered well; with TLS this is HTTPS.
    Http(HttpCheck),
    /// gRPC health v1 says SERVING.
    Grpc(GrpcCheck),
    /// A DNS query over UDP is answered well.
    Dns(DnsCheck),
    /// memcached answers `version`.
    Memcached(MemcachedCheck),
    /// An NTP server is synchronized.
    Ntp(NtpCheck),
}

impl CheckKind {
    /// The key of its table.
    pub fn word(&self) -> &'static str {
        match self {
            Self::Tcp(_) => "tcp",
            Self::Http(check) if check.tls.is_some() => "https",
            Self::Http(_) => "http",
            Self::Grpc(_) => "grpc",
            Self::Dns(_) => "dns",
            Self::Memcached(_) => "memcached",
            Self::Ntp(_) => "ntp",
        }
    }

    /// The port that is asked.
    pub fn port(&self) -> u16 {
        match self {
            Self::Tcp(check) => check.port,
            Self::Http(check) => check.port,
            Self::Grpc(check) => check.port,
            Self::Dns(check) => check.port,
            Self::Memcached(check) => check.port,
            Self::Ntp(check) => check.port,
        }
    }

    /// What carries it: a service of the same protocol may be asked so.
    pub fn protocol(&self) -> Protocol {
        match self {
            Self::Dns(_) | Self::Ntp(_) => Protocol::Udp,
            Self::Memcached(check) if check.transport == Transport::Udp => Protocol::Udp,
            Self::Tcp(_) | Self::Http(_) | Self::Grpc(_) | Self::Memcached(_) => Protocol::Tcp,
        }
    }

    /// How TLS treats the backend, where the check uses it.
    pub(crate) fn tls(&self) -> Option<&Tls> {
        match self {
            Self::Http(http) => http.tls.as_ref(),
            Self::Grpc(grpc) => grpc.tls.as_ref(),
            Self::Tcp(_) | Self::Dns(_) | Self::Memcached(_) | Self::Ntp(_) => None,
        }
    }
}

/// As the file has it: the kind's word, and its table.
impl Serialize for CheckKind {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let mut map = to.serialize_map(Some(1))?;
        match self {
            Self::Tcp(check) => map.serialize_entry(self.word(), check),
            Self::Http(check) => map.serialize_entry(self.word(), check),
            Self::Grpc(check) => map.serialize_entry(self.word(), check),
            Self::Dns(check) => map.serialize_entry(self.word(), check),
            Self::Memcached(check) => map.serialize_entry(self.word(), check),
            Self::Ntp(check) => map.serialize_entry(self.word(), check),
        }?;
        map.end()
    }
}

/// `tcp = { port }`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct TcpCheck {
    /// Required.
    pub port: u16,
}

/// `http = { port, method, path, host, headers, status, body_contains }`; `https` has the keys of [`Tls`] too.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct HttpCheck {
    /// Default 80; for `https` 443.
    pub port: u16,
    /// `Some` for `https`.
    #[serde(flatten)]
    pub tls: Option<Tls>,
    /// An HTTP method in capitals. Default `GET`.
    pub method: Arc<str>,
    /// Path and query, starting with `/`. Default `/`.
    pub path: Arc<str>,
    /// The `Host` header. Default: address and port of the probe.
    pub host: Option<Arc<str>>,
    /// Further headers, in the order of their names. Default none.
    #[serde(serialize_with = "canonical::sealed_values")]
    pub headers: Vec<(Arc<str>, Arc<str>)>,
    /// Status codes that pass; a redirect is not followed: within 100 to 599, ascending, without overlap, at least one range. Default 200 to 299.
    #[serde(serialize_with = "canonical::ranges")]
    pub status: Vec<RangeInclusive<u16>>,
    /// What the first 64 KiB of the answer's body must contain. Default: nothing.
    pub body_contains: Option<Arc<str>>,
}

/// `grpc = { port, service, tls }`; with `tls = true` it has the keys of [`Tls`] too.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct GrpcCheck {
    /// Required.
    pub port: u16,
    /// The service asked about; `""` means the server as a whole. Default `""`.
    pub service: Arc<str>,
    /// Default none.
    #[serde(flatten)]
    pub tls: Option<Tls>,
}

/// `dns = { port, name, record }`, over UDP.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct DnsCheck {
    /// Default 53.
    pub port: u16,
    /// The name asked for, without a dot at its end; `"."` is the root. Required.
    pub name: Arc<str>,
    /// The answer must be NOERROR and hold at least one. Default [`DnsRecord::A`].
    pub record: DnsRecord,
}

/// `memcached = { port, transport }`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct MemcachedCheck {
    /// Default 11211.
    pub port: u16,
    /// Default [`Transport::Tcp`].
    pub transport: Transport,
}

/// How memcached is asked. A server may answer over TCP and drop all UDP, which it does not serve by default.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Transport {
    /// Over a connection.
    Tcp,
    /// By a datagram, as requests of a keyed pool come.
    Udp,
}

/// `ntp = { port, max_stratum }`, over UDP.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct NtpCheck {
    /// Default 123.
    pub port: u16,
    /// The server may be so many steps away from a reference clock, itself counted: 1 to 15. Default 15.
    pub max_stratum: u8,
}

/// The type of record that is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum DnsRecord {
    /// An IPv4 address.
    A,
    /// An IPv6 address.
    Aaaa,
    /// Text.
    Txt,
    /// Start of a zone.
    Soa,
    /// Name servers.
    Ns,
}

impl DnsRecord {
    /// Each with its word.
    pub const WORDS: [(&str, Self); 5] =
        [("A", Self::A), ("AAAA", Self::Aaaa), ("TXT", Self::Txt), ("SOA", Self::Soa), ("NS", Self::Ns)];
}

/// Reads the one kind of a check's section.
pub(super) fn read(section: &mut Section<'_>, outside: &Outside<'_>) -> Option<CheckKind> {
    let nodes = KINDS.map(|(word, _)| section.optional(word));
    let mut kinds = Vec::new();
    for ((word, read), node) in KINDS.into_iter().zip(nodes) {
        let Some(node) = node else { continue };
        kinds.push(node.section().and_then(|section| read(section, outside)));
        if kinds.len() > 1 {
            let found = format!("{word} beside another kind");
            section.report.error(&node.place, found, "one kind a check");
        }
    }
    if kinds.is_empty() {
        let words = KINDS.map(|(word, _)| word).join(", ");
        section.report.absent(&section.place(), "no kind of check", format!("one of {words}"));
    }
    kinds.pop().flatten()
}

fn read_tcp(mut section: Section<'_>) -> Option<TcpCheck> {
    let port = required_port(&mut section);
    section.finish();
    Some(TcpCheck { port: port? })
}

fn read_memcached(mut section: Section<'_>) -> MemcachedCheck {
    let port = section.or("port", 11_211, |node| node.number(1..=u16::MAX));
    let words = [("tcp", Transport::Tcp), ("udp", Transport::Udp)];
    let transport = section.or("transport", Transport::Tcp, |node| node.choice(&words));
    section.finish();
    MemcachedCheck { port, transport }
}

fn read_ntp(mut section: Section<'_>) -> NtpCheck {
    let port = section.or("port", 123, |node| node.number(1..=u16::MAX));
    let max_stratum = section.or("max_stratum", 15, |node| node.number(1..=15));
    section.finish();
    NtpCheck { port, max_stratum }
}

fn required_port(section: &mut Section<'_>) -> Option<u16> {
    section.required("port", "a port from 1 to 65535").and_then(|node| node.number(1..=u16::MAX))
}

/// `outside` is given for `https` alone.
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
    section.finish();
    if let (Some(node), "HEAD") = (body, &*method) {
        node.refuse("nothing here: an answer to HEAD has no body");
    }
    let tls = match tls {
        Some(tls) => Some(tls?),
        None => None,
    };
    let status = status.map_or_else(|| vec![200..=299], joined);
    Some(HttpCheck { port, tls, method, path, host, headers, status, body_contains })
}

fn read_headers(section: Section<'_>) -> Vec<(Arc<str>, Arc<str>)> {
    let mut headers: Vec<(Arc<str>, Arc<str>)> = Vec::new();
    for (name, node) in section.entries() {
        let lower = name.to_ascii_lowercase();
        let taken = |(other, _): &(Arc<str>, Arc<str>)| other.eq_ignore_ascii_case(name);
        if !is_token(name) {
            node.refuse("a header whose name is of letters, digits and the signs of RFC 9110");
        } else if let Some((_, why)) = NOT_HEADERS.iter().find(|(word, _)| *word == lower) {
            node.report.error(&node.place, format!("the header {lower}"), *why);
        } else if headers.iter().any(taken) {
            node.report.error(&node.place, format!("the header {lower} a second time"), "each header once");
        } else if let Some(value) = text(&node, VALUE, is_value) {
            headers.push((Arc::from(name), value));
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
        Tls::refuse(&mut section, "nothing here without tls = true");
    }
    section.finish();
    let tls = match tls {
        Some(tls) => Some(tls?),
        None => None,
    };
    Some(GrpcCheck { port: port?, service, tls })
}

fn read_dns(mut section: Section<'_>) -> Option<DnsCheck> {
    let port = section.or("port", 53, |node| node.number(1..=u16::MAX));
    let name = section.required("name", NAME).and_then(|node| node.parse(NAME, dns_name));
    let record = section.or("record", DnsRecord::A, |node| node.choice(&DnsRecord::WORDS));
    section.finish();
    Some(DnsCheck { port, name: name?, record })
}

/// A string that passes `good`.
fn text(node: &Node<'_>, allowed: &str, good: fn(&str) -> bool) -> Option<Arc<str>> {
    node.parse(allowed, |text| good(text).then(|| Arc::from(text)))
}

/// Ranges that touch become one, so that a set of codes has one spelling.
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

/// The name asked for, as [`DnsCheck`] has it; `None`: it is none (RFC 1035 §2.3.4).
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
    // CONNECT makes a tunnel, and TRACE sends the request back: neither asks a server how it is.
    let other = matches!(text, "CONNECT" | "TRACE");
    (1..=16).contains(&text.len()) && !other && text.bytes().all(|byte| byte.is_ascii_uppercase())
}

/// Whether an HTTP request can have this path and query: [`HttpCheck::path`].
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

/// Reads the table behind a kind's word.
type Read = fn(Section<'_>, &Outside<'_>) -> Option<CheckKind>;

const KINDS: [(&str, Read); 7] = [
    ("tcp", |section, _| read_tcp(section).map(CheckKind::Tcp)),
    ("http", |section, _| read_http(section, None).map(CheckKind::Http)),
    ("https", |section, outside| read_http(section, Some(outside)).map(CheckKind::Http)),
    ("grpc", |section, outside| read_grpc(section, outside).map(CheckKind::Grpc)),
    ("dns", |section, _| read_dns(section).map(CheckKind::Dns)),
    ("memcached", |section, _| Some(CheckKind::Memcached(read_memcached(section)))),
    ("ntp", |section, _| Some(CheckKind::Ntp(read_ntp(section)))),
];
/// Headers that the checker sets, and headers that hold secrets, which never stand in this file.
const NOT_HEADERS: [(&str, &str); 7] = [
    ("host", "nothing here: it is the key host"),
    ("connection", "nothing here: the checker sets it"),
    ("content-length", "nothing here: the checker sends no body"),
    ("transfer-encoding", "nothing here: the checker sends no body"),
    ("authorization", "no secret: a path that needs none"),
    ("proxy-authorization", "no secret: a path that needs none"),
    ("cookie", "no secret: a path that needs none"),
];
const METHOD: &str =
    "an HTTP method in capitals, such as \"GET\", \"HEAD\" or \"POST\", not CONNECT or TRACE";
const PATH: &str = "a path that starts with '/', of at most 1024 ASCII characters without space and '#'";
const HOST: &str = "a host name or an address, with or without a port, at most 255 characters";
const VALUE: &str = "at most 1024 printable ASCII characters without space at either end";
const STATUS: &str = "a list of status codes and ranges from 100 to 599, such as [200, \"301-302\"]";
const STATUS_CODE: &str = "a status code from 100 to 599, or a range such as \"301-302\"";
const BODY: &str = "a text of 1 to 1024 bytes";
const SERVICE: &str = "a service name of at most 255 ASCII characters, or \"\"";
const NAME: &str = "a domain name of at most 253 characters in labels of 1 to 63";
