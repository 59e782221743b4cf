//! Follows changes to next hops through kernel notifications, and keeps the entries of needed
//! neighbors up to date.
//!
//! The module reads the routes, links and neighbors again after each notification that could affect
//! a next hop. The module therefore does not need to interpret notifications in detail. A lost
//! notification delays an update by at most [`QUIET_PERIOD`].
//!
//! See rtnetlink(7), and Linux `net/core/neighbour.c` for the neighbor states.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::future::{Future, pending};
use std::net::IpAddr;
use std::pin::{Pin, pin};
use std::time::Duration;

use futures_util::stream::BoxStream;
use futures_util::{FutureExt, StreamExt};
use rtnetlink::MulticastGroup;
use rtnetlink::packet_core::{NetlinkMessage, NetlinkPayload};
use rtnetlink::packet_route::RouteNetlinkMessage;
use rtnetlink::packet_route::neighbour::NeighbourState;
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

use crate::facts::{self, Facts, RouteHops};
use crate::{Hops, NeighbourKey, NextHopError, Resolver, Table, Unresolved, Wanted};

/// A watcher with two netlink sockets: one for requests and one for notifications.
pub struct Watch {
    resolver: Resolver,
    events: BoxStream<'static, NetlinkMessage<RouteNetlinkMessage>>,
    /// The neighbors that the last table depends on.
    needed: BTreeSet<NeighbourKey>,
    /// For each neighbor, the time of the last resolution request to the kernel, and the neighbor
    /// state that caused the request. If the state does not change, the request is repeated only
    /// after [`ASK_AGAIN`].
    asked: HashMap<NeighbourKey, (Instant, Option<NeighbourState>)>,
    /// The last error of a resolution request. This error is stored so that a persistent error is
    /// logged only once.
    complaint: Option<String>,
}

impl Watch {
    /// Opens both sockets in the network namespace of the calling thread, and subscribes to changes
    /// of links, neighbors, routes and routing rules.
    ///
    /// # Errors
    /// Returns [`NextHopError::Open`].
    ///
    /// # Panics
    /// Panics if the caller runs outside a tokio runtime with I/O and time enabled.
    pub fn open() -> Result<Self, NextHopError> {
        let resolver = Resolver::open()?;
        let (connection, _, events) =
            rtnetlink::new_multicast_connection(&GROUPS).map_err(NextHopError::Open)?;
        tokio::spawn(connection);
        let events = events.map(|(message, _)| message).boxed();
        Ok(Self { resolver, events, needed: BTreeSet::new(), asked: HashMap::new(), complaint: None })
    }

    /// Calls `on_change` with the first table and with each table that differs from the previous
    /// table, until `stop` is ready.
    ///
    /// A kernel notification or a change to `wanted` is handled after at least 50 ms, so that a
    /// burst of changes is handled only once. The delay after a kernel notification is at most a
    /// few hundred milliseconds. The kernel reports carrier changes at most once per second. The
    /// tables are also read every second while a destination or gateway is unresolved, and every 10
    /// s otherwise.
    ///
    /// If a needed neighbor is missing, failed or stale, the watch makes the kernel resolve it. A
    /// failed neighbor is reported as failed until the neighbor responds, even while the kernel is
    /// trying to resolve it again. After the sender of `wanted` is dropped, its last value remains
    /// in use.
    ///
    /// # Errors
    /// Returns [`NextHopError::Closed`] if a netlink socket has failed. Temporary errors are
    /// logged. After such an error, the last table stays in use, and the kernel is queried again
    /// one second later.
    ///
    /// # Cost
    /// One [`Resolver::resolve`] each time the tables are read, and a dump of all routes if
    /// gateways are wanted.
    pub async fn run(
        mut self,
        mut wanted: watch::Receiver<Wanted>,
        stop: impl Future<Output = ()>,
        mut on_change: impl FnMut(&Table),
    ) -> Result<(), NextHopError> {
        let mut stop = pin!(stop);
        let mut last = None;
        loop {
            let started = Instant::now();
            let pass = tokio::select! {
                () = &mut stop => return Ok(()),
                pass = self.pass(&mut wanted, &mut last, &mut on_change) => pass,
            };
            let period = match pass {
                Ok(true) => QUIET_PERIOD,
                Ok(false) => BUSY_PERIOD,
                Err(NextHopError::Closed) => return Err(NextHopError::Closed),
                Err(error) => {
                    // log: The kernel did not respond to a netlink request. The last next hops stay
                    // in use, and the request is repeated. If the message repeats, check for memory
                    // pressure and netlink errors.
                    tracing::warn!(%error, "next hop lookup failed");
                    BUSY_PERIOD
                }
            };
            // The watch waits four times as long as the last reading of the tables took. Even if
            // changes never stop, the watch therefore uses at most a fifth of a core.
            let settle = (started.elapsed() * 4).clamp(SETTLE, SETTLE_MAX);
            if self.pause(&mut wanted, stop.as_mut(), period, settle).await? {
                return Ok(());
            }
        }
    }

