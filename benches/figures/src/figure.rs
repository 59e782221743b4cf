//! The figures by name: what each does, and its title.

use anyhow::{Result, bail};

use crate::{Csv, balance, build_time, day, keyed, resilience, throughput};

/// A figure of the page, in its order there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Figure {
    /// 7: a simulated day.
    Day,
    /// 7, at other rates.
    Rates,
    /// 8: with and without kernel bypass.
    Bypass,
    /// 9: types of traffic, in memory.
    Traffic,
    /// 9: types of traffic, on a veth.
    TrafficOnVeth,
    /// 11: hashing methods.
    Balance,
    /// 12: failures of backends.
    Resilience,
    /// The build time of a table.
    BuildTime,
    /// MemSwitch's 3: gets by rate.
    KeyedByRate,
    /// MemSwitch's Table 1: few gets.
    KeyedLight,
    /// MemSwitch's 4: gets by size.
    KeyedBySize,
    /// AppSwitch's Table 1: sets and gets.
    KeyedMixed,
}

impl Figure {
    /// All.
    pub const ALL: [Self; 12] = [
        Self::Day,
        Self::Rates,
        Self::Bypass,
        Self::Traffic,
        Self::TrafficOnVeth,
        Self::Balance,
        Self::Resilience,
        Self::BuildTime,
        Self::KeyedByRate,
        Self::KeyedLight,
        Self::KeyedBySize,
        Self::KeyedMixed,
    ];

    /// By which it is asked for, and which its files bear.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Day => "7",
            Self::Rates => "7-rates",
            Self::Bypass => "8",
            Self::Traffic => "9",
            Self::TrafficOnVeth => "9-veth",
            Self::Balance => "11",
            Self::Resilience => "12",
            Self::BuildTime => "build",
            Self::KeyedByRate => "kv-rate",
            Self::KeyedLight => "kv-light",
            Self::KeyedBySize => "kv-size",
            Self::KeyedMixed => "kv-mixed",
        }
    }

    /// The one of this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|figure| figure.name() == name)
    }

    pub(crate) fn title(self) -> &'static str {
        match self {
            Self::Day => "Figure 7: load of the endpoints over a day",
            Self::Rates => "Figure 7 at other rates",
            Self::Bypass => "Figure 8: with and without kernel bypass",
            Self::Traffic => "Figure 9: types of traffic",
            Self::TrafficOnVeth => "Figure 9 on a veth",
            Self::Balance => "Figure 11: balance of hashing methods",
            Self::Resilience => "Figure 12: resilience to failures of backends",
            Self::BuildTime => "Build time of a table (§5.3)",
            Self::KeyedByRate => "MemSwitch, Figure 3: gets by their rate",
            Self::KeyedLight => "MemSwitch, Table 1: 100 gets a second",
            Self::KeyedBySize => "MemSwitch, Figure 4: gets by the size of a value",
            Self::KeyedMixed => "AppSwitch, Table 1: sets and gets",
        }
    }

    /// Its rows, without notes of where and when.
    ///
    /// # Errors
    /// It is measured on interfaces, which is not done here, or what it measures is wrong.
    pub fn run(self) -> Result<Csv> {
        match self {
            Self::Day => Ok(day::run()),
            Self::Rates => Ok(day::run_rates()),
            Self::Balance => Ok(balance::run(SEEDS)),
            Self::Resilience => resilience::run(),
            Self::BuildTime => build_time::run(),
            Self::Bypass
            | Self::Traffic
            | Self::TrafficOnVeth
            | Self::KeyedByRate
            | Self::KeyedLight
            | Self::KeyedBySize
            | Self::KeyedMixed => {
                bail!("figure {} is measured by cargo xtask figures", self.name())
            }
        }
    }

    /// Its plot, an SVG.
    ///
    /// # Errors
    /// Rows of another figure, or notes that are not there.
    pub fn draw(self, csv: &Csv) -> Result<String> {
        match self {
            Self::Day => day::draw(csv),
            Self::Rates => day::draw_rates(csv),
            Self::Bypass => throughput::draw_bypass(csv),
            Self::Traffic => throughput::draw_traffic(csv, "in memory"),
            Self::TrafficOnVeth => throughput::draw_traffic(csv, "on a veth"),
            Self::Balance => balance::draw(csv),
            Self::Resilience => resilience::draw(csv),
            Self::BuildTime => build_time::draw(csv),
            Self::KeyedByRate => keyed::draw_rates(csv),
            Self::KeyedLight => keyed::draw_light(csv),
            Self::KeyedBySize => keyed::draw_sizes(csv),
            Self::KeyedMixed => keyed::draw_mixed(csv),
        }
    }

    pub(crate) fn section(self, csv: &Csv) -> Result<String> {
        match self {
            Self::Day => day::section(csv),
            Self::Rates => day::section_rates(csv),
            Self::Bypass => throughput::section_bypass(csv),
            Self::Traffic => throughput::section_traffic(csv),
            Self::TrafficOnVeth => throughput::section_on_veth(csv),
            Self::Balance => balance::section(csv),
            Self::Resilience => resilience::section(csv),
            Self::BuildTime => build_time::section(csv),
            Self::KeyedByRate => keyed::section_rates(csv),
            Self::KeyedLight => keyed::section_light(csv),
            Self::KeyedBySize => keyed::section_sizes(csv),
            Self::KeyedMixed => keyed::section_mixed(csv),
        }
    }
}

/// Tables of each method and size.
const SEEDS: u64 = 20;
