//! Tests of `[trace]`, the section with the receivers of trace reports.

use super::*;

#[test]
fn without_the_section_nothing_is_reported() {
    assert_eq!(parsed(BASE).unwrap().0.trace(), None);
}

#[test]
fn receivers_are_prefixes_and_addresses_of_both_families() {
    let text = format!("{BASE}[trace]\nreceivers = [\"198.18.0.9\", \"2001:db8:9::/64\"]\n");
    let (config, warnings) = parsed(&text).unwrap();
    assert_eq!(warnings.to_string(), "");
    let trace = config.trace().unwrap();
    let shown: Vec<String> = trace.receivers.iter().map(ToString::to_string).collect();
    assert_eq!(shown, ["198.18.0.9/32", "2001:db8:9::/64"]);
    assert_eq!(trace.max_per_second, 100);
    let (other, _) = parsed(&format!("{text}max_per_second = 200\n")).unwrap();
    assert_eq!(other.trace().unwrap().max_per_second, 200);
    assert_ne!(config, other);
}

#[test]
fn what_is_wrong_is_reported_by_line_and_field() {
    check(&[
        (
            "",
            "[trace]\n",
            &[(
                1,
                "trace.receivers",
                "[trace] needs a \"receivers\" key",
                "\"receivers\" is a list of prefixes or addresses, for example receivers = [\"198.51.100.9\", \"2001:db8:9::/64\"]",
            )],
        ),
        (
            "",
            "[trace]\nreceivers = []\n",
            &[(
                2,
                "trace.receivers",
                "\"receivers\" must not be empty",
                "for example [\"198.51.100.9\", \"2001:db8:9::/64\"]",
            )],
        ),
        (
            "",
            "[trace]\nreceivers = [\"monitor\", 7, \"198.18.0.9/16\"]\nmax_per_second = 201\nreciever = 1\n",
            &[
                (
                    2,
                    "trace.receivers[0]",
                    "\"receivers[0]\" must be an IP prefix or address, got \"monitor\"",
                    "for example \"198.51.100.9\"",
                ),
                (
                    2,
                    "trace.receivers[1]",
                    "\"receivers[1]\" must be an IP prefix or address, got 7",
                    "for example \"198.51.100.9\"",
                ),
                (
                    2,
                    "trace.receivers[2]",
                    "prefix 198.18.0.9/16 has host bits set",
                    "write \"198.18.0.0/16\"",
                ),
                (3, "trace.max_per_second", "\"max_per_second\" must be between 1 and 200, got 201", ""),
                (4, "trace.reciever", "unknown key \"reciever\" in [trace]", "did you mean \"receivers\"?"),
            ],
        ),
    ]);
}
