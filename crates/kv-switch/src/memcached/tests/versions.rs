//! Tests of requests that set the version of a value. If a cache is used, the parser refuses such
//! requests.

use super::super::Memcached;
use crate::{Application, Datagram, Refusal};

// Promise: cache-staleness
#[test]
fn meta_flag_e_is_refused_next_to_a_cache() {
    let strict = Memcached::new(32).refusing_versions();
    let read = |line: &str| {
        let payload = [b"\0\x01\0\0\0\x01\0\0", line.as_bytes()].concat();
        [Memcached::new(32), strict].map(|one| one.read(Datagram::whole(&payload)).map(|ask| ask.keys))
    };
    for line in [
        "ms k 2 E1\r\nhi\r\n",
        "ms aw== 2 b q E5\r\nhi\r\n",
        "md k E9\r\n",
        "ma k q E3 D1\r\n",
        "mg k v E3 N0\r\n",
    ] {
        assert_eq!(read(line), [Ok(1), Err(Refusal::BadFlag)], "{line}");
    }
    // `E` is not a flag in these requests.
    for line in [
        "ms E 2\r\nE1\r\n",
        "set E1 0 0 2\r\nE1\r\n",
        "mg E1 v OE1\r\n",
        "get E1\r\n",
        "ms k 2 LE1\r\nhi\r\n",
    ] {
        assert_eq!(read(line), [Ok(1), Ok(1)], "{line}");
    }
}
