// The generator's kernel side: each run is one UDP packet over IPv4, given a source port and sent out of the
// device that it is said to have come from. Its UDP checksum is 0, so that the port may change.

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/ip.h>
#include <linux/udp.h>

#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#define FIRST_PORT 10000
#define FLOWS 1024 // a power of two

SEC("xdp")
int offer(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	struct udphdr *udp = data + sizeof(struct ethhdr) + sizeof(struct iphdr);

	if ((void *)(udp + 1) > end)
		return XDP_ABORTED;
	udp->source = bpf_htons(FIRST_PORT + (bpf_get_prandom_u32() & (FLOWS - 1)));
	return bpf_redirect(ctx->ingress_ifindex, 0);
}

char _license[] SEC("license") = "Apache-2.0 OR MIT";
