//! The operator's side of the admin API: the verbs that ask a running balancer, and how their answers are printed.
//!
//! In: a verb's arguments, as the operator typed them. Out: rows of the API as tables or JSON, and the verb's exit code.
//! [`Client`] is the one way to the balancer, [`show`], [`table`](table()) and [`out!`] the one way to print, [`Failure`] the one way to
//! end without an answer, also for verbs elsewhere. A verb is a function, named as it is typed, over what `clap` read of it; those of
//! `config` that ask are in [`live_config`].
//! Not here: what an answer is made of (`admin` has the rows, the daemon fills them), verbs that need no daemon.
//! Invariant: nothing of the balancer's but rows of its API, and its file only for where its socket is.
//!
//! ```
//! let rows = [["b1".to_owned(), "7".to_owned()]];
//! assert_eq!(admin_client::table(["name", ">packets"], rows), "NAME  PACKETS\nb1          7\n");
//! ```

#![forbid(unsafe_code)]
// They panic when the pipe is closed: `out` does not.
#![deny(clippy::print_stdout, clippy::print_stderr)]

mod capture;
mod client;
mod events;
mod failure;
mod hot_keys;
// A name space: its `get`, `put` and `reload` say little without it.
pub mod live_config;
mod log_level;
mod operate;
mod out;
mod routers;
mod signals;
mod status;
mod table;
mod top;

pub use capture::{Arguments as CaptureArguments, capture};
pub use client::{Client, Common, Reach, escape, patience};
pub use events::{Arguments as EventsArguments, events};
pub use failure::{Failure, tell, tell_unread, usage, verdict};
pub use hot_keys::{KvVerb, kv};
pub use log_level::{LogVerb, log};
pub use operate::{BackendVerb, FlowVerb, HealthVerb, VipVerb, backend, flow, health, vip};
pub use out::{create_private, write, write_error};
pub use routers::{BgpVerb, MachineVerb, bgp, machine};
pub use signals::EndSignals;
pub use status::{override_words, status};
pub use table::{ago, clean, json_line, or_dash, print_json, show, table, word};
pub use top::{Arguments as TopArguments, top};
