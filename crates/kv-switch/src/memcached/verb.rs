//! The commands that requests contain, and their names in counters.

/// A memcached command, or [`Verb::Request`] for other protocols. The field [`crate::Ask::verb`]
/// contains the number of a verb.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[repr(u8)]
pub enum Verb {
    /// The text command `get`, the binary commands GET, GETQ, GETK and GETKQ, and batches of them.
    Get,
    /// The command `gets`.
    Gets,
    /// The command `gat`, or binary GAT, GATQ, GATK and GATKQ.
    Gat,
    /// The command `gats`.
    Gats,
    /// The command `set`, or binary SET and SETQ.
    Set,
    /// The command `add`, or binary ADD and ADDQ.
    Add,
    /// The command `replace`, or binary REPLACE and REPLACEQ.
    Replace,
    /// The command `append`, or binary APPEND and APPENDQ.
    Append,
    /// The command `prepend`, or binary PREPEND and PREPENDQ.
    Prepend,
    /// The command `cas`.
    Cas,
    /// The command `delete`, or binary DELETE and DELETEQ.
    Delete,
    /// The command `incr`, or binary INCREMENT and INCREMENTQ.
    Incr,
    /// The command `decr`, or binary DECREMENT and DECREMENTQ.
    Decr,
    /// The command `touch`, or binary TOUCH.
    Touch,
    /// The meta command `mg`.
    MetaGet,
    /// The meta command `ms`.
    MetaSet,
    /// The meta command `md`.
    MetaDelete,
    /// The meta command `ma`.
    MetaArithmetic,
    /// The meta command `me`.
    MetaDebug,
    /// The meta command `mn`, or binary NOOP.
    Noop,
    /// The command `version`, or binary VERSION.
    Version,
    /// A request of a protocol other than memcached. The commands of such protocols are not
    /// distinguished.
    Request,
}

impl Verb {
    /// The names of the verbs in counters, indexed by [`Verb::number`].
    pub const NAMES: [&str; 22] = [
        "get", "gets", "gat", "gats", "set", "add", "replace", "append", "prepend", "cas", "delete", "incr",
        "decr", "touch", "mg", "ms", "md", "ma", "me", "noop", "version", "request",
    ];

    /// Returns the number of the verb.
    #[inline]
    #[must_use]
    pub const fn number(self) -> u8 {
        self as u8
    }
}
