//! `sluicegate run`: both planes, wired.
//!
//! In: a configuration, signals, changes of next hops, questions at the admin socket. Out: a running balancer.
//! Not here: any decision about a packet, any rule about a configuration.
//! Invariant: a new VIP reaches the threads before the filter; one that goes leaves the filter before the threads.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::{Duration, Instant};

use anyhow::Context;
use control_plane::compile::{Compiler, destinations, find_machine, refresh_next_hops, timeouts};
use control_plane::config::{self, Config};
use control_plane::next_hop::{self, Resolver, Unresolved, Wanted, Watch};
use datapath::interface::{Interface, InterfaceError};
use datapath::steer::NoSocket;
use datapath::{DataPlane, Idle, Settings, inspect};
use forwarder::Live;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{mpsc, watch};

use crate::admin::{self, Ask};
use crate::liveness::{self, Liveness};
use crate::notify::Notifier;
use crate::report::report;
use crate::shutdown::Drain;
use crate::{Source, config_check, doctor, logging, privileges};

/// Runs until SIGTERM or SIGINT, and then until the drain is over; a second signal ends it at once.
pub(crate) fn run(source: &Source) -> anyhow::Result<()> {
    let config = config_check::load(&source.config)?;
    logging::start(config.log())?;
    privileges::seal();
    let machine = source.machine()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        // Before the start, so that none ends the process without its farewell.
        let signals = Signals::catch()?;
        let mut balancer = Balancer::start(source.config.clone(), machine, config).await?;
        balancer.serve(signals).await
    })
}

type NextHops = HashMap<IpAddr, Result<next_hop::Resolved, Unresolved>>;

