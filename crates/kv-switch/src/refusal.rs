//! Why a request goes nowhere.

use thiserror::Error;

/// Why a request is refused. Each is a reason of its own, and none is "other".
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Refusal {
    /// The payload ends before the protocol's own header does, or right behind it.
    #[error("the payload ends within the protocol's header")]
    ShortFrame,
    /// Memcached's frame says that the request has another number of datagrams than one: servers drop these.
    #[error("the request says that it has more or fewer than one datagram")]
    TotalNotOne,
    /// Something follows the first command.
    #[error("the datagram holds more than one command")]
    SeveralCommands,
    /// No verb that memcached reads, or no operation of the protocol.
    #[error("the verb is unknown")]
    UnknownVerb,
    /// A command for operators: statistics, flush, log level, shutdown, authentication.
    #[error("the command is an administrator's")]
    Administrative,
    /// A line without CR LF at its end, or a value without.
    #[error("a line or a value does not end in CR LF")]
    LineEnd,
    /// A zero byte in a line: memcached takes it for the line's end.
    #[error("the line holds a zero byte")]
    ZeroByte,
    /// The first fragment ends before the keys do.
    #[error("the first fragment does not hold the whole key")]
    FirstPieceTooShort,
    /// A command without a key, or with an empty one.
    #[error("the key is empty")]
    KeyEmpty,
    /// A key above 250 bytes.
    #[error("the key is longer than allowed")]
    KeyTooLong,
    /// More keys than one request may name.
    #[error("the request names more keys than allowed")]
    TooManyKeys,
    /// The number of words is not the verb's.
    #[error("the command has too few or too many words")]
    WrongArguments,
    /// A word that must be a number is none, or is out of its range.
    #[error("a number is malformed or out of range")]
    BadNumber,
    /// A flag of a meta command that its verb does not have, that stands twice, or whose token is malformed.
    #[error("a flag is unknown, given twice or malformed")]
    BadFlag,
    /// The key of a meta command with flag `b` is no canonical base64.
    #[error("the key is no canonical base64")]
    BadBase64,
    /// The lengths in the command do not give the datagram's.
    #[error("the command's lengths do not give the length of the datagram")]
    WrongLength,
    /// Offsets of a key that lie outside of the payload or the wrong way round.
    #[error("the key's offsets lie outside of the payload")]
    WrongOffsets,
    /// The preamble is another application's.
    #[error("the preamble is another application's")]
    OtherApplication,
}
