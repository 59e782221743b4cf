//! Tests of VIPs that reject packets. A list of rules, which shares no code with the pipeline,
//! gives the expected verdict, and etherparse reads the reply.

use std::net::IpAddr;

use etherparse::{IpHeaders, SlicedPacket, TransportSlice};
use forwarder::*;
use proptest::prelude::*;

use crate::bed::*;
use crate::icmp::{read_error, refresh};
use crate::keyed::{PORT, framed, keyed_of};
use crate::martians::echo;
use crate::pieces::{Datagram, udp_payload};
use crate::ports::{self, INITIATE_TAG, crc32c, sctp_init};

const CLIENT4: &str = "198.51.100.7";
const CLIENT6: &str = "2001:db8:9::7";

/// A reason why a packet gets no reply although its VIP rejects packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Flaw {
    HeaderChecksum,
    Checksum,
    GroupMac,
    Denied,
    Martian,
    FromVip,
    OtherAddress,
}

#[derive(Clone, Debug)]
struct Case {
    v6: bool,
    protocol: u8,
    flags: &'static str,
    is_served: bool,
    is_up: bool,
    rejects: Rejects,
    flaw: Option<Flaw>,
    has_fast_path: bool,
    is_tagged: bool,
}

fn case() -> impl Strategy<Value = Case> {
    let flaws = vec![
        Flaw::HeaderChecksum,
        Flaw::Checksum,
        Flaw::GroupMac,
        Flaw::Denied,
        Flaw::Martian,
        Flaw::FromVip,
        Flaw::OtherAddress,
    ];
    let protocol = prop::sample::select(vec![6_u8, 6, 17, 17, 47, 132, 136, 50, 59]);
    let flags = prop::sample::select(vec!["S", "A", "FA", "F", "SA", "", "R", "RA"]);
    let flaw = prop::option::weighted(0.4, prop::sample::select(flaws));
    (any::<[bool; 7]>(), protocol, flags, flaw).prop_map(
        |(
            [v6, is_served, is_up, no_backend, unserved_port, has_fast_path, is_tagged],
            protocol,
            flags,
            flaw,
        )| {
            let rejects = Rejects { no_backend, unserved_port };
            Case { v6, protocol, flags, is_served, is_up, rejects, flaw, has_fast_path, is_tagged }
        },
    )
}

impl Case {
    /// Returns `true` if the testbed has a service for the protocol and the port of the packet.
    fn has_service(&self) -> bool {
        self.flaw != Some(Flaw::OtherAddress)
            && match self.protocol {
                6 | 17 | 132 | 136 => self.is_served,
                // All packets of this protocol belong to one service.
                protocol => protocol == 47,
            }
    }

