//! The frames of the bursts.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use testbed::FrameSpec;

use super::vm::{FAR_MAC, OWN_MAC};

/// A kind of traffic. All frames go to port 80 of the VIP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Traffic {
    /// UDP datagrams of minimum size that belong to one flow.
    OneFlow,
    /// The smallest UDP datagrams of 1,000 flows.
    ThousandFlows,
    /// TCP SYNs, each of a new flow.
    SynFlood,
    /// UDP datagrams of 1,000 flows over IPv6.
    Ipv6,
    /// UDP datagrams of 1,000 flows in IP packets of 1,400 bytes.
    Large,
    /// Single datagrams of one flow. The forwarder is idle before and after each of them.
    Lone,
    /// UDP datagrams of 1,000 flows, far more than the rings hold. The NIC has a frame ready
    /// whenever it has a free buffer, so the packets arrive as fast as the driver can receive them.
    Overload,
}

impl Traffic {
    pub(crate) const ALL: [Self; 7] = [
        Self::OneFlow,
        Self::ThousandFlows,
        Self::SynFlood,
        Self::Ipv6,
        Self::Large,
        Self::Lone,
        Self::Overload,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::OneFlow => "one flow",
            Self::ThousandFlows => "1000 flows",
            Self::SynFlood => "SYN flood",
            Self::Ipv6 => "IPv6",
            Self::Large => "1400 bytes",
            Self::Lone => "lone packet",
            Self::Overload => "overload",
        }
    }

    /// Returns the frames of burst number `burst`, which has at most `most` frames. Each burst of a
    /// SYN flood has new flows. For all other traffic, all bursts have the same flows.
    pub(crate) fn frames(self, burst: usize, most: usize) -> Vec<Vec<u8>> {
        let count = match self {
            Self::Lone => LONE,
            Self::Overload => OVERLOAD * most,
            _ => most,
        };
        (0..count)
            .map(|n| match self {
                Self::OneFlow | Self::Lone => udp(0, SMALLEST),
                // Neighboring frames belong to different flows, in an order other than that of
                // their first packets.
                Self::ThousandFlows | Self::Overload => udp(n * 7 % 1_000, SMALLEST),
                Self::Large => udp(n * 7 % 1_000, LARGE),
                Self::Ipv6 => udp6(n * 7 % 1_000),
                Self::SynFlood => syn(burst * most + n),
            })
            .collect()
    }
}

fn udp(flow: usize, payload: usize) -> Vec<u8> {
    let spec = FrameSpec::udp(FAR_MAC, OWN_MAC, client(flow, 0), vip());
    FrameSpec { payload: vec![0x5a; payload], ..spec }.bytes()
}

fn udp6(flow: usize) -> Vec<u8> {
    let source = Ipv6Addr::new(0x2001, 0xdb8, 0x100, 0, 0, 0, 0, low(flow % 250 + 1));
    let source = SocketAddr::new(IpAddr::V6(source), port(flow));
    FrameSpec::udp(FAR_MAC, OWN_MAC, source, SocketAddr::new(IpAddr::V6(VIP6), 80)).bytes()
}

fn syn(flow: usize) -> Vec<u8> {
    let spec = FrameSpec::udp(FAR_MAC, OWN_MAC, client(flow, flow / 250 % 250), vip());
    let mut frame = FrameSpec { tcp_flags: Some(SYN), ..spec }.bytes();
    frame.resize(frame.len().max(60), 0);
    frame
}

fn client(flow: usize, network: usize) -> SocketAddr {
    let [_, third] = low(network).to_be_bytes();
    let [_, fourth] = low(flow % 250 + 1).to_be_bytes();
    SocketAddr::new(Ipv4Addr::new(198, 18, third, fourth).into(), port(flow))
}

fn vip() -> SocketAddr {
    SocketAddr::new(VIP4.into(), 80)
}

fn port(flow: usize) -> u16 {
    5_000 + low(flow % 50_000)
}

fn low(value: usize) -> u16 {
    u16::try_from(value).expect("small numbers only")
}

pub(crate) const VIP4: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 10);
pub(crate) const VIP6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0x113, 0, 0, 0, 0, 0x10);
const SYN: u8 = 2;
/// The payload length of a datagram in a 64-byte frame, including the FCS.
const SMALLEST: usize = 18;
const LARGE: usize = 1_400 - 28;
/// The number of lone packets. Together they take more than a second, so that regular work of the
/// machine occurs as often as in the idle time that is subtracted.
const LONE: usize = 200;
/// The number of ring fillings in an overload burst. QEMU holds at most 10,000 frames.
const OVERLOAD: usize = 8;

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn bursts_have_the_named_number_of_flows() {
        let flows = |traffic: Traffic, burst| {
            let frames = traffic.frames(burst, 2_000);
            frames.iter().map(|frame| frame[26..38].to_vec()).collect::<HashSet<_>>()
        };
        assert_eq!(flows(Traffic::OneFlow, 1).len(), 1);
        assert_eq!(flows(Traffic::ThousandFlows, 1).len(), 1_000);
        assert_eq!(flows(Traffic::ThousandFlows, 1), flows(Traffic::ThousandFlows, 2));
        assert_eq!(flows(Traffic::SynFlood, 1).len(), 2_000);
        assert!(flows(Traffic::SynFlood, 1).is_disjoint(&flows(Traffic::SynFlood, 2)));
        assert_eq!(Traffic::Large.frames(0, 1)[0].len(), 1_414);
        assert_eq!(flows(Traffic::Lone, 1).len(), 1);
    }
}
