//! A headless Chromium in its own network namespace, controlled with WebDriver and DevTools.
//!
//! Tests run scripts in the page, take screenshots, and read the console and the network log. The
//! namespace has only a loopback device, so the page cannot load resources from other hosts.
//!
//! References: W3C WebDriver; chromedriver's `goog/cdp/execute` and `se/log`.

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use serde_json::{Value, json};
use testbed::{Namespace, Process, TempDir, eventually};

/// The timeout of the tests, which is ten times the duration of a page update on two busy cores.
pub(crate) const BOUND: Duration = Duration::from_secs(30);

pub(crate) struct Browser {
    session: String,
    ns: Namespace,
    _driver: Process,
    _profile: TempDir,
}

impl Browser {
    pub(crate) fn start(ns: &Namespace) -> Self {
        let profile = TempDir::new().unwrap();
        let port = format!("--port={}", DRIVER.port());
        let mut driver = Process::start(ns, "chromedriver", "chromedriver", &[&port]).unwrap();
        driver.wait_for_line(BOUND, |line| line.contains("started successfully")).unwrap();
        let mut browser = Self { session: String::new(), ns: ns.clone(), _driver: driver, _profile: profile };
        let mut arguments: Vec<String> = ARGUMENTS.iter().map(|&argument| argument.to_owned()).collect();
        arguments.push(format!("--user-data-dir={}", browser._profile.path().display()));
        let wanted = json!({ "capabilities": { "alwaysMatch": {
            "goog:chromeOptions": { "args": arguments },
            "goog:loggingPrefs": { "browser": "ALL", "performance": "ALL" },
        } } });
        let made = browser.call("POST", "/session", &wanted);
        browser.session = format!("/session/{}", made["sessionId"].as_str().unwrap());
        browser
    }

    pub(crate) fn open(&self, address: &str) {
        self.command("/url", &json!({ "url": address }));
    }

    /// Runs `body` in the page as the body of a JavaScript function, and returns the result.
    pub(crate) fn script(&self, body: &str) -> Value {
        self.command("/execute/sync", &json!({ "script": body, "args": [] }))
    }

    /// Waits until the script `body` returns a true value, and returns this value.
    pub(crate) fn wait_for(&self, body: &str) -> Value {
        let found = eventually(BOUND, || {
            let value = self.script(body);
            let nothing = [Value::Null, json!(false), json!(""), json!(0)].contains(&value);
            (!nothing).then_some(value)
        });
        found.unwrap_or_else(|| {
            let shown = self.script("return document.body.innerText");
            panic!(
                "condition was never true, {body}\n{}\n{:?}",
                shown.as_str().unwrap_or_default(),
                self.console()
            )
        })
    }

    /// Sets the width of the screen and selects the light or the dark color scheme.
    pub(crate) fn look(&self, width: u32, scheme: &str) {
        let screen = json!({ "width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600 });
        self.devtools("Emulation.setDeviceMetricsOverride", &screen);
        let media = json!({ "features": [{ "name": "prefers-color-scheme", "value": scheme }] });
        self.devtools("Emulation.setEmulatedMedia", &media);
    }

    /// Returns a screenshot of the whole page as a base64-encoded PNG.
    pub(crate) fn picture(&self) -> String {
        let picture = self.devtools("Page.captureScreenshot", &json!({ "captureBeyondViewport": true }));
        picture["data"].as_str().unwrap().to_owned()
    }

    /// Returns the console messages since the previous call.
    pub(crate) fn console(&self) -> Vec<String> {
        let said = self.command("/se/log", &json!({ "type": "browser" }));
        let messages = said.as_array().unwrap().iter().filter_map(|entry| entry["message"].as_str());
        messages.filter(|message| !message.starts_with(OWN_PAGES)).map(str::to_owned).collect()
    }

    /// Returns the URLs of all requests since the previous call.
    pub(crate) fn requests(&self) -> Vec<String> {
        let log = self.command("/se/log", &json!({ "type": "performance" }));
        let events = log.as_array().unwrap().iter().map(|entry| {
            let message: Value = serde_json::from_str(entry["message"].as_str().unwrap()).unwrap();
            message["message"].clone()
        });
        let sent = events.filter(|event| {
            let from = event["params"]["documentURL"].as_str().unwrap_or_default();
            event["method"] == "Network.requestWillBeSent" && !from.starts_with(OWN_PAGES)
        });
        sent.map(|event| event["params"]["request"]["url"].as_str().unwrap().to_owned()).collect()
    }

    fn devtools(&self, command: &str, params: &Value) -> Value {
        self.command("/goog/cdp/execute", &json!({ "cmd": command, "params": params }))
    }

    fn command(&self, path: &str, body: &Value) -> Value {
        self.call("POST", &format!("{}{path}", self.session), body)
    }

    fn call(&self, method: &'static str, path: &str, body: &Value) -> Value {
        let (path, body) = (path.to_owned(), body.to_string());
        let answer = self.ns.run(move || exchange(method, &path, &body)).unwrap();
        let mut answer: Value = serde_json::from_str(&answer).unwrap();
        let value = answer["value"].take();
        assert!(value.get("error").is_none(), "{value}");
        value
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // Ends the browser session. Without this request, the browser would end too, but only after
        // writing its profile.
        let (session, ns) = (self.session.clone(), self.ns.clone());
        drop(ns.spawn(move || exchange("DELETE", &session, "")).join());
    }
}

/// Sends one request to chromedriver on a new connection, and returns the body. Chromedriver never
/// closes the connection itself.
fn exchange(method: &str, path: &str, body: &str) -> std::io::Result<String> {
    let stream = TcpStream::connect(DRIVER)?;
    stream.set_read_timeout(Some(2 * BOUND))?;
    let mut stream = BufReader::new(stream);
    let request = format!(
        "{method} {path} HTTP/1.1\r\nHost: {DRIVER}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.get_mut().write_all(request.as_bytes())?;
    let (mut line, mut length) = (String::new(), 0);
    while stream.read_line(&mut line)? > 0 && line != "\r\n" {
        if let Some((_, value)) =
            line.split_once(':').filter(|(key, _)| key.eq_ignore_ascii_case("content-length"))
        {
            length = value.trim().parse().map_err(|_| ErrorKind::InvalidData)?;
        }
        line.clear();
    }
    let mut answer = vec![0; length];
    stream.read_exact(&mut answer)?;
    String::from_utf8(answer).map_err(|_| ErrorKind::InvalidData.into())
}

const DRIVER: SocketAddr = SocketAddr::V4(std::net::SocketAddrV4::new(std::net::Ipv4Addr::LOCALHOST, 9515));
/// The URL prefix of the browser's own pages, such as its start page.
const OWN_PAGES: &str = "chrome://";
/// The browser's arguments. With `--remote-debugging-pipe`, the browser always ends together with
/// chromedriver.
const ARGUMENTS: [&str; 10] = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--remote-debugging-pipe",
];
