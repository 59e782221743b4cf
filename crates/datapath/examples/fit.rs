//! Prints the properties of a network interface, and the problems that would prevent XDP forwarding
//! on it. Usage: `fit eth0`.

use std::error::Error;
use std::process::ExitCode;

use datapath::CHUNK;
use datapath::interface::{Interface, Severity};

fn main() -> Result<ExitCode, Box<dyn Error>> {
    let name = std::env::args().nth(1).ok_or("usage: fit INTERFACE")?;
    let interface = Interface::read(&name)?.with_program_name().with_multi_buffer();
    let Interface { driver, queues, max_queues, mtu_bytes, .. } = &interface;
    println!("{name}: driver {driver:?}, {queues} of {max_queues} queues, MTU {mtu_bytes}");
    let findings = interface.findings(CHUNK);
    for finding in &findings {
        println!("{:?}: {finding}", finding.severity);
    }
    let is_fit = !findings.iter().any(|finding| finding.severity == Severity::Error);
    Ok(if is_fit { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
