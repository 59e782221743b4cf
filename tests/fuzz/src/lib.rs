//! What bytes from elsewhere must not do, whatever they are: one target for each reader of them.
//!
//! In: any bytes. Out: a panic where something does not hold that holds of all bytes. The program `fuzz` lets libFuzzer choose
//! the bytes, by the branches and comparisons that the code comes to; the tests here run each target over its seeds and over what
//! has been found before (`kept/TARGET/`), without it.
//! Not here: how it is built and for how long it runs (`cargo xtask fuzz`).
//! The modules that stand in other crates are those of their tests, which try them with properties.

#![forbid(unsafe_code)]

mod admin_requests;
#[path = "../../../crates/forwarder/tests/it/bed.rs"]
#[expect(
    dead_code,
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    reason = "a test's module, of which a part is used"
)]
mod bed;
mod dns;
mod frames;
mod ipvs_rules;
#[cfg(test)]
mod key_mutations;
mod key_requests;
#[path = "../../../crates/kv-switch/src/memcached/tests/oracle.rs"]
#[expect(clippy::unwrap_used, reason = "a test's module")]
mod memcached;
mod pipeline;
#[path = "../../../crates/packet/src/parse/tests/readers.rs"]
mod readers;
#[path = "../../../crates/packet/src/quote/tests/slow.rs"]
mod slow;
mod toml;
mod tunnel;

/// A reader of bytes from elsewhere.
#[derive(Debug)]
pub struct Target {
    /// What it is called on the command line, and its folder in `kept/`.
    pub name: &'static str,
    /// Reads any bytes.
    ///
    /// # Panics
    /// Something that holds of all bytes does not hold of these.
    pub run: fn(&[u8]),
    /// What it reads to its end, to begin with.
    pub seeds: fn() -> Vec<Vec<u8>>,
}

/// The target of that name.
#[must_use]
pub fn target(name: &str) -> Option<&'static Target> {
    TARGETS.iter().find(|target| target.name == name)
}

/// All of them.
pub const TARGETS: &[Target] = &[
    Target { name: "parse", run: readers::check, seeds: frames::plain },
    Target { name: "quote", run: slow::check, seeds: frames::errors },
    Target { name: "decapsulate", run: tunnel::check, seeds: frames::tunnelled },
    Target { name: "pipeline", run: pipeline::check, seeds: pipeline::seeds },
    Target { name: "bgp", run: bgp::fuzzing::session, seeds: bgp::fuzzing::conversations },
    Target { name: "bfd", run: bgp::fuzzing::bfd, seeds: bgp::fuzzing::datagrams },
    Target { name: "handed_bfd", run: bgp::fuzzing::handed_bfd, seeds: bgp::fuzzing::handed_sessions },
    Target { name: "dns", run: dns::check, seeds: dns::answers },
    Target { name: "memcached", run: memcached::check, seeds: key_requests::seeds },
    Target { name: "config", run: toml::check, seeds: toml::files },
    Target { name: "ipvs", run: ipvs_rules::check, seeds: ipvs_rules::saves },
    Target { name: "admin", run: admin_requests::check, seeds: admin_requests::requests },
];

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use kv_switch::{Application, Datagram};

    use super::*;

    /// What the fuzzer has found in this target.
    fn kept(target: &Target) -> Vec<Vec<u8>> {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("kept").join(target.name);
        let files = fs::read_dir(folder).into_iter().flatten();
        files.map(|file| fs::read(file.unwrap().path()).unwrap()).collect()
    }

    #[test]
    fn seeds_and_what_was_found_before_hold_in_every_target() {
        for target in TARGETS {
            let seeds = (target.seeds)();
            assert!(!seeds.is_empty(), "{}", target.name);
            for input in seeds.into_iter().chain(kept(target)) {
                (target.run)(&input);
            }
        }
    }

    /// The same in each run; ten million in a long one.
    #[test]
    fn no_mutated_request_is_accepted_that_memcached_would_misread() {
        let count = if std::env::var_os("SLUICEGATE_LONG").is_some() { 10_000_000 } else { 300_000 };
        let mut mutations = key_mutations::Mutations::new(0x51_u64, key_requests::seeds());
        let (memcached, mut accepted) = (kv_switch::Memcached::new(32), 0);
        for number in 0..count {
            // In one of eight the first two bytes too, which say how much is missing: first pieces.
            let input = mutations.next(if number % 8 == 0 { 0 } else { 2 });
            memcached::check(input);
            let whole = Datagram::whole(input.get(2..).unwrap_or_default());
            accepted += usize::from(memcached.read(whole).is_ok());
        }
        // Mistakes that spoil every request, or none, would try nothing.
        assert!((count / 20..count / 2).contains(&accepted), "{accepted} of {count} accepted");
    }

    #[test]
    fn a_folder_of_what_was_found_is_a_targets() {
        let kept = Path::new(env!("CARGO_MANIFEST_DIR")).join("kept");
        for folder in fs::read_dir(kept).into_iter().flatten() {
            let name = folder.unwrap().file_name().into_string().unwrap();
            assert!(target(&name).is_some(), "{name}");
        }
    }
}
