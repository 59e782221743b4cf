//! The keys that are asked for most.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Keys of requests for keyed services, those that were surely asked for most first.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct HotKeysView {
    /// How long they were counted.
    pub seconds: f64,
    /// Services with requests in that time.
    pub services: Vec<HotServiceRow>,
    /// The hottest keys.
    pub keys: Vec<HotKeyRow>,
}

/// What a service was asked for.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct HotServiceRow {
    /// Its name, such as `users udp 11211`.
    pub service: String,
    /// Keys of its requests: one that names several counts once for each.
    pub keys_per_second: f64,
}

/// One key.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct HotKeyRow {
    /// Its service's name.
    pub service: String,
    /// The key: printable ASCII as it is, but with a backslash before `\`, `'` and `"`; a tab, CR and LF as `\t`, `\r`, `\n`, any other
    /// byte as `\x` and two hexadecimal digits.
    pub key: String,
    /// Requests for it, at least.
    pub requests_per_second: f64,
    /// The same, at most. Equal where the keys that were asked for were few.
    pub requests_per_second_at_most: f64,
    /// Its part of its service's requests, at least.
    pub share: f64,
    /// Who has it now: one backend, two where a VIP's families differ, or none.
    pub backends: Vec<String>,
}
