//! Logs changes to VIP announcements.
//!
//! Many VIPs can change together, for example after the start of a machine. Similar changes then
//! share one log line with their number and the first names.

use std::collections::BTreeMap;
use std::sync::Arc;

use config::words::log_lines;

use crate::announce::decision::{Rules, VipStatus};
use crate::log_fields;

/// The kinds of changes that are logged.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Announced,
    Unmarked,
    Marked,
    Withdrawn,
}

/// The name of a VIP, and the reason for its change.
type Change<'v> = (&'v str, Option<String>);

impl Kind {
    fn of(before: Option<&VipStatus>, status: &VipStatus) -> Option<Self> {
        let was = matches!(before, Some(VipStatus::Announced | VipStatus::Marked(_)));
        match status {
            VipStatus::Announced if !was => Some(Self::Announced),
            VipStatus::Announced if before != Some(&VipStatus::Announced) => Some(Self::Unmarked),
            VipStatus::Marked(_) if before == Some(&VipStatus::Announced) => Some(Self::Marked),
            VipStatus::Withdrawn(_) if was => Some(Self::Withdrawn),
            _ => None,
        }
    }
}

/// Logs the differences between the statuses `before` and `next`. The keys of the maps are VIP
/// names, or VIP names with an address family if the families of the VIP have separate rules.
pub(super) fn log(
    rules: &BTreeMap<Arc<str>, Rules>,
    before: &BTreeMap<Arc<str>, VipStatus>,
    next: &BTreeMap<Arc<str>, VipStatus>,
) {
    let mut groups: BTreeMap<(Kind, Option<&str>), Vec<Change<'_>>> = BTreeMap::new();
    for (name, status) in next {
        let Some(kind) = Kind::of(before.get(name), status) else { continue };
        let found = rules.get(name);
        let family = found.and_then(|rules| rules.family).map(log_fields::family);
        let why = match status {
            VipStatus::Marked(why) | VipStatus::Withdrawn(why) => Some(why.to_string()),
            _ => None,
        };
        groups.entry((kind, family)).or_default().push((found.map_or(name, |rules| &*rules.vip), why));
    }
    for ((kind, family), changes) in groups {
        let is_same =
            changes.windows(2).all(|pair| pair.first().map(|one| &one.1) == pair.last().map(|one| &one.1));
        for line in log_lines(changes, |(vip, _)| *vip) {
            let why = line.first.1.filter(|_| is_same || line.count.is_none());
            write(kind, &line.names, family, line.count, why.as_deref());
        }
    }
}

fn write(kind: Kind, vip: &str, family: Option<&str>, vips: Option<usize>, why: Option<&str>) {
    match kind {
        // log: The routes of a VIP are announced to the routers. No action is needed.
        Kind::Announced => tracing::info!(change = "vip", vip, family, vips, "VIP announced"),
        // log: The stall of the forwarder has ended, and the routes of a VIP are announced
        // without the graceful-shutdown community again.
        Kind::Unmarked => tracing::info!(change = "vip", vip, family, vips, "VIP no longer marked"),
        // log: The forwarder is stalled, so routers prefer other machines for the VIP. The
        // routes are withdrawn if the stall lasts for `bgp.max_stall`. See `why`, which is missing
        // if the reasons of several VIPs in one line differ.
        Kind::Marked => {
            tracing::warn!(change = "vip", vip, family, vips, why, "VIP marked for graceful shutdown")
        }
        // log: The routes of a VIP are withdrawn for the reason in `why`, which is missing if the
        // reasons of several VIPs in one line differ. Check `sluicegate bgp status` and the
        // backends of the VIP.
        Kind::Withdrawn => tracing::warn!(change = "vip", vip, family, vips, why, "VIP withdrawn"),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use packet::Family;

    use super::*;
    use crate::announce::decision::Why;
    use crate::log_fields::tests::logged;

    fn status(vips: u32, status: VipStatus) -> BTreeMap<Arc<str>, VipStatus> {
        (0..vips).map(|number| (format!("v{number:04} IPv4").into(), status.clone())).collect()
    }

    fn rules(vips: u32) -> BTreeMap<Arc<str>, Rules> {
        let rule = |number: u32| Rules {
            vip: format!("v{number:04}").into(),
            family: Some(Family::V4),
            ..Rules::default()
        };
        (0..vips).map(|number| (format!("v{number:04} IPv4").into(), rule(number))).collect()
    }

    #[test]
    fn vip_and_family_are_separate_fields() {
        let announced = status(1, VipStatus::Announced);
        let lines = logged(|| log(&rules(1), &BTreeMap::new(), &announced));
        let [line] = &lines[..] else { panic!("{lines:?}") };
        assert_eq!(
            (&line["vip"], &line["family"], &line["message"]),
            (&"v0000".into(), &"ipv4".into(), &"VIP announced".into())
        );
        assert!(line.get("vips").is_none(), "{line}");
        let held = status(1, VipStatus::HeldDown(Duration::from_secs(9)));
        assert!(logged(|| log(&rules(1), &BTreeMap::new(), &held)).is_empty());
    }

    // Promise: log-volume
    #[test]
    fn changes_of_2000_vips_share_one_line() {
        let (announced, rules) = (status(2_000, VipStatus::Announced), rules(2_000));
        let withdrawn = status(2_000, VipStatus::Withdrawn(Why::Unknown));
        for (before, next, level) in
            [(&BTreeMap::new(), &announced, "INFO"), (&announced, &withdrawn, "WARN")]
        {
            let lines = logged(|| log(&rules, before, next));
            let [line] = &lines[..] else { panic!("{} lines", lines.len()) };
            assert_eq!(line["vip"], "v0000, v0001, v0002 and 1997 more");
            assert_eq!((&line["vips"], &line["level"]), (&2_000.into(), &level.into()));
        }
    }

    #[test]
    fn line_for_different_reasons_has_no_reason() {
        let announced = status(9, VipStatus::Announced);
        let mut withdrawn = status(9, VipStatus::Withdrawn(Why::Unknown));
        let reason = |withdrawn: &BTreeMap<Arc<str>, VipStatus>| {
            let lines = logged(|| log(&rules(9), &announced, withdrawn));
            let [line] = &lines[..] else { panic!("{lines:?}") };
            line.get("why").cloned()
        };
        assert_eq!(reason(&withdrawn), Some(Why::Unknown.to_string().into()));
        withdrawn.insert("v0004 IPv4".into(), VipStatus::Withdrawn(Why::Starting));
        assert_eq!(reason(&withdrawn), None);
    }
}
