//! Verdicts of health checks, and servers that are emptied, as lines of the log, under the target `health`.
//!
//! In: verdicts that turned, what came of emptying servers, and the controller that knows the names behind a target. Out: a line each: down is a warning, up is
//! information. Not here: what follows from a verdict (`controller`).

use config::words::{count_of, few};
use health::{Flush, Flushed, HealthState, StateChange, TargetKey};

use crate::controller::Controller;
use compile::SlotKey;

/// Logs a line for each; of very many at once, for the first 64 and for the number of the others.
pub fn log_changes(controller: &Controller, turned: &[StateChange]) {
    for one in turned.iter().take(LINES) {
        line(controller, one);
    }
    if let Some(more) = turned.len().checked_sub(LINES).filter(|more| *more > 0) {
        let more = count_of(more, "more verdict");
        tracing::warn!(target: "health", change = "backend", "{more} turned at once: `sluicegate health list` has them all");
    }
}

fn line(controller: &Controller, turned: &StateChange) {
    let affected = controller.affected(&turned.key);
    let backend = few(&affected.backends);
    let (pool, vip) = (few(&affected.pools), vips(&affected.vips, &turned.key));
    let (address, check) = (turned.key.address, &turned.key.check.name);
    match turned.state {
        HealthState::Down => {
            let reason = turned.why.as_deref().unwrap_or("no attempt passed");
            tracing::warn!(
                target: "health", change = "backend", %backend, %address, %pool, %vip, %check, reason, "a backend is down"
            );
        }
        HealthState::Up => {
            let reason = "its check passes";
            tracing::info!(
                target: "health", change = "backend", %backend, %address, %pool, %vip, %check, reason, "a backend is up"
            );
        }
        HealthState::Unknown => {}
    }
}

/// Logs servers that begin to be emptied.
pub fn log_flushes(controller: &Controller, begun: &[Flush]) {
    for (key, server) in
        begun.iter().take(LINES).filter_map(|one| Some((controller.flushed_for(one.number)?.0, one.server)))
    {
        let SlotKey { backend, pool, .. } = key;
        tracing::info!(
            target: "health", change = "backend", %backend, %pool, %server, "a backend was away: it is emptied before it serves again"
        );
    }
}

/// Logs what came of emptying servers, before the controller takes it in: a failure when it is another than the last.
pub fn log_flushed(controller: &Controller, outcomes: &[Flushed]) {
    for Flushed { number, result } in outcomes.iter().take(LINES) {
        let Some((SlotKey { backend, pool, address, .. }, before)) = controller.flushed_for(*number) else {
            continue;
        };
        match result {
            Ok(()) => tracing::info!(
                target: "health", change = "backend", %backend, %pool, %address, "a backend that was away is empty"
            ),
            Err(reason) if before.last_error.as_ref() != Some(reason) => tracing::warn!(
                target: "health", change = "backend", %backend, %pool, %address, reason, "a backend can't be emptied, and does not serve before it is"
            ),
            Err(_) => {}
        }
    }
}

/// A check through the tunnel is of one VIP's address.
fn vips(names: &std::collections::BTreeSet<std::sync::Arc<str>>, key: &TargetKey) -> String {
    match &key.through {
        Some(through) => through.vip.to_string(),
        None => few(names),
    }
}

const LINES: usize = 64;

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::{Arc, Mutex};
    use std::time::Duration;

    use config::parse;

    use super::*;

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

    /// What is logged meanwhile, as JSON.
    fn logged(act: impl FnOnce()) -> Vec<serde_json::Value> {
        let log = Arc::new(Mutex::new(Vec::new()));
        let written = Arc::clone(&log);
        let writer = move || Written(Arc::clone(&written));
        let subscriber = tracing_subscriber::fmt().json().flatten_event(true).with_writer(writer).finish();
        tracing::subscriber::with_default(subscriber, act);
        let text = String::from_utf8(log.lock().unwrap().clone()).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    struct Written(Arc<Mutex<Vec<u8>>>);

    impl std::io::Write for Written {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_verdict_names_backend_pool_vip_and_reason_and_down_is_a_warning() {
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
        for (line, (check, vip)) in lines.iter().zip([("web", "www"), ("through", "203.0.113.1")]) {
            let fields =
                ["level", "target", "backend", "pool", "vip", "check", "reason"].map(|key| &line[key]);
            assert_eq!(fields, ["WARN", "health", "b1", "p", vip, check, "connection refused"]);
        }
        let lines = logged(|| log_changes(&controller, &turned(HealthState::Up, None)));
        assert_eq!((&lines[0]["level"], &lines[0]["message"]), (&"INFO".into(), &"a backend is up".into()));
        let many: Vec<StateChange> = down.iter().cycle().take(LINES + 9).cloned().collect();
        let lines = logged(|| log_changes(&controller, &many));
        assert_eq!(lines.len(), LINES + 1);
        assert!(lines[LINES]["message"].as_str().unwrap().starts_with("9 more verdicts turned at once"));
    }
}
