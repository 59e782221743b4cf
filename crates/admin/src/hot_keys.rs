//! `/v1/kv/top`: the keys that are asked for most, counted while the client waits.
//!
//! In: whose keys, how many, how long. Out: [`Command::HotKeys`], and its answer.
//! Not here: how keys are counted. An order, no question: packet threads do more for it, and it shows what clients ask for.

use std::time::Duration;

use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use serde::Deserialize;

use super::app_state::AppState;
use super::command::{Command, HOT_KEYS_AT_MOST, HOT_KEYS_SECONDS_AT_MOST, HotKeysOrder};
use super::guard::AuditRecord;
use super::handlers::{Done, ask, done, query};
use super::refuse::bad_request;
use super::view::{HotKeysView, Refusal};

/// Which keys, as it stands in the query.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct WhichKeys {
    vip: Option<String>,
    limit: Option<usize>,
    seconds: Option<u64>,
}

impl WhichKeys {
    fn order(self) -> Result<HotKeysOrder, Refusal> {
        let limit = self.limit.unwrap_or(KEYS_USUALLY);
        if !(1..=HOT_KEYS_AT_MOST).contains(&limit) {
            return Err(bad_request(format!("limit={limit}, allowed 1 to {HOT_KEYS_AT_MOST}")));
        }
        let seconds = self.seconds.unwrap_or(SECONDS_USUALLY);
        if !(1..=HOT_KEYS_SECONDS_AT_MOST).contains(&seconds) {
            return Err(bad_request(format!("seconds={seconds}, allowed 1 to {HOT_KEYS_SECONDS_AT_MOST}")));
        }
        Ok(HotKeysOrder { vip: self.vip, limit, within: Duration::from_secs(seconds) })
    }
}

pub(super) async fn top(
    state: State<AppState>,
    which: Result<Query<WhichKeys>, QueryRejection>,
) -> Result<Done<HotKeysView>, Refusal> {
    let order = query(which)?.0.order()?;
    let of = order.vip.as_ref().map(|name| format!(" of VIP {name}")).unwrap_or_default();
    let words = format!("keys{of} counted for {} s", order.within.as_secs());
    let view = ask(&state, |answer| Command::HotKeys { order, answer }).await??;
    Ok(done(AuditRecord::Noted(words), view))
}

const KEYS_USUALLY: usize = 20;
const SECONDS_USUALLY: u64 = 2;
