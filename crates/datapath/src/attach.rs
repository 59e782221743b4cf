//! What BPF programs need: loading an object, attaching it by a BPF link, reading its counts.
//!
//! In: an embedded object and an interface's name. Out: maps, and an [`Attachment`].
//! Not here: what a map holds (`steer`, `decap`).
//! Invariant: nothing is left behind. The link's descriptor is the only thing that holds the program on its
//! interface, so that it goes with the process, whatever ends it.
//! Source: bpf(2), `BPF_LINK_CREATE`.

use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::{fmt, io};

use aya::maps::{Map, MapData, MapError, PerCpuArray};
use aya::programs::{ProgramError, Xdp};
use aya::sys::SyscallError;
use aya::util::KernelVersion;
use aya::{Ebpf, EbpfError, EbpfLoader, VerifierLogLevel};

use crate::error::words;
use crate::interface::{Interface, InterfaceError};

/// Where in the kernel an XDP program runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttachMode {
    /// In the driver, before the kernel makes a packet buffer.
    Driver,
    /// After the driver: works with each, and is slower.
    Generic,
    /// Not XDP: where the kernel takes packets in, behind packet sockets.
    Ingress,
}

impl AttachMode {
    /// The word for logs and metrics.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Driver => "driver",
            Self::Generic => "generic",
            Self::Ingress => "ingress",
        }
    }
}

