//! Records the schema of a configuration while a program reads it.
//!
//! The schema has one entry for each key path that the program has read, with the types and ranges
//! of the accepted values. Some keys are read only if another key has a certain value. To record
//! such keys, the program must read a file that contains that value.

use std::collections::{BTreeMap, BTreeSet};

use crate::field::Field;

/// A type of value that the program accepts at a key path. The bounds of numbers are inclusive.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Asked {
    /// The values `true` and `false`.
    Boolean,
    /// The value `false` where a table is accepted too.
    False,
    /// An integer. The bounds are the limits of `i64` if any integer is accepted.
    Integer {
        /// The smallest accepted value.
        least: i128,
        /// The largest accepted value.
        most: i128,
    },
    /// A string with a whole number and a unit of time.
    Duration,
    /// A string with a whole number and `%`.
    Percent,
    /// One string of a fixed list.
    Words(Vec<String>),
    /// Any string.
    Text,
    /// A list. The elements of the list have a separate schema entry, at a path that ends with
    /// `[]`.
    List,
    /// A table. Each of its values has a separate schema entry, whose path ends with the key, or
    /// with `*` if keys are user-defined.
    Table,
}

/// The schema entry of one key path.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Question {
    /// The accepted types.
    pub kinds: BTreeSet<Asked>,
    /// `true` if the key was required each time it was read.
    pub is_required: bool,
    /// `true` if unknown keys in this table are reported.
    pub is_closed: bool,
    /// `true` if the key was optional at least once when it was read.
    is_optional: bool,
}

impl Question {
    /// Merges another entry for the same path, which was recorded while another file was read.
    pub fn join(&mut self, other: Self) {
        other.kinds.into_iter().for_each(|kind| add(&mut self.kinds, kind));
        self.is_optional |= other.is_optional;
        self.is_required = (self.is_required || other.is_required) && !self.is_optional;
        self.is_closed |= other.is_closed;
    }
}

/// The recorded schema, which contains an entry for each key path. The empty path represents the
/// top level of the file.
pub type Questions = BTreeMap<Vec<String>, Question>;

/// An event to record: the program has read a value or a key, or has finished a table.
pub(crate) enum Step {
    Ask(Asked),
    Require,
    Allow,
    Close,
}

/// Records an event in the entry of a key path.
pub(crate) fn keep(questions: &mut Questions, field: &Field, step: Step) {
    let question = questions.entry(field.path()).or_default();
    match step {
        Step::Ask(asked) => add(&mut question.kinds, asked),
        Step::Require => question.is_required = !question.is_optional,
        Step::Allow => (question.is_optional, question.is_required) = (true, false),
        Step::Close => question.is_closed = true,
    }
}

/// Adds an accepted type. If an integer is read with several ranges, keeps their union.
fn add(kinds: &mut BTreeSet<Asked>, asked: Asked) {
    let Asked::Integer { mut least, mut most } = asked else {
        kinds.insert(asked);
        return;
    };
    kinds.retain(|kind| match kind {
        Asked::Integer { least: other, most: another } => {
            // An integer may be read first without a range and then with a range. The range is kept
            // in this case.
            let is_bounded = (least, most) != ANY && (*other, *another) != ANY;
            (least, most) = if is_bounded {
                (least.min(*other), most.max(*another))
            } else {
                (least.max(*other), most.min(*another))
            };
            false
        }
        _ => true,
    });
    kinds.insert(Asked::Integer { least, most });
}

/// The default bounds of an integer for which no range is given.
pub(crate) const ANY: (i128, i128) = (i64::MIN as i128, i64::MAX as i128);

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::time::Duration;

    use super::*;
    use crate::{Report, Root, gather};

    /// Reads a file with sections `[job.NAME]` and returns the recorded schema.
    fn asked(text: &str) -> Questions {
        let report = Report::with_questions();
        let parts = gather(&report, Path::new("a"), text.to_owned(), &["job"], None);
        let mut root = Root::new(&report, &parts);
        for (_, node) in root.named("job") {
            let mut job = node.section().unwrap();
            job.required("every", "").and_then(|node| node.duration(Duration::ZERO..=Duration::MAX));
            let most: u8 = job.or("most", 9, |node| node.number(1..=99));
            let keep = if most > 1 { job.optional("keep") } else { job.required("keep", "") };
            keep.and_then(|node| node.number(0..=most));
            job.or("on", Some(()), |node| Some(node.choice(&[("a", ()), ("b", ())])));
            for node in job.optional("hosts").and_then(|node| node.list("")).unwrap_or_default() {
                let _ = node.as_str().is_none().then(|| node.as_integer());
            }
            job.finish();
        }
        drop(root);
        drop(parts);
        report.questions()
    }

    #[test]
    fn what_is_asked_is_kept_by_its_path_and_joined_over_all_values() {
        let all = asked(
            "[job.a]\nmost = 1\nkeep = 0\nhosts = [\"x\", 1]\n[job.b]\nmost = 7\nkeep = 1\non = \"a\"\n",
        );
        let of = |path: &[&str]| all.get(&path.iter().map(|step| (*step).to_owned()).collect::<Vec<_>>());
        let kinds = |path: &[&str]| of(path).unwrap().kinds.iter().cloned().collect::<Vec<_>>();
        assert!(of(&["job", "*"]).unwrap().is_closed && of(&["job", "*", "every"]).unwrap().is_required);
        assert_eq!(kinds(&["job", "*", "every"]), [], "the key is known, but no file contains it");
        assert_eq!(kinds(&["job", "*", "keep"]), [Asked::Integer { least: 0, most: 7 }]);
        assert!(!of(&["job", "*", "keep"]).unwrap().is_required, "the key was optional once");
        assert_eq!(kinds(&["job", "*", "on"]), [Asked::Words(vec!["a".into(), "b".into()])]);
        let any = Asked::Integer { least: ANY.0, most: ANY.1 };
        assert_eq!(kinds(&["job", "*", "hosts", "[]"]), [any, Asked::Text]);
        let every = asked("[job.a]\nevery = \"1s\"\n");
        assert!(every.values().any(|question| question.kinds.contains(&Asked::Duration)));
    }
}
