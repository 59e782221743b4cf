//! Packets through the whole pipeline: bytes in, bytes out, and exactly the counters that should move.

#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "a test that cannot go on fails")]

mod bed;
mod cache;
mod capture;
mod drops;
mod encapsulation;
mod expiry;
mod floods;
mod flows;
mod fragments;
mod gather;
mod groups;
mod guards;
mod icmp;
mod keyed;
mod originate;
mod partial;
mod paths;
mod pieces;
mod publish;
mod random;
mod refusal;
mod remote;
mod replicas;
mod requests;
mod steering;
mod strict;
mod through;
mod tracing;
mod tunnels;
mod vlan;
