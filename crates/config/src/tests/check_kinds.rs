//! Tests of the configuration keys for each kind of health check.

use super::checks::{refused, the_check};
use crate::CheckKind;

#[test]
fn http_checks_are_checked() {
    refused(&[
        (
            "http = { method = \"get\", path = \"x\", host = \"a b\", body_contains = \"\" }",
            &[
                (
                    "http.method",
                    "\"method\" must be an HTTP method in upper case, except CONNECT and TRACE, got \"get\"",
                    "for example \"HEAD\"",
                ),
                (
                    "http.path",
                    "\"path\" must be a path of at most 1024 ASCII characters that starts with '/' and has no spaces and no '#', got \"x\"",
                    "for example \"/healthz\"",
                ),
                (
                    "http.host",
                    "\"host\" must be a host name or an IP address, with or without a port, got \"a b\"",
                    "for example \"www.example.net\"",
                ),
                (
                    "http.body_contains",
                    "\"body_contains\" must be a string of 1 to 1024 bytes, got \"\"",
                    "for example \"ok\"",
                ),
            ],
        ),
        (
            "http = { path = \"/a b\" }",
            &[(
                "http.path",
                "\"path\" must be a path of at most 1024 ASCII characters that starts with '/' and has no spaces and no '#', got \"/a b\"",
                "for example \"/healthz\"",
            )],
        ),
        (
            "http = { path = \"/a\\r\\nx\" }",
            &[(
                "http.path",
                "\"path\" must be a path of at most 1024 ASCII characters that starts with '/' and has no spaces and no '#', got \"/a\\r\\nx\"",
                "for example \"/healthz\"",
            )],
        ),
        (
            "http = { method = \"CONNECT\" }",
            &[(
                "http.method",
                "\"method\" must be an HTTP method in upper case, except CONNECT and TRACE, got \"CONNECT\"",
                "for example \"HEAD\"",
            )],
        ),
        (
            "http = { method = \"HEAD\", body_contains = \"x\" }",
            &[(
                "http.body_contains",
                "`body_contains` needs a method other than HEAD",
                "a response to HEAD has no body",
            )],
        ),
        (
            "http = { status = [] }",
            &[("http.status", "\"status\" must not be empty", "for example [200, \"301-302\"]")],
        ),
        (
            "http = { status = [99, 600, \"100-600\", \"299-200\", \"2xx\"] }",
            &[
                ("http.status[0]", "\"status[0]\" must be between 100 and 599, got 99", ""),
                ("http.status[1]", "\"status[1]\" must be between 100 and 599, got 600", ""),
                ("http.status[2]", "\"status[2]\" must be between 100 and 599, got \"100-600\"", ""),
                ("http.status[3]", "the range \"299-200\" is in the wrong order", "write \"200-299\""),
                (
                    "http.status[4]",
                    "\"status[4]\" must be a status code from 100 to 599, or a range of them, got \"2xx\"",
                    "for example \"301-302\"",
                ),
            ],
        ),
        (
            "http = { status = [\"200-299\", 250] }",
            &[("http.status", "200-299 and 250 in \"status\" overlap", "list each number once")],
        ),
        (
            "http.headers = { \"a b\" = \"x\", Host = \"x\", authorization = \"x\", Cookie = \"x\", e = \"\\n\", f = \" x\", G = \"1\", g = \"1\" }",
            &[
                (
                    "http.headers.\"a b\"",
                    "invalid header name \"a b\"",
                    "use letters, digits and !#$%&'*+-.^_`|~ (RFC 9110)",
                ),
                ("http.headers.Host", "the header \"host\" cannot be set", "use the key host"),
                (
                    "http.headers.authorization",
                    "the header \"authorization\" cannot be set",
                    "this file must not contain secrets; check a path that needs no authentication",
                ),
                (
                    "http.headers.Cookie",
                    "the header \"cookie\" cannot be set",
                    "this file must not contain secrets; check a path that needs no authentication",
                ),
                (
                    "http.headers.e",
                    "invalid value of the header \"e\"",
                    "use at most 1024 printable ASCII characters, without a space at either end",
                ),
                (
                    "http.headers.f",
                    "invalid value of the header \"f\"",
                    "use at most 1024 printable ASCII characters, without a space at either end",
                ),
                ("http.headers.g", "the header \"g\" is set twice", ""),
            ],
        ),
        (
            "http = { verify = false }",
            &[(
                "http.verify",
                "unknown key \"verify\" in [check.c.http]",
                "known keys: body_contains, headers, host, method, path, port, probe_mtu, status",
            )],
        ),
    ]);
}

