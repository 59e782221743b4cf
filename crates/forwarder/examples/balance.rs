//! Example: a VIP 203.0.113.10 with TCP port 80 and two backends. Prints the backends that a few
//! client flows are sent to, first while both backends are serving, then while backend b1 is down.

use std::error::Error;
use std::net::IpAddr;
use std::sync::Arc;

use forwarder::{
    Binding, Decision, Flow, Forwarding, Generation, HashKey, HashPolicy, NextHopMode, Parts, PoolTable,
    Rejects, Service, ServiceId, Slot, SlotId, SlotState, Snapshot, TooBig,
};
use maglev_hash::{Backend, BuildError, Options, Seed};
use packet::protocol;

const VIP: [u8; 4] = [203, 0, 113, 10];

fn main() -> Result<(), Box<dyn Error>> {
    let all_serve = Snapshot::new(parts()?)?;
    let b1_is_down = all_serve.with_states(vec![SlotState::Down, SlotState::Serving])?;
    for (client, port) in [(1, 80), (2, 80), (3, 80), (4, 80), (5, 443)] {
        let flow = Flow::new(([198, 51, 100, client], 40_000), (VIP, port), protocol::TCP);
        let flow = flow.ok_or("two families")?;
        let [before, after] = [&all_serve, &b1_is_down].map(|snapshot| match snapshot.decide(&flow) {
            Decision::Chosen { selection, .. } => {
                snapshot.slots()[selection.slot.0 as usize].backend.to_string()
            }
            other => format!("{other:?}"),
        });
        println!("198.51.100.{client} to port {port}: {before}, then {after}");
    }
    Ok(())
}

fn parts() -> Result<Parts, BuildError> {
    let slots = [("b1", 1), ("b2", 2)].map(|(name, host)| Slot {
        backend: name.into(),
        address: [198, 18, 1, host].into(),
        forwarding: Forwarding::L2,
        next_hop: None,
        spread: None,
        mtu: 1_500,
        too_big: TooBig::Drop,
    });
    let backends = slots.each_ref().map(|slot| Backend { name: slot.backend.as_bytes(), weight: 1 });
    let table = Some(Arc::new(maglev_hash::build(&backends, &Options::new(Seed::new([7; 16])))?));
    let slot_ids = [SlotId(0), SlotId(1)];
    let service = Service {
        id: ServiceId(0),
        name: "www tcp 80".into(),
        family: None,
        policy: HashPolicy::FiveTuple,
        pool: Arc::new(PoolTable {
            name: "web".into(),
            table,
            slots: slot_ids.into(),
            weights: [1, 1].into(),
        }),
        excluded_slots: Arc::default(),
        guard: None,
        remotes: None,
        keyed: None,
        fragments: true,
        rejects: Rejects::default(),
    };
    let address = IpAddr::from(VIP).into();
    Ok(Parts {
        generation: Generation(1),
        hash_key: HashKey::new([5; 16]),
        services: vec![service],
        bindings: vec![Binding { address, protocol: protocol::TCP, ports: 80..=80, service: 0 }],
        groups: Vec::new(),
        states: vec![SlotState::Serving; slots.len()],
        slots: slots.into(),
        next_hop: NextHopMode::Resolve,
        own: Vec::new(),
        tunnels: Vec::new(),
        peers: None,
    })
}
