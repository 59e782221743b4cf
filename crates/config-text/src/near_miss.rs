//! "Did you mean": the known word nearest to an unknown one.
//!
//! In: a word from the file and the words known there. Out: at most one of them.
//! Limits: words over 64 characters and lists over 1,024 words get no hint, so that the cost stays small
//! for any file.

use strsim::osa_distance;

/// The nearest of `known`, when it is near enough to be a slip of the finger, or a longer form of the word;
/// the first of equals.
fn near_miss<'k>(word: &str, known: impl IntoIterator<Item = &'k str>) -> Option<&'k str> {
    let length = word.chars().count();
    let known: Vec<&str> = known.into_iter().take(MAX_KNOWN + 1).collect();
    if length > MAX_CHARS || known.len() > MAX_KNOWN {
        return None;
    }
    let allowed = (length / 3).max(1);
    let away = |candidate: &str| {
        let longer = word.len() >= 3 && candidate.starts_with(word);
        osa_distance(word, candidate).min(if longer { allowed } else { usize::MAX })
    };
    let (away, nearest) =
        known.into_iter().map(|candidate| (away(candidate), candidate)).min_by_key(|(away, _)| *away)?;
    (away <= allowed).then_some(nearest)
}

/// A hint for the end of a message, or nothing.
pub fn hint<'k>(word: &str, known: impl IntoIterator<Item = &'k str>) -> String {
    near_miss(word, known).map(|near| format!(" (did you mean {near:?}?)")).unwrap_or_default()
}

const MAX_CHARS: usize = 64;
const MAX_KNOWN: usize = 1_024;

#[cfg(test)]
mod tests {
    use super::near_miss;

    #[test]
    fn slips_are_recognised_and_other_words_are_not() {
        let known = ["interfaces", "addresses", "shard", "weight", "io"];
        let table = [
            ("interface", Some("interfaces")),
            ("adresses", Some("addresses")),
            ("sahrd", Some("shard")),
            ("wieght", Some("weight")),
            ("Shard", Some("shard")),
            ("oi", Some("io")),
            ("ports", None),
            ("inter", Some("interfaces")),
            ("in", Some("io")),
            ("ad", None),
            ("", None),
            ("encapsulation", None),
        ];
        for (word, expected) in table {
            assert_eq!(near_miss(word, known), expected, "{word}");
        }
    }

    #[test]
    fn a_swap_counts_as_one_slip() {
        assert_eq!(near_miss("abc", ["acb"]), Some("acb"));
        assert_eq!(near_miss("abc", ["cab"]), None);
    }
}
