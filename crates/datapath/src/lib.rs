//! AF_XDP: the kernel-facing half of the data plane.
//!
//! In: a snapshot to follow and an interface. Out: packets on their way, counters. Rooms: `interface` (what is there),
//! `steer` and `decap` (XDP programs), `umem` and `xsk` (frames and rings), `mailbox` and `wake` (between threads),
//! `engine` and `thread` (the loop), `dataplane` (all of it, started and stopped),
//! `health` (whether it works).
//! Not here: what a packet means (`forwarder`), configuration.
//! Unsafe code of the workspace stands here, since rings, packet memory and system calls are shared with the kernel.

#![allow(
    unsafe_code,
    reason = "packet memory and rings are shared with the kernel; each block says what it rests on"
)]

mod attach;
mod dataplane;
pub mod decap;
mod device;
mod engine;
mod error;
mod frame;
mod health;
pub mod interface;
mod long;
mod mailbox;
mod memory;
pub mod pcap;
mod sleeper;
mod slots;
pub mod steer;
mod sync;
mod thread;
pub mod tun;
mod umem;
mod wake;
mod xsk;

pub use attach::{AttachError, AttachMode};
pub use dataplane::{DataPlane, Settings, inspect};
pub use device::{Device, InKernel, Received, TxOwner};
pub use engine::{Census, Engine, MAX_BATCH, Notify, Pool};
pub use error::StartError;
pub use frame::Frame;
pub use health::{Health, Problem, Progress};
pub use interface::MAX_INTERFACES;
pub use mailbox::{Crossing, Mailboxes, Purpose, mesh};
pub use memory::{MemoryDevice, MemoryFrame};
pub use thread::{Idle, LinkCounters, SocketCounters};
pub use umem::{CHUNK, LARGEST_CHUNK, XDP_HEADROOM};
pub use wake::Waker;
pub use xsk::{SocketMode, XskDevice};