    fn source(&self) -> &'static str {
        match (self.flaw, self.v6) {
            (Some(Flaw::Denied), true) => "2001:db8:66::7",
            (Some(Flaw::Denied), false) => "198.51.100.66",
            (Some(Flaw::Martian), true) => "fe80::7",
            (Some(Flaw::Martian), false) => "127.0.0.1",
            (Some(Flaw::FromVip), true) => VIP6,
            (Some(Flaw::FromVip), false) => VIP4,
            (_, true) => CLIENT6,
            (_, false) => CLIENT4,
        }
    }

    fn destination(&self) -> &'static str {
        match (self.flaw, self.v6) {
            (Some(Flaw::OtherAddress), true) => "2001:db8:f::99",
            (Some(Flaw::OtherAddress), false) => "203.0.113.99",
            (_, true) => VIP6,
            (_, false) => VIP4,
        }
    }

    fn frame(&self) -> Vec<u8> {
        let (source, vip) = (self.source(), self.destination());
        let ports = (4000, if self.is_served { 443 } else { 81 });
        let mut frame = match self.protocol {
            132 => ports::packet(source, vip, 132, &sctp_init(ports, b"question")),
            136 => ports::packet(source, vip, 136, &ports::udp_lite(source, vip, ports, b"question")),
            6 => tcp(source, 4000, vip, if self.is_served { 80 } else { 81 }, self.flags),
            _ => udp(source, 4000, vip, ports.1, b"question"),
        };
        frame[if self.v6 { 20 } else { 23 }] = self.protocol;
        if !self.v6 {
            frame = refresh(frame);
        }
        match self.flaw {
            Some(Flaw::HeaderChecksum) if !self.v6 => frame[24] ^= 1,
            Some(Flaw::Checksum) => *frame.last_mut().unwrap() ^= 1,
            Some(Flaw::GroupMac) => frame[0] |= 1,
            _ => {}
        }
        if self.is_tagged { tagged(&frame, 0x8100, 5) } else { frame }
    }

    /// Returns the drop reason, or `None` if a backend receives the packet.
    fn reason(&self) -> Option<DropReason> {
        Some(match self.flaw {
            _ if !self.has_service() => DropReason::NoVip,
            Some(Flaw::Denied) => DropReason::Denied,
            Some(Flaw::Martian) => DropReason::Martian,
            Some(Flaw::FromVip) => DropReason::FromVip,
            _ if !self.is_up => DropReason::NoBackend,
            _ => return None,
        })
    }

    fn is_rejected(&self) -> bool {
        let may_reply = match self.flaw {
            None => true,
            Some(Flaw::HeaderChecksum) => self.v6,
            // The checksums of other protocols are not verified.
            Some(Flaw::Checksum) => !matches!(self.protocol, 6 | 17 | 132 | 136),
            Some(_) => false,
        };
        let wanted = match self.reason() {
            Some(DropReason::NoVip) => self.rejects.unserved_port,
            Some(DropReason::NoBackend) => self.rejects.no_backend,
            _ => false,
        };
        // IPv6 packets with the next header 59 have no content (RFC 8200 §4.7).
        let is_silent = (self.protocol == 6 && self.flags.contains('R')) || (self.protocol == 59 && self.v6);
        wanted && may_reply && !is_silent
    }

    /// Returns the outcome that the `where` command predicts for the flow. It ignores everything
    /// that only this packet has.
    fn prediction(&self) -> Outcome {
        let of_packet = [Flaw::HeaderChecksum, Flaw::Checksum, Flaw::GroupMac].map(Some);
        let flaw = self.flaw.filter(|_| !of_packet.contains(&self.flaw));
        let sound = Case { flags: "S", flaw, ..self.clone() };
        let Some(reason) = self.reason() else { return Outcome::Forward };
        if !sound.is_rejected() {
            return Outcome::Drop(reason);
        }
        let reply = match self.error() {
            _ if self.protocol == 6 => Rejection::Reset,
            _ if self.protocol == 132 => Rejection::Abort,
            (3, 3, _) | (1, 4, _) => Rejection::Port,
            (3, 2, _) | (4, 1, _) => Rejection::Protocol,
            _ => Rejection::Host,
        };
        Outcome::Reject(reason, reply)
    }

    /// Returns the type, the code and the word after the checksum of the ICMP error.
    fn error(&self) -> (u8, u8, u32) {
        let has_ports = matches!(self.protocol, 17 | 136);
        match (self.v6, self.reason()) {
            (false, _) if has_ports => (3, 3, 0),
            (true, _) if has_ports => (1, 4, 0),
            (false, Some(DropReason::NoBackend)) => (3, 1, 0),
            (true, Some(DropReason::NoBackend)) => (1, 3, 0),
            (false, _) => (3, 2, 0),
            // The field at offset 6 of the IPv6 header contains the unknown protocol.
            (true, _) => (4, 1, 6),
        }
    }
}

fn bed(case: &Case) -> Bed {
    let mut parts = parts(gre_slots(2), &[1, 1]);
    for (vip, protocol) in [(VIP4, 132), (VIP4, 136), (VIP6, 132), (VIP6, 136)] {
        parts.bindings.push(binding(vip, protocol, 443..=443, 0));
    }
    let denied = [(ip("198.51.100.66"), 32), (ip("2001:db8:66::"), 48)];
    let guard = Guard { deny: Some(PrefixSet::new(denied).into()), ..Guard::default() };
    let guard = std::sync::Arc::new(guard);
    for service in &mut parts.services {
        (service.guard, service.rejects) = (Some(guard.clone()), case.rejects);
    }
    if !case.is_up {
        parts.states.fill(SlotState::Down);
    }
    let mut bed = Bed::with(parts, crate::icmp::generous());
    if !case.has_fast_path {
        bed.pipeline = bed.pipeline.without_fast_path();
    }
    bed
}

