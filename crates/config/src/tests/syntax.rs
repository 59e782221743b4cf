//! Tests of files with TOML syntax errors.

use super::{BASE, all};

#[test]
fn a_missing_bracket_in_a_file_is_the_only_problem() {
    for (whole, broken) in
        [("[pool.p]", "[pool.p"), ("interfaces = [\"eth0\"]", "interfaces = [\"eth0\""), ("[80]", "[80")]
    {
        assert!(BASE.contains(whole), "{whole}");
        let problems = all(&BASE.replacen(whole, broken, 1));
        let line = BASE[..BASE.find(whole).unwrap()].matches('\n').count() + 1;
        let shown: Vec<_> =
            problems.iter().map(|problem| (problem.line(), problem.message.as_str())).collect();
        assert_eq!(shown, [(Some(line), "`[` is not closed")], "{problems:?}");
    }
}
