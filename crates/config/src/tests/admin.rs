//! `[admin]`: sockets, addresses, certificates and the key.

use std::fs;
use std::path::Path;

use super::files::Folder;
use super::{BASE, KEY, Row, check, parsed};
use crate::{Config, Problems, load, load_without_secrets, parse};

pub(super) const CERTIFICATE: &str =
    "-----BEGIN CERTIFICATE-----\nYSBjZXJ0aWZpY2F0ZQ==\n-----END CERTIFICATE-----\n";
pub(super) const PRIVATE: &str =
    "-----BEGIN PRIVATE KEY-----\nYSBwcml2YXRlIGtleQ==\n-----END PRIVATE KEY-----\n";
const TCP: &str = "[admin]\ntcp = { listen = [\"192.0.2.1:9851\", \"[2001:db8::1]:9851\"], certificate_file = \"c.pem\", \
                   key_file = \"k.pem\", client_ca_file = \"ca.pem\" }\n";

/// A folder with the base and `admin`, and all that TCP needs.
fn folder(admin: &str) -> Folder {
    let folder = Folder::new();
    folder.write("a.toml", format!("{BASE}{admin}"), 0o644);
    folder.write("k", KEY, 0o600);
    folder.write("c.pem", CERTIFICATE.repeat(2), 0o644);
    folder.write("ca.pem", CERTIFICATE, 0o644);
    folder.write("k.pem", PRIVATE, 0o600);
    folder
}

fn loaded(folder: &Folder) -> Result<(Config, Problems), Problems> {
    load(&folder.0.join("a.toml"))
}

#[test]
fn everything_of_admin_arrives() {
    let keys = "socket = { path = \"/run/a.sock\", group = \"ops-1\", mode = \"0660\" }\nput = true\n\
                metrics = [\"0.0.0.0:9850\", \"[::1]:9850\"]\nmetrics_hosts = [\"LB1.example\", \"*.example.net\"]\n";
    let folder = folder(&TCP.replace("[admin]\n", &format!("[admin]\n{keys}")));
    let (config, warnings) = loaded(&folder).unwrap();
    assert_eq!(warnings.to_string(), "");
    let admin = config.admin();
    let socket = admin.socket.as_ref().unwrap();
    assert_eq!((&*socket.path, socket.group.as_deref()), (Path::new("/run/a.sock"), Some("ops-1")));
    assert_eq!((socket.mode, admin.put), (0o660, true));
    assert_eq!(admin.metrics, ["0.0.0.0:9850", "[::1]:9850"].map(|address| address.parse().unwrap()));
    assert_eq!(admin.metrics_hosts, ["lb1.example", "*.example.net"].map(std::sync::Arc::from));
    let tcp = admin.tcp.as_ref().unwrap();
    assert_eq!(tcp.listen, ["192.0.2.1:9851", "[2001:db8::1]:9851"].map(|address| address.parse().unwrap()));
    assert_eq!((&*tcp.certificates, &*tcp.client_ca), (&*CERTIFICATE.repeat(2), CERTIFICATE));
    assert_eq!(tcp.key.pem(), PRIVATE);
    assert_eq!((tcp.operate.len(), tcp.configure.len()), (0, 0), "all may read, none operates");
    let shown = format!("{config:?}");
    assert!(shown.contains("PrivateKey(redacted)") && !shown.contains("YSBwcml2"), "{shown}");
}

#[test]
fn without_keys_the_defaults_hold() {
    for text in [BASE.to_owned(), format!("{BASE}[admin]\n"), format!("{BASE}[admin]\nmetrics = []\n")] {
        let (config, _) = parsed(&text).unwrap();
        let admin = config.admin();
        let usual = crate::AdminSocket {
            path: "/run/sluicegate/admin.sock".into(),
            group: None,
            mode: 0o600,
            is_default: true,
        };
        assert!(admin.socket == Some(usual) && admin.tcp.is_none());
        assert!(!admin.put && admin.metrics.is_empty());
    }
    let (config, _) = parsed(&format!("{BASE}[admin]\nsocket = {{ path = \"/a\" }}\n")).unwrap();
    let socket = config.admin().socket.as_ref().unwrap();
    assert_eq!((socket.group.as_ref(), socket.mode, socket.is_default), (None, 0o600, false));
    let (config, _) = parsed(&format!("{BASE}[admin]\nsocket = false\n")).unwrap();
    assert_eq!(config.admin().socket, None);
}

