//! Property tests of the messages: requests survive the way over the socket, and any other bytes
//! are rejected without a panic.

use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;

use proptest::prelude::*;

use super::*;

fn check(program: &str, arguments: &[&str]) -> ExecCheck {
    let arguments = arguments.iter().map(|text| Arc::from(*text)).collect();
    ExecCheck { program: program.into(), arguments, port: Some(3306), socket: Path::new("/run/x").into() }
}

fn request() -> Request {
    let pools = [Arc::from("db"), Arc::from("web")];
    let address = IpAddr::from([192, 0, 2, 1]);
    let limit = Duration::from_millis(4_900);
    let subject = Subject { address, backend: "db1", pools: &pools, limit };
    Request::new(&check("check_mysql", &["--lag", "", "a b"]), &subject)
}

#[test]
fn request_is_one_line_per_value() {
    let text = "sluicegate-check 1\nprogram check_mysql\nlimit 4900\naddress 192.0.2.1\nbackend db1\npools db web\n\
                port 3306\nargument --lag\nargument \nargument a b\n\n";
    assert_eq!(request().to_text(), text);
    assert_eq!(Request::parse(text.trim_end_matches("\n\n").as_bytes()), Ok(request()));
}

#[test]
fn many_pools_fit_into_a_request() {
    let pools: Vec<Arc<str>> = (0..2_000).map(|number| format!("pool-{number}").into()).collect();
    let limit = Duration::from_secs(1);
    let subject = Subject { address: IpAddr::from([192, 0, 2, 1]), backend: "b", pools: &pools, limit };
    let argument = "x".repeat(256);
    let text = Request::new(&check("c", &[&*argument; MOST_ARGUMENTS]), &subject).to_text();
    assert!(text.len() < MOST_REQUEST_BYTES, "{}", text.len());
}

#[test]
fn broken_requests_have_a_reason() {
    let good = request().to_text();
    let good = good.trim_end();
    for (from, to, why) in [
        ("sluicegate-check 1", "sluicegate-check 2", "unknown version"),
        ("check_mysql", "../mysql", "invalid value"),
        ("check_mysql", ".hidden", "invalid value"),
        ("limit 4900", "limit 0", "time limit"),
        ("limit 4900", "limit 99999999999999999999", "time limit"),
        ("address 192.0.2.1", "address b1", "no address"),
        ("port 3306", "port 70000", "port"),
        ("backend db1", "backend d\x07b1", "control character"),
        ("backend db1", "backend", "no value"),
        ("pools", "else", "unknown key"),
    ] {
        let text = good.replace(from, to);
        let found = Request::parse(text.as_bytes()).expect_err(to);
        assert!(found.contains(why), "{to}: {found}");
    }
    let many = format!("{good}{}", "\nargument x".repeat(MOST_ARGUMENTS));
    assert!(Request::parse(many.as_bytes()).is_err());
}

#[test]
fn replies_are_single_printable_lines() {
    for reply in [
        Reply::Started,
        Reply::Passed,
        Reply::Failed("exit status 2: lag".into()),
        Reply::Unable("no such file".into()),
    ] {
        let text = reply.to_text();
        assert_eq!(Reply::parse(text.trim_end().as_bytes()), Some(reply));
    }
    let hostile = Reply::Failed(format!("a\nstarted\u{1b}[2J\u{202e}{}", "x".repeat(10_000))).to_text();
    assert!(hostile.len() <= MOST_REPLY_BYTES && hostile.lines().count() == 1, "{hostile:?}");
    assert!(hostile.starts_with(r"failed a\u{a}started\u{1b}[2J\u{202e}xxx"), "{hostile:?}");
    assert_eq!(Reply::parse(b"failed"), None);
}

proptest! {
    #[test]
    fn any_bytes_are_handled(bytes: Vec<u8>) {
        if let Ok(request) = Request::parse(&bytes) {
            prop_assert_eq!(Request::parse(request.to_text().trim_end_matches("\n\n").as_bytes()), Ok(request));
        }
        if let Some(reply) = Reply::parse(&bytes) {
            prop_assert_eq!(reply.to_text().lines().count(), 1);
            prop_assert!(reply.to_text().len() <= MOST_REPLY_BYTES);
        }
    }

    #[test]
    fn any_values_are_handled(line in "(limit|port|address|argument|pools|program) \\PC{0,40}\n?") {
        let text = request().to_text().trim_end().to_owned() + "\n" + &line;
        if let Ok(request) = Request::parse(text.as_bytes()) {
            prop_assert_eq!(Request::parse(request.to_text().trim_end_matches("\n\n").as_bytes()), Ok(request));
        }
    }
}
