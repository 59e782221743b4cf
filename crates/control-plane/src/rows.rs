//! The border: what the control plane knows becomes rows of the admin API.
//!
//! In: the announcer, the controller, packet threads' explanations, problems of files. Out: row types of `admin`.
//! Invariant: no other module of this crate names a row type.

mod announcer;
mod controller;
mod digest;
mod explained;
mod hot_keys;
mod log_orders;
mod orders;
mod questions;
mod refusal;
mod reload;
pub mod trace_report;

pub use self::announcer::{services_seen, stage_shown};
pub use self::controller::{count_vips, shown};
pub use self::explained::{explained, explained_by_key, where_backend};
pub use self::hot_keys::hot_keys_view;
pub use self::questions::{CaptureBegun, locate_key};
pub use self::refusal::problem_row;
pub use self::reload::texts;
