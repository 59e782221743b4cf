//! Against gobgpd.

use bgp::{Attributes, Community, Family};

use crate::bed::*;

const CONFIG: &str = "[global.config]
  as = 65000
  router-id = \"192.0.2.0\"
[[neighbors]]
  [neighbors.config]
    neighbor-address = \"192.0.2.1\"
    peer-as = 65101
    auth-password = \"s3cret\"
  [neighbors.transport.config]
    passive-mode = true
  [[neighbors.afi-safis]]
    [neighbors.afi-safis.config]
      afi-safi-name = \"ipv4-unicast\"
  [[neighbors.afi-safis]]
    [neighbors.afi-safis.config]
      afi-safi-name = \"ipv6-unicast\"
";

#[test]
fn routes_of_both_families_come_and_go_in_one_session() {
    let bed = Bed::new(1);
    let file = bed.write("gobgpd.toml", CONFIG);
    let args = ["-f", &file, "--api-hosts", "127.0.0.1:50051", "--pprof-disable", "-p"];
    let _gobgpd = start(&bed.router, "gobgpd", "gobgpd", &args);
    ask(&bed.router, "gobgp", &["neighbor"], |text| text.contains("192.0.2.1"));
    let mut config = with_key(peer("v4", Family::Ipv4, 1), "s3cret");
    config.families = Family::ALL.to_vec();
    config.next_hop_v6 = Some("2001:db8:0:1::1".parse().unwrap());
    let lb = Running::start(&bed.machines[0], 1, 65_101, vec![config]);
    let attributes = Attributes { communities: vec![Community(65_101, 7)], ..Attributes::default() };
    lb.speaker.announce(table(&[VIP_V4, VIP_V6], &attributes));
    for (family, prefix, next_hop) in [("ipv4", VIP_V4, "192.0.2.1"), ("ipv6", VIP_V6, "2001:db8:0:1::1")] {
        let has = |text: &str| text.contains(prefix) && text.contains(next_hop) && text.contains("65101:7");
        ask(&bed.router, "gobgp", &["global", "rib", "-a", family], has);
    }
    lb.speaker.announce(table(&[VIP_V6], &attributes));
    ask(&bed.router, "gobgp", &["global", "rib", "-a", "ipv4"], |text| !text.contains(VIP_V4));
    ask(&bed.router, "gobgp", &["global", "rib", "-a", "ipv6"], |text| text.contains(VIP_V6));
    lb.shutdown("rack 7 moves");
    ask(&bed.router, "gobgp", &["global", "rib", "-a", "ipv6"], |text| !text.contains(VIP_V6));
}
