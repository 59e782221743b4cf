//! Reads all sections and builds the configuration from them.
//!
//! First all sections are read from the parsed files. Then the sections are checked against each
//! other, and missing sections are reported. This order allows all problems to be reported in one
//! run. The modules `consistency` and `announcements` check sections against each other.

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

/// All sections of the configuration files, with the positions of their values.
pub(super) struct Drafts<'r> {
    sections: Sections<'r>,
    log: Log,
    admin: Admin,
    trace: Option<Trace>,
    /// `None` if the section is missing, `Some(None)` if the section has an error.
    bgp: Option<Option<BgpDraft>>,
    sources: Vec<Source>,
    references: Option<[u8; 32]>,
}

impl<'r> Drafts<'r> {
    /// Reads all sections of all files.
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

    /// Checks the sections against each other, and builds the configuration. Returns `None` if an
    /// error was reported.
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
            health: self.sections.health,
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
    /// Returns one pool for each remote cluster that a VIP refers to.
    fn remote_pools(&self, vip: &VipDraft, groups: &[Arc<PrefixGroup>]) -> Vec<RemotePool> {
        let group = vip.group.as_ref().and_then(|named| {
            groups.get(groups.binary_search_by(|known| known.name.cmp(&named.value)).ok()?)
        });
        let prefixes = group.map_or(&[][..], |group| &group.prefixes);
        let checks = peers::checks(self, &vip.remote_checks, remotes::DIRECT);
        let Self { remotes, encapsulations, .. } = self;
        remote::Parts { remotes, encapsulations, prefixes, checks: checks.into() }.of(vip)
    }

    /// Warns about peers without health checks, and about packets that are too long for
    /// `cluster.mtu.core`.
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

/// Checks the version of the file format.
fn read_schema(node: &Node<'_>) {
    let later = node.as_integer().filter(|number| *number > i128::from(SCHEMA));
    match later {
        Some(number) => {
            let message = format!("this version of sluicegate does not support schema {number}");
            node.refuse((message, format!("update sluicegate; this version reads schema {SCHEMA}")));
        }
        None => {
            let _ = node.number(SCHEMA..=SCHEMA);
        }
    }
}

/// The newest version of the file format that this program supports.
const SCHEMA: u8 = 1;
