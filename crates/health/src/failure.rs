//! Why an attempt failed, in the operator's words.
//!
//! In: errors of sockets, of TLS, of HTTP. Out: [`Failure`].
//! Invariant: what a peer sent is quoted escaped and cut, so a message is short and safe to print.

use std::error::Error;
use std::fmt;
use std::io;
use std::ops::RangeInclusive;
use std::sync::Arc;

/// Why an attempt failed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Failure {
    /// Nothing came in time.
    NoAnswer,
    /// Nobody listens on the port.
    Refused,
    /// No way there, as this machine's routes or a router on the way say.
    Unreachable,
    /// The peer tore the connection down.
    Reset,
    /// The peer closed before its answer was complete.
    Closed,
    /// This machine could not ask: no descriptor, no port, no memory, no permission. It says nothing about the backend.
    Local(Box<str>),
    /// The TLS handshake failed.
    Tls(Box<str>),
    /// The answer is not of the protocol.
    Malformed(Box<str>),
    /// Another HTTP status than wanted.
    Status {
        /// What came.
        found: u16,
        /// What passes.
        wanted: Vec<RangeInclusive<u16>>,
    },
    /// The first 64 KiB of the body lack the text.
    Body {
        /// The text.
        wanted: Arc<str>,
    },
    /// The gRPC call ended with this code: 5 when the server does not know the service, 12 when it has no health service.
    GrpcStatus(u32),
    /// The gRPC health status is not SERVING (1).
    NotServing(u64),
    /// The DNS response code is not NOERROR.
    Rcode(u8),
    /// The DNS answer holds no record of the type asked for.
    NoRecord,
    /// The NTP server answers this code in place of a time: RATE when it is asked too often, DENY, INIT, ...
    Kiss([u8; 4]),
    /// The NTP server has no time itself.
    Unsynchronized,
    /// The NTP server is further from a reference clock than wanted.
    Stratum {
        /// Its steps, itself counted.
        found: u8,
        /// The most that pass.
        max: u8,
    },
}

impl Failure {
    /// One of a fixed set of words: for a metric's label.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::NoAnswer => "no_answer",
            Self::Refused => "refused",
            Self::Unreachable => "unreachable",
            Self::Reset => "reset",
            Self::Closed => "closed",
            Self::Local(_) => "local",
            Self::Tls(_) => "tls",
            Self::Malformed(_) => "malformed",
            Self::Status { .. } => "status",
            Self::Body { .. } => "body",
            Self::GrpcStatus(_)
            | Self::NotServing(_)
            | Self::Kiss(_)
            | Self::Unsynchronized
            | Self::Stratum { .. } => "not_serving",
            Self::Rcode(_) | Self::NoRecord => "dns",
        }
    }

    /// Every word that [`Failure::reason`] can say.
    pub const REASONS: [&'static str; 12] = [
        "no_answer",
        "refused",
        "unreachable",
        "reset",
        "closed",
        "local",
        "tls",
        "malformed",
        "status",
        "body",
        "not_serving",
        "dns",
    ];

    /// This machine could not ask, so the backend is neither better nor worse for it.
    pub fn is_local(&self) -> bool {
        matches!(self, Self::Local(_))
    }

    /// An answer that is not of the protocol, with what it should have been.
    pub(super) fn malformed(wanted: &str) -> Self {
        Self::Malformed(wanted.into())
    }

    /// An error of a library, which keeps that of the socket or of TLS within it.
    pub(super) fn of_library(error: &(dyn Error + 'static), protocol: &str) -> Self {
        let mut cause = Some(error);
        while let Some(inner) = cause {
            if let Some(error) = inner.downcast_ref::<io::Error>() {
                return error.into();
            }
            cause = inner.source();
        }
        Self::Malformed(format!("not {protocol}: {}", shorten(&error.to_string())).into())
    }
}

