//! Applies the commands `vip withdraw` and `vip announce`.
//!
//! A command sets an override in the decider. The caller then decides again with
//! [`Announcer::look`], and builds the response with [`Announcer::change`].

use std::collections::BTreeSet;
use std::sync::Arc;

use admin::view::{VipChange, VipOverrideRow};
use admin::{OverrideNote, VipAction};

use super::Announcer;
use crate::announce::VipStatus;
use crate::announce::vip_overrides::VipOverride;
use crate::refused::Refused;

impl Announcer {
    /// Sets an override for the VIP `name`, or for all announced VIPs if `name` is `None`. The
    /// override replaces any other override of the VIP. Returns the names of the VIPs.
    ///
    /// # Errors
    /// Returns [`Refused`] if this machine has no such VIP, or does not announce it.
    pub fn give(
        &mut self,
        name: Option<&str>,
        action: VipAction,
        note: &OverrideNote,
    ) -> Result<BTreeSet<Arc<str>>, Refused> {
        let is_meant = |vip: &str| name.is_none_or(|name| name == vip);
        let rules = self.plan.rules.values().filter(|rules| is_meant(&rules.vip));
        let vips: BTreeSet<Arc<str>> = rules
            .filter(|rules| rules.announced && rules.heard)
            .map(|rules| Arc::clone(&rules.vip))
            .collect();
        if vips.is_empty() || self.plan.identity.is_none() {
            let which = name.map_or_else(|| "any VIP".to_owned(), |name| format!("VIP \"{name}\""));
            return Err(Refused::Conflict(format!("this machine does not announce {which} to a BGP peer")));
        }
        for vip in &vips {
            self.decider.overrides.give(vip, VipOverride::new(action, note, self.now));
            if action == VipAction::Announce {
                self.decider.clear(vip);
            }
        }
        Ok(vips)
    }

    /// Returns the response to a command for these VIPs.
    #[must_use]
    pub fn change(&self, vips: &BTreeSet<Arc<str>>) -> VipChange {
        let is_meant = |vip: &str| vips.iter().any(|name| **name == *vip);
        let mut notes: Vec<String> = self.shared_routes(vips).collect();
        notes.push("overrides are lost at a restart".to_owned());
        let rows = self.announced_vips().into_iter().filter(|row| is_meant(&row.vip));
        let overrides = self.override_rows().into_iter().filter(|row| is_meant(&row.vip));
        VipChange { vips: rows.collect(), overrides: overrides.collect(), notes }
    }

    /// Returns a row for each override of an announcement.
    #[must_use]
    pub fn override_rows(&self) -> Vec<VipOverrideRow> {
        self.decider.overrides.rows(self.now)
    }

    /// Returns a note for each route of a withdrawn VIP that stays announced for another VIP.
    fn shared_routes(&self, vips: &BTreeSet<Arc<str>>) -> impl Iterator<Item = String> {
        self.plan.routes.iter().filter_map(|(prefix, route)| {
            let status = |vip: &Arc<str>| self.statuses.get(vip);
            let is_withdrawn = |vip: &&Arc<str>| {
                let rules = self.plan.rules.get(*vip);
                rules.is_some_and(|rules| vips.contains(&rules.vip))
                    && matches!(status(vip), Some(VipStatus::Withdrawn(_)))
            };
            let withdrawn = route.vips.iter().find(is_withdrawn)?;
            let other = route.vips.iter().find(|vip| status(vip) == Some(&VipStatus::Announced))?;
            Some(format!(
                "route {prefix} of VIP {withdrawn} stays announced, because VIP {other} has the same route"
            ))
        })
    }

