//! Prints the UDP payload of a trace probe, in hexadecimal digits. Each load balancer on the path
//! of such a probe sends a report to 192.0.2.200:9000. The program also prints whether a load
//! balancer would report each of three packets with this payload.
//!
//! The argument is the cluster's hash key, as in `marked_probe 00112233445566778899aabbccddeeff`.

use std::error::Error;
use std::net::SocketAddr;
use std::time::SystemTime;

use classifier::{Flow, HashKey, PrefixSet};
use trace_mark::{Mark, Trace, TraceKey};

const UDP: u8 = 17;

fn main() -> Result<(), Box<dyn Error>> {
    let digits = std::env::args().nth(1).ok_or("usage: marked_probe HASH_KEY")?;
    let key = TraceKey::derive(&HashKey::new(u128::from_str_radix(&digits, 16)?.to_be_bytes()));
    let receiver: SocketAddr = "192.0.2.200:9000".parse()?;
    let unix_seconds = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?.as_secs();
    let to =
        |port| Flow::new(([198, 51, 100, 7], 40_000), ([203, 0, 113, 10], port), UDP).ok_or("two families");

    let mark = Mark { receiver, unix_seconds, trace: 1, probe: 0 };
    let payload = mark.sign(&key, &to(53)?);
    println!("{}", payload.map(|byte| format!("{byte:02x}")).concat());

    let trace = Trace { key, receivers: PrefixSet::new([(receiver.ip(), 32)]), per_second: 100 };
    for (port, now) in [(53, unix_seconds), (123, unix_seconds), (53, unix_seconds + 3_600)] {
        match trace.read(&payload, &to(port)?, now) {
            Ok(mark) => println!("port {port}: reported to {}", mark.receiver),
            Err(refusal) => println!("port {port}: not reported ({})", refusal.name()),
        }
    }
    Ok(())
}
