//! Compares the Prometheus rules and the Grafana dashboard of the repository with the catalogue.
//!
//! `config/alerts.test.yml` tests under which conditions the alert rules fire.

use std::collections::BTreeSet;

use serde_json::Value;

use counters::Kind;

use super::catalogue;

const ALERTS: &str = include_str!("../../../../config/alerts.yml");
const ALERT_TESTS: &str = include_str!("../../../../config/alerts.test.yml");
const DASHBOARD: &str = include_str!("../../../../config/grafana-dashboard.json");

/// Returns the names of all series. A histogram has three series.
fn series() -> BTreeSet<String> {
    let names = catalogue::all().into_iter().flat_map(|metric| {
        let parts: &[&str] =
            if metric.kind == Kind::Histogram { &["_bucket", "_sum", "_count"] } else { &[""] };
        parts.iter().map(move |part| format!("{}{part}", metric.name))
    });
    names.collect()
}

/// Returns the words that start with the product prefix.
fn named(text: &str) -> BTreeSet<String> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    words.filter(|word| word.starts_with("sluicegate_")).map(str::to_owned).collect()
}

fn values<'a>(text: &'a str, key: &str) -> BTreeSet<&'a str> {
    let rest = text.split(key).skip(1);
    rest.filter_map(|rest| rest.split([',', '\n', ' ', '}']).find(|word| !word.is_empty())).collect()
}

#[test]
fn alert_rules_use_metrics_that_exist() {
    for text in [ALERTS, ALERT_TESTS] {
        let unknown: Vec<_> = named(text).difference(&series()).cloned().collect();
        assert!(!named(text).is_empty() && unknown.is_empty(), "{unknown:?}");
    }
}

#[test]
fn every_alert_rule_has_a_test() {
    let (rules, tested) = (values(ALERTS, "alert: "), values(ALERT_TESTS, "alertname: "));
    assert!(rules.len() >= 11, "{rules:?}");
    assert_eq!(rules, tested);
}

#[test]
fn alert_rules_name_drop_reasons_that_exist() {
    let reasons = [counters::PIPELINE_DROPS, counters::DRIVER_DROPS].concat();
    let left_out = ALERTS.split_once("reason!~\"").unwrap().1.split_once('"').unwrap().0;
    for reason in left_out.split('|') {
        assert!(reasons.contains(&reason), "{reason}");
    }
}

#[test]
fn dashboard_metrics_and_labels_exist() {
    let dashboard: Value = serde_json::from_str(DASHBOARD).unwrap();
    let (mut expressions, mut formats) = (BTreeSet::new(), BTreeSet::new());
    collect(&dashboard, &mut expressions, &mut formats);
    let known = series();
    for expression in &expressions {
        let unknown: Vec<_> = named(expression).difference(&known).cloned().collect();
        assert!(!named(expression).is_empty() && unknown.is_empty(), "{expression}: {unknown:?}");
    }
    assert!(expressions.len() >= 20, "{}", expressions.len());
    let labels: BTreeSet<&str> = catalogue::all().iter().flat_map(|metric| metric.labels).copied().collect();
    for label in formats.iter().flat_map(|format| format.split("{{").skip(1)) {
        let label = label.split("}}").next().unwrap();
        assert!(labels.contains(label) || ["instance", "le"].contains(&label), "{label}");
    }
}

#[test]
fn dashboard_panels_are_described_and_do_not_overlap() {
    let dashboard: Value = serde_json::from_str(DASHBOARD).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    let mut taken = BTreeSet::new();
    for panel in panels {
        assert!(panel["title"].as_str().is_some_and(|title| !title.is_empty()), "{panel}");
        assert!(panel["type"] == "row" || panel["description"].is_string(), "{panel}");
        let at = |key: &str| panel["gridPos"][key].as_u64().unwrap();
        for (x, y) in
            (at("x")..at("x") + at("w")).flat_map(|x| (at("y")..at("y") + at("h")).map(move |y| (x, y)))
        {
            assert!(x < 24 && taken.insert((x, y)), "{} overlaps at {x}, {y}", panel["title"]);
        }
    }
    let ids: BTreeSet<u64> = panels.iter().filter_map(|panel| panel["id"].as_u64()).collect();
    assert_eq!(ids.len(), panels.len());
}

#[test]
fn dashboard_shows_bgp_and_differing_machines() {
    for name in [
        "sluicegate_bgp_session_up",
        "sluicegate_bgp_announced_routes",
        "sluicegate_bfd_session_up",
        "sluicegate_vip_announced",
        "sluicegate_vip_withdrawals_total",
        "sluicegate_config_info",
        "sluicegate_tables_digest",
    ] {
        assert!(named(DASHBOARD).contains(name), "{name}");
    }
}

fn collect(value: &Value, expressions: &mut BTreeSet<String>, formats: &mut BTreeSet<String>) {
    match value {
        Value::Object(map) => {
            for (key, value) in map {
                match (key.as_str(), value.as_str()) {
                    ("expr" | "query" | "definition", Some(text)) if text != "prometheus" => {
                        expressions.insert(text.to_owned());
                    }
                    ("legendFormat", Some(text)) => {
                        formats.insert(text.to_owned());
                    }
                    _ => collect(value, expressions, formats),
                }
            }
        }
        Value::Array(list) => list.iter().for_each(|value| collect(value, expressions, formats)),
        _ => {}
    }
}
