//! The old process's side: starts the new one, and lets go of one thing after the other.
//!
//! In: an order. Out: the end of this process, or everything as it was, with the reason. It runs on a thread of its own, and asks the
//! control loop for turns.
//! Invariant: a new process that fails, at whatever step, is ended and waited for before anything is taken back; but BFD sessions are
//! taken back from one that was killed and may not be gone yet.

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
use forwarder::{Cursor, FlowTable, Former, ThreadId};
use tokio::runtime::Handle as Runtime;

use super::channel::Channel;
use super::{FromNew, FromOld, Offer, PROTOCOL, SlotNumber, monotonic, nanos};
use crate::run::lifecycle::HandOver;
use crate::run::turns::Handle;
use crate::run::{Daemon, Inspections};
use crate::{listeners, privileges};

/// Why it did not come to an end, and what this process has let go of.
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
        ErrorKind::WouldBlock | ErrorKind::TimedOut => "it did not answer in time".to_owned(),
        ErrorKind::UnexpectedEof | ErrorKind::BrokenPipe | ErrorKind::ConnectionReset => {
            "it went away".to_owned()
        }
        _ => error.to_string(),
    }
}

/// The old process, as its thread sees it.
struct Leaving {
    daemon: Handle<Daemon>,
    runtime: Runtime,
    channel: Channel,
    child: Child,
    /// Tables of earlier processes, and when they have idled out.
    former: Option<(Arc<Former>, Duration)>,
    has_released: bool,
    released: Vec<Duration>,
    records: u64,
}

impl Daemon {
    /// Begins to hand over to a new process, and answers when it has everything, or not.
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
        tracing::info!(change = "machine", program = %binary.display(), "a new process is to take over");
        let (daemon, compiling) = (self.turns.handle(), self.turns.compiling().clone());
        let predecessor = self.lifecycle.predecessor.clone();
        tokio::spawn(async move {
            // No reload, and no new tables, until it is over.
            let compiling = compiling.lock_owned().await;
            let (runtime, of_daemon) = (Runtime::current(), daemon.clone());
            let done = tokio::task::spawn_blocking(move || {
                if predecessor.is_some_and(|before| !before.is_gone_within(GONE_WITHIN)) {
                    let why = "the process before this one has not ended yet";
                    return Err(Refused::Conflict(why.to_owned()));
                }
                hand_over(of_daemon, runtime, &binary)
            });
            let done = done.await;
            let done = done.unwrap_or_else(|panic| Err(Refused::Unavailable(panic.to_string())));
            let is_over = done.is_ok();
            daemon.turn(move |daemon| daemon.upgrade_is_answered(done, answer)).await;
            if is_over {
                // The answer is on its way.
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
            self.lifecycle.hand_over = HandOver::None;
            self.forwarding.keep_ports();
            self.follow_caches();
            tracing::error!(change = "machine", why = %refused, "the new process has not taken over: this one goes on");
        }
        let _ = answer.send(done.map_err(Into::into)); // a client who has gone needs no answer
    }

    /// What stands in the way of any new process.
    fn may_upgrade(&self) -> Result<(), Refused> {
        let now = self.lifecycle.elapsed();
        let why = if self.lifecycle.hand_over != HandOver::None {
            "another new process is taking over"
        } else if self.is_draining() {
            "the machine drains"
        } else if !self.configuration.reloads.is_idle() {
            "a reload is under way"
        } else if self.configuration.generations.confirmation_row(now).is_some() {
            "the configuration waits for its confirmation: `sluicegate config confirm`, or wait for its time"
        } else if let Some(why) = self.announcer.loses_routes() {
            return Err(Refused::Conflict(why));
        } else if self.controller.compiler().is_some_and(compile::Compiler::has_draining) {
            "backends that a reload took out still have flows: wait for cluster.drain_time"
        } else {
            return Ok(());
        };
        Err(Refused::Conflict(why.to_owned()))
    }

    fn offer(&self) -> Result<(Offer, Vec<std::os::fd::OwnedFd>), Refused> {
        let unavailable = |error: io::Error| Refused::Unavailable(error.to_string());
        let (plane, descriptors) = self.forwarding.plane.hand().map_err(unavailable)?;
        self.forwarding.share_ports().map_err(unavailable)?;
        let compiler = self.controller.compiler();
        let compiler = compiler.ok_or_else(|| Refused::Unavailable("tables are being built".to_owned()))?;
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
        HandedState::of(&self.controller, &self.orders, self.paths.learned())
    }

    /// Nothing that would be lost is begun any more.
    fn freeze(&mut self) -> HandedState {
        self.lifecycle.hand_over = HandOver::Frozen;
        // Who waits for packet threads gets no answer.
        self.inspections = Inspections::default();
        if self.publisher.current().caches().is_some() {
            // Writes that pass by the new process's threads would end no copy here. A thread's answer to an earlier request may be
            // taken for that to the first of these; that to the second comes when the first is done.
            (0..2).for_each(|_| self.inspections.questions.cache(Caches::new()));
        }
        self.handed_state()
    }

    fn close_listeners(&mut self) -> (Announcer, crate::run::health_tunnel::HealthTunnel) {
        self.api.listeners.close();
        (std::mem::take(&mut self.announcer), self.checks.tunnel().clone())
    }

    fn take_bfd_back(&mut self, handed: HandedBfd) {
        match self.announcer.take_bfd(handed) {
            Ok(()) => self.announcer.keep_bfd(),
            Err(error) => tracing::error!(change = "machine", %error, "BFD sessions have not come back"),
        }
    }

    /// Everything is this process's again.
    fn take_back(&mut self, tables: Vec<(ThreadId, FlowTable)>) {
        if let Err(error) = self.forwarding.plane.take_back(tables) {
            tracing::error!(change = "machine", %error, "queues have not come back: a restart binds them");
        }
    }
}

/// The program, which a package may have replaced since this process began.
fn program(binary: Option<String>) -> Result<PathBuf, Refused> {
    if let Some(binary) = binary.map(PathBuf::from) {
        let words = || Refused::Conflict(format!("{}: a path from the root on is wanted", binary.display()));
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
        // As the offer names them.
        let former = daemon.forwarding.plane.former();
        daemon.offer().map(|offered| (offered, former, file, machine))
    }));
    let ((offer, descriptors), former, file, machine) = started?;
    let (channel, other) = Channel::pair().map_err(|error| Refused::Unavailable(error.to_string()))?;
    let mut command = Command::new(binary);
    command.arg("run").arg("--config").arg(&file).args(["--machine", &machine, "--take-over"]);
    command.stdin(Stdio::from(other)).env_remove("WATCHDOG_PID");
    let child = privileges::handed_down(|| command.spawn());
    drop(command); // it has the other end of the channel
    let child = child
        .map_err(|error| Refused::Conflict(format!("{}: it cannot be started: {error}", binary.display())))?;
    let (has_released, released) = (false, Vec::new());
    let mut leaving = Leaving { daemon, runtime, channel, child, former, has_released, released, records: 0 };
    match leaving.run(&offer, descriptors) {
        Ok(version) => Ok(Upgraded {
            machine,
            version,
            pid: leaving.child.id(),
            took_ms: began.elapsed().as_secs_f64() * 1e3,
            handed_over_ms: leaving.released.iter().map(|took| took.as_secs_f64() * 1e3).collect(),
            flow_records: leaving.records,
        }),
        Err(failed) => Err(leaving.take_back(binary, failed)),
    }
}

