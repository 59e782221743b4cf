//! The page of the figures: what the paper had, what we have, and how to have it again.
//!
//! In: CSVs. Out: Markdown. Every number on it is computed from a CSV.

use anyhow::Result;

use crate::{Csv, Figure};

/// The page over the figures that there are.
///
/// # Errors
/// Rows of another figure, or notes that are not there.
pub fn page(figures: &[(Figure, Csv)]) -> Result<String> {
    let mut text = String::from(HEAD);
    for (figure, csv) in figures {
        let name = figure.name();
        text += &format!(
            "\n## {}\n\n{}\n![{}](figure-{name}.svg)\n\n",
            figure.title(),
            figure.section(csv)?,
            figure.title()
        );
        text += &format!(
            "`{}`, of [figure-{name}.csv](figure-{name}.csv). Commit {}; {}; {}. Measures {}.\n",
            csv.note("command")?,
            csv.note("commit")?,
            csv.note("date")?,
            csv.note("machine")?,
            csv.note("measures")?
        );
    }
    Ok(text)
}

const HEAD: &str = "\
# The papers' evaluations, with Sluicegate

Eisenbud et al., *Maglev: A Fast and Reliable Software Network Load Balancer*, NSDI 2016, §5; where a title says MemSwitch, Zhang et al., *SmartSwitch*, HotCloud 2014, §4;
where it says AppSwitch, Cidon et al., *AppSwitch*, APNet 2017, §4. `cargo xtask figures` makes all of this anew, `cargo xtask figures kv` what is of the latter two,
`cargo xtask figures 11 12` two of them, `cargo xtask figures --draw` the plots and this page of the CSVs that are there. What is simulated
gives the same rows on every machine; what is timed depends on the machine that its line names. The commit is the last one that changed what
is measured; `cargo xtask tidy --report` names each figure whose measured code has changed since.

This page is written by the command: edit `benches/figures`, not it.
";

/// A figure of the checkout; `None`: it is not there.
#[cfg(test)]
pub(crate) fn committed(name: &str) -> Option<Csv> {
    let path = std::path::Path::new(RESULTS).join(format!("figure-{name}.csv"));
    Some(Csv::parse(&std::fs::read_to_string(path).ok()?).unwrap())
}

#[cfg(test)]
const RESULTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../results");

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;

    #[test]
    fn the_committed_page_and_plots_are_of_the_committed_rows() {
        let there: Vec<(Figure, Csv)> =
            Figure::ALL.into_iter().filter_map(|figure| Some((figure, committed(figure.name())?))).collect();
        assert!(!there.is_empty());
        let read = |name: &str| fs::read_to_string(Path::new(RESULTS).join(name)).unwrap();
        assert!(read("README.md") == page(&there).unwrap(), "the page: run cargo xtask figures --draw");
        for (figure, csv) in there {
            let name = format!("figure-{}.svg", figure.name());
            assert!(read(&name) == figure.draw(&csv).unwrap(), "{name}: run cargo xtask figures --draw");
        }
    }
}
