//! Implements the old process of an upgrade, which starts the new process and releases its
//! resources step by step.
//!
//! The code runs on a separate thread, and executes short steps on the control loop. If a step
//! fails, the old process terminates the new process, waits for its exit, and takes back the
//! released resources. BFD sessions are taken back without waiting, because their timeouts are
//! short.

use std::io::{self, ErrorKind};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use admin::Answer;
use admin::view::{Refusal, Upgraded};
use control_plane::announce::{Announcer, HandedBfd};
use control_plane::questions::Caches;
use control_plane::{HandedState, Refused};
use forwarder::{Cursor, FlowTable, PreviousTables, ThreadId};
use tokio::runtime::Handle as Runtime;

use super::channel::Channel;
use super::{FromNew, FromOld, Offer, PROTOCOL, SlotNumber, monotonic, nanos};
use crate::run::lifecycle::HandOver;
use crate::run::loop_tasks::Handle;
use crate::run::{Daemon, Inspections};
use crate::{listeners, privileges};

/// The reason for a failure, and the resources that were already released.
struct Failed {
    why: String,
    tables: Vec<(ThreadId, FlowTable)>,
    bfd: Option<HandedBfd>,
    has_left: bool,
}

impl Failed {
    fn because(why: String) -> Self {
        Self { why, tables: Vec::new(), bfd: None, has_left: false }
    }
}

impl From<io::Error> for Failed {
    fn from(error: io::Error) -> Self {
        Self::because(said(&error))
    }
}

fn said(error: &io::Error) -> String {
    match error.kind() {
        ErrorKind::WouldBlock | ErrorKind::TimedOut => "the new process did not respond in time".to_owned(),
        ErrorKind::UnexpectedEof | ErrorKind::BrokenPipe | ErrorKind::ConnectionReset => {
            "the new process closed the channel".to_owned()
        }
        _ => error.to_string(),
    }
}

/// The state of the old process during an upgrade.
struct OldProcess {
    daemon: Handle<Daemon>,
    runtime: Runtime,
    channel: Channel,
    child: Child,
    /// The connection tables of earlier processes, and the time until their last flows expire.
    previous: Option<(Arc<PreviousTables>, Duration)>,
    has_released: bool,
    released: Vec<Duration>,
    records: u64,
}

impl Daemon {
    /// Starts an upgrade. The response is sent when the upgrade is complete or has failed.
    pub(in crate::run) fn upgrade(
        &mut self,
        binary: Option<String>,
        answer: Answer<Result<Upgraded, Refusal>>,
    ) {
        let binary = match self.may_upgrade().and_then(|()| program(binary)) {
            Ok(binary) => binary,
            Err(refused) => return drop(answer.send(Err(refused.into()))),
        };
        self.lifecycle.hand_over = HandOver::Begun;
        // log: `machine upgrade` has started the new process. The field `program` is the path of
        // its program file.
        tracing::info!(change = "machine", path = %binary.display(), "upgrade started");
        let (daemon, compiling) = (self.tasks.handle(), self.tasks.compiling().clone());
        let predecessor = self.lifecycle.predecessor.clone();
        tokio::spawn(async move {
            // While this lock is held, reloads and table rebuilds wait.
            let compiling = compiling.lock_owned().await;
            let (runtime, of_daemon) = (Runtime::current(), daemon.clone());
            let done = tokio::task::spawn_blocking(move || {
                if predecessor.is_some_and(|before| !before.is_gone_within(GONE_WITHIN)) {
                    let why = "the process of the previous upgrade has not exited yet, try again";
                    return Err(Refused::Conflict(why.to_owned()));
                }
                hand_over(of_daemon, runtime, &binary)
            });
            let done = done.await;
            let done = done.unwrap_or_else(|panic| Err(Refused::Unavailable(panic.to_string())));
            let is_over = done.is_ok();
            daemon.turn(move |daemon| daemon.upgrade_is_answered(done, answer)).await;
            if is_over {
                // This wait allows the response to reach the client before the process exits.
                tokio::time::sleep(ANSWERED_WITHIN).await;
                daemon.turn(|daemon| daemon.lifecycle.hand_over = HandOver::Over).await;
            }
            drop(compiling);
        });
    }

