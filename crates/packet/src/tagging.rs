//! Which VLAN tags a frame leaves with.
//!
//! In: the tags that it came with. Out: those that its link header gets.
//! Not here: link headers (`link`), where the frame goes.
//! Invariant: the priority bits that a frame came with stay with it for as long as it has a tag.
//! Source: IEEE 802.1Q-2022 §6.9, §9.6.

use std::sync::Arc;

use crate::Tags;

/// What becomes of a frame's tags on its way out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Tagging {
    /// They stay as they are.
    #[default]
    Keep,
    /// These take their place; with [`Tags::NONE`] the frame leaves untagged.
    Set(Tags),
    /// The first rule for them says what takes their place; without one the frame is dropped.
    Translate(Arc<[Translation]>),
}

/// One rule of [`Tagging::Translate`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Translation {
    /// The VLANs that it is for, outermost first, as [`Tags::ids`] has them; `None`: whatever they are.
    pub from: Option<[Option<u16>; 2]>,
    /// What takes the tags' place.
    pub to: Tags,
}

impl Tagging {
    /// The tags with which a frame leaves that came with `tags`. `None`: no rule is for it.
    #[must_use]
    pub fn after(&self, tags: &Tags) -> Option<Tags> {
        let to = match self {
            Self::Keep => return Some(*tags),
            Self::Set(to) => *to,
            Self::Translate(rules) => {
                let ids = tags.ids();
                rules.iter().find(|rule| rule.from.is_none_or(|from| from == ids))?.to
            }
        };
        Some(to.with_priorities_of(tags))
    }
}
