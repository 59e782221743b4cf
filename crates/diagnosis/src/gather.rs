//! Collects the facts about the machine from `/proc`, `/sys`, ioctls and netlink.
//!
//! The module changes nothing on the machine. Files in `/sys` may describe a different network
//! namespace, so the module reads only files that do not depend on the namespace, and files whose
//! namespace it has checked.
//!
//! References: proc(5); Linux `Documentation/ABI/testing/sysfs-bus-pci`.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;

use config::{AdminSocket, BgpPeer, Config, IdleThen, IoMode, Machine};
use datapath::interface::{Hardware, Interface, Privileges, clock_is_synchronised, knows_af_xdp};
use datapath::placement::{allowed, listed};
use next_hop::{Hops, NextHops, Resolved, Unresolved};
use nix::ifaddrs::{InterfaceAddress, getifaddrs};
use nix::net::if_::{InterfaceFlags, if_indextoname};
use nix::unistd::{AccessFlags, access};

use crate::facts::{
    AdminFolder, Facts, FolderState, Host, Nic, OwnAddress, PathFact, PeerFact, Reach, Routers, Threads,
    VipFact,
};
use crate::reach::Heard;
use crate::routers::BFD_PORT;
use crate::sockets;

/// Collects all facts. `next_hops` contains the next hops of the backends, and `routes` contains
/// the routes of the VIPs. The next hop of a BGP peer can be in `next_hops` or in `routes`.
pub(crate) fn facts(
    config: &Config,
    machine: &Machine,
    next_hops: &NextHops,
    routes: &NextHops,
    heard: &Heard,
) -> Facts {
    let io = config.io();
    let own = own_addresses();
    let is_own = |address: &IpAddr| own.iter().any(|(own, _)| own.address == *address);
    let admin = config.admin().socket.as_ref();
    Facts {
        host: host(),
        interfaces: machine.interfaces.iter().map(|name| nic(name)).collect(),
        vips: vips(config, routes, &own),
        paths: paths(config, machine, next_hops, &heard.reach),
        routers: routers(config, machine, &is_own, &|peer| {
            let found = next_hops.get(&peer).or_else(|| routes.get(&peer));
            found.map_or(Err(Unresolved::NoRoute), Hops::first)
        }),
        absent_addresses: machine.addresses.iter().copied().filter(|address| !is_own(address)).collect(),
        unasked: heard.unasked.clone(),
        has_packet_sockets: io.mode == IoMode::AfPacket,
        sockets: io.queues,
        frames_per_queue: io.frames_per_queue,
        frame_size: io.frame_size,
        flows_per_thread: io.flows_per_thread,
        threads: Threads {
            steered: io.threads.map_or(0, |threads| threads.get().into()),
            spins: io.idle.then == IdleThen::Spin,
            polls: io.busy_poll.is_some(),
        },
        admin: admin.and_then(admin_folder),
        is_running: admin.is_some_and(|socket| UnixStream::connect(&socket.path).is_ok()),
    }
}

/// Returns the size of the ping packets for each backend: the size of the largest client packet
/// after encapsulation, limited by the MTU of the local link.
pub(crate) fn targets(config: &Config, machine: &Machine, next_hops: &NextHops) -> BTreeMap<IpAddr, u32> {
    let mut targets = BTreeMap::new();
    for path in paths(config, machine, next_hops, &HashMap::new()) {
        if path.link.is_some() {
            let asked = targets.entry(path.address).or_insert(0);
            *asked = path.asked().max(*asked);
        }
    }
    targets
}

fn host() -> Host {
    let text = |path: &str| fs::read_to_string(path).ok();
    let cpus = |path: &str| text(path).as_deref().map(listed).unwrap_or_default();
    Host {
        kernel: text("/proc/sys/kernel/osrelease").unwrap_or_default().trim().to_owned(),
        reports_nexthop_objects: number("/proc/sys/net/ipv4/nexthop_compat_mode").map(|value| value > 0),
        knows_af_xdp: knows_af_xdp(),
        bpf_jit: number("/proc/sys/net/core/bpf_jit_enable"),
        privileges: Privileges::read().ok(),
        memlock: text("/proc/self/limits").as_deref().and_then(locked_memory),
        clock_is_synchronised: clock_is_synchronised(),
        huge_pages: text("/sys/kernel/mm/transparent_hugepage/enabled").as_deref().and_then(chosen),
        cpus: allowed(),
        isolated: cpus("/sys/devices/system/cpu/isolated"),
        irqbalance: runs("irqbalance"),
    }
}

