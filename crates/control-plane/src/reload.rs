//! The reload: one transaction from a text to a generation in force, one after the other.
//!
//! In: requests by SIGHUP, the API, a change of the file, the end of a confirmation's time. Out: a new generation; or the old one goes
//! on, and the answer has every reason.
//! [`reload`] is the whole of it, in order. Between its steps the control loop goes on with commands, verdicts and timers: each
//! step is a [`Host`]'s, which runs it on the loop or off it.
//! Invariant: what is refused changes nothing, and withdraws nothing.

mod file_watch;
mod generations;
mod guard;
mod queue;
mod read;

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use config::words::few;
use config::{Config, Problem, Problems};

pub use self::file_watch::{FileWatch, WatchError};
pub use self::generations::{AT_MOST, BYTES_AT_MOST, Generations, Kept, Pending};
pub use self::guard::guard;
pub use self::queue::{ReloadQueue, too_many};
pub use self::read::{Place, read};
use next_hop::NextHops;

use crate::publisher::Withdrawn;
use crate::refused::Refused;

/// Where a configuration came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The file.
    File,
    /// The admin API.
    Api,
    /// A generation that was in force before.
    Kept,
}

/// Why there is a generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// The process started.
    Start,
    /// SIGHUP.
    Signal,
    /// The file has changed, and is watched.
    Watch,
    /// An operator had the file read again.
    Api,
    /// An operator put another text.
    Put,
    /// An operator went back.
    Rollback,
    /// Nobody confirmed the one before in time.
    Unconfirmed,
}

impl Cause {
    /// For the log.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Start => "start",
            Self::Signal => "SIGHUP",
            Self::Watch => "the file has changed",
            Self::Api => "api",
            Self::Put => "put",
            Self::Rollback => "rollback",
            Self::Unconfirmed => "not confirmed in time",
        }
    }

    /// Whether it takes what is in force back.
    #[must_use]
    pub const fn is_way_back(self) -> bool {
        matches!(self, Self::Rollback | Self::Unconfirmed)
    }
}

/// What is to come into force.
#[derive(Debug)]
pub enum Wanted {
    /// What the file says now.
    File,
    /// This, in the file's place.
    Text(String),
    /// What was in force before, as it was.
    Kept(Arc<Kept>),
}

impl Wanted {
    fn origin(&self) -> Origin {
        match self {
            Self::File => Origin::File,
            Self::Text(_) => Origin::Api,
            Self::Kept(_) => Origin::Kept,
        }
    }
}

/// Who wants a reload, why, and on what terms.
#[derive(Clone, Debug)]
pub struct About {
    /// Why.
    pub cause: Cause,
    /// Who; `None`: nobody who came by the API.
    pub by: Option<String>,
    /// It is taken back unless it is confirmed within this time.
    pub confirm: Option<Duration>,
    /// However many slots move.
    pub force: bool,
}

impl About {
    /// A reload that nobody asked for by the API, and that is in force until the next one.
    #[must_use]
    pub fn plain(cause: Cause) -> Self {
        Self { cause, by: None, confirm: None, force: cause == Cause::Unconfirmed }
    }
}

/// A reload that is wanted.
#[derive(Debug)]
pub struct Request<C> {
    /// Who asked for it, and why.
    pub about: About,
    /// What is wanted.
    pub wanted: Wanted,
    /// Who asked, and gets the report.
    pub client: Option<C>,
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
    pub origin: Origin,
}

/// What is in force after a reload.
#[derive(Clone, Debug)]
pub struct InForce {
    /// Number of the generation.
    pub generation: u64,
    /// What is different from before, one sentence each; empty: nothing, and the generation keeps its number.
    pub changed: Vec<String>,
}

/// How a reload ended.
#[derive(Clone, Debug)]
pub struct Ended {
    /// What is in force, or why the old generation goes on.
    pub outcome: Result<InForce, Refused>,
    /// From the start to the store, or to the refusal.
    pub took: Duration,
    /// When.
    pub at: SystemTime,
}

/// What a reload needs of the daemon.
pub trait Host: Sync {
    /// A compiled configuration. While there is one, nothing else is compiled.
    type Compiled: Send;
    /// What was in force before.
    type Before: Send;
    /// Who may ask for a reload.
    type Client: Send;

