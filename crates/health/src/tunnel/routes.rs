//! Manages the routing table that directs packets to the TUN device, and the routing rules that
//! select this table for marked packets.
//!
//! Each address family of this machine has its own rule and routes. Each table also has an
//! unreachable route with a higher metric, so that checks fail if the device is down. Without this
//! route, checks would follow the usual route to the VIP and reach another load balancer.
//!
//! Rules and routes that an earlier process left behind are replaced. If other software has a rule
//! with the same mark or table, an error is reported.
//!
//! References: ip-rule(8), rtnetlink(7).

use std::fmt;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr};

use futures_util::TryStreamExt;
use nix::errno::Errno;
use rtnetlink::packet_route::AddressFamily;
use rtnetlink::packet_route::link::{AfSpecInet6, AfSpecUnspec, In6AddrGenMode, LinkAttribute};
use rtnetlink::packet_route::route::{RouteMessage, RouteScope, RouteType};
use rtnetlink::packet_route::rule::{RuleAction, RuleAttribute, RuleFlags, RuleMessage};
use rtnetlink::{Handle, IpVersion, LinkUnspec, RouteMessageBuilder};

use super::{Own, TunnelError, TunnelNumbers};

/// The installed rules and routes.
#[derive(Debug)]
pub(super) struct Routes {
    handle: Handle,
    numbers: TunnelNumbers,
    device: u32,
}

impl Routes {
    /// Brings the device `name` up and routes marked packets to it.
    pub(super) async fn install(name: &str, numbers: TunnelNumbers, own: Own) -> Result<Self, TunnelError> {
        let handle = connect()?;
        let device = index(&handle, name).await.ok_or_else(|| TunnelError::NoDevice(name.to_owned()))?;
        let routes = Self { handle, numbers, device };
        match routes.set_up(own).await {
            Ok(()) => Ok(routes),
            Err(error) => {
                // Only the first error is reported.
                let _ = routes.remove().await;
                Err(error)
            }
        }
    }

    async fn set_up(&self, own: Own) -> Result<(), TunnelError> {
        self.switch_on().await?;
        for family in FAMILIES {
            self.remove_rules(family).await?;
        }
        for family in own.families() {
            self.look_at_others(family).await?;
            self.lead(family).await?;
        }
        Ok(())
    }

    /// Checks for conflicting rules that other software installed. With a rule that has the same
    /// mark, packets from the other software could go to the TUN device, or health check packets
    /// could go elsewhere. With a rule that has the same table, packets from the other software
    /// would go to the TUN device. A rule with the same priority may be evaluated before or after
    /// the rule of the tunnel, so it only causes a warning.
    async fn look_at_others(&self, family: AddressFamily) -> Result<(), TunnelError> {
        let version = if family == AddressFamily::Inet { IpVersion::V4 } else { IpVersion::V6 };
        let mut rules = self.handle.rule().get(version).execute();
        let TunnelNumbers { mark, priority, table } = self.numbers;
        while let Some(rule) = rules.try_next().await.map_err(refused("list routing rules"))? {
            let other = Other::of(&rule);
            let uses = if other.mark == Some(mark) {
                format!("mark {mark}")
            } else if other.table == table {
                format!("table {table}")
            } else if other.priority == priority {
                // log: Another routing rule has the same priority as Sluicegate's rule for health
                // checks (83), so the order of the two rules is undefined. Give the other rule a
                // different priority.
                tracing::warn!(rule = %other, "routing rule conflict");
                continue;
            } else {
                continue;
            };
            return Err(TunnelError::RuleOfOthers { rule: other.to_string(), uses });
        }
        Ok(())
    }

    /// Restores missing rules and routes. Existing rules and routes are not changed or duplicated.
    pub(super) async fn repair(&self, own: Own) -> Result<(), TunnelError> {
        self.switch_on().await?;
        for family in own.families() {
            self.lead(family).await?;
        }
        Ok(())
    }

    pub(super) async fn remove(&self) -> Result<(), TunnelError> {
        for family in FAMILIES {
            self.remove_rules(family).await?;
            for route in self.routes(family) {
                // The routes of a device that is down no longer exist.
                let _ = self.handle.route().del(route).execute().await;
            }
        }
        Ok(())
    }

    async fn switch_on(&self) -> Result<(), TunnelError> {
        // The device gets no link-local address, because the kernel would otherwise send its own
        // packets on it. An error is ignored, because the request fails if the kernel has no IPv6.
        let quiet = AfSpecUnspec::Inet6(vec![AfSpecInet6::AddrGenMode(In6AddrGenMode::None)]);
        let quiet = LinkUnspec::new_with_index(self.device)
            .append_extra_attribute(LinkAttribute::AfSpecUnspec(vec![quiet]))
            .build();
        let _ = self.handle.link().set(quiet).execute().await;
        // The sockets of checks limit their packets to the MTU toward the backend, which may be
        // larger than the default MTU of the device.
        let up = LinkUnspec::new_with_index(self.device).mtu(LARGEST_MTU).up().build();
        self.handle.link().set(up).execute().await.map_err(refused("set the TUN device up"))
    }

    /// Adds the routes before the rule, because a rule with an empty table would have no effect.
    async fn lead(&self, family: AddressFamily) -> Result<(), TunnelError> {
        for route in self.routes(family) {
            let adding = self.handle.route().add(route).replace();
            adding.execute().await.map_err(refused("add a route into the TUN device"))?;
        }
        let mut adding = self.handle.rule().add();
        *adding.message_mut() = self.rule(family);
        match adding.execute().await {
            Err(error) if errno(&error) != Errno::EEXIST => {
                Err(refused("add the routing rule of the checks")(error))
            }
            _ => Ok(()),
        }
    }

