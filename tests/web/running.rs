//! Tests of the status page and the metrics listener with a running balancer and real traffic.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::Value;
use testbed::{Balancer, Bed, BedSpec, Decap, LbConfig, Namespace, eventually};

use crate::browser::{BOUND, Browser};
use crate::http;
use crate::shown::{notes, overflowing, rows};

/// The address of the read-only listener for metrics.
pub(crate) const METRICS: &str = "192.0.2.1:9850";

/// A testbed with a running balancer. Fields are dropped in this order, so the balancer stops
/// before the testbed is removed.
pub(crate) struct Running {
    pub(crate) balancer: Balancer,
    pub(crate) decaps: Vec<Decap>,
    pub(crate) bed: Bed,
}

impl Running {
    pub(crate) fn start() -> Self {
        let bed = Bed::new(&BedSpec::default()).unwrap();
        let decaps = Decap::start_all(&bed).unwrap();
        let mut config = LbConfig::new(&bed).weights(&[1, 2, 3]);
        // The configuration text ends with the section [admin], so this line belongs to that
        // section.
        config.more = format!("metrics = [\"{METRICS}\"]\n");
        let balancer = Balancer::start(&bed, 0, &config).unwrap();
        Self { balancer, decaps, bed }
    }

    pub(crate) fn ask(&self, count: usize) {
        let replies = self.bed.http_client().get_many(self.bed.vip(true, Bed::HTTP_PORT), "/", count, 8);
        let failed: Vec<_> = replies.iter().filter_map(|reply| reply.as_ref().err()).collect();
        assert!(failed.is_empty(), "{failed:?}\n{}", self.balancer.process.tail());
    }

    fn admin(&self, method: &str, path: &str) -> Value {
        http::admin(&LbConfig::admin_socket(&self.bed, 0), method, path)
    }
}

#[test]
fn page_agrees_with_the_api() {
    let running = Running::start();
    let operator = Namespace::new("operator").unwrap();
    let origin = http::relay(&operator, LbConfig::admin_socket(&running.bed, 0));
    let browser = Browser::start(&operator);
    browser.open(&origin);
    browser.wait_for("return document.getElementById('state').textContent === 'ready'");

    let shown = rows(&browser, "backends");
    let reported = running.admin("GET", "/v1/backends");
    assert_eq!((shown.len(), reported.as_array().unwrap().len()), (3, 3));
    for row in reported.as_array().unwrap() {
        let cells = &shown[row["name"].as_str().unwrap()];
        assert!(cells["state"].ends_with(row["state"].as_str().unwrap()), "{cells:?} {row}");
        assert_eq!(cells["weight"], row["weight_configured"].to_string());
        assert_eq!(cells["address"], row["address"].as_str().unwrap());
    }
    let vips = rows(&browser, "vips");
    assert_eq!(vips["www"]["serving"], "3 of 3");
    let generation = running.admin("GET", "/v1/status")["generation"].to_string();
    let facts = browser.script("return document.getElementById('facts').innerText");
    assert!(facts.as_str().unwrap().contains(&format!("generation\n{generation} ")), "{facts}");
    overrides_are_shown(&running, &browser);
    traffic_is_shown(&running, &browser);
    for (width, scheme) in [(360, "light"), (360, "dark"), (1280, "light"), (1280, "dark")] {
        browser.look(width, scheme);
        browser.wait_for(&format!("return innerWidth === {width}"));
        assert_eq!(overflowing(&browser), Value::Array(vec![]), "{width} {scheme}");
    }
    let (console, requests) = (browser.console(), browser.requests());
    assert!(console.is_empty(), "{console:?}");
    let foreign: Vec<_> =
        requests.iter().filter(|url| !url.starts_with(&origin) && *url != "data:,").collect();
    assert!(requests.len() >= 6 && foreign.is_empty(), "{foreign:?}");
}

fn overrides_are_shown(running: &Running, browser: &Browser) {
    running.admin("POST", "/v1/backends/b2/drain");
    let word = "return [...document.querySelectorAll('#backends tbody tr')].some(row => row.textContent.includes('override: draining'))";
    browser.wait_for(word);
    let shown = rows(browser, "backends");
    assert!(shown["b2"]["state"].starts_with("◐ draining by an operator"), "{shown:?}");
    assert!(notes(browser).iter().any(|note| note.contains("1 override active")), "{:?}", notes(browser));
    running.admin("POST", "/v1/log/level?level=debug&for_seconds=600&reason=b2%20flaps");
    let note = "return [...document.querySelectorAll('#notes li')].some(note => note.textContent.startsWith('log level debug by uid 0 (b2 flaps), ends in '))";
    browser.wait_for(note);
    running.admin("DELETE", "/v1/log/level");
    browser.wait_for(&note.replace("return ", "return !"));
    running.admin("POST", "/v1/backends/b2/undrain");
    browser.wait_for(&word.replace("return ", "return !"));
}

fn traffic_is_shown(running: &Running, browser: &Browser) {
    let stop = Arc::new(AtomicBool::new(false));
    let (stopped, client) = (Arc::clone(&stop), running.bed.http_client());
    let vip = running.bed.vip(true, Bed::HTTP_PORT);
    let traffic = std::thread::spawn(move || {
        while !stopped.load(Ordering::Relaxed) {
            client.get_many(vip, "/", 20, 4);
        }
    });
    // The script finds the column by its heading, because the order of the columns may change.
    let rate = "const row = [...document.querySelectorAll('#vips tbody tr')].find(r => r.textContent.includes('tcp 80'));
        const heads = [...document.querySelectorAll('#vips thead th')].map(head => head.textContent);
        return !['0', '–'].includes(row.cells[heads.indexOf('packets/s')].textContent)";
    browser.wait_for(rate);
    stop.store(true, Ordering::Relaxed);
    traffic.join().unwrap();
    browser.wait_for(&rate.replace("return !", "return "));
    // No service has the port of this request. The connection attempt times out, and its packets
    // are counted as drops.
    let unserved = running.bed.http_client().connect_timeout(Duration::from_millis(100));
    assert!(unserved.get(running.bed.vip(true, 81), "/").is_err());
    let agreed = eventually(BOUND, || {
        let drops: BTreeMap<String, u64> = running.balancer.counters().unwrap().drops().into_iter().collect();
        let shown = rows(browser, "drops");
        let same = shown.len() == drops.len()
            && drops.iter().all(|(reason, count)| {
                shown.get(reason).is_some_and(|cells| cells["since start"] == count.to_string())
            });
        (drops.contains_key("no_vip") && same).then_some(())
    });
    assert!(agreed.is_some(), "{:?}\n{:?}", rows(browser, "drops"), running.balancer.counters());
}
