//! Reads probe targets from URLs and from the VIPs of a configuration. Host names are not accepted,
//! because a VIP is an address, and the measured latency would include the DNS lookup.

mod query;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;
use std::sync::Arc;

use config::{
    AgentCheck, CheckKind, ClientCertificate, Config, DnsCheck, DnsRecord, GrpcCheck, HttpCheck,
    MemcachedCheck, NtpCheck, Ports, Protocol, Service, TcpCheck, Tls, Transport, UdpCheck, Via, dns_name,
    is_path,
};

/// A probe target, which is an address and a check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Target {
    /// The target as a URL.
    pub(super) name: Arc<str>,
    /// The name of the VIP in the configuration. The name is empty for a target from the command
    /// line.
    pub(super) vip: Arc<str>,
    pub(super) address: IpAddr,
    pub(super) kind: CheckKind,
}

impl Target {
    fn new(vip: &str, address: IpAddr, kind: CheckKind) -> Self {
        let name = name(address, &kind).into();
        Self { name, vip: vip.into(), address, kind }
    }

    /// Returns the name of the check kind, which is used as a metric label.
    pub(super) fn protocol(&self) -> &'static str {
        scheme(&self.kind)
    }
}

/// The verification settings of TLS connections. `None` means that neither `--ca` nor `--insecure`
/// is given.
#[derive(Debug)]
pub(super) struct Trust(Option<Tls>);

impl Trust {
    pub(super) fn new(ca: Option<String>, insecure: bool) -> Self {
        let known = ca.is_some() || insecure;
        let tls = || Tls { server_name: None, ca: ca.map(Into::into), verify: !insecure, client: None };
        Self(known.then(tls))
    }

    /// Sets the certificate that clients present to servers.
    pub(super) fn with_client(mut self, client: Option<ClientCertificate>) -> Self {
        self.0.iter_mut().for_each(|tls| tls.client.clone_from(&client));
        self
    }

    fn tls(&self, name: &str) -> Result<Tls, String> {
        self.0.clone().ok_or_else(|| {
            format!("{name} needs --ca FILE to verify the certificate, or --insecure to accept any")
        })
    }
}

/// A target as given on the command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Url {
    scheme: Scheme,
    address: IpAddr,
    port: u16,
    /// The text after the port, which begins with `/` or is empty.
    rest: Arc<str>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scheme {
    Tcp,
    Udp,
    Http,
    Https,
    Grpc,
    Grpcs,
    Dns,
    Memcached(Transport),
    Ntp,
    Agent,
}

impl FromStr for Url {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (scheme, rest) = text.split_once("://").ok_or_else(schemes)?;
        let (_, scheme, usual) = *SCHEMES.iter().find(|(name, _, _)| *name == scheme).ok_or_else(schemes)?;
        let end = rest.find(['/', '?']).unwrap_or(rest.len());
        let (authority, rest) = rest.split_at(end);
        let (address, port) = read_authority(authority)?;
        let port = port.or(usual).ok_or(
            "tcp, udp, grpc, grpcs and agent have no default port, add one as in tcp://203.0.113.1:80",
        )?;
        let url = Self { scheme, address, port, rest: rest.into() };
        // This call only validates the path, which does not depend on the trusted certificates.
        url.kind(&Trust::new(None, true), None).map(|_| url)
    }
}

impl Url {
    pub(super) fn target(&self, trust: &Trust, host: Option<&str>) -> Result<Target, String> {
        Ok(Target::new("", self.address, self.kind(trust, host)?))
    }

    fn kind(&self, trust: &Trust, host: Option<&str>) -> Result<CheckKind, String> {
        let port = self.port;
        let tls = match self.scheme {
            Scheme::Https | Scheme::Grpcs => Some(trust.tls("an https or grpcs target")?),
            _ => None,
        };
        let plain =
            |kind| if self.rest.trim_matches('/').is_empty() { Ok(kind) } else { Err(NO_PATH.into()) };
        match self.scheme {
            Scheme::Tcp => {
                let (send, expect) = query::read(&self.rest)?;
                if send.is_some() && expect.is_none() {
                    return Err("a tcp target with a payload needs expect, expect_hex or expect_regex".into());
                }
                Ok(CheckKind::Tcp(TcpCheck { port, send, expect }))
            }
            Scheme::Udp => {
                let (send, expect) = query::read(&self.rest)?;
                let send = send.ok_or("a udp target needs a payload, as in udp://203.0.113.1:514?send=x")?;
                Ok(CheckKind::Udp(UdpCheck { port, send, expect }))
            }
            Scheme::Memcached(transport) => {
                plain(CheckKind::Memcached(MemcachedCheck { port, transport, probe_mtu: false }))
            }
            Scheme::Agent => {
                let (send, expect) = query::read(&self.rest)?;
                if expect.is_some() {
                    return Err("an agent target has only the key send or send_hex".into());
                }
                Ok(CheckKind::Agent(AgentCheck { port, send, min_weight: 10, max_weight: 100 }))
            }
            Scheme::Dns => self.dns(),
            Scheme::Ntp => self.ntp(),
            Scheme::Grpc | Scheme::Grpcs => {
                let service = self.rest.strip_prefix('/').unwrap_or(&self.rest).into();
                Ok(CheckKind::Grpc(GrpcCheck { port, service, tls, probe_mtu: false }))
            }
            Scheme::Http | Scheme::Https => {
                let slash = if self.rest.starts_with('/') { "" } else { "/" };
                let path = format!("{slash}{}", self.rest);
                if !is_path(&path) {
                    return Err(
                        "the path must have at most 1024 ASCII characters without spaces and '#'".into()
                    );
                }
                Ok(CheckKind::Http(HttpCheck {
                    port,
                    tls,
                    method: "GET".into(),
                    path: path.into(),
                    host: host.map(Into::into),
                    headers: Vec::new(),
                    status: vec![200..=299],
                    body_contains: None,
                    probe_mtu: false,
                }))
            }
        }
    }

