//! Implements `sluicegate status`, which prints the state of the balancer on one page.

use std::process::ExitCode;

use admin::view::{
    ConfirmationRow, Drift, InterfaceRow, LastReload, OverrideRow, ReloadOutcome, StateTotals, Status,
};
use config::words::count_of;

use crate::client::Common;
use crate::failure::verdict;
use crate::log_level::describe_override;
use crate::table::{ago, clean, word};
use crate::vip_overrides::describe_override as describe_vip_override;

/// Prints the status. The exit code is 1 if the machine or a VIP is not ready, or if a thread, a
/// link, a health check, the last reload or BGP has a problem.
pub fn status(common: &Common) -> anyhow::Result<ExitCode> {
    let status: Status = common.get("/v1/status")?;
    common.show(&status, words)?;
    Ok(verdict(is_well(&status)))
}

fn is_well(status: &Status) -> bool {
    let refused = status.last_reload.as_ref().is_some_and(|last| last.outcome == ReloadOutcome::Refused);
    let checked = status.own_fault.is_none() && status.checks_unable == 0;
    let announced =
        status.bgp.as_ref().is_none_or(|bgp| bgp.established == bgp.peers && bgp.announced == bgp.vips);
    let linked = status.interfaces.iter().all(InterfaceRow::is_well);
    let served = status.vips.ready == status.vips.total;
    status.ready && served && status.forwarder.healthy && linked && checked && !refused && announced
}

fn words(status: &Status) -> String {
    let mut page = Page::default();
    machine(&mut page, status);
    traffic(&mut page, status);
    if let Some(last) = &status.last_reload {
        page.line("last reload", reloaded(last, seconds_since(status, last.unix_seconds)));
    }
    if let Some(row) = &status.confirmation {
        page.line("confirmation", waiting(row));
    }
    for row in &status.overrides {
        page.line("override", overridden(row));
    }
    for row in &status.vip_overrides {
        page.line("override", describe_vip_override(row));
    }
    if let Some(order) = &status.log_level_override {
        page.line("log level", describe_override(order));
    }
    if let Some(why) = &status.own_fault {
        page.line("local failure", format!("health states are frozen: {why}"));
    }
    for setting in &status.needs_restart {
        page.line("next start", setting.clone());
    }
    for warning in &status.warnings {
        page.line("warning", warning.clone());
    }
    page.0
}

/// Formats the result of the last reload and its age.
fn reloaded(last: &LastReload, seconds: f64) -> String {
    let LastReload { outcome, took_ms, message, .. } = last;
    format!("{} {} ago, took {took_ms:.1} ms: {message}", word(outcome), ago(seconds))
}

/// Returns the number of seconds between the Unix timestamp and the time of the response.
#[expect(clippy::cast_precision_loss, reason = "an `f64` is exact for Unix times in seconds")]
fn seconds_since(status: &Status, unix_seconds: u64) -> f64 {
    status.started_unix_seconds as f64 + status.uptime_seconds - unix_seconds as f64
}

/// Prints the machine, interface, process and configuration.
fn machine(page: &mut Page, status: &Status) {
    let Status { version, machine, cluster, interface, mode, xdp_mode, .. } = status;
    page.line(
        "machine",
        format!("{machine} of {cluster}, sluicegate {version}, up {}", ago(status.uptime_seconds)),
    );
    page.lines("ready", if status.ready { "yes" } else { "no" }, &status.not_ready);
    let health = if status.forwarder.healthy { "healthy" } else { "not healthy" };
    page.lines("forwarder", health, &status.forwarder.why);
    let mut threads = count_of(status.threads, "packet thread");
    if status.io_threads > 0 {
        threads += &format!(", {}", count_of(status.io_threads, "I/O thread"));
    }
    page.line("interface", format!("{interface}, {threads}, {mode}, {xdp_mode}"));
    page.line("generation", generation(status));
    let [configuration, tables] = digests(status);
    page.lines("digests", &configuration, &[tables]);
}

/// Prints the states of VIPs, backends and routers.
fn traffic(page: &mut Page, status: &Status) {
    let Status { vips, down: names, .. } = status;
    page.lines("VIPs", &format!("{} of {} ready", vips.ready, vips.total), &status.vip_faults);
    let states = backend_states(status.backends);
    page.lines("backends", &states, &named("down", &names.backends, status.backends.down));
    if let Some(bgp) = status.bgp {
        let (sessions, vips) = (format!("{} of {}", bgp.established, bgp.peers), count_of(bgp.vips, "VIP"));
        let announced = format!("{sessions} with a session, {} of {vips} announced", bgp.announced);
        let without = named("without a session", &names.routers, bgp.peers - bgp.established);
        page.lines("routers", &announced, &without);
    }
}

