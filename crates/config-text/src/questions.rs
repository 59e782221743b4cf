//! What a reader asks of each value: a schema of files can be made of it.
//!
//! In: the questions of one reading or several. Out: by the path of keys, which kinds of values were asked for.
//! Not here: the form of a schema, and what a reader asks only of values that the text has not.

use std::collections::{BTreeMap, BTreeSet};

use crate::field::Field;

/// A kind of value that a reader takes. Numbers and spans have bounds, both allowed.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Asked {
    /// `true` and `false`.
    Boolean,
    /// `false` in place of a table.
    False,
    /// An integer; the bounds are wider than any where none are said.
    Integer {
        /// The least.
        least: i128,
        /// The most.
        most: i128,
    },
    /// A string with a whole number and its unit.
    Duration,
    /// A string with a whole number and `%`.
    Percent,
    /// One of these strings.
    Words(Vec<String>),
    /// Any other string.
    Text,
    /// A list; its elements stand at the path with `[]` behind.
    List,
    /// A table; its keys stand at the path with the key behind, or `*` where the file chooses it.
    Table,
}

/// All that was asked of one path.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Question {
    /// In the order of [`Asked`].
    pub kinds: BTreeSet<Asked>,
    /// Each reader refuses a table without it.
    pub is_required: bool,
    /// Its keys are those that were asked for, and no others.
    pub is_closed: bool,
    /// A reader did without it.
    is_optional: bool,
}

impl Question {
    /// Takes over what another reading asked.
    pub fn join(&mut self, other: Self) {
        other.kinds.into_iter().for_each(|kind| add(&mut self.kinds, kind));
        self.is_optional |= other.is_optional;
        self.is_required = (self.is_required || other.is_required) && !self.is_optional;
        self.is_closed |= other.is_closed;
    }
}

/// What was asked of each path, the file's top first.
pub type Questions = BTreeMap<Vec<String>, Question>;

/// Something that a reader does.
pub(crate) enum Step {
    Ask(Asked),
    Require,
    Allow,
    Close,
}

/// Keeps one step.
pub(crate) fn keep(questions: &mut Questions, field: &Field, step: Step) {
    let question = questions.entry(field.path()).or_default();
    match step {
        Step::Ask(asked) => add(&mut question.kinds, asked),
        Step::Require => question.is_required = !question.is_optional,
        Step::Allow => (question.is_optional, question.is_required) = (true, false),
        Step::Close => question.is_closed = true,
    }
}

/// Bounds that depend on other values become the widest.
fn add(kinds: &mut BTreeSet<Asked>, asked: Asked) {
    let Asked::Integer { mut least, mut most } = asked else {
        kinds.insert(asked);
        return;
    };
    kinds.retain(|kind| match kind {
        Asked::Integer { least: other, most: another } => {
            // One without bounds asks for what another then bounds.
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

/// The bounds of an integer of which none are said.
pub(crate) const ANY: (i128, i128) = (i64::MIN as i128, i64::MAX as i128);

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::time::Duration;

    use super::*;
    use crate::{Report, Root, gather};

    /// Reads a file of jobs, and says what was asked.
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
        assert_eq!(kinds(&["job", "*", "every"]), [], "known, though no text has it");
        assert_eq!(kinds(&["job", "*", "keep"]), [Asked::Integer { least: 0, most: 7 }]);
        assert!(!of(&["job", "*", "keep"]).unwrap().is_required, "one reader did without it");
        assert_eq!(kinds(&["job", "*", "on"]), [Asked::Words(vec!["a".into(), "b".into()])]);
        let any = Asked::Integer { least: ANY.0, most: ANY.1 };
        assert_eq!(kinds(&["job", "*", "hosts", "[]"]), [any, Asked::Text]);
        let every = asked("[job.a]\nevery = \"1s\"\n");
        assert!(every.values().any(|question| question.kinds.contains(&Asked::Duration)));
    }
}
