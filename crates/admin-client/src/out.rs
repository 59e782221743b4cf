//! What verbs print: standard output, and standard error beside it.
//!
//! In: words. Out: the same on the descriptor, at once.
//! A reader that has gone (`sluicegate flow list | head`) has read what it wanted: the rest is not written, and the verb ends
//! as it would have. What could not be written for another reason, such as a full disk, ends the process with 1.
//! A file of packets is for its owner alone. Not here: the log of `run` (`logging`).

use std::fmt::Arguments;
use std::fs::{File, Permissions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::Path;

use anyhow::{Context as _, bail};
use nix::errno::Errno;
use nix::fcntl::OFlag;

/// As `print!`, but a closed pipe is no panic.
#[macro_export]
macro_rules! out {
    ($($words:tt)*) => { $crate::write(format_args!($($words)*)) };
}

/// As `println!`, but a closed pipe is no panic.
#[macro_export]
macro_rules! outln {
    () => { $crate::write(format_args!("\n")) };
    ($($words:tt)*) => { $crate::write(format_args!("{}\n", format_args!($($words)*))) };
}

/// As `eprintln!`, but a closed pipe is no panic.
#[macro_export]
macro_rules! errln {
    ($($words:tt)*) => { $crate::write_error(format_args!("{}\n", format_args!($($words)*))) };
}

pub(crate) use {errln, out, outln};

/// What [`out!`] and [`outln!`] come to.
pub fn write(words: Arguments<'_>) {
    if let Err(error) = write_to(&mut io::stdout().lock(), words) {
        errln!("sluicegate: cannot write to standard output: {error}");
        std::process::exit(1);
    }
}

/// What [`errln!`] comes to.
pub fn write_error(words: Arguments<'_>) {
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

/// An empty file for what clients sent: mode 0600, no symbolic link followed, no file of another user.
pub fn create_private(path: &Path) -> anyhow::Result<File> {
    let mut options = File::options();
    options.write(true).create(true).truncate(false).mode(OWNER_ALONE).custom_flags(OFlag::O_NOFOLLOW.bits());
    let file = match options.open(path) {
        Err(error) if error.raw_os_error() == Some(Errno::ELOOP as i32) => {
            bail!("{}: a symbolic link, which is not followed", path.display())
        }
        opened => opened.with_context(|| path.display().to_string())?,
    };
    let found = file.metadata()?;
    if found.is_file() {
        if found.uid() != nix::unistd::geteuid().as_raw() {
            bail!("{}: a file of another user, who could read what is captured", path.display());
        }
        file.set_permissions(Permissions::from_mode(OWNER_ALONE))?;
        file.set_len(0)?;
    }
    Ok(file)
}

const OWNER_ALONE: u32 = 0o600;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_of_packets_is_its_owners_alone_and_never_behind_a_link() {
        let folder = std::env::temp_dir().join(format!("sluicegate-private-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let mode = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o777;
        let fresh = folder.join("fresh");
        create_private(&fresh).unwrap();
        assert_eq!(mode(&fresh), 0o600);
        let known = folder.join("known");
        std::fs::write(&known, "before").unwrap();
        std::fs::set_permissions(&known, Permissions::from_mode(0o644)).unwrap();
        create_private(&known).unwrap();
        assert_eq!((mode(&known), std::fs::read(&known).unwrap()), (0o600, vec![]));
        let link = folder.join("link");
        std::os::unix::fs::symlink(&known, &link).unwrap();
        let refused = create_private(&link).unwrap_err().to_string();
        assert!(refused.ends_with("a symbolic link, which is not followed"), "{refused}");
        if nix::unistd::geteuid().is_root() {
            std::os::unix::fs::chown(&known, Some(65_534), None).unwrap();
            assert!(create_private(&known).unwrap_err().to_string().contains("a file of another user"));
        }
        create_private(Path::new("/dev/null")).unwrap();
        std::fs::remove_dir_all(&folder).unwrap();
    }

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
