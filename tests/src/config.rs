//! The balancers' configuration file, written for a bed.
//!
//! In: a [`Bed`], and what a test wants different. Out: TOML in the shape of `config/sluicegate.toml`, and its hash key beside it.
//! One file serves all balancers of the bed: each finds itself by its name.

use std::fmt::Write as _;
use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::net::IpAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;

use anyhow::{Context, Result};

use crate::{Bed, Host};

/// How packets go to the backends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encapsulation {
    /// `gre`
    Gre,
    /// `ipip`
    Ipip,
    /// `gue`
    Gue,
    /// `l2`: the bed must be switched.
    L2,
}

impl Encapsulation {
    /// As the file writes it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Gre => "gre",
            Self::Ipip => "ipip",
            Self::Gue => "gue",
            Self::L2 => "l2",
        }
    }
}

/// A service of every VIP.
#[derive(Clone, Debug)]
pub struct Service {
    /// As in TOML: `80`, or `"8000-8099"`.
    pub ports: String,
    /// `tcp` or `udp`.
    pub protocol: &'static str,
    /// The key `hash`, when it is not the default.
    pub hash: Option<&'static str>,
}

/// A backend of the pool.
#[derive(Clone, Debug)]
pub struct PoolMember {
    /// Its name in the cluster.
    pub name: String,
    /// Where encapsulated packets go: its family is the outer one.
    pub address: IpAddr,
    /// Its share, relative to the others.
    pub weight: u32,
    /// The key `ring_name`, when it is not the default.
    pub ring_name: Option<&'static str>,
}

/// What the file says. All fields may be changed; `new` gives what the bed offers.
#[derive(Clone, Debug)]
pub struct LbConfig {
    /// `log.level`.
    pub log_level: &'static str,
    /// Encapsulation of the pool.
    pub encapsulation: Encapsulation,
    /// More keys of the encapsulation's table, as TOML lines.
    pub encapsulation_keys: String,
    /// The pool.
    pub pool: Vec<PoolMember>,
    /// The addresses to balance.
    pub vips: Vec<IpAddr>,
    /// Services of each VIP.
    pub services: Vec<Service>,
    /// More keys of the VIP's table, as TOML lines.
    pub vip_keys: String,
    /// Further interfaces of each balancer, beside its own device.
    pub interfaces: Vec<String>,
    /// The `[io]` table, as TOML lines.
    pub io: String,
    /// Further keys of `[cluster]`, as TOML lines. At first no drain time, so that a balancer stops at once.
    pub cluster: String,
    /// Further keys of the pool, as TOML lines.
    pub pool_keys: String,
    /// Further keys of `[admin]`, as TOML lines.
    pub admin: String,
    /// Further tables, as TOML.
    pub more: String,
    /// Whether each balancer is a cluster by itself, and its file names no other.
    pub alone: bool,
}

impl LbConfig {
    /// GRE over IPv4 to all backends with weight 1, for HTTP and both UDP ports.
    #[must_use]
    pub fn new(bed: &Bed) -> Self {
        let member = |host: &Host| PoolMember {
            name: host.name.clone(),
            address: host.v4.into(),
            weight: 1,
            ring_name: None,
        };
        let service = |port: u16, protocol| Service { ports: port.to_string(), protocol, hash: None };
        Self {
            log_level: "info",
            encapsulation: Encapsulation::Gre,
            encapsulation_keys: String::new(),
            pool: bed.backends.iter().map(member).collect(),
            vips: bed.spec.vips.clone(),
            services: vec![
                service(Bed::HTTP_PORT, "tcp"),
                service(Bed::ECHO_PORT, "udp"),
                service(Bed::SINK_PORT, "udp"),
            ],
            vip_keys: String::new(),
            interfaces: vec![],
            io: String::new(),
            cluster: "drain_time = \"0s\"".into(),
            pool_keys: String::new(),
            admin: String::new(),
            more: String::new(),
            alone: false,
        }
    }

    /// The same with these weights, in the order of the pool.
    #[must_use]
    pub fn weights(mut self, weights: &[u32]) -> Self {
        self.pool.iter_mut().zip(weights).for_each(|(member, &weight)| member.weight = weight);
        self
    }

