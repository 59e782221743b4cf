//! Tests shell completions and manual pages.

#![expect(clippy::unwrap_used, reason = "a panic fails the test")]

use std::collections::BTreeSet;
use std::process::Command;
use std::{env, fs, process};

/// Runs a subcommand and returns its exit code and output.
fn sluicegate(arguments: &[&str]) -> (i32, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_sluicegate")).args(arguments).output().unwrap();
    let text = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
    (output.status.code().unwrap(), text)
}

/// Returns the subcommands that the output of `--help` lists.
fn verbs(words: &[&str]) -> Vec<String> {
    let (code, help) = sluicegate(&[words, &["--help"]].concat());
    assert_eq!(code, 0, "{help}");
    let below = help.split_once("Commands:\n").map(|(_, below)| below).unwrap_or_default();
    let names = below.lines().take_while(|line| !line.is_empty()).filter(|line| !line.starts_with("    "));
    let names = names.filter_map(|line| line.split_whitespace().next()).filter(|name| *name != "help");
    names.map(str::to_owned).collect()
}

#[test]
fn bash_completes_verbs_options_and_files_by_the_script() {
    let (code, script) = sluicegate(&["completions", "bash"]);
    assert_eq!(code, 0);
    // The script is longer than an argument may be.
    let file = env::temp_dir().join(format!("sluicegate-completions-test-{}", process::id()));
    fs::write(&file, script).unwrap();
    let name = file.to_str().unwrap();
    let complete = |words: &str, current: &str, before: &str| {
        let ask = format!(
            ". {name}\nCOMP_WORDS=({words}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))\n\
             _sluicegate sluicegate '{current}' '{before}'; echo \"${{COMPREPLY[@]}}\""
        );
        let output = Command::new("bash").args(["--norc", "-c", &ask]).output().unwrap();
        String::from_utf8([output.stdout, output.stderr].concat()).unwrap()
    };
    assert_eq!(complete("sluicegate dig", "dig", "sluicegate"), "digest\n");
    assert_eq!(complete("sluicegate config roll", "roll", "config"), "rollback\n");
    assert_eq!(complete("sluicegate backend drain --rea", "--rea", "drain"), "--reason\n");
    fs::remove_file(&file).unwrap();
}

#[test]
fn each_shell_has_a_script_and_others_are_refused_by_name() {
    for (shell, words) in [("zsh", "#compdef sluicegate"), ("fish", "complete -c sluicegate")] {
        let (code, script) = sluicegate(&["completions", shell]);
        assert!(code == 0 && script.contains(words) && script.contains("undrain"), "{script}");
    }
    let (code, words) = sluicegate(&["completions", "csh"]);
    assert!(code == 2 && words.contains("bash, fish, zsh"), "{words}");
}

#[test]
fn each_verb_has_a_manual_page() {
    let folder = env::temp_dir().join(format!("sluicegate-manual-test-{}", process::id()));
    assert_eq!(sluicegate(&["man", folder.to_str().unwrap()]), (0, String::new()));
    let pages = fs::read_dir(&folder).unwrap().map(|page| page.unwrap().file_name().into_string().unwrap());
    let pages: BTreeSet<String> = pages.collect();
    let page = fs::read_to_string(folder.join("sluicegate-config-check.1")).unwrap();
    fs::remove_dir_all(&folder).unwrap();
    let mut expected = BTreeSet::from(["sluicegate.1".to_owned()]);
    let mut left: Vec<Vec<String>> = verbs(&[]).into_iter().map(|verb| vec![verb]).collect();
    while let Some(words) = left.pop() {
        expected.insert(format!("sluicegate-{}.1", words.join("-")));
        let below = verbs(&words.iter().map(String::as_str).collect::<Vec<_>>());
        left.extend(below.into_iter().map(|verb| [words.clone(), vec![verb]].concat()));
    }
    assert_eq!(pages, expected);
    assert!(
        page.contains("Report all problems of a configuration file") && page.contains("all\\-shards"),
        "{page}"
    );
    let (code, words) = sluicegate(&["man", "/dev/null/pages"]);
    assert!(code == 1 && words.contains("/dev/null/pages"), "{words}");
}
