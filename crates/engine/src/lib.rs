//! The loop of a packet thread, over any device: frames in, verdicts, frames out.
//!
//! In: a [`Device`] (AF_XDP rings and packet sockets are in `datapath`; one over memory is here), the thread's [`Mailboxes`], a
//! forwarder. Out: every frame in exactly one place.
//! Not here: the kernel, the thread, the clock, sleeping (`datapath`); what a packet means (`forwarder`).
//!
//! ```
//! use engine::{Device, MemoryDevice, MemoryFrame};
//! use forwarder::{InterfaceId, ThreadId};
//!
//! let mut device = MemoryDevice::new(8);
//! device.refill(&mut vec![MemoryFrame::new(ThreadId(0), 2_048)]);
//! assert!(device.inject(b"a frame", 24)); // it arrives behind 24 bytes of head room
//! let mut batch = Vec::new();
//! device.receive(&mut batch, 64);
//! let received = batch.remove(0);
//! assert_eq!((received.start, received.end), (24, 31));
//! device.send(received.frame, received.end, InterfaceId(0)).expect("room for a frame");
//! device.transmitted(1, |sent| assert_eq!(sent[24..], *b"a frame"));
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