impl From<&io::Error> for Failure {
    fn from(error: &io::Error) -> Self {
        use io::ErrorKind as Kind;
        let inner = error.get_ref();
        if let Some(error) = inner.and_then(|inner| inner.downcast_ref::<rustls::Error>()) {
            return Self::Tls(tls_words(error).into());
        }
        match error.kind() {
            Kind::ConnectionRefused => Self::Refused,
            Kind::HostUnreachable | Kind::NetworkUnreachable => Self::Unreachable,
            Kind::ConnectionReset | Kind::ConnectionAborted | Kind::BrokenPipe | Kind::NotConnected => {
                Self::Reset
            }
            Kind::TimedOut => Self::NoAnswer,
            Kind::UnexpectedEof | Kind::WriteZero => Self::Closed,
            _ => Self::Local(error.to_string().into()),
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoAnswer => f.write_str("no answer"),
            Self::Refused => f.write_str("connection refused"),
            Self::Unreachable => f.write_str("no route to it"),
            Self::Reset => f.write_str("connection reset"),
            Self::Closed => f.write_str("closed before its answer was complete"),
            Self::Local(why) => write!(f, "this machine could not ask: {why}"),
            Self::Tls(why) => write!(f, "TLS: {why}"),
            Self::Malformed(what) => f.write_str(what),
            Self::Status { found, wanted } => write!(f, "status {found}, wanted {}", ranges(wanted)),
            Self::Body { wanted } => write!(f, "body lacks {:?}", shorten(wanted)),
            Self::GrpcStatus(5) => f.write_str("gRPC status 5, the server does not know the service"),
            Self::GrpcStatus(12) => f.write_str("gRPC status 12, the server has no health service"),
            Self::GrpcStatus(code) => write!(f, "gRPC status {code}, wanted 0"),
            Self::NotServing(2) => f.write_str("gRPC health says NOT_SERVING"),
            Self::NotServing(3) => f.write_str("gRPC health says SERVICE_UNKNOWN"),
            Self::NotServing(status) => write!(f, "gRPC health says {status}, wanted 1 (SERVING)"),
            Self::Rcode(1) => f.write_str("DNS response code FORMERR, wanted NOERROR"),
            Self::Rcode(2) => f.write_str("DNS response code SERVFAIL, wanted NOERROR"),
            Self::Rcode(3) => f.write_str("DNS response code NXDOMAIN, wanted NOERROR"),
            Self::Rcode(5) => f.write_str("DNS response code REFUSED, wanted NOERROR"),
            Self::Rcode(code) => write!(f, "DNS response code {code}, wanted NOERROR"),
            Self::NoRecord => f.write_str("DNS answer without such a record"),
            Self::Kiss(code) => write!(f, "NTP kiss code {}", quote(code)),
            Self::Unsynchronized => f.write_str("the NTP server is not synchronized"),
            Self::Stratum { found, max } => write!(f, "NTP stratum {found}, wanted at most {max}"),
        }
    }
}

impl Error for Failure {}

/// What rustls says, in words.
pub(super) fn tls_words(error: &rustls::Error) -> String {
    use rustls::{CertificateError as Wrong, Error};
    match error {
        Error::InvalidCertificate(Wrong::Expired | Wrong::ExpiredContext { .. }) => {
            "the certificate has expired".into()
        }
        Error::InvalidCertificate(Wrong::NotValidYet | Wrong::NotValidYetContext { .. }) => {
            "the certificate is not valid yet".into()
        }
        Error::InvalidCertificate(Wrong::UnknownIssuer) => "the certificate is not signed by the CA".into(),
        Error::InvalidCertificate(Wrong::NotValidForName | Wrong::NotValidForNameContext { .. }) => {
            "the certificate is for another name".into()
        }
        Error::InvalidCertificate(Wrong::BadSignature) => {
            "a signature is wrong: the CA's key is another".into()
        }
        Error::InvalidMessage(_) => "the answer is not TLS".into(),
        other => shorten(&other.to_string()).to_owned(),
    }
}

/// Such as `200-299, 404`.
fn ranges(statuses: &[RangeInclusive<u16>]) -> String {
    let word = |range: &RangeInclusive<u16>| match (range.start(), range.end()) {
        (first, last) if first == last => first.to_string(),
        (first, last) => format!("{first}-{last}"),
    };
    statuses.iter().map(word).collect::<Vec<_>>().join(", ")
}

/// Bytes of a peer, for a message.
pub(super) fn quote(bytes: &[u8]) -> String {
    let cut = bytes.len() > QUOTED_BYTES;
    let shown = bytes.get(..QUOTED_BYTES).unwrap_or(bytes).escape_ascii();
    format!("\"{shown}{}\"", if cut { "..." } else { "" })
}

pub(super) fn shorten(text: &str) -> &str {
    text.char_indices().nth(LONGEST_CHARS).map_or(text, |(at, _)| text.get(..at).unwrap_or(text))
}

const QUOTED_BYTES: usize = 40;
const LONGEST_CHARS: usize = 120;
