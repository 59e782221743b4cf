//! `[machine.NAME]`: the machines of the cluster.
//!
//! In: the sections. Out: [`Machine`]s in the order of their names.
//! Not here: which of them this host is; the binary asks [`Config::machine`](super::Config::machine).

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use config_text::{At, Node, Place, Root, distinct, values};
use serde::Serialize;

use super::address::AddressNode;
use super::canonical;
use super::vlan::{self, Vlan};

/// One machine that runs the balancer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Machine {
    #[serde(skip)]
    name: Arc<str>,
    shard: Option<Arc<str>>,
    /// Its own addresses, at least one; the first of a family is the outer source of that family.
    pub addresses: Vec<IpAddr>,
    /// The interfaces by which packets come and go, 1 to 16: those for VIPs arrive on any, and leave by that of the route.
    pub interfaces: Vec<String>,
    #[serde(rename = "vlan", serialize_with = "canonical::map")]
    vlans: BTreeMap<String, Vlan>,
    #[serde(skip)]
    router_id: Option<Ipv4Addr>,
}

impl Machine {
    /// The machine's name: its host name, unless the command line says another.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The machines of the same shard are peers; `None`: this one has none. A machine serves the VIPs of its shard and
    /// those without a shard.
    pub fn shard(&self) -> Option<&str> {
        self.shard.as_deref()
    }

    /// What becomes of the VLAN tags of frames that leave by `interface`. Default [`Vlan::Keep`].
    pub fn vlan(&self, interface: &str) -> &Vlan {
        self.vlans.get(interface).unwrap_or(&Vlan::Keep)
    }

    pub(super) fn renamed(&self, name: impl Fn(&Arc<str>) -> Arc<str>) -> Self {
        Self { name: name(&self.name), ..self.clone() }
    }

    /// Its BGP identifier. Default: its first IPv4 address; `None`: it has none.
    pub fn router_id(&self) -> Option<Ipv4Addr> {
        let v4 = |address: &IpAddr| match address {
            IpAddr::V4(v4) => Some(*v4),
            IpAddr::V6(_) => None,
        };
        self.router_id.or_else(|| self.addresses.iter().find_map(v4))
    }
}

/// A machine and where its parts are written.
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
        const MACHINES: &str = "a section [machine.NAME] for each machine, at least one";
        let nodes = root.each("machine");
        if nodes.is_empty() {
            root.report.absent(&Place::top("machine"), "nothing", MACHINES);
        }
        for node in nodes.iter().filter(|node| node.is_empty_table()) {
            node.refuse(MACHINES);
        }
        root.named("machine").into_iter().filter_map(|(name, node)| Self::read(name, &node)).collect()
    }

    fn read(name: Arc<str>, node: &Node<'_>) -> Option<Self> {
        let mut section = node.section()?;
        let shard = section.optional("shard").and_then(|node| node.name());
        let addresses = section.required("addresses", ADDRESSES).and_then(|node| node.items(ADDRESSES));
        let interfaces = section.required("interfaces", INTERFACES).and_then(|node| node.items(INTERFACES));
        let interfaces = interfaces.unwrap_or_default();
        if let Some(node) = interfaces.get(MAX_INTERFACES) {
            node.refuse("16 interfaces at most");
        }
        let interface =
            |node: &Node<'_>| node.parse(INTERFACE, |text| is_interface(text).then(|| text.to_owned()));
        let interfaces = values(&distinct(&interfaces, interface, |node| node.refuse("each interface once")));
        let vlans = vlan::read_all(&mut section, &interfaces);
        let router_id = section.optional("router_id").and_then(|node| node.parse(ROUTER_ID, read_router_id));
        section.finish();
        let addresses = addresses.unwrap_or_default();
        let addresses = addresses.iter().filter_map(|node| Some(node.at(node.unicast()?))).collect();
        Some(Self { place: node.place.clone(), name, addresses, shard, router_id, interfaces, vlans })
    }
}

/// As the kernel's `dev_valid_name` has it.
fn is_interface(text: &str) -> bool {
    let forbidden = |c: char| matches!(c, '/' | ':' | '\0') || c.is_ascii_whitespace() || c == '\x0b';
    (1..=15).contains(&text.len()) && text != "." && text != ".." && !text.contains(forbidden)
}

/// RFC 6286: any number but 0.
fn read_router_id(text: &str) -> Option<Ipv4Addr> {
    text.parse().ok().filter(|id: &Ipv4Addr| !id.is_unspecified())
}

const ROUTER_ID: &str = "a number written as an IPv4 address, not 0.0.0.0";
const MAX_INTERFACES: usize = 16;
const ADDRESSES: &str = "a list of the machine's own addresses, at least one";
const INTERFACES: &str = "a list of interface names, at least one";
const INTERFACE: &str = "an interface name of 1 to 15 bytes without '/', ':' or white space";