/// Formats the number of backends in each state. The state `flushing` exists only in keyed pools,
/// so it is printed only if a backend has it.
pub(crate) fn backend_states(totals: StateTotals) -> String {
    let StateTotals { serving, draining, down, unknown, flushing } = totals;
    let flushing = if flushing == 0 { String::new() } else { format!(", {flushing} flushing") };
    format!("{serving} serving, {draining} draining, {down} down, {unknown} unknown{flushing}")
}

/// Formats the given names, and the number of names that are not listed.
pub(crate) fn named(how: &str, names: &[String], all: usize) -> Vec<String> {
    let more = match all.saturating_sub(names.len()) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    if names.is_empty() { Vec::new() } else { vec![format!("{how}: {}{more}", names.join(", "))] }
}

fn generation(status: &Status) -> String {
    let drift = match status.drift {
        Drift::InSync => "in sync with the file",
        Drift::FileChanged => "the file has changed since the last reload",
        Drift::Api => "set through the API, the next reload of the file replaces it",
        Drift::RolledBack => "rolled back, the next reload or restart uses the file again",
    };
    let digest: String = status.generation_sha256.chars().take(12).collect();
    format!("{} (files {digest}) of {}, {drift}", status.generation, status.config_file)
}

/// Formats the pending rollback of an unconfirmed generation.
pub(crate) fn waiting(row: &ConfirmationRow) -> String {
    let ConfirmationRow { generation, returns_to, ends_in_seconds } = row;
    let ends = ago(*ends_in_seconds);
    format!(
        "generation {generation} is rolled back to {returns_to} in {ends} unless `sluicegate config confirm` is run"
    )
}

/// Formats the digest of the configuration and the digest of the tables. Each string states on
/// which machines the digest must be identical.
fn digests(status: &Status) -> [String; 2] {
    let short = |digest: &str| digest.chars().take(12).collect::<String>();
    let tables = status.digests.tables.as_deref().map_or_else(|| "-".to_owned(), short);
    let shard = status.digests.shard.as_deref();
    let whose = shard.map_or_else(|| "cluster".to_owned(), |shard| format!("shard {shard}"));
    [
        format!(
            "configuration {}: must be the same on all machines of the cluster (not compared here)",
            short(&status.digests.configuration)
        ),
        format!("tables {tables}: must be the same on all machines of the {whose} shortly after a change"),
    ]
}

fn overridden(row: &OverrideRow) -> String {
    let reason = row.reason.as_ref().map(|reason| format!(", reason: {reason}")).unwrap_or_default();
    let ends = row.ends_in_seconds.map(|left| format!(", ends in {}", ago(left))).unwrap_or_default();
    let down = row.down_in_seconds.map(|left| format!(", down in {}", ago(left))).unwrap_or_default();
    format!("{}, set {} ago by {}{down}{ends}{reason}", override_words(row), ago(row.since_seconds), row.by)
}

/// Formats an override. The text contains no times, so it is identical on machines with the same
/// overrides.
pub fn override_words(row: &OverrideRow) -> String {
    let pool = row.pool.as_ref().map(|pool| format!(" in {pool}")).unwrap_or_default();
    let state = row.says.state.map(|state| format!(" {}", word(&state))).unwrap_or_default();
    let weight = row.says.weight.map(|weight| format!(" weight {weight}")).unwrap_or_default();
    format!("{}{pool}:{state}{weight}", row.backend)
}

#[derive(Default)]
struct Page(String);

impl Page {
    fn line(&mut self, name: &str, text: String) {
        self.0 += &format!("{name:<12} {}\n", clean(&text));
    }

