//! Reads IPVS services and their servers, and validates them as `ipvsadm` and the kernel do
//! (ipvsadm(8)).
//!
//! [`read`] returns the services in the order of the text, or all problems. Host names and port
//! names are not resolved, because `ipvsadm -n` prints numbers.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::ops::RangeInclusive;
use std::path::Path;

use config_text::{Problem, Problems};

use crate::options::{Command, Key, Rule, is_number};

/// The protocol of a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Protocol {
    Tcp,
    Udp,
    Sctp,
}

impl Protocol {
    /// Returns the name of the protocol that a configuration uses.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
            Self::Sctp => "sctp",
        }
    }
}

/// Selects the packets that a service receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Destination {
    /// Packets to an address and port. Port 0 matches all ports without a separate service at this
    /// address and protocol.
    Address(Protocol, SocketAddr),
    /// Packets with this firewall mark.
    Mark { mark: u32, ipv6: bool },
}

impl fmt::Display for Destination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(protocol, address) => write!(f, "{} {address}", protocol.word()),
            Self::Mark { mark, ipv6: false } => write!(f, "firewall mark {mark}"),
            Self::Mark { mark, ipv6: true } => write!(f, "IPv6 firewall mark {mark}"),
        }
    }
}

/// An IPVS service.
#[derive(Clone, Debug)]
pub(crate) struct Service {
    /// The line number of the rule, starting at 1.
    pub(crate) line: usize,
    pub(crate) destination: Destination,
    pub(crate) scheduler: &'static str,
    /// `true` if the source port is also hashed (`sh-port`, `mh-port`).
    pub(crate) with_port: bool,
    /// The persistence timeout in seconds.
    pub(crate) persistence: Option<u32>,
    /// The netmask as written, or `None` if it does not group clients.
    pub(crate) netmask: Option<String>,
    pub(crate) engine: Option<String>,
    pub(crate) is_one_packet: bool,
    pub(crate) servers: Vec<Server>,
}

#[derive(Clone, Debug)]
pub(crate) struct Server {
    /// The line number of the rule, starting at 1.
    pub(crate) line: usize,
    /// The address of the server. Port 0 means that packets keep their destination port.
    pub(crate) address: SocketAddr,
    pub(crate) weight: u32,
    pub(crate) method: Method,
    /// `true` if the number of connections is limited.
    pub(crate) has_thresholds: bool,
}

/// The forwarding method to a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Method {
    Gateway,
    Masquerade,
    Ipip,
    Gre(Checksum),
    Gue(u16, Checksum),
}

/// The checksum option of the tunnel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Checksum {
    None,
    Full,
    Remote,
}

pub(crate) fn read(text: &str, file: &Path) -> Result<Vec<Service>, Problems> {
    let (mut services, mut problems) = (Services::default(), Vec::new());
    for (number, line) in (1..).zip(text.lines()) {
        problems.extend(services.add(number, line, file).err());
        // Parsing stops here, because input with so many problems is probably not a list of IPVS
        // rules.
        if problems.len() == MAX_PROBLEMS {
            break;
        }
    }
    if services.all.is_empty() && problems.is_empty() {
        problems
            .push(Problem::of_file(file, ("the text has no IPVS rule", "use the output of `ipvsadm -S -n`")));
    }
    if problems.is_empty() { Ok(services.all) } else { Err(problems.into_iter().collect()) }
}

#[derive(Default)]
struct Services {
    all: Vec<Service>,
    known: BTreeMap<Destination, Known>,
}

/// A service defined on an earlier line of the text.
struct Known {
    line: usize,
    /// The index of the service, or `None` if its rule was invalid.
    at: Option<usize>,
    /// The line number of each server.
    servers: BTreeMap<SocketAddr, usize>,
}

impl Services {
    fn add(&mut self, number: usize, line: &str, file: &Path) -> Result<(), Problem> {
        let Some(rule) = Rule::read(number, line, file)? else { return Ok(()) };
        let destination = destination(&rule)?;
        match rule.command {
            Command::AddService => self.add_service(&rule, destination),
            Command::AddServer => self.add_server(&rule, destination),
        }
    }

