//! Implements the new process of an upgrade. The process prepares as much as possible, and then
//! takes over what the old process releases. Before the old process releases a resource, the new
//! process does not change it. If a step fails, the old process receives the reason.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use compile::Compiler;
use config::Config;
use control_plane::announce::{Announcer, HandedBfd};
use control_plane::publisher::Publisher;
use control_plane::{HandedState, Overrides, Paths};
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
use crate::run::loop_tasks::LoopTasks;
use crate::run::predecessor::Predecessor;
use crate::run::{Api, Daemon, Inspections, addresses_here, settings};

/// The channel to the old process, and the offer of the old process.
#[derive(Debug)]
pub(in crate::run) struct NewProcess {
    channel: Channel,
    offer: Offer,
    descriptors: Vec<std::os::fd::OwnedFd>,
}

/// A connection table of the old process.
#[derive(Clone, Copy, Debug)]
enum Table {
    /// The connection table of a packet thread.
    Thread(ThreadId),
    /// The connection table of an earlier process. No packet thread owns this table.
    PreviousTables(usize),
}

/// The channel through which a failure is reported to the old process.
#[derive(Debug)]
pub(in crate::run) struct Refusing(Channel);

impl Refusing {
    pub(in crate::run) fn refuse(mut self, error: &anyhow::Error) {
        // The old process may already have exited.
        let _ = self.0.say(&FromNew::Refused(format!("{error:#}")));
    }
}

impl NewProcess {
    /// Receives the offer of the old process.
    pub(in crate::run) fn receive() -> anyhow::Result<(Self, Refusing)> {
        let of_another = "--take-over is only for processes that `sluicegate machine upgrade` starts";
        let mut channel = Channel::of_standard_input().context(of_another)?;
        let offer = channel.receive(OFFERED_WITHIN).context(of_another)?;
        let refusing = Refusing(channel.try_clone()?);
        match Self::read(channel, &offer) {
            Ok(new_process) => Ok((new_process, refusing)),
            Err(error) => {
                refusing.refuse(&error);
                Err(error)
            }
        }
    }

    fn read(channel: Channel, offer: &[u8]) -> anyhow::Result<Self> {
        // The protocol version is parsed first, because the format of the other fields depends on
        // it.
        let whole: serde_json::Value = serde_json::from_slice(offer)?;
        let protocol = whole.get("protocol").and_then(serde_json::Value::as_u64);
        ensure!(
            protocol == Some(PROTOCOL.into()),
            "the old process uses upgrade protocol {}, and this version uses {PROTOCOL}; restart the service instead",
            protocol.unwrap_or(0)
        );
        let offer: Offer =
            serde_json::from_value(whole).context("cannot parse the first message of the old process")?;
        let descriptors = channel.receive_descriptors(offer.descriptors, OFFERED_WITHIN)?;
        Ok(Self { channel, offer, descriptors })
    }

    fn lifecycle(&self) -> anyhow::Result<Lifecycle> {
        let ago = monotonic().checked_sub(Duration::from_nanos(self.offer.start_nanos));
        let since = ago
            .and_then(|ago| Instant::now().checked_sub(ago))
            .context("the start time of the old process is invalid")?;
        let mut lifecycle = Lifecycle::since(since);
        lifecycle.predecessor = Predecessor::of(self.channel.maker()?).map(Arc::new);
        Ok(lifecycle)
    }

    fn say(&mut self, message: &FromNew) -> io::Result<()> {
        self.channel.say(message)
    }

    fn hear(&mut self) -> anyhow::Result<FromOld> {
        self.channel.hear(TOLD_WITHIN).context("no message from the old process")
    }

    /// Receives the flows of a connection table in parts. The table is created when the first flows
    /// arrive.
    fn fill(&mut self, plane: &mut DataPlane, table: Table) -> anyhow::Result<()> {
        loop {
            let records = self.channel.receive(TOLD_WITHIN)?;
            if records.is_empty() {
                return Ok(());
            }
            let flows = match table {
                Table::Thread(thread) => plane.flows_of(thread),
                Table::PreviousTables(number) => plane.previous_table(number),
            };
            flows
                .with_context(|| match table {
                    Table::Thread(thread) => format!("no connection table for flows of thread {}", thread.0),
                    Table::PreviousTables(number) => {
                        format!("no connection table for flows of earlier table {number}")
                    }
                })?
                .unpack(&records)?;
        }
    }

