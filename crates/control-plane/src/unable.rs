//! Tracks health checks that cannot run on this machine, because a port, a file descriptor or a
//! permission is missing.
//!
//! The start and the end of each such failure are logged, and a warning is shown while the failure
//! lasts. The health state of the backend does not change, because a local failure is not a check
//! result.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use config::words::{LogLine, log_lines};
use health::TargetKey;

/// The targets whose checks cannot run, each with the reason and the start time of the failure.
#[derive(Debug, Default)]
pub struct Unable(HashMap<TargetKey, (String, Instant)>);

impl Unable {
    /// Applies changes. Each change has the reason why the check cannot run, or `None` if the check
    /// runs again or was removed.
    pub fn take(&mut self, news: Vec<(TargetKey, Option<String>)>, now: Instant) {
        let (mut failed, mut restored) = (Vec::new(), Vec::new());
        for (target, why) in news {
            let name = (target.address, Arc::clone(&target.check.name));
            match why {
                Some(why) => {
                    failed.push((name, why.clone()));
                    self.0.insert(target, (why, now));
                }
                None if self.0.remove(&target).is_some() => restored.push(name),
                None => {}
            }
        }
        let same_why = is_same(&failed, |(_, why)| why);
        let same_check = is_same(&failed, |((_, check), _)| check);
        for LogLine { names: address, count: targets, first } in
            log_lines(failed, |((address, _), _)| *address)
        {
            let ((_, check), why) = first;
            let check = Some(check).filter(|_| same_check || targets.is_none());
            let why = Some(why).filter(|_| same_why || targets.is_none());
            // log: A health check cannot run on this machine, for example because a file descriptor
            // or a route is missing (see `why`). The last health state stays in effect. If more
            // than eight checks are affected, they share one line, and `targets` is their number.
            // Then `check` and `why` are missing if they differ.
            tracing::error!(address, check = check.as_deref(), targets, why, "health check cannot run");
        }
        let same_check = is_same(&restored, |(_, check)| check);
        for LogLine { names: address, count: targets, first } in log_lines(restored, |(address, _)| *address)
        {
            let check = Some(first.1).filter(|_| same_check || targets.is_none());
            // log: A health check that could not run works again, or a reload removed it.
            tracing::info!(address, check = check.as_deref(), targets, "health check works again");
        }
    }

    /// Returns how many health checks cannot run.
    #[must_use]
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// Returns a sentence about all checks that cannot run, or `None` if there are none. The
    /// sentence names the check with the lowest address as an example.
    #[must_use]
    pub fn warning(&self, now: Instant) -> Option<String> {
        let name = |key: &TargetKey| (key.address, key.check.name.to_string());
        let (key, (why, since)) = self.0.iter().min_by_key(|(key, _)| name(key))?;
        let seconds = now.saturating_duration_since(*since).as_secs();
        let example = format!("check \"{}\" of {} for {seconds} s: {why}", &key.check.name, key.address);
        Some(match self.0.len() {
            1 => format!("a health check cannot run, so its health state does not change ({example})"),
            count => format!(
                "{count} health checks cannot run, so their health states do not change (for example, {example})"
            ),
        })
    }
}

fn is_same<T, P: PartialEq + ?Sized>(changes: &[T], part: impl Fn(&T) -> &P) -> bool {
    let Some((first, others)) = changes.split_first() else { return true };
    others.iter().all(|other| part(other) == part(first))
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::time::Duration;

    use super::*;
    use crate::log_fields::tests::logged;

    fn target(host: u8) -> TargetKey {
        let text = "[cluster]\nname = \"c\"\nhash_key_file = \"k\"\n[machine.lb1]\naddresses = [\"192.0.2.1\"]\n\
                    interfaces = [\"eth0\"]\n[check.web]\ntcp = { port = 80 }\n[pool.p]\nchecks = [\"web\"]\n\
                    backends = [{ name = \"b\", address = \"198.18.0.1\" }]\n";
        let secret = |_: &_| Ok("00112233445566778899aabbccddeeff".to_owned());
        let (config, _) = config::parse(text, Path::new("a.toml"), &secret).unwrap();
        let check = Arc::clone(&config.pools()[0].members[0].checks[0]);
        TargetKey { address: [198, 18, 0, host].into(), check, through: None }
    }

    #[test]
    fn many_checks_that_cannot_run_share_a_log_line() {
        let (mut unable, now) = (Unable::default(), Instant::now());
        let news = |why: Option<&str>| (1..=200).map(|host| (target(host), why.map(str::to_owned))).collect();
        let lines = logged(|| {
            unable.take(news(Some("no port")), now);
            unable.take(news(None), now);
        });
        let [failed, restored] = &lines[..] else { panic!("{} lines", lines.len()) };
        let fields = ["level", "address", "check", "targets", "why"].map(|field| &failed[field]);
        assert_eq!(fields[..3], ["ERROR", "198.18.0.1, 198.18.0.2, 198.18.0.3 and 197 more", "web"]);
        assert_eq!(
            (fields[3], fields[4], &restored["targets"]),
            (&200.into(), &"no port".into(), &200.into())
        );
    }

    #[test]
    fn line_for_different_reasons_has_no_reason() {
        let (mut unable, now) = (Unable::default(), Instant::now());
        let why = |host: u8| Some(if host == 9 { "no port" } else { "no route" }.to_owned());
        let news = (1..=9).map(|host| (target(host), why(host))).collect();
        let lines = logged(|| unable.take(news, now));
        let [line] = &lines[..] else { panic!("{} lines", lines.len()) };
        assert_eq!((line.get("why"), &line["check"]), (None, &"web".into()));
    }

    #[test]
    fn warning_lasts_while_a_check_cannot_run() {
        // A line that is first logged without a subscriber could stay off in other tests.
        logged(warning_lasts);
    }

    fn warning_lasts() {
        let (mut unable, start) = (Unable::default(), Instant::now());
        assert_eq!(unable.warning(start), None);
        unable.take(vec![(target(2), Some("no port".into()))], start);
        let later = start + Duration::from_secs(7);
        let one = "a health check cannot run, so its health state does not change \
                   (check \"web\" of 198.18.0.2 for 7 s: no port)";
        assert_eq!(unable.warning(later).as_deref(), Some(one));
        unable.take(vec![(target(1), Some("not permitted".into())), (target(3), None)], later);
        let two = "2 health checks cannot run, so their health states do not change \
                   (for example, check \"web\" of 198.18.0.1 for 0 s: not permitted)";
        assert_eq!((unable.count(), unable.warning(later).as_deref()), (2, Some(two)));
        unable.take(vec![(target(1), None), (target(2), None)], later);
        assert_eq!((unable.count(), unable.warning(later)), (0, None));
    }
}