#[test]
fn tls_keys_are_checked() {
    refused(&[
        (
            "https = {}",
            &[(
                "https",
                "[check.c.https] verifies certificates, but has no \"ca_file\"",
                "add ca_file = \"FILE\" with the CA of the backends (the roots of the system are not used), or verify = false",
            )],
        ),
        (
            "grpc = { port = 1, tls = true }",
            &[(
                "grpc",
                "[check.c.grpc] verifies certificates, but has no \"ca_file\"",
                "add ca_file = \"FILE\" with the CA of the backends (the roots of the system are not used), or verify = false",
            )],
        ),
        (
            "https = { verify = false, certificate_file = \"x\" }",
            &[(
                "https.key_file",
                "[check.c.https] needs a \"key_file\" key",
                "set key_file to the file that contains the private key for the certificate",
            )],
        ),
        (
            "grpc = { port = 1, tls = true, verify = false, key_file = \"x\" }",
            &[(
                "grpc.certificate_file",
                "[check.c.grpc] needs a \"certificate_file\" key",
                "set certificate_file to the file that contains the certificate for the private key",
            )],
        ),
        (
            "grpc = { port = 1, key_file = \"x\" }",
            &[("grpc.key_file", "\"key_file\" needs tls = true", "remove \"key_file\"")],
        ),
        (
            "grpc = { port = 1, verify = false, ca_file = \"x\", server_name = \"x\" }",
            &[
                ("grpc.verify", "\"verify\" needs tls = true", "remove \"verify\""),
                ("grpc.ca_file", "\"ca_file\" needs tls = true", "remove \"ca_file\""),
                ("grpc.server_name", "\"server_name\" needs tls = true", "remove \"server_name\""),
            ],
        ),
        (
            "https = { verify = false, server_name = \"a b\" }",
            &[(
                "https.server_name",
                "\"server_name\" must be a host name or an IP address, got \"a b\"",
                "for example \"b1.example.net\"",
            )],
        ),
        (
            "https = { ca_file = \"none.pem\" }",
            &[(
                "https.ca_file",
                "cannot use \"etc/none.pem\" (no such file)",
                "specify a PEM certificate file of at most 1 MiB",
            )],
        ),
        (
            "https = { ca_file = \"/dev/null\" }",
            &[(
                "https.ca_file",
                "cannot use \"/dev/null\" (not a regular file)",
                "specify a PEM certificate file of at most 1 MiB",
            )],
        ),
        (
            "https = { ca_file = \"\" }",
            &[(
                "https.ca_file",
                "\"ca_file\" must be a file with certificates in PEM, got \"\"",
                "for example \"ca.pem\"",
            )],
        ),
    ]);
}

#[test]
fn dns_and_grpc_names_are_checked() {
    let long = format!("dns = {{ name = \"{}\" }}", "a.".repeat(127));
    refused(&[
        (
            "dns = {}",
            &[(
                "dns.name",
                "[check.c.dns] needs a \"name\" key",
                "\"name\" is a domain name of at most 253 characters in labels of 1 to 63, for example name = \"www.example.net\"",
            )],
        ),
        (
            "dns = { name = \"\" }",
            &[(
                "dns.name",
                "\"name\" must be a domain name of at most 253 characters in labels of 1 to 63, got \"\"",
                "for example \"www.example.net\"",
            )],
        ),
        (
            "dns = { name = \"a..b\" }",
            &[(
                "dns.name",
                "\"name\" must be a domain name of at most 253 characters in labels of 1 to 63, got \"a..b\"",
                "for example \"www.example.net\"",
            )],
        ),
        (
            "dns = { name = \"..\" }",
            &[(
                "dns.name",
                "\"name\" must be a domain name of at most 253 characters in labels of 1 to 63, got \"..\"",
                "for example \"www.example.net\"",
            )],
        ),
        (
            "dns = { name = \"a b\" }",
            &[(
                "dns.name",
                "\"name\" must be a domain name of at most 253 characters in labels of 1 to 63, got \"a b\"",
                "for example \"www.example.net\"",
            )],
        ),
        (
            "dns = { name = \"x\", record = \"a\" }",
            &[(
                "dns.record",
                "\"record\" must be \"A\", \"AAAA\", \"TXT\", \"SOA\" or \"NS\", got \"a\"",
                "write \"A\" in upper case",
            )],
        ),
        (
            "grpc = { port = 1, service = \"a b\" }",
            &[(
                "grpc.service",
                "\"service\" must be a service name of at most 255 ASCII characters, or \"\", got \"a b\"",
                "for example \"shop.Cart\"",
            )],
        ),
        (&long, &[]),
        (
            &long.replace("a.\"", "a.aa\""),
            &[(
                "dns.name",
                "\"name\" must be a domain name of at most 253 characters in labels of 1 to 63, got \"a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.\"... of 256 bytes",
                "for example \"www.example.net\"",
            )],
        ),
    ]);
}