    fn add_service(&mut self, rule: &Rule<'_>, destination: Destination) -> Result<(), Problem> {
        let vacant = match self.known.entry(destination) {
            Entry::Vacant(vacant) => vacant,
            Entry::Occupied(first) => {
                let line = first.get().line;
                return Err(rule.whole("-A", format!("{destination} is already defined on line {line}")));
            }
        };
        let service = service(rule, destination);
        let at = service.is_ok().then_some(self.all.len());
        vacant.insert(Known { line: rule.number, at, servers: BTreeMap::new() });
        self.all.push(service?);
        Ok(())
    }

    fn add_server(&mut self, rule: &Rule<'_>, destination: Destination) -> Result<(), Problem> {
        let Some(known) = self.known.get_mut(&destination) else {
            let message = format!("no earlier line defines the service {destination}");
            return Err(rule.whole("-a", (message, "put the -A rule of a service before its -a rules")));
        };
        let server = server(rule)?;
        if let Some(first) = known.servers.insert(server.address, rule.number) {
            let message = format!("server {} is already defined on line {first}", server.address);
            return Err(rule.whole("-r", message));
        }
        let service = known.at.and_then(|at| self.all.get_mut(at));
        service.into_iter().for_each(|service| service.servers.push(server.clone()));
        Ok(())
    }
}

fn destination(rule: &Rule<'_>) -> Result<Destination, Problem> {
    let of = |protocol, key| {
        let address = rule.parsed(key, ADDRESS, address)?;
        Ok(address.map(|address| Destination::Address(protocol, address)))
    };
    let found = match rule.one_of(&DESTINATIONS, DESTINATION_NAMES)? {
        Some(Key::Tcp) => of(Protocol::Tcp, Key::Tcp)?,
        Some(Key::Udp) => of(Protocol::Udp, Key::Udp)?,
        Some(Key::Sctp) => of(Protocol::Sctp, Key::Sctp)?,
        _ => {
            let mark =
                rule.parsed(Key::Mark, "a mark from 1 to 4294967295", |text| number(text, 1..=u32::MAX))?;
            mark.map(|mark| Destination::Mark { mark, ipv6: rule.has(Key::Ipv6) })
        }
    };
    found.ok_or_else(|| rule.wrong_end("option", format!("the rule needs one of {DESTINATION_NAMES}")))
}

fn service(rule: &Rule<'_>, destination: Destination) -> Result<Service, Problem> {
    let scheduler = rule.parsed(Key::Scheduler, &format!("one of {}", SCHEDULERS.join(", ")), |text| {
        SCHEDULERS.into_iter().find(|scheduler| *scheduler == text)
    })?;
    let seconds = rule.parsed(Key::Persistent, "a number of seconds from 1 to 4294967295", |text| {
        number(text, 1..=u32::MAX)
    })?;
    let persistence = rule.has(Key::Persistent).then(|| seconds.unwrap_or(PERSISTENCE));
    if let (Destination::Address(_, address), None) = (destination, persistence)
        && address.port() == 0
    {
        return Err(rule.wrong_end("-p", "port 0 (all ports) needs -p"));
    }
    let flags = rule.parsed(Key::Flags, &format!("a list of {}", FLAGS.join(", ")), |text| {
        text.split(',').map(|flag| FLAGS.into_iter().find(|known| *known == flag)).collect::<Option<Vec<_>>>()
    })?;
    let flags = flags.unwrap_or_default();
    Ok(Service {
        line: rule.number,
        destination,
        scheduler: scheduler.unwrap_or("wlc"),
        with_port: flags.iter().any(|flag| PORT_FLAGS.contains(flag)),
        persistence,
        netmask: rule.parsed(Key::Netmask, NETMASK, netmask)?.flatten(),
        engine: rule.value(Key::Engine).map(|word| word.text.to_owned()),
        is_one_packet: rule.has(Key::OnePacket),
        servers: Vec::new(),
    })
}

fn server(rule: &Rule<'_>) -> Result<Server, Problem> {
    let address = rule.parsed(Key::Server, ADDRESS, address)?;
    let weight = rule.parsed(Key::Weight, "a number from 0 to 2147483647", |text| {
        number(text, 0..=i32::MAX.unsigned_abs())
    })?;
    let threshold = |key| rule.parsed(key, "a number from 0 to 65535", |text| number(text, 0..=65_535));
    let thresholds = [threshold(Key::Upper)?, threshold(Key::Lower)?];
    Ok(Server {
        line: rule.number,
        address: address
            .ok_or_else(|| rule.wrong_end("-r", ("the rule needs -r", format!("use {ADDRESS}"))))?,
        weight: weight.unwrap_or(1),
        method: method(rule)?,
        has_thresholds: thresholds.into_iter().flatten().any(|threshold| threshold > 0),
    })
}

