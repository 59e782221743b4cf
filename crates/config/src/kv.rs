//! The table `kv` of a pool, which makes the pool keyed: each request of a key-value client is sent
//! to the server that stores the key.
//!
//! This module reads the table into [`Kv`]. UDP services of such a pool choose a backend for each
//! request. The module `keyed` checks the pool and its VIPs, and the crate `kv-switch` parses
//! requests. The design follows the papers on AppSwitch and SmartSwitch (MemSwitch).

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use config_text::{At, Expected, Node, Place, Section, values};
use forwarder::{GATHER_TIMEOUTS_MS, Prefix};
use serde::Serialize;

use super::canonical;
use super::kv_cache::KvCache;
use super::kv_replicas::KvReplicas;
use super::upstream_tunnels::read_sources;

/// The settings of a keyed pool, which determine how requests are parsed and how a backend is
/// chosen for each request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Kv {
    /// The protocol of the requests. The protocol determines the position of the key in a request.
    /// Required.
    pub protocol: KvProtocol,
    /// One or more prefixes of clients that may send requests. Requests from other clients are
    /// dropped.
    #[serde(serialize_with = "canonical::set")]
    pub clients: Vec<Prefix>,
    /// Allows a prefix in `clients` that covers a whole address family. Default: `false`.
    pub any_client: bool,
    /// The keys that are stored in other pools, without duplicates. An exact key takes precedence
    /// over prefixes, and a longer prefix takes precedence over a shorter prefix. Default: none.
    #[serde(serialize_with = "canonical::sorted")]
    pub routes: Vec<KvRoute>,
    /// The pools in routes and failover, sorted by name and without duplicates.
    #[serde(skip)]
    pub pools: Vec<Arc<str>>,
    /// The destination of a request while the backend that stores its key is down. Default:
    /// [`Failover::Next`].
    pub failover: Failover,
    /// The maximum lifetime of a value that is stored on a different backend during failover, in
    /// whole seconds. If `None`, the lifetime requested by the client applies. Default: 10 s. The
    /// value is `None` with [`Failover::Nowhere`], and for protocols other than memcached, whose
    /// expiry times are not parsed.
    #[serde(serialize_with = "canonical::some_span")]
    pub failover_ttl: Option<Duration>,
    /// The maximum number of keys in a request: 1 to 32. Default: 32.
    pub max_keys: u8,
    /// The hash function that maps keys to backends. Default: [`KvHash::Maglev`].
    pub hash: KvHash,
    /// The action that is taken when a server is up again, before it receives requests. Default:
    /// [`Rejoin::Flush`] for memcached, otherwise [`Rejoin::Serve`].
    pub rejoin: Rejoin,
    /// The path of requests and replies. Default: [`KvPath::Direct`].
    pub path: KvPath,
    /// The settings for requests whose keys belong to several backends. If `None`, such requests
    /// are rejected. The protocols `header` and `offset` always reject such requests.
    pub gather: Option<KvGather>,
    /// The settings of the cache from which this machine answers reads of hot keys. If `None` (the
    /// default), there is no cache.
    pub cache: Option<KvCache>,
    /// The settings for replication of keys. If `None` (the default), each key is stored on one
    /// backend.
    pub replicas: Option<KvReplicas>,
}

/// The path of requests and replies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum KvPath {
    /// Backends have the VIP address and reply directly to clients.
    Direct,
    /// Requests are sent to the backends' own addresses, and replies pass through this machine.
    Proxied {
        /// The maximum time to wait for a reply, one of [`forwarder::GATHER_TIMEOUTS_MS`]. Default:
        /// 200 ms.
        #[serde(serialize_with = "canonical::span")]
        answer_timeout: Duration,
    },
}

impl KvPath {
    fn read(section: &mut Section<'_>, protocol: Option<KvProtocol>) -> Self {
        let is_memcached = is_memcached(protocol);
        let node = section.optional("path");
        let words = [("direct", false), ("proxied", true)];
        let is_proxied = node.as_ref().and_then(|node| Some((node.choice(&words)?, node))).is_some_and(
            |(is_proxied, node)| {
                if is_proxied && !is_memcached {
                    let help = "other protocols have no request ids to match replies with";
                    node.refuse(("path = \"proxied\" needs protocol = \"memcached\"", help));
                }
                is_proxied && is_memcached
            },
        );
        let node = section.optional("answer_timeout");
        let timeout = node.as_ref().and_then(read_timeout);
        if is_proxied {
            return Self::Proxied { answer_timeout: timeout.unwrap_or(ANSWER_TIMEOUT) };
        }
        node.inspect(|node| node.needs("path = \"proxied\""));
        Self::Direct
    }
}

/// Reads a timeout, which must be one of the timeouts that packet threads support.
fn read_timeout(node: &Node<'_>) -> Option<Duration> {
    let timeout = node.duration(Duration::ZERO..=Duration::from_secs(1))?;
    let is_one = |millis: &u16| timeout == Duration::from_millis((*millis).into());
    let is_known = GATHER_TIMEOUTS_MS.iter().any(is_one);
    if is_known { Some(timeout) } else { node.unexpected(TIMEOUTS) }
}

