//! Fuzz targets for all parsers of untrusted input.
//!
//! A target takes arbitrary bytes and panics if an invariant is violated. The program `fuzz` runs a
//! target with libFuzzer, which uses code coverage to find new inputs. `cargo xtask fuzz` builds
//! and runs this program. The tests in this crate run each target without libFuzzer, on its seeds
//! and on inputs that earlier runs found (`kept/TARGET/`). Some modules are also included in
//! property tests of other crates.

#![forbid(unsafe_code)]

mod admin_requests;
#[path = "../../../crates/forwarder/tests/it/bed.rs"]
#[expect(
    dead_code,
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    reason = "this crate uses only a part of a test module"
)]
mod bed;
mod dns;
mod frames;
mod ipvs_rules;
#[cfg(test)]
mod key_mutations;
mod key_requests;
#[path = "../../../crates/kv-switch/src/memcached/tests/oracle.rs"]
#[expect(clippy::unwrap_used, reason = "the module is written for tests")]
mod memcached;
mod pipeline;
#[path = "../../../crates/packet/src/parse/tests/readers.rs"]
mod readers;
#[path = "../../../crates/packet/src/quote/tests/slow.rs"]
mod slow;
mod toml;
mod tunnel;

/// A fuzz target: its name, its function and its seeds.
#[derive(Debug)]
pub struct Target {
    /// The name for the command line and for the folder in `kept/`.
    pub name: &'static str,
    /// Runs the target on arbitrary bytes.
    ///
    /// # Panics
    /// Panics if an invariant is violated.
    pub run: fn(&[u8]),
    /// Returns valid inputs from which fuzzing starts.
    pub seeds: fn() -> Vec<Vec<u8>>,
}

/// Returns the target with this name.
#[must_use]
pub fn target(name: &str) -> Option<&'static Target> {
    TARGETS.iter().find(|target| target.name == name)
}

/// All fuzz targets.
pub const TARGETS: &[Target] = &[
    Target { name: "parse", run: readers::check, seeds: frames::plain },
    Target { name: "quote", run: slow::check, seeds: frames::errors },
    Target { name: "decapsulate", run: tunnel::check, seeds: frames::tunnelled },
    Target { name: "pipeline", run: pipeline::check, seeds: pipeline::seeds },
    Target { name: "bgp", run: bgp::fuzzing::session, seeds: bgp::fuzzing::conversations },
    Target { name: "bfd", run: bgp::fuzzing::bfd, seeds: bgp::fuzzing::datagrams },
    Target { name: "handed_bfd", run: bgp::fuzzing::handed_bfd, seeds: bgp::fuzzing::handed_sessions },
    Target { name: "dns", run: dns::check, seeds: dns::answers },
    Target {
        name: "check_programs",
        run: health::fuzzing::check_programs,
        seeds: health::fuzzing::check_program_messages,
    },
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

    /// Returns the inputs that earlier runs of the fuzzer found for this target.
    fn kept(target: &Target) -> Vec<Vec<u8>> {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("kept").join(target.name);
        let files = fs::read_dir(folder).into_iter().flatten();
        files.map(|file| fs::read(file.unwrap().path()).unwrap()).collect()
    }

    // Promise: parser-safety
    #[test]
    fn seeds_and_earlier_findings_pass_in_every_target() {
        for target in TARGETS {
            let seeds = (target.seeds)();
            assert!(!seeds.is_empty(), "{}", target.name);
            for input in seeds.into_iter().chain(kept(target)) {
                (target.run)(&input);
            }
        }
    }

    /// The seed of the random generator is fixed, so every run uses the same inputs. A long run
    /// tests ten million inputs.
    #[test]
    fn mutated_requests_are_accepted_only_if_unambiguous() {
        let count = if std::env::var_os("SLUICEGATE_LONG").is_some() { 10_000_000 } else { 300_000 };
        let mut mutations = key_mutations::Mutations::new(0x51_u64, key_requests::seeds());
        let (memcached, mut accepted) = (kv_switch::Memcached::new(32), 0);
        for number in 0..count {
            // Every eighth input also changes the first two bytes, which are the number of missing
            // bytes. If the number is not zero, the request is a first fragment.
            let input = mutations.next(if number % 8 == 0 { 0 } else { 2 });
            memcached::check(input);
            let whole = Datagram::whole(input.get(2..).unwrap_or_default());
            accepted += usize::from(memcached.read(whole).is_ok());
        }
        // The mutations must make some requests invalid, but not all of them.
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
