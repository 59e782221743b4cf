// The kernel side of packet sockets: `take` lets the sockets of packet threads have what is a VIP's and no more, `drop` takes
// the same packets from the kernel. It runs after the sockets have had their copy. Both ask the same maps by the same words,
// so that each packet is either a packet thread's or the kernel's.
//
// Every packet of the interface moves exactly one count, in `drop`.

#define COPIED_HEADERS
#include "whose.h"

#define ALL_OF_IT 0xffffffff
#define CONTINUE -1 // TCX_NEXT: programs that come after this one, and then the kernel
#define DROP 2 // TCX_DROP

struct link_headers {
	struct ethhdr eth;
	struct tag tags[MAX_TAGS];
} __attribute__((packed));

// The longest that is looked at: an ICMPv6 error that quotes a tunnel's packet.
struct network_headers {
	struct ipv6hdr ip6;
	struct icmp6hdr icmp;
	struct ipv6hdr quoted;
	struct udphdr udp;
};

// Copies what a packet has of some headers; how many bytes that is.
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

// As `whose` says of the frame that the packet came in. The kernel keeps one tag beside the packet.
static __always_inline __u32 whose_packet(struct __sk_buff *skb)
{
	struct link_headers link = {};
	struct network_headers headers = {};
	__u32 *value = NULL, before;
	struct network net;
	bound end = { &link, copy_headers(skb, 0, &link, sizeof(link)) };

	if (!find_network(&link, end, &net))
		return PASSED;
	if (net.tags + (skb->vlan_present ? 1 : 0) > MAX_TAGS)
		return PASSED;
	before = sizeof(struct ethhdr) + net.tags * sizeof(struct tag);
	end = (bound){ &headers, copy_headers(skb, before, &headers, sizeof(headers)) };
	net.header = &headers;
	return whose(&link.eth, &net, end, &value);
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
