//! Implements `sluicegate config check`, which reports the problems in a configuration, and
//! `sluicegate config schema`.
//!
//! The check compiles the configuration of each machine as `sluicegate run` does, and prints how
//! many VIPs, pools and backends the machine serves. The subcommand does not resolve next hops, and
//! runs no health checks.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use compile::Compiler;
use config::{self, Config, Machine, Problems};
use control_plane::digest::hex;
use control_plane::problem_row;
use serde::Serialize;
use serde_json::{Value, json};

use admin_client::{errln, out, outln, print_json, verdict};

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// Check this configuration file, or standard input for `-`
    #[arg(value_parser = admin_client::file_or_stdin)]
    file: PathBuf,
    /// Check the configuration of this machine (default: the machine with the name of this host, or
    /// all machines if the configuration has no such machine)
    #[arg(long, value_name = "NAME")]
    machine: Option<String>,
    /// Check the configurations of all machines in all shards
    #[arg(long, conflicts_with = "machine")]
    all_shards: bool,
    /// Do not read keys and certificates, for example on a CI runner that does not have the secrets
    #[arg(long)]
    without_secrets: bool,
    /// Print the results as JSON
    #[arg(long)]
    json: bool,
}

/// The result for one machine: how many VIPs, pools and backends the machine has, or the error that
/// prevents the machine from running.
#[derive(Serialize)]
struct Outcome {
    #[serde(rename = "name")]
    machine: String,
    shard: Option<String>,
    vips: usize,
    pools: usize,
    backends: usize,
    error: Option<String>,
}

/// Prints all problems. The exit code is 1 if a problem is an error, or if a machine cannot run
/// with this configuration.
pub(crate) fn check(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let loaded = if arguments.without_secrets {
        config::load_without_secrets(&arguments.file)
    } else {
        config::load(&arguments.file)
    };
    let (config, problems) = match loaded {
        Ok((config, warnings)) => (Some(config), warnings),
        Err(problems) => (None, problems),
    };
    let outcomes = match &config {
        Some(config) => compile(config, &machines(config, arguments)?),
        None => Vec::new(),
    };
    if arguments.json {
        print_json(&report(arguments, config.as_ref(), &problems, &outcomes))?;
    } else {
        out!("{}", words(&arguments.file, &problems, &outcomes));
    }
    Ok(verdict(config.is_some() && outcomes.iter().all(|outcome| outcome.error.is_none())))
}

/// Prints the JSON schema of the configuration file.
pub(crate) fn schema() -> ExitCode {
    outln!("{:#}", config::schema());
    ExitCode::SUCCESS
}

/// Returns the machines selected on the command line.
fn machines<'c>(config: &'c Config, arguments: &Arguments) -> anyhow::Result<Vec<&'c Machine>> {
    if let Some(name) = &arguments.machine {
        return Ok(vec![compile::find_machine(config, name)?]);
    }
    let host = nix::unistd::gethostname().ok();
    let host = host.as_ref().map(|host| host.to_string_lossy());
    let own = host.and_then(|host| config.machine(host.split('.').next().unwrap_or_default()));
    Ok(match own.filter(|_| !arguments.all_shards) {
        Some(machine) => vec![machine],
        None => config.machines().iter().collect(),
    })
}

/// Compiles the configurations of all machines. The machines share one compiler, so that a table
/// that several machines use is built only once.
fn compile(config: &Config, machines: &[&Machine]) -> Vec<Outcome> {
    let mut compiler = Compiler::default();
    let outcome = |machine: &&Machine| {
        let compiled = compiler.compile_file(config, machine.name());
        let services = || config.vips_of(machine).flat_map(|vip| &vip.services);
        let pools: BTreeSet<&str> = services().map(|service| &*service.pool.name).collect();
        Outcome {
            machine: machine.name().to_owned(),
            shard: machine.shard().map(str::to_owned),
            vips: config.vips_of(machine).count(),
            pools: pools.len(),
            backends: compiled.as_ref().map_or(0, |compiled| compiled.index.backend_count()),
            error: compiled.err().map(|error| error.to_string()),
        }
    };
    machines.iter().map(outcome).collect()
}

