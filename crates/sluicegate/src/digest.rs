//! Implements `sluicegate digest`, which prints digests for comparing the machines of a cluster.
//!
//! The first three lines of the output are identical on machines that have the same configuration
//! and tables. Each active override adds a line, because it changes the tables of a single machine.
//! `control_plane::digest` defines the digests.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use admin::view::{DigestView, OverrideRow, Status};
use clap::Args;
use control_plane::digest::{TABLE_ALGORITHM, hex, of_configuration};
use serde::Serialize;

use crate::config_check;
use admin_client::{Client, Endpoint, Reach, Remote, clean, or_dash, override_words, patience, show};

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// Compute the digest of this configuration file, including its hash key, without connecting to
    /// a running load balancer
    #[arg(long, value_name = "FILE", conflicts_with_all = ["socket", "url", "wait"])]
    config: Option<PathBuf>,
    /// Connect to this admin socket (default: /run/sluicegate/admin.sock)
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    #[command(flatten)]
    remote: Remote,
    /// Fail if the load balancer does not respond within this time, 1ms to 1h (default: 10s)
    #[arg(long, value_name = "DURATION", value_parser = patience)]
    wait: Option<Duration>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Default, Serialize)]
struct Compared {
    #[serde(flatten)]
    digests: DigestView,
    overrides: Vec<OverrideRow>,
}

pub(crate) fn digest(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let view = match &arguments.config {
        Some(file) => {
            let configuration = hex(&of_configuration(&config_check::load(file)?));
            let digests =
                DigestView { table_algorithm: TABLE_ALGORITHM, configuration, ..DigestView::default() };
            Compared { digests, overrides: Vec::new() }
        }
        None => ask(arguments)?,
    };
    show(&view, arguments.json, words)?;
    Ok(ExitCode::SUCCESS)
}

fn ask(arguments: &Arguments) -> anyhow::Result<Compared> {
    let endpoint =
        Endpoint { socket: arguments.socket.clone(), config: None, remote: arguments.remote.clone() };
    let reach = Reach { endpoint, wait: arguments.wait };
    let status: Status = Client::new(&reach)?.get("/v1/status")?;
    Ok(Compared { digests: status.digests, overrides: status.overrides })
}

fn words(view: &Compared) -> String {
    let DigestView { table_algorithm, configuration, tables, .. } = &view.digests;
    let tables = or_dash(tables.as_deref());
    let mut overrides: Vec<String> = view
        .overrides
        .iter()
        .map(|row| format!("override       {}\n", clean(&override_words(row))))
        .collect();
    overrides.sort();
    format!(
        "algorithm      {table_algorithm}\nconfiguration  {configuration}\ntables         {tables}\n{}",
        overrides.concat()
    )
}

#[cfg(test)]
mod tests {
    use admin::view::{BackendState, Override};

    use super::*;

    #[test]
    fn digest_output_does_not_depend_on_shard_name() {
        let of = |shard: Option<&str>| Compared {
            digests: DigestView {
                configuration: "ab".into(),
                shard: shard.map(Into::into),
                ..DigestView::default()
            },
            overrides: Vec::new(),
        };
        assert_eq!(words(&of(None)), "algorithm      0\nconfiguration  ab\ntables         -\n");
        assert_eq!(words(&of(None)), words(&of(Some("west"))));
    }

    #[test]
    fn orders_are_named_without_their_ages_and_in_one_order() {
        let row = |backend: &str, since_seconds| OverrideRow {
            backend: backend.into(),
            pool: Some("web".into()),
            says: Override { state: Some(BackendState::Draining), weight: None },
            since_seconds,
            by: "uid 0".into(),
            reason: None,
            ends_in_seconds: None,
            down_in_seconds: None,
        };
        let of = |overrides| Compared { digests: DigestView::default(), overrides };
        let words_of = |overrides| words(&of(overrides));
        assert!(words_of(vec![row("b2", 7.0), row("b1", 1.0)]).ends_with(
            "tables         -\noverride       b1 in web: draining\noverride       b2 in web: draining\n"
        ));
        assert_eq!(
            words_of(vec![row("b2", 7.0), row("b1", 1.0)]),
            words_of(vec![row("b1", 3.0), row("b2", 9.0)])
        );
        let json = serde_json::to_value(of(vec![row("b1", 1.0)])).unwrap();
        assert_eq!((&json["overrides"][0]["backend"], &json["table_algorithm"]), (&"b1".into(), &0.into()));
    }
}
