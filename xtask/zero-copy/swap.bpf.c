// An XDP program that swaps the MAC addresses of each frame and sends the frame back (XDP_TX). It
// is the lower bound for a forwarder in XDP.

#include <linux/bpf.h>

#include <bpf/bpf_helpers.h>

struct ethernet {
  unsigned char destination[6], source[6];
  unsigned short type;
};

SEC("xdp") int swap(struct xdp_md *context) {
  struct ethernet *frame = (void *)(long)context->data;
  if ((void *)(frame + 1) > (void *)(long)context->data_end) return XDP_PASS;
  unsigned char destination[6];
  __builtin_memcpy(destination, frame->destination, 6);
  __builtin_memcpy(frame->destination, frame->source, 6);
  __builtin_memcpy(frame->source, destination, 6);
  return XDP_TX;
}

char _license[] SEC("license") = "GPL";
