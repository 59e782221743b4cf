// Whose a packet is: a VIP's, and so for packet threads, or the kernel's. The maps that say so, and how they are asked; for
// frames (`steer.bpf.c`) and for the kernel's packet buffers (`packet.bpf.c`).
#pragma once

#include <linux/icmpv6.h>
#include <linux/udp.h>

#include "frame.h"

#define ENCAP_OVERHEAD_MASK 63 // bits 0 to 5 of a value
#define OWN 64 // an address of this machine within a prefix: the kernel's. Other bits are zero, and room for later

#define ENDS 1 // bit of an end's value: tunnels end there. Bits 1 to 15: how many ports we ask from, 16 to 31: the first
#define MAX_ENDS 512 // twice what `steer/ends.rs` allows, as of sources: a new set comes before the old one goes
#define MAX_SOURCES 2048
#define BY_GRE 1 // bits of a source's value
#define BY_IPIP 2
#define BY_GUE 4
#define GUE_PORT 6080
#define UNREACHABLE 3 // of ICMPv4, whose header has the shape of the other family's
#define FRAGMENTATION_NEEDED 4

// An address for a look-up among prefixes: all its bits count.
struct prefix6 {
	__u32 length;
	struct address address;
};

#define MAX_PREFIXES 256 // one of them is none
#define MAX_SLOTS 4096
#define MAX_DEPTH 40 // of branches: no table has more
#define MAX_HELD 130 // prefixes that hold one address: one of each length, and none
#define BRANCH 0x8000 // a step: the number of a branch, else that of a prefix
#define NO_PREFIX 0x80000000 // the value of what holds all addresses

// The bits above `shift` in one half of an address choose one of `mask + 1` slots from `first` on.
struct branch {
	__u16 first;
	__u16 mask;
	__u16 half;
	__u16 shift;
};

// Halves are in the order of the machine.
struct prefix {
	__u64 bits[2];
	__u64 mask[2];
	__u32 value;
	__u32 parent; // the longest that holds this one
};

// `Table` in `steer/prefixes.rs`, which builds it.
struct prefix_table {
	__u32 roots[2];
	struct branch branches[MAX_PREFIXES];
	__u16 slots[MAX_SLOTS];
	struct prefix prefixes[MAX_PREFIXES];
};

// The order is that of the group `xdp` in the table of counters.
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

// Sizes of 1 are set at load.
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1);
	__type(key, struct address);
	__type(value, __u32);
} vips SEC(".maps");

// A trie of the kernel costs some 5 ns a level, this three loads from the nearest cache. Of the two tables the one that
// `prefixes` names is read, the other may be written to.
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

// Where outer packets come from and tunnels end: the machine's own addresses, and prefixes of outer sources.
struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(max_entries, MAX_ENDS);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct prefix6);
	__type(value, __u32);
} ends SEC(".maps");

// Who may send tunnelled packets to them, and how they may be carried.
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

// False: no destination to be found, or none that a VIP can have.
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

// The value of the longest prefix that holds an address. What a branch leads to is the longest that can; those that hold that
// one are tried from there, and the last of them is none.
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

// The value of an address that is taken from the kernel. What has an entry of its own goes before the prefix that covers it.
static __always_inline __u32 *find_value(const struct network *net, const struct address *to)
{
	__u32 *value = bpf_map_lookup_elem(&vips, to);

	if (value)
		return *value & OWN ? NULL : value;
	return find_prefix(net, to);
}

// By which encapsulation a packet of this protocol may be carried: for 0, 4, 41 and 47 the number says it.
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

// The destination port of a datagram; 0: it is none.
static __always_inline __u16 udp_port(__u8 protocol, const struct udphdr *udp, bound end)
{
	return protocol == IPPROTO_UDP && !BEYOND(udp + 1, end) ? bpf_ntohs(udp->dest) : 0;
}

// Whether an ICMPv4 error says that a tunnel's packet was too big: one that the kernel did not send.
static __always_inline int is_about_tunnel4(const struct icmp6hdr *icmp, bound end)
{
	const struct iphdr *quoted = (void *)(icmp + 1);

	if (BEYOND(quoted + 1, end) || icmp->icmp6_type != UNREACHABLE || icmp->icmp6_code != FRAGMENTATION_NEEDED)
		return 0;
	return carried_by(quoted->protocol, (void *)(quoted + 1), end) != 0; // we send no options
}

static __always_inline int is_about_tunnel6(const struct icmp6hdr *icmp, bound end)
{
	const struct ipv6hdr *quoted = (void *)(icmp + 1);

	if (BEYOND(quoted + 1, end) || icmp->icmp6_type != ICMPV6_PKT_TOOBIG)
		return 0;
	return carried_by(quoted->nexthdr, (void *)(quoted + 1), end) != 0;
}

// What is sent to the machine itself and is for the packet threads all the same: tunnelled packets from those who may send
// them, errors about outer packets, and answers to requests of theirs. All else of it is the kernel's, and recognised by its
// protocol and port alone.
static __always_inline int ends_here(const struct network *net, bound end, const struct address *to)
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

// RFC 4861: types 133 to 137 keep the link working, whatever a VIP covers.
static __always_inline int is_neighbour_discovery(const struct network *net, bound end)
{
	struct ipv6hdr *ip6 = net->header;
	struct icmp6hdr *icmp = (void *)(ip6 + 1);

	if (net->protocol != bpf_htons(ETH_P_IPV6) || BEYOND(&icmp->icmp6_code, end))
		return 0;
	return ip6->nexthdr == IPPROTO_ICMPV6 && icmp->icmp6_type >= 133 && icmp->icmp6_type <= 137;
}

// The count of a packet that is the kernel's, or `REDIRECTED` for one that is not. `value` is that of a VIP, where it is one's.
static __always_inline __u32 whose(const struct ethhdr *eth, const struct network *net, bound end, __u32 **value)
{
	struct address to;

	if (eth->h_dest[0] & 1)
		return MULTICAST;
	if (!find_destination(net, end, &to))
		return PASSED;
	*value = find_value(net, &to);
	if (!*value && !ends_here(net, end, &to))
		return PASSED;
	return is_neighbour_discovery(net, end) ? NEIGHBOUR_DISCOVERY : REDIRECTED;
}
