//! Reads the shell commands of documentation pages, so that tests can run them.

/// The commands below one heading of a page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Section {
    /// The text of the heading.
    pub heading: String,
    /// The commands, one per line.
    pub commands: String,
}

/// Returns the sections of a page that have shell blocks (```` ```sh ````). The commands of
/// indented blocks in lists are returned without the indent.
#[must_use]
pub fn sections(page: &str) -> Vec<Section> {
    let mut found = vec![Section { heading: String::new(), commands: String::new() }];
    for block in blocks(page) {
        match block {
            Block::Heading(heading) => found.push(Section { heading, commands: String::new() }),
            Block::Code { language: "sh", text, .. } => {
                if let Some(section) = found.last_mut() {
                    section.commands += &text;
                }
            }
            Block::Code { .. } => {}
        }
    }
    found.retain(|section| !section.commands.is_empty());
    found
}

/// Returns the text blocks of a page that contain commands for a shell, each with its line number
/// and its first line. A text block contains commands if it shows a session (`$ ip link`), or if
/// its first line begins with one of the `programs`.
#[must_use]
pub fn other_commands<'a>(page: &'a str, programs: &[&str]) -> Vec<(usize, String)> {
    let is_command = |line: &str| {
        let word = line.split(' ').next().unwrap_or_default();
        programs.contains(&word) || word == "$"
    };
    let code = |block: Block<'a>| match block {
        Block::Code { language: "text" | "", text, line } => {
            let first = text.lines().next().unwrap_or_default();
            is_command(first).then(|| (line, first.to_owned()))
        }
        _ => None,
    };
    blocks(page).into_iter().filter_map(code).collect()
}

enum Block<'a> {
    Heading(String),
    Code { language: &'a str, text: String, line: usize },
}

fn blocks(page: &str) -> Vec<Block<'_>> {
    let mut found = Vec::new();
    let mut open = None;
    for (number, line) in (1..).zip(page.lines()) {
        let fence = line.trim_start().strip_prefix("```");
        match (open.take(), fence) {
            (None, Some(language)) => {
                let indent = line.len() - line.trim_start().len();
                open = Some((indent, language, String::new(), number));
            }
            (Some((_, language, text, line)), Some(_)) => found.push(Block::Code { language, text, line }),
            (Some((indent, language, mut text, number)), None) => {
                text += line.get(indent..).unwrap_or_default();
                text.push('\n');
                open = Some((indent, language, text, number));
            }
            (None, None) if line.starts_with("##") => {
                found.push(Block::Heading(line.trim_start_matches('#').trim().to_owned()));
            }
            (None, None) => {}
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = "# A\n## One: two\n\n```sh\na\n# b\n```\nwords\n1. c\n\n   ```sh\n   c <<E\n\n   E\n   ```\n## None\n```toml\nip = 1\n```\n### `x` y\n```sh\ne\n```\n```text\n$ f\n```\n   ```text\n   ip link\n   ```\n";

    #[test]
    fn shell_blocks_are_joined_below_their_heading() {
        let section = |heading: &str, commands: &str| Section {
            heading: heading.to_owned(),
            commands: commands.to_owned(),
        };
        let wanted = [section("One: two", "a\n# b\nc <<E\n\nE\n"), section("`x` y", "e\n")];
        assert_eq!(sections(PAGE), wanted);
    }

    #[test]
    fn commands_outside_shell_blocks_are_found() {
        let found = other_commands(PAGE, &["ip"]);
        assert_eq!(found, [(24, "$ f".to_owned()), (27, "ip link".to_owned())]);
    }
}
