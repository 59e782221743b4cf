//! Implements the loop of a packet thread for any device. An [`Engine`] receives frames from a
//! [`Device`] and from the [`Mailboxes`] of the thread, calls a forwarder for the verdicts, and
//! executes the verdicts. This crate contains an in-memory device. The crate `datapath` contains
//! AF_XDP rings, packet sockets, threads and the sleep logic.
//!
//! ```
//! use engine::{Device, MemoryDevice, MemoryFrame};
//! use forwarder::{InterfaceId, ThreadId};
//!
//! let mut device = MemoryDevice::new(8);
//! device.refill(&mut vec![MemoryFrame::new(ThreadId(0), 2_048)]);
//! assert!(device.inject(b"a frame", 24)); // 24 bytes of headroom
//! let mut batch = Vec::new();
//! device.receive(&mut batch, 64);
//! let received = batch.remove(0);
//! assert_eq!((received.start, received.end), (24, 31));
//! let bounds = received.start..received.end;
//! device.send(received.frame, bounds, InterfaceId(0)).expect("the transmit ring has room");
//! device.transmitted(1, |sent| assert_eq!(sent, b"a frame"));
//! ```

#![forbid(unsafe_code)]

mod device;
mod engine;
mod mailbox;
mod memory;

pub use device::{Device, InKernel, Received, TxOwner};
pub use engine::{Census, Engine, MAX_BATCH, Notify, Pool};
pub use mailbox::{Crossing, Mailboxes, Purpose, mesh};
pub use memory::{MemoryDevice, MemoryFrame};
