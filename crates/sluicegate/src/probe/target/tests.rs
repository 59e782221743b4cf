use std::path::Path;

use config::parse;

use super::*;

fn named(url: &str) -> Result<String, String> {
    let target = url.parse::<Url>()?.target(&Trust::new(None, true), None)?;
    Ok(target.name.to_string())
}

#[test]
fn a_url_is_read_and_written_in_full() {
    let table = [
        ("tcp://203.0.113.10:80", "tcp://203.0.113.10:80"),
        ("tcp://[2001:db8:f::10]:80/", "tcp://[2001:db8:f::10]:80"),
        ("tcp://203.0.113.10:25?expect=220%20", "tcp://203.0.113.10:25/?expect=220%20"),
        (
            "udp://203.0.113.10:53/?send_hex=00%20FF&expect_regex=^a%26",
            "udp://203.0.113.10:53/?send_hex=00ff&expect_regex=^a%26",
        ),
        ("http://203.0.113.10", "http://203.0.113.10:80/"),
        ("http://203.0.113.10?deep=1", "http://203.0.113.10:80/?deep=1"),
        ("https://203.0.113.10:8443/healthz?a=b", "https://203.0.113.10:8443/healthz?a=b"),
        ("grpc://203.0.113.10:9000", "grpc://203.0.113.10:9000"),
        ("grpcs://203.0.113.10:9000/web.v1.Web", "grpcs://203.0.113.10:9000/web.v1.Web"),
        ("dns://[2001:db8:f::10]/example.org", "dns://[2001:db8:f::10]:53/example.org?type=A"),
        ("dns://203.0.113.10:5353/example.org.?type=SOA", "dns://203.0.113.10:5353/example.org?type=SOA"),
        ("memcached://203.0.113.10", "memcached://203.0.113.10:11211"),
        ("agent://203.0.113.10:8080", "agent://203.0.113.10:8080"),
        ("agent://203.0.113.10:8080?send=b1", "agent://203.0.113.10:8080/?send=b1"),
        ("ntp://203.0.113.10", "ntp://203.0.113.10:123/?max_stratum=15"),
        ("ntp://[2001:db8:f::10]:124?max_stratum=2", "ntp://[2001:db8:f::10]:124/?max_stratum=2"),
    ];
    for (url, expected) in table {
        assert_eq!(named(url).as_deref(), Ok(expected));
        assert_eq!(named(expected).as_deref(), Ok(expected), "the formatted URL parses to itself");
    }
}

#[test]
fn invalid_url_is_rejected_with_reason() {
    let table = [
        ("203.0.113.10:80", "starts with one of tcp://"),
        ("ftp://203.0.113.10", "starts with one of tcp://"),
        ("tcp://203.0.113.10", "have no default port"),
        ("tcp://www.example.org:80", "is not an IP address"),
        ("tcp://2001:db8::1:80", "is not an IP address"),
        ("tcp://[192.0.2.1]:80", "is not an IP address"),
        ("tcp://[2001:db8::1:80", "is not an IP address"),
        ("tcp://203.0.113.10:0", "is not an IP address"),
        ("tcp://203.0.113.10:65536", "is not an IP address"),
        ("tcp://203.0.113.10:80/path", "ends with its port"),
        ("memcached://203.0.113.10/path", "must end with its address or port"),
        ("tcp://203.0.113.10:80?send=x", "needs expect"),
        ("tcp://203.0.113.10:80?expect=x&expect_hex=00", "at most one payload and one expectation"),
        ("tcp://203.0.113.10:80?expect=%2", "percent-encoded"),
        ("tcp://203.0.113.10:80?expect=%FF", "percent-encoded"),
        ("tcp://203.0.113.10:80?expect_hex=0", "invalid value of expect_hex"),
        ("tcp://203.0.113.10:80?expect_regex=(", "invalid regular expression: unclosed group"),
        ("agent://203.0.113.10", "have no default port"),
        ("agent://203.0.113.10:80?expect=up", "has only the key send"),
        ("udp://203.0.113.10:80", "needs a payload"),
        ("udp://203.0.113.10:80?send=", "invalid value of send"),
        ("http://203.0.113.10/a b", "without spaces"),
        ("http://user@203.0.113.10/", "is not an IP address"),
        ("dns://203.0.113.10", "a dns target needs a name"),
        ("dns://203.0.113.10/a..b", "a dns target needs a name"),
        ("dns://203.0.113.10/a?type=MX", "a dns target needs a name"),
        ("ntp://203.0.113.10/now", "an ntp target has the form"),
        ("ntp://203.0.113.10?max_stratum=0", "with N from 1 to 15"),
        ("ntp://203.0.113.10?max_stratum=16", "with N from 1 to 15"),
    ];
    for (url, expected) in table {
        let wrong = named(url).expect_err(url);
        assert!(wrong.contains(expected), "{url}: {wrong}");
    }
}

