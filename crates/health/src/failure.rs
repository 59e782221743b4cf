//! The reasons why a health check attempt fails, and their messages. Text from a peer is escaped
//! and cut, so that a message is short and safe to print.

use std::error::Error;
use std::fmt;
use std::io;
use std::ops::RangeInclusive;
use std::sync::Arc;

use rustls::{AlertDescription, CertificateError, PeerIncompatible};

/// The reason why an attempt failed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Failure {
    /// No response arrived in time.
    NoAnswer,
    /// The connection was opened, but no response to a packet of full size arrived in time. The
    /// number is the length of the packet's TCP segment in bytes.
    FullSize(u32),
    /// The backend sent a response to a short request, but none to a packet of full size. The
    /// number is the length of the datagram in bytes.
    FullSizeDatagram(usize),
    /// The backend refused the connection.
    Refused,
    /// The backend sent an ICMP error, because no process listens on the UDP port.
    PortUnreachable,
    /// This machine or a router on the path has no route to the backend.
    Unreachable,
    /// The backend reset the connection.
    Reset,
    /// The backend closed the connection before the response was complete.
    Closed,
    /// This machine could not send the probe, because it lacks a file descriptor, port, memory or
    /// permission. Such a failure does not affect the health state of the backend.
    Local(Box<str>),
    /// The TLS handshake failed.
    Tls(Box<str>),
    /// The response does not follow the protocol.
    Malformed(Box<str>),
    /// The HTTP status is not an expected status.
    Status {
        /// The received status.
        found: u16,
        /// The statuses with which the check passes.
        wanted: Vec<RangeInclusive<u16>>,
    },
    /// The response does not contain the expected bytes. The text shows the expected and the
    /// received bytes.
    Unexpected(Box<str>),
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
    /// The agent of the backend reports that the backend is down. The text contains the words of
    /// the agent.
    Agent(Box<str>),
    /// The program of an exec check ended with another status than 0, or did not end. The text has
    /// the status and the first line of its output.
    Program(Box<str>),
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
            Self::NoAnswer | Self::FullSize(_) | Self::FullSizeDatagram(_) => "no_answer",
            Self::Refused | Self::PortUnreachable => "refused",
            Self::Unreachable => "unreachable",
            Self::Reset => "reset",
            Self::Closed => "closed",
            Self::Local(_) => "local",
            Self::Tls(_) => "tls",
            Self::Malformed(_) => "malformed",
            Self::Status { .. } => "status",
            Self::Unexpected(_) => "unexpected",
            Self::Body { .. } => "body",
            Self::GrpcStatus(_)
            | Self::NotServing(_)
            | Self::Kiss(_)
            | Self::Agent(_)
            | Self::Unsynchronized
            | Self::Stratum { .. } => "not_serving",
            Self::Rcode(_) | Self::NoRecord => "dns",
            Self::Program(_) => "program",
        }
    }

    /// All values that [`Failure::reason`] can return.
    pub const REASONS: [&'static str; 14] = [
        "no_answer",
        "refused",
        "unreachable",
        "reset",
        "closed",
        "local",
        "tls",
        "malformed",
        "status",
        "unexpected",
        "body",
        "not_serving",
        "dns",
        "program",
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
            Self::FullSize(segment) => write!(
                f,
                "connected, but no answer to a full-size packet with {segment} bytes of TCP data; the path may lose \
                 packets of this size"
            ),
            Self::FullSizeDatagram(length) => write!(
                f,
                "answered, but no answer to a full-size packet with {length} bytes of UDP data; the path may lose \
                 packets of this size"
            ),
            Self::Refused => f.write_str("connection refused"),
            Self::PortUnreachable => f.write_str("ICMP port unreachable"),
            Self::Unreachable => f.write_str("no route to the backend"),
            Self::Reset => f.write_str("connection reset"),
            Self::Closed => f.write_str("connection closed before the response was complete"),
            Self::Local(why) => write!(f, "this machine could not send the check: {why}"),
            Self::Tls(why) => write!(f, "TLS: {why}"),
            Self::Malformed(what) | Self::Unexpected(what) | Self::Agent(what) | Self::Program(what) => {
                f.write_str(what)
            }
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
    use rustls::Error;
    let words = match error {
        Error::InvalidCertificate(wrong) => certificate_words(wrong),
        Error::AlertReceived(alert) => alert_words(*alert),
        Error::InvalidMessage(_) => Some("the response is not TLS"),
        Error::NoApplicationProtocol => Some("the server selected no protocol of the check (ALPN)"),
        Error::PeerIncompatible(PeerIncompatible::ServerDoesNotSupportTls12Or13) => Some(OLD_TLS),
        Error::InconsistentKeys(_) => Some("the private key does not belong to the certificate"),
        _ => None,
    };
    words.map_or_else(|| shorten(&error.to_string()).to_owned(), ToOwned::to_owned)
}

fn certificate_words(wrong: &CertificateError) -> Option<&'static str> {
    use CertificateError as Wrong;
    Some(match wrong {
        Wrong::Expired | Wrong::ExpiredContext { .. } => "the certificate has expired",
        Wrong::NotValidYet | Wrong::NotValidYetContext { .. } => "the certificate is not valid yet",
        Wrong::UnknownIssuer => "the certificate is not signed by the CA",
        Wrong::NotValidForName | Wrong::NotValidForNameContext { .. } => {
            "the certificate is not valid for this server name"
        }
        Wrong::BadSignature => {
            "a signature of the certificate or of the handshake is wrong; the CA may have another key, or an RSA \
             key is shorter than 2048 bits"
        }
        Wrong::BadEncoding => "the certificate is malformed",
        Wrong::InvalidPurpose | Wrong::InvalidPurposeContext { .. } => "the certificate is not for servers",
        Wrong::UnhandledCriticalExtension => "the certificate has an unknown critical extension",
        Wrong::UnsupportedSignatureAlgorithmContext { .. }
        | Wrong::UnsupportedSignatureAlgorithmForPublicKeyContext { .. } => {
            "the certificate has an unsupported kind of key or signature"
        }
        // The verifier reports these reasons only as text.
        Wrong::Other(other) => match &*other.to_string() {
            "UnsupportedCertVersion" => "the certificate has X.509 version 1 or 2 instead of 3",
            "CaUsedAsEndEntity" => "the certificate of the server is a CA certificate",
            _ => return None,
        },
        _ => return None,
    })
}

fn alert_words(alert: AlertDescription) -> Option<&'static str> {
    use AlertDescription as Alert;
    Some(match alert {
        Alert::HandshakeFailure => {
            "the server refused the handshake; it needs a client certificate, or supports none of the offered \
             cipher suites, groups and signatures"
        }
        Alert::ProtocolVersion => OLD_TLS,
        Alert::CertificateRequired => "the server requires a client certificate",
        Alert::UnknownCA => "the server does not trust the CA of the client certificate",
        Alert::CertificateExpired => "the client certificate has expired",
        Alert::CertificateRevoked => "the client certificate is revoked",
        Alert::BadCertificate | Alert::CertificateUnknown | Alert::UnsupportedCertificate => {
            "the server rejected the client certificate"
        }
        Alert::AccessDenied => "the server denied access to this client",
        Alert::NoApplicationProtocol => "the server does not support the protocol of the check (ALPN)",
        Alert::UnrecognisedName => "the server does not know this server name (SNI)",
        Alert::InternalError => "the server reported an internal error",
        _ => return None,
    })
}

const OLD_TLS: &str = "the server supports neither TLS 1.2 nor TLS 1.3";

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
