//! The names of fields and values are stable. The OpenAPI document describes the types, and a test
//! compares the document with the responses. Units are part of the names. A share is a number from
//! 0 to 1. A point in time is given in seconds since 1970. All other times are durations, measured
//! with a monotonic clock.

mod bgp;
mod capture;
mod events;
mod explained;
mod flows;
mod generation;
mod health;
mod hot_keys;
mod log;
mod refusal;
mod serving;
mod status;
mod vip_overrides;

pub use bgp::{
    AnnouncedVip, AnnouncementState, BfdState, BfdView, BgpPeerRow, BgpView, DrainStage, MachineDrain,
    RouteRow, SessionState, Upgraded,
};
pub use capture::CaptureEnd;
pub use events::{EventKind, EventRow, EventSeverity, EventsView};
pub use explained::{
    Encapsulation, Explained, Hashed, Rejection, RejectionReply, Step, Verdict, WhereBackend,
};
pub use flows::{FlowPage, FlowRow, FlowState, Purged, WhereRow, WhereView};
pub use generation::{
    ConfigSource, ConfigText, ConfigView, ConfirmationRow, Confirmed, GenerationCause, GenerationRow,
    GenerationView, HistoryView, ReloadReport, entity_tag,
};
pub use health::{CheckState, HealthView, TargetRow, Via};
pub use hot_keys::{HotKeyRow, HotKeysView, HotServiceRow};
pub use log::{LogChange, LogLevel, LogLevelOverrideRow, LogView};
pub use refusal::{ProblemView, Refusal, RefusalKind, Severity};
pub use serving::{
    BackendChange, BackendRow, BackendState, CheckRow, Family, FamilyRow, MembershipChange, Override,
    SeenByVip, ServiceRow, VipRow, Why,
};
pub use status::{
    BgpTotals, DigestView, DownView, Drift, ForwarderView, InterfaceRow, LastReload, OverrideRow,
    ReloadOutcome, StateTotals, Status, VipTotals,
};
pub use vip_overrides::{VipAction, VipChange, VipOverrideRow};

#[cfg(test)]
mod tests {
    use serde_json::{from_value, json, to_value};

    use super::*;

    #[test]
    fn enum_values_have_their_api_names() {
        let steps =
            [Step::FlowTable, Step::Maglev, Step::Ring, Step::Remote, Step::FragmentTable, Step::Redirect];
        let flows = [FlowState::New, FlowState::Established, FlowState::Closing, FlowState::Udp];
        let encapsulations = [Encapsulation::Gre, Encapsulation::Ipip, Encapsulation::Gue, Encapsulation::L2];
        for (found, words) in [
            (
                to_value(steps),
                json!(["flow_table", "maglev", "ring", "remote", "fragment_table", "redirect"]),
            ),
            (to_value(flows), json!(["new", "established", "closing", "udp"])),
            (to_value(encapsulations), json!(["gre", "ipip", "gue", "l2"])),
            (to_value(encapsulations.map(|one| one.to_string())), json!(["gre", "ipip", "gue", "l2"])),
            (
                to_value([
                    RejectionReply::TcpReset,
                    RejectionReply::SctpAbort,
                    RejectionReply::PortUnreachable,
                    RejectionReply::ProtocolUnreachable,
                    RejectionReply::HostUnreachable,
                ]),
                json!([
                    "tcp_reset",
                    "sctp_abort",
                    "port_unreachable",
                    "protocol_unreachable",
                    "host_unreachable"
                ]),
            ),
            (
                to_value([Hashed::FiveTuple, Hashed::Addresses, Hashed::Source, Hashed::Key]),
                json!(["5-tuple", "addresses", "source", "key"]),
            ),
            (
                to_value([
                    GenerationCause::Start,
                    GenerationCause::Sighup,
                    GenerationCause::Watch,
                    GenerationCause::Reload,
                    GenerationCause::Put,
                    GenerationCause::Rollback,
                    GenerationCause::Unconfirmed,
                ]),
                json!(["start", "sighup", "watch", "reload", "put", "rollback", "unconfirmed"]),
            ),
            (
                to_value([Drift::InSync, Drift::FileChanged, Drift::Api, Drift::RolledBack]),
                json!(["in_sync", "file_changed", "api", "rolled_back"]),
            ),
            (to_value([Via::Backend, Via::Vip]), json!(["backend", "vip"])),
            (
                to_value(EventKind::ALL),
                json!(["backend", "vip", "router", "override", "reload", "link", "machine"]),
            ),
            (to_value(EventKind::ALL.map(EventKind::name)), to_value(EventKind::ALL).unwrap()),
            (to_value(LogLevel::ALL), json!(["error", "warn", "info", "debug", "trace"])),
            (to_value(LogLevel::ALL.map(LogLevel::name)), to_value(LogLevel::ALL).unwrap()),
            (to_value([Severity::Error, Severity::Warning]), json!(["error", "warning"])),
        ] {
            assert_eq!(found.unwrap(), words);
        }
    }

    /// Older clients can read the drop reasons of a newer server.
    #[test]
    fn an_unknown_drop_reason_is_accepted() {
        for (verdict, word) in [
            (Verdict::Forward, "forward"),
            (Verdict::Reply, "reply"),
            (Verdict::Reject, "reject"),
            (Verdict::Drop("of_the_future".to_owned()), "of_the_future"),
        ] {
            assert_eq!(to_value(&verdict).unwrap(), word);
            assert_eq!(from_value::<Verdict>(json!(word)).unwrap(), verdict);
        }
    }
}