    fn upgrade_is_answered(
        &mut self,
        done: Result<Upgraded, Refused>,
        answer: Answer<Result<Upgraded, Refusal>>,
    ) {
        if let Err(refused) = &done {
            self.thaw();
            self.lifecycle.hand_over = HandOver::None;
            self.forwarding.keep_ports();
            self.follow_caches();
            let flushed = self.checks.held();
            self.take_flushed(&flushed);
            // log: The new process failed for the reason in `why`, and the old process continues.
            // Look for log lines of the new process before this line.
            tracing::error!(change = "machine", why = %refused, "upgrade failed");
        }
        // An error means that the client has disconnected.
        let _ = answer.send(done.map_err(Into::into));
    }

    /// Returns an error if no upgrade can start now.
    fn may_upgrade(&self) -> Result<(), Refused> {
        let now = self.lifecycle.elapsed();
        let why = if self.lifecycle.hand_over != HandOver::None {
            "another upgrade is in progress"
        } else if self.is_draining() {
            "the machine is draining"
        } else if !self.configuration.reloads.is_idle() {
            "a reload is in progress, try again"
        } else if self.configuration.generations.confirmation_row(now).is_some() {
            "the configuration is not confirmed; run `sluicegate config confirm` or wait for the rollback"
        } else if let Some(why) = self.announcer.loses_routes() {
            return Err(Refused::Conflict(why));
        } else {
            return self.keeps_removed_backends();
        };
        Err(Refused::Conflict(why.to_owned()))
    }

    /// Returns an error if a backend that a reload removed may still have flows. The new process
    /// does not know this backend, so its flows would move.
    fn keeps_removed_backends(&self) -> Result<(), Refused> {
        let names = self.controller.removed_with_flows();
        let Some(first) = names.first() else { return Ok(()) };
        let others = match names.len() - 1 {
            0 => String::new(),
            1 => " and 1 other".to_owned(),
            others => format!(" and {others} others"),
        };
        Err(Refused::Conflict(format!(
            "backend \"{first}\"{others} may still have flows after a reload removed it, try again after \
             cluster.drain_time"
        )))
    }

    fn offer(&self) -> Result<(Offer, Vec<std::os::fd::OwnedFd>), Refused> {
        let unavailable = |error: io::Error| Refused::Unavailable(error.to_string());
        let (plane, descriptors) = self.forwarding.plane.hand().map_err(unavailable)?;
        self.forwarding.share_ports().map_err(unavailable)?;
        let compiler = self.controller.compiler();
        let compiler =
            compiler.ok_or_else(|| Refused::Unavailable("tables are being built, try again".to_owned()))?;
        let numbers = compiler.numbers();
        let offer = Offer {
            protocol: PROTOCOL,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            start_nanos: nanos(monotonic().saturating_sub(self.lifecycle.elapsed())),
            digest: self.controller.config().digest(),
            slots: numbers.slots.iter().map(|(key, slot)| SlotNumber::of(key, *slot)).collect(),
            slots_below: numbers.slots_below,
            services: numbers.services.into_iter().map(|(name, id)| (name, id.0)).collect(),
            plane,
            descriptors: descriptors.len(),
            state: self.handed_state(),
        };
        Ok((offer, descriptors))
    }

    fn handed_state(&self) -> HandedState {
        let mut state = HandedState::of(&self.controller, &self.overrides, self.paths.learned())
            .with_failing_hops(self.paths.failing_hops());
        state.announcements = self.announcer.handed();
        state
    }

