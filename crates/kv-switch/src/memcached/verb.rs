//! The verbs of requests that are forwarded.

/// A verb of memcached, in either protocol, or an unknown one. Its number is [`crate::Ask::verb`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[repr(u8)]
pub enum Verb {
    /// `get`; binary GET, GETQ, GETK, GETKQ, and batches of these.
    Get,
    /// `gets`.
    Gets,
    /// `gat`; binary GAT, GATQ, GATK, GATKQ.
    Gat,
    /// `gats`.
    Gats,
    /// `set`; binary SET, SETQ.
    Set,
    /// `add`; binary ADD, ADDQ.
    Add,
    /// `replace`; binary REPLACE, REPLACEQ.
    Replace,
    /// `append`; binary APPEND, APPENDQ.
    Append,
    /// `prepend`; binary PREPEND, PREPENDQ.
    Prepend,
    /// `cas`.
    Cas,
    /// `delete`; binary DELETE, DELETEQ.
    Delete,
    /// `incr`; binary INCREMENT, INCREMENTQ.
    Incr,
    /// `decr`; binary DECREMENT, DECREMENTQ.
    Decr,
    /// `touch`; binary TOUCH.
    Touch,
    /// `mg`.
    MetaGet,
    /// `ms`.
    MetaSet,
    /// `md`.
    MetaDelete,
    /// `ma`.
    MetaArithmetic,
    /// `me`.
    MetaDebug,
    /// `mn`; binary NOOP.
    Noop,
    /// `version`; binary VERSION.
    Version,
    /// Of a protocol whose verbs are not known.
    Request,
}

impl Verb {
    /// What they are called in counters, by their numbers.
    pub const NAMES: [&str; 22] = [
        "get", "gets", "gat", "gats", "set", "add", "replace", "append", "prepend", "cas", "delete", "incr",
        "decr", "touch", "mg", "ms", "md", "ma", "me", "noop", "version", "request",
    ];

    /// Its number.
    #[inline]
    #[must_use]
    pub const fn number(self) -> u8 {
        self as u8
    }
}