    fn dns(&self) -> Result<CheckKind, String> {
        let wanted =
            "a dns target needs a name, as in dns://ADDRESS/NAME?type=AAAA (A, AAAA, TXT, SOA or NS)";
        let rest = self.rest.strip_prefix('/').ok_or(wanted)?;
        let (name, record) = match rest.split_once("?type=") {
            None => (rest, DnsRecord::A),
            Some((name, word)) => {
                (name, DnsRecord::WORDS.iter().find(|(known, _)| *known == word).ok_or(wanted)?.1)
            }
        };
        let name = dns_name(name).ok_or(wanted)?;
        Ok(CheckKind::Dns(DnsCheck { port: self.port, name, record, probe_mtu: false }))
    }

    fn ntp(&self) -> Result<CheckKind, String> {
        let wanted =
            "an ntp target has the form ntp://ADDRESS or ntp://ADDRESS?max_stratum=N with N from 1 to 15";
        let max_stratum = match self.rest.strip_prefix('/').unwrap_or(&self.rest) {
            "" => Some(15),
            rest => rest.strip_prefix("?max_stratum=").and_then(|text| text.parse().ok()),
        };
        let max_stratum = max_stratum.filter(|most| (1..=15).contains(most)).ok_or(wanted)?;
        Ok(CheckKind::Ntp(NtpCheck { port: self.port, max_stratum }))
    }
}

/// Parses `192.0.2.1`, `192.0.2.1:80`, `[2001:db8::1]` or `[2001:db8::1]:80`.
fn read_authority(text: &str) -> Result<(IpAddr, Option<u16>), String> {
    let wrong = || {
        format!(
            "{text:?} is not an IP address with an optional port, such as 203.0.113.1:80 or [2001:db8::1]:80; host names \
             are not resolved, and --host sets the name of an HTTP request"
        )
    };
    let (address, port): (IpAddr, &str) = if let Some(rest) = text.strip_prefix('[') {
        let (address, port) = rest.split_once(']').ok_or_else(wrong)?;
        (address.parse::<Ipv6Addr>().map_err(|_| wrong())?.into(), port)
    } else {
        let end = text.find(':').unwrap_or(text.len());
        let (address, port) = text.split_at(end);
        (address.parse::<Ipv4Addr>().map_err(|_| wrong())?.into(), port)
    };
    if port.is_empty() {
        return Ok((address, None));
    }
    let port = port.strip_prefix(':').and_then(|port| port.parse().ok()).filter(|port| *port > 0);
    Ok((address, Some(port.ok_or_else(wrong)?)))
}

/// Returns the targets for all VIPs, and a description of each service that cannot be probed.
pub(super) fn of_config(config: &Config, trust: &Trust) -> Result<(Vec<Target>, Vec<String>), String> {
    let (mut targets, mut left_out) = (Vec::new(), Vec::new());
    for vip in config.vips() {
        for service in &vip.services {
            let kinds = kinds_of(service, trust)?;
            if kinds.is_empty() {
                let what = service.protocol;
                let why = "no TCP port is listed and no check with via = \"vip\" applies";
                left_out.push(format!(
                    "{what} service of VIP {} with pool {}, because {why}",
                    vip.name, service.pool.name
                ));
            }
            let addresses = vip.reachable_at();
            for (kind, &address) in
                kinds.iter().flat_map(|kind| addresses.iter().map(move |address| (kind, address)))
            {
                let target = Target::new(&vip.name, address, kind.clone());
                if !targets.contains(&target) {
                    targets.push(target);
                }
            }
        }
    }
    Ok((targets, left_out))
}

