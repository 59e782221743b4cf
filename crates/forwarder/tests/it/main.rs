//! Tests of the whole pipeline: frames, verdicts and counters.

#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "tests panic on unexpected values")]

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
mod icmp_rates;
mod keyed;
mod martians;
mod originate;
mod overload;
mod partial;
mod paths;
mod pieces;
mod ports;
mod proxied;
mod publish;
mod random;
mod refusal;
mod reject;
mod remote;
mod replicas;
mod requests;
mod spread;
mod steering;
mod strict;
mod tracing;
mod tunnels;
mod vlan;
