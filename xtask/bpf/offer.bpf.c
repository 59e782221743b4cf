// The generator's kernel side: each run is one UDP or TCP packet over IPv4, given a source port and sent out of the
// device that it is said to have come from. Its UDP checksum is 0, so that the port may change; that of TCP is not
// kept right, and no forwarder looks at it.

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/ip.h>
#include <linux/udp.h>

#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#define FIRST_PORT 10000

// How many flows there are, less one: a power of two less one. Set at load.
const volatile __u32 flow_mask = 0;

SEC("xdp")
int offer(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	struct udphdr *udp = data + sizeof(struct ethhdr) + sizeof(struct iphdr); // TCP has its source port there too

	if ((void *)(udp + 1) > end)
		return XDP_ABORTED;
	udp->source = bpf_htons(FIRST_PORT + (bpf_get_prandom_u32() & flow_mask));
	return bpf_redirect(ctx->ingress_ifindex, 0);
}

// For a device under test that has no XDP program of its own: a veth takes such frames where there is one.
SEC("xdp")
int pass(struct xdp_md *ctx)
{
	return XDP_PASS;
}

char _license[] SEC("license") = "Apache-2.0 OR MIT";