/// Checks a reset against RFC 9293 §3.10.7.1, for a segment with the sequence number 1000, the
/// acknowledgment number 2000 and 7 bytes of data.
fn check_reset(case: &Case, frame: &[u8]) {
    let packet = SlicedPacket::from_ethernet(frame).unwrap();
    let Some(TransportSlice::Tcp(reset)) = &packet.transport else { panic!("{packet:?}") };
    let expected = match case.flags.contains('A') {
        true => (2000, 0, false),
        false => {
            let control = case.flags.matches(['S', 'F']).count() as u32;
            (0, 1000 + 7 + control, true)
        }
    };
    assert_eq!((reset.sequence_number(), reset.acknowledgment_number(), reset.ack()), expected);
    assert!(reset.rst() && !reset.syn() && !reset.fin());
    assert_eq!((reset.source_port(), reset.destination_port()), (if case.is_served { 80 } else { 81 }, 4000));
    assert!(reset.payload().is_empty());
    let (headers, _) = IpHeaders::from_slice(&frame[14 + 4 * usize::from(case.is_tagged)..]).unwrap();
    let checksum = match &headers {
        IpHeaders::Ipv4(ip, _) => {
            assert_eq!(ip.calc_header_checksum(), ip.header_checksum);
            assert_eq!((ip.source, ip.destination), ([203, 0, 113, 10], [198, 51, 100, 7]));
            reset.to_header().calc_checksum_ipv4(ip, &[])
        }
        IpHeaders::Ipv6(ip, _) => {
            assert_eq!(IpAddr::from(ip.source), crate::bed::ip(VIP6));
            assert_eq!(IpAddr::from(ip.destination), crate::bed::ip(CLIENT6));
            reset.to_header().calc_checksum_ipv6(ip, &[])
        }
    };
    assert_eq!(checksum.unwrap(), reset.checksum());
}

/// Checks the reply to an INIT against RFC 9260 §8.4: an ABORT with the initiate tag and without
/// the T bit.
fn check_abort(case: &Case, frame: &[u8]) {
    let (headers, payload) = IpHeaders::from_slice(&frame[14 + 4 * usize::from(case.is_tagged)..]).unwrap();
    let (source, destination) = match &headers {
        IpHeaders::Ipv4(ip, _) => {
            assert_eq!(ip.calc_header_checksum(), ip.header_checksum);
            (IpAddr::from(ip.source), IpAddr::from(ip.destination))
        }
        IpHeaders::Ipv6(ip, _) => (ip.source.into(), ip.destination.into()),
    };
    assert_eq!((source, destination), (ip(case.destination()), ip(case.source())));
    let port: u16 = if case.is_served { 443 } else { 81 };
    let ports = [port.to_be_bytes(), 4000_u16.to_be_bytes()].concat();
    let abort = payload.payload;
    assert_eq!((payload.ip_number.0, abort.len(), &abort[..4]), (132, 16, &ports[..]));
    assert_eq!((&abort[4..8], &abort[12..]), (&INITIATE_TAG[..], &[6, 0, 0, 4][..]));
    assert_eq!(abort[8..12], crc32c(abort));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4096))]
    #[test]
    fn packet_without_backend_is_rejected_by_the_rules(case in case()) {
        let mut bed = bed(&case);
        let sent = case.frame();
        let flow = Flow::of(&sent, &packet::parse(&sent).unwrap());
        prop_assert_eq!(bed.live.current().explain(&flow, None).outcome, case.prediction());
        let (verdict, out) = bed.send(60, &sent);
        let counters = [
            &bed.counters.resets_sent,
            &bed.counters.aborts_sent,
            &bed.counters.unreachables_sent,
            &bed.counters.rejected_no_backend,
            &bed.counters.rejected_no_vip,
        ].map(Counter::read);
        if !case.is_rejected() {
            prop_assert_eq!(verdict, case.reason().map_or(Verdict::Tx, Verdict::Drop));
            prop_assert_eq!(counters, [0; 5]);
            if let Some(reason) = case.reason() {
                prop_assert_eq!(bed.counters.drops(reason), 1);
            }
            return Ok(());
        }
        prop_assert_eq!(verdict, Verdict::Reply);
        prop_assert_eq!((&out[..6], &out[6..12]), (&sent[6..12], &sent[..6]));
        let [is_tcp, is_sctp] = [6, 132].map(|protocol| u64::from(case.protocol == protocol));
        let is_down = u64::from(case.reason() == Some(DropReason::NoBackend));
        prop_assert_eq!(counters, [is_tcp, is_sctp, 1 - is_tcp - is_sctp, is_down, 1 - is_down]);
        let dropped: u64 = DropReason::ALL.iter().map(|reason| bed.counters.drops(*reason)).sum();
        prop_assert_eq!(dropped, 0);
        if case.protocol == 6 {
            check_reset(&case, &out);
        } else if case.protocol == 132 {
            check_abort(&case, &out);
        } else {
            let link = 14 + 4 * usize::from(case.is_tagged);
            let plain = [&out[..12], &out[link - 2..]].concat();
            let (kind, code, word, source, destination, quote) = read_error(&plain);
            prop_assert_eq!((kind, code, word), case.error());
            prop_assert_eq!((source, destination), (ip(case.destination()), ip(case.source())));
            prop_assert_eq!(&quote[..], &sent[link..]);
        }
        prop_assert_eq!(bed.pipeline.flows().len(), 0);
    }
}

