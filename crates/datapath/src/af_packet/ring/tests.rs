//! Tests of both rings against a simulated kernel. The simulated kernel accesses the slots at the
//! offsets that `if_packet.h` defines.

use std::collections::VecDeque;

use proptest::prelude::*;

use super::*;

const SLOT: usize = 2_048;
const RX: usize = 4;
const TX: usize = 4;

struct Kernel {
    memory: Arc<Mapping>,
    rx: usize,
    tx: usize,
}

/// A packet that the kernel received.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Packet {
    bytes: Vec<u8>,
    /// The protocol and the control field of the VLAN tag that the kernel removed. The flag is
    /// `true` if the kernel reports the protocol.
    tag: Option<(u16, u16, bool)>,
    /// The number of bytes that did not fit into the slot.
    cut: u32,
    merged: bool,
}

impl Kernel {
    fn write(&self, at: usize, bytes: &[u8]) {
        assert!(at + bytes.len() <= self.memory.len());
        // SAFETY: `at` is inside the mapping.
        let place = unsafe { self.memory.base().add(at) };
        // SAFETY: the bytes are inside the mapping. The test has one thread, and holds no reference
        // to the memory.
        unsafe { place.copy_from_nonoverlapping(NonNull::from_ref(bytes).cast(), bytes.len()) };
    }

    fn read(&self, at: usize, len: usize) -> Vec<u8> {
        assert!(at + len <= self.memory.len());
        // SAFETY: `at` is inside the mapping.
        let place = unsafe { self.memory.base().add(at) };
        // SAFETY: the bytes are inside the mapping, and are copied before the next write.
        unsafe { std::slice::from_raw_parts(place.as_ptr(), len) }.to_vec()
    }

    fn word(&self, at: usize) -> u32 {
        u32::from_ne_bytes(self.read(at, 4).try_into().unwrap())
    }

    /// Simulates `tpacket_rcv`. Returns `false` if the ring is full.
    fn receives(&mut self, packet: &Packet) -> bool {
        let slot = self.rx * SLOT;
        if self.word(slot) != 0 {
            return false;
        }
        let (len, mac) = (u32::try_from(packet.bytes.len()).unwrap(), 66u16);
        self.write(slot + usize::from(mac), &packet.bytes);
        self.write(slot + 4, &(len + packet.cut).to_ne_bytes());
        self.write(slot + 8, &len.to_ne_bytes());
        self.write(slot + 12, &mac.to_ne_bytes());
        let mut status = 1 | if packet.merged { 1 << 8 } else { 0 };
        if let Some((protocol, control, is_said)) = packet.tag {
            self.write(slot + 24, &control.to_ne_bytes());
            self.write(slot + 26, &if is_said { protocol } else { 0 }.to_ne_bytes());
            status |= 1 << 4 | if is_said { 1 << 6 } else { 0 };
        }
        self.write(slot, &u32::to_ne_bytes(status));
        self.rx = (self.rx + 1) % RX;
        true
    }

    /// Simulates `tpacket_snd`: takes the next waiting frame. The slot stays busy until
    /// [`Kernel::completes`] is called.
    fn sends(&mut self) -> Option<(usize, Vec<u8>)> {
        let slot = (RX + self.tx) * SLOT;
        if self.word(slot) != 1 {
            return None;
        }
        let len = self.word(slot + 4) as usize;
        self.write(slot, &2u32.to_ne_bytes());
        self.tx = (self.tx + 1) % TX;
        Some((slot, self.read(slot + 32, len)))
    }

    fn completes(&self, slot: usize, status: u32) {
        self.write(slot, &status.to_ne_bytes());
    }
}

fn rings() -> (Kernel, RxRing, TxRing) {
    let memory = Arc::new(Mapping::anonymous((RX + TX) * SLOT).unwrap());
    let rings = (RxRing::new(&memory, RX, SLOT), TxRing::new(&memory, RX * SLOT, TX, SLOT));
    (Kernel { memory, rx: 0, tx: 0 }, rings.0, rings.1)
}

