//! Transfers messages, bytes and file descriptors between the two processes of an upgrade, over a
//! pair of connected Unix sockets.
//!
//! A frame is a 4-byte little-endian length, followed by that number of bytes. A message is a frame
//! that contains JSON. All reads and writes have timeouts. Received data is copied, so the sender
//! cannot change the data later.
//!
//! References: unix(7), SCM_RIGHTS.

use std::io::{self, ErrorKind, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use nix::sys::socket::getsockopt;
use nix::sys::socket::sockopt::PeerCredentials;
use rustix::cmsg_space;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// One end of the channel.
#[derive(Debug)]
pub(super) struct Channel(UnixStream);

impl Channel {
    /// Creates a channel. Returns one end of the channel, and the socket of the other end. This
    /// socket becomes the standard input of a child process.
    pub(super) fn pair() -> io::Result<(Self, OwnedFd)> {
        let (mine, other) = UnixStream::pair()?;
        mine.set_write_timeout(Some(WRITTEN_WITHIN))?;
        Ok((Self(mine), other.into()))
    }

    /// Opens the channel on standard input.
    pub(super) fn of_standard_input() -> io::Result<Self> {
        let stream = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
        stream.set_write_timeout(Some(WRITTEN_WITHIN))?;
        // Programs that this process starts later must not inherit the channel, so standard input
        // is replaced.
        let nothing = std::fs::File::open("/dev/null")?;
        rustix::stdio::dup2_stdin(&nothing)?;
        stream.local_addr()?; // The call fails if standard input is not a Unix socket.
        Ok(Self(stream))
    }

    /// Returns the process ID of the process that created the channel, or 0 if that process is in
    /// another PID namespace.
    pub(super) fn maker(&self) -> io::Result<i32> {
        Ok(getsockopt(&self.0, PeerCredentials)?.pid())
    }

    pub(super) fn try_clone(&self) -> io::Result<Self> {
        self.0.try_clone().map(Self)
    }

    pub(super) fn say(&mut self, message: &impl Serialize) -> io::Result<()> {
        self.send(&serde_json::to_vec(message)?)
    }

    /// Receives the next message.
    pub(super) fn hear<T: DeserializeOwned>(&mut self, within: Duration) -> io::Result<T> {
        Ok(serde_json::from_slice(&self.receive(within)?)?)
    }

    /// Sends a frame.
    pub(super) fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        let length =
            u32::try_from(bytes.len()).map_err(|_| io::Error::other("message too long for a frame"))?;
        self.0.write_all(&length.to_le_bytes())?;
        self.0.write_all(bytes)
    }

    /// Receives the next frame.
    pub(super) fn receive(&mut self, within: Duration) -> io::Result<Vec<u8>> {
        self.0.set_read_timeout(Some(within))?;
        let mut length = [0; 4];
        self.0.read_exact(&mut length)?;
        let length = u32::from_le_bytes(length) as usize;
        if length > LONGEST_FRAME {
            return Err(io::Error::new(
                ErrorKind::InvalidData,
                format!("a frame of {length} bytes exceeds the limit"),
            ));
        }
        let mut bytes = vec![0; length];
        self.0.read_exact(&mut bytes)?;
        Ok(bytes)
    }

    /// Sends file descriptors. The previous message must contain the number of descriptors.
    pub(super) fn send_descriptors(&self, all: &[OwnedFd]) -> io::Result<()> {
        for some in all.chunks(AT_ONCE) {
            let borrowed: Vec<BorrowedFd<'_>> = some.iter().map(AsFd::as_fd).collect();
            let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(AT_ONCE))];
            let mut beside = SendAncillaryBuffer::new(&mut space);
            if !beside.push(SendAncillaryMessage::ScmRights(&borrowed)) {
                return Err(io::Error::other("no room for file descriptors"));
            }
            // Each group of descriptors needs at least one byte of data.
            sendmsg(&self.0, &[IoSlice::new(&[0])], &mut beside, SendFlags::NOSIGNAL)?;
        }
        Ok(())
    }

    /// Receives `count` file descriptors, a number that the other process has announced.
    pub(super) fn receive_descriptors(&self, count: usize, within: Duration) -> io::Result<Vec<OwnedFd>> {
        self.0.set_read_timeout(Some(within))?;
        let mut all = Vec::new();
        while all.len() < count {
            let before = all.len();
            let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(AT_ONCE))];
            let mut beside = RecvAncillaryBuffer::new(&mut space);
            let mut byte = [0];
            let to = &mut [IoSliceMut::new(&mut byte)];
            let received = recvmsg(&self.0, to, &mut beside, RecvFlags::CMSG_CLOEXEC)?;
            for message in beside.drain() {
                if let RecvAncillaryMessage::ScmRights(some) = message {
                    all.extend(some);
                }
            }
            // A process that reaches its limit on open files receives only some of the descriptors.
            if all.len() == before || received.flags.contains(ReturnFlags::CTRUNC) {
                return Err(io::Error::new(ErrorKind::UnexpectedEof, "file descriptors are missing"));
            }
        }
        Ok(all)
    }
}

