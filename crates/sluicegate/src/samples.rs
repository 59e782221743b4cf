//! What several tests begin with.

use datapath::interface::{Features, Interface};

/// An interface without a fault.
pub(crate) fn interface() -> Interface {
    Interface {
        name: "eth0".to_owned(),
        index: 7,
        mac: [2, 0, 0, 0, 0, 1],
        mtu_bytes: 1_600,
        is_up: true,
        has_carrier: true,
        driver: "ixgbe".to_owned(),
        queues: 4,
        max_queues: 8,
        features: Features::default(),
        master: None,
        xdp_program: None,
        xdp_program_name: None,
        multi_buffer: None,
    }
}
