//! BPF_PROG_TEST_RUN on the program that an interface has: one frame in, a verdict and a frame out.

use std::io;
use std::os::fd::{AsFd, AsRawFd};

use aya::programs::{ProgramFd, loaded_programs};
use datapath::interface::Interface;

pub(crate) const DROP: u32 = 1;
pub(crate) const PASS: u32 = 2;
pub(crate) const REDIRECT: u32 = 4;

/// The program on interface `near`.
pub(crate) struct Program {
    fd: ProgramFd,
    interface: u32,
}

/// `union bpf_attr` for BPF_PROG_TEST_RUN.
#[repr(C)]
#[derive(Default)]
struct Attributes {
    program: u32,
    verdict: u32,
    data_in_size: u32,
    data_out_size: u32,
    data_in: u64,
    data_out: u64,
    repeat: u32,
    duration: u32,
    context_in_size: u32,
    context_out_size: u32,
    context_in: u64,
    context_out: u64,
    flags: u32,
    cpu: u32,
    batch_size: u32,
    padding: u32,
}

impl Program {
    pub(crate) fn on_near() -> Self {
        let near = Interface::read("near").unwrap();
        let id = near.xdp_program.expect("attached");
        let info = loaded_programs().flatten().find(|program| program.id() == id).unwrap();
        Self { fd: info.fd().unwrap(), interface: near.index }
    }

    /// Runs the program on `frame` as if it had come on `queue`.
    pub(crate) fn run(&self, frame: &[u8], queue: u32) -> (u32, Vec<u8>) {
        self.run_with_metadata(frame, queue, 0)
    }

    /// As `run`, with `metadata` bytes in front of the frame, which leave less head room.
    pub(crate) fn run_with_metadata(&self, frame: &[u8], queue: u32, metadata: usize) -> (u32, Vec<u8>) {
        let (attributes, data_out) = self.test(frame, queue, metadata, 1);
        (attributes.verdict, data_out)
    }

    /// The verdict, and nanoseconds of one run: the mean of `repeat`. Each begins with the frame as the last one left it.
    pub(crate) fn cost(&self, frame: &[u8], queue: u32, repeat: u32) -> (u32, u32) {
        let (attributes, _) = self.test(frame, queue, 0, repeat);
        (attributes.verdict, attributes.duration)
    }

    fn test(&self, frame: &[u8], queue: u32, metadata: usize, repeat: u32) -> (Attributes, Vec<u8>) {
        let mut data_in = vec![0; metadata];
        data_in.extend_from_slice(frame);
        let mut data_out = vec![0_u8; data_in.len() + 256];
        // struct xdp_md: data, data_end, data_meta, ingress_ifindex, rx_queue_index, egress_ifindex
        let size = |bytes: usize| u32::try_from(bytes).unwrap();
        let context = [size(metadata), size(data_in.len()), 0, self.interface, queue, 0];
        let mut attributes = Attributes {
            program: self.fd.as_fd().as_raw_fd().cast_unsigned(),
            data_in_size: size(data_in.len()),
            data_out_size: size(data_out.len()),
            data_in: data_in.as_ptr() as u64,
            data_out: data_out.as_mut_ptr() as u64,
            repeat,
            context_in_size: size(size_of_val(&context)),
            context_in: context.as_ptr() as u64,
            ..Attributes::default()
        };
        // SAFETY: the attributes are whole, and their pointers and sizes are those of living buffers.
        let result =
            unsafe { libc::syscall(libc::SYS_bpf, TEST_RUN, &raw mut attributes, size_of::<Attributes>()) };
        assert_eq!(result, 0, "{}", io::Error::last_os_error());
        data_out.truncate(attributes.data_out_size as usize);
        // The metadata comes out in front, while it is still valid.
        (attributes, data_out)
    }
}

const TEST_RUN: libc::c_long = 10;
