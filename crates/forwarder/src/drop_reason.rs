//! Why a packet stops: one variant, one counter, one label, one test. The reasons stand in the table of the crate `counters`.

macro_rules! reasons {
    ($($finder:ident { $($(#[doc = $doc:literal])+ $variant:ident = $name:literal,)+ })+) => {
        /// Why a packet stopped here. There is no "other".
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        #[repr(u8)]
        pub enum DropReason { $($($(#[doc = $doc])+ $variant,)+)+ }

        impl DropReason {
            /// Every reason, in the order of its number.
            pub const ALL: &'static [Self] = &[$($(Self::$variant,)+)+];

            /// The name in metrics, captures and logs.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $($(Self::$variant => $name,)+)+ }
            }
        }
    };
}

counters::drop_reasons! { reasons! }

impl DropReason {
    /// Place of its counter.
    #[must_use]
    pub const fn index(self) -> usize {
        self as usize
    }
}
