//! What verbs print: standard output, and standard error beside it.
//!
//! In: words. Out: the same on the descriptor, at once.
//! A reader that has gone (`sluicegate flow list | head`) has read what it wanted: the rest is not written, and the verb ends
//! as it would have. What could not be written for another reason, such as a full disk, ends the process with 1.
//! Not here: the log of `run` (`logging`), files.

use std::fmt::Arguments;
use std::io::{self, ErrorKind, Write};

/// As `print!`, but a closed pipe is no panic.
macro_rules! out {
    ($($words:tt)*) => { $crate::out::write(format_args!($($words)*)) };
}

/// As `println!`, but a closed pipe is no panic.
macro_rules! outln {
    () => { $crate::out::write(format_args!("\n")) };
    ($($words:tt)*) => { $crate::out::write(format_args!("{}\n", format_args!($($words)*))) };
}

/// As `eprintln!`, but a closed pipe is no panic.
macro_rules! errln {
    ($($words:tt)*) => { $crate::out::write_error(format_args!("{}\n", format_args!($($words)*))) };
}

pub(crate) use {errln, out, outln};

pub(crate) fn write(words: Arguments<'_>) {
    if let Err(error) = write_to(&mut io::stdout().lock(), words) {
        errln!("sluicegate: cannot write to standard output: {error}");
        std::process::exit(1);
    }
}

pub(crate) fn write_error(words: Arguments<'_>) {
    // There is nowhere to write an error of standard error.
    let _ = io::stderr().lock().write_fmt(words);
}

fn write_to(to: &mut impl Write, words: Arguments<'_>) -> io::Result<()> {
    // Flushed here: at the end of the process an error would go unnoticed.
    match to.write_fmt(words).and_then(|()| to.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        written => written,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes nothing, for this reason.
    struct Closed(ErrorKind);

    impl Write for Closed {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(self.0.into())
        }

        fn flush(&mut self) -> io::Result<()> {
            Err(self.0.into())
        }
    }

    #[test]
    fn a_reader_that_has_gone_is_no_error_and_a_full_disk_is() {
        assert!(write_to(&mut Closed(ErrorKind::BrokenPipe), format_args!("words")).is_ok());
        let error = write_to(&mut Closed(ErrorKind::StorageFull), format_args!("words")).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::StorageFull);
        // What waits in a buffer counts as little as what was never taken.
        let mut buffered = io::BufWriter::new(Closed(ErrorKind::StorageFull));
        assert!(write_to(&mut buffered, format_args!("words")).is_err());
        // Its own drop would try once more.
        let _ = buffered.into_parts();
    }
}