/// The maximum number of descriptors in one `sendmsg` call.
const AT_ONCE: usize = 64;
/// The maximum length of a frame in bytes. The slot IDs of a million backends occupy a tenth of
/// this length.
const LONGEST_FRAME: usize = 1 << 30;
/// The write timeout. The other process reads without delay, so a timeout means that the other
/// process has failed.
const WRITTEN_WITHIN: Duration = Duration::from_secs(20);

#[cfg(test)]
mod tests {
    use std::io::Seek;

    use super::*;

    #[test]
    fn messages_bytes_and_descriptors_come_in_their_order() {
        let (mut one, other) = Channel::pair().unwrap();
        let mut other = Channel(UnixStream::from(other));
        assert_eq!(other.maker().unwrap().try_into(), Ok(std::process::id()));
        let within = Duration::from_secs(10);
        let files: Vec<OwnedFd> = (0..AT_ONCE + 3)
            .map(|number| {
                let path =
                    std::env::temp_dir().join(format!("sluicegate-channel-{}-{number}", std::process::id()));
                let mut file = std::fs::File::create_new(&path).unwrap();
                file.write_all(&[u8::try_from(number).unwrap()]).unwrap();
                let read = std::fs::File::open(&path).unwrap();
                std::fs::remove_file(path).unwrap();
                read.into()
            })
            .collect();
        let sender = std::thread::spawn(move || {
            one.say(&"first").unwrap();
            one.send_descriptors(&files).unwrap();
            one.send(&vec![7; 3_000_000]).unwrap();
            one.say(&"last").unwrap();
        });
        assert_eq!(other.hear::<String>(within).unwrap(), "first");
        let received = other.receive_descriptors(AT_ONCE + 3, within).unwrap();
        for (number, file) in received.into_iter().enumerate() {
            let (mut file, mut byte) = (std::fs::File::from(file), [0]);
            file.rewind().unwrap();
            file.read_exact(&mut byte).unwrap();
            assert_eq!(usize::from(byte[0]), number);
        }
        assert_eq!(other.receive(within).unwrap(), vec![7; 3_000_000]);
        assert_eq!(other.hear::<String>(within).unwrap(), "last");
        sender.join().unwrap();
        assert_eq!(
            other.receive(within).unwrap_err().kind(),
            ErrorKind::UnexpectedEof,
            "the sender has closed the channel"
        );
    }

    #[test]
    fn receive_times_out_without_data() {
        let (mut one, other) = Channel::pair().unwrap();
        let waited = one.receive(Duration::from_millis(5)).unwrap_err().kind();
        assert!(matches!(waited, ErrorKind::WouldBlock | ErrorKind::TimedOut), "{waited}");
        drop(other);
        assert_eq!(one.receive(Duration::from_secs(9)).unwrap_err().kind(), ErrorKind::UnexpectedEof);
    }
}
