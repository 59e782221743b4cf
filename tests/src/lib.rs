//! The network test bed: real namespaces, real TCP, a real balancer process between them.
//!
//! In: a [`BedSpec`], and the path of a balancer. Out: [`Host`]s in which requests, frames and processes are started, and
//! what they saw; routers beside them. Not here: what a right result is (the tests and `cargo xtask demo` say so).
//! Invariant: namespaces are anonymous, and every child dies with the thread that started it: a killed test leaves nothing.
//! Traffic stays in namespaces made here; addresses are from documentation ranges. Needs root, `ip`, `ethtool`, `setpriv`.
#![forbid(unsafe_code)]

mod asker;
mod balancer;
mod bed;
mod blast;
mod capture;
mod config;
mod counters;
mod decap;
mod decode;
mod downloads;
mod frame;
mod http_client;
mod http_server;
mod link;
mod manager;
mod memcached;
mod namespace;
mod pcap;
mod pieces;
mod process;
mod router;
mod router_config;
mod temp;
mod tunnels;
mod udp;
mod udp_flows;
mod udp_inbox;
mod wait;

pub use asker::Asker;
pub use balancer::{Balancer, Farewell, binary};
pub use bed::{Bed, BedSpec, Host, VIP_V4, VIP_V6};
pub use blast::{Flood, blast, send_at};
pub use capture::{Capture, Captured, inject};
pub use config::{Encapsulation, LbConfig, PoolMember, Service};
pub use counters::Counters;
pub use decap::Decap;
pub use decode::{Frame, Ip, Kind, Outer, hex};
pub use downloads::{Download, Downloads};
pub use frame::FrameSpec;
pub use http_client::{Client, Connection, Failure, Response};
pub use http_server::HttpServer;
pub use link::{Device, DeviceCounts, Veth, device_counts, mac_of, take_in};
pub use manager::Manager;
pub use memcached::{MEMCACHED_PORT, start_memcached, start_memcached_at};
pub use namespace::Namespace;
pub use pcap::{read_pcap, write_pcap};
pub use pieces::{cut, join, may_be_cut};
pub use process::{Ended, Line, Process, Stream};
pub use router::{Router, RouterKind};
pub use router_config::{
    CLUSTER_ASN, FRR_BFDD, ROUTER_ASN, ROUTER_KEY, RouterSession, config as router_config,
};
pub use temp::TempDir;
pub use tunnels::Tunnels;
pub use udp::{UdpReply, UdpServer, udp_ask};
pub use udp_flows::UdpFlows;
pub use udp_inbox::{Received, UdpInbox, digest};
pub use wait::eventually;
