//! Converts the state of the control plane to the response types of the admin API.
//!
//! Invariant: other modules of this crate do not use the response types of `admin`.

mod announced;
mod announcer;
mod controller;
mod digest;
mod explained;
mod hot_keys;
mod log_level_overrides;
mod overrides;
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