    /// Freezes the state of this process. The process then handles no commands, because their
    /// effects would be lost.
    fn freeze(&mut self) -> HandedState {
        self.lifecycle.hand_over = HandOver::Frozen;
        self.announcer.freeze(true);
        // Clients whose requests are still waiting for packet threads get no response.
        self.inspections = Inspections::default();
        if self.publisher.current().caches().is_some() {
            // From now on, packet threads must not answer reads from their value caches: writes on
            // threads of the new process would not invalidate the cached values. The request is
            // sent twice, because the first reply of a thread may belong to an earlier request.
            (0..2).for_each(|_| self.inspections.questions.cache(Caches::new()));
        }
        self.handed_state()
    }

    /// Continues to decide about announcements after a failed upgrade. The forwarder could not be
    /// checked since the freeze, so this time does not count as a stall. Without a freeze, a stall
    /// continues.
    fn thaw(&mut self) {
        if self.lifecycle.hand_over == HandOver::Frozen {
            self.announcer.freeze(false);
            self.forwarding.plane.restart_stall();
        }
    }

    fn close_listeners(&mut self) -> (Announcer, crate::run::health_tunnel::HealthTunnel) {
        self.api.listeners.close();
        (self.announcer.part_with_speaker(), self.checks.tunnel().clone())
    }

    fn take_bfd_back(&mut self, handed: HandedBfd) {
        match self.announcer.take_bfd(handed) {
            Ok(()) => self.announcer.keep_bfd(),
            // log: An upgrade failed, and the old process could not take its BFD sessions back.
            // Routers therefore end the BGP sessions. Restart the service.
            Err(error) => tracing::error!(change = "machine", %error, "BFD sessions not recovered"),
        }
    }

    /// Takes the queues and connection tables back after a failed upgrade.
    fn take_back(&mut self, tables: Vec<(ThreadId, FlowTable)>) {
        if let Err(error) = self.forwarding.plane.take_back(tables) {
            // log: An upgrade failed, and the old process could not take its queues back. Restart
            // the service.
            tracing::error!(change = "machine", %error, "queues not recovered");
        }
    }
}

/// Returns the program to start. The default is the path of the running program, whose file a
/// package may have replaced.
fn program(binary: Option<String>) -> Result<PathBuf, Refused> {
    if let Some(binary) = binary.map(PathBuf::from) {
        let words = || Refused::Conflict(format!("program path {} is not absolute", binary.display()));
        return binary.is_absolute().then_some(binary.clone()).ok_or_else(words);
    }
    let own = std::env::current_exe().map_err(|error| Refused::Unavailable(error.to_string()))?;
    let name = own.to_string_lossy();
    Ok(name.strip_suffix(" (deleted)").map_or_else(|| own.clone(), PathBuf::from))
}

fn hand_over(daemon: Handle<Daemon>, runtime: Runtime, binary: &Path) -> Result<Upgraded, Refused> {
    let began = Instant::now();
    let started = runtime.block_on(daemon.turn(|daemon| {
        let (file, machine) = (daemon.configuration.file.clone(), daemon.controller.machine().to_owned());
        // The list of connection tables must match the offer, so both are read in the same
        // iteration of the control loop.
        let previous = daemon.forwarding.plane.previous();
        daemon.offer().map(|offered| (offered, previous, file, machine))
    }));
    let ((offer, descriptors), previous, file, machine) = started?;
    let (channel, other) = Channel::pair().map_err(|error| Refused::Unavailable(error.to_string()))?;
    let mut command = Command::new(binary);
    command.arg("run").arg("--config").arg(&file).args(["--machine", &machine, "--take-over"]);
    command.stdin(Stdio::from(other)).env_remove("WATCHDOG_PID");
    let child = privileges::handed_down(|| command.spawn());
    drop(command); // Dropping the command closes the other end of the channel in this process.
    let child =
        child.map_err(|error| Refused::Conflict(format!("cannot start {}: {error}", binary.display())))?;
    let (has_released, released) = (false, Vec::new());
    let mut old_process =
        OldProcess { daemon, runtime, channel, child, previous, has_released, released, records: 0 };
    match old_process.run(&offer, descriptors) {
        Ok(version) => Ok(Upgraded {
            machine,
            version,
            pid: old_process.child.id(),
            took_ms: began.elapsed().as_secs_f64() * 1e3,
            handed_over_ms: old_process.released.iter().map(|took| took.as_secs_f64() * 1e3).collect(),
            flow_records: old_process.records,
        }),
        Err(failed) => Err(old_process.take_back(binary, failed)),
    }
}

