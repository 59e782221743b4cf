// XDP program that selects packets for packet threads (see `whose.h`). The program redirects these
// packets to the AF_XDP socket of their queue, and passes all other packets to the kernel.
// `packet.bpf.c` does the same for packet sockets. The program only parses headers and looks up
// addresses. Rust code decides what the maps of the program contain.
//
// The program looks up the socket before it reserves headroom. If the queue has no socket, the
// program may pass the frame to the kernel, which cannot parse a frame whose start was moved. Every
// frame increments exactly one counter.

#include "whose.h"

struct {
	__uint(type, BPF_MAP_TYPE_XSKMAP);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} xsks SEC(".maps");

const volatile __u8 no_socket_drops = 0; // set when the program is loaded

// Reserves `encap_overhead` bytes of headroom before the frame, and writes a mark into the first of
// these bytes. User space uses the mark to find the start of the frame. The mark is odd. A frame
// without headroom starts with an even byte, because its destination is not a multicast address.
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
		return counted(PASSED, XDP_PASS); // the kernel handles frames that cannot be parsed
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

// Entry point for interfaces that store a packet in several buffers. All headers that the program
// reads are in the first buffer.
SEC("xdp.frags")
int steer_frags(struct xdp_md *ctx)
{
	return steer_frame(ctx);
}

char _license[] SEC("license") = "Apache-2.0 OR MIT";
