//! The text of a problem, which consists of a message and an optional help line.
//!
//! A [`Message`] is built from one string, or from a pair of strings (message and help).
//! [`Expected`] describes the valid values of a key. This description is part of the messages for a
//! missing key, a wrong type and a wrong value.

/// The message of a problem, with an optional help line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    pub(crate) text: String,
    pub(crate) help: Option<String>,
}

impl From<String> for Message {
    fn from(text: String) -> Self {
        Self { text, help: None }
    }
}

impl From<&str> for Message {
    fn from(text: &str) -> Self {
        text.to_owned().into()
    }
}

/// Creates a message with a help line, or without one if the help text is empty.
impl<T: Into<String>, H: Into<String>> From<(T, H)> for Message {
    fn from((text, help): (T, H)) -> Self {
        let help: String = help.into();
        Self { text: text.into(), help: Some(help).filter(|help| !help.is_empty()) }
    }
}

/// A description of a key's valid values, such as "a list of ports". The description must be a
/// phrase that can follow "must be". An example of a valid value is optional.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Expected {
    pub(crate) what: &'static str,
    pub(crate) example: &'static str,
}

impl Expected {
    /// Creates a description without an example, such as "a list of ports".
    #[must_use]
    pub const fn new(what: &'static str) -> Self {
        Self { what, example: "" }
    }

    /// Adds an example of a valid value in TOML, such as `[80, "8000-8099"]`.
    #[must_use]
    pub const fn example(self, example: &'static str) -> Self {
        Self { example, ..self }
    }

    /// Returns the help line `for example ...`, for a message that already contains the
    /// description.
    pub(crate) fn such_as(self) -> String {
        if self.example.is_empty() { String::new() } else { format!("for example {}", self.example) }
    }

    /// Returns a help line with the description, for a message that does not contain it: `"keep" is
    /// a number, for example keep = 3`.
    pub(crate) fn described(self, key: &str) -> String {
        let Self { what, example } = self;
        let example =
            if example.is_empty() { String::new() } else { format!(", for example {key} = {example}") };
        format!("\"{key}\" is {what}{example}")
    }
}

impl From<&'static str> for Expected {
    fn from(what: &'static str) -> Self {
        Self::new(what)
    }
}

/// Returns the indefinite article for a word: `a` for `port`, `an` for `address`.
pub(crate) fn article(word: &str) -> &'static str {
    if word.starts_with(['a', 'e', 'i', 'o', 'u']) { "an" } else { "a" }
}

/// Joins quoted words for a message: `"a"`, `"a" or "b"`, `"a", "b" or "c"`.
pub(crate) fn one_of(words: &[String]) -> String {
    match words.split_last() {
        None => String::new(),
        Some((last, [])) => last.clone(),
        Some((last, others)) => format!("{} or {last}", others.join(", ")),
    }
}
