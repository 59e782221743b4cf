//! Builds fragments for tests. The code is independent of the fragmentation in the product.

use std::net::IpAddr;

use crate::bed::{OURS, ROUTER, ip};

/// An IP payload that is to be sent in fragments.
#[derive(Clone, Debug)]
pub(crate) struct Datagram {
    pub(crate) source: &'static str,
    pub(crate) vip: &'static str,
    pub(crate) protocol: u8,
    pub(crate) id: u32,
    pub(crate) payload: Vec<u8>,
}

/// Returns a UDP payload with a wrong checksum. The pipeline does not verify the checksum of
/// packets that it forwards.
pub(crate) fn udp_payload(source_port: u16, port: u16, data: usize) -> Vec<u8> {
    let mut payload = Vec::with_capacity(8 + data);
    payload.extend(source_port.to_be_bytes());
    payload.extend(port.to_be_bytes());
    payload.extend(u16::try_from(8 + data).unwrap().to_be_bytes());
    payload.extend([0x12, 0x34]);
    payload.extend((0..data).map(|n| (n * 7 + n / 251) as u8));
    payload
}

impl Datagram {
    /// Returns the fragment that contains the bytes `from..to` of the payload.
    pub(crate) fn piece(&self, from: usize, to: usize) -> Vec<u8> {
        let more = to < self.payload.len();
        let mut frame = [&OURS[..], &ROUTER[..]].concat();
        match (ip(self.source), ip(self.vip)) {
            (IpAddr::V4(source), IpAddr::V4(vip)) => {
                let mut header = vec![0x45, 0];
                header.extend(u16::try_from(20 + to - from).unwrap().to_be_bytes());
                header.extend((self.id as u16).to_be_bytes());
                header.extend((u16::from(more) << 13 | u16::try_from(from / 8).unwrap()).to_be_bytes());
                header.extend([64, self.protocol, 0, 0]);
                header.extend(source.octets());
                header.extend(vip.octets());
                let sum = ones_complement(&header);
                header[10..12].copy_from_slice(&sum.to_be_bytes());
                frame.extend([0x08, 0x00]);
                frame.extend(header);
            }
            (IpAddr::V6(source), IpAddr::V6(vip)) => {
                frame.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
                frame.extend(u16::try_from(8 + to - from).unwrap().to_be_bytes());
                frame.extend([44, 64]);
                frame.extend(source.octets());
                frame.extend(vip.octets());
                frame.extend([self.protocol, 0]);
                frame.extend((u16::try_from(from).unwrap() | u16::from(more)).to_be_bytes());
                frame.extend(self.id.to_be_bytes());
            }
            _ => panic!("addresses of different families"),
        }
        frame.extend(&self.payload[from..to]);
        frame
    }

    /// Returns all fragments in order, with at most `room` bytes of payload each.
    pub(crate) fn cut(&self, room: usize) -> Vec<Vec<u8>> {
        let step = room / 8 * 8;
        let starts = (0..self.payload.len()).step_by(step);
        starts.map(|from| self.piece(from, (from + step).min(self.payload.len()))).collect()
    }
}

fn ones_complement(header: &[u8]) -> u16 {
    let mut sum: u32 = header.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(pair[1])).sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}