impl OldProcess {
    /// Runs all steps of the upgrade. Returns the version of the new process.
    fn run(&mut self, offer: &Offer, descriptors: Vec<std::os::fd::OwnedFd>) -> Result<String, Failed> {
        self.channel.say(offer)?;
        self.channel.send_descriptors(&descriptors)?;
        drop(descriptors);
        let version = self.await_ready()?;
        let state = self.turn(Daemon::freeze);
        self.await_no_copies()?;
        self.channel.say(&FromOld::Frozen(state))?;
        self.await_taken(TAKEN_WITHIN)?;
        self.release_previous()?;
        let (mut tables, mut bfd) = (Vec::new(), None);
        self.release_all(&mut tables)
            .and_then(|()| self.let_bfd_go(&mut bfd))
            .and_then(|()| self.leave())
            .map_err(|failed| Failed { tables, bfd, ..failed })?;
        let pid = self.child.id();
        self.turn(move |daemon| {
            daemon.forwarding.plane.give();
            daemon.forwarding.keep_ports();
            daemon.lifecycle.manager().main_process(pid);
        });
        // The new process has taken over, even if this message does not arrive.
        let _ = self.channel.say(&FromOld::Kept);
        Ok(version)
    }

    /// Waits until packet threads no longer answer reads from their value caches.
    fn await_no_copies(&self) -> Result<(), Failed> {
        let until = Instant::now() + TAKEN_WITHIN;
        while !self.turn(|daemon| daemon.inspections.questions.is_idle()) {
            if Instant::now() >= until {
                let why = "a packet thread did not release its cache in time".to_owned();
                return Err(Failed::because(why));
            }
            std::thread::sleep(A_MOMENT);
        }
        Ok(())
    }

    /// Waits until the new process is ready. Returns the version of the new process.
    fn await_ready(&mut self) -> Result<String, Failed> {
        let (version, takes_bfd, takes_previous) = match self.channel.hear(READY_WITHIN)? {
            FromNew::Ready { version, bfd, previous } => (version, bfd, previous),
            other => return Err(unexpected(other)),
        };
        if let Some((_, left)) = self.previous.as_ref().filter(|_| !takes_previous) {
            let left = left.as_secs() + 1;
            let why = format!(
                "version {version} cannot take over connection tables of earlier processes; their last flows expire in {left} s"
            );
            return Err(Failed::because(why));
        }
        if !takes_bfd && self.turn(|daemon| daemon.announcer.has_bfd()) {
            let why = format!(
                "version {version} cannot take over BFD sessions; drain the machine and restart it instead"
            );
            return Err(Failed::because(why));
        }
        Ok(version)
    }

    /// Hands over the BFD sessions. The BFD sessions must be handed over before the BGP sessions
    /// close, because a router may treat a closed BGP session as a BFD failure.
    fn let_bfd_go(&mut self, kept: &mut Option<HandedBfd>) -> Result<(), Failed> {
        let since = Instant::now();
        *kept = self.turn(|daemon| daemon.announcer.let_bfd_go());
        let Some(handed) = kept.as_ref().filter(|handed| !handed.sockets().is_empty()) else { return Ok(()) };
        self.channel.say(&FromOld::Bfd { descriptors: handed.sockets().len() })?;
        self.channel.send(&handed.to_bytes())?;
        self.channel.send_descriptors(handed.sockets())?;
        let sessions = handed.configs().count();
        // The timeout leaves enough time to take the sessions back before they expire at the
        // routers.
        let spare = handed.least_spare().map_or(TAKEN_WITHIN, |spare| (spare / 2).min(TAKEN_WITHIN));
        self.await_taken(spare)?;
        let silent_ms = since.elapsed().as_secs_f64() * 1e3;
        // log: The new process has taken over the BFD sessions. The field `silent_ms` is the time
        // in milliseconds during which no BFD packets were sent.
        tracing::info!(change = "machine", sessions, silent_ms, "BFD sessions handed over");
        Ok(())
    }