fn rejecting(parts: &mut Parts) {
    let rejects = Rejects { no_backend: true, unserved_port: true };
    parts.services.iter_mut().for_each(|service| service.rejects = rejects);
}

#[test]
fn keyed_request_without_backend_is_rejected() {
    let application = Box::new(kv_switch::Memcached::new(3));
    let mut parts = keyed_of(application, KeyFailover::Next, KeyPath::Direct, None);
    rejecting(&mut parts);
    parts.states.fill(SlotState::Down);
    let mut bed = Bed::new(parts);
    for (client, vip, expected) in [(CLIENT4, VIP4, (3, 3)), (CLIENT6, VIP6, (1, 4))] {
        let (verdict, out) = bed.send(24, &udp(client, 40_000, vip, PORT, &framed(b"get k1\r\n")));
        assert_eq!(verdict, Verdict::Reply);
        let (kind, code, _, source, ..) = read_error(&out);
        assert_eq!(((kind, code), source), (expected, ip(vip)));
        let flow = Flow::new((ip(client), 40_000), (ip(vip), PORT), 17).unwrap();
        let predicted = bed.live.current().explain_key(&flow, b"k1").outcome;
        assert_eq!(predicted, Outcome::Reject(DropReason::NoBackend, Rejection::Port));
    }
}

