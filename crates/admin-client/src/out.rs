//! Opens the files of subcommands, and writes their output to standard output and standard error
//! without buffering.
//!
//! A closed pipe (`sluicegate flow list | head`) is not an error: the rest of the output is
//! discarded and the exit code does not change. Any other write error, such as a full disk, ends
//! the process with exit code 1. Files with captured packets are readable only by their owner. The
//! log of `run` is written by the module `logging` of the binary.

use std::convert::Infallible;
use std::fmt::Arguments;
use std::fs::{File, Permissions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use nix::errno::Errno;
use nix::fcntl::OFlag;

/// Prints to standard output like `print!`, but does not panic on a closed pipe.
#[macro_export]
macro_rules! out {
    ($($words:tt)*) => { $crate::write(format_args!($($words)*)) };
}

/// Prints to standard output like `println!`, but does not panic on a closed pipe.
#[macro_export]
macro_rules! outln {
    () => { $crate::write(format_args!("\n")) };
    ($($words:tt)*) => { $crate::write(format_args!("{}\n", format_args!($($words)*))) };
}

/// Prints to standard error like `eprintln!`, but does not panic on a closed pipe.
#[macro_export]
macro_rules! errln {
    ($($words:tt)*) => { $crate::write_error(format_args!("{}\n", format_args!($($words)*))) };
}

pub(crate) use {errln, out, outln};

/// Writes to standard output for [`out!`] and [`outln!`].
pub fn write(words: Arguments<'_>) {
    if let Err(error) = write_to(&mut io::stdout().lock(), words) {
        errln!("sluicegate: cannot write to standard output: {error}");
        std::process::exit(1);
    }
}

/// Writes to standard error for [`errln!`].
pub fn write_error(words: Arguments<'_>) {
    // The error is ignored, because there is no other place to report it.
    let _ = io::stderr().lock().write_fmt(words);
}

fn write_to(to: &mut impl Write, words: Arguments<'_>) -> io::Result<()> {
    // The explicit flush reports write errors, which would be ignored at process exit.
    match to.write_fmt(words).and_then(|()| to.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        written => written,
    }
}

/// Parses the name of an input file. The name `-` stands for standard input.
///
/// # Errors
/// Never returns an error. The type is the one that an argument parser needs.
pub fn file_or_stdin(name: &str) -> Result<PathBuf, Infallible> {
    Ok(PathBuf::from(if name == "-" { "/dev/stdin" } else { name }))
}

/// Creates or truncates a file for captured packets with mode 0600.
///
/// # Errors
/// Returns an error if the path is a symbolic link, or if the file belongs to another user.
pub fn create_private(path: &Path) -> anyhow::Result<File> {
    let mut options = File::options();
    options.write(true).create(true).truncate(false).mode(OWNER_ALONE).custom_flags(OFlag::O_NOFOLLOW.bits());
    let file = match options.open(path) {
        Err(error) if error.raw_os_error() == Some(Errno::ELOOP as i32) => {
            bail!("cannot write to {}, symbolic links are not followed", path.display())
        }
        opened => opened.with_context(|| path.display().to_string())?,
    };
    let found = file.metadata()?;
    if found.is_file() {
        if found.uid() != nix::unistd::geteuid().as_raw() {
            bail!(
                "cannot write to {}, its owner is another user, who could read the captured packets",
                path.display()
            );
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

    // Promise: capture-files
    #[test]
    fn private_file_has_mode_0600_and_follows_no_link() {
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
        assert!(refused.ends_with("symbolic links are not followed"), "{refused}");
        if nix::unistd::geteuid().is_root() {
            std::os::unix::fs::chown(&known, Some(65_534), None).unwrap();
            assert!(create_private(&known).unwrap_err().to_string().contains("its owner is another user"));
        }
        create_private(Path::new("/dev/null")).unwrap();
        std::fs::remove_dir_all(&folder).unwrap();
    }

    /// A writer that fails with this error on each call.
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
    fn closed_pipe_is_ignored_and_full_disk_is_an_error() {
        assert!(write_to(&mut Closed(ErrorKind::BrokenPipe), format_args!("words")).is_ok());
        let error = write_to(&mut Closed(ErrorKind::StorageFull), format_args!("words")).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::StorageFull);
        // Buffered data must also cause the error.
        let mut buffered = io::BufWriter::new(Closed(ErrorKind::StorageFull));
        assert!(write_to(&mut buffered, format_args!("words")).is_err());
        // Dropping the writer would write the buffered data again.
        let _ = buffered.into_parts();
    }
}