    fn release_all(&mut self, kept: &mut Vec<(ThreadId, FlowTable)>) -> Result<(), Failed> {
        let groups = self.turn(|daemon| daemon.forwarding.plane.groups());
        for group in groups {
            let (since, threads) = (Instant::now(), group.iter().map(|thread| thread.0).collect());
            self.has_released = true;
            let tables = self.turn(move |daemon| daemon.forwarding.plane.release(&group));
            let word = FromOld::Released { threads, tables: tables.iter().map(|(of, _)| of.0).collect() };
            let sent = self.channel.say(&word);
            let sent = sent.and_then(|()| {
                let mut tables = tables.iter();
                tables.try_for_each(|(_, table)| self.send(|from, to| table.pack(from, BUCKETS_AT_ONCE, to)))
            });
            kept.extend(tables);
            sent?;
            self.await_taken(TAKEN_WITHIN)?;
            self.released.push(since.elapsed());
        }
        Ok(())
    }

    /// Sends the flows of earlier processes, which no thread owns. A flow that a thread adopts
    /// during this step is sent twice, which is harmless because lookups search the thread's own
    /// table first.
    fn release_previous(&mut self) -> Result<(), Failed> {
        let Some((previous, _)) = self.previous.clone() else { return Ok(()) };
        let now = self.turn(|daemon| daemon.forwarding.plane.now().tick());
        for (number, _) in previous.capacities().enumerate() {
            self.send(|from, records| previous.pack(number, from, BUCKETS_AT_ONCE, now, records))?;
        }
        self.await_taken(TAKEN_WITHIN)
    }

    /// Sends a connection table in parts, followed by an empty frame.
    fn send(&mut self, pack: impl Fn(Cursor, &mut Vec<u8>) -> Option<Cursor>) -> io::Result<()> {
        let (mut from, mut records) = (Some(Cursor::START), Vec::new());
        while let Some(cursor) = from {
            from = pack(cursor, &mut records);
            self.records += (records.len() / forwarder::FLOW_RECORD_BYTES) as u64;
            if !records.is_empty() {
                self.channel.send(&records)?;
            }
            records.clear();
        }
        self.channel.send(&[])
    }

    fn leave(&mut self) -> Result<(), Failed> {
        let (announcer, tunnel) = self.turn(Daemon::close_listeners);
        self.runtime.block_on(async {
            announcer.abandon().await;
            tunnel.close().await;
        });
        let left = self
            .channel
            .say(&FromOld::Left)
            .map_err(Failed::from)
            .and_then(|()| self.await_taken(TAKEN_WITHIN));
        left.map_err(|failed| Failed { has_left: true, ..failed })
    }

    fn await_taken(&mut self, within: Duration) -> Result<(), Failed> {
        match self.channel.hear(within)? {
            FromNew::Taken => Ok(()),
            other => Err(unexpected(other)),
        }
    }

    /// Ends the new process, takes all resources back, and returns the reason for the failure.
    fn take_back(mut self, binary: &Path, failed: Failed) -> Refused {
        let Failed { why, tables, bfd, has_left } = failed;
        let ended = match bfd {
            Some(handed) => self.take_bfd_back(handed),
            None => self.end_child(),
        };
        if self.has_released {
            self.turn(move |daemon| daemon.take_back(tables));
        }
        if has_left {
            self.open_again();
        }
        let ended = ended.map(|ended| format!(" ({ended})")).unwrap_or_default();
        Refused::Conflict(format!(
            "upgrade to {} failed, the old process continues: {why}{ended}",
            binary.display()
        ))
    }

