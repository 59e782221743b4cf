// The whole kernel side of the balancer: traffic for a VIP goes to this queue's socket, all else to the
// kernel. Policy lives in Rust: an `if` here that is not about parsing is in the wrong place.
//
// Socket first, then head room: once the head has moved the frame is no longer one for the kernel.
// Every frame moves exactly one count.

#include <linux/icmpv6.h>

#include "frame.h"

#define GROWTH_MASK 63 // bits 0 to 5 of a value
#define OWN 64 // an address of this machine within a prefix: the kernel's. Other bits are zero, and room for later

// An address for a look-up among prefixes: all its bits count.
struct prefix {
	__u32 length;
	struct address address;
};

// The order is that of `steer::Count`.
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

// Kept short: the walk costs a cache line or two a level.
struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(max_entries, 1);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct prefix);
	__type(value, __u32);
} prefixes SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_XSKMAP);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} xsks SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, COUNTS);
	__type(key, __u32);
	__type(value, __u64);
} counts SEC(".maps");

const volatile __u8 no_socket_drops = 0; // set at load

static __always_inline int counted(__u32 which, int verdict)
{
	__u64 *count = bpf_map_lookup_elem(&counts, &which);

	if (count)
		(*count)++;
	return verdict;
}

// False: no destination to be found, or none that a VIP can have.
static __always_inline int find_destination(const struct network *net, void *end, struct address *to)
{
	if (net->protocol == bpf_htons(ETH_P_IP)) {
		struct iphdr *ip = net->header;

		if ((void *)(ip + 1) > end || ip->version != 4)
			return 0;
		from_ipv4(to, ip->daddr);
		return 1;
	}
	if (net->protocol == bpf_htons(ETH_P_IPV6)) {
		struct ipv6hdr *ip6 = net->header;

		return (void *)(ip6 + 1) <= end && ip6->version == 6 && from_ipv6(to, &ip6->daddr);
	}
	return 0;
}

// The value of an address that is taken from the kernel. What has an entry of its own goes before the prefix that covers it.
static __always_inline __u32 *find_value(const struct prefix *to)
{
	__u32 *value = bpf_map_lookup_elem(&vips, &to->address);

	if (value)
		return *value & OWN ? NULL : value;
	return bpf_map_lookup_elem(&prefixes, to); // without prefixes an empty trie, and done
}

// RFC 4861: types 133 to 137 keep the link working, whatever a VIP covers.
static __always_inline int is_neighbour_discovery(const struct network *net, void *end)
{
	struct ipv6hdr *ip6 = net->header;
	struct icmp6hdr *icmp = (void *)(ip6 + 1);

	if (net->protocol != bpf_htons(ETH_P_IPV6) || (void *)&icmp->icmp6_code > end)
		return 0;
	return ip6->nexthdr == IPPROTO_ICMPV6 && icmp->icmp6_type >= 133 && icmp->icmp6_type <= 137;
}

// Opens `growth` bytes in front and marks the first of them, so that user space knows where the frame
// starts. The mark is odd, and no frame that comes here starts with an odd byte: groups have passed.
static __always_inline int open_head_room(struct xdp_md *ctx, __u32 growth)
{
	__u8 *mark;

	if (bpf_xdp_adjust_head(ctx, -(int)growth))
		return 0;
	mark = (void *)(long)ctx->data;
	if ((void *)(mark + 1) > (void *)(long)ctx->data_end)
		return 0;
	*mark = growth << 1 | 1;
	return 1;
}

SEC("xdp")
int steer(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	__u32 queue = ctx->rx_queue_index, growth, *value;
	struct network net;
	struct prefix to = { .length = 128 };

	if (!find_network(data, end, &net))
		return counted(PASSED, XDP_PASS); // what cannot be parsed is not ours to judge
	if (((struct ethhdr *)data)->h_dest[0] & 1)
		return counted(MULTICAST, XDP_PASS);
	if (!find_destination(&net, end, &to.address))
		return counted(PASSED, XDP_PASS);
	value = find_value(&to);
	if (!value)
		return counted(PASSED, XDP_PASS);
	if (is_neighbour_discovery(&net, end))
		return counted(NEIGHBOUR_DISCOVERY, XDP_PASS);
	if (!bpf_map_lookup_elem(&xsks, &queue))
		return counted(NO_SOCKET, no_socket_drops ? XDP_DROP : XDP_PASS);
	growth = *value & GROWTH_MASK;
	if (growth && !open_head_room(ctx, growth))
		return counted(NO_HEAD_ROOM, XDP_DROP);
	if (bpf_redirect_map(&xsks, queue, XDP_DROP) != XDP_REDIRECT)
		return counted(SOCKET_GONE, XDP_DROP);
	return counted(REDIRECTED, XDP_REDIRECT);
}

char _license[] SEC("license") = "Apache-2.0 OR MIT";
