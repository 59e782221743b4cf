//! Runs the attached program with BPF_PROG_TEST_RUN. The input is one frame; the output is a
//! verdict and a frame.

use std::io;
use std::os::fd::{AsFd, AsRawFd};

use aya::programs::{ProgramFd, loaded_programs};
use datapath::interface::Interface;

pub(crate) const DROP: u32 = 1;
pub(crate) const PASS: u32 = 2;
pub(crate) const REDIRECT: u32 = 4;

/// The program that is attached to interface `near`.
pub(crate) struct Program {
    fd: ProgramFd,
    interface: u32,
}

/// The fields of `union bpf_attr` that BPF_PROG_TEST_RUN uses.
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

    /// Runs the program on `frame`, as if the frame had arrived on `queue`.
    pub(crate) fn run(&self, frame: &[u8], queue: u32) -> (u32, Vec<u8>) {
        self.run_with_metadata(frame, queue, 0)
    }

    /// Runs the program on a frame with `metadata` bytes of metadata, which reduce the available
    /// headroom.
    pub(crate) fn run_with_metadata(&self, frame: &[u8], queue: u32, metadata: usize) -> (u32, Vec<u8>) {
        let (attributes, data_out) = self.test(frame, queue, metadata, 1);
        (attributes.verdict, data_out)
    }

    /// Returns the verdict and the mean duration of a run, in nanoseconds. Each repetition
    /// processes the output frame of the previous repetition.
    pub(crate) fn cost(&self, frame: &[u8], queue: u32, repeat: u32) -> (u32, u32) {
        let (attributes, _) = self.test(frame, queue, 0, repeat);
        (attributes.verdict, attributes.duration)
    }

    fn test(&self, frame: &[u8], queue: u32, metadata: usize, repeat: u32) -> (Attributes, Vec<u8>) {
        let mut data_in = vec![0; metadata];
        data_in.extend_from_slice(frame);
        let mut data_out = vec![0_u8; data_in.len() + 256];
        // the fields of struct xdp_md: data, data_end, data_meta, ingress_ifindex, rx_queue_index,
        // egress_ifindex
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
        // SAFETY: the attributes are complete, and their pointers and sizes describe live buffers.
        let result =
            unsafe { libc::syscall(libc::SYS_bpf, TEST_RUN, &raw mut attributes, size_of::<Attributes>()) };
        assert_eq!(result, 0, "{}", io::Error::last_os_error());
        data_out.truncate(attributes.data_out_size as usize);
        // The kernel returns the metadata before the frame, if the metadata is still valid.
        (attributes, data_out)
    }
}

const TEST_RUN: libc::c_long = 10;
