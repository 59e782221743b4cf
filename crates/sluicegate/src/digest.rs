//! `sluicegate digest`: by what machines of a cluster are compared.
//!
//! In: a running balancer, or a file. Out: three lines that are equal, byte for byte, on machines that agree, and a line for each
//! operator's order in force, which other machines may not have: it changes the tables.
//! Not here: what a digest covers (`control_plane::digest`).

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use admin::view::{DigestView, OverrideRow, Status};
use clap::Args;
use control_plane::digest::{TABLE_ALGORITHM, hex, of_configuration};
use serde::Serialize;

use crate::config_check;
use admin_client::{Client, Reach, clean, or_dash, override_words, patience, show};

/// Of which configuration.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// Compute the digest of this configuration file, with the key that it names, and ask no balancer.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["socket", "wait"])]
    config: Option<PathBuf>,
    /// The admin socket of the running balancer.
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// Give up when the balancer has not answered by then. Default: 10s.
    #[arg(long, value_name = "DURATION", value_parser = patience)]
    wait: Option<Duration>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// What is printed.
#[derive(Debug, Default, Serialize)]
struct Compared {
    #[serde(flatten)]
    digests: DigestView,
    /// Operators' overrides in force.
    orders: Vec<OverrideRow>,
}

/// Prints the digests.
pub(crate) fn digest(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let view = match &arguments.config {
        Some(file) => {
            let configuration = hex(&of_configuration(&config_check::load(file)?));
            let digests =
                DigestView { table_algorithm: TABLE_ALGORITHM, configuration, ..DigestView::default() };
            Compared { digests, orders: Vec::new() }
        }
        None => ask(arguments)?,
    };
    show(&view, arguments.json, words)?;
    Ok(ExitCode::SUCCESS)
}

fn ask(arguments: &Arguments) -> anyhow::Result<Compared> {
    let reach = Reach { socket: arguments.socket.clone(), config: None, wait: arguments.wait };
    let status: Status = Client::new(&reach)?.get("/v1/status")?;
    Ok(Compared { digests: status.digests, orders: status.overrides })
}

fn words(view: &Compared) -> String {
    let DigestView { table_algorithm, configuration, tables, .. } = &view.digests;
    let tables = or_dash(tables.as_deref());
    let mut orders: Vec<String> =
        view.orders.iter().map(|row| format!("order          {}\n", clean(&override_words(row)))).collect();
    orders.sort();
    format!(
        "algorithm      {table_algorithm}\nconfiguration  {configuration}\ntables         {tables}\n{}",
        orders.concat()
    )
}

#[cfg(test)]
mod tests {
    use admin::view::{BackendState, Override};

    use super::*;

    #[test]
    fn machines_that_agree_print_the_same_whatever_their_shards_are_called() {
        let of = |shard: Option<&str>| Compared {
            digests: DigestView {
                configuration: "ab".into(),
                shard: shard.map(Into::into),
                ..DigestView::default()
            },
            orders: Vec::new(),
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
        };
        let of = |orders| Compared { digests: DigestView::default(), orders };
        let words_of = |orders| words(&of(orders));
        assert!(words_of(vec![row("b2", 7.0), row("b1", 1.0)]).ends_with(
            "tables         -\norder          b1 in web: draining\norder          b2 in web: draining\n"
        ));
        assert_eq!(
            words_of(vec![row("b2", 7.0), row("b1", 1.0)]),
            words_of(vec![row("b1", 3.0), row("b2", 9.0)])
        );
        let json = serde_json::to_value(of(vec![row("b1", 1.0)])).unwrap();
        assert_eq!((&json["orders"][0]["backend"], &json["table_algorithm"]), (&"b1".into(), &0.into()));
    }
}
