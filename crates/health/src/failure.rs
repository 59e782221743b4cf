//! The reasons why a health check attempt fails, and their messages. Text from a peer is escaped
//! and cut, so that a message is short and safe to print.

use std::error::Error;
use std::fmt;
use std::io;
use std::ops::RangeInclusive;
use std::sync::Arc;

/// The reason why an attempt failed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Failure {
    /// No response arrived in time.
    NoAnswer,
    /// The backend refused the connection.
    Refused,
    /// This machine or a router on the path has no route to the backend.
    Unreachable,
    /// The backend reset the connection.
    Reset,
    /// The backend closed the connection before the response was complete.
    Closed,
    /// This machine could not send the probe, because it lacks a file descriptor, port, memory or
    /// permission. Such a failure does not count against the backend.
    Local(Box<str>),
    /// The TLS handshake failed.
    Tls(Box<str>),
    /// The response does not follow the protocol.
    Malformed(Box<str>),
    /// The HTTP status is not one of the expected statuses.
    Status {
        /// The received status.
        found: u16,
        /// The statuses with which the check passes.
        wanted: Vec<RangeInclusive<u16>>,
    },
    /// The first 64 KiB of the body do not contain the expected text.
    Body {
        /// The expected text.
        wanted: Arc<str>,
    },
    /// The gRPC call ended with this status code. The code is 5 if the server does not know the
    /// service, and 12 if it has no health service.
    GrpcStatus(u32),
    /// The gRPC health status is not SERVING (1).
    NotServing(u64),
    /// The DNS response code is not NOERROR.
    Rcode(u8),
    /// The DNS response has no record of the requested type.
    NoRecord,
    /// The NTP server returned a kiss code instead of a time, such as RATE (too many requests),
    /// DENY or INIT.
    Kiss([u8; 4]),
    /// The NTP server is not synchronized.
    Unsynchronized,
    /// The stratum of the NTP server is too high.
    Stratum {
        /// The stratum of the server.
        found: u8,
        /// The highest stratum with which the check passes.
        max: u8,
    },
}

impl Failure {
    /// Returns a fixed string for the failure, for the label of a metric.
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

    /// All values that [`Failure::reason`] can return.
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

    /// Returns `true` if this machine could not send the probe. Such a failure does not affect the
    /// health state of the backend.
    pub fn is_local(&self) -> bool {
        matches!(self, Self::Local(_))
    }

    /// Creates a failure for a response that does not follow the protocol.
    pub(super) fn malformed(wanted: &str) -> Self {
        Self::Malformed(wanted.into())
    }

    /// Converts the error of a protocol library. If a socket or TLS error caused the protocol
    /// error, that inner error is used.
    pub(super) fn of_library(error: &(dyn Error + 'static), protocol: &str) -> Self {
        let mut cause = Some(error);
        while let Some(inner) = cause {
            if let Some(error) = inner.downcast_ref::<io::Error>() {
                return error.into();
            }
            cause = inner.source();
        }
        Self::Malformed(format!("response is not {protocol}: {}", shorten(&error.to_string())).into())
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
            Self::Unreachable => f.write_str("no route to the backend"),
            Self::Reset => f.write_str("connection reset"),
            Self::Closed => f.write_str("connection closed before the response was complete"),
            Self::Local(why) => write!(f, "this machine could not send the check: {why}"),
            Self::Tls(why) => write!(f, "TLS: {why}"),
            Self::Malformed(what) => f.write_str(what),
            Self::Status { found, wanted } => write!(f, "status {found}, expected {}", ranges(wanted)),
            Self::Body { wanted } => write!(f, "body does not contain {:?}", shorten(wanted)),
            Self::GrpcStatus(5) => f.write_str("gRPC status 5, the server does not know the service"),
            Self::GrpcStatus(12) => f.write_str("gRPC status 12, the server has no health service"),
            Self::GrpcStatus(code) => write!(f, "gRPC status {code}, expected 0"),
            Self::NotServing(2) => f.write_str("gRPC health status NOT_SERVING"),
            Self::NotServing(3) => f.write_str("gRPC health status SERVICE_UNKNOWN"),
            Self::NotServing(status) => write!(f, "gRPC health status {status}, expected 1 (SERVING)"),
            Self::Rcode(1) => f.write_str("DNS response code FORMERR, expected NOERROR"),
            Self::Rcode(2) => f.write_str("DNS response code SERVFAIL, expected NOERROR"),
            Self::Rcode(3) => f.write_str("DNS response code NXDOMAIN, expected NOERROR"),
            Self::Rcode(5) => f.write_str("DNS response code REFUSED, expected NOERROR"),
            Self::Rcode(code) => write!(f, "DNS response code {code}, expected NOERROR"),
            Self::NoRecord => f.write_str("DNS response without a record of the requested type"),
            Self::Kiss(code) => write!(f, "NTP kiss code {}", quote(code)),
            Self::Unsynchronized => f.write_str("the NTP server is not synchronized"),
            Self::Stratum { found, max } => write!(f, "NTP stratum {found}, expected at most {max}"),
        }
    }
}

impl Error for Failure {}

/// Returns a description of a TLS error for operators.
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
            "the certificate is not valid for this server name".into()
        }
        Error::InvalidCertificate(Wrong::BadSignature) => {
            "the certificate has a bad signature; the CA may have another key".into()
        }
        Error::InvalidMessage(_) => "the response is not TLS".into(),
        other => shorten(&other.to_string()).to_owned(),
    }
}

/// Formats ranges, such as `200-299, 404`.
fn ranges(statuses: &[RangeInclusive<u16>]) -> String {
    let word = |range: &RangeInclusive<u16>| match (range.start(), range.end()) {
        (first, last) if first == last => first.to_string(),
        (first, last) => format!("{first}-{last}"),
    };
    statuses.iter().map(word).collect::<Vec<_>>().join(", ")
}

/// Quotes bytes from a peer for a message. The bytes are escaped and cut to a maximum length.
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
