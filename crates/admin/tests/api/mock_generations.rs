//! Configurations and generations of the mock.

use std::time::Duration;

use admin::ReloadTerms;
use admin::view::*;

/// Describes the conditions of a reload.
pub(crate) fn on(terms: &ReloadTerms) -> String {
    let confirm = terms.confirm.map(|within| format!(", to be confirmed in {within:?}")).unwrap_or_default();
    format!("{confirm}{}", if terms.force { ", by force" } else { "" })
}

pub(crate) fn report() -> ReloadReport {
    ReloadReport {
        generation: 8,
        took_ms: 12.5,
        changed: vec!["backend b3 comes into pool web".into()],
        needs_restart: vec!["io.batch: 64 -> 32".into()],
        warnings: vec!["pool.web: no check".into()],
        confirmation: None,
    }
}

pub(crate) fn confirmed(report: ReloadReport, terms: &ReloadTerms) -> ReloadReport {
    let row = |within: Duration| ConfirmationRow {
        generation: report.generation,
        returns_to: 7,
        ends_in_seconds: within.as_secs_f64(),
    };
    ReloadReport { confirmation: terms.confirm.map(row), ..report }
}

fn generations() -> Vec<GenerationRow> {
    let row = |generation, cause, by: Option<&str>| GenerationRow {
        generation,
        unix_seconds: 1_700_000_000 + 60 * generation,
        cause,
        by: by.map(str::to_owned),
        sha256: generation.to_string().repeat(64),
        bytes: 1_234,
        in_force: generation == 7,
    };
    let put = row(6, GenerationCause::Put, Some("CN=carol [192.0.2.9]:4000"));
    vec![row(5, GenerationCause::Start, None), put, row(7, GenerationCause::Sighup, None)]
}

pub(crate) fn kept(generation: u64) -> Result<GenerationRow, Refusal> {
    let found = generations().into_iter().find(|row| row.generation == generation);
    found.ok_or_else(|| Refusal::new(RefusalKind::NotFound, format!("generation {generation} is not kept")))
}

pub(crate) fn put(text: &str, if_match: Option<&str>) -> Result<ReloadReport, Refusal> {
    if if_match.is_some_and(|tag| tag != entity_tag("b00t", 7)) {
        return Err(Refusal::new(RefusalKind::Stale, "generation 7 is in force"));
    }
    if text.contains("wrong") {
        let problem = ProblemView {
            severity: Severity::Error,
            file: "put".into(),
            line: Some(1),
            column: Some(2),
            field: "wrong".into(),
            message: "unknown key \"wrong\"".into(),
            help: Some("known keys: schema".into()),
        };
        let whole = ProblemView { line: None, column: None, field: String::new(), ..problem.clone() };
        let mut refusal = Refusal::new(RefusalKind::Invalid, "2 problems");
        refusal.problems = vec![problem, whole];
        return Err(refusal);
    }
    if text == SAME {
        return Ok(ReloadReport { generation: 7, changed: Vec::new(), ..report() });
    }
    Ok(report())
}

/// The current configuration.
const SAME: &str = "schema = 1\n";

pub(crate) fn config() -> ConfigView {
    ConfigView {
        etag: entity_tag("b00t", 7),
        sha256: "0".repeat(64),
        source: ConfigSource::File,
        files: vec![ConfigText { path: "/etc/sluicegate/sluicegate.toml".into(), text: SAME.into() }],
    }
}

pub(crate) fn history() -> HistoryView {
    HistoryView { generations: generations() }
}

pub(super) fn vip_change(action: VipAction, vips: Vec<AnnouncedVip>) -> VipChange {
    let given = VipOverrideRow {
        vip: "www".into(),
        action,
        since_seconds: 0.0,
        by: "uid 0".into(),
        reason: Some("a new resolver".into()),
        ends_in_seconds: 60.0,
    };
    VipChange { vips, overrides: vec![given], notes: vec!["lost at a restart".into()] }
}