    /// Takes the BFD sessions back. The BFD sessions are taken back before all other steps, because
    /// routers soon detect missing BFD packets.
    fn take_bfd_back(&mut self, handed: HandedBfd) -> Option<String> {
        let ended = self.has_ended();
        let _ = self.child.kill(); // An error means that the process has already exited.
        self.turn(move |daemon| daemon.take_bfd_back(handed));
        let _ = self.child.wait();
        ended
    }

    /// Ends the new process. Returns the exit status of the new process if that process had already
    /// exited by itself.
    fn end_child(&mut self) -> Option<String> {
        let until = Instant::now() + ENDED_WITHIN;
        while Instant::now() < until {
            if let Some(ended) = self.has_ended() {
                return Some(ended);
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        // The child has not been reaped, so its process ID cannot have been reused.
        let _ = self.child.kill();
        let _ = self.child.wait();
        None
    }

    fn has_ended(&mut self) -> Option<String> {
        let status = self.child.try_wait().ok()??;
        Some(match status.signal() {
            Some(signal) => format!("ended by signal {signal}"),
            None => format!("exit code {}", status.code().unwrap_or_default()),
        })
    }

    /// Opens the listeners and the health check tunnel again, and resumes the BGP announcements.
    fn open_again(&self) {
        let (config, machine, existing, tunnel) = self.turn(|daemon| {
            let (config, machine) =
                (daemon.controller.config().clone(), daemon.controller.machine().to_owned());
            (config, machine, daemon.api.listeners.existing(), daemon.checks.tunnel().clone())
        });
        let opened = self.runtime.block_on(async {
            if let Err(error) = tunnel.open(&config).await {
                // log: An upgrade failed, and the health check tunnel could not be opened again.
                // Health states of checks with `via = "vip"` no longer change. Plan a restart.
                tracing::error!(%error, "health check tunnel not recovered");
            }
            listeners::bind(&config, &machine, &existing).await
        });
        self.turn(move |daemon| {
            match opened {
                Ok(bound) => daemon.api.listeners.take(&config, &machine, bound),
                Err(error) => {
                    // log: An upgrade failed, and the admin socket or ports could not be opened
                    // again. Plan a restart.
                    tracing::error!(error = %format!("{error:#}"), "admin API listeners not recovered")
                }
            }
            // The resumed announcer decides at once.
            daemon.thaw();
            if let Err(error) = daemon.speak_again() {
                // log: An upgrade failed, and the BGP announcements could not be resumed. The
                // machine receives no traffic. Restart the service.
                tracing::error!(error = %format!("{error:#}"), "BGP announcements not recovered");
            }
            daemon.checks.watch(&daemon.controller);
        });
    }

    fn turn<T: Send + 'static>(&self, work: impl FnOnce(&mut Daemon) -> T + Send + 'static) -> T {
        self.runtime.block_on(self.daemon.turn(work))
    }
}

fn unexpected(said: FromNew) -> Failed {
    let why = match said {
        FromNew::Refused(why) => why,
        other => format!("unexpected message {other:?} from the new process"),
    };
    Failed::because(why)
}

/// The maximum wait until the old process of the previous upgrade has exited. The earlier process
/// has already sent its response.
const GONE_WITHIN: Duration = Duration::from_secs(6);
/// The maximum wait until the new process is ready. API clients expect a response within 30 s.
const READY_WITHIN: Duration = Duration::from_secs(18);
const TAKEN_WITHIN: Duration = Duration::from_secs(5);
const A_MOMENT: Duration = Duration::from_millis(2);
/// The time that a failed new process has to exit before it is killed.
const ENDED_WITHIN: Duration = Duration::from_millis(500);
const ANSWERED_WITHIN: Duration = Duration::from_millis(200);
/// The number of hash buckets that are sent in one part. These buckets occupy 4 MiB of a connection
/// table.
const BUCKETS_AT_ONCE: usize = 1 << 16;