fn nic(name: &str) -> Nic {
    let found = Interface::read(name).map_err(|error| error.to_string()).map(|interface| {
        let interface = interface.with_program_name().with_multi_buffer();
        let hardware = Hardware::read(&interface);
        (interface, hardware)
    });
    let bus = found.as_ref().map_or("", |(_, hardware)| hardware.bus.as_str());
    let device = (!bus.is_empty()).then(|| Path::new("/sys/bus/pci/devices").join(bus));
    let interrupts = device.and_then(|device| fs::read_dir(device.join("msi_irqs")).ok());
    let conf = |family: &str, of: &str, key: &str| number(&format!("/proc/sys/net/{family}/conf/{of}/{key}"));
    let rp_filter = conf("ipv4", "all", "rp_filter").max(conf("ipv4", name, "rp_filter"));
    Nic {
        name: name.to_owned(),
        rp_filter: rp_filter.and_then(|mode| u8::try_from(mode).ok()),
        skips_linkdown: ["ipv4", "ipv6"].map(|family| {
            // The kernel uses the larger of both values for IPv4. For IPv6, a change of `all`
            // changes all interfaces.
            let of = |name| conf(family, name, "ignore_routes_with_linkdown");
            let all = of("all").filter(|_| family == "ipv4");
            of(name).max(all).map(|value| value > 0)
        }),
        forwards_v4: conf("ipv4", name, "forwarding") == Some(1),
        forwards_v6: conf("ipv6", "all", "forwarding") == Some(1),
        has_interrupts: interrupts.is_some_and(|mut all| all.next().is_some()),
        defers_interrupts: found.as_ref().ok().and_then(|(interface, _)| defers_interrupts(interface)),
        found,
    }
}

/// Returns `true` if the interface defers its interrupts during busy polling, or `None` if `/sys`
/// shows another network namespace.
fn defers_interrupts(interface: &Interface) -> Option<bool> {
    let read = |file: &str| number(&format!("/sys/class/net/{}/{file}", interface.name));
    (read("ifindex")? == interface.index).then_some(())?;
    Some(read("napi_defer_hard_irqs")? > 0 && read("gro_flush_timeout")? > 0)
}

fn vips(config: &Config, routes: &NextHops, own: &[(OwnAddress, bool)]) -> Vec<VipFact> {
    let fact = |name: &Arc<str>, address: &IpAddr| VipFact {
        name: Arc::clone(name),
        address: *address,
        route: VipFact::route_of(
            routes.get(address).map_or(Err(Unresolved::NoRoute), Hops::first).map(|hop| hop.interface),
        ),
        several: routes
            .get(address)
            .map_or(&[][..], Hops::several)
            .iter()
            .map(|hop| hop.neighbour.0)
            .collect(),
        local: own
            .iter()
            .find(|(own, on_loopback)| covers(own, *on_loopback, *address))
            .map(|(own, _)| own.clone()),
        subnet: own
            .iter()
            .find(|(own, on_loopback)| !on_loopback && is_in_subnet(own, *address))
            .map(|(own, _)| own.clone()),
    };
    let all = config.vips().iter();
    all.flat_map(|vip| vip.reachable_at().into_iter().map(|address| fact(&vip.name, &address))).collect()
}

/// Returns `true` if `own` makes the VIP a local address. An IPv4 prefix on the loopback interface
/// makes all addresses of the prefix local.
fn covers(own: &OwnAddress, on_loopback: bool, vip: IpAddr) -> bool {
    own.address == vip || (on_loopback && vip.is_ipv4() && is_in_subnet(own, vip))
}

/// Returns `true` if the address is in the subnet of `own`. A subnet has at least two addresses.
fn is_in_subnet(own: &OwnAddress, address: IpAddr) -> bool {
    let length = u32::from(own.prefix_length);
    match (own.address, address) {
        (IpAddr::V4(own), IpAddr::V4(address)) => {
            let differing = own.to_bits() ^ address.to_bits();
            length < 32 && differing.leading_zeros() >= length
        }
        (IpAddr::V6(own), IpAddr::V6(address)) => {
            let differing = own.to_bits() ^ address.to_bits();
            length < 128 && differing.leading_zeros() >= length
        }
        _ => false,
    }
}

