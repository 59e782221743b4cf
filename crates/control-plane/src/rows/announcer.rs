//! Builds the API responses for BGP peers, and the totals of sessions and announcements.

use std::collections::BTreeMap;
use std::time::SystemTime;

use bgp::bfd::BfdStatus;
use bgp::{PeerStatus, State};

use crate::announce::Announcer;
use crate::announce::{ServiceSeen, Stage};
use admin::view::{
    AnnouncementState, BfdState, BfdView, BgpPeerRow, BgpTotals, BgpView, DownView, DrainStage, Family,
    ServiceRow, SessionState, VipRow,
};
use config::natural;

impl Announcer {
    /// Returns the row of each BGP peer, and the announcement state of each VIP.
    #[must_use]
    pub fn view(&self) -> BgpView {
        let identity = self.running.as_ref().map(|running| &running.identity);
        let mut peers = self.peer_rows();
        peers.sort_by(|a, b| natural(&a.name, &b.name));
        let mut vips = self.announced_vips();
        vips.sort_by(|a, b| natural(&a.vip, &b.vip));
        BgpView {
            asn: identity.map(|identity| identity.asn),
            router_id: identity.map(|identity| identity.router_id),
            stage: stage_shown(self.stage),
            peers,
            vips,
            warnings: self.warnings(),
        }
    }

    /// Returns how many peers have a session and how many VIPs are announced for all their address
    /// families, or `None` if no peers are configured.
    #[must_use]
    pub fn totals(&self) -> Option<BgpTotals> {
        let status = self.running.as_ref()?.speaker.status();
        let rows = self.announced_vips();
        let mut vips = BTreeMap::<&str, bool>::new();
        for row in rows.iter().filter(|row| row.state != AnnouncementState::NotConfigured) {
            let has_routes = matches!(row.state, AnnouncementState::Announced | AnnouncementState::Marked);
            *vips.entry(&row.vip).or_insert(true) &= has_routes;
        }
        Some(BgpTotals {
            peers: status.len(),
            established: status.values().filter(|peer| peer.state == State::Established).count(),
            vips: vips.len(),
            announced: vips.values().filter(|announced| **announced).count(),
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

pub(super) fn packet_family(family: Family) -> packet::Family {
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
        refused: peer.negotiated.iter().flat_map(|agreed| &agreed.refused).map(ToString::to_string).collect(),
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
