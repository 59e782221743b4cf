//! Reloads: a request is loaded, compiled and published, one after the other, and nothing of it waits on the control loop.
//!
//! In: SIGHUP, the API, a change of the file. Out: a new generation, or the old one goes on and the asker hears every reason.
//! Invariant: one transaction; what is refused changes nothing.

use std::collections::{HashSet, VecDeque};
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use admin::command::Answer;
use admin::view::{ConfigSource, LastReload, Refusal, RefusalKind, ReloadOutcome, ReloadReport};
use config::words::count_of;
use config::{self, Config, Problems};
use control_plane::compile::destinations;

use super::next_hops::{NextHops, next_hops};

/// Who wants it.
#[derive(Debug)]
pub(super) enum Origin {
    /// SIGHUP, or the file has changed.
    Here(&'static str),
    /// The API: the file again.
    Asked(Answer<Result<ReloadReport, Refusal>>),
    /// The API: this text in the file's place.
    Put(String, Answer<Result<ReloadReport, Refusal>>),
}

/// A reload on its way.
#[derive(Debug)]
pub(super) struct Reload {
    answer: Option<Answer<Result<ReloadReport, Refusal>>>,
    pub(super) why: &'static str,
    pub(super) source: ConfigSource,
    started: Instant,
    live: Option<Instant>,
    /// Once it is read.
    pub(super) loaded: Option<Loaded>,
}

impl Reload {
    /// The new generation has been published.
    pub(super) fn is_live(&mut self) {
        self.live = Some(Instant::now());
    }

    /// From the request to the store; while there is none, until now.
    pub(super) fn took(&self) -> Duration {
        self.live.unwrap_or_else(Instant::now).duration_since(self.started)
    }
}

/// A configuration that is ready to be compiled.
#[derive(Debug)]
pub(super) struct Loaded {
    pub(super) config: Arc<Config>,
    pub(super) warnings: Problems,
    /// Ways to backends that were not known before.
    pub(super) next_hops: NextHops,
}

/// Requests, the one under way, and how the last one ended.
#[derive(Debug, Default)]
pub(super) struct Reloads {
    waiting: VecDeque<Origin>,
    current: Option<Reload>,
    pub(super) last: Option<LastReload>,
}

impl Reloads {
    /// Enters a request. Requests of this machine itself that wait already are one.
    pub(super) fn ask(&mut self, origin: Origin) {
        let same = |other: &Origin| matches!(other, Origin::Here(_));
        if same(&origin) && self.waiting.iter().any(same) {
            return;
        }
        if let Origin::Asked(_) | Origin::Put(..) = &origin
            && self.waiting.len() >= MAX_WAITING
        {
            let refusal = Refusal::new(RefusalKind::Unavailable, "too many reloads wait already");
            let (Origin::Asked(answer) | Origin::Put(_, answer)) = origin else { return };
            let _ = answer.send(Err(refusal)); // an asker who has gone needs no answer
            return;
        }
        self.waiting.push_back(origin);
    }

    /// Begins the next one if none is under way: gives the text to read, `None` within for the file.
    pub(super) fn begin(&mut self) -> Option<Option<String>> {
        if self.current.is_some() {
            return None;
        }
        let (why, source, text, answer) = match self.waiting.pop_front()? {
            Origin::Here(why) => (why, ConfigSource::File, None, None),
            Origin::Asked(answer) => ("api", ConfigSource::File, None, Some(answer)),
            Origin::Put(text, answer) => ("put", ConfigSource::Api, Some(text), Some(answer)),
        };
        self.current =
            Some(Reload { answer, why, source, started: Instant::now(), live: None, loaded: None });
        Some(text)
    }

    /// Whether anything is under way or waits.
    pub(super) fn is_idle(&self) -> bool {
        self.current.is_none() && self.waiting.is_empty()
    }

    /// The one under way.
    pub(super) fn current(&mut self) -> Option<&mut Reload> {
        self.current.as_mut()
    }

    /// The configuration that waits to be compiled.
    pub(super) fn loaded(&self) -> Option<&Loaded> {
        self.current.as_ref()?.loaded.as_ref()
    }

