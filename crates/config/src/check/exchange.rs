//! TCP and UDP checks: the bytes that a check sends, and the response that it expects.
//!
//! Both kinds write bytes in the same way: as text (`send`, `expect`), in hexadecimal digits
//! (`send_hex`, `expect_hex`), or as a regular expression (`expect_regex`). An expectation in any
//! of these forms is compiled to an automaton, which the crate `health` runs over the response byte
//! by byte. A probe therefore takes linear time and does not store the response.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use config_text::words::quote;
use config_text::{Expected, Node, Section};
use regex_automata::dfa::{StartKind, dense};
use regex_automata::nfa::thompson::NFA;
use regex_automata::util::{look::Look, syntax};
use serde::Serialize;

/// A TCP check: `tcp = { port, send, expect }`. Without an expectation, the check only opens a
/// connection.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct TcpCheck {
    /// The port to connect to. Required.
    pub port: u16,
    /// The bytes to send after connecting. Default: none.
    #[serde(flatten)]
    pub send: Option<Payload>,
    /// The content that the response must have. Default: any content.
    #[serde(flatten)]
    pub expect: Option<Expect>,
}

/// A UDP check: `udp = { port, send, expect }`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct UdpCheck {
    /// The port to send to. Required.
    pub port: u16,
    /// The content of the datagram. Required.
    #[serde(flatten)]
    pub send: Payload,
    /// The content that the response must have. Without an expectation, the check fails only after
    /// an ICMP error. Default: none.
    #[serde(flatten)]
    pub expect: Option<Expect>,
}

/// Bytes to send, as text or in hexadecimal digits: 1 to 1,024 bytes.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub enum Payload {
    /// The bytes as a string.
    #[serde(rename = "send")]
    Text(Arc<str>),
    /// Pairs of lower-case hexadecimal digits.
    #[serde(rename = "send_hex")]
    Hex(Arc<str>),
}

impl Payload {
    /// Returns the bytes.
    pub fn bytes(&self) -> Vec<u8> {
        match self {
            Self::Text(text) => text.as_bytes().to_vec(),
            Self::Hex(digits) => from_hex(digits).unwrap_or_default(),
        }
    }

    /// Returns the configuration key of the payload, and its value.
    pub fn pair(&self) -> (&'static str, &str) {
        match self {
            Self::Text(text) => ("send", text),
            Self::Hex(digits) => ("send_hex", digits),
        }
    }

    /// Reads the value of `send` or `send_hex`. Returns `None` if the value is invalid.
    pub fn parse(key: &str, value: &str) -> Option<Self> {
        if key == "send" { text(value).map(Self::Text) } else { hex(value).map(Self::Hex) }
    }

    pub(super) fn read(section: &mut Section<'_>) -> Option<Self> {
        let (key, node) = only_one(["send", "send_hex"].map(|key| (key, section.optional(key))))?;
        node.parse(if key == "send" { TEXT } else { HEX }, |value| Self::parse(key, value))
    }
}

/// The expected content of a response.
#[derive(Clone, Serialize)]
pub struct Expect {
    /// The expectation as it is configured.
    #[serde(flatten)]
    pub form: ExpectForm,
    /// The automaton that finds the expectation in a response.
    #[serde(skip)]
    pub automaton: Arc<dense::DFA<Vec<u32>>>,
    /// `true` if a match can depend on the end of the response.
    #[serde(skip)]
    pub looks_at_end: bool,
}

/// The form in which an expectation is configured.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub enum ExpectForm {
    /// The bytes as a string.
    #[serde(rename = "expect")]
    Text(Arc<str>),
    /// Pairs of lower-case hexadecimal digits.
    #[serde(rename = "expect_hex")]
    Hex(Arc<str>),
    /// A regular expression over bytes.
    #[serde(rename = "expect_regex")]
    Regex(Arc<str>),
}

