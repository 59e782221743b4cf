use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use forwarder::{Flow, Reply, Request, ThreadId};

use super::*;
use crate::controller::Controller;
use crate::questions::{Client, Questions, Threads};
use crate::rows::hot_keys_view;
use compile::Index;

/// Creates a controller with two VIPs. `users` routes UDP by key and TCP by flow, and `www` routes
/// TCP by flow.
fn started() -> (Controller, Snapshot) {
    let text = "[cluster]\nname = \"c\"\nhash_key_file = \"k\"\ntable_size = 1009\n[machine.lb1]\n\
                addresses = [\"192.0.2.1\"]\ninterfaces = [\"eth0\"]\n[pool.p]\nbackends = [\
                { name = \"a\", address = \"198.18.0.1\" }, { name = \"b\", address = \"198.18.0.2\" }]\n\
                kv = { protocol = \"memcached\", clients = [\"198.51.100.0/24\"] }\n\
                [pool.w]\nbackends = [{ name = \"c\", address = \"198.18.0.3\" }]\n\
                [vip.users]\naddresses = [\"203.0.113.1\"]\nservices = [\
                { ports = [11211], protocol = \"udp\", pool = \"p\" }, { ports = [11211], protocol = \"tcp\", pool = \"p\", tcp = \"by-flow\" }]\n\
                [vip.www]\naddresses = [\"203.0.113.2\"]\nservices = [{ ports = [80], protocol = \"tcp\", pool = \"w\" }]\n";
    let secret = |_: &_| Ok("00112233445566778899aabbccddeeff".to_owned());
    let (config, _) = config::parse(text, Path::new("a.toml"), &secret).unwrap();
    Controller::start(Arc::new(config), "lb1", Arc::default(), Duration::ZERO).unwrap()
}

fn order(vip: Option<&str>) -> HotKeysCommand {
    HotKeysCommand { vip: vip.map(str::to_owned), limit: 20, within: Duration::from_secs(2) }
}

fn keyed(snapshot: &Snapshot) -> u32 {
    snapshot.services().iter().find(|service| &*service.name == "users udp 11211").unwrap().id.0
}

#[test]
fn only_services_with_keyed_pool_are_counted() {
    let (_, snapshot) = started();
    for vip in [None, Some("users")] {
        let mut counters = counters(&order(vip), 2, &snapshot).unwrap();
        assert_eq!(counters.len(), 2);
        for service in snapshot.services() {
            counters[0].count(service.id.0, b"k");
            let is_keyed = service.id.0 == keyed(&snapshot);
            assert_eq!(counters[0].asked(service.id.0), u64::from(is_keyed), "{}", service.name);
        }
    }
    for (vip, words) in [("www", "no service of VIP \"www\" has a keyed pool"), ("ww", "no VIP \"ww\"")] {
        assert_eq!(counters(&order(Some(vip)), 2, &snapshot).unwrap_err().to_string(), words);
    }
}

#[test]
fn rows_have_rates_shares_and_the_chosen_backend() {
    let (_, snapshot) = started();
    let (service, mut counters) = (keyed(&snapshot), counters(&order(None), 2, &snapshot).unwrap());
    for (thread, key, times) in [(0, &b"k1"[..], 6), (1, b"k1", 2), (1, b"\xff \"", 3), (0, b"k3", 1)] {
        (0..times).for_each(|_| counters[thread].count(service, key));
    }
    let view = hot_keys_view(&counters, 4.0, 2, &snapshot);
    let rows: Vec<_> = view.keys.iter().map(|row| (&*row.key, row.requests_per_second, row.share)).collect();
    assert_eq!(rows, [("k1", 2.0, 8.0 / 12.0), ("\\xff \\\"", 0.75, 0.25)]);
    assert!(view.keys.iter().all(|row| row.requests_per_second == row.requests_per_second_at_most));
    assert_eq!((view.seconds, view.services.len()), (4.0, 1));
    assert_eq!((&*view.services[0].service, view.services[0].keys_per_second), ("users udp 11211", 3.0));
    let [client, vip] =
        ["198.51.100.7:4000", "203.0.113.1:11211"].map(|end| end.parse::<std::net::SocketAddr>().unwrap());
    let flow = Flow::new(client, vip, 17).unwrap();
    for (row, key) in view.keys.iter().zip([&b"k1"[..], b"\xff \""]) {
        let slot = snapshot.explain_key(&flow, key).slot.unwrap();
        assert_eq!(row.backends, [snapshot.slots()[slot.0 as usize].backend.to_string()]);
    }
    // A counter with counts for service 99, which a reload has removed.
    let mut gone = HotKeys::new(1, [99], KeyHash::sip(1, 2));
    gone.count(99, b"k");
    let rows = hot_keys_view(&[Box::new(gone)].into(), 0.0, 2, &snapshot).keys;
    assert_eq!((&*rows[0].service, rows[0].backends.len(), rows[0].requests_per_second), ("-", 0, 1_000.0));
}

/// Two simulated packet threads. The second thread rejects its first requests, as if its request
/// ring were full.
#[derive(Default)]
struct Two {
    places: [Option<Box<HotKeys>>; 2],
    refused: usize,
    reply: Option<Reply>,
}

impl Threads for Two {
    fn count(&self) -> usize {
        2
    }

    fn ask(&mut self, thread: ThreadId, request: Request) -> Result<(), Request> {
        if thread.0 == 1 && self.refused < 3 {
            self.refused += 1;
            return Err(request);
        }
        let Request::HotKeys(next) = request else { return Err(request) };
        self.reply = Some(Reply::HotKeys(std::mem::replace(&mut self.places[usize::from(thread.0)], next)));
        Ok(())
    }

    fn answer(&mut self, _: ThreadId) -> Option<Reply> {
        self.reply.take()
    }
}

#[derive(Debug)]
struct Requester(std::sync::mpsc::Sender<Counters>);

impl Client<Counters> for Requester {
    fn has_gone(&self) -> bool {
        true // the counters are fetched even if the client has disconnected
    }

    fn answer(self: Box<Self>, found: Counters, _: &Snapshot, _: &Index) {
        self.0.send(found).unwrap();
    }
}

#[test]
fn each_thread_receives_a_counter_and_returns_it() {
    let ((controller, snapshot), mut questions) = (started(), Questions::default());
    let (sender, answers) = std::sync::mpsc::channel();
    let mut threads = Two::default();
    let swap = |questions: &mut Questions, threads: &mut Two, next| {
        threads.refused = 0;
        questions.count_keys(next, Box::new(Requester(sender.clone())));
        while !questions.is_idle() {
            questions.step(threads, &snapshot, controller.index());
        }
        answers.recv().unwrap()
    };
    let next = counters(&order(None), 2, &snapshot).unwrap();
    assert!(swap(&mut questions, &mut threads, next).is_empty());
    for (place, times) in threads.places.iter_mut().zip([2, 3]) {
        (0..times).for_each(|_| place.as_mut().unwrap().count(keyed(&snapshot), b"k"));
    }
    let found = swap(&mut questions, &mut threads, Counters::new());
    assert_eq!(found.iter().map(|counter| counter.asked(keyed(&snapshot))).collect::<Vec<_>>(), [2, 3]);
    assert!(threads.places.iter().all(Option::is_none));
}
