//! Builds the API response with the digests of a machine.

use std::sync::Arc;

use admin::view::DigestView;
use config::Config;
use forwarder::Snapshot;

use crate::digest::{Digests, TABLE_ALGORITHM, hex};

impl Digests {
    /// Returns the digests of the configuration and the snapshot, for `machine`.
    ///
    /// # Cost
    /// Negligible while configuration and snapshot are unchanged. After a change, all members are
    /// visited and each new table is hashed, which takes 1 ms for 65,537 slots. Do not call this
    /// function on the control loop.
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
