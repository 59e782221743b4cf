//! `[machine.NAME]`: the machines of the cluster.
//!
//! A process finds the machine on which it runs by name, with
//! [`Config::machine`](super::Config::machine).

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use config_text::{At, Expected, Node, Place, Root, distinct, values};
use serde::Serialize;

use super::address::AddressNode;
use super::canonical;
use super::vlan::{self, Vlan};

/// A machine that runs the load balancer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Machine {
    #[serde(skip)]
    name: Arc<str>,
    shard: Option<Arc<str>>,
    /// One or more addresses of the machine. The first address of each family is the source address
    /// in outer headers.
    pub addresses: Vec<IpAddr>,
    /// The network interfaces for packets, 1 to 16. Packets for VIPs may arrive on any of these
    /// interfaces. Packets are sent on the interface that the route selects.
    pub interfaces: Vec<String>,
    #[serde(rename = "vlan", serialize_with = "canonical::map")]
    vlans: BTreeMap<String, Vlan>,
    #[serde(skip)]
    router_id: Option<Ipv4Addr>,
}

impl Machine {
    /// Returns the name of the machine. By default this is the host name; the command line can set
    /// another name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the shard of the machine, or `None` if it has no shard. Machines in the same shard
    /// are peers. A machine serves the VIPs of its shard and the VIPs without a shard.
    pub fn shard(&self) -> Option<&str> {
        self.shard.as_deref()
    }

    /// Returns the policy for VLAN tags of frames sent on `interface`. Default: [`Vlan::Keep`].
    pub fn vlan(&self, interface: &str) -> &Vlan {
        self.vlans.get(interface).unwrap_or(&Vlan::Keep)
    }

    pub(super) fn renamed(&self, name: impl Fn(&Arc<str>) -> Arc<str>) -> Self {
        Self { name: name(&self.name), ..self.clone() }
    }

    /// Returns the BGP identifier. Default: the first IPv4 address. Returns `None` if the machine
    /// has no IPv4 address.
    pub fn router_id(&self) -> Option<Ipv4Addr> {
        let v4 = |address: &IpAddr| match address {
            IpAddr::V4(v4) => Some(*v4),
            IpAddr::V6(_) => None,
        };
        self.router_id.or_else(|| self.addresses.iter().find_map(v4))
    }
}

/// A machine, with the positions of its values.
pub(super) struct MachineDraft {
    pub(super) place: Place,
    pub(super) name: Arc<str>,
    pub(super) addresses: Vec<At<IpAddr>>,
    pub(super) shard: Option<Arc<str>>,
    pub(super) router_id: Option<Ipv4Addr>,
    interfaces: Vec<String>,
    vlans: BTreeMap<String, Vlan>,
}

impl MachineDraft {
    pub(super) fn build(&self) -> Machine {
        Machine {
            name: Arc::clone(&self.name),
            shard: self.shard.clone(),
            addresses: values(&self.addresses),
            interfaces: self.interfaces.clone(),
            vlans: self.vlans.clone(),
            router_id: self.router_id,
        }
    }

    pub(super) fn read_all(root: &mut Root<'_>) -> Vec<Self> {
        const MACHINES: &str = "add a section [machine.NAME] for each machine";
        let nodes = root.each("machine");
        if nodes.is_empty() {
            root.report.absent(&Place::top("machine"), ("missing section [machine.NAME]", MACHINES));
        }
        for node in nodes.iter().filter(|node| node.is_empty_table()) {
            node.refuse(("\"machine\" is empty", MACHINES));
        }
        let named = root.named("machine");
        if let Some((_, node)) = named.get(MAX_MACHINES) {
            node.refuse(format!("a cluster can have at most {MAX_MACHINES} machines"));
        }
        // Further machines are not read, because checks compare each machine with others.
        let named = named.into_iter().take(MAX_MACHINES);
        named.filter_map(|(name, node)| Self::read(name, &node)).collect()
    }

    fn read(name: Arc<str>, node: &Node<'_>) -> Option<Self> {
        let mut section = node.section()?;
        let shard = section.optional("shard").and_then(|node| node.name());
        let addresses = section.required("addresses", ADDRESSES).and_then(|node| node.items(ADDRESSES));
        let interfaces = section.required("interfaces", INTERFACES).and_then(|node| node.items(INTERFACES));
        let interfaces = interfaces.unwrap_or_default();
        if let Some(node) = interfaces.get(MAX_INTERFACES) {
            node.refuse(format!("a machine can have at most {MAX_INTERFACES} interfaces"));
        }
        // Further interfaces are not read, because each is compared with all others below.
        let interfaces = interfaces.get(..MAX_INTERFACES).unwrap_or(&interfaces);
        let interface =
            |node: &Node<'_>| node.parse(INTERFACE, |text| is_interface(text).then(|| text.to_owned()));
        let interfaces = values(&distinct(interfaces, interface, Node::again));
        let vlans = vlan::read_all(&mut section, &interfaces);
        let router_id = section.optional("router_id").and_then(|node| node.parse(ROUTER_ID, read_router_id));
        section.finish();
        let addresses = addresses.unwrap_or_default();
        let address = |node: &Node<'_>| Some(node.at(node.unicast("machine address")?));
        let addresses = addresses.iter().filter_map(address).collect();
        Some(Self { place: node.place.clone(), name, addresses, shard, router_id, interfaces, vlans })
    }
}

/// Returns `true` if a string is a valid interface name. The rules are the same as in the kernel
/// function `dev_valid_name`.
fn is_interface(text: &str) -> bool {
    let forbidden = |c: char| matches!(c, '/' | ':' | '\0') || c.is_ascii_whitespace() || c == '\x0b';
    (1..=15).contains(&text.len()) && text != "." && text != ".." && !text.contains(forbidden)
}

/// RFC 6286 allows any BGP identifier except 0.
fn read_router_id(text: &str) -> Option<Ipv4Addr> {
    text.parse().ok().filter(|id: &Ipv4Addr| !id.is_unspecified())
}

const ROUTER_ID: Expected =
    Expected::new("a number in the form of an IPv4 address, except 0.0.0.0").example("\"192.0.2.1\"");
const MAX_MACHINES: usize = 1_024;
const MAX_INTERFACES: usize = 16;
const ADDRESSES: Expected = Expected::new("a list of the machine's own addresses").example("[\"192.0.2.1\"]");
const INTERFACES: Expected = Expected::new("a list of interface names").example("[\"eth0\"]");
const INTERFACE: Expected =
    Expected::new("an interface name of 1 to 15 bytes without '/', ':' and white space").example("\"eth0\"");
