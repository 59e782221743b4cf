//! Processes fragments that arrive out of order, and prints how many fragments were held, forwarded
//! and expired.

use fragment_table::{Arrival, Config, ConfigError, Extent, Fate, First, FragmentTable, Key, Later, Millis};

fn main() -> Result<(), ConfigError> {
    let mut table = FragmentTable::new(&Config::default())?;
    let mut waited = 0;
    for id in 0..100_u32 {
        let key = Key { source: [1; 16], destination: [2; 16], protocol: 17, id };
        let hash = u64::from(id).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let fragment =
            |offset, more| Arrival { key: &key, hash, extent: Extent { offset, bytes: 1_480, more } };
        let now = Millis(u64::from(id));
        // The last fragment arrives before the first. In every tenth datagram the first fragment is
        // missing.
        if let Later::Hold(_) = table.later(&fragment(1_480, false), 7, now) {
            waited += 1;
        }
        if id % 10 != 0 {
            assert_eq!(table.first(&fragment(0, true), u64::from(id), "backend 3", now), First::Recorded);
        }
    }
    let (mut forwarded, mut expired) = (0, 0);
    table.expire(Millis(60_000), 1_000);
    while let Some(release) = table.release() {
        match release.fate {
            Fate::Forward(_) => forwarded += 1,
            Fate::Expired => expired += 1,
        }
    }
    println!("{waited} fragments held: {forwarded} forwarded to their backend, {expired} expired");
    Ok(())
}
