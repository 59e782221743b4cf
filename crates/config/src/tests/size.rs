//! Tests with the configuration of a large cluster.

use std::fs;

use super::files::Folder;
use super::{KEY, all_printed, parsed};
use crate::load_with;

/// Returns a configuration with the given numbers of VIPs, pools and backends. All names and
/// addresses are distinct.
fn cluster(vips: usize, pools: usize, backends: usize) -> String {
    let mut text =
        "[cluster]\nname = \"c\"\nhash_key_file = \"k\"\n[machine.lb1]\naddresses = [\"192.0.2.1\"]\n\
                    interfaces = [\"eth0\"]\n[check.web]\nhttp = { port = 80 }\n"
            .to_owned();
    for pool in 0..pools {
        text.push_str(&format!("[pool.p{pool}]\nchecks = [\"web\"]\nbackends = [\n"));
        for backend in 0..backends {
            let number = pool * backends + backend;
            let address = format!("198.{}.{}.{}", 18 + number / 65_536, number / 256 % 256, number % 256);
            text.push_str(&format!("  {{ name = \"b{number}\", address = \"{address}\", weight = 2 }},\n"));
        }
        text.push_str("]\n");
    }
    for vip in 0..vips {
        let (high, low) = (vip / 200, vip % 200);
        text.push_str(&format!(
            "[vip.v{vip}]\naddresses = [\"203.0.113.{low}\", \"2001:db8:f::{vip:x}\"]\nservices = [\n  \
             {{ ports = [{port}, {tls}], protocol = \"tcp\", pool = \"p{pool}\" }},\n]\n",
            port = 1_000 + high,
            tls = 2_000 + high,
            pool = vip % pools,
        ));
    }
    text
}

#[test]
fn a_large_cluster_is_read() {
    let (config, warnings) = parsed(&cluster(1_000, 200, 100)).unwrap();
    assert_eq!(
        (config.vips().len(), config.pools().len(), warnings.to_string()),
        (1_000, 200, String::new())
    );
    assert!(config.pools().iter().all(|pool| pool.members.len() == 100));
}

/// Returns a configuration with one pool and a table size that is sufficient for this pool.
fn one_pool(backends: usize) -> String {
    let head = "hash_key_file = \"k\"\n";
    cluster(1, 1, backends).replacen(head, &format!("{head}table_size = 16777213\n"), 1)
}

#[test]
fn a_pool_of_65_536_backends_is_read() {
    for count in [65_535, 65_536] {
        let (config, warnings) = parsed(&one_pool(count)).unwrap();
        assert_eq!((config.pools()[0].members.len(), warnings.len()), (count, 0));
    }
    let coarse = parsed(&one_pool(65_536).replacen("16777213", "65537", 1)).unwrap().1;
    assert!(
        all_printed(&coarse).contains("warning: pool.p0: pool \"p0\" has 65536 backends, too many for traffic shares accurate to 1 %; help: raise cluster.table_size; 65537 entries are enough for 655 backends"),
        "{coarse}"
    );
    let problems = parsed(&one_pool(65_536).replacen("16777213", "65521", 1)).unwrap_err();
    assert!(
        all_printed(&problems).contains(
            "pool.p0: pool \"p0\" has 65536 backends, but table_size is 65521; help: raise cluster.table_size"
        ),
        "{problems}"
    );
}

#[test]
fn a_large_file_says_what_small_ones_say() {
    let text = cluster(300, 200, 40);
    assert!(text.len() > 256 << 10, "the text is too short to be parsed in pieces");
    let sections: Vec<&str> = text.split_inclusive("\n]\n").collect();
    let folder = Folder::new();
    let first = sections[0].split_once("[pool").unwrap();
    fs::write(folder.0.join("a.toml"), format!("include = [\"*.part\"]\n{}", first.0)).unwrap();
    fs::write(folder.0.join("0.part"), format!("[pool{}", first.1)).unwrap();
    for (number, part) in sections[1..].chunks(16).enumerate() {
        fs::write(folder.0.join(format!("1{number}.part")), part.concat()).unwrap();
    }
    let (small, _) = load_with(&folder.0.join("a.toml"), &|_| Ok(KEY.to_owned())).unwrap();
    assert!(parsed(&text).unwrap().0 == small);
    assert_eq!((small.pools().len(), small.vips().len()), (200, 300));
}

#[test]
fn what_is_wrong_in_a_large_file_is_reported_where_it_stands() {
    let text = cluster(300, 200, 40);
    let last = text.rfind("weight = 2").unwrap();
    let wrong = [&text[..last], "weight = -7", &text[last + "weight = 2".len()..]].concat();
    let line = wrong[..last].lines().count();
    let problems = parsed(&wrong).unwrap_err();
    let shown: Vec<_> = problems.iter().map(|problem| (problem.line(), problem.field.as_str())).collect();
    assert_eq!(shown, [(Some(line), "pool.p199.backends[39].weight")], "{problems}");
    let twice = format!("{text}[pool.p0]\nbackends = []\n");
    let problems = parsed(&twice).unwrap_err().to_string();
    assert!(problems.contains(&format!(":{}:", text.lines().count() + 1)), "{problems}");
    assert!(problems.contains("section [pool.p0] is defined twice"), "{problems}");
}
