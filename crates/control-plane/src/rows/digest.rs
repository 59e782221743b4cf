//! Both digests of a machine, as the admin API shows them.

use std::sync::Arc;

use admin::view::DigestView;
use config::Config;
use forwarder::Snapshot;

use crate::digest::{Digests, TABLE_ALGORITHM, hex};

impl Digests {
    /// Of what is in force on `machine`.
    ///
    /// # Cost
    /// Nothing while configuration and snapshot are the same; else a look at each member, and a hash over each table that was
    /// not there before (a millisecond for 65,537 slots). Not for the control loop.
    #[must_use]
    pub fn view(&self, config: &Arc<Config>, machine: &str, snapshot: &Arc<Snapshot>) -> DigestView {
        let tables = self.tables(config, snapshot);
        DigestView {
            table_algorithm: TABLE_ALGORITHM,
            configuration: hex(&self.configuration(config)),
            tables: Some(hex(&tables)),
            shard: config.machine(machine).and_then(|machine| machine.shard()).map(str::to_owned),
        }
    }
}