fn words(file: &Path, problems: &Problems, outcomes: &[Outcome]) -> String {
    let mut text = match problems.is_empty() {
        true => format!("{}: no problem found\n", file.display()),
        false => format!("{problems}\n"),
    };
    for Outcome { machine, shard, vips, pools, backends, error } in outcomes {
        let shard = shard.as_ref().map(|shard| format!(" (shard {shard})")).unwrap_or_default();
        let said = match error {
            Some(error) => format!("error: {error}"),
            None => format!("VIPs {vips}, pools {pools}, backends {backends}"),
        };
        let _ = writeln!(text, "{machine}{shard}: {said}");
    }
    text
}

fn report(
    arguments: &Arguments,
    config: Option<&Config>,
    problems: &Problems,
    outcomes: &[Outcome],
) -> Value {
    let sources = config.map(Config::sources).unwrap_or_default();
    json!({
        "file": arguments.file,
        "files": sources.iter().map(config::Source::path).collect::<Vec<_>>(),
        "sha256": config.map(|config| hex(&config.digest())),
        "problems": problems.iter().map(problem_row).collect::<Vec<_>>(),
        "machines": outcomes,
    })
}

/// Loads a configuration and prints its warnings to standard error.
pub(crate) fn load(file: &Path) -> anyhow::Result<Config> {
    let (config, warnings) = read(file)?;
    if !warnings.is_empty() {
        errln!("{warnings}");
    }
    Ok(config)
}

/// Loads a configuration and returns it with its warnings.
pub(crate) fn read(file: &Path) -> anyhow::Result<(Config, Problems)> {
    let refused = |problems: Problems| anyhow::anyhow!("the configuration has problems:\n{problems}");
    config::load(file).map_err(refused)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use config::{Config, parse};

    use super::{Arguments, compile, machines, report, words};

    const FILE: &str = r#"
[cluster]
name = "c"
hash_key_file = "k"
table_size = 1009
[machine.lb1]
shard = "a"
addresses = ["192.0.2.1"]
interfaces = ["eth0"]
[machine.lb2]
shard = "b"
addresses = ["192.0.2.2"]
interfaces = ["eth0"]
[pool.p]
backends = [{ name = "b1", address = "198.18.0.1" }, { name = "b2", address = "198.18.0.2" }]
[pool.q]
shard = "b"
pools = [{ pool = "p" }]
[vip.v]
addresses = ["203.0.113.1"]
services = [{ ports = [80], protocol = "tcp", pool = "p" }]
[vip.w]
shard = "b"
addresses = ["203.0.113.2"]
services = [{ ports = [80, 443], protocol = "tcp", pool = "q" }]
"#;

    fn config() -> Config {
        match parse(FILE, Path::new("a.toml"), &|_| Ok("00112233445566778899aabbccddeeff".to_owned())) {
            Ok((config, _)) => config,
            Err(problems) => panic!("{problems}"),
        }
    }

    fn arguments(machine: Option<&str>) -> Arguments {
        let file = "a.toml".into();
        let machine = machine.map(str::to_owned);
        Arguments { file, all_shards: machine.is_none(), machine, without_secrets: false, json: true }
    }

    #[test]
    fn every_machine_is_compiled_and_told_in_a_line() {
        let config = config();
        let all = machines(&config, &arguments(None)).unwrap();
        let problems = Default::default();
        assert_eq!(
            words(Path::new("a.toml"), &problems, &compile(&config, &all)),
            "a.toml: no problem found\n\
             lb1 (shard a): VIPs 1, pools 1, backends 2\n\
             lb2 (shard b): VIPs 2, pools 2, backends 2\n"
        );
        let one = machines(&config, &arguments(Some("lb2"))).unwrap();
        assert_eq!(one.iter().map(|machine| machine.name()).collect::<Vec<_>>(), ["lb2"]);
        let unknown = machines(&config, &arguments(Some("lb3"))).unwrap_err().to_string();
        assert!(unknown.contains("lb3") && unknown.contains("lb1, lb2"), "{unknown}");
    }

    #[test]
    fn json_has_the_digest_and_the_machines() {
        let config = config();
        let outcomes = compile(&config, &machines(&config, &arguments(None)).unwrap());
        let json = report(&arguments(None), Some(&config), &Default::default(), &outcomes);
        assert_eq!(json["sha256"].as_str().map(str::len), Some(64));
        assert_eq!((&json["files"][0], &json["machines"][1]["vips"]), (&"a.toml".into(), &2.into()));
        assert_eq!(
            (&json["machines"][0]["name"], &json["machines"][1]["shard"]),
            (&"lb1".into(), &"b".into())
        );
        assert!(json["machines"][0]["error"].is_null());
    }
}