    /// Reads what is wanted, and opens what its checks need.
    fn read(&self, wanted: Wanted, origin: Origin) -> impl Future<Output = Result<Loaded, Refused>> + Send;
    /// The generation in force, if it is this one text for text; its origin and warnings are taken over then. Also when a change of the
    /// file asks for what was taken back: that change was another file's.
    fn keep(&self, loaded: &Loaded) -> impl Future<Output = Option<u64>> + Send;
    /// Refuses what moves more slots than the configuration in force lets.
    fn guard(&self, config: Arc<Config>) -> impl Future<Output = Result<(), Refused>> + Send;
    /// Compiles it off the control loop.
    fn compile(&self, config: Arc<Config>) -> impl Future<Output = Result<Self::Compiled, Refused>> + Send;
    /// Withdraws routes that it does not have, and waits for routers to follow.
    fn withdraw(&self, config: Arc<Config>) -> impl Future<Output = Withdrawn> + Send;
    /// Publishes it: to threads, filter and routers.
    fn publish(
        &self,
        compiled: Self::Compiled,
        withdrawn: Withdrawn,
        loaded: Loaded,
    ) -> impl Future<Output = Result<Self::Before, Refused>> + Send;
    /// What is in force now, and different from before.
    fn compare(&self, before: Self::Before) -> impl Future<Output = InForce> + Send;
    /// The end: the client has the report, the next reload may begin.
    fn report(&self, ended: Ended, client: Option<Self::Client>) -> impl Future<Output = ()> + Send;
}

/// Carries a request out.
pub async fn reload<H: Host>(host: &H, request: Request<H::Client>) {
    let started = Instant::now();
    let Request { about, wanted, client } = request;
    let mut took = None;
    let outcome = transaction(host, wanted, about.force, || took = Some(started.elapsed())).await;
    let took = took.unwrap_or_else(|| started.elapsed());
    let ended = Ended { outcome, took, at: SystemTime::now() };
    ended.log(about.cause.word());
    host.report(ended, client).await;
}

/// `live` is called once the configuration is in force.
async fn transaction(
    host: &impl Host,
    wanted: Wanted,
    force: bool,
    live: impl FnOnce(),
) -> Result<InForce, Refused> {
    let origin = wanted.origin();
    let loaded = host.read(wanted, origin).await?;
    if let Some(generation) = host.keep(&loaded).await {
        return Ok(InForce { generation, changed: Vec::new() });
    }
    let config = Arc::clone(&loaded.config);
    if !force {
        host.guard(Arc::clone(&config)).await?;
    }
    let compiled = host.compile(Arc::clone(&config)).await?;
    let withdrawn = host.withdraw(config).await;
    let before = host.publish(compiled, withdrawn, loaded).await?;
    live();
    Ok(host.compare(before).await)
}

