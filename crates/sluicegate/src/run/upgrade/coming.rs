//! The new process's side: sets up all that it can, then takes what the old one lets go.
//!
//! In: the old process's [`Offer`] by standard input, and the configuration. Out: a balancer at work, or the reason why not, which the
//! old process hears.
//! Invariant: nothing that the old process needs is touched before it has let go of it.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use compile::Compiler;
use config::Config;
use control_plane::announce::{Announcer, HandedBfd};
use control_plane::publisher::Publisher;
use control_plane::{HandedState, Orders, Paths};
use datapath::interface::Interface;
use datapath::{DataPlane, TakenPlane, inspect_taken};
use forwarder::ThreadId;

use super::channel::Channel;
use super::{FromNew, FromOld, Offer, PROTOCOL, monotonic};
use crate::listeners;
use crate::logging::Logging;
use crate::run::checks::Checks;
use crate::run::configuration::Configuration;
use crate::run::first_generation::{first_generation, first_next_hops};
use crate::run::forwarding::Forwarding;
use crate::run::health_tunnel::HealthTunnel;
use crate::run::lifecycle::Lifecycle;
use crate::run::predecessor::Predecessor;
use crate::run::turns::Turns;
use crate::run::{Api, Daemon, Inspections, addresses_here, settings};

/// The old process, as the new one sees it.
#[derive(Debug)]
pub(in crate::run) struct Coming {
    channel: Channel,
    offer: Offer,
    descriptors: Vec<std::os::fd::OwnedFd>,
}

/// A connection table of the old process.
#[derive(Clone, Copy, Debug)]
enum Table {
    /// Of one of its threads.
    Thread(ThreadId),
    /// Of no thread.
    Former(usize),
}

/// By which the old process hears why nothing comes of it.
#[derive(Debug)]
pub(in crate::run) struct Refusing(Channel);

impl Refusing {
    pub(in crate::run) fn refuse(mut self, error: &anyhow::Error) {
        // An old process that has gone needs no reason.
        let _ = self.0.say(&FromNew::Refused(format!("{error:#}")));
    }
}

impl Coming {
    /// What the old process offers.
    pub(in crate::run) fn receive() -> anyhow::Result<(Self, Refusing)> {
        let of_another = "--take-over is for a process that `sluicegate machine upgrade` starts";
        let mut channel = Channel::of_standard_input().context(of_another)?;
        let offer = channel.receive(OFFERED_WITHIN).context(of_another)?;
        let refusing = Refusing(channel.try_clone()?);
        match Self::read(channel, &offer) {
            Ok(coming) => Ok((coming, refusing)),
            Err(error) => {
                refusing.refuse(&error);
                Err(error)
            }
        }
    }

    fn read(channel: Channel, offer: &[u8]) -> anyhow::Result<Self> {
        // Its number first: of another protocol nothing else can be read.
        let whole: serde_json::Value = serde_json::from_slice(offer)?;
        let protocol = whole.get("protocol").and_then(serde_json::Value::as_u64);
        ensure!(
            protocol == Some(PROTOCOL.into()),
            "the old process hands over by protocol {}, this version by {PROTOCOL}: a restart is needed",
            protocol.unwrap_or(0)
        );
        let offer: Offer = serde_json::from_value(whole).context("what the old process offers")?;
        let descriptors = channel.receive_descriptors(offer.descriptors, OFFERED_WITHIN)?;
        Ok(Self { channel, offer, descriptors })
    }

    fn lifecycle(&self) -> anyhow::Result<Lifecycle> {
        let ago = monotonic().checked_sub(Duration::from_nanos(self.offer.start_nanos));
        let since = ago.and_then(|ago| Instant::now().checked_sub(ago)).context("the clocks differ")?;
        let mut lifecycle = Lifecycle::since(since);
        lifecycle.predecessor = Predecessor::of(self.channel.maker()?).map(Arc::new);
        Ok(lifecycle)
    }

    fn say(&mut self, message: &FromNew) -> io::Result<()> {
        self.channel.say(message)
    }

    fn hear(&mut self) -> anyhow::Result<FromOld> {
        self.channel.hear(TOLD_WITHIN).context("the old process")
    }

