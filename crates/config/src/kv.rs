//! `kv` of a pool: requests of key-value clients go to their server by key.
//!
//! In: the table. Out: [`Kv`], by which UDP services of the pool choose a backend for each request.
//! Not here: what the pool and its VIPs may not have beside it (`keyed`), reading requests (`kv-switch`).
//! Source: AppSwitch and SmartSwitch (MemSwitch).

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use config_text::{At, Node, Place, Section, values};
use forwarder::{GATHER_TIMEOUTS_MS, Prefix};
use serde::Serialize;

use super::arrivals::read_sources;
use super::canonical;
use super::kv_cache::KvCache;
use super::kv_replicas::KvReplicas;

/// How a keyed pool reads requests, and which backend each has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Kv {
    /// Where in a request its key stands. Required.
    pub protocol: KvProtocol,
    /// Who may send requests: all others are dropped. At least one; required.
    #[serde(serialize_with = "canonical::set")]
    pub clients: Vec<Prefix>,
    /// Whether `clients` may hold all addresses of a family. Default `false`.
    pub any_client: bool,
    /// Keys that other pools have, each once; the exact key goes before prefixes, and the longest prefix before shorter ones.
    /// Default none.
    #[serde(serialize_with = "canonical::sorted")]
    pub routes: Vec<KvRoute>,
    /// The pools that routes and failover name, each once, in the order of their names.
    #[serde(skip)]
    pub pools: Vec<Arc<str>>,
    /// Where keys of a backend that does not serve go. Default [`Failover::Next`].
    pub failover: Failover,
    /// What is stored away from its key's own backend lives no longer than that; `None`: as long as its client says. Whole seconds.
    /// Default 10 s, none beside [`Failover::Nowhere`] and for other protocols than memcached, whose times are not known.
    #[serde(serialize_with = "canonical::some_span")]
    pub failover_ttl: Option<Duration>,
    /// The most keys of one request: 1 to 32, the default.
    pub max_keys: u8,
    /// What says which backend has a key. Default [`KvHash::Maglev`].
    pub hash: KvHash,
    /// What becomes of a server that was away before it serves again. Default [`Rejoin::Flush`] for memcached, else the other.
    pub rejoin: Rejoin,
    /// Which way requests and answers take. Default [`KvPath::Direct`].
    pub path: KvPath,
    /// What becomes of requests whose keys are of several backends; `None`: they are refused, as are all of header and offset.
    pub gather: Option<KvGather>,
    /// How reads of hot keys are answered by this machine; `None`, the default: they are not.
    pub cache: Option<KvCache>,
    /// How many backends have each key; `None`, the default: one.
    pub replicas: Option<KvReplicas>,
}

/// Which way requests and answers take.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum KvPath {
    /// Backends have the VIP, and answer clients themselves.
    Direct,
    /// Backends are asked at their own address, and their answers pass through this machine.
    Through {
        /// How long an answer is waited for: one of [`forwarder::GATHER_TIMEOUTS_MS`]. Default 200 ms.
        #[serde(serialize_with = "canonical::span")]
        answer_timeout: Duration,
    },
}

impl KvPath {
    fn read(section: &mut Section<'_>, protocol: Option<KvProtocol>) -> Self {
        let is_memcached = is_memcached(protocol);
        let node = section.optional("path");
        let words = [("direct", false), ("through", true)];
        let is_through = node.as_ref().and_then(|node| Some((node.choice(&words)?, node))).is_some_and(
            |(through, node)| {
                if through && !is_memcached {
                    node.refuse(
                        "\"direct\": answers of other protocols than memcached have no id to know them by",
                    );
                }
                through && is_memcached
            },
        );
        let node = section.optional("answer_timeout");
        let timeout = node.as_ref().and_then(read_timeout);
        if is_through {
            return Self::Through { answer_timeout: timeout.unwrap_or(ANSWER_TIMEOUT) };
        }
        node.inspect(|node| node.refuse("nothing here: it is for path = \"through\""));
        Self::Direct
    }
}

/// One of those that packet threads have.
fn read_timeout(node: &Node<'_>) -> Option<Duration> {
    let timeout = node.duration(Duration::ZERO..=Duration::from_secs(1))?;
    let is_one = |millis: &u16| timeout == Duration::from_millis((*millis).into());
    if GATHER_TIMEOUTS_MS.iter().any(is_one) { Some(timeout) } else { node.wrong(TIMEOUTS) }
}