    /// The same with another encapsulation.
    #[must_use]
    pub fn encapsulation(mut self, encapsulation: Encapsulation) -> Self {
        self.encapsulation = encapsulation;
        self
    }

    /// The same with outer packets of IPv6.
    #[must_use]
    pub fn outer_v6(mut self, bed: &Bed) -> Self {
        self.pool.iter_mut().zip(&bed.backends).for_each(|(member, host)| member.address = host.v6.into());
        self
    }

    /// Writes the file for balancer `index`, and the hash key; returns the file's path.
    ///
    /// # Errors
    /// The bed's folder can't be written.
    pub fn write(&self, bed: &Bed, index: usize) -> Result<PathBuf> {
        let key = bed.dir().join("hash.key");
        if !key.exists() {
            let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&key)?;
            file.write_all(HASH_KEY)?;
        }
        let name = &bed.balancers[index].name;
        let path = bed.dir().join(format!("{name}.toml"));
        fs::write(&path, self.toml(bed, index)).with_context(|| format!("can't write {}", path.display()))?;
        Ok(path)
    }

    /// Where balancer `index` has its admin socket.
    #[must_use]
    pub fn admin_socket(bed: &Bed, index: usize) -> PathBuf {
        bed.dir().join(format!("{}.sock", bed.balancers[index].name))
    }

    /// The file's text for balancer `index`.
    #[must_use]
    pub fn toml(&self, bed: &Bed, index: usize) -> String {
        let level = self.log_level;
        let mut text = format!("schema = 1\nlog = {{ level = \"{level}\", format = \"json\" }}\n");
        let mut say = |line: String| {
            text.push_str(&line);
            text.push('\n');
        };
        say(format!(
            "[cluster]\nname = \"bed\"\nhash_key_file = {:?}\n{}",
            bed.dir().join("hash.key"),
            self.cluster
        ));
        let machines = bed.balancers.iter().enumerate().filter(|(n, _)| !self.alone || *n == index);
        machines.for_each(|(_, host)| say(self.machine(host)));
        say(format!("[io]\n{}", self.io));
        let (kind, keys) = (self.encapsulation.name(), &self.encapsulation_keys);
        say(format!("[encapsulation.tunnel]\nkind = \"{kind}\"\n{keys}"));
        say(format!(
            "[pool.web]\nencapsulation = \"tunnel\"\nbackends = [{}]\n{}",
            self.members(),
            self.pool_keys
        ));
        let vips: Vec<String> = self.vips.iter().map(|vip| format!("\"{vip}\"")).collect();
        say(format!(
            "[vip.www]\naddresses = [{}]\nservices = [{}]\n{}",
            vips.join(", "),
            self.services(),
            self.vip_keys
        ));
        say(format!("[admin]\nsocket = {{ path = {:?} }}\n{}\n", Self::admin_socket(bed, index), self.admin));
        text + &self.more
    }

    fn machine(&self, Host { name, v4, v6, device, .. }: &Host) -> String {
        let further: String = self.interfaces.iter().map(|name| format!(", \"{name}\"")).collect();
        format!(
            "[machine.{name}]\nshard = \"a\"\naddresses = [\"{v4}\", \"{v6}\"]\n\
             interfaces = [\"{device}\"{further}]"
        )
    }

    fn members(&self) -> String {
        self.pool.iter().fold(String::new(), |mut text, PoolMember { name, address, weight, ring_name }| {
            let ring = ring_name.map(|name| format!(", ring_name = \"{name}\"")).unwrap_or_default();
            let _ =
                write!(text, "{{ name = \"{name}\", address = \"{address}\", weight = {weight}{ring} }}, ");
            text
        })
    }

    fn services(&self) -> String {
        self.services.iter().fold(String::new(), |mut text, Service { ports, protocol, hash }| {
            let hash = hash.map(|hash| format!(", hash = \"{hash}\"")).unwrap_or_default();
            let _ =
                write!(text, "{{ ports = [{ports}], protocol = \"{protocol}\", pool = \"web\"{hash} }}, ");
            text
        })
    }
}

/// Known to everybody: for a bed alone.
const HASH_KEY: &[u8] = b"000102030405060708090a0b0c0d0e0f\n";
