//! The route `/v1/kv/top`, which counts the requests for each key for a few seconds and returns the
//! most requested keys.
//!
//! The route is a `POST` request and needs the role `operate`, because counting takes CPU time on
//! the packet threads, and because the result reveals which keys clients use.

use std::time::Duration;

use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use serde::Deserialize;

use super::app_state::AppState;
use super::command::{Command, HOT_KEYS_AT_MOST, HOT_KEYS_SECONDS_AT_MOST, HotKeysCommand};
use super::guard::AuditRecord;
use super::handlers::{Done, ask, done, out_of_range, query};
use super::view::{HotKeysView, Refusal};

/// The query parameters of the route.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct WhichKeys {
    vip: Option<String>,
    limit: Option<usize>,
    seconds: Option<u64>,
}

impl WhichKeys {
    fn command(self) -> Result<HotKeysCommand, Refusal> {
        let limit = self.limit.unwrap_or(KEYS_USUALLY);
        if !(1..=HOT_KEYS_AT_MOST).contains(&limit) {
            return Err(out_of_range("limit", limit, HOT_KEYS_AT_MOST));
        }
        let seconds = self.seconds.unwrap_or(SECONDS_USUALLY);
        if !(1..=HOT_KEYS_SECONDS_AT_MOST).contains(&seconds) {
            return Err(out_of_range("seconds", seconds, HOT_KEYS_SECONDS_AT_MOST));
        }
        Ok(HotKeysCommand { vip: self.vip, limit, within: Duration::from_secs(seconds) })
    }
}

pub(super) async fn top(
    state: State<AppState>,
    which: Result<Query<WhichKeys>, QueryRejection>,
) -> Result<Done<HotKeysView>, Refusal> {
    let command = query(which)?.0.command()?;
    let of = command.vip.as_ref().map(|name| format!(" of VIP {name}")).unwrap_or_default();
    let words = format!("count keys{of} for {} s", command.within.as_secs());
    let view = ask(&state, |answer| Command::HotKeys { command, answer }).await??;
    Ok(done(AuditRecord::Noted(words), view))
}

const KEYS_USUALLY: usize = 20;
const SECONDS_USUALLY: u64 = 2;
