// BPF programs for packet sockets (io.mode = "af-packet"). The socket filter `take` accepts only
// packets for VIPs. The ingress program `drop` drops the same packets, so that the network stack of
// the kernel does not handle them. The kernel runs `drop` after the sockets have received the
// packet. Both programs call `whose` with the same maps, so each packet is handled either by a
// packet thread or by the kernel.
//
// Every packet on the interface increments exactly one counter, in `drop`.

#define COPIED_HEADERS
#include "whose.h"

#define ALL_OF_IT 0xffffffff
#define CONTINUE -1 // TCX_NEXT: later programs and then the kernel handle the packet
#define DROP 2 // TCX_DROP

struct link_headers {
	struct ethhdr eth;
	struct tag tags[MAX_TAGS];
} __attribute__((packed));

// The longest sequence of headers that the program reads: an ICMPv6 error that quotes a tunnel
// packet.
struct network_headers {
	struct ipv6hdr ip6;
	struct icmp6hdr icmp;
	struct ipv6hdr quoted;
	struct udphdr udp;
};

// Copies up to `most` bytes of headers, starting at byte `from` of the packet. Returns the number
// of copied bytes.
static __always_inline __u32 copy_headers(struct __sk_buff *skb, __u32 from, void *to, __u32 most)
{
	__u32 length = skb->len;

	if (length <= from)
		return 0;
	length -= from;
	if (length > most)
		length = most;
	return bpf_skb_load_bytes(skb, from, to, length) ? 0 : length;
}

// Classifies a packet with `whose`. The kernel can store one VLAN tag outside of the packet data,
// so this function counts that tag separately.
static __always_inline __u32 whose_packet(struct __sk_buff *skb)
{
	struct link_headers link = {};
	struct network_headers headers = {};
	__u32 before;
	struct network net;
	bound end = { &link, copy_headers(skb, 0, &link, sizeof(link)) };

	if (!find_network(&link, end, &net))
		return PASSED;
	if (net.tags + (skb->vlan_present ? 1 : 0) > MAX_TAGS)
		return PASSED;
	before = sizeof(struct ethhdr) + net.tags * sizeof(struct tag);
	end = (bound){ &headers, copy_headers(skb, before, &headers, sizeof(headers)) };
	net.header = &headers;
	return whose(&link.eth, &net, end);
}

SEC("socket")
int take(struct __sk_buff *skb)
{
	return whose_packet(skb) == REDIRECTED ? ALL_OF_IT : 0;
}

SEC("classifier")
int drop(struct __sk_buff *skb)
{
	__u32 count = whose_packet(skb);

	return counted(count, count == REDIRECTED ? DROP : CONTINUE);
}

char _license[] SEC("license") = "Apache-2.0 OR MIT";