#[test]
fn ntp_keys_are_checked() {
    refused(&[
        (
            "ntp = { port = 0, max_stratum = 0 }",
            &[
                ("ntp.port", "\"port\" must be between 1 and 65535, got 0", ""),
                ("ntp.max_stratum", "\"max_stratum\" must be between 1 and 15, got 0", ""),
            ],
        ),
        (
            "ntp = { max_stratum = 16 }",
            &[("ntp.max_stratum", "\"max_stratum\" must be between 1 and 15, got 16", "")],
        ),
        (
            "ntp = { max_stratum = \"1\" }",
            &[("ntp.max_stratum", "\"max_stratum\" must be an integer, got \"1\"", "remove the quotes")],
        ),
        (
            "ntp = { stratum = 1 }",
            &[("ntp.stratum", "unknown key \"stratum\" in [check.c.ntp]", "known keys: max_stratum, port")],
        ),
    ]);
}

#[test]
fn payloads_and_expectations_are_checked() {
    let long = format!("udp = {{ port = 1, send_hex = \"{}\" }}", "00".repeat(1_025));
    refused(&[
        (
            "tcp = { port = 1, send = \"\", expect_hex = \"0\" }",
            &[
                (
                    "tcp.send",
                    "\"send\" must be a string of 1 to 1024 bytes, got \"\"",
                    "for example \"PING\\r\\n\"",
                ),
                (
                    "tcp.expect_hex",
                    "\"expect_hex\" must be 1 to 1024 bytes as pairs of hexadecimal digits, got \"0\"",
                    "for example \"ff 00 1b\"",
                ),
            ],
        ),
        (
            "tcp = { port = 1, send_hex = \"0g\", expect_regex = \"a(\" }",
            &[
                (
                    "tcp.send_hex",
                    "\"send_hex\" must be 1 to 1024 bytes as pairs of hexadecimal digits, got \"0g\"",
                    "for example \"ff 00 1b\"",
                ),
                (
                    "tcp.expect_regex",
                    "invalid regular expression: unclosed group",
                    "the syntax is that of the Rust crate regex, without Unicode classes",
                ),
            ],
        ),
        (
            "tcp = { port = 1, send = \"x\", send_hex = \"00\", expect = \"x\", expect_regex = \"x\" }",
            &[
                ("tcp.send_hex", "\"send\" and \"send_hex\" cannot be combined", "keep one of them"),
                (
                    "tcp.expect_regex",
                    "\"expect\" and \"expect_regex\" cannot be combined",
                    "keep one of them",
                ),
            ],
        ),
        (
            "tcp = { port = 1, send = \"x\" }",
            &[(
                "tcp",
                "[check.c.tcp] sends a payload, but expects no response",
                "add expect, expect_hex or expect_regex, or remove the payload",
            )],
        ),
        (
            "udp = { port = 1, expect = \"x\" }",
            &[(
                "udp.send",
                "[check.c.udp] needs a \"send\" key",
                "a UDP check sends a datagram: write its content as send or as send_hex",
            )],
        ),
        (
            "udp = { port = 1, send = \"x\", expect_regex = \"a.{100}b.{100}c\" }",
            &[(
                "udp.expect_regex",
                "invalid regular expression: its automaton exceeds 4 MiB; use ^, or * instead of a counted repetition",
                "the syntax is that of the Rust crate regex, without Unicode classes",
            )],
        ),
        (&long.replace("0000\"", "00\""), &[]),
        (
            &long,
            &[(
                "udp.send_hex",
                "\"send_hex\" must be 1 to 1024 bytes as pairs of hexadecimal digits, got \"000000000000000000000000000000000000000000000000000000000000\"... of 2050 bytes",
                "for example \"ff 00 1b\"",
            )],
        ),
    ]);
}

#[test]
fn hex_digits_have_one_canonical_form() {
    let check = the_check("udp = { port = 514, send_hex = \"FF 0a\", expect_regex = \"^a\" }");
    let CheckKind::Udp(udp) = &check.kind else { panic!("{check:?}") };
    assert_eq!((udp.port, udp.send.bytes()), (514, vec![0xff, 0x0a]));
    let written = serde_json::to_value(&check.kind).unwrap();
    assert_eq!(
        written,
        serde_json::json!({ "udp": { "port": 514, "send_hex": "ff0a", "expect_regex": "^a" } })
    );
    assert!(!check.kind.passes_in_silence());
    assert!(the_check("udp = { port = 514, send = \"x\" }").kind.passes_in_silence());
}