    /// Receives the connection tables of earlier processes, if the offer lists any.
    fn take_previous(&mut self, plane: &mut DataPlane) -> anyhow::Result<()> {
        let count = self.offer.plane.previous_tables();
        if count == 0 {
            return Ok(());
        }
        (0..count).try_for_each(|number| self.fill(plane, Table::PreviousTables(number)))?;
        plane.previous_tables_exist();
        Ok(self.say(&FromNew::Taken)?)
    }

    fn bfd(&mut self, descriptors: usize) -> anyhow::Result<HandedBfd> {
        let bytes = self.channel.receive(TOLD_WITHIN)?;
        let sockets = self.channel.receive_descriptors(descriptors, TOLD_WITHIN)?;
        Ok(HandedBfd::from_parts(&bytes, sockets)?)
    }

    /// Takes over the queues. The counters of the XDP program start at 0, like the counters of the
    /// threads.
    fn take_queues(&mut self, plane: &mut DataPlane) -> anyhow::Result<()> {
        plane.steers.restart_counts()?;
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
    /// Takes over from the old process and runs the daemon.
    pub(in crate::run) async fn come(
        configuration: Configuration,
        config: Arc<Config>,
        machine: &str,
        logging: Logging,
        mut new_process: NewProcess,
    ) -> anyhow::Result<Self> {
        ensure!(
            config.digest() == new_process.offer.digest,
            "the configuration file or one of its secrets has changed since the last reload; run `sluicegate config reload` first"
        );
        let mut daemon = Self::prepare(configuration, config, machine, logging, &mut new_process).await?;
        daemon.take_over(&mut new_process).await?;
        // A missing confirmation is only logged. The old process may have exited after the last
        // message, so this process must always continue.
        if let Err(error) = new_process.hear() {
            // log: The old process exited at the end of an upgrade without sending a confirmation.
            // The new process has taken over completely.
            tracing::warn!(error = %format!("{error:#}"), "old process exited without a confirmation");
        }
        daemon.forwarding.plane.keep();
        daemon.announcer.keep_bfd();
        daemon.forwarding.keep_ports();
        daemon.begin_checks();
        // log: The new process has taken over completely. The field `from` is the version of the
        // old process.
        tracing::info!(change = "machine", previous_version = new_process.offer.version, "upgrade completed");
        Ok(daemon)
    }

    /// Prepares everything that does not depend on resources of the old process.
    async fn prepare(
        configuration: Configuration,
        config: Arc<Config>,
        machine: &str,
        logging: Logging,
        new_process: &mut NewProcess,
    ) -> anyhow::Result<Self> {
        let lifecycle = new_process.lifecycle()?;
        let interfaces = taken_interfaces(&config, machine)?;
        let next_hops = first_next_hops(&config, machine, &interfaces).await?;
        let compiler = Compiler::numbered(&new_process.offer.numbers());
        let (controller, live) =
            first_generation(compiler, &config, machine, &next_hops, lifecycle.elapsed())?;
        let descriptors = std::mem::take(&mut new_process.descriptors);
        let offered = TakenPlane { facts: &new_process.offer.plane, descriptors };
        let settings = settings(&config, &interfaces);
        let plane = DataPlane::take_over(interfaces, &settings, &live, offered)?;
        let mut forwarding = Forwarding::new(plane, config.io().source_ports.clone());
        forwarding.reserve_beside(&live.current())?;
        let paths = Paths::open(next_hops, &config, machine, &live.current())?;
        let tunnel =
            HealthTunnel::new(machine, forwarding.interface_names(), live.clone(), paths.check_hops());
        Ok(Self {
            configuration,
            controller,
            overrides: Overrides::default(),
            publisher: Publisher::new(live),
            announcer: Announcer::default(),
            paths,
            forwarding,
            checks: Checks::before_tunnel(tunnel)?,
            inspections: Inspections::default(),
            api: Api::closed(machine, lifecycle.liveness.subscribe(), logging),
            lifecycle,
            tasks: LoopTasks::new(),
        })
    }

    /// Takes over the state, then the queues, then the listeners.
    async fn take_over(&mut self, new_process: &mut NewProcess) -> anyhow::Result<()> {
        self.adopt(&new_process.offer.state)?;
        new_process.say(&FromNew::Ready {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            bfd: true,
            previous: true,
        })?;
        let FromOld::Frozen(state) = new_process.hear()? else { bail!("{UNORDERLY}") };
        self.adopt(&state)?;
        new_process.say(&FromNew::Taken)?;
        new_process.take_previous(&mut self.forwarding.plane)?;
        new_process.take_queues(&mut self.forwarding.plane)?;
        self.open_filter()?;
        let mut word = new_process.hear()?;
        if let FromOld::Bfd { descriptors } = word {
            self.announcer.take_bfd(new_process.bfd(descriptors)?)?;
            new_process.say(&FromNew::Taken)?;
            word = new_process.hear()?;
        }
        let FromOld::Left = word else { bail!("{UNORDERLY}") };
        self.open_to_others().await?;
        Ok(new_process.say(&FromNew::Taken)?)
    }

    /// Applies the overrides, health states, announcements and path MTUs of the old process, and
    /// rebuilds the tables from them.
    fn adopt(&mut self, state: &HandedState) -> anyhow::Result<()> {
        let now = self.lifecycle.elapsed();
        self.paths.take_over(state.learned());
        self.announcer.take(&state.announcements);
        let current = self.publisher.current();
        if let Some(snapshot) = state.give(&mut self.controller, &mut self.overrides, &current, now)? {
            self.publisher.renew(snapshot);
        }
        while self.controller.wants_job() {
            let Some(job) = self.job(None) else { break };
            let snapshot = self.finish(job.run())?;
            self.publisher.renew(snapshot);
        }
        let failing = state.failing_hops(&self.controller);
        self.checks.know_failing_hops(failing.clone());
        self.paths.take_over_failing_hops(failing);
        self.renew_paths();
        Ok(())
    }

    /// Updates the BPF maps of the XDP filter, which the old process has created.
    fn open_filter(&mut self) -> anyhow::Result<()> {
        let (config, machine) = (Arc::clone(self.controller.config()), self.controller.machine().to_owned());
        Ok(self.publisher.open(&config, &machine, addresses_here(), &mut self.forwarding)?)
    }

    /// Opens the listeners, BGP sessions and the health check tunnel. Retries failures, because a
    /// port that the old process has just closed may stay in use for a moment.
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
            ensure!(Instant::now() < until, "cannot open the health check tunnel: {error}");
            tokio::time::sleep(A_MOMENT).await;
        }
        Ok(())
    }
}

