//! API rows for BGP peers and for the announcement state of VIPs.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bgp::bfd::BfdStatus;
use bgp::{Attributes, Desired, PeerStatus, State};

use crate::announce::Announcer;
use crate::announce::{Route, Rules, ServiceSeen, Stage, VipStatus, Why};
use admin::view::{
    AnnouncedVip, AnnouncementState, BfdState, BfdView, BgpPeerRow, BgpTotals, BgpView, DownView, DrainStage,
    Family, RouteRow, ServiceRow, SessionState, VipRow,
};

impl Announcer {
    /// Returns the row of each BGP peer, and the announcement state of each VIP.
    #[must_use]
    pub fn view(&self) -> BgpView {
        let identity = self.running.as_ref().map(|running| &running.identity);
        BgpView {
            asn: identity.map(|identity| identity.asn),
            router_id: identity.map(|identity| identity.router_id),
            stage: stage_shown(self.stage),
            peers: self.peer_rows(),
            vips: self.vip_rows(),
            warnings: self.warnings(),
        }
    }

    /// Returns how many peers have a session and how many VIPs are announced, or `None` if no peers
    /// are configured.
    #[must_use]
    pub fn totals(&self) -> Option<BgpTotals> {
        let status = self.running.as_ref()?.speaker.status();
        Some(BgpTotals {
            peers: status.len(),
            established: status.values().filter(|peer| peer.state == State::Established).count(),
            vips: self.vip_rows().iter().filter(|row| row.state != AnnouncementState::NotConfigured).count(),
            announced: self.vip_rows().iter().filter(|row| row.state == AnnouncementState::Announced).count(),
        })
    }

    /// Returns the names of peers without a BGP session, at most [`DownView::MOST`] names.
    #[must_use]
    pub fn without_session(&self) -> Vec<String> {
        let Some(running) = &self.running else { return Vec::new() };
        let status = running.speaker.status();
        let down = status.values().filter(|peer| peer.state != State::Established);
        down.map(|peer| peer.name.to_string()).take(DownView::MOST).collect()
    }

    fn peer_rows(&self) -> Vec<BgpPeerRow> {
        let Some(running) = &self.running else { return Vec::new() };
        let bfd = running.bfd.as_ref().map(|bfd| bfd.status()).unwrap_or_default();
        let row = |peer: &PeerStatus| {
            let wanted = self.plan.bfd.get(&peer.address);
            // If a reload removed BFD from a peer, the BFD session still runs until the BGP session
            // ends.
            let running = bfd.values().find(|session| session.peer == peer.address);
            let is_shown = wanted.is_some() || running.is_some();
            peer_row(peer, is_shown.then(|| bfd_view(running)))
        };
        running.speaker.status().values().map(row).collect()
    }

    fn vip_rows(&self) -> Vec<AnnouncedVip> {
        let mut desired = self.desired();
        let status = self.running.as_ref().map(|running| running.speaker.status()).unwrap_or_default();
        desired.peers.retain(|name, _| status.get(name).is_some_and(|peer| peer.state == State::Established));
        let mut rows: Vec<AnnouncedVip> = Vec::new();
        for (name, rules) in &self.plan.rules {
            let row = self.vip_row(name, rules, &desired);
            match rows.last_mut().filter(|last| last.vip == row.vip) {
                Some(other) => *other = joined(other, row),
                None => rows.push(row),
            }
        }
        rows
    }

    fn vip_row(&self, vip: &Arc<str>, rules: &Rules, desired: &Desired) -> AnnouncedVip {
        let routes = self.route_rows(vip, desired);
        let unknown = VipStatus::Withdrawn(Why::Unknown);
        let status = self.statuses.get(vip).unwrap_or(&unknown);
        let (state, why) = self.state_of(status, &routes);
        let why = match (why, rules.family) {
            (Some(why), Some(family)) => Some(format!("{family}: {why}")),
            (why, _) => why,
        };
        let since = self.decider.since(vip);
        let left = match status {
            VipStatus::HeldDown(left) => Some(left.as_secs_f64()),
            _ => None,
        };
        AnnouncedVip {
            vip: rules.vip.to_string(),
            state,
            why,
            returns_in_seconds: left,
            since_seconds: (!since.is_zero()).then(|| self.now.saturating_sub(since).as_secs_f64()),
            withdrawals: self.decider.withdrawals(vip),
            not_announced_seconds: self.decider.not_announced(vip).as_secs_f64(),
            backup: rules.backup,
            routes,
        }
    }

    /// Returns the announcement state of a VIP, with the reason if the VIP is not announced.
    fn state_of(&self, status: &VipStatus, routes: &[RouteRow]) -> (AnnouncementState, Option<String>) {
        match status {
            VipStatus::Withdrawn(why @ Why::NotWanted) => {
                (AnnouncementState::NotConfigured, Some(why.to_string()))
            }
            VipStatus::Withdrawn(why) => (AnnouncementState::Withdrawn, Some(why.to_string())),
            VipStatus::HeldDown(left) => (AnnouncementState::HeldDown, Some(held(*left))),
            _ if self.stage == Stage::Left => {
                (AnnouncementState::Draining, Some("this machine is draining".to_owned()))
            }
            _ if routes.iter().all(|route| route.peers.is_empty()) => (
                AnnouncementState::NoSession,
                Some("no router of this VIP has a BGP session with this machine".to_owned()),
            ),
            VipStatus::Marked(why) => (AnnouncementState::Marked, Some(why.to_string())),
            VipStatus::Announced => (AnnouncementState::Announced, None),
        }
    }