#[test]
fn admin_is_checked() {
    const ROWS: &[Row] = &[
        (
            "[io]",
            "[admin]\nsocket = true\n[io]",
            &[(8, "admin.socket", "true", "a table, or false for none")],
        ),
        (
            "[io]",
            "[admin]\nsocket = { path = \"/run/a\", group = \"0\" }\nput = 1\nmetrics = \"x\"\n[io]",
            &[
                (8, "admin.socket.group", "\"0\"", "name of a group, not its number"),
                (9, "admin.put", "1", "true or false"),
                (10, "admin.metrics", "\"x\"", "a list of addresses with ports"),
            ],
        ),
        (
            "[io]",
            "[admin]\nmetrics_hosts = [\"\", \"*\", \"a..b\", \"lb1:9850\", \"192.0.2.1\", 7]\n[io]",
            &[
                (8, "admin.metrics_hosts[0]", "\"\"", "a host name"),
                (8, "admin.metrics_hosts[1]", "\"*\"", ""),
                (8, "admin.metrics_hosts[2]", "\"a..b\"", ""),
                (8, "admin.metrics_hosts[3]", "\"lb1:9850\"", ""),
                (8, "admin.metrics_hosts[4]", "\"192.0.2.1\"", "addresses are allowed anyway"),
                (8, "admin.metrics_hosts[5]", "7", ""),
            ],
        ),
        (
            "[io]",
            "[admin]\nmetrics = [\"192.0.2.1\", \"192.0.2.1:0\", \"224.0.0.1:1\", \"lb1.example:9850\", \"2001:db8::1:9850\", 9850, \"192.0.2.1:1\", \"192.0.2.1:1\"]\n[io]",
            &[
                (8, "admin.metrics[0]", "\"192.0.2.1\"", "an address with a port"),
                (8, "admin.metrics[1]", "\"192.0.2.1:0\"", ""),
                (8, "admin.metrics[2]", "\"224.0.0.1:1\"", ""),
                (8, "admin.metrics[3]", "\"lb1.example:9850\"", ""),
                (8, "admin.metrics[4]", "\"2001:db8::1:9850\"", ""),
                (8, "admin.metrics[5]", "9850", ""),
                (8, "admin.metrics[7]", "192.0.2.1:1, which is also admin.metrics[6] in line 8", "once"),
            ],
        ),
        (
            "[io]",
            "[admin]\ntcp = {}\n[io]",
            &[
                (8, "admin.tcp.certificate_file", "nothing", "certificate in PEM"),
                (8, "admin.tcp.client_ca_file", "nothing", "CA of the clients"),
                (8, "admin.tcp.key_file", "nothing", "private key"),
                (8, "admin.tcp.listen", "nothing", "a list of addresses"),
            ],
        ),
        (
            "[io]",
            "[admin]\ntcp = { operate = [\"alice\", 1, \"\"], configure = [\"Alice\", \"a\\n\"] }\n[io]",
            &[
                (8, "admin.tcp.certificate_file", "nothing", ""),
                (8, "admin.tcp.client_ca_file", "nothing", ""),
                (8, "admin.tcp.key_file", "nothing", ""),
                (8, "admin.tcp.listen", "nothing", ""),
                (8, "admin.tcp.operate[1]", "1", "a name as a certificate has it"),
                (8, "admin.tcp.operate[2]", "\"\"", ""),
                (
                    8,
                    "admin.tcp.configure[0]",
                    "\"Alice\", which is also admin.tcp.operate[0] in line 8",
                    "once",
                ),
                (8, "admin.tcp.configure[1]", "\"a\\n\"", "a name as a certificate has it"),
            ],
        ),
        (
            "[io]",
            "[admin]\nhttp = {}\n[io]",
            &[(8, "admin.http", "unknown", "metrics, metrics_hosts, put, socket, tcp")],
        ),
    ];
    check(ROWS);
}

