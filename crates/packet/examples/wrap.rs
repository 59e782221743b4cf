//! Parses a frame and encapsulates its IP packet in GRE over IPv4, as a load balancer does.

use std::net::Ipv4Addr;
use std::process::ExitCode;

use packet::{Encapsulation, Inner, Outer, Template, parse};

fn main() -> ExitCode {
    let frame = frame();
    let parsed = match parse(&frame) {
        Ok(parsed) => parsed,
        Err(error) => {
            eprintln!("{error:?}");
            return ExitCode::FAILURE;
        }
    };
    let addresses = parsed.addresses(&frame);
    println!(
        "protocol {}, {} port {} -> {} port {}",
        parsed.protocol,
        addresses.source(),
        parsed.src_port,
        addresses.destination(),
        parsed.dst_port
    );
    let outer = Outer::V4 { source: Ipv4Addr::new(192, 0, 2, 1), destination: Ipv4Addr::new(198, 18, 1, 1) };
    let template = Template::new(Encapsulation::Gre, outer, parsed.family, true);
    let ip = &frame[usize::from(parsed.l3)..usize::from(parsed.end)];
    let Ok(len) = u16::try_from(ip.len()) else { return ExitCode::FAILURE };
    let mut out = vec![0; template.len()];
    let inner = Inner { len, tos: parsed.tos, flow_hash: 0x1234_5678, identification: 0 };
    if let Err(error) = template.write(&mut out, &inner) {
        eprintln!("{error}");
        return ExitCode::FAILURE;
    }
    println!("{} bytes of outer headers in front of {} bytes:", out.len(), ip.len());
    println!("{}", out.iter().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().join(" "));
    ExitCode::SUCCESS
}

/// A UDP packet from 198.51.100.7 to 203.0.113.10, port 53, over Ethernet.
fn frame() -> Vec<u8> {
    let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0];
    frame.extend([0x45, 0, 0, 32, 0, 1, 0x40, 0, 64, 17, 0, 0, 198, 51, 100, 7, 203, 0, 113, 10]);
    frame.extend([0xc0, 0x01, 0, 53, 0, 12, 0, 0, b'p', b'i', b'n', b'g']);
    frame
}
