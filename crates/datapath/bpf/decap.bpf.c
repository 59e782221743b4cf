// XDP program for backends. The program removes the outer header from packets that a load balancer
// tunneled to this host, and passes the inner packet to the kernel. The program merges the
// congestion mark of the outer header into the inner packet, and drops the packet if the inner
// packet does not support ECN (RFC 6040 §4.2). All other packets pass to the kernel unchanged.
//
// Every frame increments exactly one counter.

#include <linux/udp.h>

#include "frame.h"

#define GUE_PORT 6080
// According to RFC 2784 §2.3, bits 6 to 12 are sent as zero and ignored on receipt. Some of these
// bits belong to the recursion control field in RFC 1701. If any other bit is set, the header has
// optional fields or a different version.
#define GRE_IGNORED 0x03f8
#define FRAGMENT 0x3fff // more fragments, or a fragment offset

// The order matches `decap::Count`. For each tunnel type, the listed value counts packets with IPv4
// outer headers, and the next value counts packets with IPv6 outer headers.
enum count {
	GRE = 0,
	IPIP = 2,
	GUE = 4,
	REFUSED_SOURCE = 6,
	MALFORMED,
	REFUSED_DESTINATION,
	PASSED,
	CONGESTION,
	COUNTS,
};

// Values of the ECN field, which is the lowest two bits of the TOS or traffic class.
enum ecn { NOT_ECT, ECT_1, ECT_0, CE };

struct prefix4 {
	__u32 length;
	__be32 address;
};

struct prefix6 {
	__u32 length;
	struct address address;
};

// The loader replaces each `max_entries` of 1 with the required size.
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1);
	__type(key, struct address);
	__type(value, __u8);
} local SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(max_entries, 1);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct prefix4);
	__type(value, __u8);
} from4 SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(max_entries, 1);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct prefix6);
	__type(value, __u8);
} from6 SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(max_entries, 1);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct prefix4);
	__type(value, __u8);
} vips4 SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(max_entries, 1);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct prefix6);
	__type(value, __u8);
} vips6 SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, COUNTS);
	__type(key, __u32);
	__type(value, __u64);
} counts SEC(".maps");

struct gre {
	__be16 flags;
	__be16 protocol;
};

struct gue {
	__u8 variant; // version, control bit and header length in words; all of them must be zero
	__u8 protocol;
	__be16 flags;
};

// The headers that precede the inner packet.
struct outer {
	struct address to;
	struct address from; // source address; IPv4 addresses use only the first word
	int is_v6;
	__u8 ecn;
	__u8 protocol; // protocol number of the header that follows the outer IP header
	void *payload;
	void *packet; // first byte of the inner packet
	__u32 length; // length of the outer packet according to its IP header
	__u32 tunnel; // bytes between the outer IP header and the inner packet
	__u32 count;
	__be16 inner; // EtherType of the inner packet
};

static __always_inline int counted(__u32 which, int verdict)
{
	__u64 *count = bpf_map_lookup_elem(&counts, &which);

	if (count)
		(*count)++;
	return verdict;
}

// Returns 0 if this is not an outer IPv4 header that the program can remove.
static __always_inline int read_outer4(struct iphdr *ip, void *end, struct outer *outer)
{
	if ((void *)(ip + 1) > end || ip->version != 4 || ip->ihl != 5 || ip->frag_off & bpf_htons(FRAGMENT))
		return 0;
	from_ipv4(&outer->to, ip->daddr);
	outer->from.words[0] = ip->saddr;
	outer->is_v6 = 0;
	outer->ecn = ip->tos & 3;
	outer->protocol = ip->protocol;
	outer->payload = ip + 1;
	outer->length = bpf_ntohs(ip->tot_len);
	return 1;
}

// Returns 0 if this is not an outer IPv6 header that the program can remove. The program does not
// parse extension headers, including fragment headers.
static __always_inline int read_outer6(struct ipv6hdr *ip6, void *end, struct outer *outer)
{
	if ((void *)(ip6 + 1) > end || ip6->version != 6 || !from_ipv6(&outer->to, &ip6->daddr))
		return 0;
	__builtin_memcpy(&outer->from, &ip6->saddr, sizeof(outer->from));
	outer->is_v6 = 1;
	outer->ecn = ip6->flow_lbl[0] >> 4 & 3; // the byte starts with the low half of the traffic class
	outer->protocol = ip6->nexthdr;
	outer->payload = ip6 + 1;
	outer->length = sizeof(*ip6) + bpf_ntohs(ip6->payload_len);
	return 1;
}

