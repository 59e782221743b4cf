//! Tests of `on_drain`: whether the flows of a UDP service stay on a backend that drains.

use super::*;

fn text(count: u8) -> String {
    let service = |port, protocol: &str, more: &str| {
        format!("{{ ports = [{port}], protocol = \"{protocol}\", pool = \"web\"{more} }}")
    };
    let services = [
        service(53, "udp", ", on_drain = \"move\""),
        service(443, "udp", ", on_drain = \"keep\""),
        service(443, "tcp", ""),
    ];
    let vip = format!("[vip.www]\naddresses = [\"203.0.113.10\"]\nservices = [{}]\n", services.join(", "));
    pool("web", 1, count, "checks = [\"tcp\"]") + &vip
}

/// The slots that each service excludes. The services `tcp 443` and `udp 443` must exclude none.
fn excluded(bed: &Bed) -> Vec<u32> {
    let services = bed.live.services().iter();
    let of_dns = |service: &&forwarder::Service| &*service.name == "www udp 53";
    let (dns, others): (Vec<_>, Vec<_>) = services.partition(of_dns);
    assert!(others.iter().all(|service| service.excluded_slots.is_empty()));
    dns[0].excluded_slots.iter().map(|slot| slot.0).collect()
}

fn slot(bed: &Bed, backend: &str) -> u32 {
    let of = |one: &&compile::Membership| &*one.key.backend == backend;
    bed.controller.index().memberships().iter().find(of).unwrap().slot.0
}

#[test]
fn flows_of_drained_backend_move_only_with_on_drain_move() {
    let mut bed = Bed::new(config(&text(3)));
    bed.say("web", HealthState::Up, 1);
    bed.settle(1);
    assert_eq!(excluded(&bed), [0; 0]);
    let second = slot(&bed, "web-2");
    bed.order("web-2", None, Some(Override { mode: Some(Mode::Drain), weight: None }));
    assert_eq!((excluded(&bed), bed.state("web-2")), (vec![second], SlotState::Draining));
    bed.settle(2);
    assert_eq!(excluded(&bed), [second]);
    bed.order("web-2", None, None);
    assert_eq!(excluded(&bed), [0; 0]);
    bed.advise("web-2", true, 10);
    assert_eq!(excluded(&bed), [second], "a drain by an agent");
    bed.advise("web-2", false, 10);

    let third = slot(&bed, "web-3");
    bed.job(Some(config(&text(2))), 10);
    assert_eq!(excluded(&bed), [third], "a removed backend");
    bed.settle(11);
    assert_eq!(excluded(&bed), [third], "a rebuild of the tables changes nothing");
}

#[test]
fn moved_service_leaves_its_old_backends_at_once() {
    let other = pool("other", 2, 1, "");
    let mut bed = Bed::new(config(&(text(2) + &other)));
    bed.say("web", HealthState::Up, 1);
    bed.settle(1);
    let left = ["web-1", "web-2"].map(|name| slot(&bed, name));
    let moved = text(2).replacen("pool = \"web\"", "pool = \"other\"", 1);
    bed.job(Some(config(&(moved + &other))), 10);
    assert_eq!(excluded(&bed), left, "other services still use these backends");
}
