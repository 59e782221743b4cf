//! Rules for the VLAN tags of outgoing frames.
//!
//! [`Tagging::after`] computes the tags of an outgoing frame from the tags that the frame had when
//! it was received. The priority bits of the received frame are kept.
//!
//! The rules of a VLAN bridge are in IEEE 802.1Q-2022 §6.9 and §9.6.

use std::sync::Arc;

use crate::Tags;

/// The rule that determines the VLAN tags of outgoing frames.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Tagging {
    /// The tags stay unchanged.
    #[default]
    Keep,
    /// The given tags replace the existing tags. [`Tags::NONE`] removes all tags.
    Set(Tags),
    /// The first rule that matches the VLANs of the frame sets the new tags. A frame without a
    /// matching rule is dropped.
    Translate(Arc<[Translation]>),
}

/// One rule of [`Tagging::Translate`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Translation {
    /// The VLANs that the rule matches, outermost first, in the format of [`Tags::ids`]. `None`
    /// matches every frame.
    pub from: Option<[Option<u16>; 2]>,
    /// The new tags.
    pub to: Tags,
}

impl Tagging {
    /// Returns the tags for sending a frame that was received with `tags`. Returns `None` if no
    /// rule matches and the frame must be dropped.
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
