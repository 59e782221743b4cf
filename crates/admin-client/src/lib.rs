//! Implements the subcommands that query a running balancer, and the output functions that all
//! subcommands use.
//!
//! Each command has a function of the same name, such as [`backend`], which takes the parsed
//! arguments. The subcommands of `config` are in [`live_config`]. Other crates also use [`Client`]
//! for requests, [`show`], [`table`](table()) and [`out!`] for output, and [`Failure`] for errors
//! with an exit code. Subcommands that need no daemon are in the crate `sluicegate`.
//!
//! This crate gets all its data through the admin API, over the Unix socket or from another
//! machine. A configuration file is read only to find the path of the admin socket.
//!
//! ```
//! let rows = [["b1".to_owned(), "7".to_owned()]];
//! assert_eq!(admin_client::table(["name", ">packets"], rows), "NAME  PACKETS\nb1          7\n");
//! ```

#![forbid(unsafe_code)]
// `print!` and `eprint!` panic on a closed pipe, but the macros of the module `out` do not.
#![deny(clippy::print_stdout, clippy::print_stderr)]

mod capture;
mod client;
mod events;
mod failure;
mod filter;
mod hot_keys;
// This module is public, so that callers write `live_config::get`. Without the module name,
// function names such as `get`, `put` and `reload` would be unclear.
pub mod live_config;
mod log_level;
mod operate;
mod out;
mod routers;
mod signals;
mod status;
mod table;
mod top;
mod vip_overrides;
mod vips;

pub use capture::{Arguments as CaptureArguments, capture};
pub use client::{Client, Common, Endpoint, Reach, Remote, escape, patience};
pub use events::{Arguments as EventsArguments, events};
pub use failure::{Failure, tell, tell_unread, usage, verdict};
pub use hot_keys::{KvVerb, kv};
pub use log_level::{LogVerb, log};
pub use operate::{BackendVerb, FlowVerb, HealthVerb, backend, flow, health};
pub use out::{create_private, file_or_stdin, write, write_error};
pub use routers::{BgpVerb, MachineVerb, bgp, machine};
pub use signals::EndSignals;
pub use status::{override_words, status};
pub use table::{ago, clean, json_line, or_dash, print_json, show, table, word};
pub use top::{Arguments as TopArguments, top};
pub use vips::{VipVerb, vip};