    fn lines(&mut self, name: &str, text: &str, reasons: &[String]) {
        self.line(name, text.to_owned());
        for reason in reasons {
            self.line("", reason.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use admin::view::{BgpTotals, Override};

    use super::*;

    #[test]
    fn one_thread_is_no_plural_and_what_waits_for_a_start_is_said() {
        let pending = "io.batch: 64 -> 32".to_owned();
        let status = Status { threads: 1, needs_restart: vec![pending], ..Status::default() };
        let page = words(&status);
        assert!(page.contains("interface    , 1 packet thread, ,"), "{page}");
        let page_of_steering = words(&Status { threads: 2, io_threads: 1, ..Status::default() });
        assert!(page_of_steering.contains(", 2 packet threads, 1 I/O thread,"), "{page_of_steering}");
        assert!(page.contains("next start   io.batch: 64 -> 32\n"), "{page}");
        assert!(!words(&Status::default()).contains("next start"));
    }

    #[test]
    fn status_shows_log_level_override() {
        let page = words(&Status { log_level_override: Some(debug_for_ten_minutes()), ..Status::default() });
        assert!(page.contains("log level    debug, set 5s ago by uid 0, ends in 9m55s\n"), "{page}");
        assert!(!words(&Status::default()).contains("log level"));
    }

    #[test]
    fn exit_code_1_has_a_line_that_explains_it() {
        let bgp = BgpTotals { peers: 2, established: 2, vips: 2, announced: 2 };
        let mut well = Status { ready: true, bgp: Some(bgp), ..Status::default() };
        (well.forwarder.healthy, well.vips.total, well.vips.ready) = (true, 2, 2);
        assert!(is_well(&well));
        let refused = LastReload {
            unix_seconds: 0,
            outcome: ReloadOutcome::Refused,
            took_ms: 1.0,
            message: "x".into(),
        };
        type Change<'a> = &'a dyn Fn(&mut Status);
        let changes: [(Change<'_>, &str); 7] = [
            (&|status| (status.ready, status.not_ready) = (false, vec!["eth0 down".into()]), "eth0 down"),
            (
                &|status| (status.vips.ready, status.vip_faults) = (1, vec!["not announced: dl".into()]),
                "VIPs         1 of 2 ready\n             not announced: dl\n",
            ),
            (&|status| status.forwarder.healthy = false, "forwarder    not healthy"),
            (&|status| status.own_fault = Some("x".into()), "local failure"),
            (&|status| status.last_reload = Some(refused.clone()), "last reload  refused"),
            (&|status| status.bgp = Some(BgpTotals { established: 1, ..bgp }), "1 of 2 with a session"),
            (&|status| status.bgp = Some(BgpTotals { announced: 1, ..bgp }), "1 of 2 VIPs announced"),
        ];
        for (change, line) in changes {
            let mut status = well.clone();
            change(&mut status);
            assert!(!is_well(&status) && words(&status).contains(line), "{line}");
        }
    }

    #[test]
    fn reference_page_explains_every_line() {
        let one = || vec![String::from("x")];
        let (by, reason, says) = ("uid 0".to_owned(), None, Override { state: None, weight: Some(5) });
        let (outcome, message) = (ReloadOutcome::Published, String::new());
        let row = OverrideRow {
            backend: "b1".to_owned(),
            pool: None,
            says,
            since_seconds: 5.0,
            by,
            reason,
            ends_in_seconds: None,
            down_in_seconds: None,
        };
        let status = Status {
            bgp: Some(BgpTotals::default()),
            last_reload: Some(LastReload { unix_seconds: 0, outcome, took_ms: 1.0, message }),
            confirmation: Some(ConfirmationRow { generation: 2, returns_to: 1, ends_in_seconds: 9.0 }),
            overrides: vec![row],
            log_level_override: Some(debug_for_ten_minutes()),
            own_fault: Some("x".to_owned()),
            needs_restart: one(),
            warnings: one(),
            ..Status::default()
        };
        let page = include_str!("../../../docs/reference/status.md");
        let rows = page.lines().skip_while(|line| !line.starts_with("## Lines"));
        let rows = rows.take_while(|line| *line != "## Modes").filter_map(|row| row.strip_prefix("| `"));
        let rows: Vec<&str> = rows.filter_map(|row| row.split('`').next()).collect();
        let text = words(&status);
        let lines: Vec<&str> = text.lines().filter(|line| !line.starts_with(' ')).collect();
        assert_eq!(lines.len(), rows.len(), "{text}");
        for (line, name) in lines.into_iter().zip(rows) {
            assert!(
                line.starts_with(&format!("{name:<12} ")),
                "docs/reference/status.md has {name}, not {line}"
            );
        }
    }

    fn debug_for_ten_minutes() -> admin::view::LogLevelOverrideRow {
        admin::view::LogLevelOverrideRow {
            level: admin::view::LogLevel::Debug,
            since_seconds: 5.0,
            by: "uid 0".to_owned(),
            reason: None,
            ends_in_seconds: 595.0,
        }
    }
}
