// XDP program that selects packets for packet threads (see `whose.h`). The program redirects these
// packets to the AF_XDP socket of their queue, and passes all other packets to the kernel.
// `packet.bpf.c` does the same for packet sockets. The program only parses headers and looks up
// addresses. Rust code decides what the maps of the program contain.
//
// Every frame increments exactly one counter.

#include "whose.h"

struct {
	__uint(type, BPF_MAP_TYPE_XSKMAP);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} xsks SEC(".maps");

// The verdict for VIP packets on a queue without a socket. The value is set when the program is
// loaded.
const volatile __u32 no_socket_verdict = XDP_PASS;

// Classifies a frame that `is_common` does not recognize. A function saves all registers that it
// uses, so the registers of this separate function are not saved for most packets.
static __noinline __u32 whose_frame(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	struct network net;

	// The kernel handles frames that cannot be parsed.
	return find_network(data, end, &net) ? whose(data, &net, end) : PASSED;
}

static __always_inline int steer_frame(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	__be32 *start = data + 2 * ETH_ALEN;
	struct iphdr *ip = data + sizeof(struct ethhdr);
	__u32 count;
	int verdict;

	if ((void *)(ip + 1) > end || !is_common(data, *start, ip->daddr)) {
		count = whose_frame(ctx);
		if (count != REDIRECTED)
			return counted(count, XDP_PASS);
	}
	count = REDIRECTED;
	verdict = bpf_redirect_map(&xsks, ctx->rx_queue_index, 0);
	if (verdict != XDP_REDIRECT) {
		count = NO_SOCKET;
		verdict = no_socket_verdict;
	}
	return counted(count, verdict);
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