    /// A table that comes now, in parts; one without flows is made by nobody.
    fn fill(&mut self, plane: &mut DataPlane, table: Table) -> anyhow::Result<()> {
        loop {
            let records = self.channel.receive(TOLD_WITHIN)?;
            if records.is_empty() {
                return Ok(());
            }
            let flows = match table {
                Table::Thread(thread) => plane.flows_of(thread),
                Table::Former(number) => plane.former_table(number),
            };
            flows.with_context(|| format!("there is no place for flows of {table:?}"))?.unpack(&records)?;
        }
    }

    /// The tables that no thread of the old process has, if there are some.
    fn take_former(&mut self, plane: &mut DataPlane) -> anyhow::Result<()> {
        let count = self.offer.plane.former_tables();
        if count == 0 {
            return Ok(());
        }
        (0..count).try_for_each(|number| self.fill(plane, Table::Former(number)))?;
        plane.former_tables_are_there();
        Ok(self.say(&FromNew::Taken)?)
    }

    fn bfd(&mut self, descriptors: usize) -> anyhow::Result<HandedBfd> {
        let bytes = self.channel.receive(TOLD_WITHIN)?;
        let sockets = self.channel.receive_descriptors(descriptors, TOLD_WITHIN)?;
        Ok(HandedBfd::from_parts(&bytes, sockets)?)
    }

    fn take_queues(&mut self, plane: &mut DataPlane) -> anyhow::Result<()> {
        while plane.waits_for_queues() {
            let FromOld::Released { threads, tables } = self.hear()? else { bail!("{UNORDERLY}") };
            let mut tables = tables.into_iter().map(|thread| Table::Thread(ThreadId(thread)));
            tables.try_for_each(|table| self.fill(plane, table))?;
            let group: Vec<ThreadId> = threads.into_iter().map(ThreadId).collect();
            plane.take(&group)?;
            self.say(&FromNew::Taken)?;
        }
        Ok(())
    }
}

impl Daemon {
    /// Comes in the place of another process.
    pub(in crate::run) async fn come(
        configuration: Configuration,
        config: Arc<Config>,
        machine: &str,
        logging: Logging,
        mut coming: Coming,
    ) -> anyhow::Result<Self> {
        ensure!(
            config.digest() == coming.offer.digest,
            "the file, or a secret that it names, is not what is in force: `sluicegate config reload` first"
        );
        let mut daemon = Self::prepare(configuration, config, machine, logging, &mut coming).await?;
        daemon.take_over(&mut coming).await?;
        // Without a word it has gone after it heard the last one: somebody must go on.
        if let Err(error) = coming.hear() {
            tracing::warn!(error = %format!("{error:#}"), "the old process left without a word");
        }
        daemon.forwarding.plane.keep();
        daemon.announcer.keep_bfd();
        daemon.forwarding.keep_ports();
        daemon.begin_checks();
        tracing::info!(
            change = "machine",
            from = coming.offer.version,
            "has taken over from the old process"
        );
        Ok(daemon)
    }

    /// All that needs nothing of what the old process has.
    async fn prepare(
        configuration: Configuration,
        config: Arc<Config>,
        machine: &str,
        logging: Logging,
        coming: &mut Coming,
    ) -> anyhow::Result<Self> {
        let lifecycle = coming.lifecycle()?;
        let interfaces = taken_interfaces(&config, machine)?;
        let next_hops = first_next_hops(&config, machine, &interfaces).await?;
        let compiler = Compiler::numbered(&coming.offer.numbers());
        let (controller, live) =
            first_generation(compiler, &config, machine, &next_hops, lifecycle.elapsed())?;
        let descriptors = std::mem::take(&mut coming.descriptors);
        let offered = TakenPlane { facts: &coming.offer.plane, descriptors };
        let plane = DataPlane::take_over(interfaces, &settings(&config), &live, offered)?;
        let mut forwarding = Forwarding::new(plane, config.io().own_ports.clone());
        forwarding.reserve_beside(&live.current())?;
        let paths = Paths::open(next_hops, &config, machine, &live.current())?;
        let tunnel = HealthTunnel::new(machine, forwarding.interface_names(), live.clone());
        Ok(Self {
            configuration,
            controller,
            orders: Orders::default(),
            publisher: Publisher::new(live),
            announcer: Announcer::default(),
            paths,
            forwarding,
            checks: Checks::before_tunnel(tunnel)?,
            inspections: Inspections::default(),
            api: Api::closed(machine, lifecycle.liveness.subscribe(), logging),
            lifecycle,
            turns: Turns::new(),
        })
    }