/// The settings for requests whose keys belong to several backends. This machine splits such a
/// request and combines the replies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct KvGather {
    /// The maximum time to wait for all backends, one of [`forwarder::GATHER_TIMEOUTS_MS`].
    /// Default: 20 ms.
    #[serde(serialize_with = "canonical::span")]
    pub timeout: Duration,
    /// The reply that the client receives if a backend does not reply in time. Default:
    /// [`KvMissing::Silent`].
    pub missing: KvMissing,
}

/// The reply that the client receives if a backend does not reply in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum KvMissing {
    /// No reply is sent.
    Silent,
    /// The reply reports the keys of that backend as missing.
    Miss,
}

impl KvGather {
    const DEFAULT: Self = Self { timeout: Duration::from_millis(20), missing: KvMissing::Silent };

    /// Reads the value of `gather`, which is a table or `false`. Only memcached replies can be
    /// combined.
    fn read(node: Option<Node<'_>>, protocol: Option<KvProtocol>) -> Option<Self> {
        let is_memcached = is_memcached(protocol);
        let Some(node) = node else { return is_memcached.then_some(Self::DEFAULT) };
        let mut section = node.section_or_false()?;
        let timeout = section.or("timeout", Self::DEFAULT.timeout, |node| read_timeout(&node));
        let words = [("silent", KvMissing::Silent), ("miss", KvMissing::Miss)];
        let missing = section.or("missing", Self::DEFAULT.missing, |node| node.choice(&words));
        section.finish();
        if !is_memcached {
            node.needs("protocol = \"memcached\"");
        }
        Some(Self { timeout, missing })
    }
}

/// The action that is taken when a server is up again, before it receives requests. While the
/// server was down, its keys were stored on other servers, so its values may be stale.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Rejoin {
    /// The server is first emptied with the command `flush_all`, which is sent to the ports of the
    /// UDP services at the backend's own address.
    Flush,
    /// The server receives requests immediately.
    Serve,
}

/// The protocol of requests. The protocol determines the position of the key in a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum KvProtocol {
    /// memcached over UDP: ASCII, binary and meta commands.
    Memcached,
    /// Each request has a header that contains the position of the key (AppSwitch §5.1).
    Header {
        /// The application id, which is the first byte of each request. Required.
        id: u8,
    },
    /// The key is at a fixed offset in each request.
    Offset {
        /// The offset of the key in bytes: 0 to 1,400. Default: 0.
        start: u16,
        /// The length of the key in bytes: 1 to 250. Required.
        length: u8,
    },
}

/// The hash function that maps keys to backends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum KvHash {
    /// The Maglev table, indexed by a keyed hash.
    Maglev,
    /// The ketama ring with MD5, as in libmemcached (`KETAMA_WEIGHTED`) and nutcracker
    /// (`distribution: ketama`).
    Ketama,
    /// The ketama ring with `fnv1a_64`, the default hash of nutcracker.
    #[serde(rename = "fnv1a_64")]
    Fnv1a64,
}

/// A route: keys that are stored in another pool.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct KvRoute {
    /// The keys that the route matches.
    #[serde(flatten)]
    pub keys: KvKeys,
    /// The name of the other pool. [`Config::pool`](super::Config::pool) returns the pool.
    pub pool: Arc<str>,
}

/// The keys that a route matches, 1 to 250 bytes each.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum KvKeys {
    /// One key.
    Key(Arc<str>),
    /// All keys with this prefix.
    Prefix(Arc<str>),
}

/// The destination of a request while the backend that stores its key is down.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Failover {
    /// The next backend of the same pool, in the order that the hash defines.
    Next,
    /// Another pool.
    Pool(Arc<str>),
    /// No destination. The requests are dropped.
    Nowhere,
}