/// Why a program is not attached.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AttachError {
    /// The interface cannot be read.
    #[error(transparent)]
    Interface(#[from] InterfaceError),
    /// The kernel refuses XDP on a part of a bond or a team.
    #[error("{interface} is a slave of {master}: XDP goes on {master}, or on an interface of its own")]
    Slave {
        /// The interface.
        interface: String,
        /// The bond or team.
        master: String,
    },
    /// Another program is there.
    #[error("{interface} already has an XDP program, id {program}")]
    Occupied {
        /// The interface.
        interface: String,
        /// The kernel's id of the program.
        program: u32,
    },
    /// A program would outlive a killed process.
    #[error("this kernel is older than 5.9 and cannot tie an XDP program to its process")]
    KernelTooOld,
    /// The kernel refused a map, or the object is damaged.
    #[error("cannot load the XDP program's object")]
    Object(#[from] EbpfError),
    /// The kernel refused the program; its verifier's words are in the source.
    #[error("the kernel refused the XDP program")]
    Program(#[source] ProgramError),
    /// The object has no map or program of this name.
    #[error("the XDP program's object has no `{0}`")]
    Part(&'static str),
    /// A map was refused or could not be filled.
    #[error("cannot use map `{map}`")]
    Map {
        /// The map's name.
        map: &'static str,
        /// What the kernel said.
        source: MapError,
    },
    /// An ingress program would outlive a killed process.
    #[error(
        "this kernel is older than 6.6 and cannot tie an ingress program to its process, as io.mode = \"af-packet\" asks for"
    )]
    NoIngressLinks,
    /// The kernel refused the ingress program there.
    #[error("cannot attach to the ingress of {interface}: {}", words(source))]
    Ingress {
        /// The interface.
        interface: String,
        /// What the kernel said.
        source: ProgramError,
    },
    /// Neither mode works.
    #[error("cannot attach to {interface}: in the driver: {}; generic: {}", words(driver), words(generic))]
    Attach {
        /// The interface.
        interface: String,
        /// Why not in the driver.
        driver: Box<ProgramError>,
        /// Why not generic.
        generic: Box<ProgramError>,
    },
}

/// A program on an interface; dropping it takes the program off.
#[derive(Debug)]
pub(crate) struct Attachment {
    pub(crate) link: Link,
    pub(crate) mode: AttachMode,
    /// The kernel's id of the program.
    pub(crate) program: u32,
}

/// What holds a program on its interface.
#[derive(Debug)]
pub(crate) enum Link {
    /// Of an XDP program: another process that has the descriptor too holds it as well.
    Xdp(OwnedFd),
    /// Held for its end alone.
    Other { _held: Box<dyn fmt::Debug + Send + Sync> },
}

/// Reads interface `name`, and refuses it where XDP cannot go or already is.
pub(crate) fn free_interface(name: &str) -> Result<Interface, AttachError> {
    let interface = Interface::read(name)?;
    if let Some(master) = interface.master.as_ref().filter(|_| interface.is_slave()) {
        return Err(AttachError::Slave { interface: interface.name, master: master.name.clone() });
    }
    if let Some(program) = interface.xdp_program {
        return Err(AttachError::Occupied { interface: interface.name, program });
    }
    Ok(interface)
}

/// Makes the object's maps. The programs in it are not in the kernel yet.
pub(crate) fn load(loader: &mut EbpfLoader<'_>, object: &[u8]) -> Result<Ebpf, AttachError> {
    // aya would fall back to netlink, and leave the program behind when the process is killed.
    if !KernelVersion::current().is_ok_and(|version| version >= KernelVersion::new(5, 9, 0)) {
        return Err(AttachError::KernelTooOld);
    }
    lift_memory_limit();
    // Why it refuses a program, without the way there: that would be 16 MB, and tried ten times for a larger buffer.
    Ok(loader.verifier_log_level(VerifierLogLevel::STATS).load(object)?)
}

pub(crate) fn map<M>(ebpf: &mut Ebpf, name: &'static str) -> Result<M, AttachError>
where
    M: TryFrom<Map, Error = MapError>,
{
    let map = ebpf.take_map(name).ok_or(AttachError::Part(name))?;
    M::try_from(map).map_err(in_map(name))
}

pub(crate) fn in_map(map: &'static str) -> impl FnOnce(MapError) -> AttachError {
    move |source| AttachError::Map { map, source }
}

/// Attaches the first of `names`, or the second to an interface whose packets may lie in several buffers: in the driver, else
/// generic.
pub(crate) fn attach(
    mut ebpf: Ebpf,
    [plain, frags]: [&'static str; 2],
    interface: &Interface,
) -> Result<Attachment, AttachError> {
    // Older kernels refuse the flag that its section stands for.
    let has_frags = KernelVersion::current().is_ok_and(|version| version >= KernelVersion::new(5, 18, 0));
    let name = if has_frags && interface.mtu_bytes > ONE_BUFFER { frags } else { plain };
    let program = ebpf.program_mut(name).ok_or(AttachError::Part(name))?;
    let program: &mut Xdp = program.try_into().map_err(AttachError::Program)?;
    load_program(|| program.load())?;
    let (link, mode) = attach_in_a_mode(program, name, interface)?;
    let number = program.info().map_err(AttachError::Program)?.id();
    tracing::info!(
        interface = interface.name.as_str(),
        program = name,
        mode = mode.name(),
        "XDP program attached"
    );
    Ok(Attachment { link: Link::Xdp(link), mode, program: number })
}

/// Has the kernel load a program.
pub(crate) fn load_program(load: impl FnMut() -> Result<(), ProgramError>) -> Result<(), AttachError> {
    let is_disturbed = |error: &ProgramError| match error {
        ProgramError::LoadError { io_error, .. } => io_error.kind() == io::ErrorKind::WouldBlock,
        _ => false,
    };
    undisturbed(load, is_disturbed).map_err(AttachError::Program)
}

/// Calls again what was disturbed, as often as libbpf does: the kernel's verifier gives up with EAGAIN when a signal comes.
fn undisturbed<E>(
    mut call: impl FnMut() -> Result<(), E>,
    is_disturbed: impl Fn(&E) -> bool,
) -> Result<(), E> {
    for _ in 1..LOADS {
        match call() {
            Err(error) if is_disturbed(&error) => {}
            done => return done,
        }
    }
    call()
}

fn attach_in_a_mode(
    xdp: &Xdp,
    program: &str,
    interface: &Interface,
) -> Result<(OwnedFd, AttachMode), AttachError> {
    let fd = xdp.fd().map_err(AttachError::Program)?.as_fd();
    let driver = match create_link(fd, interface.index, XDP_IN_DRIVER) {
        Ok(link) => return Ok((link, AttachMode::Driver)),
        Err(driver) => driver,
    };
    let link = match create_link(fd, interface.index, XDP_GENERIC) {
        Ok(link) => link,
        Err(generic) => {
            let (driver, generic) = (Box::new(driver), Box::new(generic));
            return Err(AttachError::Attach { interface: interface.name.clone(), driver, generic });
        }
    };
    let (interface, driver) = (interface.name.as_str(), words(&driver));
    tracing::warn!(interface, program, driver, "the driver refuses XDP: it runs generic, and slower");
    Ok((link, AttachMode::Generic))
}

/// By hand: aya's link gives its descriptor to nobody, and another process is to hold the program too.
fn create_link(program: BorrowedFd<'_>, interface: u32, mode: u32) -> Result<OwnedFd, ProgramError> {
    let program = u32::try_from(program.as_raw_fd()).unwrap_or(u32::MAX);
    let mut wanted = NewLink { program, interface, kind: BPF_XDP, mode };
    // SAFETY: `wanted` is as long as is said, is laid out as `union bpf_attr` has it for this command, and outlives the call.
    let made = unsafe { libc::syscall(libc::SYS_bpf, LINK_CREATE, &raw mut wanted, size_of::<NewLink>()) };
    match i32::try_from(made) {
        // SAFETY: the kernel has just made this descriptor, and nobody else knows of it.
        Ok(link) if link >= 0 => Ok(unsafe { OwnedFd::from_raw_fd(link) }),
        _ => {
            let io_error = std::io::Error::last_os_error();
            Err(ProgramError::SyscallError(SyscallError { call: "bpf_link_create", io_error }))
        }
    }
}

/// `union bpf_attr` of `BPF_LINK_CREATE`, as far as XDP needs it.
#[repr(C)]
struct NewLink {
    program: u32,
    interface: u32,
    kind: u32,
    mode: u32,
}

/// The descriptor of a map of one of the kinds that the programs have.
pub(crate) fn descriptor(map: &Map) -> Option<BorrowedFd<'_>> {
    match map {
        Map::Array(map)
        | Map::ArrayOfMaps(map)
        | Map::HashMap(map)
        | Map::LpmTrie(map)
        | Map::PerCpuArray(map)
        | Map::XskMap(map) => Some(map.fd().as_fd()),
        _ => None,
    }
}

/// A count, summed over the CPUs.
pub(crate) fn total(counts: &PerCpuArray<MapData, u64>, index: u32) -> Result<u64, MapError> {
    Ok(counts.get(&index, 0)?.iter().sum())
}

/// An address as the programs' maps have it: IPv4 as `::ffff:a.b.c.d`.
pub(crate) fn key(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
        IpAddr::V6(address) => address.octets(),
    }
}

/// Linux `include/uapi/linux/bpf.h` and `if_link.h`.
const LINK_CREATE: libc::c_int = 28;
const BPF_XDP: u32 = 37;
const XDP_GENERIC: u32 = 1 << 1;
const XDP_IN_DRIVER: u32 = 1 << 2;
/// How often a program is loaded at most.
const LOADS: usize = 5;
/// Bytes of the longest packet that drivers take in a buffer of one page, with what the kernel keeps beside it.
const ONE_BUFFER: u32 = 3_400;

/// Before Linux 5.11 maps count as locked memory. Where the limit cannot be lifted, it may still suffice.
fn lift_memory_limit() {
    let limit = libc::rlimit { rlim_cur: libc::RLIM_INFINITY, rlim_max: libc::RLIM_INFINITY };
    // SAFETY: `limit` is a whole `rlimit` that the call only reads.
    if unsafe { libc::setrlimit(libc::RLIMIT_MEMLOCK, &raw const limit) } != 0 {
        tracing::debug!(error = %std::io::Error::last_os_error(), "the limit on locked memory is not lifted");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_load_that_a_signal_disturbs_is_asked_for_again_and_another_error_is_not() {
        let after = |disturbed: usize, last: Result<(), i32>| {
            let mut calls = 0;
            let said = undisturbed(
                || {
                    calls += 1;
                    if calls <= disturbed { Err(libc::EAGAIN) } else { last }
                },
                |error| *error == libc::EAGAIN,
            );
            (said, calls)
        };
        assert_eq!(after(0, Ok(())), (Ok(()), 1));
        assert_eq!(after(4, Ok(())), (Ok(()), 5));
        assert_eq!(after(9, Ok(())), (Err(libc::EAGAIN), 5));
        assert_eq!(after(1, Err(libc::EPERM)), (Err(libc::EPERM), 2));
    }

    #[test]
    fn what_the_kernel_answered_is_said() {
        let refused = |errno| {
            let io_error = io::Error::from_raw_os_error(errno);
            ProgramError::SyscallError(SyscallError { call: "bpf_link_create", io_error })
        };
        let error = AttachError::Attach {
            interface: "eth0".to_owned(),
            driver: Box::new(refused(libc::ERANGE)),
            generic: Box::new(refused(libc::EBUSY)),
        };
        let said = error.to_string();
        assert!(said.contains("(os error 34); generic: ") && said.ends_with("(os error 16)"), "{said}");
        assert!(said.matches("bpf_link_create").count() == 2, "{said}");
    }
}