#[derive(Clone, Debug)]
enum Step {
    Arrives(Packet),
    Take,
    Put(Vec<u8>),
    Sends,
    /// Completes the oldest frame in flight, or reports that the kernel refused it.
    Completes {
        refused: bool,
    },
}

fn packet() -> impl Strategy<Value = Packet> {
    let tag = proptest::option::of((any::<u16>(), any::<u16>(), any::<bool>()));
    let cut = prop_oneof![4 => Just(0), 1 => 1..60_000u32];
    let bytes = proptest::collection::vec(any::<u8>(), 14..=SLOT - 66);
    (bytes, tag, cut, proptest::bool::weighted(0.1)).prop_map(|(bytes, tag, cut, merged)| Packet {
        bytes,
        tag,
        cut,
        merged,
    })
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => packet().prop_map(Step::Arrives),
        3 => Just(Step::Take),
        3 => proptest::collection::vec(any::<u8>(), 0..=SLOT).prop_map(Step::Put),
        3 => Just(Step::Sends),
        3 => any::<bool>().prop_map(|refused| Step::Completes { refused }),
    ]
}

/// Returns the packet bytes, VLAN tag and `is_whole` flag that the ring should report.
fn shown(packet: &Packet) -> (Vec<u8>, Option<[u8; 4]>, bool) {
    let tag = packet.tag.map(|(protocol, control, is_said)| {
        let [a, b] = if is_said { protocol } else { 0x8100 }.to_be_bytes();
        let [c, d] = control.to_be_bytes();
        [a, b, c, d]
    });
    (packet.bytes.clone(), tag, packet.cut == 0 && !packet.merged)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn rings_keep_packets_and_frames_in_order(
        steps in proptest::collection::vec(step(), 0..120),
    ) {
        let (mut kernel, mut rx, mut tx) = rings();
        let mut waiting: VecDeque<Packet> = VecDeque::new();
        // `queued` contains the frames that are waiting in the ring. `busy` contains the slots of
        // frames in flight.
        let (mut queued, mut busy): (VecDeque<Vec<u8>>, VecDeque<usize>) = Default::default();
        for step in steps {
            match step {
                Step::Arrives(packet) => {
                    prop_assert_eq!(kernel.receives(&packet), waiting.len() < RX, "the ring has free slots");
                    if waiting.len() < RX {
                        waiting.push_back(packet);
                    }
                }
                Step::Take => {
                    let seen = rx.take(|arrival| (arrival.bytes.to_vec(), arrival.tag, arrival.is_whole));
                    prop_assert_eq!(seen, waiting.pop_front().as_ref().map(shown));
                }
                Step::Put(frame) => {
                    let fits = queued.len() + busy.len() < TX && frame.len() <= SLOT - 32;
                    prop_assert_eq!(tx.put(&frame), fits);
                    if fits {
                        queued.push_back(frame);
                    }
                }
                Step::Sends => match (kernel.sends(), queued.pop_front()) {
                    (Some((slot, sent)), Some(frame)) => {
                        prop_assert_eq!(sent, frame);
                        busy.push_back(slot);
                    }
                    (sent, queued) => prop_assert!(sent.is_none() && queued.is_none()),
                },
                Step::Completes { refused } => {
                    if let Some(slot) = busy.pop_front() {
                        kernel.completes(slot, if refused { 4 } else { 0 });
                    }
                }
            }
            prop_assert_eq!(tx.is_unsent(), !queued.is_empty());
        }
    }
}

#[test]
#[should_panic(expected = "packet extends past its slot")]
fn rx_ring_panics_on_a_packet_beyond_its_slot() {
    let (mut kernel, mut rx, _) = rings();
    let bytes = vec![0; SLOT - 66];
    assert!(kernel.receives(&Packet { bytes, tag: None, cut: 0, merged: false }));
    kernel.write(8, &u32::try_from(SLOT - 65).unwrap().to_ne_bytes());
    rx.take(|_| ());
}

#[test]
#[should_panic(expected = "slots outside of the mapped memory")]
fn tx_ring_panics_on_slots_beyond_the_memory() {
    let memory = Arc::new(Mapping::anonymous(4 * SLOT).unwrap());
    TxRing::new(&memory, SLOT, 4, SLOT);
}
