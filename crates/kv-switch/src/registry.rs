//! Applications by name. Another one is a line of [`APPLICATIONS`].
//!
//! In: a name and [`Settings`]. Out: the [`Application`].

use std::fmt;
use std::sync::Arc;

use thiserror::Error;

use crate::{Application, Header, MAX_KEY, Memcached, Offset, Verb};

/// What a file says of an application; each takes what it has use for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Keys that one request may name.
    pub max_keys: u16,
    /// The number in AppSwitch's preamble.
    pub id: Option<u8>,
    /// Offset of a fixed key.
    pub offset: Option<u16>,
    /// Bytes of a fixed key.
    pub length: Option<u16>,
}

impl Default for Settings {
    fn default() -> Self {
        Self { max_keys: 32, id: None, offset: None, length: None }
    }
}

/// Why settings give no application.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum SettingsError {
    /// A setting that the application needs is not there.
    #[error("`{0}` is missing")]
    Missing(&'static str),
    /// A setting is outside of what is allowed.
    #[error("found {name} = {found}, allowed 1 to {most}")]
    OutOfRange {
        /// The setting.
        name: &'static str,
        /// Its value.
        found: u16,
        /// The largest that is allowed.
        most: usize,
    },
}

/// An application that a file may name.
pub struct Entry {
    /// Its name.
    pub name: &'static str,
    /// Names of its verbs, by [`crate::Ask::verb`].
    pub verbs: &'static [&'static str],
    /// Makes one.
    pub make: fn(&Settings) -> Result<Arc<dyn Application>, SettingsError>,
}

impl fmt::Debug for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Entry").field(&self.name).finish()
    }
}

/// All of them.
pub const APPLICATIONS: &[Entry] = &[
    Entry { name: "memcached", verbs: &Verb::NAMES, make: memcached },
    Entry { name: "header", verbs: &["request"], make: header },
    Entry { name: "offset", verbs: &["request"], make: offset },
];

/// The application of that name.
///
/// ```
/// use kv_switch::registry::{self, Settings};
///
/// let memcached = registry::find("memcached").unwrap();
/// assert!((memcached.make)(&Settings::default()).is_ok());
/// ```
#[must_use]
pub fn find(name: &str) -> Option<&'static Entry> {
    APPLICATIONS.iter().find(|entry| entry.name == name)
}

fn memcached(settings: &Settings) -> Result<Arc<dyn Application>, SettingsError> {
    Ok(Arc::new(Memcached::new(within("max_keys", settings.max_keys, MAX_KEYS)?)))
}

fn header(settings: &Settings) -> Result<Arc<dyn Application>, SettingsError> {
    Ok(Arc::new(Header::new(settings.id.ok_or(SettingsError::Missing("id"))?)))
}

fn offset(settings: &Settings) -> Result<Arc<dyn Application>, SettingsError> {
    let start = settings.offset.ok_or(SettingsError::Missing("offset"))?;
    let length = within("length", settings.length.ok_or(SettingsError::Missing("length"))?, MAX_KEY)?;
    Ok(Arc::new(Offset::new(start, length)))
}

fn within(name: &'static str, found: u16, most: usize) -> Result<u16, SettingsError> {
    let is_within = (1..=most).contains(&usize::from(found));
    is_within.then_some(found).ok_or(SettingsError::OutOfRange { name, found, most })
}

/// Most keys that a request may be allowed: each is looked at on the packet's way.
const MAX_KEYS: usize = 1_024;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_application_says_what_it_needs() {
        let make = |name: &str, settings: &Settings| {
            (find(name).unwrap().make)(settings).err().map(|error| error.to_string())
        };
        let settings = Settings { id: Some(7), offset: Some(4), length: Some(250), ..Settings::default() };
        assert!(APPLICATIONS.iter().all(|entry| make(entry.name, &settings).is_none()));
        assert_eq!(make("header", &Settings::default()).unwrap(), "`id` is missing");
        assert_eq!(make("offset", &Settings { offset: None, ..settings }).unwrap(), "`offset` is missing");
        assert_eq!(make("offset", &Settings { length: None, ..settings }).unwrap(), "`length` is missing");
        let found = make("offset", &Settings { length: Some(251), ..settings });
        assert_eq!(found.unwrap(), "found length = 251, allowed 1 to 250");
        let found = make("memcached", &Settings { max_keys: 0, ..settings });
        assert_eq!(found.unwrap(), "found max_keys = 0, allowed 1 to 1024");
        assert!(find("redis").is_none());
    }
}
