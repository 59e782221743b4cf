//! A BGP speaker for programs that announce routes and import none, such as load balancers and
//! anycast servers.
//!
//! The program configures peers ([`PeerConfig`]) and sets the routes that each peer should have
//! ([`Desired`]). The speaker sends route changes to the peers and reports the [`Status`]. Routes
//! that a peer announces are checked, counted and dropped.
//!
//! The memory that one peer can use is bounded, and no data from one peer can end the session with
//! a different peer. MD5 keys are never printed. Only the modules `codec` and `machine` use the
//! rustbgpd crates.
//!
//! See RFC 4271, 4760, 5082, 6793, 7606 and 8950. The modules list further RFCs.
//!
//! ```
//! use bgp::{Attributes, Desired, PeerConfig, Routes, Speaker, SpeakerConfig};
//!
//! # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
//! let mut config = SpeakerConfig::new(64_512, "192.0.2.10".parse()?);
//! config.peers.push(PeerConfig::new("router", "192.0.2.1".parse()?, 65_000));
//! let speaker = Speaker::start(config)?;
//! let mut routes = Routes::new();
//! routes.insert("198.51.100.53/32".parse()?, Attributes::default())?;
//! speaker.announce(Desired::everyone(routes)); // sent once the session is up
//! assert!(speaker.status().contains_key("router"));
//! # Ok::<_, Box<dyn std::error::Error>>(()) })?;
//! # Ok::<_, Box<dyn std::error::Error>>(())
//! ```

#![forbid(unsafe_code)]

mod backoff;
pub mod bfd;
mod codec;
mod collision;
mod config;
mod connection;
mod dialling;
mod drops;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod inbox;
#[cfg(test)]
mod linear;
mod listener;
mod machine;
mod message;
mod outbound;
mod outbox;
mod peer;
mod prefix;
mod report;
mod route;
mod session;
mod socket;
mod speaker;
mod status;
mod words;

pub use config::{ConfigError, Connect, GracefulRestart, Md5Key, NextHops, PeerConfig, SpeakerConfig, Times};
pub use message::Capability;
pub use prefix::{BadPrefix, Family, Prefix};
pub use route::{Attributes, Community, Desired, LargeCommunity, Routes, TooManyCommunities};
pub use speaker::{Speaker, StartError};
pub use status::{Blocked, Counts, Negotiated, PeerStatus, State, Status, StatusWatch};

/// Runs the example of the README as a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
