//! Tests against gobgpd.

use bgp::{Attributes, Community};
use testbed::{Router, RouterKind, RouterSession};

use crate::bed::*;

#[test]
fn routes_of_both_families_come_and_go_in_one_session() {
    let bed = bed(1);
    let session = RouterSession { both: true, ..RouterSession::new(1, true) };
    let gobgpd = Router::start(&bed, RouterKind::Gobgp, &[session]).unwrap();
    let lb = Running::start(&bed, &[session]);
    let attributes = Attributes { communities: vec![Community(65_101, 7)], ..Attributes::default() };
    lb.speaker.announce(table(&[VIP_V4, VIP_V6], &attributes));
    for (family, prefix, next_hop) in [("ipv4", VIP_V4, "192.0.2.1"), ("ipv6", VIP_V6, "2001:db8:0:1::1")] {
        let has = |text: &str| text.contains(prefix) && text.contains(next_hop) && text.contains("65101:7");
        gobgpd.until(&format!("global rib -a {family}"), has).unwrap();
    }
    lb.speaker.announce(table(&[VIP_V6], &attributes));
    gobgpd.until("global rib -a ipv4", |text| !text.contains(VIP_V4)).unwrap();
    gobgpd.until("global rib -a ipv6", |text| text.contains(VIP_V6)).unwrap();
    lb.shutdown("rack 7 moves");
    gobgpd.until("global rib -a ipv6", |text| !text.contains(VIP_V6)).unwrap();
}
