//! Common code for BPF programs: loading an object file, attaching a program with a BPF link, and
//! reading its counters.
//!
//! Invariant: only the descriptor of the BPF link keeps the program attached. The program is
//! therefore detached when the process ends, even by SIGKILL.
//!
//! See bpf(2) for `BPF_LINK_CREATE`.

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

/// The hook in the kernel where a program runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttachMode {
    /// XDP in the driver, before the kernel allocates a packet buffer.
    Driver,
    /// XDP in generic mode, which runs after the driver has allocated a packet buffer. Every driver
    /// supports generic mode, but generic mode is slower than driver mode.
    Generic,
    /// TCX ingress, which runs after packet sockets have received the packet and before the network
    /// stack.
    Ingress,
}

impl AttachMode {
    /// Returns the name for logs and metrics.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Driver => "driver",
            Self::Generic => "generic",
            Self::Ingress => "ingress",
        }
    }
}

/// The reason why a BPF program could not be attached.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AttachError {
    /// The interface could not be read.
    #[error(transparent)]
    Interface(#[from] InterfaceError),
    /// The kernel does not allow XDP on a member of a bond or team.
    #[error("{interface} is a member of {master}; use {master} or another interface")]
    Slave {
        /// The interface that belongs to the bond or team.
        interface: String,
        /// The bond or team that contains the interface.
        master: String,
    },
    /// Another XDP program is already attached.
    #[error("{interface} already has an XDP program, id {program}")]
    Occupied {
        /// The interface that already has an XDP program.
        interface: String,
        /// The ID of that program in the kernel.
        program: u32,
    },
    /// The kernel does not support BPF links for XDP. Without a link, the program would stay
    /// attached after the process is killed.
    #[error("Linux 5.9 or later is needed to detach the XDP program when the process ends")]
    KernelTooOld,
    /// The kernel refused to create a map, or the object file is damaged.
    #[error("cannot load the BPF object")]
    Object(#[from] EbpfError),
    /// The kernel refused the program. The source error contains the message of the verifier.
    #[error("the kernel refused the XDP program")]
    Program(#[source] ProgramError),
    /// The object file has no map or program with this name.
    #[error("the BPF object has no map or program `{0}`")]
    Part(&'static str),
    /// The kernel refused to create or update a map.
    #[error("cannot use BPF map `{map}`")]
    Map {
        /// The map's name.
        map: &'static str,
        /// The error that the kernel returned.
        source: MapError,
    },
    /// The kernel does not support BPF links for ingress programs. Without a link, the program
    /// would stay attached after the process is killed.
    #[error(
        "io.mode = \"af-packet\" needs Linux 6.6 or later to detach the ingress program when the process ends"
    )]
    NoIngressLinks,
    /// The kernel refused to attach the ingress program.
    #[error("cannot attach a program to the ingress of {interface}: {}", words(source))]
    Ingress {
        /// The interface to which the program could not be attached.
        interface: String,
        /// The error that the kernel returned.
        source: ProgramError,
    },
    /// The program could be attached neither in the driver nor in generic mode.
    #[error(
        "cannot attach to {interface} in driver mode ({}) or in generic mode ({})",
        words(driver),
        words(generic)
    )]
    Attach {
        /// The interface to which the program could not be attached.
        interface: String,
        /// The error in driver mode.
        driver: Box<ProgramError>,
        /// The error in generic mode.
        generic: Box<ProgramError>,
    },
}

/// A program that is attached to an interface. Dropping the value detaches the program.
#[derive(Debug)]
pub(crate) struct Attachment {
    pub(crate) link: Link,
    pub(crate) mode: AttachMode,
    /// The ID of the program in the kernel.
    pub(crate) program: u32,
}

/// The BPF link that keeps a program attached.
#[derive(Debug)]
pub(crate) enum Link {
    /// A link to an XDP program. Another process can hold a second descriptor of the same link.
    Xdp(OwnedFd),
    /// A link to any other program. The value is stored only because dropping it detaches the
    /// program.
    Other { _held: Box<dyn fmt::Debug + Send + Sync> },
}

/// Reads the properties of interface `name`. Returns an error if XDP is not possible on the
/// interface, or if another XDP program is attached.
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

