//! Logs health state changes and flushes with the log target `health`.
//!
//! Each line contains the names of the backends, pools and VIPs affected by the health check
//! target. A backend that goes down is logged as a warning, and a backend that comes up is logged
//! at level info.

use config::words::few;
use health::{Advice, Flush, Flushed, HealthState, StateChange, TargetKey};
use packet::Family;

use crate::controller::Controller;
use crate::log_fields;
use compile::SlotKey;

/// Logs one line for each changed health state. If more than 64 states change together, an
/// additional line contains the number of the remaining changes.
pub fn log_changes(controller: &Controller, turned: &[StateChange]) {
    for one in turned.iter().take(LINES) {
        line(controller, one);
    }
    if let Some(more) = turned.len().checked_sub(LINES).filter(|more| *more > 0) {
        // log: More than 64 health states changed together. This line contains the number of
        // changes that were not logged individually. Look for a common cause. `sluicegate health
        // list` shows all health states.
        tracing::warn!(target: "health", change = "backend", more, "more health states changed");
    }
}

fn line(controller: &Controller, turned: &StateChange) {
    let affected = controller.affected(&turned.key);
    let backend = few(&affected.backends);
    let (pool, vip) = (few(&affected.pools), few(&affected.vips));
    let family = turned.key.through.as_ref().map(|through| log_fields::family(Family::of(through.vip)));
    let (address, check) = (turned.key.address, &turned.key.check.name);
    match turned.state {
        HealthState::Down => {
            let why = turned.why.as_deref().unwrap_or("no attempt passed");
            // log: A check of a backend failed `fall` times in a row, so the backend is down.
            // Examine the backend. The fields contain the check and the reason, and `sluicegate
            // health list` shows all checks.
            tracing::warn!(
                target: "health", change = "backend", %backend, %address, %pool, %vip, family, %check, why,
                "backend down"
            );
        }
        HealthState::Up => {
            let why = "check passes";
            // log: A check of a backend passed `rise` times in a row. No action is needed.
            tracing::info!(
                target: "health", change = "backend", %backend, %address, %pool, %vip, family, %check, why,
                "backend up"
            );
        }
        HealthState::Unknown => {}
    }
}

/// Logs advice from agents, one line per target.
pub fn log_advice(controller: &Controller, advised: &[(TargetKey, Advice)]) {
    for (key, Advice { drains, tenths }) in advised.iter().take(LINES) {
        let affected = controller.affected(key);
        let (backend, pool) = (few(&affected.backends), few(&affected.pools));
        let (check, weight_percent) = (&key.check.name, u32::from(*tenths) * 10);
        // log: The agent of a backend requests a different weight or a drain, or has replied for
        // the first time. `weight_percent` is relative to the configured weight.
        tracing::info!(
            target: "health", change = "backend", %backend, %pool, %check, weight_percent, drains,
            "agent advice applied"
        );
    }
}

/// Logs the servers whose flush starts now.
pub fn log_flushes(controller: &Controller, begun: &[Flush]) {
    for (key, address) in
        begun.iter().take(LINES).filter_map(|one| Some((controller.flushed_for(one.number)?.0, one.server)))
    {
        let SlotKey { backend, pool, .. } = key;
        // log: A server of a keyed pool with `rejoin = "flush"` was unavailable. The server is
        // flushed before it receives requests again.
        tracing::info!(
            target: "health", change = "backend", %backend, %pool, %address, "flush started"
        );
    }
}

/// Logs the results of flushes. This function must be called before the controller applies the
/// results. If a flush fails repeatedly for the same reason, only the first failure is logged.
pub fn log_flushed(controller: &Controller, outcomes: &[Flushed]) {
    for Flushed { number, result } in outcomes.iter().take(LINES) {
        let Some((SlotKey { backend, pool, address, .. }, before)) = controller.flushed_for(*number) else {
            continue;
        };
        match result {
            // log: A memcached server was flushed and can serve requests again.
            Ok(()) => tracing::info!(
                target: "health", change = "backend", %backend, %pool, %address, "flush completed"
            ),
            // log: A server did not acknowledge `flush_all`, so the server is not used. Examine the
            // server. With `rejoin = "serve"`, servers are used without a flush and may return
            // outdated values.
            Err(error) if before.last_error.as_ref() != Some(error) => tracing::warn!(
                target: "health", change = "backend", %backend, %pool, %address, error, "flush failed"
            ),
            Err(_) => {}
        }
    }
}

const LINES: usize = 64;

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::Arc;
    use std::time::Duration;

    use config::parse;

    use super::*;
    use crate::log_fields::tests::logged;

    const FILE: &str = r#"
[cluster]
name = "c"
hash_key_file = "k"
table_size = 1009
[machine.lb1]
addresses = ["192.0.2.1"]
interfaces = ["eth0"]
[check.web]
tcp = { port = 80 }
[check.through]
tcp = { port = 80 }
via = "vip"
[pool.p]
checks = ["web", "through"]
backends = [{ name = "b1", address = "198.18.0.1" }]
[vip.www]
addresses = ["203.0.113.1"]
services = [{ ports = [80], protocol = "tcp", pool = "p" }]
"#;

    fn controller() -> Controller {
        let secret = |_: &_| Ok("00112233445566778899aabbccddeeff".to_owned());
        let (config, _) = parse(FILE, Path::new("a.toml"), &secret).unwrap();
        Controller::start(Arc::new(config), "lb1", Arc::default(), Duration::ZERO).unwrap().0
    }

    #[test]
    fn down_is_a_warning_with_names_and_reason() {
        let controller = controller();
        let turned = |state, why: Option<&str>| -> Vec<StateChange> {
            let mut watched = controller.watched();
            watched.sort_by_key(|one| one.key.through.is_some());
            let why = why.map(str::to_owned);
            watched.into_iter().map(|one| StateChange { key: one.key, state, why: why.clone() }).collect()
        };
        let down = turned(HealthState::Down, Some("connection refused"));
        let lines = logged(|| log_changes(&controller, &down));
        assert_eq!(lines.len(), 2, "{lines:#?}");
        for (line, (check, vip)) in lines.iter().zip([("web", "www"), ("through", "www")]) {
            let fields = ["level", "target", "backend", "pool", "vip", "check", "why"].map(|key| &line[key]);
            assert_eq!(fields, ["WARN", "health", "b1", "p", vip, check, "connection refused"]);
            assert_eq!(line.get("family").is_some(), check == "through", "{line}");
        }
        let lines = logged(|| log_changes(&controller, &turned(HealthState::Up, None)));
        assert_eq!((&lines[0]["level"], &lines[0]["message"]), (&"INFO".into(), &"backend up".into()));
        let many: Vec<StateChange> = down.iter().cycle().take(LINES + 9).cloned().collect();
        let lines = logged(|| log_changes(&controller, &many));
        assert_eq!(lines.len(), LINES + 1);
        assert_eq!(
            (&lines[LINES]["message"], &lines[LINES]["more"]),
            (&"more health states changed".into(), &9.into())
        );
    }
}