impl Leaving {
    /// Gives the new process's version.
    fn run(&mut self, offer: &Offer, descriptors: Vec<std::os::fd::OwnedFd>) -> Result<String, Failed> {
        self.channel.say(offer)?;
        self.channel.send_descriptors(&descriptors)?;
        drop(descriptors);
        let version = self.await_ready()?;
        let state = self.turn(Daemon::freeze);
        self.await_no_copies()?;
        self.channel.say(&FromOld::Frozen(state))?;
        self.await_taken(TAKEN_WITHIN)?;
        self.let_former_go()?;
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
        // It has everything, whether or not it hears this.
        let _ = self.channel.say(&FromOld::Kept);
        Ok(version)
    }

    /// Until no thread answers reads from copies any more.
    fn await_no_copies(&self) -> Result<(), Failed> {
        let until = Instant::now() + TAKEN_WITHIN;
        while !self.turn(|daemon| daemon.inspections.questions.is_idle()) {
            if Instant::now() >= until {
                let why = "a packet thread does not let go of its copies".to_owned();
                return Err(Failed::because(why));
            }
            std::thread::sleep(A_MOMENT);
        }
        Ok(())
    }

    /// Gives the new process's version.
    fn await_ready(&mut self) -> Result<String, Failed> {
        let (version, takes_bfd, takes_former) = match self.channel.hear(READY_WITHIN)? {
            FromNew::Ready { version, bfd, former } => (version, bfd, former),
            other => return Err(unexpected(other)),
        };
        if let Some((_, left)) = self.former.as_ref().filter(|_| !takes_former) {
            let left = left.as_secs() + 1;
            let why = format!(
                "version {version} cannot take over flows of earlier processes' connection tables: these idle out in {left} s"
            );
            return Err(Failed::because(why));
        }
        if !takes_bfd && self.turn(|daemon| daemon.announcer.has_bfd()) {
            let why = format!("version {version} takes no BFD sessions over: drain and restart");
            return Err(Failed::because(why));
        }
        Ok(version)
    }