struct Signals {
    hangup: Signal,
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    fn catch() -> std::io::Result<Self> {
        Ok(Self {
            hangup: signal(SignalKind::hangup())?,
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }
}

struct Balancer {
    file: PathBuf,
    machine: String,
    config: Config,
    compiler: Compiler,
    next_hops: next_hop::Table,
    live: Live,
    plane: DataPlane,
    origin: Instant,
    wanted: watch::Sender<Wanted>,
    found: mpsc::Receiver<next_hop::Table>,
    questions: mpsc::Receiver<Ask>,
    admin: Option<admin::Socket>,
    max_vips: u32,
    manager: Rc<Notifier>,
    liveness: Liveness,
    drain: Option<Drain>,
}

impl Balancer {
    async fn start(file: PathBuf, machine: String, config: Config) -> anyhow::Result<Self> {
        let origin = Instant::now();
        let interface = inspect(only_interface(&config, &machine)?)?;
        let next_hops = next_hops(&destinations(&config, None), FIRST_NEXT_HOPS).await?;
        if let Err(error) = doctor::warn_at_start(&config, &machine, &next_hops).await {
            tracing::warn!(error = %format!("{error:#}"), "the machine was not looked at");
        }
        let next_hops = next_hop::Table { next_hops, gateways: Vec::new() };
        let mut compiler = Compiler::default();
        let snapshot = compiler.compile(&config, &machine, &next_hops, origin.elapsed())?;
        let live = Live::new(snapshot);
        let plane = DataPlane::start(interface, &settings(&config), &live)?;
        let manager = Rc::new(Notifier::from_environment());
        let liveness = Liveness::new(Rc::clone(&manager));
        let (asks, questions) = mpsc::channel(ADMIN_QUEUE);
        let admin = match config.admin().socket() {
            Some(socket) => Some(admin::listen(socket.path(), socket.mode(), asks, liveness.subscribe())?),
            None => None,
        };
        let (wanted, found) = watch_next_hops(wanted(&config, &plane, &live))?;
        let max_vips = config.io().max_vips();
        let mut balancer = Self {
            max_vips,
            file,
            machine,
            config,
            compiler,
            next_hops,
            live,
            plane,
            origin,
            wanted,
            found,
            questions,
            admin,
            manager,
            liveness,
            drain: None,
        };
        balancer.await_gateways().await;
        balancer.open_filter()?;
        if let Err(error) = privileges::give_up(|| balancer.plane.steer().may_change()) {
            tracing::warn!(%error, "capabilities that only the start needs are not given up");
        }
        if let Err(error) = std::fs::File::open(&balancer.file) {
            tracing::warn!(%error, "without its capabilities it cannot read the configuration again: reloads will fail");
        }
        balancer.say_ready();
        balancer.say_what_will_not_fit();
        Ok(balancer)
    }

    /// `reflect` drops what no known gateway sent: the first look comes before the first packet.
    async fn await_gateways(&mut self) {
        if self.config.io().next_hop() == config::NextHop::Reflect
            && let Ok(Some(table)) = tokio::time::timeout(FIRST_NEXT_HOPS, self.found.recv()).await
        {
            self.take_next_hops(table);
        }
    }

    fn say_ready(&self) {
        let snapshot = self.live.current();
        let unresolved: HashSet<IpAddr> =
            snapshot.slots().iter().filter(|slot| slot.next_hop.is_none()).map(|slot| slot.address).collect();
        tracing::info!(
            machine = %self.machine,
            interface = %self.plane.interface().name,
            queues = self.plane.counters().len(),
            xdp = self.plane.attach_mode().name(),
            sockets = self.plane.socket_mode().name(),
            generation = snapshot.generation().0,
            vips = snapshot.filter().len(),
            backends = snapshot.slots().len(),
            unresolved = unresolved.len(),
            "ready"
        );
        self.manager.ready(&self.status());
    }

    fn status(&self) -> String {
        let snapshot = self.live.current();
        format!(
            "generation {}: {} VIP addresses, {} backends on {}",
            snapshot.generation().0,
            snapshot.filter().len(),
            snapshot.slots().len(),
            self.plane.interface().name
        )
    }

    /// Signals, next hops and questions, one at a time.
    ///
    /// # Errors
    /// When the interface is gone.
    async fn serve(&mut self, mut signals: Signals) -> anyhow::Result<()> {
        let mut housekeeping = tokio::time::interval(HOUSEKEEPING);
        let mut looks = tokio::time::interval(liveness::EVERY);
        looks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let ended = loop {
            tokio::select! {
                _ = signals.terminate.recv() => if self.ends_at_once() { break Ok(()) },
                _ = signals.interrupt.recv() => if self.ends_at_once() { break Ok(()) },
                _ = looks.tick() => if self.look() { break Ok(()) },
                _ = signals.hangup.recv(), if self.drain.is_none() => {
                    self.manager.reloading();
                    self.reload().await;
                    self.manager.ready(&self.status());
                }
                Some(table) = self.found.recv() => self.take_next_hops(table),
                Some(ask) = self.questions.recv() => {
                    // An asker who has gone needs no answer.
                    let _ = ask.send(report(&mut self.plane, &self.live.current()));
                }
                _ = housekeeping.tick() => if let Err(error) = self.keep_house() {
                    break Err(error);
                },
            }
        };
        self.say_farewell();
        ended
    }

    /// # Errors
    /// When the interface is gone: program and sockets went with it, and only a new start can bring them back.
    fn keep_house(&mut self) -> anyhow::Result<()> {
        let mine = self.plane.interface();
        let gone = match Interface::read(&mine.name) {
            Ok(found) => found.index != mine.index,
            Err(error) => matches!(error, InterfaceError::Absent { .. }),
        };
        anyhow::ensure!(
            !gone,
            "interface {} is gone, and the XDP program and the sockets with it",
            mine.name
        );
        match self.compiler.end_draining(&self.config, &self.live.current(), self.origin.elapsed()) {
            Ok(Some(snapshot)) => {
                self.live.publish(snapshot);
                self.wanted.send_replace(wanted(&self.config, &self.plane, &self.live));
                tracing::info!("the drain time of removed backends has passed");
            }
            Ok(None) => {}
            Err(error) => tracing::error!(%error, "draining not ended"),
        }
        self.live.reclaim();
        Ok(())
    }

    /// The first signal begins the drain, the second ends it.
    fn ends_at_once(&mut self) -> bool {
        let at_most = self.config.cluster().drain_time();
        if self.drain.is_some() {
            tracing::info!("a second signal: the drain ends");
            return true;
        }
        // Before anything else is done: whoever asks or follows sends nothing new.
        self.liveness.drain();
        self.manager.stopping(at_most + AFTER_DRAIN, "draining");
        tracing::info!(?at_most, "not ready any more, draining; a second signal ends at once");
        self.drain = Some(Drain::begin(Instant::now(), at_most, self.forwarded()));
        at_most.is_zero()
    }

    /// Looks at the data plane. Whether a drain is over.
    fn look(&mut self) -> bool {
        let (now, forwarded) = (Instant::now(), self.forwarded());
        self.liveness.take(self.plane.health(), now);
        let over = self.drain.as_mut().and_then(|drain| drain.look(now, forwarded));
        if let Some(why) = over {
            tracing::info!(%why, "drained");
        }
        over.is_some()
    }

    fn forwarded(&self) -> u64 {
        self.plane.counters().iter().map(|thread| thread.tx_packets.read()).sum()
    }

    fn say_farewell(&mut self) {
        let figures = report(&mut self.plane, &self.live.current());
        self.admin = None;
        tracing::info!(event = "final_counters", figures = %figures, "stopping");
    }

    /// The whole new configuration, or nothing of it.
    async fn reload(&mut self) {
        let started = Instant::now();
        let (config, warnings) = match config::load(&self.file) {
            Ok(loaded) => loaded,
            Err(problems) => {
                tracing::error!(file = %self.file.display(), %problems, "reload refused, the old generation goes on");
                return;
            }
        };
        for warning in warnings.iter() {
            tracing::warn!("{warning}");
        }
        if let Err(error) = self.fits_the_filter(&config) {
            tracing::error!(%error, "reload refused, the old generation goes on");
            return;
        }
        self.find_ways_to_new_backends(&config).await;
        let now = self.origin.elapsed();
        match self.compiler.compile(&config, &self.machine, &self.next_hops, now) {
            Ok(snapshot) => {
                let generation = snapshot.generation().0;
                if let Err(error) = self.publish(snapshot) {
                    // The room was looked at before: what is left is the kernel refusing a map update.
                    tracing::error!(%error, generation, "the XDP filter could not follow the new generation");
                }
                self.say_what_needs_a_restart(&config);
                self.say_what_will_not_fit();
                self.config = config;
                self.wanted.send_replace(wanted(&self.config, &self.plane, &self.live));
                tracing::info!(generation, took = ?started.elapsed(), "reloaded");
            }
            Err(error) => tracing::error!(%error, "reload refused, the old generation goes on"),
        }
    }

    /// The filter's room is what it was at start, whatever the new file says.
    fn fits_the_filter(&self, config: &Config) -> anyhow::Result<()> {
        let addresses: HashSet<&IpAddr> = config.vips().iter().flat_map(config::Vip::addresses).collect();
        anyhow::ensure!(
            addresses.len() <= self.max_vips as usize,
            "{} VIP addresses, and the filter has had room for {} since the start (io.max_vips): a restart makes more",
            addresses.len(),
            self.max_vips
        );
        Ok(())
    }

    /// Full-size packets of clients grow by the outer header: the way to a backend must take that.
    fn say_what_will_not_fit(&self) {
        let snapshot = self.live.current();
        let tight = |slot: &&forwarder::Slot| {
            slot.next_hop.is_some() && usize::from(slot.mtu) < CLIENT_MTU + slot.growth()
        };
        if let Some(slot) = snapshot.slots().iter().find(tight) {
            tracing::warn!(
                backend = %slot.backend,
                mtu = slot.mtu,
                wanted = CLIENT_MTU + slot.growth(),
                count = snapshot.slots().iter().filter(tight).count(),
                "full-size packets for such backends are dropped as too_big: raise the MTU towards them, or have clients \
                 send smaller segments"
            );
        }
    }

    /// Before the snapshot that names them is published: else their first packets would be dropped for want of a way.
    async fn find_ways_to_new_backends(&mut self, config: &Config) {
        let known = &self.next_hops.next_hops;
        let new: Vec<IpAddr> =
            destinations(config, None).into_iter().filter(|address| !known.contains_key(address)).collect();
        if new.is_empty() {
            return;
        }
        match next_hops(&new, NEW_NEXT_HOPS).await {
            Ok(found) => self.next_hops.next_hops.extend(found),
            // The watch goes on asking.
            Err(error) => tracing::warn!(error = %format!("{error:#}"), "ways to new backends not looked up"),
        }
    }

    /// VIPs that go leave the filter first; those that come enter it last.
    fn publish(&mut self, snapshot: forwarder::Snapshot) -> anyhow::Result<()> {
        let coming: HashSet<IpAddr> = snapshot.filter().iter().map(|(address, _)| *address).collect();
        let old = self.live.current();
        let going =
            old.filter().iter().map(|(address, _)| *address).filter(|address| !coming.contains(address));
        self.plane.steer().remove_vips(going)?;
        self.live.publish(snapshot);
        self.open_filter()
    }

    fn open_filter(&mut self) -> anyhow::Result<()> {
        let snapshot = self.live.current();
        self.plane.steer().set_vips(snapshot.filter().iter().copied())?;
        Ok(())
    }

    fn say_what_needs_a_restart(&self, config: &Config) {
        let interfaces =
            |config: &Config| config.machine(&self.machine).map(|machine| machine.interfaces().to_vec());
        let changed = [
            ("io", config.io() != self.config.io()),
            ("log", config.log() != self.config.log()),
            ("admin", config.admin() != self.config.admin()),
            (
                "cluster.flow_timeouts",
                config.cluster().flow_timeouts() != self.config.cluster().flow_timeouts(),
            ),
            ("machine.interfaces", interfaces(config) != interfaces(&self.config)),
        ];
        for (section, _) in changed.iter().filter(|(_, changed)| *changed) {
            tracing::warn!(section, "this change takes effect at the next start");
        }
    }

    fn take_next_hops(&mut self, mut table: next_hop::Table) {
        for (address, way) in &mut table.next_hops {
            let before = self.next_hops.next_hops.get(address);
            match way {
                // A flushed neighbour is back in a moment: until the kernel gives up, the last one stands.
                Err(why) if pending(why).is_some() && matches!(before, Some(Ok(_))) => {
                    *way = before.cloned().unwrap_or(Err(Unresolved::NoRoute));
                }
                Err(why) if before.is_none_or(|before| before.is_ok()) => {
                    tracing::warn!(backend = %address, %why, "no way to this backend");
                }
                Ok(_) if !matches!(before, Some(Ok(_))) => {
                    tracing::info!(backend = %address, "next hop resolved")
                }
                _ => {}
            }
        }
        // A look that began before a reload does not know the backends that came by it.
        for address in &self.wanted.borrow().destinations {
            if let Some(way) = self.next_hops.next_hops.get(address) {
                table.next_hops.entry(*address).or_insert(*way);
            }
        }
        self.next_hops = table;
        match refresh_next_hops(&self.live.current(), &self.config, &self.next_hops) {
            Ok(snapshot) => self.live.publish(snapshot),
            Err(error) => tracing::error!(%error, "next hops not taken over"),
        }
    }
}

/// Next hops before the first packet: the kernel is told to ask the neighbours that it does not know, and given a moment.
pub(crate) async fn next_hops(addresses: &[IpAddr], patience: Duration) -> anyhow::Result<NextHops> {
    let mut resolver = Resolver::open()?;
    let deadline = Instant::now() + patience;
    let mut asked = HashSet::new();
    loop {
        let next_hops = resolver.resolve(addresses).await.context("looking up next hops")?;
        let pending: HashSet<(u32, IpAddr)> =
            next_hops.values().filter_map(|way| way.as_ref().err()).filter_map(pending).collect();
        if pending.is_empty() || Instant::now() > deadline {
            return Ok(next_hops);
        }
        for (interface, neighbour) in pending {
            if asked.insert((interface, neighbour)) {
                resolver.ask(interface, neighbour).await.context("asking for a neighbour")?;
            }
        }
        tokio::time::sleep(NEXT_HOP_STEP).await;
    }
}

/// The neighbour that an answer is awaited from.
fn pending(why: &Unresolved) -> Option<(u32, IpAddr)> {
    match *why {
        Unresolved::NeighbourPending { interface, neighbour } => Some((interface, neighbour)),
        _ => None,
    }
}

fn wanted(config: &Config, plane: &DataPlane, live: &Live) -> Wanted {
    let reflecting = config.io().next_hop() == config::NextHop::Reflect;
    let gateway_interfaces = if reflecting { vec![plane.interface().index] } else { Vec::new() };
    Wanted { destinations: destinations(config, Some(&live.current())), gateway_interfaces }
}

/// A task that keeps next hops fresh: what it wants, and what it finds.
fn watch_next_hops(
    first: Wanted,
) -> anyhow::Result<(watch::Sender<Wanted>, mpsc::Receiver<next_hop::Table>)> {
    let (wanted, wanted_receiver) = watch::channel(first);
    let (tables, found) = mpsc::channel(NEXT_HOP_QUEUE);
    let watch = Watch::open()?;
    tokio::spawn(async move {
        // Tables come whole: one that does not fit into the queue is made good by the next.
        let ended = watch.run(wanted_receiver, std::future::pending(), |table| {
            let _ = tables.try_send(table.clone());
        });
        if let Err(error) = ended.await {
            tracing::error!(%error, "next hops are no longer kept fresh");
        }
    });
    Ok((wanted, found))
}

fn only_interface<'a>(config: &'a Config, machine: &str) -> anyhow::Result<&'a str> {
    match find_machine(config, machine)?.interfaces() {
        [one] => Ok(one),
        several => {
            anyhow::bail!("machine {machine} has {} interfaces: this version works on one", several.len())
        }
    }
}

