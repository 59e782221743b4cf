//! Formats the fields of log lines for standard error.
//!
//! A field has the form `name=value`. A value is quoted only if it is empty or contains spaces,
//! quotes, `=` or control characters, so that programs can split a line at its spaces.

use std::fmt::{self, Debug, Write as _};

use tracing::field::{Field, Visit};
use tracing_subscriber::field::RecordFields;
use tracing_subscriber::fmt::FormatFields;
use tracing_subscriber::fmt::format::Writer;

/// The format of log fields.
pub(super) struct Logfmt;

impl<'w> FormatFields<'w> for Logfmt {
    fn format_fields<R: RecordFields>(&self, writer: Writer<'w>, fields: R) -> fmt::Result {
        let mut line = Line { writer, is_empty: true, result: Ok(()) };
        fields.record(&mut line);
        line.result
    }
}

struct Line<'w> {
    writer: Writer<'w>,
    is_empty: bool,
    result: fmt::Result,
}

impl Line<'_> {
    fn enter(&mut self, name: &str, value: &str) {
        let space = if std::mem::take(&mut self.is_empty) { "" } else { " " };
        let (ansi, name) = (self.writer.has_ansi_escapes(), name.trim_start_matches("r#"));
        self.result = self.result.and_then(|()| match name {
            "message" => write!(self.writer, "{space}{}", one_line(value)),
            _ if ansi => write!(self.writer, "{space}\x1b[3m{name}\x1b[0m\x1b[2m=\x1b[0m{}", quoted(value)),
            _ => write!(self.writer, "{space}{name}={}", quoted(value)),
        });
    }
}

impl Visit for Line<'_> {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.enter(field.name(), value);
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.enter(field.name(), &format!("{value:?}"));
    }
}

/// Quotes a value if necessary.
fn quoted(value: &str) -> String {
    let is_special = |c: char| c.is_whitespace() || c.is_control() || matches!(c, '"' | '=');
    if value.is_empty() || value.contains(is_special) { format!("{value:?}") } else { value.to_owned() }
}

/// Escapes the control characters of a message, which may contain text from other machines.
fn one_line(message: &str) -> String {
    let mut line = String::with_capacity(message.len());
    for c in message.chars() {
        match c.is_control() {
            // Writing to a string does not fail.
            true => _ = write!(line, "{}", c.escape_default()),
            false => line.push(c),
        }
    }
    line
}

#[cfg(test)]
pub(crate) mod tests {
    use std::io;
    use std::sync::Arc;

    use super::*;

    /// Returns the log lines that `act` writes.
    pub(crate) fn logged(act: impl FnOnce()) -> Vec<String> {
        written(false, act).lines().map(str::to_owned).collect()
    }

    fn written(ansi: bool, act: impl FnOnce()) -> String {
        let (text, pipe) = io::pipe().unwrap();
        let log = tracing_subscriber::fmt().with_writer(Arc::new(pipe)).fmt_fields(Logfmt);
        let log = log.without_time().with_target(false).with_ansi(ansi).finish();
        tracing::subscriber::with_default(log, act);
        io::read_to_string(text).unwrap()
    }

    #[test]
    fn values_are_quoted_only_if_necessary() {
        let lines = logged(|| {
            let (vip, why) = ("www", "no route to host");
            tracing::info!(change = "vip", vip, family = %"ipv4", %why, empty = "", left_out = None::<u8>, "VIP down");
            tracing::warn!(pair = "a=b", quote = "a\"b", lines = "a\nb", number = 7, took = ?std::time::Duration::from_millis(3), "done");
            tracing::error!("a {} message", "\x1b[2J\nbad");
        });
        assert_eq!(
            lines,
            [
                " INFO VIP down change=vip vip=www family=ipv4 why=\"no route to host\" empty=\"\"",
                " WARN done pair=\"a=b\" quote=\"a\\\"b\" lines=\"a\\nb\" number=7 took=3ms",
                "ERROR a \\u{1b}[2J\\nbad message",
            ]
        );
    }

    #[test]
    fn colored_names_have_plain_values() {
        let text = written(true, || tracing::info!(vip = "www", "ready"));
        assert!(text.ends_with("ready \x1b[3mvip\x1b[0m\x1b[2m=\x1b[0mwww\n"), "{text:?}");
    }
}
