// A minimal AF_XDP forwarder that swaps the MAC addresses of each frame and sends the frame back
// through the same queue. It is the lower bound for a forwarder with AF_XDP in zero-copy mode.
//
// usage: swap INTERFACE
//
// The program has one socket, for queue 0, and sleeps in poll while no frame arrives.

#define _GNU_SOURCE
#include <errno.h>
#include <linux/bpf.h>
#include <linux/if_link.h>
#include <linux/if_xdp.h>
#include <net/if.h>
#include <poll.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#define FRAMES 4096u
#define FRAME_SIZE 4096u
#define RING 2048u
#define BATCH 64u

struct ring {
  uint32_t *producer, *consumer, *flags, mask;
  void *entries;
};

static void fail(const char *what) {
  fprintf(stderr, "%s: %s\n", what, strerror(errno));
  exit(1);
}

static int bpf(int command, union bpf_attr *attributes) {
  return (int)syscall(SYS_bpf, command, attributes, sizeof *attributes);
}

// Loads a program that redirects each frame to the socket of its queue, and attaches it.
static int attach(int interface, int sockets) {
  const struct bpf_insn code[] = {
    { .code = BPF_LDX | BPF_MEM | BPF_W, .dst_reg = 2, .src_reg = 1, .off = offsetof(struct xdp_md, rx_queue_index) },
    { .code = BPF_LD | BPF_DW | BPF_IMM, .dst_reg = 1, .src_reg = BPF_PSEUDO_MAP_FD, .imm = sockets },
    { 0 },
    { .code = BPF_ALU64 | BPF_MOV | BPF_K, .dst_reg = 3, .imm = XDP_PASS },
    { .code = BPF_JMP | BPF_CALL, .imm = BPF_FUNC_redirect_map },
    { .code = BPF_JMP | BPF_EXIT },
  };
  union bpf_attr load = { .prog_type = BPF_PROG_TYPE_XDP, .insns = (uintptr_t)code,
    .insn_cnt = sizeof code / sizeof *code, .license = (uintptr_t)"GPL" };
  memcpy(load.prog_name, "redirect", 9);
  int program = bpf(BPF_PROG_LOAD, &load);
  if (program < 0) fail("cannot load the XDP program");
  union bpf_attr link = { 0 };
  link.link_create.prog_fd = program;
  link.link_create.target_ifindex = interface;
  link.link_create.attach_type = BPF_XDP;
  link.link_create.flags = XDP_FLAGS_DRV_MODE;
  int attached = bpf(BPF_LINK_CREATE, &link);
  if (attached < 0) fail("cannot attach the XDP program");
  return attached;
}

static struct ring ring(int socket, uint64_t page, const struct xdp_ring_offset *offsets, uint32_t size,
    size_t entry_size) {
  char *start = mmap(NULL, offsets->desc + size * entry_size, PROT_READ | PROT_WRITE,
      MAP_SHARED | MAP_POPULATE, socket, (off_t)page);
  if (start == MAP_FAILED) fail("cannot map a ring");
  return (struct ring) { .producer = (void *)(start + offsets->producer), .consumer = (void *)(start + offsets->consumer),
    .flags = (void *)(start + offsets->flags), .mask = size - 1, .entries = start + offsets->desc };
}

static void set(int socket, int option, const void *value, socklen_t size) {
  if (setsockopt(socket, SOL_XDP, option, value, size)) fail("setsockopt");
}

