//! AF_XDP, or packet sockets: the kernel-facing half of the data plane.
//!
//! In: a snapshot to follow and an interface. Out: packets on their way, counters. Modules: `interface` (what is there),
//! `steer` and `decap` (XDP programs), `umem`, `ring` and `xsk` (frames, rings, sockets), `af_packet` and `ingress` (the same by packet sockets), `thread` and `wake` (who runs the crate
//! `engine`'s loop, and sleeps), `placement` (where threads run), `dataplane` (all of it, started and stopped), `health` (whether it works), `replay` (a
//! thread without a kernel) with `pcap` (its files).
//! Not here: what a packet means (`forwarder`), configuration.
//! Unsafe code of the workspace stands here, since rings, packet memory and system calls are shared with the kernel.
//!
//! ```no_run
//! use datapath::interface::Interface;
//!
//! let interface = Interface::read("eth0")?;
//! println!("{}: {} receive queues, driver {}", interface.name, interface.queues, interface.driver);
//! # Ok::<(), datapath::interface::InterfaceError>(())
//! ```

#![allow(
    unsafe_code,
    reason = "packet memory and rings are shared with the kernel; each block says what it rests on"
)]

mod af_packet;
mod attach;
mod busy_poll;
mod core_dump;
mod dataplane;
mod decap;
mod error;
mod frame;
mod hash_lanes;
mod health;
mod ingress;
pub mod interface;
mod large_pages;
mod long;
mod pcap;
pub mod placement;
mod replay;
mod ring;
mod sleeper;
mod slots;
mod sockets;
pub mod steer;
mod stopping;
mod sync;
mod thread;
mod tun;
mod umem;
mod wake;
mod xsk;

pub use attach::{AttachError, AttachMode};
pub use dataplane::{DataPlane, IoMode, PlaneFacts, Settings, TakenPlane, inspect, inspect_taken};
pub use decap::{ByFamily, Decap, DecapCounts, DecapError, Prefix, host_addresses};
pub use engine::MAX_BATCH;
pub use error::StartError;
pub use frame::Frame;
pub use hash_lanes::lane_hashers;
pub use health::{Health, Problem, Progress, ThreadName};
pub use interface::MAX_INTERFACES;
pub use large_pages::advise_large_pages;
pub use pcap::{CaptureError, CaptureReader, CaptureWriter, CapturedFrame};
pub use replay::{Offered, Replay};
pub use sockets::{LinkCounters, SocketCounters, SocketMode};
pub use thread::Idle;
pub use tun::open_tun;
pub use umem::{CHUNK, LARGEST_CHUNK, XDP_HEADROOM};
pub use wake::Waker;
pub use xsk::XskDevice;