    /// Reads the kernel's tables once. Returns `true` if all wanted next hops and gateways are
    /// resolved.
    async fn pass(
        &mut self,
        wanted: &mut watch::Receiver<Wanted>,
        last: &mut Option<Table>,
        on_change: &mut impl FnMut(&Table),
    ) -> Result<bool, NextHopError> {
        let Wanted { destinations, gateway_interfaces, interfaces } = wanted.borrow_and_update().clone();
        let routes = self.resolver.routes(&destinations).await?;
        let gateways = self.gateways(&gateway_interfaces).await?;
        let facts = self.resolver.facts().await?;
        let table = table(&routes, &gateways, &facts, last.as_ref()).by(interfaces);
        let is_whole = table.gateways.len() == gateways.len()
            && table.next_hops.values().flat_map(Hops::results).all(|found| found.is_ok());
        if last.as_ref() != Some(&table) {
            on_change(&table);
            *last = Some(table);
        }
        self.needed = gateways;
        for (to, hops) in &routes {
            self.needed.extend(hops.iter().flatten().map(|(route, _)| route.neighbour(*to)));
        }
        self.keep_alive(&facts).await?;
        Ok(is_whole)
    }

    /// Returns the gateways on `interfaces` and on the VLAN devices on top of them. Sends no
    /// request if `interfaces` is empty.
    async fn gateways(&mut self, interfaces: &[u32]) -> Result<BTreeSet<NeighbourKey>, NextHopError> {
        if interfaces.is_empty() {
            return Ok(BTreeSet::new());
        }
        let all = self.resolver.facts().await?.with_vlans(interfaces);
        self.resolver.gateway_keys(&all).await
    }

    /// Waits until the tables must be read again. Returns `true` if the watch should stop.
    async fn pause(
        &mut self,
        wanted: &mut watch::Receiver<Wanted>,
        mut stop: Pin<&mut impl Future<Output = ()>>,
        period: Duration,
        settle: Duration,
    ) -> Result<bool, NextHopError> {
        tokio::select! {
            () = stop.as_mut() => return Ok(true),
            () = sleep(period) => return Ok(false),
            () = next_change(wanted) => {}
            event = self.event() => event?,
        }
        // Changes come in bursts. For example, when a link goes down, its routes and neighbors
        // change too.
        tokio::select! {
            () = stop => return Ok(true),
            () = sleep(settle) => {}
        }
        while let Some(Some(_)) = self.events.next().now_or_never() {}
        Ok(false)
    }

    /// Waits for a notification that could change the table. This future is cancel-safe.
    async fn event(&mut self) -> Result<(), NextHopError> {
        loop {
            let message = self.events.next().await.ok_or(NextHopError::Closed)?;
            if matters(&message, &self.needed) {
                return Ok(());
            }
        }
    }

