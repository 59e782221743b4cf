//! The most requested keys of keyed services.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The most requested keys, ordered by the lower bound of their request rate.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct HotKeysView {
    /// The duration of the measurement in seconds.
    pub seconds: f64,
    /// The services that received requests during the measurement.
    pub services: Vec<HotServiceRow>,
    /// The most requested keys.
    pub keys: Vec<HotKeyRow>,
}

/// The request rate of a service.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct HotServiceRow {
    /// The name of the service, such as `users udp 11211`.
    pub service: String,
    /// The number of requested keys per second. A request for several keys is counted once for each
    /// key.
    pub keys_per_second: f64,
}

/// One key.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct HotKeyRow {
    /// The name of the service.
    pub service: String,
    /// The key. Printable ASCII is shown as is, with a backslash before `\`, `'` and `"`. Tab, CR
    /// and LF are shown as `\t`, `\r` and `\n`, and any other byte as `\x` with two hexadecimal
    /// digits.
    pub key: String,
    /// The lower bound of the number of requests per second for the key.
    pub requests_per_second: f64,
    /// The upper bound of the number of requests per second for the key. If few different keys were
    /// requested, the count is exact and both bounds are the same.
    pub requests_per_second_at_most: f64,
    /// The lower bound of the share of the service's requests that are for this key, from 0 to 1.
    pub share: f64,
    /// The backends that serve the key now. The list contains two backends if the address families
    /// of a VIP use different backends, and is empty if no backend serves the key.
    pub backends: Vec<String>,
}