    pub(super) fn expire_overrides(&mut self) {
        for (vip, given) in self.decider.overrides.expire(self.now) {
            let action = if given.withdraws { "withdraw" } else { "announce" };
            // log: The duration (`--for`) of a `vip withdraw` or `vip announce` command has
            // elapsed. A withdrawn VIP is announced again as soon as it meets the conditions,
            // without a hold-down. After `announce`, flap damping applies again.
            tracing::info!(change = "override", %vip, action, "VIP override expired");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::time::Duration;

    use config::Config;

    use super::*;
    use crate::announce::{Fault, Plan, Seen, ServiceSeen, Why};

    const FILE: &str = r#"
[cluster]
name = "c"
hash_key_file = "k"
table_size = 1009
[machine.lb1]
addresses = ["192.0.2.1"]
interfaces = ["eth0"]
router_id = "192.0.2.1"
[pool.p]
backends = [{ name = "a", address = "198.18.0.1" }]
[bgp]
asn = 65101
[[bgp.peers]]
name = "r1"
address = "192.0.2.254"
asn = 65000
families = ["ipv4"]
[vip.www]
addresses = ["203.0.113.1"]
announce = { aggregates = ["203.0.113.0/24"] }
services = [{ ports = [80], protocol = "tcp", pool = "p" }]
[vip.dl]
addresses = ["203.0.113.2"]
announce = { aggregates = ["203.0.113.0/24"] }
services = [{ ports = [80], protocol = "tcp", pool = "p" }]
[vip.inner]
addresses = ["203.0.113.3"]
services = [{ ports = [80], protocol = "tcp", pool = "p" }]
"#;

    fn announcer() -> Announcer {
        let secret = |_: &_| Ok("00112233445566778899aabbccddeeff".to_owned());
        let config: Config = config::parse(FILE, Path::new("a.toml"), &secret).unwrap().0;
        let plan = Plan::new(&config, config.machine("lb1").unwrap());
        Announcer { plan, ..Announcer::default() }
    }

    fn seen(fault: Option<Fault>) -> Seen {
        let service =
            |vip: &str| ServiceSeen { name: format!("{vip} tcp 80"), serving: 1, ..ServiceSeen::default() };
        let services = ["www", "dl", "inner"].map(|vip| (vip.to_owned(), vec![service(vip)]));
        Seen { fault, set_up: true, services: services.into() }
    }

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn commands_apply_to_announced_vips_only() {
        let mut announcer = announcer();
        announcer.look(&seen(None), at(1));
        let note = OverrideNote { by: "uid 0".into(), reason: None, lasts: Some(at(60)), then_down: None };
        let refused = announcer.give(Some("inner"), VipAction::Withdraw, &note).unwrap_err();
        assert_eq!(refused.to_string(), "this machine does not announce VIP \"inner\" to a BGP peer");
        let vips = announcer.give(Some("www"), VipAction::Withdraw, &note).unwrap();
        announcer.look(&seen(None), at(1));
        let change = announcer.change(&vips);
        assert_eq!((change.vips.len(), change.overrides.len()), (1, 1));
        assert_eq!(
            change.notes[0],
            "route 203.0.113.0/24 of VIP www stays announced, because VIP dl has the same route"
        );
        let all = announcer.give(None, VipAction::Announce, &OverrideNote { lasts: None, ..note }).unwrap();
        assert_eq!(all.iter().map(|vip| &**vip).collect::<Vec<_>>(), ["dl", "www"]);
        let rows = announcer.override_rows();
        let ends: Vec<f64> = rows.iter().map(|row| row.ends_in_seconds).collect();
        assert_eq!((ends, rows[1].action), (vec![60.0, 60.0], VipAction::Announce));
        announcer.look(&seen(None), at(61));
        assert!(announcer.override_rows().is_empty());
        let refused = Announcer::default().give(None, VipAction::Announce, &OverrideNote::default());
        assert!(refused.is_err());
    }

    /// During the hand-over of an upgrade, the stall of a thread seems to last, because the threads
    /// are no longer checked.
    #[test]
    fn frozen_announcer_withdraws_nothing() {
        let mut announcer = announcer();
        announcer.look(&seen(None), at(1));
        let stall = |seconds| Some(Fault { why: "stuck".to_owned(), stalled: Some(at(seconds)) });
        announcer.look(&seen(stall(1)), at(2));
        announcer.freeze(true);
        let handed = announcer.handed();
        announcer.look(&seen(stall(10)), at(11));
        let marked = VipStatus::Marked(Why::Forwarder("stuck".to_owned()));
        assert_eq!((announcer.statuses.get("www"), announcer.handed()), (Some(&marked), handed));
        announcer.freeze(false);
        announcer.look(&seen(stall(10)), at(12));
        assert!(matches!(announcer.statuses.get("www"), Some(VipStatus::Withdrawn(_))));
    }
}