    fn route_rows(&self, vip: &Arc<str>, desired: &Desired) -> Vec<RouteRow> {
        let routes = self.plan.routes.iter().filter(|(_, route)| route.vips.contains(vip));
        let row = |(prefix, route): (&bgp::Prefix, &Route)| {
            let sent: BTreeMap<&String, &Arc<Attributes>> =
                desired.peers.iter().filter_map(|(peer, table)| Some((peer, table.get(*prefix)?))).collect();
            let attributes = sent.values().next().map_or(&route.attributes, |attributes| attributes);
            RouteRow {
                prefix: prefix.to_string(),
                peers: sent.keys().map(ToString::to_string).collect(),
                med: attributes.med,
                communities: communities(attributes),
            }
        };
        routes.map(row).collect()
    }
}

/// Merges the rows of the two address families of a VIP. If one family is not announced, its state
/// and reason are shown.
fn joined(one: &AnnouncedVip, other: AnnouncedVip) -> AnnouncedVip {
    let is_well = |row: &AnnouncedVip| row.state == AnnouncementState::Announced;
    let (shown, well) = if is_well(one) { (other, one.clone()) } else { (one.clone(), other) };
    AnnouncedVip {
        withdrawals: shown.withdrawals + well.withdrawals,
        not_announced_seconds: shown.not_announced_seconds.max(well.not_announced_seconds),
        routes: shown.routes.into_iter().chain(well.routes).collect(),
        ..shown
    }
}

/// Converts VIP rows to the service states from which [`Seen`](crate::announce::Seen) is built.
#[must_use]
pub fn services_seen(rows: &[VipRow]) -> BTreeMap<String, Vec<ServiceSeen>> {
    // If the pool has no table yet, none of its backends can receive packets.
    let seen = |service: &ServiceRow, family, ready, serving| ServiceSeen {
        name: service.name.clone(),
        family,
        serving: if ready { serving } else { 0 },
        elsewhere: !service.redirected_to.is_empty(),
    };
    let of_row = |service: &ServiceRow| match &*service.families {
        [] => vec![seen(service, None, service.ready, service.serving)],
        apart => apart
            .iter()
            .map(|row| seen(service, row.family.map(packet_family), row.ready, row.serving))
            .collect(),
    };
    rows.iter().map(|row| (row.name.clone(), row.services.iter().flat_map(of_row).collect())).collect()
}

fn packet_family(family: Family) -> packet::Family {
    match family {
        Family::Ipv4 => packet::Family::V4,
        Family::Ipv6 => packet::Family::V6,
    }
}

/// Converts the stage of a drain to the API type.
#[must_use]
pub fn stage_shown(stage: Stage) -> DrainStage {
    match stage {
        Stage::Serving => DrainStage::Serving,
        Stage::Leaving => DrainStage::Leaving,
        Stage::Left => DrainStage::Left,
    }
}

fn held(left: Duration) -> String {
    format!("flap damping, announced again in {:.0} s", left.as_secs_f64().ceil())
}

fn communities(attributes: &Attributes) -> Vec<String> {
    let standard = attributes.communities.iter().map(|one| format!("{}:{}", one.0, one.1));
    let large = attributes.large_communities.iter().map(|one| format!("{}:{}:{}", one.0, one.1, one.2));
    standard.chain(large).collect()
}

fn peer_row(peer: &PeerStatus, bfd: Option<BfdView>) -> BgpPeerRow {
    let counts = &peer.counts;
    BgpPeerRow {
        name: peer.name.clone(),
        address: peer.address,
        asn: peer.asn,
        state: session_state(peer.state),
        since_seconds: ago(peer.since),
        established: peer.established,
        failures: peer.failures,
        last_error: peer.last_error.as_ref().map(|(why, _)| why.clone()),
        last_error_seconds: peer.last_error.as_ref().map(|(_, at)| ago(*at)),
        last_end: peer.last_end.as_ref().map(|(why, _)| why.clone()),
        last_end_seconds: peer.last_end.as_ref().map(|(_, at)| ago(*at)),
        hold_seconds: peer.negotiated.as_ref().map(|agreed| agreed.hold.as_secs_f64()),
        announced_v4: counts.announced_v4,
        announced_v6: counts.announced_v6,
        unannounceable: counts.unannounceable,
        pending: counts.pending,
        ignored_prefixes: counts.ignored_prefixes,
        bfd,
    }
}

fn bfd_view(status: Option<&BfdStatus>) -> BfdView {
    match status {
        None => BfdView { state: BfdState::Waiting, since_seconds: 0.0, losses: 0 },
        Some(status) => BfdView {
            state: bfd_state(status.state),
            since_seconds: ago(status.since),
            losses: status.losses,
        },
    }
}

fn session_state(state: State) -> SessionState {
    match state {
        State::Idle => SessionState::Idle,
        State::Connect => SessionState::Connect,
        State::Active => SessionState::Active,
        State::OpenSent => SessionState::OpenSent,
        State::OpenConfirm => SessionState::OpenConfirm,
        State::Established => SessionState::Established,
    }
}

fn bfd_state(state: bgp::bfd::SessionState) -> BfdState {
    match state {
        bgp::bfd::SessionState::AdminDown => BfdState::AdminDown,
        bgp::bfd::SessionState::Down => BfdState::Down,
        bgp::bfd::SessionState::Init => BfdState::Init,
        bgp::bfd::SessionState::Up => BfdState::Up,
    }
}

/// Returns the seconds since `since`. The result is zero if the wall clock was set back to a time
/// before `since`.
fn ago(since: SystemTime) -> f64 {
    since.elapsed().unwrap_or_default().as_secs_f64()
}