impl ExpectForm {
    /// Returns the configuration key of the expectation, and its value.
    pub fn pair(&self) -> (&'static str, &str) {
        match self {
            Self::Text(text) => ("expect", text),
            Self::Hex(digits) => ("expect_hex", digits),
            Self::Regex(pattern) => ("expect_regex", pattern),
        }
    }

    /// Reads the value of `expect`, `expect_hex` or `expect_regex`. Returns `None` if the value has
    /// an invalid length or invalid digits.
    pub fn parse(key: &str, value: &str) -> Option<Self> {
        match key {
            "expect" => text(value).map(Self::Text),
            "expect_hex" => hex(value).map(Self::Hex),
            _ => text(value).map(Self::Regex),
        }
    }
}

impl Expect {
    /// Builds the automaton of an expectation.
    ///
    /// # Errors
    /// Returns an error if the regular expression is invalid or its automaton is too large.
    pub fn new(form: ExpectForm) -> Result<Self, String> {
        let pattern = match &form {
            ExpectForm::Text(text) => literal(text.as_bytes()),
            ExpectForm::Hex(digits) => literal(&from_hex(digits).unwrap_or_default()),
            ExpectForm::Regex(pattern) => pattern.to_string(),
        };
        let bytes = syntax::Config::new().unicode(false).utf8(false).nest_limit(64);
        // The text of a syntax error has several lines, and the last line contains the reason.
        let reason = |text: String| text.lines().last().unwrap_or_default().replace("error: ", "");
        let hir = syntax::parse_with(&pattern, &bytes).map_err(|error| reason(error.to_string()))?;
        let program = NFA::config().utf8(false).nfa_size_limit(Some(MAX_AUTOMATON_BYTES));
        let program = NFA::compiler().configure(program).build_from_hir(&hir).map_err(|_| TOO_LARGE)?;
        let limits = dense::Config::new()
            .start_kind(StartKind::Unanchored)
            .accelerate(false)
            .dfa_size_limit(Some(MAX_AUTOMATON_BYTES))
            .determinize_size_limit(Some(8 * MAX_AUTOMATON_BYTES));
        let automaton = dense::Builder::new().configure(limits).build_from_nfa(&program);
        let automaton = automaton.map_err(|_| TOO_LARGE)?;
        let looks_at_end =
            program.look_set_any().iter().any(|look| !matches!(look, Look::Start | Look::StartLF));
        Ok(Self { form, automaton: Arc::new(automaton), looks_at_end })
    }

    fn read(section: &mut Section<'_>) -> Option<Self> {
        let (key, node) = only_one(EXPECTATIONS.map(|key| (key, section.optional(key))))?;
        let expected = match key {
            "expect" => TEXT,
            "expect_hex" => HEX,
            _ => REGEX,
        };
        let form = node.parse(expected, |value| ExpectForm::parse(key, value))?;
        Self::new(form)
            .map_err(|why| node.refuse((format!("invalid regular expression: {why}"), REGEX_HELP)))
            .ok()
    }
}

/// Two expectations are equal if they are configured in the same form with the same value.
impl PartialEq for Expect {
    fn eq(&self, other: &Self) -> bool {
        self.form == other.form
    }
}

impl Eq for Expect {}

impl Hash for Expect {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.form.hash(state);
    }
}

impl fmt::Debug for Expect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.form.fmt(f)
    }
}

impl fmt::Display for Expect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.form {
            ExpectForm::Text(text) => f.write_str(&quote(text)),
            ExpectForm::Hex(digits) => write!(f, "the bytes {digits}"),
            ExpectForm::Regex(pattern) => write!(f, "a match of {}", quote(pattern)),
        }
    }
}

pub(super) fn read_tcp(mut section: Section<'_>) -> Option<TcpCheck> {
    let port = required_port(&mut section);
    let send = Payload::read(&mut section);
    let expect = Expect::read(&mut section);
    let lacks_expectation = send.is_some() && EXPECTATIONS.iter().all(|key| section.optional(key).is_none());
    if lacks_expectation {
        let help = "add expect, expect_hex or expect_regex, or remove the payload";
        let message = format!("{} sends a payload, but expects no response", section.place().field.table());
        section.report.absent(&section.place(), (message, help));
    }
    refuse_probe_mtu(&mut section, UNKNOWN_PROTOCOL);
    section.finish();
    Some(TcpCheck { port: port?, send, expect })
}