/// Loads an object file and creates its maps. The programs are not loaded into the kernel yet.
pub(crate) fn load(loader: &mut EbpfLoader<'_>, object: &[u8]) -> Result<Ebpf, AttachError> {
    // On older kernels aya falls back to netlink. A program that was attached by netlink stays
    // attached when the process is killed.
    if !KernelVersion::current().is_ok_and(|version| version >= KernelVersion::new(5, 9, 0)) {
        return Err(AttachError::KernelTooOld);
    }
    lift_memory_limit();
    // At this log level the kernel reports why the verifier refuses a program, but omits the
    // verifier's trace. A log with the trace is 16 MB long, and aya would request it ten times with
    // increasing buffer sizes.
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

/// Attaches one of two programs to an interface. The first program supports only packets in a
/// single buffer. The second program also supports packets in several buffers. Tries driver mode
/// first, then generic mode.
pub(crate) fn attach(
    mut ebpf: Ebpf,
    [plain, frags]: [&'static str; 2],
    interface: &Interface,
) -> Result<Attachment, AttachError> {
    // Older kernels refuse the load flag that programs in the section `xdp.frags` need.
    let has_frags = KernelVersion::current().is_ok_and(|version| version >= KernelVersion::new(5, 18, 0));
    let name = if has_frags && interface.mtu_bytes > ONE_BUFFER { frags } else { plain };
    let program = ebpf.program_mut(name).ok_or(AttachError::Part(name))?;
    let program: &mut Xdp = program.try_into().map_err(AttachError::Program)?;
    load_program(|| program.load())?;
    let (link, mode) = attach_in_a_mode(program, name, interface)?;
    let number = program.info().map_err(AttachError::Program)?.id();
    // log: The XDP program was attached to an interface. `mode` is `driver` or `generic`.
    tracing::info!(
        interface = interface.name.as_str(),
        program = name,
        xdp_mode = mode.name(),
        "XDP program attached"
    );
    Ok(Attachment { link: Link::Xdp(link), mode, program: number })
}

/// Loads a program into the kernel.
pub(crate) fn load_program(load: impl FnMut() -> Result<(), ProgramError>) -> Result<(), AttachError> {
    let is_disturbed = |error: &ProgramError| match error {
        ProgramError::LoadError { io_error, .. } => io_error.kind() == io::ErrorKind::WouldBlock,
        _ => false,
    };
    undisturbed(load, is_disturbed).map_err(AttachError::Program)
}

/// Repeats an interrupted call, up to [`LOADS`] attempts in total, like libbpf. The verifier fails
/// with EAGAIN if the thread receives a signal.
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
    // log: The driver does not support XDP on this interface, so the slower generic mode is used.
    // The field `driver` contains the reason, for example the MTU, GRO, LRO or the number of queues
    // ([Prepare a machine](../how-to/prepare-a-machine.md)).
    tracing::warn!(interface, program, driver, "XDP runs in generic mode");
    Ok((link, AttachMode::Generic))
}

/// Creates a BPF link with a direct system call. The link type of aya does not expose its
/// descriptor, but a handover must pass the descriptor to another process.
fn create_link(program: BorrowedFd<'_>, interface: u32, mode: u32) -> Result<OwnedFd, ProgramError> {
    let program = u32::try_from(program.as_raw_fd()).unwrap_or(u32::MAX);
    let mut wanted = NewLink { program, interface, kind: BPF_XDP, mode };
    // SAFETY: `wanted` has the layout of `union bpf_attr` for this command. The call receives its
    // size, and `wanted` outlives the call.
    let made = unsafe { libc::syscall(libc::SYS_bpf, LINK_CREATE, &raw mut wanted, size_of::<NewLink>()) };
    match i32::try_from(made) {
        // SAFETY: the kernel has just created this descriptor, so it has no other owner.
        Ok(link) if link >= 0 => Ok(unsafe { OwnedFd::from_raw_fd(link) }),
        _ => {
            let io_error = std::io::Error::last_os_error();
            Err(ProgramError::SyscallError(SyscallError { call: "bpf_link_create", io_error }))
        }
    }
}

/// The fields of `union bpf_attr` that `BPF_LINK_CREATE` needs for XDP.
#[repr(C)]
struct NewLink {
    program: u32,
    interface: u32,
    kind: u32,
    mode: u32,
}

/// Returns the descriptor of a map. Returns `None` for map types that the programs do not use.
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

/// Returns the value of a counter, summed over all CPUs.
pub(crate) fn total(counts: &PerCpuArray<MapData, u64>, index: u32) -> Result<u64, MapError> {
    Ok(counts.get(&index, 0)?.iter().sum())
}

/// Returns an address as a map key. IPv4 addresses have the form `::ffff:a.b.c.d`.
pub(crate) fn key(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
        IpAddr::V6(address) => address.octets(),
    }
}

/// Constants of Linux `include/uapi/linux/bpf.h` and `if_link.h`.
const LINK_CREATE: libc::c_int = 28;
const BPF_XDP: u32 = 37;
const XDP_GENERIC: u32 = 1 << 1;
const XDP_IN_DRIVER: u32 = 1 << 2;
/// The maximum number of attempts to load a program.
const LOADS: usize = 5;
/// The longest packet, in bytes, that fits into a one-page buffer together with the metadata of the
/// kernel.
const ONE_BUFFER: u32 = 3_400;

/// Lifts the limit on locked memory. Linux before 5.11 counts map memory against this limit. A
/// failure is only logged, because the current limit may be high enough.
fn lift_memory_limit() {
    let limit = libc::rlimit { rlim_cur: libc::RLIM_INFINITY, rlim_max: libc::RLIM_INFINITY };
    // SAFETY: `limit` is a complete `rlimit`, and the call only reads it.
    if unsafe { libc::setrlimit(libc::RLIMIT_MEMLOCK, &raw const limit) } != 0 {
        tracing::debug!(error = %std::io::Error::last_os_error(), "limit on locked memory not lifted");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn undisturbed_repeats_interrupted_loads_only() {
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
    fn attach_error_has_both_kernel_errors() {
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
        assert!(
            said.contains("(os error 34)) or in generic mode (") && said.ends_with("(os error 16))"),
            "{said}"
        );
        assert!(said.matches("bpf_link_create").count() == 2, "{said}");
    }
}