/// Requests whose keys are of several backends are asked of each, and answered by this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct KvGather {
    /// How long backends may take: one of [`forwarder::GATHER_TIMEOUTS_MS`]. Default 20 ms.
    #[serde(serialize_with = "canonical::span")]
    pub timeout: Duration,
    /// What follows when one takes longer. Default [`KvMissing::Silent`].
    pub missing: KvMissing,
}

/// What becomes of a request with a key that nobody has spoken of in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum KvMissing {
    /// There is no reply.
    Silent,
    /// The reply says that the key is missing.
    Miss,
}

impl KvGather {
    const DEFAULT: Self = Self { timeout: Duration::from_millis(20), missing: KvMissing::Silent };

    /// A table, or `false`. Of another protocol no reply is made.
    fn read(node: Option<Node<'_>>, protocol: Option<KvProtocol>) -> Option<Self> {
        let is_memcached = is_memcached(protocol);
        let Some(node) = node else { return is_memcached.then_some(Self::DEFAULT) };
        let mut section = node.section_or_false()?;
        let timeout = section.or("timeout", Self::DEFAULT.timeout, |node| read_timeout(&node));
        let words = [("silent", KvMissing::Silent), ("miss", KvMissing::Miss)];
        let missing = section.or("missing", Self::DEFAULT.missing, |node| node.choice(&words));
        section.finish();
        if !is_memcached {
            node.refuse("nothing here: it is for protocol = \"memcached\"");
        }
        Some(Self { timeout, missing })
    }
}

/// What becomes of a server that was away: meanwhile others were given its keys, and what it holds of them may be old.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Rejoin {
    /// It is emptied by `flush_all` at its own address and the ports of the UDP services, and serves then.
    Flush,
    /// It serves at once.
    Serve,
}

/// Where in a request its key stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum KvProtocol {
    /// memcached over UDP: ASCII, binary and meta commands.
    Memcached,
    /// A preamble names the key's place (AppSwitch §5.1).
    Header {
        /// The application's number, with which each request begins. Required.
        id: u8,
    },
    /// At a fixed place of every payload.
    Offset {
        /// Bytes in front of it: 0 to 1,400. Default 0.
        start: u16,
        /// Its bytes: 1 to 250. Required.
        length: u8,
    },
}

/// What says which backend has a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum KvHash {
    /// Maglev's table over a keyed hash.
    Maglev,
    /// The ring of libmemcached (`KETAMA_WEIGHTED`) and of nutcracker (`distribution: ketama`), over MD5.
    Ketama,
    /// The same ring over their `fnv1a_64`, nutcracker's default.
    #[serde(rename = "fnv1a_64")]
    Fnv1a64,
}

/// Keys of a pool that another pool has.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct KvRoute {
    /// Which.
    #[serde(flatten)]
    pub keys: KvKeys,
    /// The pool's name: [`Config::pool`](super::Config::pool) has it.
    pub pool: Arc<str>,
}

/// Which keys a route is for: 1 to 250 bytes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum KvKeys {
    /// This one.
    Key(Arc<str>),
    /// Those that begin with it.
    Prefix(Arc<str>),
}

/// Where keys of a backend that does not serve go.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Failover {
    /// To the next choice of their pool.
    Next,
    /// To a pool.
    Pool(Arc<str>),
    /// Nowhere: their requests are dropped.
    Nowhere,
}

/// As written.
pub(super) struct KvDraft {
    pub(super) place: Place,
    /// `None`: it has an error.
    pub(super) value: Option<Arc<Kv>>,
    /// The pools that it names.
    pub(super) pools: Vec<At<Arc<str>>>,
}

impl KvDraft {
    pub(super) fn read(node: &Node<'_>) -> Option<Self> {
        let mut section = node.section()?;
        let mut pools = Vec::new();
        let value = read_keys(&mut section, &mut pools).map(Arc::new);
        section.finish();
        Some(Self { place: node.place.clone(), value, pools })
    }
}