/// The largest automaton is needed for the longest texts whose bytes all differ.
#[test]
fn longest_expected_bytes_are_accepted() {
    let digits: String = (0..1_024_u32).map(|n| format!("{:02x}", (n * 167 + n / 256) % 256)).collect();
    the_check(&format!("tcp = {{ port = 1, expect_hex = \"{digits}\" }}"));
}

#[test]
fn agent_keys_are_checked() {
    refused(&[
        (
            "agent = { port = 1, min_weight = \"0%\", max_weight = \"90%\" }",
            &[
                (
                    "agent.min_weight",
                    "\"min_weight\" must be a percentage between \"10%\" and \"100%\", got \"0%\"",
                    "",
                ),
                (
                    "agent.max_weight",
                    "\"max_weight\" must be a percentage between \"100%\" and \"200%\", got \"90%\"",
                    "",
                ),
            ],
        ),
        (
            "agent = { port = 1, min_weight = \"15%\" }",
            &[(
                "agent.min_weight",
                "\"min_weight\" must be a multiple of \"10%\", got \"15%\"",
                "the weight changes in steps of 10%",
            )],
        ),
    ]);
    let check = the_check("agent = { port = 1 }");
    let written = serde_json::to_value(&check.kind).unwrap();
    let expected = serde_json::json!({ "port": 1, "min_weight": "10%", "max_weight": "100%" });
    assert_eq!(written["agent"], expected);
}

#[test]
fn kinds_without_full_size_requests_say_why() {
    for (kind, why) in [
        ("tcp = { port = 1,", "a payload of an unknown protocol cannot be padded"),
        ("udp = { port = 1, send = \"x\",", "a payload of an unknown protocol cannot be padded"),
        ("ntp = {", "many NTP servers ignore requests of full size"),
        ("agent = { port = 1,", "agents expect no request, or a short one"),
        ("exec = { program = \"p\",", "the program sends its own packets"),
    ] {
        let body = format!("{kind} probe_mtu = true }}\n[health]\nexec_socket = \"/run/checks.sock\"");
        let field = format!("{}.probe_mtu", kind.split(' ').next().unwrap());
        let help = format!("{why}; checks of the kinds http, https, grpc, dns and memcached have this key");
        refused(&[(&body, &[(&field, "this kind of check has no \"probe_mtu\"", &help)])]);
    }
}

#[test]
fn exec_checks_need_permission_and_a_plain_program_name() {
    let allowed = "\n[health]\nexec_socket = \"/run/checks.sock\"";
    let bad = |name: &str| {
        (
            format!("exec = {{ program = \"{name}\" }}{allowed}"),
            format!("\"program\" must be {NAME}, got \"{name}\""),
        )
    };
    for (body, message) in ["../p", "/bin/p", ".p", "-p", "a b", ""].map(bad) {
        refused(&[(&body, &[("exec.program", &message, "for example \"check_mysql\"")])]);
    }
    let absent = format!("\"program\" is {NAME}, for example program = \"check_mysql\"");
    refused(&[
        (
            "exec = { program = \"check_mysql\" }",
            &[(
                "exec",
                "exec checks are not allowed",
                "exec checks run programs on this machine; to allow them, enable sluicegate-checks.socket and set \
                 health.exec_socket = \"/run/sluicegate-checks.sock\"",
            )],
        ),
        (
            &format!("exec = {{}}{allowed}"),
            &[("exec.program", "[check.c.exec] needs a \"program\" key", &absent)],
        ),
        (
            &format!("exec = {{ program = \"p\", arguments = [{}] }}{allowed}", "\"x\", ".repeat(33)),
            &[("exec.arguments", "at most 32 arguments are allowed, got 33", "")],
        ),
        (
            &format!("exec = {{ program = \"p\" }}\nvia = \"vip\"{allowed}"),
            &[("via", "an exec check cannot have via = \"vip\"", "a program cannot use the tunnel")],
        ),
    ]);
    let text = "exec = { program = \"check_mysql\", arguments = [\"--lag\", \"a b\"], port = 3306 }";
    let check = the_check(&format!("{text}{allowed}"));
    let CheckKind::Exec(exec) = &check.kind else { panic!("{check:?}") };
    assert_eq!(exec.socket.to_str(), Some("/run/checks.sock"));
    let written = serde_json::to_value(&check).unwrap();
    let expected =
        serde_json::json!({ "program": "check_mysql", "arguments": ["--lag", "a b"], "port": 3306 });
    assert_eq!(written["exec"], expected);
}

const NAME: &str = "a file name of 1 to 64 letters, digits, '-', '_' and '.', without a folder";