/// Reads the interfaces on which the old process is still forwarding packets.
fn taken_interfaces(config: &Config, machine: &str) -> anyhow::Result<Vec<Interface>> {
    let names = &compile::find_machine(config, machine)?.interfaces;
    Ok(names.iter().map(|name| inspect_taken(name)).collect::<Result<_, _>>()?)
}

const UNORDERLY: &str = "unexpected message from the old process";
const OFFERED_WITHIN: Duration = Duration::from_secs(10);
/// The timeout for a message. The old process may have to walk large connection tables before it
/// sends a message.
const TOLD_WITHIN: Duration = Duration::from_secs(30);
const FREE_WITHIN: Duration = Duration::from_secs(2);
const A_MOMENT: Duration = Duration::from_millis(5);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offer_with_other_protocol_is_rejected() {
        let refused = |offer: &str| {
            let (channel, _other) = Channel::pair().unwrap();
            format!("{:#}", NewProcess::read(channel, offer.as_bytes()).unwrap_err())
        };
        let by = |number: u32| {
            format!(
                "the old process uses upgrade protocol {number}, and this version uses {PROTOCOL}; restart the service instead"
            )
        };
        assert_eq!(refused("{\"protocol\": 7, \"version\": [\"in another way\"]}"), by(7));
        assert_eq!(refused("{}"), by(0));
        let cut = refused(&format!("{{\"protocol\": {PROTOCOL}}}"));
        assert!(cut.starts_with("cannot parse the first message of the old process: missing field"), "{cut}");
    }
}
