//! Announces VIPs to routers: decides which VIPs are announced, and runs BGP and BFD.
//!
//! The inputs are the configuration, the state of the forwarder, the number of backends in service
//! for each service, and the stage of a drain. `plan` computes the routes of this machine from the
//! configuration. `decision` decides which VIPs are announced, without any I/O. `vip_overrides`
//! contains the overrides of operators. `announcer` passes these routes and decisions to the BGP
//! speaker. `keeper` runs BFD and closes BGP sessions with unresponsive routers. The crate `bgp`
//! implements the BGP protocol. The module `publisher` changes the routes, the XDP filter and the
//! snapshot in a safe order.
//!
//! Invariant: a VIP is announced only while this machine is known to be able to handle its traffic,
//! or with the graceful-shutdown community while the forwarder is stalled for a short time.
//! Source: Eisenbud et al., *Maglev*, NSDI 2016, §2.2, §4.1.1.

mod announcer;
mod decision;
mod keeper;
mod plan;
mod vip_overrides;

pub use announcer::{AnnounceError, Announcer, Flush};
pub use bgp::bfd::HandedBfd;
pub use decision::{
    Decider, Fault, HandedAnnouncements, Rules, Seen, ServiceSeen, Stage, Times, VipStatus, Why,
};
pub use plan::{Plan, Route};
pub use vip_overrides::VipOverrides;
