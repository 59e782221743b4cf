//! Queries the kernel through rtnetlink, one request at a time.
//!
//! No request waits longer than [`PATIENCE`]. A dump that the kernel marks as inconsistent is
//! repeated.
//!
//! See rtnetlink(7) and Linux `Documentation/userspace-api/netlink/intro.rst`, section "Dump
//! consistency".

use std::collections::hash_map::Entry;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::io;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use rtnetlink::packet_core::{
    NLM_F_ACK, NLM_F_CREATE, NLM_F_DUMP, NLM_F_DUMP_INTR, NLM_F_REPLACE, NLM_F_REQUEST, NetlinkMessage,
    NetlinkPayload,
};
use rtnetlink::packet_route::link::{LinkAttribute, LinkExtentMask, LinkMessage};
use rtnetlink::packet_route::neighbour::{
    NeighbourAddress, NeighbourAttribute, NeighbourFlags, NeighbourMessage,
};
use rtnetlink::packet_route::route::{RouteAttribute, RouteFlags, RouteMessage};
use rtnetlink::packet_route::{AddressFamily, RouteNetlinkMessage};

use crate::facts::{self, Facts, Route, RouteHops};
use crate::{Gateway, Hops, NeighbourKey, NextHopError, NextHops, Unresolved};

/// A netlink socket for queries.
#[derive(Debug)]
pub struct Resolver {
    handle: rtnetlink::Handle,
}

impl Resolver {
    /// Opens a netlink socket in the network namespace of the calling thread. All later calls query
    /// that namespace, regardless of the thread that makes them.
    ///
    /// # Errors
    /// Returns [`NextHopError::Open`].
    ///
    /// # Panics
    /// Panics if the caller runs outside a tokio runtime with I/O enabled.
    pub fn open() -> Result<Self, NextHopError> {
        let (mut connection, handle, _) = rtnetlink::new_connection().map_err(NextHopError::Open)?;
        // Without this option, the last message is hidden. The last message may be the only one
        // that marks the dump as inconsistent.
        connection.set_forward_done(true);
        tokio::spawn(connection);
        Ok(Self { handle })
    }

    /// Resolves `destinations`. The result has one entry per destination.
    ///
    /// This method sends no packets to neighbors. A neighbor that the kernel does not know is
    /// reported as [`Unresolved::NeighbourPending`] until [`Resolver::ask`] or a [`crate::Watch`]
    /// requests it.
    ///
    /// # Errors
    /// Returns an error if the kernel cannot be queried. An error that affects only one destination
    /// is in the map entry of that destination.
    ///
    /// # Cost
    /// Two RTM_GETROUTE requests per distinct destination, one dump of links and one dump of
    /// neighbors.
    pub async fn resolve(&mut self, destinations: &[IpAddr]) -> Result<NextHops, NextHopError> {
        let routes = self.routes(destinations).await?;
        let facts = self.facts().await?;
        Ok(routes.into_iter().map(|(to, route)| (to, facts.next_hops(to, &route))).collect())
    }

    /// Returns the gateways of all routes on `interfaces` (indices), in all routing tables, sorted.
    /// Gateways whose Ethernet address is unknown to the kernel are not included.
    ///
    /// # Errors
    /// Returns an error if the kernel cannot be queried.
    ///
    /// # Cost
    /// One dump of all routes per address family, one dump of links and one dump of neighbors.
    pub async fn gateways(&mut self, interfaces: &[u32]) -> Result<Vec<Gateway>, NextHopError> {
        let addresses = self.gateway_keys(interfaces).await?;
        Ok(self.facts().await?.known_gateways(&addresses))
    }

    /// Tells the kernel that `neighbour` on the interface with index `interface` is in use. The
    /// kernel then resolves the entry if it is missing or failed, and probes it if it is stale.
    /// This method returns before the neighbor has responded. Do not call this method for
    /// `PERMANENT` entries, because the call would make them non-permanent.
    ///
    /// The request uses `NTF_USE` of Linux `include/uapi/linux/neighbour.h`.
    ///
    /// # Errors
    /// Returns [`NextHopError::Refused`] without CAP_NET_ADMIN, or if the neighbor table is full.
    pub async fn ask(&mut self, interface: u32, neighbour: IpAddr) -> Result<(), NextHopError> {
        let mut message = NeighbourMessage::default();
        message.header.family = family(neighbour);
        message.header.ifindex = interface;
        message.header.flags = NeighbourFlags::Use;
        message.attributes.push(NeighbourAttribute::Destination(match neighbour {
            IpAddr::V4(v4) => NeighbourAddress::Inet(v4),
            IpAddr::V6(v6) => NeighbourAddress::Inet6(v6),
        }));
        let flags = NLM_F_ACK | NLM_F_CREATE | NLM_F_REPLACE;
        let answer = self.request(RouteNetlinkMessage::NewNeighbour(message), flags).await?;
        refusal(&answer)
            .map_or(Ok(()), |reason| Err(NextHopError::Refused { request: "resolve a neighbour", reason }))
    }

