//! Writes the configuration files of the balancers in a testbed.
//!
//! The files have the same structure as `config/sluicegate.toml`. The hash key is in a separate
//! file. All balancers of a testbed have the same settings. The configuration has a section for
//! each balancer, which the balancer selects by its host name.

use std::fmt::Write as _;
use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::net::IpAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;

use anyhow::{Context, Result};

use crate::{Bed, Host};

/// The encapsulation of packets to the backends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encapsulation {
    /// `gre`
    Gre,
    /// `ipip`
    Ipip,
    /// `gue`
    Gue,
    /// `l2` (MAC address rewriting), which requires a testbed with a shared bridge.
    L2,
}

impl Encapsulation {
    /// Returns the name of the encapsulation in the configuration file.
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

/// A service that is configured on every VIP.
#[derive(Clone, Debug)]
pub struct Service {
    /// The ports as a TOML value, such as `80` or `"8000-8099"`.
    pub ports: String,
    /// The protocol: `tcp` or `udp`.
    pub protocol: &'static str,
    /// The value of the configuration key `hash`, or `None` for the default.
    pub hash: Option<&'static str>,
}

/// A backend of the pool.
#[derive(Clone, Debug)]
pub struct PoolMember {
    /// The name of the backend.
    pub name: String,
    /// The address of the backend. The family of this address is the family of the outer header.
    pub address: IpAddr,
    /// The weight, relative to the other backends.
    pub weight: u32,
    /// The value of the configuration key `ring_name`, or `None` for the default.
    pub ring_name: Option<&'static str>,
}

/// The contents of the configuration file. [`Self::new`] returns defaults for a testbed. Tests
/// change individual fields.
#[derive(Clone, Debug)]
pub struct LbConfig {
    /// The value of `log.level`.
    pub log_level: &'static str,
    /// The encapsulation of the pool.
    pub encapsulation: Encapsulation,
    /// Additional lines of TOML for the table of the encapsulation.
    pub encapsulation_keys: String,
    /// The backends of the pool.
    pub pool: Vec<PoolMember>,
    /// The VIP addresses.
    pub vips: Vec<IpAddr>,
    /// The services of each VIP.
    pub services: Vec<Service>,
    /// Additional keys of each UDP service, such as `on_drain = "move"`.
    pub udp_keys: &'static str,
    /// Additional lines of TOML for the table of each VIP.
    pub vip_keys: String,
    /// Names of additional interfaces on each balancer.
    pub interfaces: Vec<String>,
    /// The lines of the `[io]` table.
    pub io: String,
    /// Additional lines of TOML for `[cluster]`. The default sets a drain time of 0 s, so that a
    /// balancer stops immediately.
    pub cluster: String,
    /// Additional lines of TOML for the pool.
    pub pool_keys: String,
    /// Additional lines of TOML for `[admin]`.
    pub admin: String,
    /// Additional TOML tables at the end of the file.
    pub more: String,
    /// `true` if each balancer forms its own cluster. A balancer's configuration file then names no
    /// other machine.
    pub alone: bool,
}

impl LbConfig {
    /// Returns a configuration in which all backends have weight 1 and get packets in GRE over
    /// IPv4. The VIPs have services for HTTP and for both UDP ports.
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
            udp_keys: "",
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

    /// Sets the weights of the backends in the order of `pool`.
    #[must_use]
    pub fn weights(mut self, weights: &[u32]) -> Self {
        self.pool.iter_mut().zip(weights).for_each(|(member, &weight)| member.weight = weight);
        self
    }

    /// Sets the encapsulation.
    #[must_use]
    pub fn encapsulation(mut self, encapsulation: Encapsulation) -> Self {
        self.encapsulation = encapsulation;
        self
    }

    /// Changes the backend addresses to IPv6, so that packets get IPv6 outer headers.
    #[must_use]
    pub fn outer_v6(mut self, bed: &Bed) -> Self {
        self.pool.iter_mut().zip(&bed.backends).for_each(|(member, host)| member.address = host.v6.into());
        self
    }

    /// Writes the configuration file for balancer `index` and the hash key. Returns the path of the
    /// configuration file.
    ///
    /// # Errors
    /// Returns an error if the directory of the testbed is not writable.
    pub fn write(&self, bed: &Bed, index: usize) -> Result<PathBuf> {
        let key = bed.dir().join("hash.key");
        if !key.exists() {
            let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&key)?;
            file.write_all(HASH_KEY)?;
        }
        let name = &bed.balancers[index].name;
        let path = bed.dir().join(format!("{name}.toml"));
        fs::write(&path, self.toml(bed, index))
            .with_context(|| format!("cannot write {}", path.display()))?;
        Ok(path)
    }

    /// Returns the path of the admin socket of balancer `index`.
    #[must_use]
    pub fn admin_socket(bed: &Bed, index: usize) -> PathBuf {
        bed.dir().join(format!("{}.sock", bed.balancers[index].name))
    }

    /// Returns the configuration text for balancer `index`.
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
        let unchecked = if self.pool_keys.contains("checks = ") { "" } else { "checks = []\n" };
        say(format!(
            "[pool.web]\nencapsulation = \"tunnel\"\nbackends = [{}]\n{unchecked}{}",
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
            let keys = if *protocol == "udp" && !self.udp_keys.is_empty() { ", " } else { "" };
            let keys = format!("{keys}{}", if keys.is_empty() { "" } else { self.udp_keys });
            let _ = write!(
                text,
                "{{ ports = [{ports}], protocol = \"{protocol}\", pool = \"web\"{hash}{keys} }}, "
            );
            text
        })
    }
}

/// The hash key of all testbeds. The key is public, so it must not be used elsewhere.
const HASH_KEY: &[u8] = b"000102030405060708090a0b0c0d0e0f\n";
