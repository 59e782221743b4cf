//! Writes the results page of the figures in Markdown. For each figure, the page contains the
//! paper's values, the measured values, and the command that repeats the measurement. All measured
//! numbers on the page come from the CSV files.

use anyhow::Result;

use crate::{Csv, Figure};

/// Returns the results page with the given figures.
///
/// # Errors Returns an error if the rows belong to a different figure or a note is missing.
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
            "Data: [figure-{name}.csv](figure-{name}.csv), written by `{}` at commit {} on {} ({}). Measured code: {}.\n",
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
# Results of the papers' evaluations

This page repeats the evaluations of three papers with Sluicegate's code:

| name on this page | paper |
|---|---|
| the Maglev paper | Eisenbud et al., *Maglev: A Fast and Reliable Software Network Load Balancer*, NSDI 2016, §5 |
| MemSwitch | Zhang et al., *SmartSwitch*, HotCloud 2014, §4 |
| AppSwitch | Cidon et al., *AppSwitch*, APNet 2017, §4 |

| command | effect |
|---|---|
| `cargo xtask figures` | repeats all measurements |
| `cargo xtask figures kv` | repeats the measurements of MemSwitch and AppSwitch |
| `cargo xtask figures 11 12` | repeats Figures 11 and 12 of the Maglev paper |
| `cargo xtask bench scale` | measures the growth with VIPs, pools, backends and flows, which no paper contains |
| `cargo xtask figures --draw` | draws the plots and writes this page from the CSV files |

A simulated figure has the same rows on every machine. A measured figure depends on the machine, which is named in its last line. \
The commit in that line is the last commit that changed the measured code. `cargo xtask tidy --report` lists the figures whose code \
has changed since then.

This page is generated. Edit `benches/figures` instead.
";

/// Returns the rows of a figure in `benches/results`, or `None` if the file does not exist.
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
        assert!(read("README.md") == page(&there).unwrap(), "outdated page, run cargo xtask figures --draw");
        for (figure, csv) in there {
            let name = format!("figure-{}.svg", figure.name());
            assert!(
                read(&name) == figure.draw(&csv).unwrap(),
                "outdated {name}, run cargo xtask figures --draw"
            );
        }
    }
}