    /// Removes all routing rules that are identical to the rules of the tunnel. Returns the number
    /// of removed rules.
    async fn remove_rules(&self, family: AddressFamily) -> Result<usize, TunnelError> {
        for count in 0..MOST_STALE {
            match self.handle.rule().del(self.rule(family)).execute().await {
                Ok(()) => {}
                Err(error) => match errno(&error) {
                    // The rule does not exist, or the kernel does not have the address family.
                    Errno::ENOENT | Errno::EAFNOSUPPORT | Errno::EOPNOTSUPP => return Ok(count),
                    _ => return Err(refused("remove the routing rule of the checks")(error)),
                },
            }
        }
        Ok(MOST_STALE)
    }

    fn rule(&self, family: AddressFamily) -> RuleMessage {
        let TunnelNumbers { mark, priority, table } = self.numbers;
        let mut rule = RuleMessage::default();
        rule.header.family = family;
        rule.header.action = RuleAction::ToTable;
        rule.attributes =
            vec![RuleAttribute::Table(table), RuleAttribute::Priority(priority), RuleAttribute::FwMark(mark)];
        rule
    }

    /// Returns the route to the device and the unreachable route.
    fn routes(&self, family: AddressFamily) -> [RouteMessage; 2] {
        macro_rules! both {
            ($address:ty) => {{
                let default = || RouteMessageBuilder::<$address>::new().table_id(self.numbers.table);
                let into = default().output_interface(self.device).scope(RouteScope::Link).priority(FIRST);
                [into.build(), default().kind(RouteType::Unreachable).priority(LAST).build()]
            }};
        }
        if family == AddressFamily::Inet { both!(Ipv4Addr) } else { both!(Ipv6Addr) }
    }
}

/// Removes the rules and routes that a killed process with the TUN device `tun_name` left behind.
/// Returns the number of removed rules. If the device exists, another process uses it, and the
/// function changes nothing.
///
/// # Errors
/// Returns [`TunnelError::Netlink`] or [`TunnelError::Refused`].
///
/// # Panics
/// Panics if the caller runs outside a tokio runtime with I/O enabled.
///
/// # Cost
/// Five netlink messages.
pub async fn remove_leftovers(tun_name: &str, numbers: TunnelNumbers) -> Result<usize, TunnelError> {
    let handle = connect()?;
    if index(&handle, tun_name).await.is_some() {
        return Ok(0);
    }
    let (routes, mut count) = (Routes { handle, numbers, device: 0 }, 0);
    for family in FAMILIES {
        count += routes.remove_rules(family).await?;
        let [_, last] = routes.routes(family);
        // An error is ignored, because usually the route does not exist.
        let _ = routes.handle.route().del(last).execute().await;
    }
    Ok(count)
}

/// The fields of another routing rule that may conflict with the rules of the tunnel. `Display`
/// writes the rule as text.
#[derive(Debug, Default)]
struct Other {
    is_ipv6: bool,
    priority: u32,
    /// The mark, or `None` if the rule compares the mark with a mask or is inverted.
    mark: Option<u32>,
    table: u32,
}

impl Other {
    fn of(rule: &RuleMessage) -> Self {
        let mut other = Self { is_ipv6: rule.header.family == AddressFamily::Inet6, ..Self::default() };
        (other.table, other.mark) = (u32::from(rule.header.table), None);
        let mut whole = !rule.header.flags.contains(RuleFlags::Invert);
        for attribute in &rule.attributes {
            match attribute {
                RuleAttribute::Priority(priority) => other.priority = *priority,
                RuleAttribute::FwMark(mark) => other.mark = Some(*mark),
                RuleAttribute::FwMask(mask) => whole &= *mask == u32::MAX,
                RuleAttribute::Table(table) => other.table = *table,
                _ => {}
            }
        }
        other.mark = other.mark.filter(|_| whole);
        other
    }
}

impl fmt::Display for Other {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { is_ipv6, priority, mark, table } = self;
        write!(f, "ip {} rule, priority {priority}", if *is_ipv6 { "-6" } else { "-4" })?;
        if let Some(mark) = mark {
            write!(f, ", fwmark {mark}")?;
        }
        write!(f, ", lookup {table}")
    }
}

fn connect() -> Result<Handle, TunnelError> {
    let (connection, handle, _) = rtnetlink::new_connection().map_err(TunnelError::Netlink)?;
    tokio::spawn(connection);
    Ok(handle)
}

/// The largest MTU of a TUN device.
const LARGEST_MTU: u32 = 65_535;

/// Returns the index of a device, or `None` if there is no device with this name.
async fn index(handle: &Handle, name: &str) -> Option<u32> {
    let mut links = handle.link().get().match_name(name.to_owned()).execute();
    links.try_next().await.ok().flatten().map(|link| link.header.index)
}

fn refused(request: &'static str) -> impl FnOnce(rtnetlink::Error) -> TunnelError {
    move |error| TunnelError::Refused { request, reason: reason(error) }
}

fn reason(error: rtnetlink::Error) -> io::Error {
    match error {
        rtnetlink::Error::NetlinkError(message) => message.to_io(),
        other => io::Error::other(other),
    }
}

fn errno(error: &rtnetlink::Error) -> Errno {
    let rtnetlink::Error::NetlinkError(message) = error else { return Errno::UnknownErrno };
    Errno::from_raw(message.to_io().raw_os_error().unwrap_or(0))
}

const FAMILIES: [AddressFamily; 2] = [AddressFamily::Inet, AddressFamily::Inet6];
/// The metrics of the two routes. The lower metric is preferred.
const FIRST: u32 = 1;
const LAST: u32 = 2;
const MOST_STALE: usize = 64;
