//! All sections as written, and the configuration that they make.
//!
//! In: the parsed files. Out: a [`Config`], when nothing is wrong; what is, is in the report.
//! Two steps: what is written is read from the parsed text, which nobody needs afterwards; then sections are judged against
//! each other. Every section is read before any is judged missing, so that every problem is reported.
//! Not here: what a section may say, and what they must be to each other (`consistency`, `announcements`).

use std::collections::BTreeMap;
use std::sync::Arc;

use super::admin::Admin;
use super::base_dir::BaseDir;
use super::bgp::BgpDraft;
use super::check::{self, CheckDraft};
use super::cluster::Cluster;
use super::encapsulation::{self, EncapsulationDraft};
use super::flatten::Flattener;
use super::io::Io;
use super::lists::Lists;
use super::log::Log;
use super::machine::{Machine, MachineDraft};
use super::pem::Outside;
use super::pool::PoolDraft;
use super::prefix_group::{GroupDraft, PrefixGroup};
use super::reader::Root;
use super::remote::{self, RemoteDraft};
use super::remote_pool::RemotePool;
use super::report::{At, Place, Report};
use super::sections::Sections;
use super::source::Source;
use super::trace::Trace;
use super::vip::{Vip, VipDraft};
use super::{Config, announcements, mtu, peers, remotes, source};

/// What the files say, section by section.
pub(super) struct Drafts {
    log: Option<Log>,
    cluster: Option<Cluster>,
    cluster_place: Option<Place>,
    core_place: Option<Place>,
    peer_checks: Vec<At<Arc<str>>>,
    machines: Vec<MachineDraft>,
    io: Io,
    encapsulations: BTreeMap<Arc<str>, EncapsulationDraft>,
    checks: BTreeMap<Arc<str>, CheckDraft>,
    pools: BTreeMap<Arc<str>, PoolDraft>,
    groups: BTreeMap<Arc<str>, GroupDraft>,
    remotes: BTreeMap<Arc<str>, RemoteDraft>,
    vips: Vec<VipDraft>,
    sources: Vec<Source>,
    admin: Admin,
    trace: Option<Trace>,
    bgp: Option<Option<BgpDraft>>,
    references: Option<[u8; 32]>,
}

impl Drafts {
    /// Reads all files.
    pub(super) fn read(mut root: Root<'_>, outside: &Outside<'_>, within: Option<&BaseDir>) -> Self {
        root.each("include");
        for node in root.each("schema") {
            node.number(1..=1);
        }
        let log = root.once("log").and_then(|node| node.section()).map(Log::read);
        let cluster = root.required("cluster", "a section [cluster]");
        let cluster_place = cluster.as_ref().map(|node| node.place.clone());
        let cluster = cluster.and_then(|node| node.section());
        let (cluster, peer_checks, core_place) =
            cluster.map(|section| Cluster::read(section, outside)).unwrap_or_default();
        let machines = MachineDraft::read_all(&mut root);
        let io = root.once("io").and_then(|node| node.section()).map(Io::read).unwrap_or_default();
        let encapsulations = encapsulation::read_all(&mut root);
        let checks = check::read_all(&mut root, outside);
        let pools = PoolDraft::read_all(&mut root);
        let groups = GroupDraft::read_all(&mut root);
        let remotes = RemoteDraft::read_all(&mut root);
        let lists = Lists::new(within);
        let vips = VipDraft::read_all(&mut root, &lists);
        let admin = root.once("admin").and_then(|node| node.section());
        let admin = admin.map(|section| Admin::read(section, outside)).unwrap_or_default();
        let trace = root.once("trace").and_then(|node| node.section()).and_then(Trace::read);
        let bgp = root.once("bgp").and_then(|node| node.section());
        let bgp = bgp.map(|section| BgpDraft::read(section, outside));
        let key = cluster.as_ref().map(Cluster::hash_key);
        let references = outside.secrets.map(|_| source::references(key, &checks, &admin));
        root.finish(&[]);
        let groups = groups.into_iter().map(|draft| (Arc::clone(&draft.name), draft)).collect();
        let sources = lists.into_sources();
        Self {
            log,
            cluster,
            cluster_place,
            core_place,
            peer_checks,
            machines,
            io,
            encapsulations,
            checks,
            pools,
            groups,
            remotes,
            vips,
            sources,
            admin,
            trace,
            bgp,
            references,
        }
    }
}

impl Drafts {
    /// Judges the sections against each other and makes the configuration of them; `None` when something was reported.
    pub(super) fn build(self, report: &Report) -> Option<Config> {
        let flattened = Flattener {
            report,
            pools: &self.pools,
            encapsulations: &self.encapsulations,
            checks: &self.checks,
        }
        .flatten();
        let sections = self.sections(report);
        sections.check(&flattened, self.cluster.as_ref().map(Cluster::table_size));
        announcements::check(&sections, self.bgp.as_ref().map(Option::as_ref), &flattened);
        let peer_checks = peers::checks(&self.peer_checks, &self.checks, peers::DIRECT, report);
        let groups: Vec<Arc<PrefixGroup>> = self.groups.values().map(GroupDraft::build).collect();
        let vips = self
            .vips
            .iter()
            .map(|vip| vip.build(&flattened, &groups, self.remote_pools(vip, &groups, report)));
        let vips: Vec<_> = vips.collect();
        let machines: Vec<Machine> = self.machines.iter().map(MachineDraft::build).collect();
        let peers = peers::pools(&machines, &peer_checks);
        if let (Some(place), Some(cluster)) = (&self.cluster_place, &self.cluster) {
            peers::warn_of_unchecked(&peers, place, report);
            let remotes = vips.iter().flatten().flat_map(Vip::remote_pools).map(RemotePool::pool);
            let members = flattened.iter().chain(remotes).flat_map(|pool| pool.members());
            if let Some(place) = &self.core_place {
                mtu::warn_of_tight(cluster.mtu(), members, &peers, place, report);
            }
        }
        Some(Config {
            cluster: self.cluster?,
            peers,
            peer_checks,
            machines,
            io: self.io,
            log: self.log.unwrap_or_default(),
            admin: self.admin,
            trace: self.trace,
            bgp: self.bgp.flatten().map(BgpDraft::build),
            vips: vips.into_iter().collect::<Option<_>>()?,
            remotes: self.remotes.iter().map(|(name, draft)| draft.build(name)).collect(),
            groups,
            pools: flattened,
            sources: self.sources,
            references: self.references,
        })
    }

    fn sections<'d>(&'d self, report: &'d Report) -> Sections<'d> {
        Sections {
            report,
            io: &self.io,
            machines: &self.machines,
            encapsulations: &self.encapsulations,
            pools: &self.pools,
            groups: &self.groups,
            remotes: &self.remotes,
            vips: &self.vips,
            checks: &self.checks,
            cluster_name: self.cluster.as_ref().map(Cluster::name),
        }
    }

    /// The other clusters that a VIP names, as pools.
    fn remote_pools(&self, vip: &VipDraft, groups: &[Arc<PrefixGroup>], report: &Report) -> Vec<RemotePool> {
        let group =
            vip.group.as_ref().and_then(|named| groups.iter().find(|known| *known.name() == named.value));
        let prefixes = group.map_or(&[][..], |group| group.prefixes());
        let checks = peers::checks(&vip.remote_checks, &self.checks, remotes::DIRECT, report);
        let (remotes, encapsulations) = (&self.remotes, &self.encapsulations);
        remote::Parts { remotes, encapsulations, prefixes, checks: &checks }.of(vip)
    }
}