    /// Looks up the route to each destination. A destination that appears several times is looked
    /// up only once.
    pub(crate) async fn routes(
        &mut self,
        destinations: &[IpAddr],
    ) -> Result<HashMap<IpAddr, Result<RouteHops, Unresolved>>, NextHopError> {
        let mut routes = HashMap::with_capacity(destinations.len());
        for &to in destinations {
            if let Entry::Vacant(unasked) = routes.entry(to) {
                unasked.insert(self.route(to).await?);
            }
        }
        Ok(routes)
    }

    /// Looks up a route twice. The first response has one hop with its path MTU. The second
    /// response has all hops of a multipath route.
    async fn route(&mut self, to: IpAddr) -> Result<Result<RouteHops, Unresolved>, NextHopError> {
        let mut message = RouteMessage::default();
        message.header.address_family = family(to);
        message.header.destination_prefix_length = if to.is_ipv4() { 32 } else { 128 };
        message.attributes.push(RouteAttribute::Destination(to.into()));
        let answer = self.request(RouteNetlinkMessage::GetRoute(message.clone()), 0).await?;
        let Some(chosen) = answer.iter().find_map(route_in) else {
            return Ok(Err(refusal(&answer).map_or(Unresolved::NoRoute, |e| refused_route(&e))));
        };
        let chosen = match Route::read(chosen) {
            Ok(chosen) => chosen,
            Err(why) => return Ok(Err(why)),
        };
        message.header.flags = RouteFlags::FibMatch;
        let answer = self.request(RouteNetlinkMessage::GetRoute(message), 0).await?;
        Ok(chosen.hops(answer.iter().find_map(route_in)))
    }

    /// Dumps links and neighbors.
    pub(crate) async fn facts(&mut self) -> Result<Facts, NextHopError> {
        let mut facts = Facts::default();
        let mut links = LinkMessage::default();
        links.attributes.push(LinkAttribute::ExtMask(vec![LinkExtentMask::SkipStats]));
        for message in self.dump(RouteNetlinkMessage::GetLink(links), "list links").await? {
            if let RouteNetlinkMessage::NewLink(message) = message {
                facts.links.extend([facts::link(&message)]);
            }
        }
        let neighbours = RouteNetlinkMessage::GetNeighbour(NeighbourMessage::default());
        for message in self.dump(neighbours, "list neighbors").await? {
            if let RouteNetlinkMessage::NewNeighbour(message) = message {
                facts.neighbours.extend(facts::neighbour(&message));
            }
        }
        Ok(facts)
    }

    /// Returns the gateways of all routes on `interfaces`. Sends no request if `interfaces` is
    /// empty.
    pub(crate) async fn gateway_keys(
        &mut self,
        interfaces: &[u32],
    ) -> Result<BTreeSet<NeighbourKey>, NextHopError> {
        let mut keys = BTreeSet::new();
        if interfaces.is_empty() {
            return Ok(keys);
        }
        let interfaces: HashSet<u32> = interfaces.iter().copied().collect();
        for family in [AddressFamily::Inet, AddressFamily::Inet6] {
            let mut message = RouteMessage::default();
            message.header.address_family = family;
            for route in self.dump(RouteNetlinkMessage::GetRoute(message), "list routes").await? {
                if let RouteNetlinkMessage::NewRoute(route) = route {
                    keys.extend(
                        facts::gateways(&route).into_iter().filter(|key| interfaces.contains(&key.0)),
                    );
                }
            }
        }
        Ok(keys)
    }

    /// Returns all messages of a dump. If all [`DUMP_ATTEMPTS`] dumps are inconsistent, the last
    /// one is used. The change that made the dump inconsistent also causes a notification, so the
    /// tables are read again soon.
    async fn dump(
        &mut self,
        message: RouteNetlinkMessage,
        request: &'static str,
    ) -> Result<Vec<RouteNetlinkMessage>, NextHopError> {
        let mut answer = Vec::new();
        for _ in 0..DUMP_ATTEMPTS {
            answer = self.request(message.clone(), NLM_F_DUMP).await?;
            if let Some(reason) = refusal(&answer) {
                return Err(NextHopError::Refused { request, reason });
            }
            if answer.iter().all(|message| message.header.flags & NLM_F_DUMP_INTR == 0) {
                break;
            }
        }
        Ok(answer.into_iter().filter_map(inner).collect())
    }

