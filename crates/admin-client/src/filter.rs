//! Selects rows of lists with `--vip`, `--pool`, `--state` and `--limit`.
//!
//! The API returns whole lists, and this module selects rows of the response. A name that the
//! balancer does not know is an error, so that a typing error does not look like an empty list.

use std::collections::BTreeSet;

use admin::view::{BackendRow, TargetRow, VipRow};
use clap::Args;
use config::words::count_of;
use serde::Serialize;

use crate::client::Common;
use crate::table::word;

/// The options that select rows by VIP and pool.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct Of {
    /// List only rows of this VIP
    #[arg(long, value_name = "VIP")]
    pub vip: Option<String>,
    /// List only rows of this pool
    #[arg(long, value_name = "POOL")]
    pub pool: Option<String>,
    #[command(flatten)]
    pub most: Most,
}

/// The option that limits the number of rows.
#[derive(Clone, Copy, Debug, Default, Args)]
pub(crate) struct Most {
    /// List at most N rows (default: all)
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    pub limit: Option<usize>,
}

fn at_least_one(text: &str) -> Result<usize, String> {
    text.parse().ok().filter(|limit| *limit > 0).ok_or_else(|| "expected a number from 1".to_owned())
}

impl Most {
    /// Shortens the list. Returns a line about the rows that were left out, or an empty string. The
    /// line counts the rows for which `is_well` returns `false`, because they can be the reason for
    /// the exit code. `fault` describes the rows that do not pass, such as `not ready`.
    pub(crate) fn cut<T>(self, rows: &mut Vec<T>, is_well: impl Fn(&T) -> bool, fault: &str) -> String {
        let cut = self.limit.filter(|limit| rows.len() > *limit);
        let left_out = cut.map(|limit| rows.split_off(limit)).unwrap_or_default();
        if left_out.is_empty() {
            return String::new();
        }
        let faulty = left_out.iter().filter(|row| !is_well(row)).count();
        let faulty = if faulty > 0 { format!(" ({faulty} {fault})") } else { String::new() };
        format!("{} left out{faulty}, raise --limit to list them\n", count_of(left_out.len(), "row"))
    }
}

impl Of {
    /// Returns `true` if rows are selected by VIP or pool.
    pub(crate) fn selects(&self) -> bool {
        self.vip.is_some() || self.pool.is_some()
    }

    /// Selects VIPs. VIPs without a service that uses the pool are left out, and so are the other
    /// services of the remaining VIPs.
    pub(crate) fn vips(&self, rows: &mut Vec<VipRow>) -> anyhow::Result<()> {
        if let Some(vip) = &self.vip {
            rows.retain(|row| row.name == *vip);
            found(rows, "VIP", vip, "vip")?;
        }
        if let Some(pool) = &self.pool {
            for row in rows.iter_mut() {
                row.services.retain(|service| [&service.pool, &service.serving_pool].contains(&pool));
            }
            rows.retain(|row| !row.services.is_empty());
            found(rows, "service of pool", pool, "vip")?;
        }
        Ok(())
    }

    /// Selects backends. A backend of a pool is a backend that this pool lists, or that it contains
    /// through nested pools.
    pub(crate) fn backends(&self, common: &Common, rows: &mut Vec<BackendRow>) -> anyhow::Result<()> {
        let is_in = |row: &BackendRow, pool: &String| row.pool == *pool || row.pools.contains(pool);
        if let Some(pool) = &self.pool {
            rows.retain(|row| is_in(row, pool));
            found(rows, "backend in pool", pool, "backend")?;
        }
        if let Some(vip) = &self.vip {
            let mut vips: Vec<VipRow> = common.get("/v1/vips")?;
            Self { vip: Some(vip.clone()), ..Self::default() }.vips(&mut vips)?;
            let services = vips.into_iter().flat_map(|vip| vip.services);
            let pools: BTreeSet<String> =
                services.flat_map(|service| [service.pool, service.serving_pool]).collect();
            rows.retain(|row| pools.iter().any(|pool| is_in(row, pool)));
        }
        Ok(())
    }

    /// Selects check targets: those of the selected backends, except for checks through other VIPs.
    pub(crate) fn targets(&self, common: &Common, rows: &mut Vec<TargetRow>) -> anyhow::Result<()> {
        if !self.selects() {
            return Ok(());
        }
        let mut backends: Vec<BackendRow> = common.get("/v1/backends")?;
        self.backends(common, &mut backends)?;
        let names: BTreeSet<String> = backends.into_iter().map(|row| row.name).collect();
        rows.retain(|row| row.backends.iter().any(|name| names.contains(name)));
        if let Some(vip) = &self.vip {
            let vips: Vec<VipRow> = common.get("/v1/vips")?;
            let addresses = vips.into_iter().filter(|row| row.name == *vip).flat_map(|row| row.addresses);
            let addresses: BTreeSet<String> = addresses.collect();
            rows.retain(|row| is_for_vip(row, vip, &addresses));
        }
        Ok(())
    }
}

