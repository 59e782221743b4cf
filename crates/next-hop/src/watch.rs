//! Next hops kept fresh: follows the kernel's notifications, and keeps the neighbours that are in use alive.
//!
//! In: what is [`Wanted`], which may change at any time. Out: a [`Table`] for every difference.
//! Not here: what is done with a table. Invariant: a notification that could matter is followed by a whole new look, so
//! none has to be understood, and losing some costs no more than [`QUIET_PERIOD`].
//! Source: rtnetlink(7); the neighbour states are those of Linux `net/core/neighbour.c`.

use std::collections::{BTreeSet, HashMap};
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

use crate::facts::{self, Facts, NeighbourKey, Route};
use crate::{NextHopError, Resolver, Table, Unresolved, Wanted};

/// Two netlink sockets: one for requests, one for notifications.
pub struct Watch {
    resolver: Resolver,
    events: BoxStream<'static, NetlinkMessage<RouteNetlinkMessage>>,
    /// The neighbours that the last table stands on.
    needed: BTreeSet<NeighbourKey>,
    /// When the kernel was made to resolve a neighbour, and the state that was the reason: while it lasts, the neighbour is
    /// not asked again before [`ASK_AGAIN`].
    asked: HashMap<NeighbourKey, (Instant, Option<NeighbourState>)>,
    /// The last complaint about asking, so that a lasting one is logged once.
    complaint: Option<String>,
}

impl Watch {
    /// Opens both sockets in the network namespace of the calling thread, and subscribes to changes of links,
    /// neighbours, routes and routing rules.
    ///
    /// # Errors
    /// [`NextHopError::Open`].
    /// # Panics
    /// Outside a tokio runtime with I/O and time enabled.
    pub fn open() -> Result<Self, NextHopError> {
        let resolver = Resolver::open()?;
        let (connection, _, events) =
            rtnetlink::new_multicast_connection(&GROUPS).map_err(NextHopError::Open)?;
        tokio::spawn(connection);
        let events = events.map(|(message, _)| message).boxed();
        Ok(Self { resolver, events, needed: BTreeSet::new(), asked: HashMap::new(), complaint: None })
    }

    /// Calls `on_change` with the first table, and then with every table that differs from the last, until
    /// `stop` is ready.
    ///
    /// A change in the kernel, or of `wanted`, is answered after 50 ms at the earliest, so that a burst counts once,
    /// and within a few hundred milliseconds of the kernel's word, which comes at most once a second for carriers.
    /// While a destination or gateway is unresolved all is looked at anew every second, otherwise every 10 s. The
    /// kernel is made to resolve a needed neighbour that is missing, failed or stale. One that failed stays so until it
    /// answers, even while it is asked again. When the sender of `wanted` is gone, its last value stands.
    ///
    /// # Errors
    /// [`NextHopError::Closed`]; whatever may pass is logged, the last table stands, and a second later the kernel is
    /// asked again.
    /// # Cost
    /// [`Resolver::resolve`] for each look, and a dump of all routes if gateways are wanted.
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
                    tracing::warn!(%error, "next hops could not be looked up; the last ones stand");
                    BUSY_PERIOD
                }
            };
            // A storm of changes may cost at most a fifth of a core.
            let settle = (started.elapsed() * 4).clamp(SETTLE, SETTLE_MAX);
            if self.pause(&mut wanted, stop.as_mut(), period, settle).await? {
                return Ok(());
            }
        }
    }

    /// One look at the kernel. `true`: all that is wanted is resolved.
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
        let is_whole = table.gateways.len() == gateways.len() && table.next_hops.values().all(Result::is_ok);
        if last.as_ref() != Some(&table) {
            on_change(&table);
            *last = Some(table);
        }
        self.needed = gateways;
        self.needed.extend(routes.iter().filter_map(|(to, route)| Some(route.as_ref().ok()?.neighbour(*to))));
        self.keep_alive(&facts).await?;
        Ok(is_whole)
    }

    /// Gateways over `interfaces` and over the VLAN devices on them. Asks nothing when there are none.
    async fn gateways(&mut self, interfaces: &[u32]) -> Result<BTreeSet<NeighbourKey>, NextHopError> {
        if interfaces.is_empty() {
            return Ok(BTreeSet::new());
        }
        let all = self.resolver.facts().await?.with_vlans(interfaces);
        self.resolver.gateway_keys(&all).await
    }

    /// Waits for the next reason to look again. `true`: to stop.
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
        // Changes come in bursts: a link that goes down takes its routes and neighbours along.
        tokio::select! {
            () = stop => return Ok(true),
            () = sleep(settle) => {}
        }
        while let Some(Some(_)) = self.events.next().now_or_never() {}
        Ok(false)
    }

    /// The next notification that could change the table. Dropping the future loses none.
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
        if let Some(reason) = complaint.as_deref().filter(|new| self.complaint.as_deref() != Some(new)) {
            tracing::warn!(reason, "neighbours cannot be kept alive");
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

/// The table that follows from one look. A neighbour that failed before and is being asked again is still failed.
pub(crate) fn table(
    routes: &HashMap<IpAddr, Result<Route, Unresolved>>,
    gateways: &BTreeSet<NeighbourKey>,
    facts: &Facts,
    last: Option<&Table>,
) -> Table {
    let next_hop = |(&to, route): (&IpAddr, &Result<Route, Unresolved>)| {
        let now = route.and_then(|route| facts.next_hop(to, &route));
        let before = last.and_then(|table| table.next_hops.get(&to));
        match (now, before) {
            (
                Err(Unresolved::NeighbourPending { interface, neighbour }),
                Some(&Err(failed @ Unresolved::NeighbourFailed { interface: old, neighbour: same })),
            ) if (interface, neighbour) == (old, same) => (to, Err(failed)),
            (now, _) => (to, now),
        }
    };
    Table {
        next_hops: routes.iter().map(next_hop).collect(),
        gateways: facts.known_gateways(gateways),
        interfaces: Vec::new(),
    }
}

/// Whether a notification may change what was said. Neighbours of no concern are many on a busy link.
pub(crate) fn matters(
    message: &NetlinkMessage<RouteNetlinkMessage>,
    needed: &BTreeSet<NeighbourKey>,
) -> bool {
    match &message.payload {
        NetlinkPayload::InnerMessage(
            RouteNetlinkMessage::NewNeighbour(message) | RouteNetlinkMessage::DelNeighbour(message),
        ) => facts::neighbour(message).is_some_and(|(key, _)| needed.contains(&key)),
        _ => true, // a route, a link, a rule; or an overrun, which says that some were lost
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

/// A burst of changes is awaited for this long.
const SETTLE: Duration = Duration::from_millis(50);
/// The longest wait, however long a look takes.
const SETTLE_MAX: Duration = Duration::from_millis(400);

/// Between two looks while something is unresolved.
const BUSY_PERIOD: Duration = Duration::from_secs(1);
/// Between two looks while all is resolved.
const QUIET_PERIOD: Duration = Duration::from_secs(10);
/// A little less than [`BUSY_PERIOD`], so that each of its looks may ask.
const ASK_AGAIN: Duration = Duration::from_millis(800);
