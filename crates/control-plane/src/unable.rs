//! Tracks health checks that cannot run on this machine, because a port, a file descriptor or a
//! permission is missing.
//!
//! The start and the end of each such failure are logged, and a warning is shown while the failure
//! lasts. The health state of the backend does not change, because a local failure is not a check
//! result.

use std::collections::HashMap;
use std::time::Instant;

use health::TargetKey;

/// The targets whose checks cannot run, each with the reason and the start time of the failure.
#[derive(Debug, Default)]
pub struct Unable(HashMap<TargetKey, (String, Instant)>);

impl Unable {
    /// Applies changes. Each change has the reason why the check cannot run, or `None` if the check
    /// runs again or was removed.
    pub fn take(&mut self, news: Vec<(TargetKey, Option<String>)>, now: Instant) {
        for (target, why) in news {
            let (address, check) = (target.address, target.check.name.to_string());
            match why {
                Some(why) => {
                    // log: A health check cannot run on this machine, for example because a file
                    // descriptor or a route is missing (see `why`). The last health state stays in
                    // effect.
                    tracing::error!(%address, check, %why, "health check cannot run");
                    self.0.insert(target, (why, now));
                }
                None if self.0.remove(&target).is_some() => {
                    // log: A health check that could not run works again, or a reload removed it.
                    tracing::info!(%address, check, "health check works again");
                }
                None => {}
            }
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
        let count = match self.0.len() {
            1 => "a health check cannot run and keeps its last result".to_owned(),
            count => format!("{count} health checks cannot run and keep their last results"),
        };
        Some(format!("{count}: \"{}\" of {} for {seconds} s ({why})", &key.check.name, key.address))
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::Arc;
    use std::time::Duration;

    use super::*;

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
    fn warning_lasts_while_a_check_cannot_run() {
        let (mut unable, start) = (Unable::default(), Instant::now());
        assert_eq!(unable.warning(start), None);
        unable.take(vec![(target(2), Some("no port".into()))], start);
        let later = start + Duration::from_secs(7);
        let one =
            "a health check cannot run and keeps its last result: \"web\" of 198.18.0.2 for 7 s (no port)";
        assert_eq!(unable.warning(later).as_deref(), Some(one));
        unable.take(vec![(target(1), Some("not permitted".into())), (target(3), None)], later);
        let two = "2 health checks cannot run and keep their last results: \"web\" of 198.18.0.1 for 0 s (not permitted)";
        assert_eq!((unable.count(), unable.warning(later).as_deref()), (2, Some(two)));
        unable.take(vec![(target(1), None), (target(2), None)], later);
        assert_eq!((unable.count(), unable.warning(later)), (0, None));
    }
}
