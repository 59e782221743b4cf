use super::*;
use crate::stats::Stats;
use crate::view::{BackendRow, BgpView, EventsView, HealthView, Status, VipRow};

#[test]
fn page_is_small_and_self_contained() {
    assert!(PAGE.len() < 40_000, "{} bytes", PAGE.len());
    for outside in ["src=", "@import", "url(", "<iframe", "<object", "<form", "http-equiv"] {
        assert!(!PAGE.contains(outside), "{outside}");
    }
    // The URL of the SVG namespace is never fetched.
    let addresses = PAGE.matches("://").count();
    assert_eq!((addresses, PAGE.matches("http://www.w3.org/2000/svg").count()), (1, 1));
    assert_eq!((PAGE.matches("<style>").count(), PAGE.matches("<script").count()), (1, 1));
}

#[test]
fn page_never_turns_text_into_markup_or_code() {
    for door in [
        "innerHTML",
        "outerHTML",
        "insertAdjacentHTML",
        "document.write",
        "eval(",
        "new Function",
        "style=",
        " on",
    ] {
        let found = PAGE.match_indices(door).find(|(at, _)| door != " on" || is_handler(&PAGE[*at..]));
        assert!(found.is_none(), "{door}: {:?}", found.map(|(at, _)| &PAGE[at..at + 40]));
    }
}

/// Returns `true` for an event handler attribute such as ` onload=`.
fn is_handler(text: &str) -> bool {
    let name: String = text[1..].chars().take_while(char::is_ascii_lowercase).collect();
    name.len() > 3 && text[1 + name.len()..].starts_with("=\"")
}

#[test]
fn policy_contains_the_hashes_of_style_and_script() {
    assert!(text_of("style").contains("--ground") && text_of("script").contains("\"use strict\""));
    // The SHA-256 hash of an empty string, which would be the result for a missing element.
    assert_eq!(BASE64_STANDARD.encode(Sha256::digest("")), "47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=");
    let policy = policy();
    assert!(!policy.contains("47DEQpj8HBSa") && !policy.contains("unsafe"), "{policy}");
    assert!(policy.starts_with("default-src 'none'; style-src 'sha256-"), "{policy}");
}

/// In the browser test, the server responds with these samples.
#[test]
fn samples_have_the_shape_of_responses() {
    fn same<T: serde::de::DeserializeOwned + serde::Serialize>(text: &str) {
        let sample: serde_json::Value = serde_json::from_str(text).unwrap();
        let typed: T = serde_json::from_str(text).unwrap();
        assert_eq!(serde_json::to_value(typed).unwrap(), sample);
    }
    same::<Status>(include_str!("sample/status.json"));
    same::<Vec<VipRow>>(include_str!("sample/vips.json"));
    same::<Vec<BackendRow>>(include_str!("sample/backends.json"));
    same::<BgpView>(include_str!("sample/bgp.json"));
    same::<EventsView>(include_str!("sample/events.json"));
    same::<HealthView>(include_str!("sample/health.json"));
    // The sample contains only counters that are not 0.
    let sample: serde_json::Value = serde_json::from_str(include_str!("sample/counters.json")).unwrap();
    let typed: Stats = serde_json::from_value(sample.clone()).unwrap();
    has_all(&serde_json::to_value(typed).unwrap(), &sample, "");
}

/// Checks that `whole` contains all values of `part`.
fn has_all(whole: &serde_json::Value, part: &serde_json::Value, at: &str) {
    if let Some(fields) = part.as_object() {
        fields.iter().for_each(|(name, value)| has_all(&whole[name], value, &format!("{at}.{name}")));
    } else if let Some(rows) = part.as_array() {
        rows.iter().enumerate().for_each(|(n, row)| has_all(&whole[n], row, &format!("{at}[{n}]")));
    } else {
        assert_eq!(whole, part, "{at}");
    }
}
