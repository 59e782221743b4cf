//! Tests of the keys `allow`, `deny` and `limits` of a VIP, and of the files that they refer to.

use std::fs;
use std::net::IpAddr;
use std::os::unix::fs::symlink;
use std::path::PathBuf;

use super::files::Folder;
use super::*;

/// A folder for the base configuration and prefix lists.
struct Bed(Folder);

impl Bed {
    fn new() -> Self {
        let bed = Self(Folder::new());
        fs::create_dir(bed.0.0.join("lists")).unwrap();
        bed.0.write("k", KEY, 0o600);
        bed
    }

    fn list(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        self.0.write(&format!("lists/{name}"), content, 0o644)
    }

    fn load(&self, keys: &str) -> Result<Config, Vec<String>> {
        let path = self.0.write("a.toml", format!("{BASE}{keys}\n"), 0o644);
        let shown = |problems: Problems| {
            let folder = format!("{}/", self.0.0.display());
            let problems = without_unchecked(&problems);
            problems.iter().map(|problem| printed(problem).replace(&folder, "")).collect()
        };
        load(&path).map(|(config, _)| config).map_err(shown)
    }
}

fn prefixes(list: Option<&SourceList>) -> Vec<String> {
    let shown = |(address, length): (IpAddr, u8)| format!("{address}/{length}");
    list.into_iter().flat_map(SourceList::prefixes).map(shown).collect()
}

#[test]
fn a_vip_without_the_keys_is_open() {
    let (config, _) = parsed(BASE).unwrap();
    assert_eq!(&config.vips()[0].guard, &Guard::default());
}

#[test]
fn lists_hold_what_the_file_and_its_lists_say() {
    let bed = Bed::new();
    bed.list(
        "a.txt",
        "# the office\n198.18.0.0/15 # both floors\n\n  2001:db8::/32\r\n\t198.51.100.7\n198.51.100.7",
    );
    bed.list("b.txt", "192.0.2.0/24\n");
    bed.list("none.txt", "");
    let keys = "allow = [\"203.0.113.0/24\", \"2001:db8::9\"]\nallow_files = [\"lists/a.txt\", \"./lists/b.txt\"]\n\
                deny_files = [\"lists/none.txt\"]";
    let config = bed.load(keys).unwrap();
    let guard = &config.vips()[0].guard;
    let allowed = ["203.0.113.0/24", "2001:db8::9/128", "198.18.0.0/15", "198.51.100.7/32", "2001:db8::/32"];
    assert_eq!(prefixes(guard.allow.as_ref()), [&allowed[..], &["192.0.2.0/24"]].concat());
    assert!(guard.deny.as_ref().is_some_and(SourceList::is_empty), "a deny list may be empty");
    assert_eq!(guard.limits, Limits::default());
}

#[test]
fn limits_arrive_with_their_defaults() {
    let limits = |keys: &str| parsed(&format!("{BASE}{keys}")).unwrap().0.vips()[0].guard.limits;
    let all = limits("limits = { new_flows_per_second = 10_000_000 }");
    assert_eq!((all.new_flows_per_second.map(Into::into), all.per_source), (Some(10_000_000_u32), None));
    let each = limits("limits = { per_source = { new_flows_per_second = 1 } }");
    let source = each.per_source.unwrap();
    assert_eq!((source.new_flows_per_second.get(), source.v4_prefix, source.v6_prefix), (1, 32, 64));
    assert_eq!(each.to_string(), "1 new flows/s for each IPv4 /32 and IPv6 /64");
    let both = "limits = { new_flows_per_second = 9, per_source = { new_flows_per_second = 2, v4_prefix = 8, v6_prefix = 16 } }";
    assert_eq!(limits(both).to_string(), "9 new flows/s, 2 new flows/s for each IPv4 /8 and IPv6 /16");
}