    /// Sends one message and collects all messages of the response.
    async fn request(
        &mut self,
        message: RouteNetlinkMessage,
        flags: u16,
    ) -> Result<Vec<NetlinkMessage<RouteNetlinkMessage>>, NextHopError> {
        let is_dump = flags & NLM_F_DUMP == NLM_F_DUMP;
        let mut message = NetlinkMessage::from(message);
        message.header.flags = NLM_F_REQUEST | flags;
        let answer = self.handle.request(message).map_err(|_| NextHopError::Closed)?.collect::<Vec<_>>();
        let answer =
            tokio::time::timeout(PATIENCE, answer).await.map_err(|_| NextHopError::NoAnswer(PATIENCE))?;
        // A complete dump ends with DONE or an error. If neither arrives, the connection was closed
        // before the end of the dump.
        let is_whole =
            answer.last().is_some_and(|last| !matches!(last.payload, NetlinkPayload::InnerMessage(_)));
        if is_dump && !is_whole { Err(NextHopError::Closed) } else { Ok(answer) }
    }
}

fn route_in(message: &NetlinkMessage<RouteNetlinkMessage>) -> Option<&RouteMessage> {
    match &message.payload {
        NetlinkPayload::InnerMessage(RouteNetlinkMessage::NewRoute(route)) => Some(route),
        _ => None,
    }
}

fn inner(message: NetlinkMessage<RouteNetlinkMessage>) -> Option<RouteNetlinkMessage> {
    match message.payload {
        NetlinkPayload::InnerMessage(message) => Some(message),
        _ => None,
    }
}

/// Returns the error in a response, if there is one.
fn refusal(answer: &[NetlinkMessage<RouteNetlinkMessage>]) -> Option<io::Error> {
    answer.iter().find_map(|message| match &message.payload {
        NetlinkPayload::Error(error) => error.code.map(|code| io::Error::from_raw_os_error(code.get().abs())),
        _ => None,
    })
}

/// Looks up next hops, and makes the kernel resolve unknown neighbors. Waits at most `patience` for
/// these neighbors to be resolved.
///
/// # Errors
/// Returns an error if the kernel cannot be queried.
///
/// # Cost
/// One [`Resolver::resolve`] every 50 ms until no neighbor is pending.
pub async fn look_up(addresses: &[IpAddr], patience: Duration) -> Result<NextHops, NextHopError> {
    let mut resolver = Resolver::open()?;
    let deadline = Instant::now() + patience;
    let mut asked = HashSet::new();
    loop {
        let next_hops = resolver.resolve(addresses).await?;
        let pending: HashSet<NeighbourKey> =
            next_hops.values().flat_map(Hops::results).filter_map(|found| pending(found.err()?)).collect();
        if pending.is_empty() || Instant::now() > deadline {
            return Ok(next_hops);
        }
        for (interface, neighbour) in pending {
            if asked.insert((interface, neighbour)) {
                resolver.ask(interface, neighbour).await?;
            }
        }
        tokio::time::sleep(STEP).await;
    }
}

/// Returns the interface and the address of the neighbor if its resolution is pending.
fn pending(why: Unresolved) -> Option<NeighbourKey> {
    match why {
        Unresolved::NeighbourPending { interface, neighbour } => Some((interface, neighbour)),
        _ => None,
    }
}

/// Converts the error of a route lookup. The kernel returns the same error that a sender would get
/// for this type of route.
pub(crate) fn refused_route(error: &io::Error) -> Unresolved {
    match error.kind() {
        io::ErrorKind::NetworkUnreachable => Unresolved::NoRoute,
        io::ErrorKind::HostUnreachable => Unresolved::Unreachable,
        io::ErrorKind::PermissionDenied => Unresolved::Prohibited,
        io::ErrorKind::InvalidInput => Unresolved::Blackhole,
        _ => Unresolved::Refused { errno: error.raw_os_error().unwrap_or(0) },
    }
}

fn family(address: IpAddr) -> AddressFamily {
    if address.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 }
}

/// The timeout of a request. The kernel responds in microseconds, so only a lost message takes
/// longer.
const PATIENCE: Duration = Duration::from_secs(2);

/// The number of attempts to get a consistent dump.
const DUMP_ATTEMPTS: usize = 4;
const STEP: Duration = Duration::from_millis(50);