    /// Before BGP, whose end a router may take for one of BFD too.
    fn let_bfd_go(&mut self, kept: &mut Option<HandedBfd>) -> Result<(), Failed> {
        let since = Instant::now();
        *kept = self.turn(|daemon| daemon.announcer.let_bfd_go());
        let Some(handed) = kept.as_ref().filter(|handed| !handed.sockets().is_empty()) else { return Ok(()) };
        self.channel.say(&FromOld::Bfd { descriptors: handed.sockets().len() })?;
        self.channel.send(&handed.to_bytes())?;
        self.channel.send_descriptors(handed.sockets())?;
        let sessions = handed.configs().count();
        // Who has not taken them by then leaves time to take them back.
        let spare = handed.least_spare().map_or(TAKEN_WITHIN, |spare| (spare / 2).min(TAKEN_WITHIN));
        self.await_taken(spare)?;
        let silent_ms = since.elapsed().as_secs_f64() * 1e3;
        tracing::info!(change = "machine", sessions, silent_ms, "BFD sessions have gone over");
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

    /// Flows that no thread has. Those that one adopts from now on go over twice: they are found in its table first, and counted in both.
    fn let_former_go(&mut self) -> Result<(), Failed> {
        let Some((former, _)) = self.former.clone() else { return Ok(()) };
        let now = self.turn(|daemon| daemon.forwarding.plane.now().tick());
        for (number, _) in former.capacities().enumerate() {
            self.send(|from, records| former.pack(number, from, BUCKETS_AT_ONCE, now, records))?;
        }
        self.await_taken(TAKEN_WITHIN)
    }

    /// A table in parts, and an empty one behind the last.
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

    /// Ends the new process, and makes everything as it was. Gives the reason in words.
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
        Refused::Conflict(format!("{}: {why}{ended}; this process goes on", binary.display()))
    }

    /// Before all that its end may take: routers miss BFD soon.
    fn take_bfd_back(&mut self, handed: HandedBfd) -> Option<String> {
        let ended = self.has_ended();
        let _ = self.child.kill(); // one that has ended has ended
        self.turn(move |daemon| daemon.take_bfd_back(handed));
        let _ = self.child.wait();
        ended
    }

    /// How it has ended, where that was not by us.
    fn end_child(&mut self) -> Option<String> {
        let until = Instant::now() + ENDED_WITHIN;
        while Instant::now() < until {
            if let Some(ended) = self.has_ended() {
                return Some(ended);
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        // It is this process's child, and not waited for yet: the number is still its own.
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

    /// Listeners, routes and tunnel that were closed.
    fn open_again(&self) {
        let (config, machine, existing, tunnel) = self.turn(|daemon| {
            let (config, machine) =
                (daemon.controller.config().clone(), daemon.controller.machine().to_owned());
            (config, machine, daemon.api.listeners.existing(), daemon.checks.tunnel().clone())
        });
        let opened = self.runtime.block_on(async {
            if let Err(error) = tunnel.open(&config).await {
                tracing::error!(%error, "the checks' tunnel has not come back");
            }
            listeners::bind(&config, &machine, &existing).await
        });
        self.turn(move |daemon| {
            match opened {
                Ok(bound) => daemon.api.listeners.take(&config, &machine, bound),
                Err(error) => {
                    tracing::error!(error = %format!("{error:#}"), "the admin API's listeners have not come back")
                }
            }
            if let Err(error) = daemon.speak_again() {
                tracing::error!(error = %format!("{error:#}"), "nothing is announced");
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
        other => format!("it says {other:?} where that has no meaning"),
    };
    Failed::because(why)
}

/// The process before this one has answered by now, and only ends.
const GONE_WITHIN: Duration = Duration::from_secs(6);
/// A client of the API is answered within 30 s.
const READY_WITHIN: Duration = Duration::from_secs(18);
const TAKEN_WITHIN: Duration = Duration::from_secs(5);
const A_MOMENT: Duration = Duration::from_millis(2);
/// How long a new process that has failed may take to end by itself.
const ENDED_WITHIN: Duration = Duration::from_millis(500);
const ANSWERED_WITHIN: Duration = Duration::from_millis(200);
/// 4 MiB of a table are looked through for one part.
const BUCKETS_AT_ONCE: usize = 1 << 16;