impl Ended {
    fn log(&self, why: &str) {
        match &self.outcome {
            Ok(InForce { generation, changed }) if changed.is_empty() => {
                tracing::info!(
                    change = "reload",
                    generation,
                    why,
                    "read again: nothing changed, the generation keeps its number"
                );
            }
            Ok(InForce { generation, changed }) => {
                let (took, changes, what) = (self.took, changed.len(), few(changed));
                tracing::info!(change = "reload", generation, why, ?took, changes, what, "reloaded");
            }
            Err(refused) => {
                let problems = match refused {
                    Refused::Invalid(problems) => problems.iter().map(Problem::to_string).collect(),
                    _ => Vec::new(),
                };
                tracing::error!(
                    change = "reload",
                    error = %refused,
                    why,
                    problems = %problems.join("\n"),
                    "reload refused, the old generation goes on"
                );
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::{Mutex, PoisonError};

    use admin::view::{LastReload, ReloadOutcome};

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
        ended: Mutex<Option<Ended>>,
    }

    impl Recorded {
        fn step(&self, name: &'static str) -> Result<(), Refused> {
            self.steps.lock().unwrap_or_else(PoisonError::into_inner).push(name);
            if self.refuses_at == name { Err(Refused::conflict("no")) } else { Ok(()) }
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
        type Client = &'static str;

        async fn read(&self, wanted: Wanted, origin: Origin) -> Result<Loaded, Refused> {
            assert_eq!(origin == Origin::File, matches!(wanted, Wanted::File));
            self.step("read")?;
            let (config, warnings) = (Arc::new(config()), Problems::default());
            Ok(Loaded { config, warnings, next_hops: NextHops::new(), origin })
        }

        async fn keep(&self, _: &Loaded) -> Option<u64> {
            self.is_in_force.then_some(7)
        }

        async fn guard(&self, _: Arc<Config>) -> Result<(), Refused> {
            self.step("guard")
        }

        async fn compile(&self, _: Arc<Config>) -> Result<(), Refused> {
            self.step("compile")
        }

        async fn withdraw(&self, config: Arc<Config>) -> Withdrawn {
            self.step("withdraw").unwrap();
            let withdrawal = Publisher::withdraw(&config, "lb1", &mut Announcer::default());
            withdrawal.wait().await
        }

        async fn publish(&self, (): (), _: Withdrawn, _: Loaded) -> Result<(), Refused> {
            self.step("publish")
        }

        async fn compare(&self, (): ()) -> InForce {
            self.step("compare").unwrap();
            let changed = self.changes.iter().map(|&change| change.to_owned()).collect();
            InForce { generation: 8, changed }
        }

        async fn report(&self, ended: Ended, client: Option<&'static str>) {
            self.step("report").unwrap();
            assert_eq!(client, Some("client"));
            *self.ended.lock().unwrap() = Some(ended);
        }
    }

    async fn ended(host: &Recorded) -> (Vec<&'static str>, LastReload, Result<InForce, Refused>) {
        ended_as(host, false).await
    }

    async fn ended_as(
        host: &Recorded,
        force: bool,
    ) -> (Vec<&'static str>, LastReload, Result<InForce, Refused>) {
        let about = About { force, ..About::plain(Cause::Api) };
        reload(host, Request { about, wanted: Wanted::File, client: Some("client") }).await;
        let ended = host.ended.lock().unwrap().clone().unwrap();
        let steps = std::mem::take(&mut *host.steps.lock().unwrap());
        (steps, LastReload::from(&ended), ended.outcome)
    }

    #[tokio::test]
    async fn a_reload_withdraws_before_it_publishes_and_counts_what_is_different() {
        let host = Recorded { changes: vec!["a", "b"], ..Recorded::default() };
        let (steps, last, outcome) = ended(&host).await;
        assert_eq!(steps, ["read", "guard", "compile", "withdraw", "publish", "compare", "report"]);
        assert_eq!((last.outcome, last.message.as_str()), (ReloadOutcome::Published, "2 changes"));
        let now = outcome.unwrap();
        assert_eq!((now.generation, now.changed), (8, vec!["a".to_owned(), "b".to_owned()]));
    }

    #[tokio::test]
    async fn a_reload_that_changes_nothing_is_reported_as_such_and_moves_the_time() {
        let host = Recorded { is_in_force: true, ..Recorded::default() };
        let (steps, last, outcome) = ended(&host).await;
        assert_eq!(steps, ["read", "report"]);
        assert_eq!((last.outcome, last.message.as_str()), (ReloadOutcome::Unchanged, "nothing changed"));
        assert!(last.unix_seconds > 0 && outcome.unwrap().generation == 7);
        let one = Recorded { changes: vec!["a"], ..Recorded::default() };
        assert_eq!(ended(&one).await.1.message, "1 change");
    }

    #[tokio::test]
    async fn what_is_refused_goes_no_further() {
        for (refuses_at, wanted) in [
            ("read", &["read", "report"][..]),
            ("guard", &["read", "guard", "report"]),
            ("compile", &["read", "guard", "compile", "report"]),
            ("publish", &["read", "guard", "compile", "withdraw", "publish", "report"]),
        ] {
            let host = Recorded { refuses_at, ..Recorded::default() };
            let (steps, last, outcome) = ended(&host).await;
            assert_eq!(steps, wanted);
            assert_eq!((last.outcome, last.message.as_str()), (ReloadOutcome::Refused, "no"));
            assert!(outcome.is_err());
        }
    }

    #[tokio::test]
    async fn force_goes_past_the_guard_alone() {
        let host = Recorded { refuses_at: "guard", ..Recorded::default() };
        let (steps, last, _) = ended_as(&host, true).await;
        assert_eq!(steps, ["read", "compile", "withdraw", "publish", "compare", "report"]);
        assert_eq!(last.outcome, ReloadOutcome::Unchanged, "the host names no change");
    }
}
