//! `[check.NAME]`: how a backend shows that it serves.
//!
//! In: the section. Out: [`Check`]. Not here: carrying checks out (`health`).

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

/// A health check as configured.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Check {
    pub(crate) name: Arc<str>,
    pub(crate) kind: CheckKind,
    pub(crate) via: Via,
    pub(crate) interval: Duration,
    pub(crate) fast_interval: Duration,
    pub(crate) timeout: Duration,
    pub(crate) rise: u32,
    pub(crate) fall: u32,
    pub(crate) jitter_percent: u8,
}

impl Check {
    /// The name, unique in the cluster.
    pub fn name(&self) -> &Arc<str> {
        &self.name
    }

    /// What is asked, and what the answer must be.
    pub fn kind(&self) -> &CheckKind {
        &self.kind
    }

    /// Straight to the backend's own address, or as clients' packets go.
    pub fn via(&self) -> Via {
        self.via
    }

    /// From one start to the next while the verdict is settled.
    pub fn interval(&self) -> Duration {
        self.interval
    }

    /// From one start to the next while in doubt: after a result that differs from the verdict.
    pub fn fast_interval(&self) -> Duration {
        self.fast_interval
    }

    /// When an attempt counts as failed; below both intervals.
    pub fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Passes in a row that make a backend up; the first result of all decides alone.
    pub fn rise(&self) -> u32 {
        self.rise
    }

    /// Failures in a row that make it down.
    pub fn fall(&self) -> u32 {
        self.fall
    }

    /// Each pause is shortened or stretched at random by up to so much of it.
    pub fn jitter_percent(&self) -> u8 {
        self.jitter_percent
    }
}

/// Which way a check takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Via {
    /// To the backend's own address.
    Backend,
    /// Inside the pool's encapsulation to each VIP of the pool.
    Vip,
}

/// What is asked.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum CheckKind {
    /// A connection is accepted.
    Tcp(TcpCheck),
    /// An answer over HTTP/1.1, in TLS when `tls` is there.
    Http(HttpCheck),
    /// `grpc.health.v1.Health/Check` says SERVING.
    Grpc(GrpcCheck),
    /// A DNS answer over UDP.
    Dns(DnsCheck),
    /// `version` is answered over TCP.
    Memcached(MemcachedCheck),
}

/// See [`CheckKind::Tcp`].
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TcpCheck {
    /// Port.
    pub port: u16,
}

/// See [`CheckKind::Http`].
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct HttpCheck {
    /// Port.
    pub port: u16,
    /// `https`.
    pub tls: Option<Tls>,
    /// Default GET.
    pub method: Arc<str>,
    /// Default `/`.
    pub path: Arc<str>,
    /// The Host header; default: the address.
    pub host: Option<Arc<str>>,
    /// More headers.
    pub headers: Vec<(Arc<str>, Arc<str>)>,
    /// The statuses that pass; default 200 to 299. A redirect is not followed.
    pub status: Vec<RangeInclusive<u16>>,
    /// What the body's first 64 KiB must contain.
    pub body_contains: Option<Arc<str>>,
}

/// How a check speaks TLS.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Tls {
    /// The name asked for and verified; default: the address.
    pub server_name: Option<Arc<str>>,
    /// Certificates that may have signed the backend's, PEM.
    pub ca: Option<Arc<str>>,
    /// `false`: any certificate passes.
    pub verify: bool,
}

/// See [`CheckKind::Grpc`].
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct GrpcCheck {
    /// Port.
    pub port: u16,
    /// The service asked about; empty: the server as a whole.
    pub service: Arc<str>,
    /// HTTP/2 in TLS.
    pub tls: Option<Tls>,
}

/// See [`CheckKind::Dns`].
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct DnsCheck {
    /// Port; default 53.
    pub port: u16,
    /// The name asked for.
    pub name: Arc<str>,
    /// Its record; the answer must hold at least one.
    pub record: DnsRecord,
}

/// A record that may be asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DnsRecord {
    /// IPv4 address.
    A,
    /// IPv6 address.
    Aaaa,
    /// Text.
    Txt,
    /// Start of authority.
    Soa,
    /// Name server.
    Ns,
}

/// See [`CheckKind::Memcached`].
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct MemcachedCheck {
    /// Port; default 11211.
    pub port: u16,
}