pub(super) fn read_udp(mut section: Section<'_>) -> Option<UdpCheck> {
    let port = required_port(&mut section);
    let send = Payload::read(&mut section);
    if section.optional("send").is_none() && section.optional("send_hex").is_none() {
        section.lacks("send", "a UDP check sends a datagram: write its content as send or as send_hex");
    }
    let expect = Expect::read(&mut section);
    refuse_probe_mtu(&mut section, UNKNOWN_PROTOCOL);
    section.finish();
    Some(UdpCheck { port: port?, send: send?, expect })
}

const UNKNOWN_PROTOCOL: &str = "a payload of an unknown protocol cannot be padded";

pub(super) fn required_port(section: &mut Section<'_>) -> Option<u16> {
    section.required("port", "a port from 1 to 65535").and_then(|node| node.number(1..=u16::MAX))
}

/// Reports the key `probe_mtu` in a check of a kind that cannot send requests of full size.
pub(super) fn refuse_probe_mtu(section: &mut Section<'_>, why: &str) {
    let help = format!("{why}; checks of the kinds http, https, grpc, dns and memcached have this key");
    section.refuse("probe_mtu", ("this kind of check has no \"probe_mtu\"", help));
}

/// Returns the only key that is present, with its value. If several keys are present, reports every
/// key after the first as an error.
fn only_one<'k, 'n, const N: usize>(nodes: [(&'k str, Option<Node<'n>>); N]) -> Option<(&'k str, Node<'n>)> {
    let mut found = nodes.into_iter().filter_map(|(key, node)| Some((key, node?)));
    let first = found.next()?;
    for (_, node) in found {
        let message = format!("{} and {} cannot be combined", first.1.label(), node.label());
        node.refuse((message, "keep one of them"));
    }
    Some(first)
}

fn text(text: &str) -> Option<Arc<str>> {
    (1..=MAX_BYTES).contains(&text.len()).then(|| Arc::from(text))
}

/// Returns hexadecimal digits in lower case and without spaces.
fn hex(text: &str) -> Option<Arc<str>> {
    let digits: String = text.split_ascii_whitespace().collect::<String>().to_ascii_lowercase();
    from_hex(&digits).map(|_| digits.into())
}

fn from_hex(digits: &str) -> Option<Vec<u8>> {
    let good = digits.bytes().all(|digit| digit.is_ascii_hexdigit()) && digits.len().is_multiple_of(2);
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    let bytes: Vec<u8> = digits.as_bytes().chunks(2).map(byte).collect::<Option<_>>()?;
    (good && (1..=MAX_BYTES).contains(&bytes.len())).then_some(bytes)
}

/// Returns a regular expression that matches exactly these bytes.
fn literal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("\\x{byte:02x}")).collect()
}

const EXPECTATIONS: [&str; 3] = ["expect", "expect_hex", "expect_regex"];
/// The maximum length of a payload, an expected text and a regular expression, in bytes.
const MAX_BYTES: usize = 1_024;
/// The maximum size of an automaton, in bytes. An automaton for [`MAX_BYTES`] different bytes needs
/// 2 MiB. Building it may need 8 times as much.
const MAX_AUTOMATON_BYTES: usize = 4 << 20;
const TOO_LARGE: &str = "its automaton exceeds 4 MiB; use ^, or * instead of a counted repetition";
const TEXT: Expected = Expected::new("a string of 1 to 1024 bytes").example("\"PING\\r\\n\"");
const HEX: Expected = Expected::new("1 to 1024 bytes as pairs of hexadecimal digits").example("\"ff 00 1b\"");
const REGEX: Expected = Expected::new("a regular expression of 1 to 1024 bytes").example("\"^220 .*ESMTP\"");
const REGEX_HELP: &str = "the syntax is that of the Rust crate regex, without Unicode classes";
