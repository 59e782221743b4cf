// Decides whether a packet belongs to a packet thread or to the kernel. A packet belongs to a
// packet thread if its destination is a VIP. This header file contains the maps of addresses, and
// the code that looks up an address in them. `steer.bpf.c` uses this file for frames, and
// `packet.bpf.c` uses it for packet buffers of the kernel.
#pragma once

#include <linux/icmpv6.h>
#include <linux/udp.h>

#include "frame.h"

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
// If this flag is set in a lookup step, the low bits are the index of a branch. Otherwise they are
// the index of a prefix.
#define BRANCH 0x8000

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
	COUNTS,
};

// The parameters of one of the two sides of the filter. Each side has its own range of buckets in
// each table. `steer/tables.rs` has the same structures, and computes buckets in the same way.
struct side {
	__u64 seed;
	__u64 factor;
	__u32 first; // the first bucket in `vips4` and `vips6`
	__u32 buckets;
	__u32 first_own; // the first bucket in `own`
	__u32 buckets_own;
};

// User space writes only to the side that `offset` does not select, and then changes `offset`. All
// parts of the filter therefore change in one step.
struct chosen {
	struct side sides[2];
	__u32 offset; // the offset of the side that the program reads, in bytes
} chosen;

_Static_assert(sizeof(struct side) == 32, "the bit of `offset` that selects a side");

// Each address is in one of two buckets, which its hash determines. An empty slot of a bucket
// contains an address that no lookup compares with this bucket.
#define SLOTS 4

struct bucket4 {
	__be32 addresses[SLOTS];
};

// IPv6 addresses, in network byte order.
struct address6 {
	__u64 high;
	__u64 low;
};

struct bucket6 {
	struct address6 addresses[SLOTS];
};

// The loader replaces each `max_entries` of 1 with the required size. The verifier inlines lookups
// in arrays. Lookups in a hash map of the kernel need 150 instructions.
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, struct bucket4);
} vips4 SEC(".maps");

struct table6 {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, struct bucket6);
} vips6 SEC(".maps");

// The addresses of this machine that a VIP prefix contains. Packets to these addresses belong to the
// kernel. IPv4 addresses are stored as ::ffff:a.b.c.d.
struct table6 own SEC(".maps");

// A lookup in this table needs three loads from the L1 cache, whereas a lookup in the kernel's LPM
// trie takes about 5 ns per level.
struct prefix_map {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 2);
	__type(key, __u32);
	__type(value, struct prefix_table);
} prefixes SEC(".maps");

// No program reads this map. An update of a map of maps returns only after all running programs have
// ended, so user space updates this map to wait until no program uses the previous side.
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, 1);
	__uint(key_size, sizeof(__u32));
	__uint(value_size, sizeof(__u32));
	__array(values, struct prefix_map);
} settled SEC(".maps");

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

// Returns the index of the side that the program reads, and writes its address to `side`.
static __always_inline __u32 choose(const struct side **side)
{
	const struct chosen *from = &chosen;
	__u32 offset;

	barrier_var(from); // otherwise the compiled code loads the address of `chosen` twice
	offset = from->offset & sizeof(struct side);
	*side = (const void *)from + offset;
	return offset / sizeof(struct side);
}

// Returns the number of the bucket that 32 bits of a hash select.
static __always_inline __u32 bucket_of(__u32 first, __u32 buckets, __u32 hash)
{
	return first + ((__u64)hash * buckets >> 32);
}

static __always_inline int bucket4_has(__u32 place, __be32 address)
{
	const struct bucket4 *bucket = bpf_map_lookup_elem(&vips4, &place);
	const __be32 *all;

	if (!bucket)
		return 0;
	all = bucket->addresses;
	return all[0] == address || all[1] == address || all[2] == address || all[3] == address;
}

static __always_inline __u64 hash4(const struct side *side, __be32 address)
{
	return (address ^ side->seed) * side->factor;
}

static __always_inline int is_vip4(const struct side *side, __be32 address)
{
	__u64 hash = hash4(side, address);

	return bucket4_has(bucket_of(side->first, side->buckets, hash >> 32), address) ||
	       bucket4_has(bucket_of(side->first, side->buckets, hash), address);
}

static __always_inline int bucket6_has(void *table, __u32 place, const struct address6 *address)
{
	const struct bucket6 *bucket = bpf_map_lookup_elem(table, &place);

	if (!bucket)
		return 0;
#pragma unroll
	for (int i = 0; i < SLOTS; i++)
		if (bucket->addresses[i].low == address->low && bucket->addresses[i].high == address->high)
			return 1;
	return 0;
}

