//! "Did you mean": the known word nearest to an unknown one.
//!
//! In: a word from the file and the words known there. Out: at most one of them.
//! Limits: words over 64 characters and lists over 1,024 words get no hint, so that the cost stays small
//! for any file.

/// The nearest of `known`, when it is near enough to be a slip of the finger, or a longer form of the word;
/// the first of equals.
pub(super) fn near_miss<'k>(word: &str, known: impl IntoIterator<Item = &'k str>) -> Option<&'k str> {
    let start = word;
    let word: Vec<char> = word.chars().take(MAX_CHARS + 1).collect();
    if word.len() > MAX_CHARS {
        return None;
    }
    let allowed = (word.len() / 3).max(1);
    let mut best: Option<(usize, &str)> = None;
    for (index, candidate) in known.into_iter().enumerate() {
        if index >= MAX_KNOWN {
            return None;
        }
        let longer = start.len() >= 3 && candidate.starts_with(start);
        let away = distance(&word, candidate, allowed).min(if longer { allowed } else { usize::MAX });
        if away <= allowed && best.is_none_or(|(least, _)| away < least) {
            best = Some((away, candidate));
        }
    }
    best.map(|(_, candidate)| candidate)
}

/// A hint for the end of a message, or nothing.
pub(super) fn hint<'k>(word: &str, known: impl IntoIterator<Item = &'k str>) -> String {
    near_miss(word, known).map(|near| format!(" (did you mean {near:?}?)")).unwrap_or_default()
}

/// Insertions, deletions, replacements and swaps of neighbours between the two; more than `limit` is
/// not told apart.
fn distance(a: &[char], b: &str, limit: usize) -> usize {
    let b: Vec<char> = b.chars().take(a.len() + limit + 1).collect();
    let mut before: Vec<usize> = Vec::new();
    let mut previous: Vec<usize> = (0..=b.len()).collect();
    for (i, &x) in a.iter().enumerate() {
        let mut row = vec![i + 1];
        for (j, &y) in b.iter().enumerate() {
            let mut least = (previous[j] + usize::from(x != y)).min(previous[j + 1] + 1).min(row[j] + 1);
            if i > 0 && j > 0 && x == b[j - 1] && a[i - 1] == y {
                least = least.min(before[j - 1] + 1);
            }
            row.push(least);
        }
        before = std::mem::replace(&mut previous, row);
    }
    previous.last().copied().unwrap_or(limit + 1)
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
