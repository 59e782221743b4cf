//! Decides which connection is closed when there are two connections with one peer.
//!
//! See RFC 4271 §6.8 and RFC 6286 §2.3.

use crate::message::Identity;
use crate::status::State;

/// The side that opened a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Dialled,
    Accepted,
}

/// Returns the connection to close with Cease/7 (Connection Collision Resolution). Returns `None`
/// until both connections have received the peer's OPEN, before which a collision cannot be
/// resolved.
pub(crate) fn loser(dialled: State, accepted: State, us: Identity, peer: Identity) -> Option<Side> {
    if dialled.min(accepted) < State::OpenConfirm {
        return None;
    }
    //= RFC 4271 §6.8
    //# a connection collision with an existing BGP connection that is in the Established state causes closing of the newly
    //# created connection
    match (dialled, accepted) {
        (State::Established, _) => return Some(Side::Accepted),
        (_, State::Established) => return Some(Side::Dialled),
        _ => {}
    }
    // The connection that was opened by the speaker with the higher router ID is kept. If the
    // router IDs are the same (in different ASes), the higher AS number decides.
    let ours_is_higher = (us.router_id, us.asn) > (peer.router_id, peer.asn);
    Some(if ours_is_higher { Side::Accepted } else { Side::Dialled })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn end(asn: u32, last: u8) -> Identity {
        Identity { asn, router_id: [192, 0, 2, last].into() }
    }

    #[test]
    fn the_higher_identifier_keeps_what_it_opened() {
        use State::OpenConfirm as Confirm;
        for (us, peer, loses) in [
            (end(65_101, 9), end(65_000, 1), Side::Accepted),
            (end(65_101, 1), end(65_000, 9), Side::Dialled),
            (end(65_101, 5), end(65_000, 5), Side::Accepted),
            (end(65_000, 5), end(65_101, 5), Side::Dialled),
        ] {
            assert_eq!(loser(Confirm, Confirm, us, peer), Some(loses), "{us:?} {peer:?}");
        }
    }

    #[test]
    fn both_ends_close_the_same_connection() {
        for (a, b) in [(end(1, 1), end(2, 2)), (end(1, 2), end(2, 1)), (end(1, 3), end(2, 3))] {
            let here = loser(State::OpenConfirm, State::OpenConfirm, a, b);
            let there = loser(State::OpenConfirm, State::OpenConfirm, b, a);
            assert_ne!(here, there, "the two ends close different connections");
        }
    }

    #[test]
    fn an_established_session_stays_whoever_is_higher() {
        for (us, peer) in [(end(1, 1), end(2, 2)), (end(1, 2), end(2, 1))] {
            assert_eq!(loser(State::Established, State::OpenConfirm, us, peer), Some(Side::Accepted));
            assert_eq!(loser(State::OpenConfirm, State::Established, us, peer), Some(Side::Dialled));
        }
    }

    #[test]
    fn a_connection_without_an_open_is_no_collision() {
        for state in [State::OpenSent, State::OpenConfirm, State::Established] {
            assert_eq!(loser(state, State::OpenSent, end(1, 1), end(2, 2)), None);
            assert_eq!(loser(State::OpenSent, state, end(1, 1), end(2, 2)), None);
        }
    }
}