#[test]
fn a_wrong_certificate_or_key_is_a_problem_of_the_configuration() {
    let folder = folder(TCP);
    assert!(loaded(&folder).is_ok());
    let refused = |file: &str, content: &str, mode: u32, field: &str, part: &str| {
        let before = fs::read_to_string(folder.0.join(file)).unwrap();
        folder.write(file, content, mode);
        let problems = loaded(&folder).unwrap_err();
        let [problem] = &problems.iter().collect::<Vec<_>>()[..] else { panic!("{problems}") };
        assert_eq!((problem.field.as_str(), problem.line()), (field, Some(18)), "{problems}");
        assert!(problem.to_string().contains(part), "{part:?} not in {problems}");
        assert!(!problem.to_string().contains("YSBw"), "{problems}");
        folder.write(file, before, if file == "k.pem" { 0o600 } else { 0o644 });
    };
    refused("k.pem", PRIVATE, 0o640, "admin.tcp.key_file", "mode 0640, which others can read");
    refused("k.pem", CERTIFICATE, 0o600, "admin.tcp.key_file", "characters, which is no key");
    refused("k.pem", "", 0o600, "admin.tcp.key_file", "a private key in PEM");
    refused("c.pem", PRIVATE, 0o644, "admin.tcp.certificate_file", "c.pem\": no certificate");
    refused(
        "c.pem",
        &CERTIFICATE.replace("YS", "??"),
        0o644,
        "admin.tcp.certificate_file",
        "a broken certificate,",
    );
    refused("ca.pem", "", 0o644, "admin.tcp.client_ca_file", "no certificate");
    refused("ca.pem", &"#".repeat((1 << 20) + 1), 0o644, "admin.tcp.client_ca_file", "over 1 MiB");
    fs::remove_file(folder.0.join("ca.pem")).unwrap();
    assert!(loaded(&folder).unwrap_err().to_string().contains("ca.pem\": no such file"));
}

#[test]
fn a_machine_without_secrets_checks_all_the_rest() {
    let folder = folder(TCP);
    for file in ["k", "k.pem", "c.pem", "ca.pem"] {
        fs::remove_file(folder.0.join(file)).unwrap();
    }
    assert_eq!(loaded(&folder).unwrap_err().len(), 4);
    let (config, warnings) = load_without_secrets(&folder.0.join("a.toml")).unwrap();
    assert_eq!((warnings.len(), config.cluster().hash_key.bytes()), (0, &[0; 16]));
    folder.write("a.toml", format!("{BASE}{TCP}").replace("\"k\"", "\"credential:..\""), 0o644);
    let problems = load_without_secrets(&folder.0.join("a.toml")).unwrap_err();
    assert!(problems.to_string().contains("an impossible credential name"), "{problems}");
}

#[test]
fn a_machine_listens_on_no_other_machines_address() {
    let text = format!(
        "{BASE}[machine.lb2]\naddresses = [\"192.0.2.2\"]\ninterfaces = [\"eth0\"]\n[admin]\n\
         metrics = [\"192.0.2.1:1\", \"192.0.2.2:1\", \"0.0.0.0:2\", \"127.0.0.1:1\", \"192.0.2.9:1\"]\n"
    );
    let (config, _) = parse(&text, Path::new("a.toml"), &|_| Ok(KEY.to_owned())).unwrap();
    let on = |name: &str| {
        let machine = config.machine(name).unwrap();
        let all = config.admin().metrics.iter();
        all.map(|address| config.listens(machine, *address)).collect::<Vec<_>>()
    };
    assert_eq!(on("lb1"), [true, false, true, true, true]);
    assert_eq!(on("lb2"), [false, true, true, true, true]);
}
