//! A rule of IPVS as words: a command and its options.
//!
//! In: one line. Out: its [`Rule`], each option at most once and allowed with the command; or the first word that is wrong.
//! Not here: what values mean (`rules`).
//! Source: ipvsadm(8). Words are divided by white space, as `ipvsadm -R` does it without quotes.

use std::path::Path;

use config_text::Problem;
use config_text::words::quote;

/// What a rule does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Command {
    AddService,
    AddServer,
}

/// An option, whichever way it is spelled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Key {
    Tcp,
    Udp,
    Sctp,
    Mark,
    Ipv6,
    Scheduler,
    Persistent,
    Netmask,
    Engine,
    OnePacket,
    Flags,
    Server,
    Weight,
    Gateway,
    Tunnel,
    Masquerade,
    Upper,
    Lower,
    TunnelType,
    TunnelPort,
    NoChecksum,
    Checksum,
    RemoteChecksum,
}

/// What follows the name of an option.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Value {
    None,
    One,
    /// A number, where one follows.
    Number,
}

/// Names of an option, the one that is printed first.
struct Spelling {
    key: Key,
    names: &'static [&'static str],
    value: Value,
    /// `None`: of both commands.
    of: Option<Command>,
}

/// A word of a line, and the byte at which it begins.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Word<'t> {
    at: usize,
    pub(crate) text: &'t str,
}

/// An option as it was given.
struct Given<'t> {
    key: Key,
    name: &'static str,
    word: Word<'t>,
    value: Option<Word<'t>>,
}

/// One line.
pub(crate) struct Rule<'t> {
    /// From 1.
    pub(crate) number: usize,
    pub(crate) command: Command,
    file: &'t Path,
    line: &'t str,
    options: Vec<Given<'t>>,
}

impl<'t> Rule<'t> {
    /// `None`: a line without a rule, empty or a comment.
    pub(crate) fn read(number: usize, line: &'t str, file: &'t Path) -> Result<Option<Self>, Problem> {
        let mut words = words(line).peekable();
        // `ipvsadm -R` takes whole command lines too.
        words.next_if(|word| word.text == "ipvsadm");
        let Some(first) = words.next().filter(|word| !word.text.starts_with('#')) else { return Ok(None) };
        let command = match first.text {
            "-A" | "--add-service" => Command::AddService,
            "-a" | "--add-server" => Command::AddServer,
            other => {
                let found = Problem::of_file(file, quote(other), COMMANDS);
                return Err(found.at(number, column(line, first), "command".to_owned()));
            }
        };
        let mut rule = Self { number, command, file, line, options: Vec::new() };
        while let Some(word) = words.next() {
            let (name, after) = match word.text.split_once('=').filter(|_| word.text.starts_with("--")) {
                Some((name, value)) => {
                    let at = word.at + name.len() + 1;
                    (name, Some(Word { at, text: value }))
                }
                None => (word.text, None),
            };
            let spelling = rule.spelling(word, name)?;
            let value = match (spelling.value, after) {
                (Value::None, Some(value)) => return Err(rule.wrong(value, name, "no value")),
                (Value::None, None) => None,
                (_, Some(value)) => Some(value),
                (Value::One, None) => Some(words.next().ok_or_else(|| rule.wrong_end(name, "a value"))?),
                (Value::Number, None) => words.next_if(|word| is_number(word.text)),
            };
            rule.options.push(Given { key: spelling.key, name: spelling.names[0], word, value });
        }
        Ok(Some(rule))
    }

    /// The option of that name, where the command has it and it was not given.
    fn spelling(&self, word: Word<'_>, name: &str) -> Result<&'static Spelling, Problem> {
        let of_command = |spelling: &&Spelling| spelling.of.is_none_or(|of| of == self.command);
        let spelling = OPTIONS.iter().filter(of_command).find(|spelling| spelling.names.contains(&name));
        let Some(spelling) = spelling else {
            let names: Vec<&str> = OPTIONS.iter().filter(of_command).map(|one| one.names[0]).collect();
            return Err(self.wrong(word, "option", names.join(", ")));
        };
        if self.options.iter().any(|given| given.key == spelling.key) {
            return Err(self.wrong(word, "option", "each option once"));
        }
        Ok(spelling)
    }

    /// Whether the option was given.
    pub(crate) fn has(&self, key: Key) -> bool {
        self.given(key).is_some()
    }

    /// The value of the option.
    pub(crate) fn value(&self, key: Key) -> Option<Word<'t>> {
        self.given(key).and_then(|given| given.value)
    }