fn settings(config: &Config) -> Settings {
    let io = config.io();
    Settings {
        queues: io.queues(),
        frames_per_queue: io.frames_per_queue(),
        batch: io.batch(),
        flows_per_thread: io.flows_per_thread(),
        timeouts: timeouts(config),
        idle: Idle { spin: io.idle().spin(), sleep: io.idle().then() == config::IdleThen::Sleep },
        max_vips: io.max_vips(),
        max_slots: COUNTED_SLOTS,
        no_socket: match io.no_socket() {
            config::NoSocket::Pass => NoSocket::Pass,
            config::NoSocket::Drop => NoSocket::Drop,
        },
        replies_per_second: REPLIES_PER_SECOND,
    }
}

const ADMIN_QUEUE: usize = 16;
const NEXT_HOP_QUEUE: usize = 16;
/// IPv6 neighbours on a link that has just come up take some two seconds.
const FIRST_NEXT_HOPS: Duration = Duration::from_secs(4);
/// A reload waits no longer than this for neighbours that the kernel does not know; most answer in a millisecond.
const NEW_NEXT_HOPS: Duration = Duration::from_secs(1);
const NEXT_HOP_STEP: Duration = Duration::from_millis(50);
/// What clients on Ethernet send at most.
const CLIENT_MTU: usize = 1500;
/// What detaching takes at most, for the service manager.
const AFTER_DRAIN: Duration = Duration::from_secs(15);
const HOUSEKEEPING: Duration = Duration::from_secs(1);
/// Slots and services that have counters of their own; 16 bytes each and thread, taken when first counted.
const COUNTED_SLOTS: usize = 65_536;
/// ICMP echo answers a second and thread.
const REPLIES_PER_SECOND: u32 = 1_000;
