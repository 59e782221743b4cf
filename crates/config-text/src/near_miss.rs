//! Finds the known word that is most similar to a misspelled word, for "did you mean" hints.
//!
//! To bound the cost of hostile files, no hint is given for words over 64 characters, or if there
//! are more than 1,024 known words.

use strsim::osa_distance;

/// Returns the most similar known word, or `None` if no known word is similar enough. A known word
/// is similar if it differs from `word` by a few typing errors or only in letter case, or if it
/// starts with `word`. If several words are equally similar, the first of these words is returned.
fn near_miss<'k>(word: &str, known: impl IntoIterator<Item = &'k str>) -> Option<&'k str> {
    let length = word.chars().count();
    let known: Vec<&str> = known.into_iter().take(MAX_KNOWN + 1).collect();
    if length > MAX_CHARS || known.len() > MAX_KNOWN {
        return None;
    }
    let most = (length / 3).max(1);
    let distance = |candidate: &str| {
        if word.eq_ignore_ascii_case(candidate) {
            return 0;
        }
        let longer = word.len() >= 3 && candidate.starts_with(word);
        osa_distance(word, candidate).min(if longer { most } else { usize::MAX })
    };
    let (distance, nearest) = known
        .into_iter()
        .map(|candidate| (distance(candidate), candidate))
        .min_by_key(|(distance, _)| *distance)?;
    (distance <= most).then_some(nearest)
}

/// Returns the help line `did you mean "x"?`, or `None` if no known word is similar.
pub fn hint<'k>(word: &str, known: impl IntoIterator<Item = &'k str>) -> Option<String> {
    near_miss(word, known).map(|near| format!("did you mean {near:?}?"))
}

const MAX_CHARS: usize = 64;
/// The maximum number of known words for which a hint is given.
pub const MAX_KNOWN: usize = 1_024;

#[cfg(test)]
mod tests {
    use super::near_miss;

    #[test]
    fn near_miss_finds_typing_errors_only() {
        let known = ["interfaces", "addresses", "shard", "weight", "io"];
        let table = [
            ("interface", Some("interfaces")),
            ("adresses", Some("addresses")),
            ("sahrd", Some("shard")),
            ("wieght", Some("weight")),
            ("Shard", Some("shard")),
            ("WEIGHT", Some("weight")),
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
    fn near_miss_counts_a_swap_as_one_error() {
        assert_eq!(near_miss("abc", ["acb"]), Some("acb"));
        assert_eq!(near_miss("abc", ["cab"]), None);
    }
}
