//! The network testbed for integration tests.
//!
//! A testbed consists of unnamed network namespaces, veth links and real balancer processes. A test
//! describes the testbed with a [`BedSpec`], and then sends requests and frames and starts
//! processes on each [`Host`]. A testbed can also contain real router daemons. The testbed does not
//! evaluate results: this is the task of the tests and of `cargo xtask demo`.
//!
//! Every child process ends with the thread that started it, so a killed test leaves no process or
//! namespace behind. All traffic stays inside the namespaces. Addresses are from ranges for
//! documentation and benchmarks. The testbed needs root, `ip`, `ethtool` and `setpriv`.
#![forbid(unsafe_code)]

mod balancer;
mod bed;
mod capture;
mod config;
mod counters;
mod decap;
mod decode;
mod downloads;
mod fragments;
mod frame;
mod generated;
mod http_client;
mod http_server;
mod link;
mod load_generator;
mod manager;
mod memcached;
mod namespace;
mod pages;
mod pcap;
mod process;
mod query_client;
mod router;
mod router_config;
mod stall;
mod temp;
mod tunnels;
mod udp;
mod udp_flows;
mod udp_inbox;
mod wait;

pub use balancer::{Balancer, Farewell, binary};
pub use bed::{Bed, BedSpec, Host, VIP_V4, VIP_V6};
pub use capture::{Capture, Captured, inject};
pub use config::{Encapsulation, LbConfig, PoolMember, Service};
pub use counters::Counters;
pub use decap::Decap;
pub use decode::{Frame, Ip, Kind, Outer, hex};
pub use downloads::{Download, Downloads};
pub use fragments::{cut, join, may_be_cut};
pub use frame::FrameSpec;
pub use generated::{WRITE_DOCS, code_cell, generated_page};
pub use http_client::{Client, Connection, Failure, Response};
pub use http_server::HttpServer;
pub use link::{Device, DeviceCounts, Veth, device_counts, mac_of, take_in};
pub use load_generator::{Flood, flood, send_at};
pub use manager::Manager;
pub use memcached::{MEMCACHED_PORT, start_memcached, start_memcached_at, start_memcached_at_port};
pub use namespace::Namespace;
pub use pages::{Section, other_commands, sections};
pub use pcap::{read_pcap, write_pcap};
pub use process::{Ended, Line, Process, Stream};
pub use query_client::QueryClient;
pub use router::{Router, RouterKind};
pub use router_config::{
    CLUSTER_ASN, FRR_BFDD, ROUTER_ASN, ROUTER_KEY, RouterSession, config as router_config,
};
pub use stall::Stall;
pub use temp::TempDir;
pub use tunnels::Tunnels;
pub use udp::{UdpReply, UdpServer, udp_ask};
pub use udp_flows::UdpFlows;
pub use udp_inbox::{Received, UdpInbox, digest};
pub use wait::eventually;