/// Returns `true` if a check applies to a VIP with these addresses. A check that is sent directly
/// applies to all VIPs. Older versions of the daemon send the address of the VIP without its name.
fn is_for_vip(row: &TargetRow, vip: &str, addresses: &BTreeSet<String>) -> bool {
    row.vip.is_none_or(|through| {
        row.vip_name.as_deref() == Some(vip) || addresses.contains(&through.to_string())
    })
}

/// Keeps the rows in one of the states. An empty list of states keeps all rows.
pub(crate) fn in_states<T, S: Serialize>(rows: &mut Vec<T>, states: &[String], state: impl Fn(&T) -> S) {
    rows.retain(|row| states.is_empty() || states.contains(&word(&state(row))));
}

fn found<T>(rows: &[T], what: &str, name: &str, verb: &str) -> anyhow::Result<()> {
    anyhow::ensure!(!rows.is_empty(), "no {what} {name:?}, `sluicegate {verb} list` shows all names");
    Ok(())
}

/// The values of `--state` in each list, which are the states of the API.
pub(crate) const BACKEND_STATES: [&str; 5] = ["serving", "draining", "down", "unknown", "flushing"];
pub(crate) const CHECK_STATES: [&str; 3] = ["up", "down", "unknown"];
pub(crate) const FLOW_STATES: [&str; 7] =
    ["new", "established", "closing", "udp", "midstream", "opened", "reopened"];
pub(crate) const ANNOUNCEMENT_STATES: [&str; 9] = [
    "announced",
    "marked",
    "no_session",
    "not_carried",
    "sending",
    "held_down",
    "withdrawn",
    "draining",
    "not_configured",
];

#[cfg(test)]
mod tests {
    use admin::view::{AnnouncementState, BackendState, CheckState, FlowState};
    use serde::de::DeserializeOwned;
    use serde_json::json;

    use super::*;

    /// Returns the names of all variants, which the error about an unknown variant lists.
    fn variants<S: DeserializeOwned>() -> Vec<String> {
        let error = serde_json::from_value::<S>(json!("?")).err().unwrap().to_string();
        error.split('`').skip(3).step_by(2).map(str::to_owned).collect()
    }

    #[test]
    fn left_out_rows_that_are_not_well_are_counted() {
        let cut = |limit, mut rows: Vec<bool>| {
            (Most { limit: Some(limit) }.cut(&mut rows, |is_well| *is_well, "not ready"), rows.len())
        };
        assert_eq!(cut(2, vec![true, false]), (String::new(), 2));
        assert_eq!(
            cut(1, vec![true, false, true]),
            ("2 rows left out (1 not ready), raise --limit to list them\n".to_owned(), 1)
        );
        assert_eq!(cut(1, vec![false, true]), ("1 row left out, raise --limit to list them\n".to_owned(), 1));
    }

    #[test]
    fn checks_through_a_vip_of_a_prefix_group_are_selected_by_name() {
        let row = |vip_name: Option<&str>| TargetRow {
            backends: vec!["b1".to_owned()],
            address: ([198, 18, 1, 1], 80).into(),
            check: "web".to_owned(),
            via: admin::view::Via::Vip,
            vip: Some("2001:db8:e::20".parse().unwrap()),
            vip_name: vip_name.map(str::to_owned),
            state: CheckState::Up,
            since_seconds: 0.0,
            passes: 0,
            failures: 0,
            last_error: None,
            last_error_seconds: None,
            latency_us: None,
            history: Vec::new(),
        };
        let addresses = ["203.0.113.10", "edge ::20/72"].map(str::to_owned).into();
        let found = [Some("www"), Some("api"), None].map(|name| is_for_vip(&row(name), "www", &addresses));
        assert_eq!(found, [true, false, false]);
        assert!(is_for_vip(&TargetRow { vip: None, ..row(None) }, "www", &addresses));
    }

    #[test]
    fn every_state_of_the_api_can_be_selected() {
        assert_eq!(variants::<BackendState>(), BACKEND_STATES);
        assert_eq!(variants::<CheckState>(), CHECK_STATES);
        assert_eq!(variants::<FlowState>(), FLOW_STATES);
        assert_eq!(variants::<AnnouncementState>(), ANNOUNCEMENT_STATES);
    }
}
