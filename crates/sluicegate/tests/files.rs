//! Tests subcommands that only read files and do not need a running balancer.

#![expect(clippy::unwrap_used, reason = "a panic fails the test")]

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::{env, fs, process};

use serde_json::{Value, json};

struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let folder = Self(env::temp_dir().join(format!("sluicegate-files-{}-{number}", process::id())));
        fs::create_dir_all(&folder.0).unwrap();
        folder.secret("hash.key", "000102030405060708090a0b0c0d0e0f\n", 0o600);
        folder
    }

    fn write(&self, name: &str, text: &str) -> String {
        fs::write(self.0.join(name), text).unwrap();
        self.0.join(name).to_str().unwrap().to_owned()
    }

    fn secret(&self, name: &str, text: &str, mode: u32) {
        self.write(name, text);
        fs::set_permissions(self.0.join(name), fs::Permissions::from_mode(mode)).unwrap();
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Runs a subcommand and returns its exit code and output.
fn sluicegate(arguments: &[&str]) -> (i32, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_sluicegate")).args(arguments).output().unwrap();
    let text = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
    (output.status.code().unwrap(), text)
}

fn config(machine: &str, more: &str) -> String {
    format!(
        "[cluster]\nname = \"fra1\"\nhash_key_file = \"hash.key\"\n\
         [machine.{machine}]\naddresses = [\"192.0.2.1\"]\ninterfaces = [\"eth0\"]\n\
         [pool.web]\nchecks = []\nbackends = [{{ name = \"b1\", address = \"198.18.1.1\" }}]\n\
         [vip.www]\naddresses = [\"203.0.113.10\"]\nservices = [{{ ports = [80], protocol = \"tcp\", pool = \"web\" }}]\n{more}"
    )
}

#[test]
fn a_machine_under_another_name_is_compared_with_itself() {
    let folder = Folder::new();
    let peer = |machine: &str| {
        format!(
            "announce = {{ backups = [\"{machine}\"] }}\n[[bgp.peers]]\naddress = \"192.0.2.0\"\nasn = 65000\nmachines = [\"{machine}\"]\n[bgp]\nasn = 65101\n"
        )
    };
    let old = folder.write("old.toml", &config("lb1", &peer("lb1")));
    let new = folder.write("new.toml", &config("edge1", &peer("edge1")));
    let called = "machine lb1: renamed to edge1, with the same addresses";
    assert_eq!(sluicegate(&["config", "diff", &old, &new]), (0, format!("machine edge1:\n  {called}\n")));
    for name in ["lb1", "edge1"] {
        let (code, text) = sluicegate(&["config", "diff", &old, &new, "--machine", name, "--json"]);
        let said: Value = serde_json::from_str(&text).unwrap();
        assert_eq!((code, &said["removed"]), (0, &json!([])), "{text}");
        let row = &said["machines"][0];
        assert_eq!(row["machine"], "edge1");
        assert_eq!(
            (&row["changed"], &row["needs_restart"]),
            (&json!([called]), &json!(["machine: lb1 -> edge1"]))
        );
    }
    let more = config("edge1", &peer("edge1"))
        .replace("[80]", "[80, 443]")
        .replace("\"198.18.1.1\" }", "\"198.18.1.1\" }, { name = \"b2\", address = \"198.18.1.2\" }");
    let more = folder.write("more.toml", &more);
    let (_, text) = sluicegate(&["config", "diff", &old, &more]);
    assert!(
        text.contains(called) && text.contains("backend b2 added") && !text.contains("bgp peer"),
        "{text}"
    );
    assert!(!text.contains("lb1: removed") && !text.contains("edge1: added"), "{text}");
}

#[test]
fn pipes_and_standard_input_are_read_like_files() {
    let folder = Folder::new();
    folder.write("old.toml", &config("lb1", ""));
    folder.write("new.toml", &config("lb1", "").replace("[80]", "[80, 443]"));
    // The key file is relative to the working directory, because a pipe has no folder.
    let shell = |line: &str| {
        let line = line.replace("PROGRAM", env!("CARGO_BIN_EXE_sluicegate"));
        let output = Command::new("bash").args(["-c", &line]).current_dir(&folder.0).output().unwrap();
        let text = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
        (output.status.code().unwrap(), text)
    };
    for line in [
        "PROGRAM config check <(cat old.toml)",
        "cat old.toml | PROGRAM config check -",
        "cat old.toml | PROGRAM config check /dev/stdin",
        "PROGRAM config check - < old.toml",
    ] {
        let (code, text) = shell(line);
        assert_eq!((code, text.contains(": no problem found\nlb1: VIPs 1,")), (0, true), "{line}: {text}");
    }
    for line in [
        "PROGRAM config diff <(cat old.toml) <(cat new.toml)",
        "PROGRAM config diff old.toml - < new.toml",
        "cat old.toml | PROGRAM config diff /dev/stdin new.toml",
    ] {
        let (code, text) = shell(line);
        assert_eq!((code, text.contains("service www tcp 80,443: added")), (0, true), "{line}: {text}");
    }
    let (code, text) = shell("PROGRAM config check <(echo '[cluster')");
    assert_eq!((code, text.contains("/dev/fd/")), (1, true), "{text}");
}

#[test]
fn machines_that_come_and_go_are_named_by_whichever_name() {
    let folder = Folder::new();
    let old = folder.write("old.toml", &config("lb1", ""));
    let new = folder.write("new.toml", &config("lb2", "").replace("192.0.2.1", "192.0.2.9"));
    let both = "machine lb1: removed\nmachine lb2:\n  machine lb2: added\n";
    assert_eq!(sluicegate(&["config", "diff", &old, &new]), (0, both.to_owned()));
    let (code, text) = sluicegate(&["config", "diff", &old, &new, "--machine", "lb1"]);
    assert_eq!((code, text.contains("machine lb1: removed")), (0, true), "{text}");
    let (code, text) = sluicegate(&["config", "diff", &old, &new, "--machine", "lb7"]);
    assert!(code != 0 && text.contains("lb7"), "{text}");
}

#[test]
fn where_names_fallback_cluster() {
    let folder = Folder::new();
    let remote = "remotes = [\"fra2\"]\n[remote.fra2]\nsources = [\"198.51.100.96/28\"]\naddresses = { www = [\"203.0.113.74\"] }\n";
    let flow = ["192.0.2.77:1234", "203.0.113.10:80", "tcp", "--config"];
    let asked = |file: &str, more: &[&str]| sluicegate(&[&["where"], &flow[..], &[file], more].concat());
    let file = folder.write("a.toml", &config("lb1", remote));
    let (code, text) = asked(&file, &[]);
    assert_eq!(code, 0, "{text}");
    assert!(text.contains("  backend  b1 at 198.18.1.1 by gre\n"), "{text}");
    assert!(
        text.contains(
            "  else     cluster fra2 at 203.0.113.74 by gre, if no backend of pool web is serving\n"
        ),
        "{text}"
    );
    assert!(text.contains("use --live for the current states"), "{text}");
    let said: Value = serde_json::from_str(&asked(&file, &["--json"]).1).unwrap();
    assert_eq!((&said["step"], &said["elsewhere"]["name"]), (&json!("maglev"), &json!("fra2")));
    // If all weights are 0, the flow goes to the other cluster, as on a running machine.
    let none = folder
        .write("b.toml", &config("lb1", remote).replace("\"198.18.1.1\" }", "\"198.18.1.1\", weight = 0 }"));
    let (code, text) = asked(&none, &[]);
    assert_eq!((code, text.contains("  cluster  fra2 at 203.0.113.74 by gre\n")), (0, true), "{text}");
    assert!(!text.contains("else"), "{text}");
    let plain = folder.write("c.toml", &config("lb1", ""));
    assert!(!asked(&plain, &[]).1.contains("else"));
    let said: Value = serde_json::from_str(&asked(&plain, &["--json"]).1).unwrap();
    assert_eq!(said["elsewhere"], Value::Null);
}

#[test]
fn where_names_the_reply_to_rejected_packets() {
    let folder = Folder::new();
    let config = |keys: &str| config("lb1", keys).replace("\"198.18.1.1\" }", "\"198.18.1.1\", weight = 0 }");
    let drops = folder.write("a.toml", &config(""));
    let rejects = "on_unserved_port = \"reject\"\non_no_backend = \"reject\"\n";
    let rejects = folder.write("b.toml", &config(rejects));
    for (port, protocol, reason, reply) in [
        ("80", "tcp", "no_backend", "a TCP reset"),
        ("81", "tcp", "no_vip", "a TCP reset"),
        ("81", "udp", "no_vip", "the ICMP error \"port unreachable\""),
        ("81", "sctp", "no_vip", "an SCTP ABORT"),
    ] {
        let vip = format!("203.0.113.10:{port}");
        let asked = |file: &str, more: &[&str]| {
            sluicegate(&[&["where", "192.0.2.77:1234", &vip, protocol, "--config", file], more].concat())
        };
        let (code, text) = asked(&drops, &[]);
        assert_eq!((code, text.contains(&format!("  dropped  {reason}: "))), (1, true), "{text}");
        let (code, text) = asked(&rejects, &[]);
        assert_eq!((code, text.contains(&format!("  rejected {reason}: "))), (1, true), "{text}");
        assert!(text.contains(&format!("  reply    {reply} from the VIP, within the rate limits")), "{text}");
        // An error message follows the JSON value.
        let json = asked(&rejects, &["--json"]).1;
        let said = serde_json::Deserializer::from_str(&json).into_iter::<Value>().next().unwrap().unwrap();
        assert_eq!((&said["verdict"], &said["rejection"]["reason"]), (&json!("reject"), &json!(reason)));
    }
}

#[test]
fn the_doctor_names_a_peers_key_that_will_not_do() {
    let folder = Folder::new();
    let peer = "announce = {}\n[bgp]\nasn = 65101\npeers = [{ address = \"192.0.2.0\", asn = 65000, password_file = \"bgp.key\" }]\n";
    let file = folder.write("a.toml", &config("lb1", peer));
    for (text, mode, words) in [
        ("s3cret\n", 0o644, "bgp.key\" can be read by other users (mode 0644)"),
        (
            "s3cret\nother\n",
            0o600,
            "the secret of \"password_file\" has 2 lines and 12 characters, and is not a valid key",
        ),
    ] {
        folder.secret("bgp.key", text, mode);
        let (code, said) = sluicegate(&["doctor", "--json", "--machine", "lb1", "--config", &file]);
        let said: Value = serde_json::from_str(&said).unwrap();
        let finding = &said["findings"][0];
        assert_eq!(
            (code, &finding["id"], &finding["level"]),
            (1, &json!("config"), &json!("error")),
            "{said:#}"
        );
        let what = finding["what"].as_str().unwrap();
        assert!(what.contains("a.toml:16:64: ") && what.contains(words), "{what}");
        assert!(!what.contains("s3cret"), "{what}");
    }
}

#[test]
fn imported_ipvs_rules_pass_config_check() {
    let folder = Folder::new();
    let rules = "-A -t 203.0.113.10:80 -s mh\n-a -t 203.0.113.10:80 -r 198.18.1.1:80 -i -w 1\n";
    let file = folder.write("rules", rules);
    let words = "rules:1: different: -s mh uses a different hash table here, so a client may get a different backend than before\n";
    let of = |arguments: &[&str], input: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_sluicegate"));
        command.args(arguments).stdin(process::Stdio::piped());
        let mut child =
            command.stdout(process::Stdio::piped()).stderr(process::Stdio::piped()).spawn().unwrap();
        std::io::Write::write_all(&mut child.stdin.take().unwrap(), input.as_bytes()).unwrap();
        let output = child.wait_with_output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
    };
    let (code, toml, said) = of(&["config", "import", "ipvs", &file], "");
    assert_eq!((code, said.ends_with(words)), (0, true), "{said}");
    assert_eq!(of(&["config", "import", "ipvs"], rules).1, toml);
    let (code, text) = sluicegate(&["config", "check", &folder.write("lb.toml", &toml)]);
    assert_eq!((code, text.contains("no problem found")), (0, true), "{text}");
    // If a rule is left out, only the exit code changes. If a rule is invalid, no configuration is
    // printed.
    let (code, more, said) = of(&["config", "import", "ipvs", "-"], &format!("{rules}-A -f 1\n"));
    assert_eq!((code, more.contains("[vip.203-0-113-10]")), (1, true), "{said}");
    assert!(said.contains("standard input:3: left out: firewall mark 1"), "{said}");
    let (code, nothing, said) = of(&["config", "import", "ipvs"], "-A -t www:http\n");
    assert_eq!((code, nothing.as_str()), (1, ""), "{said}");
    assert!(said.contains("standard input:1:7: invalid value \"www:http\" for -t"), "{said}");
}
