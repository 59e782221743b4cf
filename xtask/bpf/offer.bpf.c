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

#define LATE_NS 100000 // a generator that was held up gives up what it is later than this

// Set at load. How many flows there are, less one: a power of two less one.
const volatile __u32 flow_mask = 0;
// Time between two packets; 0: as fast as they can be made.
const volatile __u64 interval_ns = 0;

static __u64 next_ns;

static __always_inline int is_due(void)
{
	__u64 now = bpf_ktime_get_ns();

	if (now < next_ns)
		return 0;
	next_ns = (now - next_ns > LATE_NS ? now : next_ns) + interval_ns;
	return 1;
}

SEC("xdp")
int offer(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	struct udphdr *udp = data + sizeof(struct ethhdr) + sizeof(struct iphdr); // TCP has its source port there too

	if ((void *)(udp + 1) > end)
		return XDP_ABORTED;
	if (interval_ns && !is_due())
		return XDP_DROP; // its memory is used for the next one
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
