//! Runs the control plane of the daemon, driven by the timestamps of a capture. All health checks
//! pass, a single next hop replaces the routes and neighbors of the kernel ([`Ways`]), and there
//! are no BGP peers.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use compile::{PathMtus, find_machine, refresh_next_hops};
use config::Config;
use control_plane::Controller;
use control_plane::publisher::{self, Publisher};
use datapath::Replay;
use datapath::steer::TunnelEndpoints;
use forwarder::{InterfaceId, Live, NextHopMode, Notice, Prefix, Snapshot};
use health::{Flushed, HealthState};
use next_hop::{Resolved, Table};
use packet::{Mac, Tags};

use crate::run::{ends, filter};

/// The next hop that all backends share.
#[derive(Clone, Debug)]
pub(super) struct Ways {
    pub(super) next_hop: Mac,
    pub(super) own: Mac,
    /// The outgoing interface, or `None` to use the first interface of the machine.
    pub(super) interface: Option<String>,
    /// The path MTU, or `None` to use the MTU in the configuration.
    pub(super) mtu: Option<u16>,
}

/// The control plane of a replay.
pub(super) struct Control {
    controller: Controller,
    publisher: Publisher,
    mtus: PathMtus,
    ways: Ways,
    interfaces: Vec<String>,
    /// The index of the default interface in `interfaces`.
    usual: usize,
}

impl Control {
    pub(super) fn start(config: Config, machine: &str, ways: Ways) -> anyhow::Result<Self> {
        let interfaces = find_machine(&config, machine)?.interfaces.clone();
        let interfaces: Vec<String> = interfaces.iter().map(ToString::to_string).collect();
        let usual = match &ways.interface {
            None => 0,
            Some(wanted) => interfaces.iter().position(|name| name == wanted).with_context(|| {
                format!(
                    "machine {machine} has no interface {wanted} (its interfaces: {})",
                    interfaces.join(", ")
                )
            })?,
        };
        let (controller, snapshot) =
            Controller::start(Arc::new(config), machine, Arc::default(), Duration::ZERO)?;
        let publisher = Publisher::new(Live::new(snapshot));
        let mut control = Self { controller, publisher, mtus: PathMtus::default(), ways, interfaces, usual };
        control.pass_checks(Duration::ZERO)?;
        control.publish(Snapshot::clone(&control.publisher.current()))?;
        Ok(control)
    }

    pub(super) fn live(&self) -> &Live {
        self.publisher.live()
    }

    pub(super) fn interfaces(&self) -> &[String] {
        &self.interfaces
    }

    /// Returns the ID of the named interface. Unknown or missing names select the default
    /// interface.
    pub(super) fn interface(&self, name: Option<&str>) -> InterfaceId {
        let named = name.and_then(|name| self.interfaces.iter().position(|own| own == name));
        InterfaceId(u8::try_from(named.unwrap_or(self.usual)).unwrap_or(u8::MAX))
    }

    /// Adds the VIPs of the current configuration to the packet filter of the thread.
    pub(super) fn open(&mut self, thread: &mut Replay) {
        let (config, machine) = (Arc::clone(self.controller.config()), self.controller.machine());
        let Ok(()) = self.publisher.open(&config, machine, BTreeSet::new(), &mut ReplayFilter(thread));
        self.mtus.follow(&self.publisher.current(), config.cluster().mtu.core);
    }

    /// Switches to another configuration. No frame arrives during the switch, so the order of the
    /// steps does not matter.
    pub(super) fn reload(
        &mut self,
        config: Config,
        thread: &mut Replay,
        now: Duration,
    ) -> anyhow::Result<()> {
        self.compile(Some(Arc::new(config)), now)?;
        self.pass_checks(now)?;
        self.open(thread);
        Ok(())
    }

    /// Applies the path MTUs that routers reported.
    pub(super) fn take_notices(&mut self, thread: &mut Replay, now: Duration) -> anyhow::Result<()> {
        let mut lowered = false;
        for notice in thread.notices() {
            if let Notice::PathMtu { destination, mtu } = notice {
                lowered |= self.mtus.learn(destination, mtu, now);
            }
        }
        if lowered { self.publish(Snapshot::clone(&self.publisher.current())) } else { Ok(()) }
    }