#[test]
fn wrong_keys_are_refused_in_their_place() {
    let services = "services = [{ ports = [80], protocol = \"tcp\", pool = \"p\" }]\n";
    let rows: &[(&str, &str, &str, &str)] = &[
        (
            "allow = []",
            "vip.v.allow",
            "\"allow\" must not be empty",
            "for example [\"198.51.100.0/24\", \"2001:db8::1\"]",
        ),
        (
            "allow = \"198.18.0.0/15\"",
            "vip.v.allow",
            "\"allow\" must be a list of prefixes or addresses, got \"198.18.0.0/15\"",
            "for example [\"198.51.100.0/24\", \"2001:db8::1\"]",
        ),
        (
            "deny = [7]",
            "vip.v.deny[0]",
            "\"deny[0]\" must be an IP prefix or address, got 7",
            "for example \"198.51.100.0/24\"",
        ),
        (
            "deny = [\"office\"]",
            "vip.v.deny[0]",
            "\"deny[0]\" must be an IP prefix or address, got \"office\"",
            "for example \"198.51.100.0/24\"",
        ),
        (
            "deny = [\"::\", \"198.18.0.1/15\"]",
            "vip.v.deny[1]",
            "prefix 198.18.0.1/15 has host bits set",
            "write \"198.18.0.0/15\"",
        ),
        (
            "allow_files = []",
            "vip.v.allow_files",
            "\"allow_files\" must not be empty",
            "for example [\"lists/office.txt\"]",
        ),
        (
            "deny_files = [\"/etc/passwd\"]",
            "vip.v.deny_files[0]",
            "\"deny_files[0]\" must be a relative path to a file in this file's folder or below, without .., got \"/etc/passwd\"",
            "for example \"lists/office.txt\"",
        ),
        (
            "deny_files = [\"lists/../../x\"]",
            "vip.v.deny_files[0]",
            "\"deny_files[0]\" must be a relative path to a file in this file's folder or below, without .., got \"lists/../../x\"",
            "for example \"lists/office.txt\"",
        ),
        (
            "deny_files = [\"no such\"]",
            "vip.v.deny_files[0]",
            "cannot read \"etc/no such\" (no such file)",
            "",
        ),
        ("limits = 7", "vip.v.limits", "\"limits\" must be a table, got 7", "write { KEY = VALUE, ... }"),
        (
            "limits = {}",
            "vip.v.limits",
            "\"limits\" needs \"new_flows_per_second\", \"per_source\", or both",
            "add one of these keys, or remove limits",
        ),
        (
            "limits = { new_flows_per_second = 0 }",
            "vip.v.limits.new_flows_per_second",
            "\"new_flows_per_second\" must be between 1 and 10000000, got 0",
            "",
        ),
        (
            "limits = { new_flows_per_second = 10_000_001 }",
            "vip.v.limits.new_flows_per_second",
            "\"new_flows_per_second\" must be between 1 and 10000000, got 10000001",
            "",
        ),
        (
            "limits = { per_source = {} }",
            "vip.v.limits.per_source.new_flows_per_second",
            "[vip.v.limits.per_source] needs a \"new_flows_per_second\" key",
            "\"new_flows_per_second\" is a number from 1 to 10000000",
        ),
        (
            "limits = { per_source = { new_flows_per_second = 1, v4_prefix = 33 } }",
            "vip.v.limits.per_source.v4_prefix",
            "\"v4_prefix\" must be between 8 and 32, got 33",
            "",
        ),
        (
            "limits = { per_source = { new_flows_per_second = 1, v6_prefix = 15 } }",
            "vip.v.limits.per_source.v6_prefix",
            "\"v6_prefix\" must be between 16 and 128, got 15",
            "",
        ),
        (
            "limits = { burst = 1 }",
            "vip.v.limits",
            "\"limits\" needs \"new_flows_per_second\", \"per_source\", or both",
            "add one of these keys, or remove limits",
        ),
    ];
    for (keys, field, message, help) in rows {
        let text = BASE.replace(services, &format!("{services}{keys}\n"));
        let problems = all(&text);
        let shown: Vec<String> = problems.iter().map(printed).collect();
        let first = &problems[0];
        assert_eq!((first.line(), first.field.as_str()), (Some(17), *field), "{keys}: {shown:#?}");
        assert!(says(first, message, help), "{keys}: {shown:#?}");
        assert_eq!(problems.len(), 1 + usize::from(keys.contains("burst")), "{shown:#?}");
    }
}

