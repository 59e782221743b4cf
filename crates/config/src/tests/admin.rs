//! Tests of `[admin]`: sockets, addresses, certificates and the key.

use std::fs;
use std::path::Path;

use super::files::Folder;
use super::{BASE, KEY, Row, all_printed, check, parsed, printed, without_unchecked};
use crate::{Config, Problems, load, load_without_secrets, parse};

pub(super) const CERTIFICATE: &str =
    "-----BEGIN CERTIFICATE-----\nYSBjZXJ0aWZpY2F0ZQ==\n-----END CERTIFICATE-----\n";
pub(super) const PRIVATE: &str =
    "-----BEGIN PRIVATE KEY-----\nYSBwcml2YXRlIGtleQ==\n-----END PRIVATE KEY-----\n";
const TCP: &str = "[admin]\ntcp = { listen = [\"192.0.2.1:9851\", \"[2001:db8::1]:9851\"], certificate_file = \"c.pem\", \
                   key_file = \"k.pem\", client_ca_file = \"ca.pem\" }\n";

/// Creates a folder with the base configuration, the section `admin`, and all files for the TCP
/// interface.
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
    let loaded = load(&folder.0.join("a.toml"));
    loaded.map(|(config, all)| (config, without_unchecked(&all))).map_err(|all| without_unchecked(&all))
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
    assert_eq!((tcp.operate.len(), tcp.configure.len()), (0, 0), "every client may read, but not operate");
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
            &[(8, "admin.socket", "\"socket\" must be a table or false, got true", "")],
        ),
        (
            "[io]",
            "[admin]\nsocket = { path = \"/run/a\", group = \"0\" }\nput = 1\nmetrics = \"x\"\n[io]",
            &[
                (
                    8,
                    "admin.socket.group",
                    "\"group\" must be the name of a group, not its number, got \"0\"",
                    "for example \"adm\"",
                ),
                (9, "admin.put", "\"put\" must be true or false, got 1", ""),
                (
                    10,
                    "admin.metrics",
                    "\"metrics\" must be a list of addresses with ports, got \"x\"",
                    "for example [\"192.0.2.1:9851\", \"[2001:db8::1]:9851\"]",
                ),
            ],
        ),
        (
            "[io]",
            "[admin]\nmetrics_hosts = [\"\", \"*\", \"a..b\", \"lb1:9850\", \"192.0.2.1\", 7]\n[io]",
            &[
                (
                    8,
                    "admin.metrics_hosts[0]",
                    "\"metrics_hosts[0]\" must be a host name without a port, or `*.` and a domain, got \"\"",
                    "for example \"*.example.net\"",
                ),
                (
                    8,
                    "admin.metrics_hosts[1]",
                    "\"metrics_hosts[1]\" must be a host name without a port, or `*.` and a domain, got \"*\"",
                    "for example \"*.example.net\"",
                ),
                (
                    8,
                    "admin.metrics_hosts[2]",
                    "\"metrics_hosts[2]\" must be a host name without a port, or `*.` and a domain, got \"a..b\"",
                    "for example \"*.example.net\"",
                ),
                (
                    8,
                    "admin.metrics_hosts[3]",
                    "\"metrics_hosts[3]\" must be a host name without a port, or `*.` and a domain, got \"lb1:9850\"",
                    "for example \"*.example.net\"",
                ),
                (
                    8,
                    "admin.metrics_hosts[4]",
                    "\"metrics_hosts[4]\" must be a host name without a port, or `*.` and a domain, got \"192.0.2.1\"",
                    "for example \"*.example.net\"",
                ),
                (
                    8,
                    "admin.metrics_hosts[5]",
                    "\"metrics_hosts[5]\" must be a host name without a port, or `*.` and a domain, got 7",
                    "for example \"*.example.net\"",
                ),
            ],
        ),
        (
            "[io]",
            "[admin]\nmetrics = [\"192.0.2.1\", \"192.0.2.1:0\", \"224.0.0.1:1\", \"lb1.example:9850\", \"2001:db8::1:9850\", 9850, \"192.0.2.1:1\", \"192.0.2.1:1\"]\n[io]",
            &[
                (
                    8,
                    "admin.metrics[0]",
                    "\"metrics[0]\" must be an IP address with a port, got \"192.0.2.1\"",
                    "for example \"192.0.2.1:9851\"",
                ),
                (8, "admin.metrics[1]", "\"192.0.2.1:0\" has port 0", "use a port from 1 to 65535"),
                (8, "admin.metrics[2]", "\"224.0.0.1:1\" is a multicast address", ""),
                (
                    8,
                    "admin.metrics[3]",
                    "\"metrics[3]\" must be an IP address with a port, got \"lb1.example:9850\"",
                    "for example \"192.0.2.1:9851\"",
                ),
                (
                    8,
                    "admin.metrics[4]",
                    "\"metrics[4]\" must be an IP address with a port, got \"2001:db8::1:9850\"",
                    "for example \"192.0.2.1:9851\"",
                ),
                (
                    8,
                    "admin.metrics[5]",
                    "\"metrics[5]\" must be an IP address with a port, got 9850",
                    "for example \"192.0.2.1:9851\"",
                ),
                (
                    8,
                    "admin.metrics[7]",
                    "listen address 192.0.2.1:1 is used twice",
                    "the first use is admin.metrics[6] on line 8",
                ),
            ],
        ),
        (
            "[io]",
            "[admin]\ntcp = {}\n[io]",
            &[
                (
                    8,
                    "admin.tcp.certificate_file",
                    "[admin.tcp] needs a \"certificate_file\" key",
                    "\"certificate_file\" is a file with the certificate of the server in PEM, for example certificate_file = \"admin.pem\"",
                ),
                (
                    8,
                    "admin.tcp.client_ca_file",
                    "[admin.tcp] needs a \"client_ca_file\" key",
                    "\"client_ca_file\" is a file with the CA certificates of the clients in PEM, for example client_ca_file = \"ca.pem\"",
                ),
                (
                    8,
                    "admin.tcp.key_file",
                    "[admin.tcp] needs a \"key_file\" key",
                    "\"key_file\" is a PEM file that contains the private key for the certificate, for example key_file = \"secrets/admin.key\"",
                ),
                (
                    8,
                    "admin.tcp.listen",
                    "[admin.tcp] needs a \"listen\" key",
                    "\"listen\" is a list of addresses with ports, for example listen = [\"192.0.2.1:9851\", \"[2001:db8::1]:9851\"]",
                ),
            ],
        ),
        (
            "[io]",
            "[admin]\ntcp = { operate = [\"alice\", 1, \"\"], configure = [\"Alice\", \"a\\n\"] }\n[io]",
            &[
                (
                    8,
                    "admin.tcp.certificate_file",
                    "[admin.tcp] needs a \"certificate_file\" key",
                    "\"certificate_file\" is a file with the certificate of the server in PEM, for example certificate_file = \"admin.pem\"",
                ),
                (
                    8,
                    "admin.tcp.client_ca_file",
                    "[admin.tcp] needs a \"client_ca_file\" key",
                    "\"client_ca_file\" is a file with the CA certificates of the clients in PEM, for example client_ca_file = \"ca.pem\"",
                ),
                (
                    8,
                    "admin.tcp.key_file",
                    "[admin.tcp] needs a \"key_file\" key",
                    "\"key_file\" is a PEM file that contains the private key for the certificate, for example key_file = \"secrets/admin.key\"",
                ),
                (
                    8,
                    "admin.tcp.listen",
                    "[admin.tcp] needs a \"listen\" key",
                    "\"listen\" is a list of addresses with ports, for example listen = [\"192.0.2.1:9851\", \"[2001:db8::1]:9851\"]",
                ),
                (
                    8,
                    "admin.tcp.operate[1]",
                    "\"operate[1]\" must be a certificate name of 1 to 255 bytes without control characters, got 1",
                    "for example \"alice\"",
                ),
                (
                    8,
                    "admin.tcp.operate[2]",
                    "\"operate[2]\" must be a certificate name of 1 to 255 bytes without control characters, got \"\"",
                    "for example \"alice\"",
                ),
                (
                    8,
                    "admin.tcp.configure[0]",
                    "certificate name \"Alice\" is listed twice",
                    "the first entry is admin.tcp.operate[0] on line 8",
                ),
                (
                    8,
                    "admin.tcp.configure[1]",
                    "\"configure[1]\" must be a certificate name of 1 to 255 bytes without control characters, got \"a\\n\"",
                    "for example \"alice\"",
                ),
            ],
        ),
        (
            "[io]",
            "[admin]\nhttp = {}\n[io]",
            &[(
                8,
                "admin.http",
                "unknown key \"http\" in [admin]",
                "known keys: metrics, metrics_hosts, put, socket, tcp",
            )],
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
        assert!(printed(problem).contains(part), "{part:?} not in {problems}");
        assert!(!problems.to_string().contains("YSBw") && !printed(problem).contains("YSBw"), "{problems}");
        folder.write(file, before, if file == "k.pem" { 0o600 } else { 0o644 });
    };
    refused(
        "k.pem",
        PRIVATE,
        0o640,
        "admin.tcp.key_file",
        "k.pem\" can be read by other users (mode 0640); help: chmod 600 \"",
    );
    refused(
        "k.pem",
        CERTIFICATE,
        0o600,
        "admin.tcp.key_file",
        "admin.tcp.key_file: the secret of \"key_file\" has 3 lines and 74 characters, and is not a valid key",
    );
    refused(
        "k.pem",
        "",
        0o600,
        "admin.tcp.key_file",
        "help: the file must contain a private key in PEM, and only its owner may have access (chmod 600)",
    );
    refused(
        "c.pem",
        PRIVATE,
        0o644,
        "admin.tcp.certificate_file",
        "c.pem\" (it has no certificate); help: specify a PEM certificate file",
    );
    refused(
        "c.pem",
        &CERTIFICATE.replace("YS", "??"),
        0o644,
        "admin.tcp.certificate_file",
        "c.pem\" (a certificate is broken)",
    );
    refused("ca.pem", "", 0o644, "admin.tcp.client_ca_file", "ca.pem\" (it has no certificate)");
    refused(
        "ca.pem",
        &"#".repeat((1 << 20) + 1),
        0o644,
        "admin.tcp.client_ca_file",
        "ca.pem\" (larger than 1 MiB)",
    );
    fs::remove_file(folder.0.join("ca.pem")).unwrap();
    assert!(all_printed(&loaded(&folder).unwrap_err()).contains("ca.pem\" (no such file)"));
}

#[test]
fn a_machine_without_secrets_checks_all_the_rest() {
    let folder = folder(TCP);
    for file in ["k", "k.pem", "c.pem", "ca.pem"] {
        fs::remove_file(folder.0.join(file)).unwrap();
    }
    assert_eq!(loaded(&folder).unwrap_err().len(), 4);
    let (config, warnings) = load_without_secrets(&folder.0.join("a.toml")).unwrap();
    let warnings = without_unchecked(&warnings);
    assert_eq!((warnings.len(), config.cluster().hash_key.bytes()), (0, &[0; 16]));
    folder.write("a.toml", format!("{BASE}{TCP}").replace("\"k\"", "\"credential:..\""), 0o644);
    let problems = load_without_secrets(&folder.0.join("a.toml")).unwrap_err();
    assert!(
        all_printed(&problems).contains("invalid name of a credential; help: write credential:NAME"),
        "{problems}"
    );
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