    /// Removes expired drains, overrides and learned path MTUs.
    pub(super) fn look(&mut self, now: Duration) -> anyhow::Result<()> {
        let current = self.publisher.current();
        let ended = self.controller.tick(&current, now)?;
        if self.mtus.expire(now) || ended.is_some() {
            self.publish(ended.unwrap_or_else(|| Snapshot::clone(&current)))?;
        }
        self.follow_states(now)
    }

    /// Marks all new backends as up.
    fn pass_checks(&mut self, now: Duration) -> anyhow::Result<()> {
        let up = self.controller.watched().into_iter().map(|watched| (watched.key, HealthState::Up));
        let up: Vec<_> = up.collect();
        if let Some(snapshot) = self.controller.health_states(&up, &self.publisher.current(), now)? {
            self.publish(snapshot)?;
        }
        // There are no servers to flush, so every cache flush succeeds.
        let empty = self.controller.flushes().into_iter();
        let empty: Vec<_> = empty.map(|flush| Flushed { number: flush.number, result: Ok(()) }).collect();
        if let Some(snapshot) = self.controller.flushed(&empty, &self.publisher.current(), now)? {
            self.publish(snapshot)?;
        }
        self.follow_states(now)
    }

    fn follow_states(&mut self, now: Duration) -> anyhow::Result<()> {
        if self.controller.wants_job() { self.compile(None, now) } else { Ok(()) }
    }

    fn compile(&mut self, config: Option<Arc<Config>>, now: Duration) -> anyhow::Result<()> {
        let states = self.publisher.current().states().to_vec();
        let job =
            self.controller.job(config, Arc::default(), states, now).context("tables are being built")?;
        let snapshot = self.controller.finish(job.run(), now)?;
        self.publish(snapshot)
    }

    fn publish(&mut self, snapshot: Snapshot) -> anyhow::Result<()> {
        let (config, machine) = (self.controller.config(), self.controller.machine());
        let table = self.table(&snapshot, config);
        let found = refresh_next_hops(&snapshot, config, machine, &table, &self.mtus)?;
        let slots = found.slots().to_vec();
        self.publisher.renew(found.with_slots(slots, NextHopMode::Resolve)?);
        self.publisher.live().reclaim();
        Ok(())
    }

    /// Returns a next-hop table in which all slots have the same next hop.
    fn table(&self, snapshot: &Snapshot, config: &Config) -> Table {
        let index = u32::try_from(self.usual).unwrap_or(u32::MAX);
        let way = Resolved {
            interface: index,
            leaves_by: index,
            tags: Tags::NONE,
            destination: self.ways.next_hop.0,
            source: self.ways.own.0,
            mtu_bytes: self.ways.mtu.map_or(config.cluster().mtu.core.unwrap_or(1_500), u32::from),
            gateway: None,
            preferred_source: None,
        };
        let next_hops = snapshot.slots().iter().map(|slot| (slot.address, Ok(way).into())).collect();
        let interfaces = (0..).take(self.interfaces.len()).collect();
        Table { next_hops, interfaces, ..Table::default() }
    }
}

/// The packet filter of a replay. The filter contains only those machine addresses that are in the
/// configuration.
struct ReplayFilter<'a>(&'a mut Replay);

impl publisher::Filter for ReplayFilter<'_> {
    type Error = Infallible;

    fn narrow_to(&mut self, _: &Snapshot, _: &BTreeSet<IpAddr>) -> Result<(), Infallible> {
        Ok(())
    }

    fn set(
        &mut self,
        now: &Snapshot,
        own: &BTreeSet<IpAddr>,
        addresses: Vec<Prefix>,
    ) -> Result<(), Infallible> {
        // The source ports of upstream requests are not steered, because replies in the capture
        // cannot match the requests of the replay. As a result, these replies are passed to the
        // kernel.
        let ends = TunnelEndpoints { answers: Vec::new(), ..ends(now, addresses, 1..=1) };
        self.0.set_filter(filter(now, own), ends);
        Ok(())
    }
}