    fn given(&self, key: Key) -> Option<&Given<'t>> {
        self.options.iter().find(|given| given.key == key)
    }

    /// The one of these that was given; where there is none, or more than one, `allowed` is said.
    pub(crate) fn one_of(&self, keys: &[Key], allowed: &str) -> Result<Option<Key>, Problem> {
        let mut given = self.options.iter().filter(|given| keys.contains(&given.key));
        let first = given.next().map(|given| given.key);
        match given.next() {
            Some(second) => Err(self.wrong(second.word, "option", allowed)),
            None => Ok(first),
        }
    }

    /// The value of the option as `read` sees it.
    pub(crate) fn parsed<T>(
        &self,
        key: Key,
        allowed: &str,
        read: impl FnOnce(&'t str) -> Option<T>,
    ) -> Result<Option<T>, Problem> {
        let Some(given) = self.given(key) else { return Ok(None) };
        let Some(value) = given.value else { return Ok(None) };
        read(value.text).map(Some).ok_or_else(|| self.wrong(value, given.name, allowed))
    }

    /// A word in which something else is allowed.
    pub(crate) fn wrong(&self, word: Word<'_>, field: &str, allowed: impl Into<String>) -> Problem {
        let found = Problem::of_file(self.file, quote(word.text), allowed);
        found.at(self.number, column(self.line, word), field.to_owned())
    }

    /// A rule that is wrong beside those before it.
    pub(crate) fn whole(&self, field: &str, found: String, allowed: &str) -> Problem {
        Problem::of_file(self.file, found, allowed).at(self.number, 1, field.to_owned())
    }

    /// Something that the line lacks.
    pub(crate) fn wrong_end(&self, field: &str, allowed: &str) -> Problem {
        let found = Problem::of_file(self.file, "nothing", allowed);
        found.at(self.number, self.line.chars().count() + 1, field.to_owned())
    }
}

/// In characters, from 1.
fn column(line: &str, word: Word<'_>) -> usize {
    line.get(..word.at).unwrap_or(line).chars().count() + 1
}

fn words(line: &str) -> impl Iterator<Item = Word<'_>> {
    let mut rest = line;
    std::iter::from_fn(move || {
        let word = rest.trim_start();
        let (text, after) = word.split_at(word.find(char::is_whitespace).unwrap_or(word.len()));
        rest = after;
        (!text.is_empty()).then(|| Word { at: line.len() - word.len(), text })
    })
}

/// Digits alone.
pub(crate) fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

const fn option(key: Key, names: &'static [&'static str], value: Value, of: Option<Command>) -> Spelling {
    Spelling { key, names, value, of }
}

const COMMANDS: &str = "-A for a service, or -a for a server of one, as `ipvsadm -S -n` prints them";
const SERVICE: Option<Command> = Some(Command::AddService);
const SERVER: Option<Command> = Some(Command::AddServer);

const OPTIONS: [Spelling; 23] = [
    option(Key::Tcp, &["-t", "--tcp-service"], Value::One, None),
    option(Key::Udp, &["-u", "--udp-service"], Value::One, None),
    option(Key::Sctp, &["--sctp-service"], Value::One, None),
    option(Key::Mark, &["-f", "--fwmark-service"], Value::One, None),
    option(Key::Ipv6, &["-6", "--ipv6"], Value::None, None),
    option(Key::Scheduler, &["-s", "--scheduler"], Value::One, SERVICE),
    option(Key::Persistent, &["-p", "--persistent"], Value::Number, SERVICE),
    option(Key::Netmask, &["-M", "--netmask"], Value::One, SERVICE),
    // Older versions print `pe` and `ops`.
    option(Key::Engine, &["--pe", "pe"], Value::One, SERVICE),
    option(Key::OnePacket, &["-o", "--ops", "ops"], Value::None, SERVICE),
    option(Key::Flags, &["-b", "--sched-flags"], Value::One, SERVICE),
    option(Key::Server, &["-r", "--real-server"], Value::One, SERVER),
    option(Key::Weight, &["-w", "--weight"], Value::One, SERVER),
    option(Key::Gateway, &["-g", "--gatewaying"], Value::None, SERVER),
    option(Key::Tunnel, &["-i", "--ipip"], Value::None, SERVER),
    option(Key::Masquerade, &["-m", "--masquerading"], Value::None, SERVER),
    option(Key::Upper, &["-x", "--u-threshold"], Value::One, SERVER),
    option(Key::Lower, &["-y", "--l-threshold"], Value::One, SERVER),
    option(Key::TunnelType, &["--tun-type"], Value::One, SERVER),
    option(Key::TunnelPort, &["--tun-port"], Value::One, SERVER),
    option(Key::NoChecksum, &["--tun-nocsum"], Value::None, SERVER),
    option(Key::Checksum, &["--tun-csum"], Value::None, SERVER),
    option(Key::RemoteChecksum, &["--tun-remcsum"], Value::None, SERVER),
];
