//! Builds the hash rings of keyed pools whose clients hash keys with ketama or FNV-1a.
//!
//! Pools whose rings would be identical share one ring, and unchanged rings are kept from one
//! generation to the next. The crate `kv-switch` implements the ring algorithm, and `config`
//! provides the server names.

use std::collections::HashMap;
use std::sync::Arc;

use config::{Config, Pool};
use forwarder::SlotState;
use kv_switch::{Ring, RingError, Server};

use crate::CompileError;
use crate::index::own_weight;
use crate::keys::PoolView;
use crate::runtime_state::RuntimeState;

/// The name and weight of each server, in the same order as the members of the pool. An entry is
/// `None` if its server is not on the ring.
type Content = Vec<Option<(Arc<str>, u32)>>;

/// The hash rings of one configuration generation. During compilation, the field `before` contains
/// the previous generation's rings.
#[derive(Debug, Default)]
pub(crate) struct Rings {
    before: HashMap<Content, Option<Arc<Ring>>>,
    by_content: HashMap<Content, Option<Arc<Ring>>>,
}

impl Rings {
    /// Creates the rings of the next generation, which can reuse rings of this generation.
    pub(crate) fn after(&self) -> Self {
        Self { before: self.by_content.clone(), by_content: HashMap::new() }
    }

    /// Drops the rings of the previous generation that were not reused.
    pub(crate) fn settled(self) -> Self {
        Self { before: HashMap::new(), ..self }
    }

    /// Returns two rings for the pool in `view`: a ring of all servers, and a ring of the servers
    /// that currently get requests.
    pub(crate) fn of(
        &mut self,
        config: &Config,
        view: &PoolView,
        pool: &Pool,
        runtime_state: &RuntimeState,
    ) -> Result<forwarder::Rings, CompileError> {
        let (mut all, mut live) = (Content::new(), Content::new());
        for member in &pool.members {
            let (key, own) = (view.key(member), own_weight(config, pool, member));
            let weight = runtime_state.weight_of_all(&key, member.weight, own);
            let server = member.ring_name.clone().filter(|_| weight > 0).map(|name| (name, weight));
            let serves = runtime_state.state(&key) == SlotState::Serving;
            live.push(server.clone().filter(|_| serves));
            all.push(server);
        }
        let wrong = |cause| CompileError::Ring { pool: pool.name.to_string(), cause };
        Ok(forwarder::Rings { all: self.ring(all).map_err(wrong)?, live: self.ring(live).map_err(wrong)? })
    }

    fn ring(&mut self, content: Content) -> Result<Option<Arc<Ring>>, RingError> {
        if let Some(known) = self.by_content.get(&content) {
            return Ok(known.clone());
        }
        let ring = match self.before.remove(&content) {
            Some(known) => known,
            None => build(&content)?,
        };
        self.by_content.insert(content, ring.clone());
        Ok(ring)
    }
}

/// Builds a ring. Returns `None` if the ring would be empty.
fn build(content: &[Option<(Arc<str>, u32)>]) -> Result<Option<Arc<Ring>>, RingError> {
    match Ring::build(&content.iter().map(server).collect::<Vec<_>>()) {
        Ok(ring) => Ok(Some(Arc::new(ring))),
        Err(RingError::NoServers) => Ok(None),
        Err(cause) => Err(cause),
    }
}

fn server(known: &Option<(Arc<str>, u32)>) -> Server<'_> {
    match known {
        Some((name, weight)) => Server { ring_name: name, weight: *weight, is_ejected: false },
        None => Server { ring_name: "", weight: 1, is_ejected: true },
    }
}