    async fn keep_alive(&mut self, facts: &Facts) -> Result<(), NextHopError> {
        let state = |key: &NeighbourKey| facts.neighbours.get(key).map(|entry| entry.state);
        self.asked.retain(|key, (at, reason)| at.elapsed() < ASK_AGAIN && state(key) == *reason);
        let mut complaint = None;
        for key in facts.to_ask(&self.needed) {
            if self.asked.contains_key(&key) {
                continue;
            }
            match self.resolver.ask(key.0, key.1).await {
                Err(NextHopError::Closed) => return Err(NextHopError::Closed),
                Err(error) => complaint = Some(error.to_string()),
                Ok(()) => {}
            }
            self.asked.insert(key, (Instant::now(), state(&key)));
        }
        if let Some(error) = complaint.as_deref().filter(|new| self.complaint.as_deref() != Some(new)) {
            // log: The kernel refuses to resolve neighbors, so next hops may become stale. The
            // field `error` contains the error of the kernel.
            tracing::warn!(error, "neighbor keep-alive failed");
        }
        self.complaint = complaint.or(self.complaint.take());
        Ok(())
    }
}

impl std::fmt::Debug for Watch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Watch").field("needed", &self.needed).finish_non_exhaustive()
    }
}

/// Computes a table. A failed neighbor is still considered failed while the kernel is resolving it
/// again.
pub(crate) fn table(
    routes: &HashMap<IpAddr, Result<RouteHops, Unresolved>>,
    gateways: &BTreeSet<NeighbourKey>,
    facts: &Facts,
    last: Option<&Table>,
) -> Table {
    let failed: HashSet<NeighbourKey> = last
        .iter()
        .flat_map(|table| table.next_hops.values().flat_map(Hops::results))
        .filter_map(|found| match found {
            Err(Unresolved::NeighbourFailed { interface, neighbour }) => Some((interface, neighbour)),
            _ => None,
        })
        .collect();
    let next_hops = |(&to, route): (&IpAddr, &Result<RouteHops, Unresolved>)| {
        let hops = facts.next_hops(to, route).map(|_, now| match now {
            Err(Unresolved::NeighbourPending { interface, neighbour })
                if failed.contains(&(interface, neighbour)) =>
            {
                Err(Unresolved::NeighbourFailed { interface, neighbour })
            }
            now => now,
        });
        (to, hops)
    };
    Table {
        next_hops: routes.iter().map(next_hops).collect(),
        gateways: facts.known_gateways(gateways),
        interfaces: Vec::new(),
    }
}

/// Returns `true` if a notification may change the table. Most notifications on a busy link are
/// about unrelated neighbors.
pub(crate) fn matters(
    message: &NetlinkMessage<RouteNetlinkMessage>,
    needed: &BTreeSet<NeighbourKey>,
) -> bool {
    match &message.payload {
        NetlinkPayload::InnerMessage(
            RouteNetlinkMessage::NewNeighbour(message) | RouteNetlinkMessage::DelNeighbour(message),
        ) => facts::neighbour(message).is_some_and(|(key, _)| needed.contains(&key)),
        // Other messages are about a route, link or rule, or report that notifications were lost.
        _ => true,
    }
}

async fn next_change(wanted: &mut watch::Receiver<Wanted>) {
    if wanted.changed().await.is_err() {
        pending::<()>().await;
    }
}

const GROUPS: [MulticastGroup; 6] = [
    MulticastGroup::Link,
    MulticastGroup::Neigh,
    MulticastGroup::Ipv4Route,
    MulticastGroup::Ipv6Route,
    MulticastGroup::Ipv4Rule,
    MulticastGroup::Ipv6Rule,
];

/// The minimum wait after a change, during which further changes of the same burst can arrive.
const SETTLE: Duration = Duration::from_millis(50);
/// The maximum wait after a change.
const SETTLE_MAX: Duration = Duration::from_millis(400);

/// The interval between readings of the kernel's tables while a next hop or gateway is unresolved.
const BUSY_PERIOD: Duration = Duration::from_secs(1);
/// The interval between readings of the kernel's tables while all next hops and gateways are
/// resolved.
const QUIET_PERIOD: Duration = Duration::from_secs(10);
/// The minimum time between two resolution requests for a neighbor. This time is slightly shorter
/// than [`BUSY_PERIOD`], so that a request may be sent after each reading of the tables.
const ASK_AGAIN: Duration = Duration::from_millis(800);