#[test]
fn bad_list_line_is_named_without_secrets() {
    let bed = Bed::new();
    bed.list("a.txt", "198.18.0.0/15\n  198.51.100.1/24\nkeep out\n\n::ffff:192.0.2.1\n192.0.2.0/40 # x\n");
    let problems = bed.load("deny_files = [\"lists/a.txt\"]").unwrap_err();
    let expected = [
        "lists/a.txt:2:3: vip.v.deny_files[0]: prefix 198.51.100.1/24 has host bits set; help: write \"198.51.100.0/24\"",
        "lists/a.txt:3:1: vip.v.deny_files[0]: 8 characters that are not an address or prefix; help: write \
         one IP prefix or address per line, and begin comments with #",
        "lists/a.txt:5:1: vip.v.deny_files[0]: ::ffff:192.0.2.1 is an IPv4-mapped IPv6 address; help: write \"192.0.2.1\"",
        "lists/a.txt:6:1: vip.v.deny_files[0]: the prefix of 192.0.2.0 has an invalid length; help: use a length from 0 to 32",
    ];
    assert_eq!(problems, expected);
    bed.list("a.txt", [b"198.18.0.0/15\n\xff".as_slice(), &[0xc0; 9]].concat());
    let problems = bed.load("deny_files = [\"lists/a.txt\"]").unwrap_err();
    assert!(
        problems[0].starts_with("lists/a.txt:2:1: ") && problems[0].contains("not UTF-8"),
        "{problems:?}"
    );
    let key = bed.load("deny_files = [\"k\"]").unwrap_err().join("\n");
    assert!(!key.contains(KEY) && key.contains("32 characters"), "{key}");
    bed.list("a.txt", "x\n".repeat(1_000));
    let problems = bed.load("deny_files = [\"lists/a.txt\"]").unwrap_err();
    assert_eq!(problems.len(), 20);
    assert!(
        problems[19].contains("lists/a.txt:20:1: ")
            && problems[19].contains("further lines of this file are not checked"),
        "{problems:?}"
    );
}

#[test]
fn empty_allow_list_is_refused() {
    let bed = Bed::new();
    bed.list("a.txt", "# \n");
    let problems = bed.load("allow_files = [\"lists/a.txt\"]").unwrap_err();
    assert_eq!(problems.len(), 1, "{problems:?}");
    assert!(
        problems[0].contains("vip.v.allow_files: \"allow_files\" has no prefix; help: add a prefix; without one, the VIP would serve no client"),
        "{problems:?}"
    );
}

#[test]
fn endless_files_folders_and_pipes_are_refused() {
    let bed = Bed::new();
    let refused = |part: &str| {
        let problems = bed.load("deny_files = [\"lists/a.txt\"]").unwrap_err();
        assert!(problems.len() == 1 && problems[0].contains(part), "{part}: {problems:?}");
    };
    let path = bed.0.0.join("lists/a.txt");
    fs::create_dir(&path).unwrap();
    refused("(not a regular file)");
    fs::remove_dir(&path).unwrap();
    nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).unwrap();
    refused("(not a regular file)");
    fs::remove_file(&path).unwrap();
    symlink("/dev/zero", &path).unwrap();
    refused("(not a regular file)");
    fs::remove_file(&path).unwrap();
    fs::File::create(&path).unwrap().set_len((64 << 20) + 1).unwrap();
    refused("all lists together are larger than 64 MiB");
}

#[test]
fn a_million_lines_are_read_and_one_more_in_any_list_is_refused() {
    let bed = Bed::new();
    let line = |n: u32| format!("{}\n", std::net::Ipv4Addr::from_bits(0xc612_0000 + n));
    bed.list("a.txt", (0..600_000).map(line).collect::<String>());
    bed.list("b.txt", (0..400_000).map(line).collect::<String>());
    let config = bed.load("deny_files = [\"lists/a.txt\"]\nallow_files = [\"lists/b.txt\"]").unwrap();
    assert_eq!(config.vips()[0].guard.deny.as_ref().map(SourceList::len), Some(600_000));
    bed.list("b.txt", (0..400_001).map(line).collect::<String>());
    let problems = bed.load("deny_files = [\"lists/a.txt\"]\nallow_files = [\"lists/b.txt\"]").unwrap_err();
    assert!(problems.len() == 1 && problems[0].contains("more than 1,000,000 lines"), "{problems:?}");
}