/// The table `kv`, with the positions of its values.
pub(super) struct KvDraft {
    pub(super) place: Place,
    /// `None` if the table has an error.
    pub(super) value: Option<Arc<Kv>>,
    /// The names of pools in the routes and the failover.
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

/// Reads all keys of the table, so that every error is reported. Adds the names of pools to
/// `pools`. Returns `None` if a required key is missing or wrong.
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

/// Returns `true` if configuration keys that need memcached are allowed. An invalid protocol also
/// allows them, to avoid misleading errors.
fn is_memcached(protocol: Option<KvProtocol>) -> bool {
    protocol.is_none_or(|protocol| protocol == KvProtocol::Memcached)
}

fn read_protocol(section: &mut Section<'_>) -> Option<KvProtocol> {
    let node = section.required("protocol", PROTOCOLS)?;
    let (id, start, length) = (section.optional("id"), section.optional("start"), section.optional("length"));
    let refuse = |nodes: [Option<Node<'_>>; 2], words: [&str; 2]| {
        for (node, word) in nodes.iter().zip(words).filter_map(|(node, word)| Some((node.as_ref()?, word))) {
            node.needs(&format!("protocol = \"{word}\""));
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

/// Reads `rejoin`. The value `flush` needs memcached, because other protocols have no command that
/// empties a server.
fn read_rejoin(node: Option<Node<'_>>, protocol: Option<KvProtocol>) -> Rejoin {
    let is_memcached = is_memcached(protocol);
    let default = if is_memcached { Rejoin::Flush } else { Rejoin::Serve };
    let Some(node) = node else { return default };
    let read = node.choice(&[("flush", Rejoin::Flush), ("serve", Rejoin::Serve)]);
    if read == Some(Rejoin::Flush) && !is_memcached {
        let help = "use rejoin = \"serve\"; other protocols cannot empty a server";
        node.refuse(("rejoin = \"flush\" needs protocol = \"memcached\"", help));
    }
    read.unwrap_or(default)
}

/// Returns the value of a key that the protocol requires, or reports that the key is missing.
fn needed<'a>(
    section: &Section<'a>,
    node: Option<Node<'a>>,
    key: &'static str,
    help: &str,
) -> Option<Node<'a>> {
    if node.is_none() {
        section.lacks(key, help);
    }
    node
}

/// A value of the key `protocol`.
#[derive(Clone, Copy)]
enum Word {
    Memcached,
    Header,
    Offset,
}

/// Reads the list of clients. Rejects a prefix that covers a whole address family unless
/// `any_client` is `true`.
fn read_clients(node: &Node<'_>, any_client: bool) -> Option<Vec<Prefix>> {
    let clients = read_sources(node)?;
    let open = clients.iter().find(|client| client.value.length() == 0 && !any_client);
    if let Some(At { value, place }) = open {
        let message = format!("prefix {value} allows every client to send requests");
        node.report.error(place, (message, "use longer prefixes, or set any_client = true"));
        return None;
    }
    Some(values(&clients))
}

fn read_routes(node: &Node<'_>, pools: &mut Vec<At<Arc<str>>>) -> Option<Vec<KvRoute>> {
    let nodes = node.items(ROUTES)?;
    if nodes.len() > MAX_ROUTES {
        return node.wrong(format!("\"routes\" has {} entries, and the limit is {MAX_ROUTES}", nodes.len()));
    }
    let read: Vec<_> = nodes.iter().map(|node| read_route(node, pools)).collect();
    let read: Option<Vec<_>> = read.into_iter().collect();
    let mut seen = BTreeSet::new();
    for (route, node) in read.iter().flatten().zip(&nodes) {
        if !seen.insert(&route.keys) {
            node.refuse("an earlier route has the same keys");
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
            let help = "for example { key = \"user:1\", pool = \"NAME\" } or { prefix = \"user:\", pool = \"NAME\" }";
            node.refuse(("a route needs the key \"key\" or \"prefix\"", help));
            None
        }
    };
    Some(KvRoute { keys: keys?, pool: pool?.value })
}

/// Reads the failover target, and the maximum lifetime of values that are stored on this target.
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
        node.needs("protocol = \"memcached\", and a failover to other backends");
        return None;
    }
    let ttl = node.duration(Duration::ZERO..=LONGEST_TTL)?;
    if ttl.subsec_nanos() > 0 {
        return node.wrong(format!("\"ttl\" must be whole seconds, got {}", node.shown()));
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
            let help = "write to = \"next\", to = \"nowhere\", or pool = \"NAME\"";
            node.refuse(("\"failover\" needs the key \"to\" or \"pool\"", help));
            None
        }
    }
}

const WORDS: [(&str, Word); 3] =
    [("memcached", Word::Memcached), ("header", Word::Header), ("offset", Word::Offset)];
const HASHES: [(&str, KvHash); 3] =
    [("maglev", KvHash::Maglev), ("ketama", KvHash::Ketama), ("fnv1a_64", KvHash::Fnv1a64)];
const FAILOVER_TTL: Duration = Duration::from_secs(10);
/// The maximum TTL. Memcached interprets larger values as absolute times.
const LONGEST_TTL: Duration = Duration::from_hours(24 * 30);
const ANSWER_TIMEOUT: Duration = Duration::from_millis(200);
const TIMEOUTS: Expected =
    Expected::new("one of 1ms, 2ms, 5ms, 10ms, 20ms, 50ms, 100ms, 200ms, 500ms and 1s");
const MAX_KEYS: u8 = 32;
const MAX_KEY_BYTES: u8 = 250;
/// The maximum offset of a key, which must fit into a datagram of 1,400 bytes.
const MAX_START: u16 = 1_400;
const MAX_ROUTES: usize = 65_536;
const PROTOCOLS: Expected =
    Expected::new("one of \"memcached\", \"header\" and \"offset\"").example("\"memcached\"");
const ID: &str = "\"id\" is the application id, from 0 to 255";
const LENGTH: &str = "\"length\" is the length of a key in bytes, from 1 to 250";
const CLIENTS: Expected =
    Expected::new("a list of prefixes or addresses of clients").example("[\"198.51.100.0/24\"]");
const ROUTES: Expected = Expected::new("a list of routes").example("[{ key = \"user:1\", pool = \"NAME\" }]");
const KEY: Expected = Expected::new("a string of 1 to 250 bytes").example("\"user:1\"");
