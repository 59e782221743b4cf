//! The kernel's side of the mark: a table that leads into the TUN device, and the rules that lead to the table.
//!
//! In: the device's name, the numbers. Out: rules and routes for the families that the machine has addresses of.
//! Beside the way into the device each table has one of last resort that refuses: when the device is off, a check fails
//! instead of taking the machine's usual way to the VIP, where another balancer would answer.
//! Invariant: what an earlier process left is replaced, never doubled.
//! Source: ip-rule(8), rtnetlink(7).

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr};

use futures_util::TryStreamExt;
use rtnetlink::packet_route::AddressFamily;
use rtnetlink::packet_route::link::{AfSpecInet6, AfSpecUnspec, In6AddrGenMode, LinkAttribute};
use rtnetlink::packet_route::route::{RouteMessage, RouteScope, RouteType};
use rtnetlink::packet_route::rule::{RuleAction, RuleAttribute, RuleMessage};
use rtnetlink::{Handle, LinkUnspec, RouteMessageBuilder};

use super::{Numbers, Own, TunnelError};

/// What was installed.
#[derive(Debug)]
pub(super) struct Routes {
    handle: Handle,
    numbers: Numbers,
    device: u32,
}

impl Routes {
    /// Switches device `name` on, and leads marked packets into it.
    pub(super) async fn install(name: &str, numbers: Numbers, own: Own) -> Result<Self, TunnelError> {
        let (connection, handle, _) = rtnetlink::new_connection().map_err(TunnelError::Netlink)?;
        tokio::spawn(connection);
        let mut links = handle.link().get().match_name(name.to_owned()).execute();
        let found = links.try_next().await.ok().flatten();
        let device = found.ok_or_else(|| TunnelError::NoDevice(name.to_owned()))?.header.index;
        let routes = Self { handle, numbers, device };
        match routes.set_up(own).await {
            Ok(()) => Ok(routes),
            Err(error) => {
                // The first error is the one to tell.
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
        if own.v4.is_some() {
            self.lead(AddressFamily::Inet).await?;
        }
        if own.v6.is_some() {
            self.lead(AddressFamily::Inet6).await?;
        }
        Ok(())
    }

    /// Puts back what somebody took away: nothing is doubled, and what is there stays.
    pub(super) async fn mend(&self, own: Own) -> Result<(), TunnelError> {
        self.switch_on().await?;
        let families = [(AddressFamily::Inet, own.v4.is_some()), (AddressFamily::Inet6, own.v6.is_some())];
        for (family, _) in families.into_iter().filter(|(_, wanted)| *wanted) {
            self.lead(family).await?;
        }
        Ok(())
    }

    /// Takes all of it away.
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
            Err(error) if !is_there(&error) => Err(refused("add the checks' routing rule")(error)),
            _ => Ok(()),
        }
    }

    /// All rules that are as ours, however many there are.
    async fn remove_rules(&self, family: AddressFamily) -> Result<(), TunnelError> {
        for _ in 0..MOST_STALE {
            match self.handle.rule().del(self.rule(family)).execute().await {
                Ok(()) => {}
                Err(error) if is_absent(&error) => break,
                Err(error) => return Err(refused("remove the checks' routing rule")(error)),
            }
        }
        Ok(())
    }

    fn rule(&self, family: AddressFamily) -> RuleMessage {
        let Numbers { mark, priority, table } = self.numbers;
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

fn refused(request: &'static str) -> impl FnOnce(rtnetlink::Error) -> TunnelError {
    move |error| TunnelError::Refused { request, reason: reason(error) }
}

fn reason(error: rtnetlink::Error) -> io::Error {
    match error {
        rtnetlink::Error::NetlinkError(message) => message.to_io(),
        other => io::Error::other(other),
    }
}

/// The rule stands already.
fn is_there(error: &rtnetlink::Error) -> bool {
    let rtnetlink::Error::NetlinkError(message) = error else { return false };
    message.to_io().raw_os_error() == Some(EEXIST)
}

/// No such rule, or no such family in this kernel.
fn is_absent(error: &rtnetlink::Error) -> bool {
    let rtnetlink::Error::NetlinkError(message) = error else { return false };
    matches!(message.to_io().raw_os_error(), Some(ENOENT | EAFNOSUPPORT | EOPNOTSUPP))
}

const FAMILIES: [AddressFamily; 2] = [AddressFamily::Inet, AddressFamily::Inet6];
/// Metrics: the smaller goes first.
const FIRST: u32 = 1;
const LAST: u32 = 2;
const MOST_STALE: usize = 64;
const ENOENT: i32 = 2;
const EEXIST: i32 = 17;
const EAFNOSUPPORT: i32 = 97;
const EOPNOTSUPP: i32 = 95;
