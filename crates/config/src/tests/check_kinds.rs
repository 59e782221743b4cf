//! Tests of the configuration keys for each kind of health check.

use super::checks::refused;

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
                    "\"body_contains\" must be a text of 1 to 1024 bytes, got \"\"",
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
                "known keys: body_contains, headers, host, method, path, port, status",
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
                "cannot use \"/dev/null\" (it is not a regular file)",
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
