// BPF programs for packet sockets (io.mode = "af-packet"). The socket filter `take` accepts only
// packets for VIPs. The ingress program `drop` drops the same packets, so that the network stack of
// the kernel does not handle them. The kernel runs `drop` after the sockets have received the
// packet. `take` stores its decision in the packet buffer, and `drop` reads it there. If `take` has
// not run, `drop` makes the same decision with the same maps. Each packet is therefore handled
// either by a packet thread or by the kernel.
//
// Every packet on the interface increments exactly one counter, in `drop`.

#define COPIED_HEADERS
#include "whose.h"

#define ALL_OF_IT 0xffffffff
#define CONTINUE -1 // TCX_NEXT: later programs and then the kernel handle the packet
#define DROP 2 // TCX_DROP

// A random number, set when the programs are loaded. The number marks packets that `take` has
// classified. Other code of the kernel uses the same bytes of the packet buffer for other data.
const volatile __u32 classified[2] = {};

// The headers of an IPv4 packet without a VLAN tag. The fields are aligned, because the verifier
// requires this for memory on the stack.
struct common_headers {
	__u16 padding;
	struct ethhdr eth;
	struct iphdr ip;
} __attribute__((aligned(8)));

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

// Classifies any packet. The kernel can store one VLAN tag outside of the packet data, so this
// function counts that tag separately.
static __noinline __u32 whose_any(struct __sk_buff *skb)
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

static __always_inline __u32 whose_packet(struct __sk_buff *skb)
{
	struct common_headers headers;
	__be32 start;

	if (bpf_skb_load_bytes(skb, 0, &headers.eth, sizeof(headers.eth) + sizeof(headers.ip)))
		return whose_any(skb);
	start = bpf_htonl((__u32)bpf_ntohs(headers.eth.h_proto) << 16 | bpf_ntohs(*(__be16 *)&headers.ip));
	return is_common(&headers.eth, start, headers.ip.daddr) ? REDIRECTED : whose_any(skb);
}

SEC("socket")
int take(struct __sk_buff *skb)
{
	__u32 count = whose_packet(skb);

	skb->cb[0] = classified[0];
	skb->cb[1] = classified[1];
	skb->cb[2] = count;
	return count == REDIRECTED ? ALL_OF_IT : 0;
}

SEC("classifier")
int drop(struct __sk_buff *skb)
{
	__u32 count = skb->cb[2];

	if (skb->cb[0] != classified[0] || skb->cb[1] != classified[1])
		count = whose_packet(skb);
	return counted(count, count == REDIRECTED ? DROP : CONTINUE);
}

char _license[] SEC("license") = "Apache-2.0 OR MIT";