/// All keys of the table, so that each is judged; `None`: one that it can't do without has an error. `pools`: those that are named.
fn read_keys(section: &mut Section<'_>, pools: &mut Vec<At<Arc<str>>>) -> Option<Kv> {
    let protocol = read_protocol(section);
    let any_client = section.or("any_client", false, |node| node.boolean());
    let clients = section.required("clients", CLIENTS).and_then(|node| read_clients(&node, any_client));
    let routes = section.optional("routes").map_or(Some(Vec::new()), |node| read_routes(&node, pools));
    let (failover, failover_ttl) = match section.optional("failover") {
        None => (Failover::Next, default_ttl(&Failover::Next, protocol)),
        Some(node) => read_failover(&node, protocol, pools).unwrap_or((Failover::Next, None)),
    };
    let max_keys = section.or("max_keys", MAX_KEYS, |node| node.number(1..=MAX_KEYS));
    let hash = section.or("hash", KvHash::Maglev, |node| node.choice(&HASHES));
    let path = KvPath::read(section, protocol);
    let rejoin = read_rejoin(section.optional("rejoin"), protocol);
    let gather = KvGather::read(section.optional("gather"), protocol);
    let cache = KvCache::read(section.optional("cache"), is_memcached(protocol));
    let replicas = KvReplicas::read(section.optional("replicas"), is_memcached(protocol));
    let named: BTreeSet<_> = pools.iter().map(|name| Arc::clone(&name.value)).collect();
    Some(Kv {
        protocol: protocol?,
        clients: clients?,
        any_client,
        routes: routes?,
        pools: named.into_iter().collect(),
        failover,
        failover_ttl,
        max_keys,
        hash,
        rejoin,
        path,
        gather,
        cache,
        replicas,
    })
}

/// Whether keys for memcached have a meaning; of a protocol that has an error they are not judged.
fn is_memcached(protocol: Option<KvProtocol>) -> bool {
    protocol.is_none_or(|protocol| protocol == KvProtocol::Memcached)
}

fn read_protocol(section: &mut Section<'_>) -> Option<KvProtocol> {
    let node = section.required("protocol", PROTOCOLS)?;
    let (id, start, length) = (section.optional("id"), section.optional("start"), section.optional("length"));
    let refuse = |nodes: [Option<Node<'_>>; 2], words: [&str; 2]| {
        for (node, word) in nodes.iter().zip(words).filter_map(|(node, word)| Some((node.as_ref()?, word))) {
            node.refuse(format!("nothing here: it is for protocol = \"{word}\""));
        }
    };
    match node.choice(&WORDS)? {
        Word::Memcached => {
            refuse([id, start], ["header", "offset"]);
            refuse([length, None], ["offset"; 2]);
            Some(KvProtocol::Memcached)
        }
        Word::Header => {
            refuse([start, length], ["offset"; 2]);
            let id = needed(section, id, "id", ID)?.number(0..=u8::MAX)?;
            Some(KvProtocol::Header { id })
        }
        Word::Offset => {
            refuse([id, None], ["header"; 2]);
            let start = start.map_or(Some(0), |node| node.number(0..=MAX_START));
            let length = needed(section, length, "length", LENGTH)?.number(1..=MAX_KEY_BYTES);
            Some(KvProtocol::Offset { start: start?, length: length? })
        }
    }
}

/// Of another protocol no command empties a server.
fn read_rejoin(node: Option<Node<'_>>, protocol: Option<KvProtocol>) -> Rejoin {
    let is_memcached = is_memcached(protocol);
    let default = if is_memcached { Rejoin::Flush } else { Rejoin::Serve };
    let Some(node) = node else { return default };
    let read = node.choice(&[("flush", Rejoin::Flush), ("serve", Rejoin::Serve)]);
    if read == Some(Rejoin::Flush) && !is_memcached {
        node.refuse("\"serve\": only memcached can be emptied");
    }
    read.unwrap_or(default)
}

/// A key that its protocol can't do without.
fn needed<'a>(
    section: &Section<'a>,
    node: Option<Node<'a>>,
    key: &'static str,
    allowed: &str,
) -> Option<Node<'a>> {
    if node.is_none() {
        section.report.absent(&section.place().key(key), "nothing", allowed);
    }
    node
}

/// A protocol's name.
#[derive(Clone, Copy)]
enum Word {
    Memcached,
    Header,
    Offset,
}

/// Prefixes, and none that holds a whole family unless that is meant.
fn read_clients(node: &Node<'_>, any_client: bool) -> Option<Vec<Prefix>> {
    let clients = read_sources(node)?;
    let open = clients.iter().find(|client| client.value.length() == 0 && !any_client);
    if let Some(At { value, place }) = open {
        node.report.error(place, value.to_string(), "longer prefixes, or any_client = true beside them");
        return None;
    }
    Some(values(&clients))
}

fn read_routes(node: &Node<'_>, pools: &mut Vec<At<Arc<str>>>) -> Option<Vec<KvRoute>> {
    let nodes = node.items(ROUTES)?;
    if nodes.len() > MAX_ROUTES {
        return node.wrong(ROUTES);
    }
    let read: Vec<_> = nodes.iter().map(|node| read_route(node, pools)).collect();
    let read: Option<Vec<_>> = read.into_iter().collect();
    let mut seen = BTreeSet::new();
    for (route, node) in read.iter().flatten().zip(&nodes) {
        if !seen.insert(&route.keys) {
            node.report.error(&node.place, "the same keys a second time", "each key and each prefix once");
            return None;
        }
    }
    read
}

