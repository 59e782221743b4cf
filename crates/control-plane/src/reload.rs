//! The reload: a transaction that turns a configuration text into the active generation. Only one
//! reload runs at a time.
//!
//! A reload is requested by SIGHUP, by the API, by a file change, or by an expired confirmation
//! deadline. If a step fails, the current generation stays active, and the response contains all
//! reasons. [`reload`] runs the steps in order. [`Host`] implements each step, and runs it on the
//! control loop or on another thread. The control loop does other work between the steps.
//! Invariant: a rejected reload changes no state and withdraws no route.

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

/// The source from which a configuration was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The configuration file.
    File,
    /// A configuration text that was sent to the admin API.
    Api,
    /// A stored generation.
    Kept,
}

/// The event that created a generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// The process started.
    Start,
    /// A SIGHUP was received.
    Signal,
    /// A watched configuration file changed.
    Watch,
    /// An operator requested a reload of the configuration file through the API.
    Api,
    /// An operator sent a new configuration through the API.
    Put,
    /// An operator requested a rollback.
    Rollback,
    /// The previous generation was not confirmed before its deadline.
    Unconfirmed,
}

impl Cause {
    /// Returns the text that the log shows for the cause.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Start => "start",
            Self::Signal => "SIGHUP",
            Self::Watch => "file changed",
            Self::Api => "api",
            Self::Put => "put",
            Self::Rollback => "rollback",
            Self::Unconfirmed => "not confirmed in time",
        }
    }

    /// Returns `true` if the new generation undoes an earlier generation.
    #[must_use]
    pub const fn is_return_path(self) -> bool {
        matches!(self, Self::Rollback | Self::Unconfirmed)
    }
}

/// The configuration that a reload applies.
#[derive(Debug)]
pub enum Wanted {
    /// The content of the configuration file at the time of the reload.
    File,
    /// A configuration text that is used instead of the file.
    Text(String),
    /// A stored generation, whose secrets and prefix lists are not read again.
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

/// The cause, requester and conditions of a reload.
#[derive(Clone, Debug)]
pub struct About {
    /// The event that caused the reload.
    pub cause: Cause,
    /// The operator who requested the reload through the API, or `None` for other causes.
    pub by: Option<String>,
    /// The time within which the new generation must be confirmed. If the new generation is not
    /// confirmed in time, it is rolled back.
    pub confirm: Option<Duration>,
    /// `true` if the limit `cluster.max_moved` does not apply to this reload, and the hash key may
    /// change.
    pub force: bool,
}

impl About {
    /// Creates the description of a reload without requester, confirmation and `force`.
    #[must_use]
    pub fn plain(cause: Cause) -> Self {
        Self { cause, by: None, confirm: None, force: cause == Cause::Unconfirmed }
    }
}

/// A reload that waits in the queue.
#[derive(Debug)]
pub struct Request<C> {
    /// The cause, requester and conditions.
    pub about: About,
    /// The configuration to apply.
    pub wanted: Wanted,
    /// The client that receives the result.
    pub client: Option<C>,
}

/// A configuration that is ready to be compiled.
#[derive(Debug)]
pub struct Loaded {
    /// The configuration that was loaded.
    pub config: Arc<Config>,
    /// The warnings about the configuration.
    pub warnings: Problems,
    /// The next hops of backends that are not in the current configuration.
    pub next_hops: NextHops,
    /// The source from which the configuration was read.
    pub origin: Origin,
}

/// The generation that is active after a reload.
#[derive(Clone, Debug)]
pub struct InForce {
    /// The generation number.
    pub generation: u64,
    /// The changes, one sentence each. If there are no changes, the generation number stays the
    /// same.
    pub changed: Vec<String>,
}

/// The result of a reload.
#[derive(Clone, Debug)]
pub struct Ended {
    /// The active generation, or the reason why the reload was rejected.
    pub outcome: Result<InForce, Refused>,
    /// The time from the start of the reload until the snapshot was published, or until the reload
    /// was rejected.
    pub took: Duration,
    /// The time at which the reload ended.
    pub at: SystemTime,
}

/// The steps of a reload. The daemon implements these steps.
pub trait Host: Sync {
    /// A compiled configuration. The compiler cannot be used while a value of this type exists.
    type Compiled: Send;
    /// The state before the reload, with which the new configuration is compared.
    type Before: Send;
    /// A client that receives the result of a reload.
    type Client: Send;

