//! Tests of the status page. Most of these tests use sample responses instead of a running
//! balancer.

use serde_json::{Value, json};
use testbed::{Namespace, eventually};

use crate::browser::{BOUND, Browser};
use crate::sample_server::SampleServer;
use crate::shown::{faint, notes, overflowing, rows, unlabelled};

const LOADED: &str = "return document.querySelectorAll('#backends tbody tr').length > 0";

struct Scene {
    browser: Browser,
    server: SampleServer,
}

impl Scene {
    fn new() -> Self {
        let ns = Namespace::new("operator").unwrap();
        let scene = Self { server: SampleServer::start(&ns), browser: Browser::start(&ns) };
        scene.browser.open(&scene.server.origin);
        scene.browser.wait_for(LOADED);
        scene
    }

    /// Checks that the console has no messages and that the page requested nothing from other
    /// hosts.
    fn end(self) {
        let console = self.browser.console();
        assert!(console.is_empty(), "{console:?}");
        let requests = self.browser.requests();
        let foreign: Vec<_> =
            requests.iter().filter(|url| !url.starts_with(&self.server.origin) && *url != "data:,").collect();
        assert!(
            requests.len() >= 6 && foreign.is_empty(),
            "{} requests, foreign: {foreign:?}",
            requests.len()
        );
    }
}

#[test]
fn rows_say_what_the_api_says() {
    let scene = Scene::new();
    let backends = rows(&scene.browser, "backends");
    assert_eq!(backends.len(), 7);
    assert_eq!(backends["b1"]["state"], "● serving down for www IPv6");
    assert_eq!((backends["b1"]["weight"].as_str(), backends["b1"]["share"].as_str()), ("100", "40 %"));
    assert_eq!(backends["b2"]["state"], "✕ down failed checks");
    assert!(backends["b2"]["checks"].contains("198.18.1.2:80: connection refused"), "{backends:?}");
    assert_eq!(backends["b3"]["state"], "◐ draining by an operator override: draining");
    assert_eq!(backends["b4"]["state"], "● serving by an operator override: weight 150");
    assert_eq!(backends["b4"]["weight"], "150 (configured: 100)");
    assert_eq!(backends["n1"]["share"], "all 25 % names 50 %");
    let vips = rows(&scene.browser, "vips");
    assert_eq!((vips["mail"]["serving"].as_str(), vips["www"]["serving"].as_str()), ("0 of 1", "2 of 4"));
    assert!(vips["dns"]["pool"].contains("fallback names-far"), "{vips:?}");
    let health = rows(&scene.browser, "health");
    assert!(health["198.18.1.1:80 via 203.0.113.10"]["state"].starts_with("● up"), "{health:?}");
    let events = rows(&scene.browser, "events");
    assert_eq!(events["2023-11-14 22:15:00Z"]["cause"], "a new <kernel>");
    assert_eq!(events["2023-11-14 22:16:00Z"].len(), 4, "two events of the same second are missing");
    let drops = rows(&scene.browser, "drops");
    assert_eq!(drops.len(), 3, "the table has reasons with the value 0");
    assert_eq!(drops["no_vip"]["since start"], "240");
    let notes = notes(&scene.browser).join("\n");
    for part in [
        "has changed since it was loaded",
        "last reload was rejected",
        "generation 12 is rolled back to 11 in 4 min unless it is confirmed",
        "1 override active",
        "too_big",
    ] {
        assert!(notes.contains(part), "{part}: {notes}");
    }
    let order = scene.browser.script("return document.querySelector('#backends tbody th').textContent");
    assert_eq!(order, "b2", "the backend that is down is not first");
    scene.end();
}

#[test]
fn page_updates_without_reload() {
    let scene = Scene::new();
    scene.browser.script("document.querySelector('#vips tbody tr').dataset.mine = 'kept'");
    scene.server.change(|samples| {
        samples.backends[0]["state"] = json!("down");
        samples.backends[0]["why"] = json!("health");
        samples.backends.as_array_mut().unwrap().pop();
        samples.status["ready"] = json!(false);
        samples.status["not_ready"] = json!(["VIP mail has no backend"]);
        samples.status["forwarder"] =
            json!({ "healthy": false, "why": ["thread 1 is stuck"], "unhealthy_seconds": 1.5 });
    });
    scene.browser.wait_for("return document.getElementById('state').textContent === 'not ready'");
    assert_eq!(rows(&scene.browser, "backends")["b1"]["state"], "✕ down failed checks down for www IPv6");
    assert!(!rows(&scene.browser, "backends").contains_key("m1"));
    let notes = notes(&scene.browser);
    assert!(notes.contains(&"not ready: VIP mail has no backend".into()), "{notes:?}");
    assert!(notes.contains(&"forwarder: thread 1 is stuck".into()), "{notes:?}");
    let kept = scene.browser.script("return document.querySelector('[data-mine=kept]') !== null");
    assert_eq!(kept, true, "rows were replaced, which loses the selection");
    scene.end();
}