fn read_route(node: &Node<'_>, pools: &mut Vec<At<Arc<str>>>) -> Option<KvRoute> {
    let mut section = node.section()?;
    let (key, prefix) = (section.optional("key"), section.optional("prefix"));
    let pool = section.required("pool", "the name of a pool").and_then(|node| node.reference());
    section.finish();
    pools.extend(pool.clone());
    let text = |node: Node<'_>| {
        node.parse(KEY, |text| {
            (1..=usize::from(MAX_KEY_BYTES)).contains(&text.len()).then(|| Arc::from(text))
        })
    };
    let keys = match (key, prefix) {
        (Some(key), None) => text(key).map(KvKeys::Key),
        (None, Some(prefix)) => text(prefix).map(KvKeys::Prefix),
        _ => {
            node.report.error(&node.place, "not one of key and prefix", "one of them");
            None
        }
    };
    Some(KvRoute { keys: keys?, pool: pool?.value })
}

/// Where to, and how long what is stored there may live.
fn read_failover(
    node: &Node<'_>,
    protocol: Option<KvProtocol>,
    pools: &mut Vec<At<Arc<str>>>,
) -> Option<(Failover, Option<Duration>)> {
    let mut section = node.section()?;
    let (to, pool, ttl) = (section.optional("to"), section.optional("pool"), section.optional("ttl"));
    section.finish();
    let failover = read_target(node, to, pool, pools)?;
    let default = default_ttl(&failover, protocol);
    let Some(node) = ttl else { return Some((failover, default)) };
    if default.is_none() {
        node.refuse("nothing here: it is for protocol = \"memcached\" whose keys go elsewhere");
        return None;
    }
    let ttl = node.duration(Duration::ZERO..=LONGEST_TTL)?;
    if ttl.subsec_nanos() > 0 {
        return node.wrong("whole seconds");
    }
    Some((failover, Some(ttl).filter(|ttl| !ttl.is_zero())))
}

fn default_ttl(failover: &Failover, protocol: Option<KvProtocol>) -> Option<Duration> {
    (is_memcached(protocol) && *failover != Failover::Nowhere).then_some(FAILOVER_TTL)
}

fn read_target(
    node: &Node<'_>,
    to: Option<Node<'_>>,
    pool: Option<Node<'_>>,
    pools: &mut Vec<At<Arc<str>>>,
) -> Option<Failover> {
    match (to, pool) {
        (Some(to), None) => {
            let is_next = to.choice(&[("next", true), ("nowhere", false)])?;
            Some(if is_next { Failover::Next } else { Failover::Nowhere })
        }
        (None, Some(pool)) => {
            let pool = pool.reference()?;
            pools.push(pool.clone());
            Some(Failover::Pool(pool.value))
        }
        _ => {
            let allowed = "to = \"next\", to = \"nowhere\", or pool = \"NAME\"";
            node.report.error(&node.place, "not one of to and pool", allowed);
            None
        }
    }
}

const WORDS: [(&str, Word); 3] =
    [("memcached", Word::Memcached), ("header", Word::Header), ("offset", Word::Offset)];
const HASHES: [(&str, KvHash); 3] =
    [("maglev", KvHash::Maglev), ("ketama", KvHash::Ketama), ("fnv1a_64", KvHash::Fnv1a64)];
const FAILOVER_TTL: Duration = Duration::from_secs(10);
/// Above it memcached takes a time for seconds of 1970.
const LONGEST_TTL: Duration = Duration::from_hours(24 * 30);
const ANSWER_TIMEOUT: Duration = Duration::from_millis(200);
const TIMEOUTS: &str = "1ms, 2ms, 5ms, 10ms, 20ms, 50ms, 100ms, 200ms, 500ms or 1s";
const MAX_KEYS: u8 = 32;
const MAX_KEY_BYTES: u8 = 250;
/// What a datagram of 1,400 bytes has room for.
const MAX_START: u16 = 1_400;
const MAX_ROUTES: usize = 65_536;
const PROTOCOLS: &str = "\"memcached\", \"header\" or \"offset\"";
const ID: &str = "the application's number, an integer from 0 to 255";
const LENGTH: &str = "the bytes of a key, an integer from 1 to 250";
const CLIENTS: &str = "a list of 1 to 256 prefixes or addresses of clients";
const ROUTES: &str =
    "a list of 1 to 65,536 of { key = \"KEY\", pool = \"NAME\" } and { prefix = \"TEXT\", pool = \"NAME\" }";
const KEY: &str = "a text of 1 to 250 bytes";
