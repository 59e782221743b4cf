//! `sluicegate digest`: by what machines of a cluster are compared.
//!
//! In: a running balancer, or a file. Out: three lines that are equal, byte for byte, on machines that agree.
//! Not here: what a digest covers (`control_plane::digest`).

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use admin::view::{DigestView, Status};
use clap::Args;
use control_plane::digest::{TABLE_ALGORITHM, hex, of_configuration};

use crate::client::{Client, Reach, patience};
use crate::config_check;
use crate::table::{or_dash, show};

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

/// Prints the digests.
pub(crate) fn digest(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let view = match &arguments.config {
        Some(file) => DigestView {
            table_algorithm: TABLE_ALGORITHM,
            configuration: hex(&of_configuration(&config_check::load(file)?)),
            tables: None,
            shard: None,
        },
        None => ask(arguments)?,
    };
    show(&view, arguments.json, words)?;
    Ok(ExitCode::SUCCESS)
}

fn ask(arguments: &Arguments) -> anyhow::Result<DigestView> {
    let reach = Reach { socket: arguments.socket.clone(), config: None, wait: arguments.wait };
    let status: Status = Client::new(&reach)?.get("/v1/status")?;
    Ok(status.digests)
}

fn words(view: &DigestView) -> String {
    let DigestView { table_algorithm, configuration, tables, .. } = view;
    let tables = or_dash(tables.as_deref());
    format!("algorithm      {table_algorithm}\nconfiguration  {configuration}\ntables         {tables}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn machines_that_agree_print_the_same_whatever_their_shards_are_called() {
        let view = DigestView { configuration: "ab".into(), ..DigestView::default() };
        let other = DigestView { shard: Some("west".into()), ..view.clone() };
        assert_eq!(words(&view), "algorithm      0\nconfiguration  ab\ntables         -\n");
        assert_eq!(words(&view), words(&other));
    }
}
