//! The admin API: what an operator asks of a running balancer, and what it answers.
//!
//! `command`: a question, with the way back for its answer. `view`: answers as JSON, names stable.
//! Not here: what is done about a question; whoever owns the balancer receives [`Command`]s and answers them.

pub mod command;
pub mod page;
pub mod view;

pub use command::{Answer, BackendAction, Command, FlowQuery};
pub use view::{Refusal, RefusalKind};