#[test]
fn page_rates_follow_counters_and_survive_restart() {
    let scene = Scene::new();
    // The VIPs that are not ready are in the first two rows.
    let first_rate =
        "return document.querySelector('#vips tbody tr:nth-child(3) td:nth-child(7)').textContent";
    scene.browser.wait_for(&format!("{first_rate} === '0'"));
    // The counter grows until the page shows a rate. The page may poll at any time, so the exact
    // rate varies.
    let mut packets = 1_000_000_000_u64;
    let shown = eventually(BOUND, || {
        packets += 10_000_000;
        scene.server.change(|samples| samples.vips[0]["services"][0]["packets"] = json!(packets));
        let rate = scene.browser.script(first_rate);
        ["k", "M", "G"].iter().any(|unit| rate.as_str().unwrap().ends_with(unit)).then_some(())
    });
    assert!(shown.is_some(), "{}", scene.browser.script(first_rate));
    let line = "#vips tbody tr:nth-child(3) svg";
    scene.browser.wait_for(&format!("return document.querySelector('{line} path.stroke') !== null"));
    // After a restart of the balancer, counters start at 0 again. The page must then show neither a
    // negative nor a wrong rate.
    scene.server.change(|samples| {
        samples.vips[0]["services"][0]["packets"] = json!(5);
        samples.status["boot_id"] = json!("another");
    });
    scene.browser.wait_for("return document.querySelector('#vips').textContent.includes('–')");
    scene.browser.wait_for(&format!("{first_rate} === '0'"));
    assert_eq!(scene.browser.script("return document.body.innerText.match(/(^|\\s)-\\d/)"), Value::Null);
    scene.end();
}

#[test]
fn page_is_readable_on_phone_and_desktop() {
    let scene = Scene::new();
    let mut pictures = Vec::new();
    for width in [360, 768, 1280] {
        for scheme in ["light", "dark"] {
            scene.browser.look(width, scheme);
            scene.browser.wait_for(&format!("return innerWidth === {width}"));
            assert_eq!(overflowing(&scene.browser), json!([]), "{width} {scheme}");
            assert_eq!(faint(&scene.browser), json!([]), "{width} {scheme}");
            pictures.push((
                scene.browser.script("return getComputedStyle(document.body).backgroundColor"),
                scene.browser.picture(),
            ));
        }
    }
    for pair in pictures.chunks(2) {
        assert!(pair[0].0 != pair[1].0 && pair[0].1 != pair[1].1, "light and dark look the same");
    }
    assert_eq!(unlabelled(&scene.browser), json!([]));
    scene.end();
}

#[test]
fn hostile_text_is_text() {
    let scene = Scene::new();
    let hostile =
        "</td><img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>&lt;b&gt;";
    let endless = "x".repeat(300);
    scene.server.change(|samples| {
        for text in [hostile, &endless] {
            let n = usize::from(text == endless);
            samples.backends[n]["name"] = json!(text);
            samples.backends[n]["pool"] = json!(text);
            samples.backends[1]["checks"][n] = json!({ "check": text, "via": "backend", "state": "down",
                "since_seconds": 1.0, "last_error": text });
            samples.vips[n]["name"] = json!(text);
            samples.vips[n]["addresses"] = json!([text]);
            samples.health["targets"][n + 1]["last_error"] = json!(text);
            samples.health["targets"][n + 1]["state"] = json!("down");
            samples.health["targets"][n + 1]["backends"] = json!([text]);
            samples.status["warnings"].as_array_mut().unwrap().push(json!(text));
            samples.counters["total"]["drops"][text] = json!(7);
        }
        samples.status["machine"] = json!(hostile);
        samples.status["cluster"] = json!(endless);
        samples.status["last_reload"]["message"] = json!(hostile);
    });
    scene.browser.wait_for("return document.getElementById('machine').textContent.includes('onerror')");
    let backends = rows(&scene.browser, "backends");
    assert!(backends.contains_key(hostile) && backends.contains_key(&endless), "{backends:?}");
    assert!(rows(&scene.browser, "drops").contains_key(hostile));
    assert!(notes(&scene.browser).iter().any(|note| note == hostile));
    let made =
        scene.browser.script("return [document.images.length, document.scripts.length, document.title]");
    assert_eq!(made, json!([0, 1, format!("{hostile} · Sluicegate")]));
    for width in [360, 1280] {
        scene.browser.look(width, "light");
        scene.browser.wait_for(&format!("return innerWidth === {width}"));
        assert_eq!(overflowing(&scene.browser), json!([]), "{width}");
    }
    scene.end();
}

#[test]
fn content_security_policy_blocks_foreign_scripts() {
    let scene = Scene::new();
    scene.browser.script(
        "const s = document.createElement('script'); s.textContent = 'window.foreign = 1'; document.body.append(s);
         const i = new Image(); i.src = 'http://192.0.2.1/x.png'; document.body.append(i)",
    );
    assert_eq!(scene.browser.script("return window.foreign === undefined"), true);
    let reported = scene.browser.console().join("\n");
    assert!(reported.contains("Content Security Policy"), "{reported}");
}

#[test]
fn page_limits_rows_and_filters_them() {
    let scene = Scene::new();
    scene.server.change(|samples| {
        let one = samples.backends[0].clone();
        let many = (0..2_000).map(|n| {
            let mut row = one.clone();
            row["name"] = json!(format!("many{n:04}"));
            row
        });
        samples.backends = many.collect();
    });
    scene.browser.wait_for("return document.querySelectorAll('#backends tbody tr').length === 500");
    scene.browser.script(
        "const f = document.getElementById('f-backends'); f.value = 'MANY1999'; f.dispatchEvent(new Event('input'))",
    );
    scene.browser.wait_for("return document.querySelectorAll('#backends tbody tr').length === 1");
    assert!(rows(&scene.browser, "backends").contains_key("many1999"));
    scene.end();
}

#[test]
fn page_reports_missing_data_and_keeps_values() {
    let Scene { browser, server } = Scene::new();
    drop(server);
    browser.wait_for("return document.querySelector('#notes').textContent.includes('no data since')");
    assert!(rows(&browser, "backends").contains_key("b1"));
    assert_eq!(browser.script("return document.body.classList.contains('stale')"), true);
}
