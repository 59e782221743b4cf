//! The list of figures. The list maps the name of each figure to the code that computes, draws and
//! describes the figure.

use anyhow::{Result, bail};

use crate::{Csv, balance, build_time, day, keyed, resilience, scale, throughput, zero_copy};

/// A figure on the results page. The variants are in the order in which the page shows them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Figure {
    /// Figure 7 of the Maglev paper: a simulated day.
    Day,
    /// Figure 7 of the Maglev paper at other connection rates.
    Rates,
    /// Figure 8 of the Maglev paper: throughput with and without kernel bypass.
    Bypass,
    /// Figure 9 of the Maglev paper: throughput by type of traffic, measured in memory.
    Traffic,
    /// Figure 9 of the Maglev paper: throughput by type of traffic, measured on a veth.
    TrafficOnVeth,
    /// Figure 11 of the Maglev paper: balance of hashing methods.
    Balance,
    /// Figure 12 of the Maglev paper: table changes after backend failures.
    Resilience,
    /// The time to build a Maglev table, from section 5.3 of the Maglev paper.
    BuildTime,
    /// Figure 3 of the MemSwitch paper: get latency by request rate.
    KeyedByRate,
    /// Table 1 of the MemSwitch paper: latency at 100 gets per second.
    KeyedLight,
    /// Figure 4 of the MemSwitch paper: get latency by value size.
    KeyedBySize,
    /// Table 1 of the AppSwitch paper: throughput and latency of sets and gets.
    KeyedMixed,
    /// The instructions per packet of the whole machine.
    ZeroCopy,
    /// The growth of costs with the size of the configuration.
    Scale,
    /// The growth of costs with the number of flows.
    ScaleFlows,
}

impl Figure {
    /// All figures in the order of the results page.
    pub const ALL: [Self; 15] = [
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
        Self::ZeroCopy,
        Self::Scale,
        Self::ScaleFlows,
    ];

    /// Returns the short name, which is used on the command line and in file names.
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
            Self::ZeroCopy => "zero-copy",
            Self::Scale => "scale",
            Self::ScaleFlows => "scale-flows",
        }
    }

    /// Returns the figure with this short name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|figure| figure.name() == name)
    }

    pub(crate) fn title(self) -> &'static str {
        match self {
            Self::Day => "Maglev, Figure 7: load of endpoints over a day",
            Self::Rates => "Maglev, Figure 7 at other rates",
            Self::Bypass => "Maglev, Figure 8: with and without kernel bypass",
            Self::Traffic => "Maglev, Figure 9: types of traffic",
            Self::TrafficOnVeth => "Maglev, Figure 9 on a veth",
            Self::Balance => "Maglev, Figure 11: balance of hashing methods",
            Self::Resilience => "Maglev, Figure 12: resilience to backend failures",
            Self::BuildTime => "Maglev, §5.3: time to build a table",
            Self::KeyedByRate => "MemSwitch, Figure 3: get latency by rate",
            Self::KeyedLight => "MemSwitch, Table 1: 100 gets per second",
            Self::KeyedBySize => "MemSwitch, Figure 4: get latency by value size",
            Self::KeyedMixed => "AppSwitch, Table 1: sets and gets",
            Self::ZeroCopy => "Instructions per packet of the whole machine",
            Self::Scale => "Growth with VIPs, pools and backends",
            Self::ScaleFlows => "Growth with flows",
        }
    }

    /// Simulates or measures the figure and returns its rows. The caller adds the notes with the
    /// machine, the commit and the date.
    ///
    /// # Errors
    /// Returns an error for figures that need network interfaces (`cargo xtask figures` measures
    /// those), and if a result is wrong.
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
                bail!("run cargo xtask figures to measure figure {}", self.name())
            }
            Self::ZeroCopy => bail!("run cargo xtask bench zero-copy to measure this figure"),
            Self::Scale | Self::ScaleFlows => bail!("run cargo xtask bench scale to measure this figure"),
        }
    }

    /// Draws the figure as SVG.
    ///
    /// # Errors Returns an error if the rows belong to a different figure or a note is missing.
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
            Self::ZeroCopy => zero_copy::draw(csv),
            Self::Scale => scale::draw(csv),
            Self::ScaleFlows => scale::draw_flows(csv),
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
            Self::ZeroCopy => zero_copy::section(csv),
            Self::Scale => scale::section(csv),
            Self::ScaleFlows => scale::section_flows(csv),
        }
    }
}

/// The number of tables that are filled for each method and table size.
const SEEDS: u64 = 20;