// Each byte of the address affects both halves of the hash. The last four bytes are the high half of
// `low`, which affects only the high half of a product. The second step therefore combines the two
// halves before it multiplies again.
static __always_inline __u64 hash6(const struct side *side, const struct address6 *address)
{
	__u64 hash = (address->low ^ side->seed) * side->factor ^ address->high;

	return (hash ^ hash >> 32) * side->factor;
}

static __always_inline int is_vip6(const struct side *side, const struct address6 *address)
{
	__u64 hash = hash6(side, address);

	return bucket6_has(&vips6, bucket_of(side->first, side->buckets, hash >> 32), address) ||
	       bucket6_has(&vips6, bucket_of(side->first, side->buckets, hash), address);
}

static __always_inline int is_own(const struct side *side, const struct address6 *address)
{
	__u64 hash = hash6(side, address);

	return bucket6_has(&own, bucket_of(side->first_own, side->buckets_own, hash >> 32), address) ||
	       bucket6_has(&own, bucket_of(side->first_own, side->buckets_own, hash), address);
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

// Returns 1 if a VIP prefix contains the address. The branches lead to the only prefix that could
// contain the address.
static __always_inline int is_in_prefix(__u32 index, const struct network *net, const struct address6 *to)
{
	__u64 high = bpf_be64_to_cpu(to->high), low = bpf_be64_to_cpu(to->low);
	struct prefix_table *table = bpf_map_lookup_elem(&prefixes, &index);
	struct prefix *prefix;
	__u32 step;

	if (!table)
		return 0;
	step = net->protocol == bpf_htons(ETH_P_IP) ? table->roots[1] : table->roots[0];
	for (int i = 0; i < MAX_DEPTH && step & BRANCH; i++) {
		struct branch *branch = &table->branches[step & (MAX_PREFIXES - 1)];
		__u64 slot = (branch->half ? low : high) >> (branch->shift & 63) & branch->mask;

		step = table->slots[(branch->first + slot) & (MAX_SLOTS - 1)];
	}
	prefix = &table->prefixes[step & (MAX_PREFIXES - 1)];
	return step && !((high ^ prefix->bits[0]) & prefix->mask[0]) && !((low ^ prefix->bits[1]) & prefix->mask[1]);
}

// Returns 1 if packets to the address belong to packet threads. A VIP takes precedence over an
// address of this machine, and this address takes precedence over a prefix.
static __always_inline int is_for_vip(const struct network *net, const struct address *to)
{
	struct address6 address;
	const struct side *side;
	__u32 index = choose(&side);

	__builtin_memcpy(&address, to, sizeof(address));
	if (net->protocol == bpf_htons(ETH_P_IP) ? is_vip4(side, to->words[3]) : is_vip6(side, &address))
		return 1;
	return is_in_prefix(index, net, &address) && !is_own(side, &address);
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

// The EtherType and the first two bytes of an IPv4 header without VLAN tags, and the bits of these
// bytes that are compared.
#define COMMON_START bpf_htonl(0x08004000)
#define COMMON_MASK bpf_htonl(0xfffff000)

// Returns 1 for most of the packets that belong to packet threads: IPv4 packets without a VLAN tag to
// a VIP that is in its first bucket. User space puts a VIP into its second bucket only if the first
// one is full. `start` contains the four bytes from the EtherType on.
static __always_inline int is_common(const struct ethhdr *eth, __be32 start, __be32 to)
{
	const struct side *side;

	if ((start & COMMON_MASK) != COMMON_START || eth->h_dest[0] & 1)
		return 0;
	choose(&side);
	return bucket4_has(bucket_of(side->first, side->buckets, hash4(side, to) >> 32), to);
}

// Returns `REDIRECTED` if the packet belongs to a packet thread. Otherwise returns the counter for
// a packet that belongs to the kernel.
static __always_inline __u32 whose(const struct ethhdr *eth, const struct network *net, bound end)
{
	struct address to;

	if (eth->h_dest[0] & 1)
		return MULTICAST;
	if (!find_destination(net, end, &to))
		return PASSED;
	if (!is_for_vip(net, &to) && !is_tunnel_endpoint(net, end, &to))
		return PASSED;
	return is_neighbour_discovery(net, end) ? NEIGHBOUR_DISCOVERY : REDIRECTED;
}