    /// Ends the one under way, and tells whoever asked.
    pub(super) fn end(&mut self, outcome: Result<ReloadReport, Refusal>) {
        let Some(reload) = self.current.take() else { return };
        let took_ms = reload.took().as_secs_f64() * 1e3;
        let message = match &outcome {
            Ok(report) if report.changed.is_empty() => "nothing changed".to_owned(),
            Ok(report) => count_of(report.changed.len(), "change"),
            Err(refusal) => refusal.message.clone(),
        };
        match &outcome {
            Ok(report) if report.changed.is_empty() => tracing::info!(
                generation = report.generation,
                why = reload.why,
                "read again: nothing changed, the generation keeps its number"
            ),
            Ok(report) => tracing::info!(
                generation = report.generation,
                why = reload.why,
                took = ?reload.took(),
                changes = report.changed.len(),
                "reloaded"
            ),
            Err(refusal) => {
                let problems: Vec<String> = refusal.problems.iter().map(ToString::to_string).collect();
                tracing::error!(
                    error = %refusal.message,
                    why = reload.why,
                    problems = %problems.join("\n"),
                    "reload refused, the old generation goes on"
                );
            }
        }
        let unix_seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        let kind = match &outcome {
            Ok(report) if report.changed.is_empty() => ReloadOutcome::Unchanged,
            Ok(_) => ReloadOutcome::Published,
            Err(_) => ReloadOutcome::Refused,
        };
        self.last = Some(LastReload { unix_seconds, outcome: kind, took_ms, message });
        if let Some(answer) = reload.answer {
            let _ = answer.send(outcome); // an asker who has gone needs no answer
        }
    }
}

/// Reads a configuration off the control loop, and looks up ways to backends that are new.
pub(super) async fn load(
    file: PathBuf,
    text: Option<String>,
    machine: &str,
    known: HashSet<IpAddr>,
    max_vips: u32,
) -> Result<Loaded, Refusal> {
    let read = move || match text {
        None => config::load(&file),
        Some(text) => {
            let secrets = |name: &_| config::read_secret(name, &|name| std::env::var_os(name));
            config::parse_confined(&text, &file, &secrets)
        }
    };
    let read = tokio::task::spawn_blocking(read).await;
    let read = read.map_err(|error| Refusal::new(RefusalKind::Unavailable, error.to_string()))?;
    let (config, warnings) = read.map_err(refused)?;
    fits_the_filter(&config, max_vips)?;
    let addresses = destinations(&config, machine, None).into_iter();
    let new: Vec<IpAddr> = addresses.filter(|address| !known.contains(address)).collect();
    let next_hops = match new.as_slice() {
        [] => NextHops::new(),
        // Before the snapshot that names them is published: else their first packets would be dropped for want of a way.
        new => next_hops(new, NEW_NEXT_HOPS).await.unwrap_or_else(|error| {
            // The watch goes on asking.
            tracing::warn!(error = %format!("{error:#}"), "ways to new backends not looked up");
            NextHops::new()
        }),
    };
    Ok(Loaded { config: Arc::new(config), warnings, next_hops })
}

fn refused(problems: Problems) -> Refusal {
    Refusal {
        kind: RefusalKind::Invalid,
        message: "the configuration has problems".to_owned(),
        problems: problems.iter().map(control_plane::problem_row).collect(),
    }
}

/// The filter's room is what it was at start, whatever the new file says.
fn fits_the_filter(config: &Config, max_vips: u32) -> Result<(), Refusal> {
    let addresses: HashSet<&IpAddr> = config.vips().iter().flat_map(config::Vip::addresses).collect();
    if addresses.len() <= max_vips as usize {
        return Ok(());
    }
    let message = format!(
        "{} VIP addresses, and the filter has had room for {max_vips} since the start (io.max_vips): a restart makes more",
        addresses.len()
    );
    Err(Refusal::new(RefusalKind::Conflict, message))
}

/// A reload waits no longer than this for neighbours that the kernel does not know; most answer in a millisecond.
const NEW_NEXT_HOPS: Duration = Duration::from_secs(1);
const MAX_WAITING: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reload_that_changes_nothing_is_told_as_such_and_moves_the_time() {
        let mut reloads = Reloads::default();
        let mut end = |changed: &[&str]| {
            reloads.ask(Origin::Here("SIGHUP"));
            assert_eq!(reloads.begin(), Some(None));
            let changed = changed.iter().map(|&change| change.to_owned()).collect();
            reloads.end(Ok(ReloadReport { changed, ..ReloadReport::default() }));
            reloads.last.clone().unwrap()
        };
        let nothing = end(&[]);
        assert_eq!(
            (nothing.outcome, nothing.message.as_str()),
            (ReloadOutcome::Unchanged, "nothing changed")
        );
        assert!(nothing.unix_seconds > 0, "it ended some time");
        let one = end(&["a"]);
        assert_eq!((one.outcome, one.message.as_str()), (ReloadOutcome::Published, "1 change"));
        assert_eq!(end(&["a", "b"]).message, "2 changes");
    }
}
