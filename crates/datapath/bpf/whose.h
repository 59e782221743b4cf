// Decides whether a packet belongs to a packet thread or to the kernel. A packet belongs to a
// packet thread if its destination is a VIP. This header file contains the maps of addresses, and
// the code that looks up an address in them. `steer.bpf.c` uses this file for frames, and
// `packet.bpf.c` uses it for packet buffers of the kernel.
#pragma once

#include <linux/icmpv6.h>
#include <linux/udp.h>

#include "frame.h"

#define ENCAP_OVERHEAD_MASK 63 // bits 0 to 5 of a map value
// This bit marks an address of this machine that a prefix group contains. Packets to such an
// address belong to the kernel. All higher bits are reserved and must be zero.
#define OWN 64

// Bit 0 of a value in the map `ends` marks a tunnel endpoint. Bits 1 to 15 contain the number of
// source ports for upstream requests. Bits 16 to 31 contain the first of these ports.
#define ENDS 1
// Both map sizes are twice the limits in `steer/tunnel_endpoints.rs`, because a new set is added
// before the old set is removed.
#define MAX_TUNNEL_ENDPOINTS 512
#define MAX_SOURCES 2048
#define BY_GRE 1 // bits of a value in the map `sources`
#define BY_IPIP 2
#define BY_GUE 4
#define GUE_PORT 6080
#define UNREACHABLE 3 // an ICMPv4 type; the header layout is the same as for ICMPv6
#define FRAGMENTATION_NEEDED 4

// A key of an LPM trie. In lookups, `length` is the length of a complete address.
struct prefix6 {
	__u32 length;
	struct address address;
};

#define MAX_PREFIXES 256 // entry 0 is reserved for "no prefix"
#define MAX_SLOTS 4096
#define MAX_DEPTH 40 // the maximum number of branches in a lookup; `Table` never builds more
// The maximum number of nested prefixes that contain the same address: one for each prefix length,
// plus "no prefix".
#define MAX_HELD 130
// If this flag is set in a lookup step, the low bits are the index of a branch. Otherwise they are
// the index of a prefix.
#define BRANCH 0x8000
#define NO_PREFIX 0x80000000 // the value of the entry "no prefix", which matches all addresses

// A branch of the lookup tree. A lookup shifts one 64-bit half of the address right by `shift` and
// masks it with `mask`. The sum of this value and `first` is the index of a slot.
struct branch {
	__u16 first;
	__u16 mask;
	__u16 half;
	__u16 shift;
};

// An address prefix, as two 64-bit halves in host byte order.
struct prefix {
	__u64 bits[2];
	__u64 mask[2];
	__u32 value;
	__u32 parent; // index of the next shorter prefix that contains this prefix
};

// The lookup table for prefix groups. `Table` in `steer/prefixes.rs` builds this table.
struct prefix_table {
	__u32 roots[2];
	struct branch branches[MAX_PREFIXES];
	__u16 slots[MAX_SLOTS];
	struct prefix prefixes[MAX_PREFIXES];
};

// The order matches the group `xdp` in the table of counters.
enum count {
	REDIRECTED,
	PASSED,
	MULTICAST,
	NEIGHBOUR_DISCOVERY,
	NO_SOCKET,
	NO_HEAD_ROOM,
	SOCKET_GONE,
	COUNTS,
};

// The loader replaces each `max_entries` of 1 with the required size.
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1);
	__type(key, struct address);
	__type(value, __u32);
} vips SEC(".maps");

// A lookup in this table needs three loads from the L1 cache, whereas a lookup in the kernel's LPM
// trie takes about 5 ns per level. The map `prefixes` refers to the table that the program reads.
// User space writes only to the other table.
struct prefix_map {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct prefix_table);
} prefixes_a SEC(".maps"), prefixes_b SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, 1);
	__uint(key_size, sizeof(__u32));
	__uint(value_size, sizeof(__u32));
	__array(values, struct prefix_map);
} prefixes SEC(".maps");

// The addresses at which this machine receives outer packets. These addresses include the machine's
// own addresses and the source prefixes of its tunnels.
struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(max_entries, MAX_TUNNEL_ENDPOINTS);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct prefix6);
	__type(value, __u32);
} ends SEC(".maps");