    /// What the old process lets go of, in the order of a hand-over: what it knows, its queues, its listeners.
    async fn take_over(&mut self, coming: &mut Coming) -> anyhow::Result<()> {
        self.adopt(&coming.offer.state)?;
        coming.say(&FromNew::Ready {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            bfd: true,
            former: true,
        })?;
        let FromOld::Frozen(state) = coming.hear()? else { bail!("{UNORDERLY}") };
        self.adopt(&state)?;
        coming.say(&FromNew::Taken)?;
        coming.take_former(&mut self.forwarding.plane)?;
        coming.take_queues(&mut self.forwarding.plane)?;
        self.open_filter()?;
        let mut word = coming.hear()?;
        if let FromOld::Bfd { descriptors } = word {
            self.announcer.take_bfd(coming.bfd(descriptors)?)?;
            coming.say(&FromNew::Taken)?;
            word = coming.hear()?;
        }
        let FromOld::Left = word else { bail!("{UNORDERLY}") };
        self.open_to_others().await?;
        Ok(coming.say(&FromNew::Taken)?)
    }

    /// Orders, verdicts and paths of the old process, and the tables that follow from them.
    fn adopt(&mut self, state: &HandedState) -> anyhow::Result<()> {
        let now = self.lifecycle.elapsed();
        self.paths.take_over(state.learned());
        let current = self.publisher.current();
        if let Some(snapshot) = state.give(&mut self.controller, &mut self.orders, &current, now)? {
            self.publisher.renew(snapshot);
        }
        while self.controller.wants_job() {
            let Some(job) = self.job(None) else { break };
            let snapshot = self.finish(job.run())?;
            self.publisher.renew(snapshot);
        }
        self.renew_paths();
        Ok(())
    }

    /// The maps are the old process's: what differs is changed.
    fn open_filter(&mut self) -> anyhow::Result<()> {
        let (config, machine) = (Arc::clone(self.controller.config()), self.controller.machine().to_owned());
        Ok(self.publisher.open(&config, &machine, addresses_here(), &mut self.forwarding)?)
    }

    /// Listeners, routers, the checks' tunnel. What the old process has just closed may take the kernel a moment.
    async fn open_to_others(&mut self) -> anyhow::Result<()> {
        let (config, machine) = (Arc::clone(self.controller.config()), self.controller.machine().to_owned());
        let until = Instant::now() + FREE_WITHIN;
        let bound = loop {
            match listeners::bind(&config, &machine, &self.api.listeners.existing()).await {
                Err(_) if Instant::now() < until => tokio::time::sleep(A_MOMENT).await,
                bound => break bound?,
            }
        };
        self.api.listeners.take(&config, &machine, bound);
        self.lifecycle.liveness.is_set_up();
        self.speak_again()?;
        while let Err(error) = self.checks.tunnel().open(&config).await {
            ensure!(Instant::now() < until, "the checks' tunnel: {error}");
            tokio::time::sleep(A_MOMENT).await;
        }
        Ok(())
    }
}

/// The machine's, on which the old process forwards still.
fn taken_interfaces(config: &Config, machine: &str) -> anyhow::Result<Vec<Interface>> {
    let names = &compile::find_machine(config, machine)?.interfaces;
    Ok(names.iter().map(|name| inspect_taken(name)).collect::<Result<_, _>>()?)
}

const UNORDERLY: &str = "the old process does not keep to the order of a hand-over";
const OFFERED_WITHIN: Duration = Duration::from_secs(10);
/// The old process may have large tables to look through.
const TOLD_WITHIN: Duration = Duration::from_secs(30);
const FREE_WITHIN: Duration = Duration::from_secs(2);
const A_MOMENT: Duration = Duration::from_millis(5);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_protocol_is_refused_by_its_number_whatever_else_is_said() {
        let refused = |offer: &str| {
            let (channel, _other) = Channel::pair().unwrap();
            format!("{:#}", Coming::read(channel, offer.as_bytes()).unwrap_err())
        };
        let by = |number: u32| {
            format!(
                "the old process hands over by protocol {number}, this version by {PROTOCOL}: a restart is needed"
            )
        };
        assert_eq!(refused("{\"protocol\": 7, \"version\": [\"in another way\"]}"), by(7));
        assert_eq!(refused("{}"), by(0));
        let cut = refused(&format!("{{\"protocol\": {PROTOCOL}}}"));
        assert!(cut.starts_with("what the old process offers: missing field"), "{cut}");
    }
}
