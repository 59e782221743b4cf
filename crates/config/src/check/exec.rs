//! The table `exec` of a check: a program that `sluicegate run-checks` runs on this machine.

use std::path::Path;
use std::sync::Arc;

use config_text::{Expected, Node, Section};
use serde::Serialize;

use super::exchange::refuse_probe_mtu;

/// An exec check: `exec = { program, arguments, port }`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct ExecCheck {
    /// The name of a file in the check program folder. Required.
    pub program: Arc<str>,
    /// The arguments of the program, at most 32. Default: none.
    pub arguments: Vec<Arc<str>>,
    /// The port that the program gets in its environment. Default: none.
    pub port: Option<u16>,
    /// The Unix socket of `sluicegate run-checks`, from `health.exec_socket`.
    #[serde(skip)]
    pub socket: Arc<Path>,
}

/// Reads an exec check. `socket` is `None` if the configuration allows no exec checks.
pub(super) fn read_exec(mut section: Section<'_>, socket: Option<&Arc<Path>>) -> Option<ExecCheck> {
    let program = section
        .required("program", PROGRAM)
        .and_then(|node| node.parse(PROGRAM, |text| is_program(text).then(|| Arc::from(text))));
    let arguments = section.optional("arguments");
    let arguments = arguments.map_or_else(|| Some(Vec::new()), |node| read_arguments(&node));
    let port = section.optional("port").and_then(|node| node.number(1..=u16::MAX));
    if socket.is_none() {
        let help = "exec checks run programs on this machine; to allow them, enable sluicegate-checks.socket and set \
                    health.exec_socket = \"/run/sluicegate-checks.sock\"";
        section.report.error(&section.place(), ("exec checks are not allowed", help));
    }
    refuse_probe_mtu(&mut section, "the program sends its own packets");
    section.finish();
    Some(ExecCheck { program: program?, arguments: arguments?, port, socket: Arc::clone(socket?) })
}

fn read_arguments(node: &Node<'_>) -> Option<Vec<Arc<str>>> {
    let items = node.list(ARGUMENTS)?;
    if items.len() > MOST_ARGUMENTS {
        return node.wrong(format!("at most {MOST_ARGUMENTS} arguments are allowed, got {}", items.len()));
    }
    let argument = |item: &Node<'_>| item.parse(ARGUMENT, |text| is_argument(text).then(|| Arc::from(text)));
    items.iter().map(argument).collect()
}

/// Returns `true` for a valid name of a check program. The name has no `/`, so it cannot leave the
/// folder of check programs.
pub fn is_program(text: &str) -> bool {
    let good = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    (1..=64).contains(&text.len()) && !text.starts_with(['.', '-']) && text.bytes().all(good)
}

/// Returns `true` for a valid argument of a check program.
pub fn is_argument(text: &str) -> bool {
    text.len() <= MOST_ARGUMENT_BYTES && !text.chars().any(char::is_control)
}

/// The maximum number of arguments of a check program.
pub const MOST_ARGUMENTS: usize = 32;
const MOST_ARGUMENT_BYTES: usize = 256;
const PROGRAM: Expected =
    Expected::new("a file name of 1 to 64 letters, digits, '-', '_' and '.', without a folder")
        .example("\"check_mysql\"");
const ARGUMENTS: Expected = Expected::new("a list of at most 32 strings").example("[\"--lag\", \"30\"]");
const ARGUMENT: Expected =
    Expected::new("a string of at most 256 bytes without control characters").example("\"--lag\"");
