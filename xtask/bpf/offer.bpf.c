// The generator's kernel side: each run is one frame of UDP or TCP over IPv4, given a source port and sent out of the
// device that it is said to have come from. Its UDP checksum is 0, so that the port may change; that of TCP is not
// kept right, and no forwarder looks at it.
// A frame's memory comes back as the forwarder left it (other addresses, a lower TTL), so each run writes all of it.

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/ip.h>
#include <linux/udp.h>

#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#define FIRST_PORT 10000
#define WORDS 15 // of the smallest frame: 60 bytes without its check sequence
#define LATE_NS 100000 // a generator that was held up gives up what it is later than this
#define DELAYS 65536

// Set at load. The frame.
const volatile __u32 frame[WORDS] = {};
// How many flows there are, less one: a power of two less one.
const volatile __u32 flow_mask = 0;
// Time between two packets; 0: as fast as they can be made.
const volatile __u64 interval_ns = 0;
// Least time between two packets that say when they were sent; 0: none says it.
const volatile __u64 probe_ns = 0;

static __u64 next_ns, last_probe_ns;

// The end of a frame, so behind all headers that a forwarder puts before it.
struct probe {
	__u64 sent_ns; // 0: it does not say
	__u64 mark;
};

#define MARK 0x736c756963656761ULL

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__type(key, __u32);
	__type(value, __u32);
	__uint(max_entries, DELAYS);
} delays SEC(".maps");

static __u32 seen;

static __always_inline int is_due(__u64 now)
{
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
	struct probe *probe = data + sizeof(frame) - sizeof(struct probe);
	__u64 now = interval_ns || probe_ns ? bpf_ktime_get_ns() : 0;
	__u32 *words = data;

	if ((void *)(words + WORDS) > end)
		return XDP_ABORTED;
	if (interval_ns && !is_due(now))
		return XDP_DROP; // its memory is used for the next one
#pragma unroll
	for (int n = 0; n < WORDS; n++)
		words[n] = frame[n];
	udp->source = bpf_htons(FIRST_PORT + (bpf_get_prandom_u32() & flow_mask));
	if (probe_ns && now - last_probe_ns >= probe_ns) {
		probe->sent_ns = last_probe_ns = now;
		probe->mark = MARK;
	}
	return bpf_redirect(ctx->ingress_ifindex, 0);
}

// For a device under test that has no XDP program of its own: a veth takes such frames where there is one.
SEC("xdp")
int pass(struct xdp_md *ctx)
{
	return XDP_PASS;
}

// For a packet socket where frames come back: keeps how long each that says when it was sent took, in nanoseconds, and
// lets the socket have none.
SEC("socket")
int delay(struct __sk_buff *skb)
{
	struct probe probe;
	__u32 at, took;

	if (bpf_skb_load_bytes(skb, skb->len - sizeof(probe), &probe, sizeof(probe)) || probe.mark != MARK)
		return 0;
	took = bpf_ktime_get_ns() - probe.sent_ns;
	at = __sync_fetch_and_add(&seen, 1);
	bpf_map_update_elem(&delays, &at, &took, BPF_ANY);
	return 0;
}

char _license[] SEC("license") = "Apache-2.0 OR MIT";
