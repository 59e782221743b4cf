//! The expected results of decapsulation. The tests of this crate and of the XDP program for
//! backends (`crates/datapath/tests/bpf/decap.rs`) use the same table.

/// The table in RFC 6040, figure 4: a row for each inner field (00, 01, 10, 11) and a column for
/// each outer field. `None` is `<drop>`.
pub(crate) const FIGURE_4: [[Option<u8>; 4]; 4] = [
    [Some(0b00), Some(0b00), Some(0b00), None],
    [Some(0b01), Some(0b01), Some(0b01), Some(0b11)],
    [Some(0b10), Some(0b01), Some(0b10), Some(0b11)],
    [Some(0b11), Some(0b11), Some(0b11), Some(0b11)],
];
