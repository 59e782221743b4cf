//! The kernel's side of the mark: a table that leads into the TUN device, and the rules that lead to the table.
//!
//! In: the device's name, the numbers. Out: rules and routes for the families that the machine has addresses of.
//! Beside the way into the device each table has one of last resort that refuses: when the device is off, a check fails
//! instead of taking the machine's usual way to the VIP, where another balancer would answer.
//! Invariant: what an earlier process left is replaced, never doubled. A rule of others that takes the mark or the table is
//! refused by name.
//! Source: ip-rule(8), rtnetlink(7).

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

/// What was installed.
#[derive(Debug)]
pub(super) struct Routes {
    handle: Handle,
    numbers: TunnelNumbers,
    device: u32,
}

impl Routes {
    /// Switches device `name` on, and leads marked packets into it.
    pub(super) async fn install(name: &str, numbers: TunnelNumbers, own: Own) -> Result<Self, TunnelError> {
        let handle = connect()?;
        let device = index(&handle, name).await.ok_or_else(|| TunnelError::NoDevice(name.to_owned()))?;
        let routes = Self { handle, numbers, device };
        match routes.set_up(own).await {
            Ok(()) => Ok(routes),
            Err(error) => {
                // The first error is the one to report.
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

    /// Rules of other software that meet ours: with our mark its packets would go into the device, or ours elsewhere; with
    /// our table alone its packets would. One with our priority may come before ours or not, by age: that is reported.
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
                tracing::warn!(rule = %other, "a routing rule of others has the priority of the checks' own");
                continue;
            } else {
                continue;
            };
            return Err(TunnelError::RuleOfOthers { rule: other.to_string(), uses });
        }
        Ok(())
    }

    /// Puts back what somebody took away: nothing is doubled, and what is there stays.
    pub(super) async fn mend(&self, own: Own) -> Result<(), TunnelError> {
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
                // Those of a device that somebody switched off are gone already.
                let _ = self.handle.route().del(route).execute().await;
            }
        }
        Ok(())
    }

    async fn switch_on(&self) -> Result<(), TunnelError> {
        // No address of its own, so that the kernel has nothing to say on it. Without IPv6 it has not anyway.
        let quiet = AfSpecUnspec::Inet6(vec![AfSpecInet6::AddrGenMode(In6AddrGenMode::None)]);
        let quiet = LinkUnspec::new_with_index(self.device)
            .append_extra_attribute(LinkAttribute::AfSpecUnspec(vec![quiet]))
            .build();
        let _ = self.handle.link().set(quiet).execute().await;
        let up = LinkUnspec::new_with_index(self.device).up().build();
        self.handle.link().set(up).execute().await.map_err(refused("switch its TUN device on"))
    }

    /// Routes first: a rule to an empty table would fall through.
    async fn lead(&self, family: AddressFamily) -> Result<(), TunnelError> {
        for route in self.routes(family) {
            let adding = self.handle.route().add(route).replace();
            adding.execute().await.map_err(refused("add a route into the TUN device"))?;
        }
        let mut adding = self.handle.rule().add();
        *adding.message_mut() = self.rule(family);
        match adding.execute().await {
            Err(error) if errno(&error) != Errno::EEXIST => {
                Err(refused("add the checks' routing rule")(error))
            }
            _ => Ok(()),
        }
    }

    /// All rules that are as ours, however many there are.
    async fn remove_rules(&self, family: AddressFamily) -> Result<usize, TunnelError> {
        for count in 0..MOST_STALE {
            match self.handle.rule().del(self.rule(family)).execute().await {
                Ok(()) => {}
                Err(error) => match errno(&error) {
                    // No such rule, or no such family in this kernel.
                    Errno::ENOENT | Errno::EAFNOSUPPORT | Errno::EOPNOTSUPP => return Ok(count),
                    _ => return Err(refused("remove the checks' routing rule")(error)),
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

    /// The way into the device, and the one of last resort.
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

/// Takes away what a killed process left of a tunnel with device `tun_name`: gives how many rules there were. Nothing is done
/// while the device is there, which another process has then.
///
/// # Errors
/// [`TunnelError::Netlink`], [`TunnelError::Refused`].
/// # Panics
/// Outside a tokio runtime with I/O enabled.
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
        // It is not there after most starts.
        let _ = routes.handle.route().del(last).execute().await;
    }
    Ok(count)
}

/// What of a rule may meet ours, and how the operator recognises it.
#[derive(Debug, Default)]
struct Other {
    is_ipv6: bool,
    priority: u32,
    /// Compared as a whole, and not by a rule for all but it.
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

/// A device's number; `None`: there is none of that name.
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
/// Metrics: the smaller goes first.
const FIRST: u32 = 1;
const LAST: u32 = 2;
const MOST_STALE: usize = 64;
