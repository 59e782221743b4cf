//! Prints the current next hops of each address, as the kernel would use them: `ways 192.0.2.7
//! 2001:db8::7`.

use std::error::Error;
use std::net::IpAddr;

use next_hop::Resolver;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let addresses = std::env::args().skip(1).map(|text| text.parse()).collect::<Result<Vec<IpAddr>, _>>()?;
    let ways = Resolver::open()?.resolve(&addresses).await?;
    for address in &addresses {
        for way in ways[address].results() {
            match way {
                Ok(way) => {
                    let mac = way.destination.map(|byte| format!("{byte:02x}")).join(":");
                    let by = way.gateway.map(|gateway| format!(" by {gateway}")).unwrap_or_default();
                    println!(
                        "{address}: to {mac}{by}, on interface {}, MTU {} bytes",
                        way.leaves_by, way.mtu_bytes
                    );
                }
                Err(reason) => println!("{address}: {reason}"),
            }
        }
    }
    Ok(())
}
