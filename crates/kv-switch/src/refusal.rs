//! The reasons why a request is refused.

use thiserror::Error;

/// The reason why a request is refused.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Refusal {
    /// The payload ends within the header of the protocol or directly after it.
    #[error("the payload is too short for the header of the protocol")]
    ShortFrame,
    /// The number of datagrams in the memcached frame is not 1. Memcached servers drop such
    /// requests.
    #[error("the request does not consist of exactly one datagram")]
    TotalNotOne,
    /// The datagram contains further bytes after the first command.
    #[error("the datagram contains more than one command")]
    SeveralCommands,
    /// The command is unknown to memcached, or the operation is unknown to the protocol.
    #[error("the verb is unknown")]
    UnknownVerb,
    /// The command is for administrators, for example to read statistics, delete all data, change
    /// the log level, shut down or authenticate.
    #[error("the command is reserved for administrators")]
    Administrative,
    /// A line or a value does not end with CR LF.
    #[error("a line or a value does not end with CR LF")]
    LineEnd,
    /// A line contains a zero byte, which memcached treats as the end of the line.
    #[error("the line contains a zero byte")]
    ZeroByte,
    /// The first fragment of the datagram does not contain all keys.
    #[error("the first fragment does not contain the whole key")]
    FirstFragmentTooShort,
    /// The command has no key, or its key is empty.
    #[error("the key is empty")]
    KeyEmpty,
    /// The key is longer than 250 bytes.
    #[error("the key is longer than 250 bytes")]
    KeyTooLong,
    /// The request names more keys than the protocol allows.
    #[error("the request contains too many keys")]
    TooManyKeys,
    /// The command has too few or too many arguments.
    #[error("the command has too few or too many words")]
    WrongArguments,
    /// A number is malformed or out of range.
    #[error("a number is malformed or out of range")]
    BadNumber,
    /// A flag of a meta command is not valid for this command, is repeated, has a malformed token,
    /// or is not allowed, such as `E` with a cache.
    #[error("a flag is unknown, repeated, malformed or not allowed")]
    BadFlag,
    /// The key of a meta command with flag `b` is not canonical base64.
    #[error("the key is not canonical base64")]
    BadBase64,
    /// The length fields of the command do not match the length of the datagram.
    #[error("the lengths in the command do not match the length of the datagram")]
    WrongLength,
    /// The key would start or end outside the payload, or would end before its start.
    #[error("the offsets of the key are outside the payload or in the wrong order")]
    WrongOffsets,
    /// The application id in the preamble is not the configured one.
    #[error("the application id in the preamble differs from the configured one")]
    OtherApplication,
}
