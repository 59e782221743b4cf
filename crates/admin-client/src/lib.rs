//! The operator's side of the admin API: the verbs that ask a running balancer, and how their answers are printed.
//!
//! In: a verb's arguments, as the operator typed them. Out: rows of the API as tables or JSON, and the verb's exit code.
//! `client` is the one way to the balancer, `table` and `out` the one way to print, `failure` the one way to end without an answer,
//! also for verbs elsewhere. A verb is a module: `status`, `events`, `top`, `operate` (backends, VIPs, checks, flows), `routers`,
//! `live_config`, `log_level`, `hot_keys` (`kv top`), `capture`.
//! Not here: what an answer is made of (`admin` has the rows, the daemon fills them), verbs that need no daemon.
//! Invariant: nothing of the balancer's but rows of its API, and its file only for where its socket is.
//!
//! ```
//! let rows = [["b1".to_owned(), "7".to_owned()]];
//! assert_eq!(admin_client::table::table(["name", ">packets"], rows), "NAME  PACKETS\nb1          7\n");
//! ```

#![forbid(unsafe_code)]
// They panic when the pipe is closed: `out` does not.
#![deny(clippy::print_stdout, clippy::print_stderr)]

pub mod capture;
pub mod client;
pub mod events;
pub mod failure;
pub mod hot_keys;
pub mod live_config;
pub mod log_level;
pub mod operate;
pub mod out;
pub mod routers;
pub mod signals;
pub mod status;
pub mod table;
pub mod top;