// This check is separate from header parsing, so that packets to other hosts cause no trie lookup.
static __always_inline int is_allowed(const struct outer *outer)
{
	struct prefix4 from4_key = { .length = 32, .address = outer->from.words[0] };
	struct prefix6 from6_key = { .length = 128, .address = outer->from };

	return outer->is_v6 ? bpf_map_lookup_elem(&from6, &from6_key) != 0 :
			      bpf_map_lookup_elem(&from4, &from4_key) != 0;
}

static __always_inline __be16 ethertype(__u8 protocol)
{
	return protocol == IPPROTO_IPIP ? bpf_htons(ETH_P_IP) :
	       protocol == IPPROTO_IPV6 ? bpf_htons(ETH_P_IPV6) : 0;
}

// Finds the inner packet and sets `inner`, `packet`, `tunnel` and `count`. Returns 0 if the packet
// is not in a supported tunnel.
//
// Each branch adds a constant offset to find the inner packet. If the offset were added after the
// branches, the offset would be a variable in a register. Without CAP_PERFMON, the verifier does
// not allow adding a register to a pointer.
static __always_inline int read_tunnel(void *end, struct outer *outer)
{
	struct gre *gre = outer->payload;
	struct udphdr *udp = outer->payload;
	struct gue *gue = (void *)(udp + 1);

	switch (outer->protocol) {
	case IPPROTO_IPIP:
	case IPPROTO_IPV6:
		outer->count = IPIP;
		outer->inner = ethertype(outer->protocol);
		outer->packet = outer->payload;
		outer->tunnel = 0;
		break;
	case IPPROTO_GRE:
		if ((void *)(gre + 1) > end || gre->flags & bpf_htons((__u16)~GRE_IGNORED))
			return 0;
		outer->count = GRE;
		outer->inner = gre->protocol;
		outer->packet = gre + 1;
		outer->tunnel = sizeof(*gre);
		break;
	case IPPROTO_UDP:
		if ((void *)(gue + 1) > end || udp->dest != bpf_htons(GUE_PORT) || gue->variant || gue->flags)
			return 0;
		outer->count = GUE;
		outer->inner = ethertype(gue->protocol);
		outer->packet = gue + 1;
		outer->tunnel = sizeof(*udp) + sizeof(*gue);
		break;
	default:
		return 0;
	}
	return outer->inner == bpf_htons(ETH_P_IP) || outer->inner == bpf_htons(ETH_P_IPV6);
}

// Returns 1 if `packet` starts with a header of the IP version that `protocol` indicates, and if
// the packet is at most `room` bytes long.
static __always_inline int is_sound(void *packet, void *end, __be16 protocol, __u32 room)
{
	if (protocol == bpf_htons(ETH_P_IP)) {
		struct iphdr *ip = packet;

		return (void *)(ip + 1) <= end && ip->version == 4 && bpf_ntohs(ip->tot_len) >= sizeof(*ip) &&
		       bpf_ntohs(ip->tot_len) <= room;
	}
	struct ipv6hdr *ip6 = packet;

	return (void *)(ip6 + 1) <= end && ip6->version == 6 && bpf_ntohs(ip6->payload_len) + sizeof(*ip6) <= room;
}

// Returns 1 if the destination of the inner packet is a listed VIP. Before this call, `is_sound`
// must have returned 1 for the packet.
static __always_inline int is_to_vip(void *packet, void *end, __be16 protocol)
{
	struct prefix4 to4 = { .length = 32 };
	struct prefix6 to6 = { .length = 128 };
	struct iphdr *ip = packet;
	struct ipv6hdr *ip6 = packet;

	if (protocol == bpf_htons(ETH_P_IP)) {
		if ((void *)(ip + 1) > end)
			return 0;
		to4.address = ip->daddr;
		return bpf_map_lookup_elem(&vips4, &to4) != 0;
	}
	if ((void *)(ip6 + 1) > end)
		return 0;
	__builtin_memcpy(&to6.address, &ip6->daddr, sizeof(to6.address));
	return bpf_map_lookup_elem(&vips6, &to6) != 0;
}

// Returns the ECN field of the inner packet after decapsulation, according to the table in RFC 6040
// §4.2, figure 4. Returns -1 if the packet must be dropped.
static __always_inline int merged_ecn(__u8 inner, __u8 outer)
{
	if (outer == CE)
		return inner == NOT_ECT ? -1 : CE;
	return inner == ECT_0 && outer == ECT_1 ? ECT_1 : inner;
}