int main(int argc, char **argv) {
  int interface = argc == 2 ? (int)if_nametoindex(argv[1]) : 0;
  if (!interface) return fprintf(stderr, "usage: swap INTERFACE\n"), 2;

  int xsk = socket(AF_XDP, SOCK_RAW, 0);
  if (xsk < 0) fail("socket");
  unsigned char *memory = mmap(NULL, FRAMES * FRAME_SIZE, PROT_READ | PROT_WRITE,
      MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  if (memory == MAP_FAILED) fail("mmap");
  struct xdp_umem_reg umem = { .addr = (uintptr_t)memory, .len = FRAMES * FRAME_SIZE, .chunk_size = FRAME_SIZE };
  const uint32_t frames = FRAMES, entries = RING;
  set(xsk, XDP_UMEM_REG, &umem, sizeof umem);
  set(xsk, XDP_UMEM_FILL_RING, &frames, sizeof frames);
  set(xsk, XDP_UMEM_COMPLETION_RING, &frames, sizeof frames);
  set(xsk, XDP_RX_RING, &entries, sizeof entries);
  set(xsk, XDP_TX_RING, &entries, sizeof entries);
  struct xdp_mmap_offsets offsets;
  socklen_t size = sizeof offsets;
  if (getsockopt(xsk, SOL_XDP, XDP_MMAP_OFFSETS, &offsets, &size)) fail("getsockopt");
  struct ring received = ring(xsk, XDP_PGOFF_RX_RING, &offsets.rx, RING, sizeof(struct xdp_desc));
  struct ring sent = ring(xsk, XDP_PGOFF_TX_RING, &offsets.tx, RING, sizeof(struct xdp_desc));
  struct ring fill = ring(xsk, XDP_UMEM_PGOFF_FILL_RING, &offsets.fr, FRAMES, sizeof(uint64_t));
  struct ring done = ring(xsk, XDP_UMEM_PGOFF_COMPLETION_RING, &offsets.cr, FRAMES, sizeof(uint64_t));
  uint64_t *free_frames = fill.entries, *finished = done.entries;
  struct xdp_desc *incoming = received.entries, *outgoing = sent.entries;
  for (uint32_t i = 0; i < FRAMES; i++) free_frames[i] = (uint64_t)i * FRAME_SIZE;
  uint32_t filled = FRAMES, reclaimed = 0, taken = 0, queued = 0;
  __atomic_store_n(fill.producer, filled, __ATOMIC_RELEASE);

  struct sockaddr_xdp address = { .sxdp_family = AF_XDP, .sxdp_ifindex = (uint32_t)interface,
    .sxdp_flags = XDP_ZEROCOPY | XDP_USE_NEED_WAKEUP };
  if (bind(xsk, (struct sockaddr *)&address, sizeof address)) fail("bind in zero-copy mode");
  union bpf_attr create = { .map_type = BPF_MAP_TYPE_XSKMAP, .key_size = 4, .value_size = 4, .max_entries = 1 };
  int sockets = bpf(BPF_MAP_CREATE, &create);
  if (sockets < 0) fail("cannot create a map");
  const uint32_t queue = 0;
  union bpf_attr update = { .map_fd = (uint32_t)sockets, .key = (uintptr_t)&queue, .value = (uintptr_t)&xsk };
  if (bpf(BPF_MAP_UPDATE_ELEM, &update)) fail("cannot add the socket to the map");
  attach(interface, sockets);
  printf("forwarding\n");
  fflush(stdout);

  struct pollfd arrival = { .fd = xsk, .events = POLLIN };
  for (;;) {
    uint32_t until = __atomic_load_n(done.producer, __ATOMIC_ACQUIRE);
    if (until != reclaimed) {
      while (reclaimed != until) {
        uint64_t frame = finished[reclaimed++ & done.mask] & ~(uint64_t)(FRAME_SIZE - 1);
        free_frames[filled++ & fill.mask] = frame;
      }
      __atomic_store_n(done.consumer, reclaimed, __ATOMIC_RELEASE);
      __atomic_store_n(fill.producer, filled, __ATOMIC_RELEASE);
    }

    uint32_t waiting = __atomic_load_n(received.producer, __ATOMIC_ACQUIRE) - taken;
    uint32_t room = RING - (queued - __atomic_load_n(sent.consumer, __ATOMIC_ACQUIRE));
    uint32_t batch = waiting < room ? waiting : room;
    if (batch > BATCH) batch = BATCH;
    for (uint32_t i = 0; i < batch; i++) {
      struct xdp_desc frame = incoming[taken++ & received.mask];
      unsigned char *bytes = memory + frame.addr, destination[6];
      memcpy(destination, bytes, 6);
      memcpy(bytes, bytes + 6, 6);
      memcpy(bytes + 6, destination, 6);
      frame.options = 0;
      outgoing[queued++ & sent.mask] = frame;
    }
    if (batch) {
      __atomic_store_n(received.consumer, taken, __ATOMIC_RELEASE);
      __atomic_store_n(sent.producer, queued, __ATOMIC_RELEASE);
      if (*sent.flags & XDP_RING_NEED_WAKEUP) sendto(xsk, NULL, 0, MSG_DONTWAIT, NULL, 0);
    }
    if (*fill.flags & XDP_RING_NEED_WAKEUP) recvfrom(xsk, NULL, 0, MSG_DONTWAIT, NULL, NULL);
    if (!batch) poll(&arrival, 1, -1);
  }
}