/// Returns the checks of a service with `via = "vip"`. A port range without such a check is probed
/// with a TCP connection.
fn kinds_of(service: &Service, trust: &Trust) -> Result<Vec<CheckKind>, String> {
    let mut kinds: Vec<CheckKind> = Vec::new();
    for check in service.pool.members.iter().flat_map(|member| member.checks.iter()) {
        let serves = match &service.ports {
            Ports::Any => true,
            Ports::Listed(ranges) => ranges.iter().any(|range| range.contains(&check.kind.port())),
        };
        if check.via == Via::Vip && check.kind.protocol() == service.protocol && serves {
            let kind = trusting(&check.kind, trust, &check.name)?;
            if !kinds.contains(&kind) {
                kinds.push(kind);
            }
        }
    }
    if let (Protocol::Tcp, Ports::Listed(ranges)) = (service.protocol, &service.ports) {
        for range in ranges {
            if !kinds.iter().any(|kind| range.contains(&kind.port())) {
                kinds.push(CheckKind::Tcp(TcpCheck { port: *range.start(), send: None, expect: None }));
            }
        }
    }
    Ok(kinds)
}

/// Replaces the CA and the client certificate of a check with those from the command line, because
/// the files that the configuration names are not read.
fn trusting(kind: &CheckKind, trust: &Trust, name: &str) -> Result<CheckKind, String> {
    let mut kind = kind.clone();
    let tls = match &mut kind {
        CheckKind::Http(check) => check.tls.as_mut(),
        CheckKind::Grpc(check) => check.tls.as_mut(),
        CheckKind::Tcp(_)
        | CheckKind::Udp(_)
        | CheckKind::Dns(_)
        | CheckKind::Memcached(_)
        | CheckKind::Ntp(_)
        | CheckKind::Agent(_)
        | CheckKind::Exec(_) => None,
    };
    match tls {
        Some(tls) if tls.verify => {
            *tls = Tls { server_name: tls.server_name.clone(), ..trust.tls(&format!("check \"{name}\""))? };
        }
        Some(tls) => tls.client = trust.0.as_ref().and_then(|trust| trust.client.clone()),
        None => {}
    }
    Ok(kind)
}

/// Returns the help text for an invalid target.
fn schemes() -> String {
    let names = SCHEMES.map(|(name, _, _)| format!("{name}://")).join(", ");
    format!("a target is a URL that starts with one of {names}, such as tcp://203.0.113.1:80")
}

fn scheme(kind: &CheckKind) -> &'static str {
    match kind {
        CheckKind::Grpc(check) if check.tls.is_some() => "grpcs",
        CheckKind::Memcached(check) if check.transport == Transport::Udp => "memcached+udp",
        other => other.word(),
    }
}

/// Formats a target as a URL.
fn name(address: IpAddr, kind: &CheckKind) -> String {
    let host = match address {
        IpAddr::V4(address) => address.to_string(),
        IpAddr::V6(address) => format!("[{address}]"),
    };
    let rest = match kind {
        CheckKind::Tcp(check) => query::written(check.send.as_ref(), check.expect.as_ref()),
        CheckKind::Udp(check) => query::written(Some(&check.send), check.expect.as_ref()),
        CheckKind::Agent(check) => query::written(check.send.as_ref(), None),
        // A configuration has exec checks only with `via = "backend"`, which are not probed.
        CheckKind::Memcached(_) | CheckKind::Exec(_) => String::new(),
        CheckKind::Http(check) => check.path.to_string(),
        CheckKind::Grpc(check) if check.service.is_empty() => String::new(),
        CheckKind::Grpc(check) => format!("/{}", check.service),
        CheckKind::Dns(check) => {
            let word = DnsRecord::WORDS
                .iter()
                .find(|(_, record)| *record == check.record)
                .map_or("A", |(word, _)| word);
            format!("/{}?type={word}", check.name)
        }
        CheckKind::Ntp(check) => format!("/?max_stratum={}", check.max_stratum),
    };
    format!("{}://{host}:{}{rest}", scheme(kind), kind.port())
}

/// The URL schemes with their default ports.
const SCHEMES: [(&str, Scheme, Option<u16>); 11] = [
    ("tcp", Scheme::Tcp, None),
    ("udp", Scheme::Udp, None),
    ("http", Scheme::Http, Some(80)),
    ("https", Scheme::Https, Some(443)),
    ("grpc", Scheme::Grpc, None),
    ("grpcs", Scheme::Grpcs, None),
    ("dns", Scheme::Dns, Some(53)),
    ("memcached", Scheme::Memcached(Transport::Tcp), Some(11_211)),
    ("memcached+udp", Scheme::Memcached(Transport::Udp), Some(11_211)),
    ("ntp", Scheme::Ntp, Some(123)),
    ("agent", Scheme::Agent, None),
];
const NO_PATH: &str =
    "a memcached target must end with its address or port, such as memcached://203.0.113.1:11211";

#[cfg(test)]
mod tests;
