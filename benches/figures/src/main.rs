//! Command-line program for the figures. `figures run NAME` prints the rows of a figure as CSV.
//! `figures draw FOLDER` writes the plots and the results page from the CSV files in a folder.
#![forbid(unsafe_code)]

use std::path::Path;
use std::{env, fs};

use anyhow::{Context, Result, bail};
use figures::{Csv, Figure, page};

fn main() -> Result<()> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["run", name] => {
            let figure = Figure::named(name).with_context(|| format!("there is no figure named {name}"))?;
            print!("{}", figure.run()?);
            Ok(())
        }
        ["draw", folder] => draw(Path::new(folder)),
        _ => bail!("usage: figures run NAME | figures draw FOLDER"),
    }
}

fn draw(folder: &Path) -> Result<()> {
    let mut there = Vec::new();
    for figure in Figure::ALL {
        let path = folder.join(format!("figure-{}.csv", figure.name()));
        if path.is_file() {
            let csv =
                Csv::parse(&fs::read_to_string(&path)?).with_context(|| format!("in {}", path.display()))?;
            fs::write(path.with_extension("svg"), figure.draw(&csv)?)?;
            there.push((figure, csv));
        }
    }
    Ok(fs::write(folder.join("README.md"), page(&there)?)?)
}
