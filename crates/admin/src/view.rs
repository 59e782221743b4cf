//! Answers of the admin API, as plain data: JSON by serde, read back by the command line.
//!
//! Names of fields and values are stable; `openapi.json` describes them, and a test holds both to each other.
//! Units stand in the names; a share is from 0 to 1; a time of day is in seconds since 1970, all else is measured
//! on a clock that never goes back.

mod bgp;
mod capture;
mod explained;
mod flows;
mod generation;
mod health;
mod refusal;
mod serving;
mod status;

pub use bgp::{
    AnnouncedVip, AnnouncementState, BfdState, BfdView, BgpPeerRow, BgpView, DrainStage, MachineDrain,
    RouteRow, SessionState,
};
pub use capture::CaptureEnd;
pub use explained::{Encapsulation, Explained, Hashed, Step, Verdict, WhereBackend};
pub use flows::{FlowPage, FlowRow, FlowState, Purged, WhereRow, WhereView};
pub use generation::{ConfigSource, ConfigText, ConfigView, ReloadReport, entity_tag};
pub use health::{CheckState, HealthView, TargetRow, Via};
pub use refusal::{ProblemView, Refusal, RefusalKind, Severity};
pub use serving::{
    BackendChange, BackendRow, BackendState, CheckRow, MembershipChange, Override, ServiceRow, VipRow, Why,
};
pub use status::{
    BgpTotals, DigestView, Drift, ForwarderView, InterfaceRow, LastReload, OverrideRow, ReloadOutcome,
    StateTotals, Status, VipTotals,
};