#[test]
fn tls_without_a_ca_must_be_asked_for() {
    let url: Url = "https://203.0.113.10/".parse().unwrap();
    assert!(
        url.target(&Trust::new(None, false), None)
            .unwrap_err()
            .contains("needs --ca FILE to verify the certificate")
    );
    let tls = |trust: Trust| match url.target(&trust, Some("www.example.org")).unwrap().kind {
        CheckKind::Http(check) => (check.tls.unwrap(), check.host.unwrap().to_string()),
        other => panic!("{other:?}"),
    };
    let (strict, host) = tls(Trust::new(Some("PEM".into()), false));
    assert_eq!((strict.verify, strict.ca.as_deref(), &*host), (true, Some("PEM"), "www.example.org"));
    assert!(!tls(Trust::new(None, true)).0.verify);
}

fn config(checks: &str, services: &str) -> Config {
    let text = format!(
        r#"
        [cluster]
        name = "fra1"
        hash_key_file = "hash.key"
        [machine.lb1]
        addresses = ["192.0.2.1", "2001:db8:0:1::1"]
        interfaces = ["eth0"]
        {checks}
        [pool.web]
        checks = [{names}]
        backends = [{{ name = "b1", address = "198.18.1.1" }}, {{ name = "b2", address = "198.18.1.2" }}]
        [vip.www]
        addresses = ["203.0.113.10", "2001:db8:f::10"]
        services = [{services}]
        "#,
        names = checks
            .lines()
            .filter_map(|line| line.trim().strip_prefix("[check.")?.strip_suffix(']'))
            .map(|name| format!("{name:?}"))
            .collect::<Vec<_>>()
            .join(", "),
    );
    let key = |_: &_| Ok("0f".repeat(16));
    parse(&text, Path::new("test.toml"), &key).unwrap_or_else(|problems| panic!("{problems}")).0
}

fn names(config: &Config, trust: &Trust) -> Vec<String> {
    let (targets, _) = of_config(config, trust).unwrap();
    assert!(targets.iter().all(|target| &*target.vip == "www"));
    targets.iter().map(|target| target.name.to_string()).collect()
}

#[test]
fn config_targets_are_tcp_ports_and_first_port_of_range() {
    let config = config(
        "",
        r#"{ ports = [80, "8000-8099"], protocol = "tcp", pool = "web" }, { ports = [53], protocol = "udp", pool = "web" }"#,
    );
    let expected = [
        "tcp://203.0.113.10:80",
        "tcp://[2001:db8:f::10]:80",
        "tcp://203.0.113.10:8000",
        "tcp://[2001:db8:f::10]:8000",
    ];
    let trust = Trust::new(None, false);
    assert_eq!(names(&config, &trust), expected);
    let (_, left_out) = of_config(&config, &trust).unwrap();
    assert_eq!(left_out.len(), 1);
    assert!(left_out[0].starts_with("udp service of VIP www with pool web"), "{left_out:?}");
}

#[test]
fn config_targets_use_vip_checks_instead_of_connections() {
    let checks = r#"
        [check.web]
        http = { port = 80, path = "/healthz" }
        via = "vip"
        [check.name]
        dns = { name = "example.org" }
        via = "vip"
        [check.deep]
        http = { port = 443 }
        via = "vip"
        [check.straight]
        http = { port = 443, path = "/straight" }
    "#;
    let services = r#"{ ports = [80, 443], protocol = "tcp", pool = "web" }, { ports = [53], protocol = "udp", pool = "web" }"#;
    let config = config(checks, services);
    let expected = [
        "http://203.0.113.10:443/",
        "http://[2001:db8:f::10]:443/",
        "http://203.0.113.10:80/healthz",
        "http://[2001:db8:f::10]:80/healthz",
        "dns://203.0.113.10:53/example.org?type=A",
        "dns://[2001:db8:f::10]:53/example.org?type=A",
    ];
    assert_eq!(names(&config, &Trust::new(None, false)), expected);
}

#[test]
fn checks_over_udp_are_made_of_udp_services() {
    let checks = r#"
        [check.time]
        ntp = {}
        via = "vip"
        [check.cache]
        memcached = { transport = "udp" }
        via = "vip"
    "#;
    let services = r#"{ ports = [123, 11211], protocol = "udp", pool = "web" }, { ports = [123, 11211], protocol = "tcp", pool = "web" }"#;
    let expected = [
        "memcached+udp://203.0.113.10:11211",
        "memcached+udp://[2001:db8:f::10]:11211",
        "ntp://203.0.113.10:123/?max_stratum=15",
        "ntp://[2001:db8:f::10]:123/?max_stratum=15",
        "tcp://203.0.113.10:123",
        "tcp://[2001:db8:f::10]:123",
        "tcp://203.0.113.10:11211",
        "tcp://[2001:db8:f::10]:11211",
    ];
    assert_eq!(names(&config(checks, services), &Trust::new(None, false)), expected);
}
