//! The parser of one IPVS rule, which consists of a command and its options.
//!
//! [`Rule::read`] checks that each option is allowed for the command and occurs at most once.
//! The module `rules` checks the values. Words are separated by white space, and quotes have no
//! special meaning, as in `ipvsadm -R` (ipvsadm(8)).

use std::path::Path;

use config_text::words::quote;
use config_text::{Message, Problem};

/// The command of a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Command {
    AddService,
    AddServer,
}

impl Command {
    fn word(self) -> &'static str {
        match self {
            Self::AddService => "-A",
            Self::AddServer => "-a",
        }
    }
}

/// An option, regardless of whether it was given by its long or short name.
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

/// The kind of value that follows the name of an option.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Value {
    None,
    One,
    /// The value is a number that may be omitted.
    Number,
}

/// The names of an option. Messages use the first name.
struct Spelling {
    key: Key,
    names: &'static [&'static str],
    value: Value,
    /// The command that accepts this option, or `None` if both commands accept it.
    of: Option<Command>,
}

/// A word of a line, with its byte offset.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Word<'t> {
    at: usize,
    pub(crate) text: &'t str,
}

struct Given<'t> {
    key: Key,
    name: &'static str,
    word: Word<'t>,
    value: Option<Word<'t>>,
}

/// The rule on one line.
pub(crate) struct Rule<'t> {
    /// The line number, starting at 1.
    pub(crate) number: usize,
    pub(crate) command: Command,
    file: &'t Path,
    line: &'t str,
    options: Vec<Given<'t>>,
}

impl<'t> Rule<'t> {
    /// Parses the rule on a line. Returns `None` if the line is empty or a comment.
    pub(crate) fn read(number: usize, line: &'t str, file: &'t Path) -> Result<Option<Self>, Problem> {
        let mut words = words(line).peekable();
        // `ipvsadm -R` also accepts lines that begin with the program name.
        words.next_if(|word| word.text == "ipvsadm");
        let Some(first) = words.next().filter(|word| !word.text.starts_with('#')) else { return Ok(None) };
        let command = match first.text {
            "-A" | "--add-service" => Command::AddService,
            "-a" | "--add-server" => Command::AddServer,
            other => {
                let message = format!("{} is not a command of a rule", quote(other));
                let problem = Problem::of_file(file, (message, COMMANDS));
                return Err(problem.at(number, column(line, first), "command".to_owned()));
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
                (Value::None, Some(value)) => {
                    return Err(rule.wrong(value, name, format!("option {name} takes no value")));
                }
                (Value::None, None) => None,
                (_, Some(value)) => Some(value),
                (Value::One, None) => {
                    let missing = || rule.wrong_end(name, format!("option {name} needs a value"));
                    Some(words.next().ok_or_else(missing)?)
                }
                (Value::Number, None) => words.next_if(|word| is_number(word.text)),
            };
            rule.options.push(Given { key: spelling.key, name: spelling.names[0], word, value });
        }
        Ok(Some(rule))
    }

    /// Returns the option with this name. Fails if the command has no such option or if the option
    /// was given before.
    fn spelling(&self, word: Word<'_>, name: &str) -> Result<&'static Spelling, Problem> {
        let of_command = |spelling: &&Spelling| spelling.of.is_none_or(|of| of == self.command);
        let spelling = OPTIONS.iter().filter(of_command).find(|spelling| spelling.names.contains(&name));
        let Some(spelling) = spelling else {
            let names: Vec<&str> = OPTIONS.iter().filter(of_command).map(|one| one.names[0]).collect();
            let command = self.command.word();
            let message = format!("{} is not an option of {command}", quote(word.text));
            let help = format!("options of {command}: {}", names.join(", "));
            return Err(self.wrong(word, "option", (message, help)));
        };
        if self.options.iter().any(|given| given.key == spelling.key) {
            return Err(self.wrong(word, "option", format!("option {} is given twice", quote(word.text))));
        }
        Ok(spelling)
    }

    /// Returns `true` if the option was given.
    pub(crate) fn has(&self, key: Key) -> bool {
        self.given(key).is_some()
    }

    pub(crate) fn value(&self, key: Key) -> Option<Word<'t>> {
        self.given(key).and_then(|given| given.value)
    }

    fn given(&self, key: Key) -> Option<&Given<'t>> {
        self.options.iter().find(|given| given.key == key)
    }

    /// Returns the option among `keys` that was given, or fails if several were given. `names`
    /// contains the option names for the message.
    pub(crate) fn one_of(&self, keys: &[Key], names: &str) -> Result<Option<Key>, Problem> {
        let mut given = self.options.iter().filter(|given| keys.contains(&given.key));
        let first = given.next().map(|given| given.key);
        match given.next() {
            Some(second) => {
                let message = format!("option {} conflicts with an earlier option", quote(second.word.text));
                Err(self.wrong(second.word, "option", (message, format!("use one of {names}"))))
            }
            None => Ok(first),
        }
    }

    /// Returns the value of the option after `read` has parsed it.
    pub(crate) fn parsed<T>(
        &self,
        key: Key,
        allowed: &str,
        read: impl FnOnce(&'t str) -> Option<T>,
    ) -> Result<Option<T>, Problem> {
        let Some(given) = self.given(key) else { return Ok(None) };
        let Some(value) = given.value else { return Ok(None) };
        read(value.text).map(Some).ok_or_else(|| {
            let message = format!("invalid value {} for {}", quote(value.text), given.name);
            self.wrong(value, given.name, (message, format!("use {allowed}")))
        })
    }

    /// Creates a problem whose position is a word of the rule.
    pub(crate) fn wrong(&self, word: Word<'_>, field: &str, message: impl Into<Message>) -> Problem {
        let problem = Problem::of_file(self.file, message);
        problem.at(self.number, column(self.line, word), field.to_owned())
    }

    /// Creates a problem whose position is the start of the rule.
    pub(crate) fn whole(&self, field: &str, message: impl Into<Message>) -> Problem {
        Problem::of_file(self.file, message).at(self.number, 1, field.to_owned())
    }

    /// Creates a problem whose position is the end of the rule, because an option or value is
    /// missing.
    pub(crate) fn wrong_end(&self, field: &str, message: impl Into<Message>) -> Problem {
        let problem = Problem::of_file(self.file, message);
        problem.at(self.number, self.line.chars().count() + 1, field.to_owned())
    }
}

/// Returns the column of a word in characters, starting at 1.
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

/// Returns `true` if the text consists only of digits.
pub(crate) fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

const fn option(key: Key, names: &'static [&'static str], value: Value, of: Option<Command>) -> Spelling {
    Spelling { key, names, value, of }
}

const COMMANDS: &str = "use -A for a service or -a for a server, as in the output of `ipvsadm -S -n`";
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
    // Older versions of ipvsadm print the options `pe` and `ops` without the leading hyphens.
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
