//! The ingress program, which drops packets for VIPs after packet sockets have received them. The
//! program is attached with TCX to the ingress of an interface.
//!
//! Invariant: the program is detached when the process ends, like the XDP programs (module
//! `attach`). This requires BPF links for ingress programs, which Linux 6.6 introduced. Without a
//! link, the program would still drop packets for VIPs after the process is killed. The mode
//! `af-packet` is therefore refused on older kernels.
//!
//! See bpf(2) for `BPF_PROG_QUERY`, and Linux 6.6 `kernel/bpf/tcx.c`. Linux `net/core/dev.c`
//! delivers a packet to packet sockets before it runs ingress programs.

use std::io;
use std::os::fd::BorrowedFd;

use aya::Ebpf;
use aya::programs::tc::{TcAttachOptions, TcAttachType};
use aya::programs::{LinkOrder, SchedClassifier, SocketFilter};
use aya::util::KernelVersion;

use crate::attach::{AttachError, AttachMode, Attachment, Link, load_program};
use crate::interface::Interface;

/// Attaches the program `drop`, so that it runs before the other ingress programs of the interface.
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
    // log: The ingress program was attached to an interface. `io.mode = "af-packet"` uses this
    // program instead of an XDP program.
    tracing::info!(interface = interface.name.as_str(), program = DROP, "ingress program attached");
    Ok(Attachment { link: Link::Other { _held: Box::new(link) }, mode: AttachMode::Ingress, program: number })
}

/// Loads the socket filter `take`. The filter accepts exactly the packets that the program `drop`
/// drops.
pub(crate) fn load_socket_filter(ebpf: &mut Ebpf) -> Result<(), AttachError> {
    let program = ebpf.program_mut(TAKE).ok_or(AttachError::Part(TAKE))?;
    let program: &mut SocketFilter = program.try_into().map_err(AttachError::Program)?;
    load_program(|| program.load())
}

/// Attaches the socket filter `take` to a packet socket.
pub(crate) fn filter_socket(ebpf: &Ebpf, socket: BorrowedFd<'_>) -> Result<(), AttachError> {
    let program = ebpf.program(TAKE).ok_or(AttachError::Part(TAKE))?;
    let program: &SocketFilter = program.try_into().map_err(AttachError::Program)?;
    program.attach(socket).map_err(AttachError::Program)
}

/// Returns `true` if the given program is attached to the interface with index `interface`.
/// `program` is the ID of the program.
///
/// # Errors
/// Returns the kernel's error, for example if the interface does not exist.
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
    // SAFETY: `query` has the layout of `union bpf_attr` for this command, and its size is passed.
    // The query points to an array of `count` words that outlives the call, and the call writes
    // only to this array.
    let answer = unsafe { libc::syscall(libc::SYS_bpf, PROG_QUERY, &raw mut query, size_of::<Query>()) };
    if answer < 0 {
        return Err(io::Error::last_os_error());
    }
    let found = query.count as usize;
    Ok(programs.iter().take(found).any(|found| *found == program))
}

/// The struct `query` of `union bpf_attr` in the kernel.
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

/// The maximum number of programs on one hook (`BPF_MPROG_MAX`).
const MOST_PROGRAMS: u32 = 64;
/// `BPF_PROG_QUERY`.
const PROG_QUERY: libc::c_int = 16;
/// `BPF_TCX_INGRESS`.
const TCX_INGRESS: u32 = 46;
/// The names of the programs in `bpf/packet.bpf.c`.
const DROP: &str = "drop";
const TAKE: &str = "take";
