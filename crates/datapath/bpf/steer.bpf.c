// XDP: what `whose.h` says is for packet threads goes to this queue's AF_XDP socket, all else to the kernel; `packet.bpf.c` does the
// same for packet sockets. Policy lives in Rust: an `if` here that is not about parsing is in the wrong place.
//
// Socket first, then head room: once the head has moved the frame is no longer one for the kernel.
// Every frame moves exactly one count.

#include "whose.h"

struct {
	__uint(type, BPF_MAP_TYPE_XSKMAP);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} xsks SEC(".maps");

const volatile __u8 no_socket_drops = 0; // set at load

// Opens `encapsulation overhead` bytes in front and marks the first of them, so that user space knows where the frame
// starts. The mark is odd, and no frame that comes here starts with an odd byte: multicast frames were passed before.
static __always_inline int open_head_room(struct xdp_md *ctx, __u32 encap_overhead)
{
	__u8 *mark;

	if (bpf_xdp_adjust_head(ctx, -(int)encap_overhead))
		return 0;
	mark = (void *)(long)ctx->data;
	if ((void *)(mark + 1) > (void *)(long)ctx->data_end)
		return 0;
	*mark = encap_overhead << 1 | 1;
	return 1;
}

static __always_inline int steer_frame(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	__u32 queue = ctx->rx_queue_index, encap_overhead, *value = NULL, count;
	struct network net;

	if (!find_network(data, end, &net))
		return counted(PASSED, XDP_PASS); // what cannot be parsed is not ours to judge
	count = whose(data, &net, end, &value);
	if (count != REDIRECTED)
		return counted(count, XDP_PASS);
	if (!bpf_map_lookup_elem(&xsks, &queue))
		return counted(NO_SOCKET, no_socket_drops ? XDP_DROP : XDP_PASS);
	encap_overhead = value ? *value & ENCAP_OVERHEAD_MASK : 0;
	if (encap_overhead && !open_head_room(ctx, encap_overhead))
		return counted(NO_HEAD_ROOM, XDP_DROP);
	if (bpf_redirect_map(&xsks, queue, XDP_DROP) != XDP_REDIRECT)
		return counted(SOCKET_GONE, XDP_DROP);
	return counted(REDIRECTED, XDP_REDIRECT);
}

SEC("xdp")
int steer(struct xdp_md *ctx)
{
	return steer_frame(ctx);
}

// For interfaces whose packets lie in several buffers: all that is looked at lies in the first.
SEC("xdp.frags")
int steer_frags(struct xdp_md *ctx)
{
	return steer_frame(ctx);
}

char _license[] SEC("license") = "Apache-2.0 OR MIT";
