//! All sections as written, and the configuration that they make.
//!
//! In: the parsed files. Out: a [`Config`], when nothing is wrong; what is, is in the report.
//! Two steps: what is written is read from the parsed text, which is dropped then; then sections are judged against
//! each other. Every section is read before any is judged missing, so that every problem is reported.
//! Not here: what a section may say, and what they must be to each other (`consistency`, `announcements`).

use std::collections::BTreeMap;
use std::sync::Arc;

use config_text::{Node, Report, Root};

use super::admin::Admin;
use super::bgp::BgpDraft;
use super::config::{Config, Content};
use super::lists::Lists;
use super::log::Log;
use super::machine::{Machine, MachineDraft};
use super::pem::Outside;
use super::pool::Pool;
use super::prefix_group::{GroupDraft, PrefixGroup};
use super::remote;
use super::remote_pool::RemotePool;
use super::sections::Sections;
use super::source::Source;
use super::trace::Trace;
use super::vip::{Vip, VipDraft};
use super::{announcements, mtu, peers, remotes, source};

/// What the files say, section by section.
pub(super) struct Drafts<'r> {
    sections: Sections<'r>,
    log: Log,
    admin: Admin,
    trace: Option<Trace>,
    /// `Some(None)`: the section has an error.
    bgp: Option<Option<BgpDraft>>,
    sources: Vec<Source>,
    references: Option<[u8; 32]>,
}

impl<'r> Drafts<'r> {
    /// Reads all files.
    pub(super) fn read(report: &'r Report, mut root: Root<'_>, outside: &Outside<'_>) -> Self {
        root.each("include");
        for node in root.each("schema") {
            read_schema(&node);
        }
        let lists = Lists::new(outside.within);
        let sections = Sections::read(report, &mut root, outside, &lists);
        let mut once = |key| root.once(key).and_then(|node| node.section());
        let log = once("log").map(Log::read).unwrap_or_default();
        let admin = once("admin").map(|section| Admin::read(section, outside)).unwrap_or_default();
        let trace = once("trace").and_then(Trace::read);
        let bgp = once("bgp").map(|section| BgpDraft::read(section, outside));
        root.finish();
        let key = sections.cluster.value.as_ref().map(|cluster| cluster.hash_key);
        let references = outside.secrets.map(|_| source::references(key, &sections.checks, &admin));
        Self { sections, log, admin, trace, bgp, sources: lists.into_sources(), references }
    }

    /// Judges the sections against each other and makes the configuration of them; `None` when something was reported.
    pub(super) fn build(self) -> Option<Config> {
        let sections = &self.sections;
        let pools = sections.flatten();
        sections.check(&pools);
        announcements::check(sections, self.bgp.as_ref().map(Option::as_ref), &pools);
        let peer_checks = peers::checks(sections, &sections.cluster.peer_checks, peers::DIRECT);
        let groups: Vec<Arc<PrefixGroup>> = sections.groups.values().map(GroupDraft::build).collect();
        let vip = |vip: &VipDraft| vip.build(&pools, &groups, sections.remote_pools(vip, &groups));
        let vips: Vec<Option<Vip>> = sections.vips.iter().map(vip).collect();
        let machines: Vec<Machine> = sections.machines.iter().map(MachineDraft::build).collect();
        let peers = peers::pools(&machines, &peer_checks);
        sections.warn_of_cluster(&pools, &vips, &peers);
        let content = Content {
            remotes: sections.remotes.iter().map(|(name, draft)| draft.build(name)).collect(),
            cluster: self.sections.cluster.value?,
            peers,
            peer_checks,
            machines,
            io: self.sections.io,
            log: self.log,
            admin: self.admin,
            trace: self.trace,
            bgp: self.bgp.flatten().map(BgpDraft::build),
            vips: vips.into_iter().collect::<Option<_>>()?,
            groups,
            pools,
        };
        Some(Config { content, sources: self.sources, references: self.references })
    }
}

impl Sections<'_> {
    /// The other clusters that a VIP names, as pools.
    fn remote_pools(&self, vip: &VipDraft, groups: &[Arc<PrefixGroup>]) -> Vec<RemotePool> {
        let group =
            vip.group.as_ref().and_then(|named| groups.iter().find(|known| known.name == named.value));
        let prefixes = group.map_or(&[][..], |group| &group.prefixes);
        let checks = peers::checks(self, &vip.remote_checks, remotes::DIRECT);
        let Self { remotes, encapsulations, .. } = self;
        remote::Parts { remotes, encapsulations, prefixes, checks: &checks }.of(vip)
    }

    /// Warns of peers that nothing checks, and of packets too long for `cluster.mtu.core`.
    fn warn_of_cluster(
        &self,
        pools: &[Arc<Pool>],
        vips: &[Option<Vip>],
        peers: &BTreeMap<Arc<str>, Arc<Pool>>,
    ) {
        let (Some(place), Some(cluster)) = (&self.cluster.place, &self.cluster.value) else { return };
        peers::warn_of_unchecked(peers, place, self.report);
        let Some(place) = &self.cluster.core else { return };
        let remotes = vips.iter().flatten().flat_map(|vip| &vip.remote_pools).map(|remote| &remote.pool);
        let members = pools.iter().chain(remotes).flat_map(|pool| &pool.members);
        mtu::warn_of_tight(&cluster.mtu, members, peers, place, self.report);
    }
}

/// The number of a file's shape.
fn read_schema(node: &Node<'_>) {
    let later = node.as_integer().filter(|number| *number > i128::from(SCHEMA));
    match later {
        Some(number) => {
            let allowed = format!("{SCHEMA}, the newest that this version reads: a newer program reads it");
            node.report.error(&node.place, format!("{number}, of a later version"), allowed);
        }
        None => {
            let _ = node.number(SCHEMA..=SCHEMA);
        }
    }
}

/// The newest shape of a file.
const SCHEMA: u8 = 1;
