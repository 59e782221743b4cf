//! Formats values of log fields that several modules write, so that they look the same in all log
//! lines.

use packet::Family;

/// Returns the value of the field `family`.
pub(crate) fn family(family: Family) -> &'static str {
    match family {
        Family::V4 => "ipv4",
        Family::V6 => "ipv6",
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::sync::{Arc, Mutex};

    /// Returns the log lines that `act` writes, parsed as JSON.
    pub(crate) fn logged(act: impl FnOnce()) -> Vec<serde_json::Value> {
        let log = Arc::new(Mutex::new(Vec::new()));
        let written = Arc::clone(&log);
        let writer = move || Written(Arc::clone(&written));
        let subscriber = tracing_subscriber::fmt().json().flatten_event(true).with_writer(writer).finish();
        tracing::subscriber::with_default(subscriber, act);
        let text = String::from_utf8(log.lock().unwrap().clone()).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    struct Written(Arc<Mutex<Vec<u8>>>);

    impl std::io::Write for Written {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
}
