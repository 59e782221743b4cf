//! The reload: one transaction from a text to a generation in force, one after the other.
//!
//! In: requests by SIGHUP, the API, a change of the file. Out: a new generation; or the old one goes on, and the answer has
//! every reason.
//! [`reload`] is the whole of it, in order. Between its steps the control loop goes on with commands, verdicts and timers: each
//! step is a [`Host`]'s, which runs it on the loop or off it.
//! Invariant: what is refused changes nothing, and withdraws nothing.

mod queue;
mod read;

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use admin::command::Answer;
use admin::view::{ConfigSource, LastReload, Refusal, ReloadOutcome, ReloadReport};
use config::words::count_of;
use config::{Config, Problems};

pub use self::queue::ReloadQueue;
pub use self::read::{Place, read};

use crate::paths::NextHops;
use crate::publisher::Withdrawn;

/// A reload that is wanted.
#[derive(Debug)]
pub struct Request {
    /// Why: a word for the log.
    pub why: &'static str,
    /// What is read in the file's place.
    pub text: Option<String>,
    /// Where the outcome goes, when a client asked.
    pub answer: Option<Answer<Result<ReloadReport, Refusal>>>,
}

impl Request {
    /// Where the configuration comes from.
    #[must_use]
    pub fn source(&self) -> ConfigSource {
        if self.text.is_some() { ConfigSource::Api } else { ConfigSource::File }
    }
}

/// A configuration that is ready to be compiled.
#[derive(Debug)]
pub struct Loaded {
    /// As read.
    pub config: Arc<Config>,
    /// Its warnings.
    pub warnings: Problems,
    /// Next hops to backends that were not known before.
    pub next_hops: NextHops,
    /// Where it came from.
    pub source: ConfigSource,
}

/// What a reload needs of the daemon.
pub trait Host: Sync {
    /// A compiled configuration. While there is one, nothing else is compiled.
    type Compiled: Send;
    /// What was in force before.
    type Before: Send;

    /// Reads the file, or `text`, and opens what its checks need.
    fn read(
        &self,
        text: Option<String>,
        source: ConfigSource,
    ) -> impl Future<Output = Result<Loaded, Refusal>> + Send;
    /// Whether it is what is in force, text for text; if so, its source and warnings are taken over.
    fn keep(&self, loaded: &Loaded) -> impl Future<Output = bool> + Send;
    /// Compiles it off the control loop.
    fn compile(&self, config: Arc<Config>) -> impl Future<Output = Result<Self::Compiled, Refusal>> + Send;
    /// Withdraws routes that it does not have, and waits for routers to follow.
    fn withdraw(&self, config: Arc<Config>) -> impl Future<Output = Withdrawn> + Send;
    /// Publishes it: to threads, filter and routers.
    fn publish(
        &self,
        compiled: Self::Compiled,
        withdrawn: Withdrawn,
        loaded: Loaded,
    ) -> impl Future<Output = Result<Self::Before, Refusal>> + Send;
    /// What is different from before, one sentence each.
    fn changes(&self, before: Self::Before) -> impl Future<Output = Vec<String>> + Send;
    /// The report of what is in force now.
    fn report(&self, changed: Vec<String>, took: Duration) -> impl Future<Output = ReloadReport> + Send;
    /// The end: the next reload may begin.
    fn end(&self, last: LastReload) -> impl Future<Output = ()> + Send;
}

/// Carries a request out, and answers it.
pub async fn reload(host: &impl Host, request: Request) {
    let started = Instant::now();
    let (why, source) = (request.why, request.source());
    let mut took = None;
    let outcome = transaction(host, request.text, source, || *took.insert(started.elapsed())).await;
    let took = took.unwrap_or_else(|| started.elapsed());
    log(&outcome, why, took);
    host.end(last(&outcome, took)).await;
    if let Some(answer) = request.answer {
        let _ = answer.send(outcome); // a client who has gone needs no answer
    }
}

/// `live`: how long it took, asked once the configuration is in force.
async fn transaction(
    host: &impl Host,
    text: Option<String>,
    source: ConfigSource,
    live: impl FnOnce() -> Duration,
) -> Result<ReloadReport, Refusal> {
    let loaded = host.read(text, source).await?;
    if host.keep(&loaded).await {
        return Ok(host.report(Vec::new(), live()).await);
    }
    let config = Arc::clone(&loaded.config);
    let compiled = host.compile(Arc::clone(&config)).await?;
    let withdrawn = host.withdraw(config).await;
    let before = host.publish(compiled, withdrawn, loaded).await?;
    let took = live();
    let changed = host.changes(before).await;
    Ok(host.report(changed, took).await)
}

fn log(outcome: &Result<ReloadReport, Refusal>, why: &str, took: Duration) {
    match outcome {
        Ok(report) if report.changed.is_empty() => tracing::info!(
            generation = report.generation,
            why,
            "read again: nothing changed, the generation keeps its number"
        ),
        Ok(report) => tracing::info!(
            generation = report.generation,
            why,
            ?took,
            changes = report.changed.len(),
            "reloaded"
        ),
        Err(refusal) => {
            let problems: Vec<String> = refusal.problems.iter().map(ToString::to_string).collect();
            tracing::error!(
                error = %refusal.message,
                why,
                problems = %problems.join("\n"),
                "reload refused, the old generation goes on"
            );
        }
    }
}

