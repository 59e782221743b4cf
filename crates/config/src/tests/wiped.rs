//! Tests that a dropped configuration leaves no secrets in memory.
//!
//! Two kinds of secrets are not tested. Parts of a private key in PEM remain in memory until the
//! memory is reused. The 16 bytes of the hash key are copied when the key is moved.

use std::fs;
use std::os::unix::fs::FileExt;
use std::process::Command;

use zeroize::Zeroizing;

use super::BASE;
use super::admin::CERTIFICATE;
use super::files::Folder;
use crate::load;

/// Returns `length` characters from `signs`, each XORed with [`MASK`], so that the memory of this
/// process contains only the masked text.
fn masked(signs: &[u8], length: usize) -> Vec<u8> {
    (0..length).map(|at| signs[(at * at + 5 * at + length) % signs.len()] ^ MASK).collect()
}

/// Writes a file that contains the unmasked text between `before` and `after`.
fn write(folder: &Folder, name: &str, [before, after]: [&str; 2], masked: &[u8]) {
    let mut text = Zeroizing::new(Vec::with_capacity(1_024));
    text.extend_from_slice(before.as_bytes());
    text.extend(masked.iter().map(|byte| byte ^ MASK));
    text.extend_from_slice(after.as_bytes());
    folder.write(name, &*text, 0o600);
}

/// Counts the occurrences of the unmasked text in the writable memory of this process.
fn found_in_memory(masked: &[u8]) -> usize {
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    let memory = fs::File::open("/proc/self/mem").unwrap();
    let writable = maps.lines().filter(|line| line.contains(" rw"));
    let ranges = writable.filter_map(|line| {
        let (from, to) = line.split_whitespace().next()?.split_once('-')?;
        Some((u64::from_str_radix(from, 16).ok()?, u64::from_str_radix(to, 16).ok()?))
    });
    let mut bytes = vec![0; 1 << 20];
    let mut count = 0;
    for (from, to) in ranges {
        for at in (from..to).step_by(bytes.len()) {
            // If another thread has unmapped the memory, reading fails, and the memory is treated
            // as zeros.
            let most = bytes.len().min(usize::try_from(to - at).unwrap());
            let length = memory.read_at(&mut bytes[..most], at).unwrap_or(0);
            let same =
                |window: &&[u8]| window.iter().zip(masked).all(|(byte, masked)| byte ^ MASK == *masked);
            count += bytes[..length].windows(masked.len()).filter(same).count();
            bytes.fill(0);
        }
    }
    count
}

/// The test runs in a separate process, because other tests would change memory during the search.
#[test]
fn a_configuration_that_is_gone_leaves_no_text_of_its_secrets() {
    if std::env::var_os(ALONE).is_none() {
        let name = "tests::wiped::a_configuration_that_is_gone_leaves_no_text_of_its_secrets";
        let mut alone = Command::new(std::env::current_exe().unwrap());
        let ended = alone.args(["--exact", name]).env(ALONE, "1").output().unwrap();
        let said = String::from_utf8_lossy(&ended.stdout);
        assert!(ended.status.success() && said.contains("1 passed"), "{said}");
        return;
    }
    let folder = Folder::new();
    let digits = masked(b"0123456789abcdef", 32);
    let (pem, password) =
        (masked(b"ABCDEFGHIJKLMNOPQRSTUVWXYZ", 64), masked(b"abcdefghijklmnopqrstuvwxyz", 40));
    write(&folder, "k", ["", "\n"], &digits);
    write(&folder, "k.pem", ["-----BEGIN PRIVATE KEY-----\n", "\n-----END PRIVATE KEY-----\n"], &pem);
    write(&folder, "bgp.key", ["", "\n"], &password);
    for name in ["c.pem", "ca.pem"] {
        folder.write(name, CERTIFICATE, 0o644);
    }
    let more = "[admin]\ntcp = { listen = [\"192.0.2.1:9851\"], certificate_file = \"c.pem\", key_file = \"k.pem\", \
                client_ca_file = \"ca.pem\" }\n[bgp]\nasn = 65101\n\
                peers = [{ name = \"tor\", address = \"192.0.2.254\", asn = 65001, password_file = \"bgp.key\" }]\n";
    folder.write("a.toml", format!("{BASE}{more}"), 0o644);
    let loaded = load(&folder.0.join("a.toml")).unwrap();
    assert!(found_in_memory(&pem) > 0 && found_in_memory(&password) > 0, "secrets in use must be found");
    drop(loaded);
    // Allocators overwrite the start of freed memory, so only the end of the text is searched.
    let left = [&digits, &password].map(|masked| found_in_memory(&masked[masked.len() - 12..]));
    assert_eq!(left, [0; 2], "copies of the hash key and the BGP password");
}

const MASK: u8 = 0xa5;
const ALONE: &str = "SLUICEGATE_TEST_ALONE";