// The senders from which tunneled packets to addresses in `ends` are accepted, and the
// encapsulations that each sender may use.
struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(max_entries, MAX_SOURCES);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct prefix6);
	__type(value, __u32);
} sources SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, COUNTS);
	__type(key, __u32);
	__type(value, __u64);
} counts SEC(".maps");

static __always_inline int counted(__u32 which, int verdict)
{
	__u64 *count = bpf_map_lookup_elem(&counts, &which);

	if (count)
		(*count)++;
	return verdict;
}

// Reads the destination address. Returns 0 if the packet has no valid IP header, or if the IPv6
// destination is in ::ffff:0:0/96.
static __always_inline int find_destination(const struct network *net, bound end, struct address *to)
{
	if (net->protocol == bpf_htons(ETH_P_IP)) {
		struct iphdr *ip = net->header;

		if (BEYOND(ip + 1, end) || ip->version != 4)
			return 0;
		from_ipv4(to, ip->daddr);
		return 1;
	}
	if (net->protocol == bpf_htons(ETH_P_IPV6)) {
		struct ipv6hdr *ip6 = net->header;

		return !BEYOND(ip6 + 1, end) && ip6->version == 6 && from_ipv6(to, &ip6->daddr);
	}
	return 0;
}

// Returns the value of the longest prefix that contains the address, or NULL. The branches lead to
// the longest prefix that could match. If this prefix does not match, the second loop tries its
// parent, and so on. The last parent is "no prefix", which always matches.
static __always_inline __u32 *find_prefix(const struct network *net, const struct address *to)
{
	__u64 high = (__u64)bpf_ntohl(to->words[0]) << 32 | bpf_ntohl(to->words[1]);
	__u64 low = (__u64)bpf_ntohl(to->words[2]) << 32 | bpf_ntohl(to->words[3]);
	struct prefix_table *table;
	__u32 zero = 0, step;
	void *chosen = bpf_map_lookup_elem(&prefixes, &zero);

	table = chosen ? bpf_map_lookup_elem(chosen, &zero) : NULL;
	if (!table)
		return NULL;
	step = net->protocol == bpf_htons(ETH_P_IP) ? table->roots[1] : table->roots[0];
	for (int i = 0; i < MAX_DEPTH && step & BRANCH; i++) {
		struct branch *branch = &table->branches[step & (MAX_PREFIXES - 1)];
		__u64 slot = (branch->half ? low : high) >> (branch->shift & 63) & branch->mask;

		step = table->slots[(branch->first + slot) & (MAX_SLOTS - 1)];
	}
	for (int i = 0; i < MAX_HELD; i++) {
		struct prefix *prefix = &table->prefixes[step & (MAX_PREFIXES - 1)];

		if (!(((high ^ prefix->bits[0]) & prefix->mask[0]) | ((low ^ prefix->bits[1]) & prefix->mask[1])))
			return prefix->value & NO_PREFIX ? NULL : &prefix->value;
		step = prefix->parent;
	}
	return NULL;
}

// Returns the map value of a VIP address. Returns NULL if packets to the address belong to the
// kernel. A host entry takes precedence over a prefix that contains the address.
static __always_inline __u32 *find_value(const struct network *net, const struct address *to)
{
	__u32 *value = bpf_map_lookup_elem(&vips, to);

	if (value)
		return *value & OWN ? NULL : value;
	return find_prefix(net, to);
}

// Returns the encapsulation that the protocol number indicates, or 0. For UDP, the destination port
// must be the GUE port.
static __always_inline __u32 carried_by(__u8 protocol, const struct udphdr *udp, bound end)
{
	switch (protocol) {
	case IPPROTO_GRE:
		return BY_GRE;
	case IPPROTO_IPIP:
	case IPPROTO_IPV6:
		return BY_IPIP;
	case IPPROTO_UDP:
		return !BEYOND(udp + 1, end) && udp->dest == bpf_htons(GUE_PORT) ? BY_GUE : 0;
	}
	return 0;
}

// Returns the destination port of a UDP datagram. Returns 0 for other packets.
static __always_inline __u16 udp_port(__u8 protocol, const struct udphdr *udp, bound end)
{
	return protocol == IPPROTO_UDP && !BEYOND(udp + 1, end) ? bpf_ntohs(udp->dest) : 0;
}