// Merges the ECN field of the outer header into the inner packet, and updates the IPv4 checksum
// (RFC 1624, equation 3). Returns 0 if the packet must be dropped. Before this call, `is_sound`
// must have returned 1 for the packet.
static __always_inline int merge_ecn(void *packet, void *end, __be16 protocol, __u8 outer)
{
	struct iphdr *ip = packet;
	struct ipv6hdr *ip6 = packet;
	int ecn;

	if (protocol == bpf_htons(ETH_P_IP)) {
		if ((void *)(ip + 1) > end)
			return 0;
		ecn = merged_ecn(ip->tos & 3, outer);
		if (ecn < 0)
			return 0;
		if (ecn != (ip->tos & 3)) {
			__u8 tos = (ip->tos & ~3) | ecn;
			// The TOS is the second byte of its word. The other byte stays the same.
			__u32 sum = (__u16)~ip->check;

			sum += (__u16)~bpf_htons(ip->tos);
			sum += bpf_htons(tos);
			sum = (sum & 0xffff) + (sum >> 16);
			sum = (sum & 0xffff) + (sum >> 16);
			ip->check = ~sum;
			ip->tos = tos;
		}
		return 1;
	}
	if ((void *)(ip6 + 1) > end)
		return 0;
	ecn = merged_ecn(ip6->flow_lbl[0] >> 4 & 3, outer);
	if (ecn < 0)
		return 0;
	ip6->flow_lbl[0] = (ip6->flow_lbl[0] & ~0x30) | ecn << 4;
	return 1;
}

// Moves the start of the frame forward by `strip` bytes. Then writes the Ethernet header and its
// VLAN tags directly before the inner packet.
static __always_inline int strip_outer(struct xdp_md *ctx, __u32 strip, __u32 tags, __be16 inner)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	struct tag saved_tags[MAX_TAGS] = {}, *tag;
	struct ethhdr saved, *eth = data;

	tag = (void *)(eth + 1);
	if ((void *)(tag + MAX_TAGS) > end)
		return 0;
	saved = *eth;
	__builtin_memcpy(saved_tags, tag, sizeof(saved_tags));
	if (tags == 0)
		saved.h_proto = inner;
	else if (tags == 1)
		saved_tags[0].protocol = inner;
	else
		saved_tags[1].protocol = inner;
	if (bpf_xdp_adjust_head(ctx, strip))
		return 0;
	eth = (void *)(long)ctx->data;
	end = (void *)(long)ctx->data_end;
	tag = (void *)(eth + 1);
	if ((void *)(tag + MAX_TAGS) > end)
		return 0; // unreachable: an IP header was parsed after the tags
	*eth = saved;
	if (tags >= 1)
		tag[0] = saved_tags[0];
	if (tags >= 2)
		tag[1] = saved_tags[1];
	return 1;
}

static __always_inline int decap_frame(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	struct outer outer = {};
	struct network net;
	int known;
	__u32 strip;

	if (!find_network(data, end, &net))
		return counted(PASSED, XDP_PASS);
	if (net.protocol == bpf_htons(ETH_P_IP))
		known = read_outer4(net.header, end, &outer);
	else
		known = net.protocol == bpf_htons(ETH_P_IPV6) && read_outer6(net.header, end, &outer);
	if (!known)
		return counted(PASSED, XDP_PASS);
	if (!read_tunnel(end, &outer) || !bpf_map_lookup_elem(&local, &outer.to))
		return counted(PASSED, XDP_PASS);
	if (!is_allowed(&outer))
		return counted(REFUSED_SOURCE, XDP_PASS);
	strip = (outer.is_v6 ? sizeof(struct ipv6hdr) : sizeof(struct iphdr)) + outer.tunnel;
	// The kernel checks whether the frame is as long as its IP header states. This program
	// cannot check this without CAP_PERFMON, because it would have to add a register to a
	// pointer (see `read_tunnel`).
	if (outer.length < strip || !is_sound(outer.packet, end, outer.inner, outer.length - strip))
		return counted(MALFORMED, XDP_PASS);
	if (!is_to_vip(outer.packet, end, outer.inner))
		return counted(REFUSED_DESTINATION, XDP_PASS);
	if (!merge_ecn(outer.packet, end, outer.inner, outer.ecn))
		return counted(CONGESTION, XDP_DROP);
	if (!strip_outer(ctx, strip, net.tags, outer.inner))
		return counted(MALFORMED, XDP_PASS);
	return counted(outer.count + outer.is_v6, XDP_PASS);
}

SEC("xdp")
int decap(struct xdp_md *ctx)
{
	return decap_frame(ctx);
}

// Entry point for interfaces that store a packet in several buffers. All headers that the program
// reads are in the first buffer.
SEC("xdp.frags")
int decap_frags(struct xdp_md *ctx)
{
	return decap_frame(ctx);
}

char _license[] SEC("license") = "Apache-2.0 OR MIT";