fn paths(
    config: &Config,
    machine: &Machine,
    next_hops: &NextHops,
    reach: &HashMap<IpAddr, Reach>,
) -> Vec<PathFact> {
    let readdressed = readdressed(config);
    let mut links: HashMap<u32, Option<(String, u32)>> = HashMap::new();
    let mut paths: BTreeMap<(Arc<str>, IpAddr, &'static str), PathFact> = BTreeMap::new();
    // The other machines of the shard are included, because this machine sends full-size fragments
    // to them.
    let peers = config.peers(machine).into_iter().flat_map(|pool| &pool.members);
    let peers = peers.filter(|member| *member.backend.name != *machine.name());
    let members = config.members().map(|member| ("backend", member));
    for (noun, member) in members.chain(peers.map(|member| ("machine", member))) {
        let address = member.backend.address;
        let next_hop = next_hops.get(&address).map_or(Err(Unresolved::NoRoute), Hops::first);
        let several = next_hops.get(&address).map_or(&[][..], Hops::several).to_vec();
        let index = VipFact::route_of(next_hop.map(|hop| hop.interface)).ok();
        let usable = several.iter().filter(|hop| hop.found.is_ok()).map(|hop| hop.neighbour.0);
        let all = usable.chain(index);
        let of_hops = all.filter_map(|index| links.entry(index).or_insert_with(|| link(index)).clone());
        let narrowest = of_hops.min_by_key(|(_, mtu)| *mtu);
        let path = PathFact {
            noun,
            clients: config.cluster().mtu.clients,
            backend: Arc::clone(&member.backend.name),
            address,
            kind: member.encapsulation.kind.name(),
            is_readdressed: readdressed.contains(&member.leaf),
            encap_overhead: member.encapsulation.encap_overhead(address),
            next_hop,
            several,
            link: narrowest,
            reach: reach.get(&address).copied(),
        };
        paths.insert((Arc::clone(&path.backend), address, path.kind), path);
    }
    paths.into_values().collect()
}

/// Returns the leaf pools whose packets are sent to the backend address instead of the VIP
/// (`kv.path = "proxied"`).
fn readdressed(config: &Config) -> BTreeSet<&Arc<str>> {
    let kv = config.pools().iter().filter_map(|pool| Some((pool, pool.kv.as_ref()?)));
    let through = kv.filter(|(_, kv)| matches!(kv.path, config::KvPath::Proxied { .. }));
    let named = through.flat_map(|(pool, kv)| [&pool.name].into_iter().chain(&kv.pools));
    let pools = named.filter_map(|name| config.pool(name));
    pools.flat_map(|pool| pool.members.iter().map(|member| &member.leaf)).collect()
}

fn routers(
    config: &Config,
    machine: &Machine,
    is_own: &dyn Fn(&IpAddr) -> bool,
    next_hop: &dyn Fn(IpAddr) -> Result<Resolved, Unresolved>,
) -> Option<Routers> {
    let bgp = config.bgp()?;
    let peers: Vec<PeerFact> =
        bgp.peers_of(machine.name()).map(|peer| peer_fact(peer, is_own, next_hop)).collect();
    if peers.is_empty() {
        return None;
    }
    let listens = bgp.listen.iter().filter(|at| config.listens(machine, **at));
    let hears = |is_v4: bool| peers.iter().any(|peer| peer.has_bfd && peer.address.is_ipv4() == is_v4);
    let any = [(true, IpAddr::from([0; 4])), (false, IpAddr::from([0; 16]))].into_iter();
    let sockets = any.filter(|(is_v4, _)| hears(*is_v4)).map(|(_, any)| SocketAddr::new(any, BFD_PORT));
    Some(Routers {
        listens: listens.map(|at| (*at, sockets::tcp(*at).err())).collect(),
        signs_tcp: peers.iter().any(|peer| peer.is_signed).then(sockets::signs_tcp).flatten(),
        bfd_port: sockets.filter_map(|at| sockets::udp(at).err()).next(),
        peers,
    })
}

fn peer_fact(
    peer: &BgpPeer,
    is_own: &dyn Fn(&IpAddr) -> bool,
    next_hop: &dyn Fn(IpAddr) -> Result<Resolved, Unresolved>,
) -> PeerFact {
    let address = peer.address;
    let found = next_hop(address);
    let neighbour = match found {
        Ok(hop) => hop.gateway,
        Err(
            Unresolved::NeighbourPending { neighbour, .. } | Unresolved::NeighbourFailed { neighbour, .. },
        ) => Some(neighbour),
        Err(_) => None,
    };
    PeerFact {
        name: Arc::clone(&peer.name),
        address,
        route: found.map(|_| ()),
        gateway: neighbour.filter(|neighbour| *neighbour != address),
        hops: peer.hops,
        has_bfd: peer.bfd.is_some(),
        is_signed: peer.md5.is_some(),
        absent_source: peer.source.filter(|source| !is_own(source)),
    }
}

/// Returns the name and the MTU of an Ethernet interface.
fn link(index: u32) -> Option<(String, u32)> {
    let name = if_indextoname(index).ok()?.into_string().ok()?;
    let found = Interface::read(&name).ok()?;
    Some((name, found.mtu_bytes))
}

/// Returns the addresses of this machine. The flag is `true` for addresses on the loopback
/// interface.
pub(crate) fn own_addresses() -> Vec<(OwnAddress, bool)> {
    getifaddrs().map(|all| all.filter_map(|found| own_address(&found)).collect()).unwrap_or_default()
}

fn own_address(found: &InterfaceAddress) -> Option<(OwnAddress, bool)> {
    let ip = |address: Option<&nix::sys::socket::SockaddrStorage>| {
        let address = address?;
        let v4 = address.as_sockaddr_in().map(|v4| IpAddr::V4(v4.ip()));
        v4.or_else(|| address.as_sockaddr_in6().map(|v6| IpAddr::V6(v6.ip())))
    };
    let address = ip(found.address.as_ref())?;
    let ones = match ip(found.netmask.as_ref())? {
        IpAddr::V4(mask) => mask.to_bits().count_ones(),
        IpAddr::V6(mask) => mask.to_bits().count_ones(),
    };
    // For IPv4 addresses, the kernel returns the address label, such as `eth0:1`, which starts with
    // the interface name.
    let interface = found.interface_name.split(':').next().unwrap_or_default().to_owned();
    let prefix_length = u8::try_from(ones).ok()?;
    let on_loopback = found.flags.contains(InterfaceFlags::IFF_LOOPBACK) && address != Ipv4Addr::LOCALHOST;
    Some((OwnAddress { address, prefix_length, interface }, on_loopback))
}

/// Returns the directory of the admin socket.
fn admin_folder(socket: &AdminSocket) -> Option<AdminFolder> {
    let path = socket.path.parent()?;
    Some(AdminFolder { path: path.to_owned(), state: folder(path), is_asked_for: !socket.is_default })
}

fn folder(path: &Path) -> FolderState {
    match fs::metadata(path) {
        Err(_) => FolderState::Missing,
        Ok(found) if !found.is_dir() => FolderState::NoFolder,
        Ok(_) if access(path, AccessFlags::W_OK | AccessFlags::X_OK).is_err() => FolderState::NotWritable,
        Ok(found) if found.permissions().mode() & (STICKY | OTHERS_WRITE) == OTHERS_WRITE => {
            FolderState::OpenToOthers
        }
        Ok(_) => FolderState::Sound,
    }
}

/// Returns `true` if a process with this name is running.
fn runs(name: &str) -> bool {
    let Ok(processes) = fs::read_dir("/proc") else { return false };
    processes.flatten().any(|process| {
        fs::read_to_string(process.path().join("comm")).is_ok_and(|comm| comm.trim_end() == name)
    })
}

fn number(path: &str) -> Option<u32> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// Returns the soft limit of locked memory in bytes, or `None` if it is unlimited or missing.
fn locked_memory(limits: &str) -> Option<u64> {
    let line = limits.lines().find_map(|line| line.strip_prefix("Max locked memory"))?;
    line.split_whitespace().next()?.parse().ok()
}

/// Returns the word in brackets, which is the active setting in files such as
/// `/sys/kernel/mm/transparent_hugepage/enabled`.
fn chosen(text: &str) -> Option<String> {
    let (_, rest) = text.split_once('[')?;
    rest.split_once(']').map(|(word, _)| word.to_owned())
}

const OTHERS_WRITE: u32 = 0o002;
const STICKY: u32 = 0o1000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_processors_round_trip() {
        for text in ["0-2,8,10-11", "5", "", "0-1,4-5,7"] {
            assert_eq!(super::super::machine::ranges(&listed(text)), text);
        }
    }

    #[test]
    fn the_soft_limit_is_the_first_column() {
        let line = "Limit                     Soft Limit           Hard Limit           Units     \n\
                    Max locked memory         8388608              9999999              bytes     \n";
        assert_eq!(locked_memory(line), Some(8_388_608));
        let none = "Max locked memory         unlimited            unlimited            bytes\n";
        assert_eq!(locked_memory(none), None);
        assert_eq!(locked_memory("Max processes 5 5\n"), None);
    }

    #[test]
    fn the_chosen_word_is_in_brackets() {
        assert_eq!(chosen("always [madvise] never\n").as_deref(), Some("madvise"));
        assert_eq!(chosen("always madvise"), None);
    }

    #[test]
    fn a_loopback_prefix_covers_all_its_addresses() {
        let own = |address: &str, prefix_length| OwnAddress {
            address: address.parse().unwrap(),
            prefix_length,
            interface: "lo".to_owned(),
        };
        for (address, length, on_loopback, vip, expected) in [
            ("203.0.113.10", 32, true, "203.0.113.10", true),
            ("203.0.113.10", 32, true, "203.0.113.11", false),
            ("203.0.113.1", 24, true, "203.0.113.10", true),
            ("203.0.113.1", 24, false, "203.0.113.10", false),
            ("203.0.113.10", 24, false, "203.0.113.10", true),
            ("203.0.113.1", 0, true, "198.51.100.1", true),
            ("2001:db8:f::1", 64, true, "2001:db8:f::10", false),
            ("2001:db8:f::10", 64, true, "2001:db8:f::10", true),
            ("203.0.113.10", 32, true, "2001:db8:f::10", false),
        ] {
            let found = covers(&own(address, length), on_loopback, vip.parse().unwrap());
            assert_eq!(found, expected, "{address}/{length} {on_loopback} {vip}");
        }
    }

    #[test]
    fn subnet_contains_addresses_with_its_prefix() {
        for (address, length, vip, expected) in [
            ("192.0.2.1", 24, "192.0.2.100", true),
            ("192.0.2.1", 25, "192.0.2.128", false),
            ("192.0.2.1", 32, "192.0.2.1", false),
            ("192.0.2.1", 0, "203.0.113.10", true),
            ("2001:db8:2::1", 64, "2001:db8:2::100", true),
            ("2001:db8:2::1", 64, "2001:db8:3::1", false),
            ("2001:db8:2::1", 0, "192.0.2.1", false),
        ] {
            let own = OwnAddress {
                address: address.parse().unwrap(),
                prefix_length: length,
                interface: "eth0".to_owned(),
            };
            let found = is_in_subnet(&own, vip.parse().unwrap());
            assert_eq!(found, expected, "{address}/{length} {vip}");
        }
    }

    #[test]
    fn a_directory_is_judged_by_kind_and_permissions() {
        let base = std::env::temp_dir().join(format!("sluicegate-folder-{}", std::process::id()));
        fs::create_dir_all(&base).unwrap();
        let state = |path: &Path| folder(path);
        fs::set_permissions(&base, fs::Permissions::from_mode(0o755)).unwrap();
        assert_eq!(state(&base), FolderState::Sound);
        fs::set_permissions(&base, fs::Permissions::from_mode(0o777)).unwrap();
        assert_eq!(state(&base), FolderState::OpenToOthers);
        fs::set_permissions(&base, fs::Permissions::from_mode(0o1777)).unwrap();
        assert_eq!(state(&base), FolderState::Sound, "sticky");
        assert_eq!(state(&base.join("none")), FolderState::Missing);
        fs::write(base.join("file"), "").unwrap();
        assert_eq!(state(&base.join("file")), FolderState::NoFolder);
        fs::remove_dir_all(&base).unwrap();
    }

    #[test]
    fn facts_of_this_process_can_be_read() {
        let host = host();
        assert!(!host.kernel.is_empty() && !host.cpus.is_empty());
        let own = fs::read_to_string("/proc/self/comm").unwrap();
        assert!(runs(own.trim_end()) && !runs("no process has this name"));
    }
}