#[test]
fn list_is_one_source_even_if_named_twice() {
    let bed = Bed::new();
    let list = bed.list("a.txt", "198.18.0.0/15\n");
    symlink("a.txt", bed.0.0.join("lists/same.txt")).unwrap();
    let keys = "deny_files = [\"lists/a.txt\", \"lists/same.txt\"]\n[vip.w]\naddresses = [\"203.0.113.2\"]\n\
                services = [{ ports = [80], protocol = \"tcp\", pool = \"p\" }]\ndeny_files = [\"lists/a.txt\"]";
    let before = bed.load(keys).unwrap();
    let [toml, source] = before.sources() else { panic!("{:?}", before.sources()) };
    assert_eq!((toml.is_list(), source.is_list(), source.path()), (false, true, list.as_path()));
    assert!(toml.is_unchanged() && source.is_unchanged());
    bed.list("a.txt", "198.18.0.0/15 # both\n");
    let commented = bed.load(keys).unwrap();
    assert!(!before.sources()[1].is_unchanged() && commented.sources()[1].is_unchanged());
    assert!(
        before == commented && before.digest() != commented.digest(),
        "the files differ, but their entries are equal"
    );
    bed.list("a.txt", "198.18.0.0/16\n");
    let other = bed.load(keys).unwrap();
    assert_ne!(before, other);
    bed.list("a.txt", "198.18.0.0/15\n");
    let again = bed.load(keys).unwrap();
    assert_eq!((&before, before.digest()), (&again, again.digest()));
    assert!(before.sources()[1].is_unchanged(), "the same content was written again");
}

#[test]
fn confined_configuration_reads_lists_of_its_folder() {
    let bed = Bed::new();
    let secret = bed.0.write("secret", "198.18.0.0/15\n", 0o644);
    fs::create_dir(bed.0.0.join("etc")).unwrap();
    for (name, target) in [("out.txt", "../secret"), ("in.txt", "list.txt"), ("lists", "../lists")] {
        symlink(target, bed.0.0.join("etc").join(name)).unwrap();
    }
    bed.0.write("etc/list.txt", "198.18.0.0/15\n", 0o644);
    bed.list("beyond.txt", "198.18.0.0/15\n");
    let file = bed.0.0.join("etc/a.toml");
    let text = |name: &str| format!("{BASE}deny_files = [\"{name}\"]\n");
    let put = |name: &str| {
        let put = parse_confined(&text(name), &file, &|_| Ok(KEY.to_owned()));
        put.map(|(config, _)| prefixes(config.vips()[0].guard.deny.as_ref()))
            .map_err(|problems| all_printed(&problems))
    };
    for good in ["list.txt", "./list.txt", "in.txt"] {
        assert_eq!(put(good), Ok(vec!["198.18.0.0/15".to_owned()]), "{good}");
    }
    for bad in ["out.txt", "lists/beyond.txt"] {
        let problem = put(bad).unwrap_err();
        assert!(problem.contains("is outside the configuration's folder"), "{problem}");
        assert!(!problem.contains("198.18"), "{problem}");
        // If the configuration is not sent by a client, any file is allowed, because only its owner
        // can change the configuration.
        assert!(parse(&text(bad), &file, &|_| Ok(KEY.to_owned())).is_ok(), "{bad}");
    }
    let above = put("../secret").unwrap_err();
    assert!(above.contains("without .."), "{above} {}", secret.display());
}

#[test]
fn any_bytes_are_a_list_or_refused() {
    use proptest::prelude::*;
    let bed = Bed::new();
    let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig::with_cases(64));
    let piece = prop_oneof![
        prop::collection::vec(any::<u8>(), 0..8),
        prop::sample::select(vec![
            b"\n".to_vec(),
            b"198.18.0.0/15".to_vec(),
            b"::/0".to_vec(),
            b"#".to_vec(),
            b"/".to_vec()
        ]),
    ];
    let strategy = prop::collection::vec(piece, 0..20).prop_map(|pieces| pieces.concat());
    runner
        .run(&strategy, |bytes| {
            bed.list("a.txt", &bytes);
            if let Err(problems) = bed.load("deny_files = [\"lists/a.txt\"]") {
                prop_assert!(
                    problems.iter().all(|problem| problem.contains("lists/a.txt:")),
                    "{:?}",
                    problems
                );
            }
            Ok(())
        })
        .unwrap();
}
