//! The table `agent` of a check: the agent protocol of HAProxy.

use config_text::{Node, Section};
use serde::Serialize;

use super::exchange::{Payload, refuse_probe_mtu, required_port};
use crate::canonical;

/// An agent check: `agent = { port, send, min_weight, max_weight }`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct AgentCheck {
    /// The port of the agent. Required.
    pub port: u16,
    /// The bytes to send after connecting. Default: none.
    #[serde(flatten)]
    pub send: Option<Payload>,
    /// The lower bound of the weight, in percent: a multiple of 10 from 10 to 100. Default: 10.
    #[serde(serialize_with = "canonical::percent")]
    pub min_weight: u8,
    /// The upper bound of the weight, in percent: a multiple of 10 from 100 to 200. Default: 100.
    #[serde(serialize_with = "canonical::percent")]
    pub max_weight: u8,
}

pub(super) fn read_agent(mut section: Section<'_>) -> Option<AgentCheck> {
    let port = required_port(&mut section);
    let send = Payload::read(&mut section);
    let min_weight = section.or("min_weight", 10, |node| tens(&node, 10, 100));
    let max_weight = section.or("max_weight", 100, |node| tens(&node, 100, 200));
    refuse_probe_mtu(&mut section, "agents expect no request, or a short one");
    section.finish();
    Some(AgentCheck { port: port?, send, min_weight, max_weight })
}

fn tens(node: &Node<'_>, least: u8, most: u8) -> Option<u8> {
    let percent = node.percent(least..=most)?;
    if percent.is_multiple_of(10) {
        return Some(percent);
    }
    let message = format!("{} must be a multiple of \"10%\", got {}", node.label(), node.shown());
    node.wrong((message, "the weight changes in steps of 10%"))
}
