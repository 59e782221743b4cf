//! Targets that this machine cannot ask: no port, no descriptor, no permission.
//!
//! In: the health thread's news of them. Out: a line in the log as one comes and goes, a warning while there is one.
//! Not here: verdicts. They stay: what this machine cannot do says nothing about a backend.

use std::collections::HashMap;
use std::time::Instant;

use health::TargetKey;

/// All of them.
#[derive(Debug, Default)]
pub struct Unable(HashMap<TargetKey, (String, Instant)>);

impl Unable {
    /// Takes news in: why a target can't be asked, or that it was asked again or is watched no more.
    pub fn take(&mut self, news: Vec<(TargetKey, Option<String>)>, now: Instant) {
        for (target, why) in news {
            let (address, check) = (target.address, target.check.name.to_string());
            match why {
                Some(why) => {
                    tracing::error!(%address, check, %why, "a check can't be made, its last verdict stays");
                    self.0.insert(target, (why, now));
                }
                None if self.0.remove(&target).is_some() => {
                    tracing::info!(%address, check, "a check can be made again, or is no more");
                }
                None => {}
            }
        }
    }

    /// How many.
    #[must_use]
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// One sentence for all, with the first by address as the example.
    #[must_use]
    pub fn warning(&self, now: Instant) -> Option<String> {
        let name = |key: &TargetKey| (key.address, key.check.name.to_string());
        let (key, (why, since)) = self.0.iter().min_by_key(|(key, _)| name(key))?;
        let seconds = now.saturating_duration_since(*since).as_secs();
        let count = match self.0.len() {
            1 => "a check can't be made, its last verdict stays".to_owned(),
            count => format!("{count} checks can't be made, their last verdicts stay"),
        };
        Some(format!("{count}: {} of {}, for {seconds} s: {why}", &key.check.name, key.address))
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
    fn a_warning_lasts_as_long_as_a_target_cannot_be_asked() {
        let (mut unable, start) = (Unable::default(), Instant::now());
        assert_eq!(unable.warning(start), None);
        unable.take(vec![(target(2), Some("no port".into()))], start);
        let later = start + Duration::from_secs(7);
        let one = "a check can't be made, its last verdict stays: web of 198.18.0.2, for 7 s: no port";
        assert_eq!(unable.warning(later).as_deref(), Some(one));
        unable.take(vec![(target(1), Some("not permitted".into())), (target(3), None)], later);
        let two =
            "2 checks can't be made, their last verdicts stay: web of 198.18.0.1, for 0 s: not permitted";
        assert_eq!((unable.count(), unable.warning(later).as_deref()), (2, Some(two)));
        unable.take(vec![(target(1), None), (target(2), None)], later);
        assert_eq!((unable.count(), unable.warning(later)), (0, None));
    }
}
