//! The program that takes VIP traffic from the kernel once packet sockets have had it: on an interface's ingress, by TCX.
//!
//! In: the object of `bpf/packet.bpf.c`. Out: an [`Attachment`], and whether the program is still there.
//! Not here: what its maps hold (`steer`), the sockets (`af_packet`).
//! Invariant: it goes with the process, as XDP programs do (`attach`). Older kernels have no link for this place, and a filter
//! that outlives a killed process would keep dropping the VIPs' packets: there the mode is refused.
//! Source: bpf(2), `BPF_PROG_QUERY`; Linux 6.6 `kernel/bpf/tcx.c`; `net/core/dev.c`: packet sockets, then ingress.

use std::io;
use std::os::fd::BorrowedFd;

use aya::Ebpf;
use aya::programs::tc::{TcAttachOptions, TcAttachType};
use aya::programs::{LinkOrder, SchedClassifier, SocketFilter};
use aya::util::KernelVersion;

use crate::attach::{AttachError, AttachMode, Attachment, Link, load_program};
use crate::interface::Interface;

/// Attaches `drop` in front of the interface's other ingress programs.
pub(crate) fn attach(ebpf: &mut Ebpf, interface: &Interface) -> Result<Attachment, AttachError> {
    if !KernelVersion::current().is_ok_and(|version| version >= KernelVersion::new(6, 6, 0)) {
        return Err(AttachError::NoIngressLinks);
    }
    let program = ebpf.program_mut(DROP).ok_or(AttachError::Part(DROP))?;
    let program: &mut SchedClassifier = program.try_into().map_err(AttachError::Program)?;
    load_program(|| program.load())?;
    let refused = |source| AttachError::Ingress { interface: interface.name.clone(), source };
    let order = TcAttachOptions::TcxOrder(LinkOrder::first());
    let id = program.attach_with_options(&interface.name, TcAttachType::Ingress, order).map_err(refused)?;
    let number = program.info().map_err(AttachError::Program)?.id();
    let link = program.take_link(id).map_err(AttachError::Program)?;
    tracing::info!(interface = interface.name.as_str(), program = DROP, "ingress program attached");
    Ok(Attachment { link: Link::Other { _held: Box::new(link) }, mode: AttachMode::Ingress, program: number })
}

/// Loads `take`, which lets a socket have what `drop` takes from the kernel.
pub(crate) fn load_socket_filter(ebpf: &mut Ebpf) -> Result<(), AttachError> {
    let program = ebpf.program_mut(TAKE).ok_or(AttachError::Part(TAKE))?;
    let program: &mut SocketFilter = program.try_into().map_err(AttachError::Program)?;
    load_program(|| program.load())
}

/// Puts `take` in front of a packet socket.
pub(crate) fn filter_socket(ebpf: &Ebpf, socket: BorrowedFd<'_>) -> Result<(), AttachError> {
    let program = ebpf.program(TAKE).ok_or(AttachError::Part(TAKE))?;
    let program: &SocketFilter = program.try_into().map_err(AttachError::Program)?;
    program.attach(socket).map_err(AttachError::Program)
}

/// Whether the program of this number is on the interface of this index.
///
/// # Errors
/// What the kernel says: among others, that there is no such interface.
pub(crate) fn is_attached(interface: u32, program: u32) -> io::Result<bool> {
    let mut programs = [0u32; MOST_PROGRAMS as usize];
    let mut query = Query {
        interface,
        place: TCX_INGRESS,
        flags: 0,
        answered_flags: 0,
        programs: programs.as_mut_ptr(),
        count: MOST_PROGRAMS,
        padding: 0,
        not_asked: [0; 3],
        revision: 0,
    };
    // SAFETY: `query` is as long as is said, laid out as `union bpf_attr` has it for this command, and points at `count` words
    // that outlive the call, which writes no others.
    let answer = unsafe { libc::syscall(libc::SYS_bpf, PROG_QUERY, &raw mut query, size_of::<Query>()) };
    if answer < 0 {
        return Err(io::Error::last_os_error());
    }
    let found = query.count as usize;
    Ok(programs.iter().take(found).any(|found| *found == program))
}

/// `query` in `union bpf_attr`.
#[repr(C)]
struct Query {
    interface: u32,
    place: u32,
    flags: u32,
    answered_flags: u32,
    programs: *mut u32,
    count: u32,
    padding: u32,
    not_asked: [u64; 3],
    revision: u64,
}

/// `BPF_MPROG_MAX`: the kernel takes no more in one place.
const MOST_PROGRAMS: u32 = 64;
/// `BPF_PROG_QUERY`.
const PROG_QUERY: libc::c_int = 16;
/// `BPF_TCX_INGRESS`.
const TCX_INGRESS: u32 = 46;
/// Names in `bpf/packet.bpf.c`.
const DROP: &str = "drop";
const TAKE: &str = "take";
