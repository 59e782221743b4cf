//! Connects the packet threads to the kernel with AF_XDP sockets, packet sockets and BPF programs.
//! The crate `forwarder` processes the packets. The crate `engine` contains the main loop of a
//! packet thread.
//!
//! [`DataPlane`] starts and stops programs, sockets and threads together, and [`Health`] reports
//! their problems. The module [`interface`] reads properties of network interfaces. The module
//! [`steer`] and the type [`Decap`] load the BPF programs. [`Replay`] runs a packet thread on
//! capture files, without sockets.
//!
//! This crate contains almost all unsafe code of the workspace, because rings and packet memory are
//! shared with the kernel.
//!
//! ```no_run
//! use datapath::interface::Interface;
//!
//! let interface = Interface::read("eth0")?;
//! println!("{}: {} queues, driver {}", interface.name, interface.queues, interface.driver);
//! # Ok::<(), datapath::interface::InterfaceError>(())
//! ```

#![allow(
    unsafe_code,
    reason = "packet memory and rings are shared with the kernel; each block states why it is sound"
)]

mod af_packet;
mod attach;
mod busy_poll;
mod close_on_exec;
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
mod mapping;
mod pcap;
pub mod placement;
mod replay;
mod ring;
mod sleeper;
mod slots;
mod sockets;
mod spin;
pub mod steer;
mod stopping;
mod sync;
mod thread;
mod tun;
mod umem;
mod wait;
mod wake;
mod xsk;

pub use attach::{AttachError, AttachMode};
pub use close_on_exec::set_close_on_exec;
pub use dataplane::{DataPlane, IoMode, PlaneFacts, Settings, TakenPlane, inspect, inspect_taken};
pub use decap::{ByFamily, Decap, DecapCounts, DecapError, Prefix, host_addresses};
pub use engine::MAX_BATCH;
pub use error::StartError;
pub use frame::Frame;
pub use hash_lanes::lane_hashers;
pub use health::{Health, Pause, Problem, Progress, StallReason, ThreadName};
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