// Returns 1 if this ICMPv4 error reports that a tunnel packet was too large. Only packet threads
// send tunnel packets, so the kernel has no use for such an error.
static __always_inline int is_about_tunnel4(const struct icmp6hdr *icmp, bound end)
{
	const struct iphdr *quoted = (void *)(icmp + 1);

	if (BEYOND(quoted + 1, end) || icmp->icmp6_type != UNREACHABLE || icmp->icmp6_code != FRAGMENTATION_NEEDED)
		return 0;
	// Outer headers of the load balancer never have IP options.
	return carried_by(quoted->protocol, (void *)(quoted + 1), end) != 0;
}

static __always_inline int is_about_tunnel6(const struct icmp6hdr *icmp, bound end)
{
	const struct ipv6hdr *quoted = (void *)(icmp + 1);

	if (BEYOND(quoted + 1, end) || icmp->icmp6_type != ICMPV6_PKT_TOOBIG)
		return 0;
	return carried_by(quoted->nexthdr, (void *)(quoted + 1), end) != 0;
}

// Returns 1 if a packet to an address of this machine belongs to the packet threads. Such a packet
// is a tunneled packet from an allowed sender, an ICMP error about an outer packet, or a reply to
// an upstream request. The function identifies these packets by protocol and port. All other
// packets to the machine belong to the kernel.
static __always_inline int is_tunnel_endpoint(const struct network *net, bound end, const struct address *to)
{
	struct prefix6 key = { .length = 128 };
	__u32 by = 0, *allowed, *value;
	int is_error = 0;
	__u16 port = 0;

	if (net->protocol == bpf_htons(ETH_P_IP)) {
		struct iphdr *ip = net->header;
		void *upper;

		if (BEYOND(ip + 1, end) || ip->ihl != 5 || ip->frag_off & bpf_htons(0x3fff))
			return 0;
		upper = ip + 1;
		by = carried_by(ip->protocol, upper, end);
		is_error = ip->protocol == IPPROTO_ICMP && is_about_tunnel4(upper, end);
		port = udp_port(ip->protocol, upper, end);
		from_ipv4(&key.address, ip->saddr);
	} else {
		struct ipv6hdr *ip6 = net->header;
		void *upper = ip6 + 1;

		if (BEYOND(upper, end) || !from_ipv6(&key.address, &ip6->saddr))
			return 0;
		by = carried_by(ip6->nexthdr, upper, end);
		is_error = ip6->nexthdr == IPPROTO_ICMPV6 && is_about_tunnel6(upper, end);
		port = udp_port(ip6->nexthdr, upper, end);
	}
	if (by) {
		allowed = bpf_map_lookup_elem(&sources, &key);
		if (!allowed || !(*allowed & by))
			return 0;
	} else if (!is_error && !port) {
		return 0;
	}
	key.address = *to;
	value = bpf_map_lookup_elem(&ends, &key);
	if (!value)
		return 0;
	if (by || is_error)
		return *value & ENDS;
	return (__u16)(port - (*value >> 16)) < (*value >> 1 & 0x7fff);
}

// ICMPv6 types 133 to 137 belong to Neighbor Discovery (RFC 4861), without which the link does not
// work. The program passes these packets to the kernel even if a VIP prefix contains their
// destination.
static __always_inline int is_neighbour_discovery(const struct network *net, bound end)
{
	struct ipv6hdr *ip6 = net->header;
	struct icmp6hdr *icmp = (void *)(ip6 + 1);

	if (net->protocol != bpf_htons(ETH_P_IPV6) || BEYOND(&icmp->icmp6_code, end))
		return 0;
	return ip6->nexthdr == IPPROTO_ICMPV6 && icmp->icmp6_type >= 133 && icmp->icmp6_type <= 137;
}

// Returns `REDIRECTED` if the packet belongs to a packet thread. Otherwise returns the counter for
// a packet that belongs to the kernel. Sets `*value` to the map value of the VIP, if the
// destination is a VIP.
static __always_inline __u32 whose(const struct ethhdr *eth, const struct network *net, bound end, __u32 **value)
{
	struct address to;

	if (eth->h_dest[0] & 1)
		return MULTICAST;
	if (!find_destination(net, end, &to))
		return PASSED;
	*value = find_value(net, &to);
	if (!*value && !is_tunnel_endpoint(net, end, &to))
		return PASSED;
	return is_neighbour_discovery(net, end) ? NEIGHBOUR_DISCOVERY : REDIRECTED;
}
