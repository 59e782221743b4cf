//! The announcer: which VIPs are announced to which routers.
//!
//! In: the configuration, whether the forwarder is well, how many backends serve each service, the stage of a drain, the time.
//! Out: routes at the routers, by BGP; BFD sessions beside it; rows for operators. Modules: `plan` (what the file says of a
//! machine's routes), `decision` (whether a VIP's routes are announced, pure), `announcer` (both at work), `keeper` (BFD, and
//! sessions that must end).
//! Not here: BGP itself (`bgp`), the order of announcement, filter and snapshot (`publisher`).
//! Invariant: what is not known to be served is not announced.
//! Source: Eisenbud et al., *Maglev*, NSDI 2016, §2.2, §4.1.1.

mod announcer;
mod decision;
mod keeper;
mod plan;

pub use announcer::{AnnounceError, Announcer, Flush};
pub use bgp::bfd::HandedBfd;
pub use decision::{Decider, Rules, Seen, ServiceSeen, Stage, Times, VipStatus, Why};
pub use plan::{Plan, Route};