fn method(rule: &Rule<'_>) -> Result<Method, Problem> {
    let way = rule.one_of(&[Key::Gateway, Key::Tunnel, Key::Masquerade], "-g, -i and -m")?;
    let sums = [Key::NoChecksum, Key::Checksum, Key::RemoteChecksum];
    let checksum = match rule.one_of(&sums, "--tun-nocsum, --tun-csum and --tun-remcsum")? {
        Some(Key::Checksum) => Checksum::Full,
        Some(Key::RemoteChecksum) => Checksum::Remote,
        _ => Checksum::None,
    };
    let port = rule.parsed(Key::TunnelPort, "a port from 1 to 65535", |text| number(text, 1..=65_535))?;
    let kind = rule.parsed(Key::TunnelType, "ipip, gue or gre", |text| {
        ["ipip", "gue", "gre"].into_iter().find(|kind| *kind == text)
    })?;
    match (way, kind.unwrap_or("ipip")) {
        (Some(Key::Masquerade), _) => Ok(Method::Masquerade),
        (Some(Key::Tunnel), "gre") => Ok(Method::Gre(checksum)),
        (Some(Key::Tunnel), "gue") => {
            let port = port.and_then(|port| u16::try_from(port).ok());
            port.map(|port| Method::Gue(port, checksum))
                .ok_or_else(|| rule.wrong_end("--tun-port", "--tun-type gue needs --tun-port"))
        }
        (Some(Key::Tunnel), _) => Ok(Method::Ipip),
        _ => Ok(Method::Gateway),
    }
}

/// Parses an address with a port. The port is 0 if it is missing.
fn address(text: &str) -> Option<SocketAddr> {
    let bare = || {
        let inner = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(text);
        Some(SocketAddr::new(inner.parse().ok()?, 0))
    };
    // IPVS addresses have neither a flow label nor a scope.
    let plain = |address: &SocketAddr| SocketAddr::new(address.ip(), address.port()) == *address;
    text.parse().ok().filter(plain).or_else(bare)
}

/// Parses a netmask. Returns `Some(None)` if all bits of the mask are set, because such a mask does
/// not group clients.
fn netmask(text: &str) -> Option<Option<String>> {
    let is_whole = match text.parse::<Ipv4Addr>() {
        Ok(mask) => mask == Ipv4Addr::BROADCAST,
        Err(_) => number(text, 1..=128)? == 128,
    };
    Some((!is_whole).then(|| text.to_owned()))
}

fn number(text: &str, allowed: RangeInclusive<u32>) -> Option<u32> {
    text.parse().ok().filter(|number| is_number(text) && allowed.contains(number))
}

/// Returns `true` if the address is the unicast address of another host.
pub(crate) fn is_unicast(address: IpAddr) -> bool {
    let is_special = address.is_unspecified() || address.is_loopback() || address.is_multicast();
    !is_special
        && match address {
            IpAddr::V4(v4) => (1..240).contains(&v4.octets()[0]),
            IpAddr::V6(v6) => !v6.is_unicast_link_local() && v6.to_ipv4_mapped().is_none(),
        }
}

const DESTINATIONS: [Key; 4] = [Key::Tcp, Key::Udp, Key::Sctp, Key::Mark];
const DESTINATION_NAMES: &str = "-t, -u, --sctp-service and -f";
const SCHEDULERS: [&str; 13] =
    ["rr", "wrr", "lc", "wlc", "lblc", "lblcr", "dh", "sh", "sed", "nq", "fo", "ovf", "mh"];
const FLAGS: [&str; 7] = ["sh-fallback", "sh-port", "mh-fallback", "mh-port", "flag-1", "flag-2", "flag-3"];
/// The names of the flag with which the schedulers `sh` and `mh` also hash the port.
const PORT_FLAGS: [&str; 3] = ["sh-port", "mh-port", "flag-2"];
/// The default persistence timeout in seconds.
const PERSISTENCE: u32 = 300;
const MAX_PROBLEMS: usize = 100;
const ADDRESS: &str =
    "a numeric address and port such as 203.0.113.10:80 or [2001:db8::10]:80 (ipvsadm option -n)";
const NETMASK: &str = "a mask such as 255.255.255.0, or for IPv6 a length from 1 to 128";
