// BPF programs of the load generator. Each run of `offer` creates one UDP or TCP frame over IPv4
// with a random source port, and sends it from the device that is given as ingress interface. The
// UDP checksum is 0, so the port can change without updating it. The TCP checksum is wrong, but no
// measured forwarder checks it. Frame memory is reused and still contains what the forwarder
// changed (addresses, TTL), so each run writes the whole frame.

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/ip.h>
#include <linux/udp.h>

#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#define FIRST_PORT 10000
// Number of 32-bit words in the smallest frame: 60 bytes without the frame check sequence.
#define WORDS 15
// The maximum delay in nanoseconds. If a packet is overdue by more, the generator skips it.
#define LATE_NS 100000
#define DELAYS 65536

// The following values are set at load time. This one is the frame to send.
const volatile __u32 frame[WORDS] = {};
// The number of flows minus one. The number of flows is a power of two.
const volatile __u32 flow_mask = 0;
// The time between two packets, or 0 to send at full speed.
const volatile __u64 interval_ns = 0;
// The minimum time between two packets with a timestamp, or 0 for no timestamps.
const volatile __u64 probe_ns = 0;

static __u64 next_ns, last_probe_ns;

// The timestamp at the end of a frame. It stays at the end when a forwarder adds headers.
struct probe {
	__u64 sent_ns; // 0 if the frame has no timestamp.
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
	// TCP has its source port at the same offset as UDP.
	struct udphdr *udp = data + sizeof(struct ethhdr) + sizeof(struct iphdr);
	struct probe *probe = data + sizeof(frame) - sizeof(struct probe);
	__u64 now = interval_ns || probe_ns ? bpf_ktime_get_ns() : 0;
	__u32 *words = data;

	if ((void *)(words + WORDS) > end)
		return XDP_ABORTED;
	if (interval_ns && !is_due(now))
		return XDP_DROP; // Dropping the packet makes its memory available for the next frame.
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

// Passes all frames to the kernel. A veth accepts XDP frames only if it has an XDP program, so this
// program is attached to a device under test that has none of its own.
SEC("xdp")
int pass(struct xdp_md *ctx)
{
	return XDP_PASS;
}

// Runs on a packet socket of the device at which frames come back. For each frame with a timestamp,
// the program stores the latency in nanoseconds. It passes no frame to the socket.
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