fn last(outcome: &Result<ReloadReport, Refusal>, took: Duration) -> LastReload {
    let (kind, message) = match outcome {
        Ok(report) if report.changed.is_empty() => (ReloadOutcome::Unchanged, "nothing changed".to_owned()),
        Ok(report) => (ReloadOutcome::Published, count_of(report.changed.len(), "change")),
        Err(refusal) => (ReloadOutcome::Refused, refusal.message.clone()),
    };
    let unix_seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    LastReload { unix_seconds, outcome: kind, took_ms: took.as_secs_f64() * 1e3, message }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::{Mutex, PoisonError};

    use admin::view::RefusalKind;
    use tokio::sync::oneshot;

    use super::*;
    use crate::announce::Announcer;
    use crate::publisher::Publisher;

    /// Writes down each step, and refuses at one of them.
    #[derive(Default)]
    struct Recorded {
        refuses_at: &'static str,
        is_in_force: bool,
        changes: Vec<&'static str>,
        steps: Mutex<Vec<&'static str>>,
        last: Mutex<Option<LastReload>>,
    }

    impl Recorded {
        fn step(&self, name: &'static str) -> Result<(), Refusal> {
            self.steps.lock().unwrap_or_else(PoisonError::into_inner).push(name);
            let refused = Refusal::new(RefusalKind::Invalid, "no");
            if self.refuses_at == name { Err(refused) } else { Ok(()) }
        }
    }

    fn config() -> Config {
        let text = "[cluster]\nname = \"c\"\nhash_key_file = \"k\"\n[machine.lb1]\n\
                    addresses = [\"192.0.2.1\"]\ninterfaces = [\"eth0\"]\n";
        let secret = |_: &_| Ok("00112233445566778899aabbccddeeff".to_owned());
        config::parse(text, Path::new("a.toml"), &secret).unwrap().0
    }

    impl Host for Recorded {
        type Compiled = ();
        type Before = ();

        async fn read(&self, _: Option<String>, source: ConfigSource) -> Result<Loaded, Refusal> {
            self.step("read")?;
            let (config, warnings) = (Arc::new(config()), Problems::default());
            Ok(Loaded { config, warnings, next_hops: NextHops::new(), source })
        }

        async fn keep(&self, _: &Loaded) -> bool {
            self.is_in_force
        }

        async fn compile(&self, _: Arc<Config>) -> Result<(), Refusal> {
            self.step("compile")
        }

        async fn withdraw(&self, config: Arc<Config>) -> Withdrawn {
            self.step("withdraw").unwrap();
            let withdrawal = Publisher::withdraw(&config, "lb1", &mut Announcer::default());
            withdrawal.wait().await
        }

        async fn publish(&self, (): (), _: Withdrawn, _: Loaded) -> Result<(), Refusal> {
            self.step("publish")
        }

        async fn changes(&self, (): ()) -> Vec<String> {
            self.step("changes").unwrap();
            self.changes.iter().map(|&change| change.to_owned()).collect()
        }

        async fn report(&self, changed: Vec<String>, _: Duration) -> ReloadReport {
            self.step("report").unwrap();
            ReloadReport { changed, ..ReloadReport::default() }
        }

        async fn end(&self, last: LastReload) {
            self.step("end").unwrap();
            *self.last.lock().unwrap() = Some(last);
        }
    }

    async fn ended(host: &Recorded) -> (Vec<&'static str>, LastReload, Result<ReloadReport, Refusal>) {
        let (answer, told) = oneshot::channel();
        reload(host, Request { why: "api", text: None, answer: Some(answer) }).await;
        let last = host.last.lock().unwrap().clone().unwrap();
        let steps = std::mem::take(&mut *host.steps.lock().unwrap());
        (steps, last, told.await.unwrap())
    }

    #[tokio::test]
    async fn a_reload_withdraws_before_it_publishes_and_counts_what_is_different() {
        let host = Recorded { changes: vec!["a", "b"], ..Recorded::default() };
        let (steps, last, outcome) = ended(&host).await;
        assert_eq!(steps, ["read", "compile", "withdraw", "publish", "changes", "report", "end"]);
        assert_eq!((last.outcome, last.message.as_str()), (ReloadOutcome::Published, "2 changes"));
        assert_eq!(outcome.unwrap().changed, ["a", "b"]);
    }

    #[tokio::test]
    async fn a_reload_that_changes_nothing_is_reported_as_such_and_moves_the_time() {
        let host = Recorded { is_in_force: true, ..Recorded::default() };
        let (steps, last, outcome) = ended(&host).await;
        assert_eq!(steps, ["read", "report", "end"]);
        assert_eq!((last.outcome, last.message.as_str()), (ReloadOutcome::Unchanged, "nothing changed"));
        assert!(last.unix_seconds > 0 && outcome.is_ok());
        let one = Recorded { changes: vec!["a"], ..Recorded::default() };
        assert_eq!(ended(&one).await.1.message, "1 change");
    }

    #[tokio::test]
    async fn what_is_refused_goes_no_further() {
        for (refuses_at, wanted) in [
            ("read", &["read", "end"][..]),
            ("compile", &["read", "compile", "end"]),
            ("publish", &["read", "compile", "withdraw", "publish", "end"]),
        ] {
            let host = Recorded { refuses_at, ..Recorded::default() };
            let (steps, last, outcome) = ended(&host).await;
            assert_eq!(steps, wanted);
            assert_eq!((last.outcome, last.message.as_str()), (ReloadOutcome::Refused, "no"));
            assert!(outcome.is_err());
        }
    }
}