#[test]
fn later_fragments_and_icmp_packets_are_not_rejected() {
    let mut parts = parts(gre_slots(1), &[1]);
    rejecting(&mut parts);
    parts.states.fill(SlotState::Down);
    let mut bed = Bed::new(parts);
    for (source, vip) in [(CLIENT4, VIP4), (CLIENT6, VIP6)] {
        for (id, port, reason) in [(1, 443, DropReason::NoBackend), (2, 81, DropReason::NoVip)] {
            let payload = udp_payload(4000, port, 1_500);
            let pieces = Datagram { source, vip, protocol: 17, id, payload }.cut(512);
            assert_eq!(bed.all(&pieces[0])[0].0, Verdict::Reply, "the first fragment has ports");
            assert_eq!(bed.all(&pieces[1])[0].0, Verdict::Drop(reason));
            // A later fragment that waits for the first fragment gets no reply either.
            let payload = udp_payload(4000, port, 1_500);
            let pieces = Datagram { source, vip, protocol: 17, id: id + 10, payload }.cut(512);
            assert!(bed.all(&pieces[1]).is_empty());
            let mut verdicts: Vec<_> = bed.all(&pieces[0]).iter().map(|(verdict, _)| *verdict).collect();
            verdicts.sort_by_key(|verdict| *verdict != Verdict::Reply);
            assert_eq!(verdicts, [Verdict::Reply, Verdict::Drop(reason)]);
            // The length and the checksum of a fragmented TCP segment are unknown.
            let payload = tcp(source, 4000, vip, if port == 443 { 80 } else { 81 }, "S")
                .split_off(if vip == VIP4 { 34 } else { 54 });
            let payload = [payload, vec![0; 1_000]].concat();
            let pieces = Datagram { source, vip, protocol: 6, id: id + 20, payload }.cut(512);
            assert_eq!(bed.all(&pieces[0])[0].0, Verdict::Drop(reason));
            // The checksum of a fragmented SCTP packet is unknown too.
            let payload = sctp_init((4000, port), &[0; 1_000]);
            let pieces = Datagram { source, vip, protocol: 132, id: id + 30, payload }.cut(512);
            assert_eq!(bed.all(&pieces[0])[0].0, Verdict::Drop(DropReason::NoVip));
        }
        assert_eq!(bed.send(24, &echo(source, vip)).0, Verdict::Reply);
    }
}

/// A flood of packets that get no reply does not use up the rate limit.
#[test]
fn unanswerable_packets_do_not_count_against_the_rate_limit() {
    let mut parts = parts(gre_slots(1), &[1]);
    rejecting(&mut parts);
    let mut bed = Bed::new(parts);
    let damage: [fn(&mut Vec<u8>); 3] =
        [|frame| frame[0] |= 1, |frame| *frame.last_mut().unwrap() ^= 1, |frame| frame[20] |= 0x20];
    for (number, damage) in (0..).zip(damage) {
        for port in 0..300 {
            let udp_lite = ports::udp_lite(CLIENT4, VIP4, (port, 81), b"question");
            for mut frame in [
                tcp(CLIENT4, 5000 + port, VIP4, 81, "S"),
                udp(CLIENT4, port, VIP4, 81, b"question"),
                ports::packet(CLIENT4, VIP4, 132, &sctp_init((port, 81), b"question")),
                ports::packet(CLIENT4, VIP4, 136, &udp_lite),
            ] {
                frame[18..20].copy_from_slice(&port.to_be_bytes());
                damage(&mut frame);
                // The first fragment of UDP and UDP-Lite gets an ICMP error.
                let is_rejected_fragment = number == 2 && matches!(frame[23], 17 | 136);
                if !is_rejected_fragment {
                    let frame = refresh(frame);
                    assert!(matches!(bed.send(24, &frame).0, Verdict::Drop(_)), "{number}");
                }
            }
        }
    }
    assert_eq!(bed.send(24, &tcp(CLIENT4, 6000, VIP4, 81, "S")).0, Verdict::Reply);
}

// Promise: icmp-rate-limits
#[test]
fn rejected_packets_have_their_own_rate_limit() {
    let mut parts = parts(gre_slots(1), &[1]);
    rejecting(&mut parts);
    let mut bed = Bed::new(parts);
    let mut replies = 0;
    for port in 0..300 {
        let frame = match port % 2 {
            0 => tcp(CLIENT4, 5000 + port, VIP4, 81, "S"),
            _ => udp(CLIENT4, 5000 + port, VIP4, 81, b""),
        };
        match bed.send(24, &frame).0 {
            Verdict::Reply => replies += 1,
            verdict => assert_eq!(verdict, Verdict::Drop(DropReason::NoVip)),
        }
    }
    assert_eq!(replies, 100);
    assert_eq!(bed.counters.drops(DropReason::NoVip), 200);
    assert_eq!(bed.send(24, &echo(CLIENT4, VIP4)).0, Verdict::Reply, "pings are still answered");
    bed.advance(1);
    assert_eq!(bed.send(24, &tcp(CLIENT4, 6000, VIP4, 81, "S")).0, Verdict::Reply);
}