    /// Reads and checks the configuration, and prepares its health checks.
    fn read(&self, wanted: Wanted, origin: Origin) -> impl Future<Output = Result<Loaded, Refused>> + Send;
    /// Checks whether the reload can be skipped. If the loaded text is identical to the text of the
    /// current generation, returns the number of the current generation, and stores the origin of
    /// the loaded configuration and the warnings about it. Also returns the number if a file change
    /// caused the reload and the file contains a configuration that was rolled back. In that case,
    /// another watched file has changed.
    fn keep(&self, loaded: &Loaded) -> impl Future<Output = Option<u64>> + Send;
    /// Rejects the configuration if it changes the hash key, or if it moves more table slots than
    /// the current configuration allows.
    fn guard(&self, config: Arc<Config>) -> impl Future<Output = Result<(), Refused>> + Send;
    /// Compiles the configuration on another thread.
    fn compile(&self, config: Arc<Config>) -> impl Future<Output = Result<Self::Compiled, Refused>> + Send;
    /// Withdraws the routes that are not in the new configuration, and waits until the routers have
    /// applied the withdrawals.
    fn withdraw(&self, config: Arc<Config>) -> impl Future<Output = Withdrawn> + Send;
    /// Publishes the configuration to packet threads, XDP filter and routers.
    fn publish(
        &self,
        compiled: Self::Compiled,
        withdrawn: Withdrawn,
        loaded: Loaded,
    ) -> impl Future<Output = Result<Self::Before, Refused>> + Send;
    /// Compares the new configuration with the previous configuration. Returns the active
    /// generation with its changes.
    fn compare(&self, before: Self::Before) -> impl Future<Output = InForce> + Send;
    /// Sends the result to the client, and allows the next reload to start.
    fn report(&self, ended: Ended, client: Option<Self::Client>) -> impl Future<Output = ()> + Send;
}

/// Runs a reload, and logs and reports its result.
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

/// Runs the steps of a reload until one fails. `live` is called when the new configuration is
/// active.
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
                // log: A reload found the configuration unchanged, so the generation keeps its
                // number.
                tracing::info!(change = "reload", generation, why, "configuration unchanged");
            }
            Ok(InForce { generation, changed }) => {
                let (took, changes, what) = (self.took, changed.len(), few(changed));
                // log: A new generation is active. The field `what` lists the changes.
                tracing::info!(
                    change = "reload",
                    generation,
                    why,
                    ?took,
                    changes,
                    what,
                    "configuration reloaded"
                );
            }
            Err(refused) => {
                let problems = match refused {
                    Refused::Invalid(problems) => problems.iter().map(Problem::to_string).collect(),
                    _ => Vec::new(),
                };
                // log: A reload was rejected, so the current generation stays active. Fix the
                // errors in `problems`. `sluicegate config check` lists all errors.
                tracing::error!(
                    change = "reload",
                    error = %refused,
                    why,
                    problems = %problems.join("\n"),
                    "reload rejected"
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

    /// Records the steps of a reload, and fails at a given step.
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
    async fn reload_withdraws_before_it_publishes() {
        let host = Recorded { changes: vec!["a", "b"], ..Recorded::default() };
        let (steps, last, outcome) = ended(&host).await;
        assert_eq!(steps, ["read", "guard", "compile", "withdraw", "publish", "compare", "report"]);
        assert_eq!((last.outcome, last.message.as_str()), (ReloadOutcome::Published, "2 changes"));
        let now = outcome.unwrap();
        assert_eq!((now.generation, now.changed), (8, vec!["a".to_owned(), "b".to_owned()]));
    }

    #[tokio::test]
    async fn unchanged_reload_is_reported_with_its_time() {
        let host = Recorded { is_in_force: true, ..Recorded::default() };
        let (steps, last, outcome) = ended(&host).await;
        assert_eq!(steps, ["read", "report"]);
        assert_eq!((last.outcome, last.message.as_str()), (ReloadOutcome::Unchanged, "nothing changed"));
        assert!(last.unix_seconds > 0 && outcome.unwrap().generation == 7);
        let one = Recorded { changes: vec!["a"], ..Recorded::default() };
        assert_eq!(ended(&one).await.1.message, "1 change");
    }

    #[tokio::test]
    async fn rejected_reload_stops_at_the_failed_step() {
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
    async fn force_skips_only_the_guard() {
        let host = Recorded { refuses_at: "guard", ..Recorded::default() };
        let (steps, last, _) = ended_as(&host, true).await;
        assert_eq!(steps, ["read", "compile", "withdraw", "publish", "compare", "report"]);
        assert_eq!(last.outcome, ReloadOutcome::Unchanged, "the host reports no change");
    }
}
