// Parsing code that all BPF programs use. The code skips the Ethernet header and VLAN tags to find
// the network header.
#pragma once

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

// The end of the readable bytes. XDP programs access the frame directly, and compare pointers with
// the end of the frame. Programs that copy headers out of a packet buffer compare lengths instead.
#ifdef COPIED_HEADERS
struct bound {
	const void *first;
	__u32 length;
};
typedef struct bound bound;
#define BEYOND(pointer, bound) ((__u32)((const char *)(pointer) - (const char *)(bound).first) > (bound).length)
#else
typedef void *bound;
#define BEYOND(pointer, bound) ((void *)(pointer) > (bound))
#endif

#define MAX_TAGS 2 // 802.1Q inside 802.1ad; the kernel handles packets with more tags

struct tag {
	__be16 control;
	__be16 protocol; // EtherType of the header that follows the tag
};

// An address in the format that map keys use. IPv4 addresses are stored as ::ffff:a.b.c.d.
struct address {
	__u32 words[4];
};

// The position of the network header, its EtherType, and the number of VLAN tags before it.
struct network {
	void *header;
	__be16 protocol;
	__u32 tags;
};

// Skips the Ethernet header and its VLAN tags. Returns 0 if the frame ends before its network
// header.
static __always_inline int find_network(void *data, bound end, struct network *net)
{
	struct ethhdr *eth = data;

	if (BEYOND(eth + 1, end))
		return 0;
	net->header = eth + 1;
	net->protocol = eth->h_proto;
	net->tags = 0;
#pragma unroll
	for (int i = 0; i < MAX_TAGS; i++) {
		struct tag *tag = net->header;

		if (net->protocol != bpf_htons(ETH_P_8021Q) && net->protocol != bpf_htons(ETH_P_8021AD))
			break;
		if (BEYOND(tag + 1, end))
			return 0;
		net->header = tag + 1;
		net->protocol = tag->protocol;
		net->tags++;
	}
	return 1;
}

static __always_inline void from_ipv4(struct address *key, __be32 address)
{
	key->words[0] = 0;
	key->words[1] = 0;
	key->words[2] = bpf_htonl(0xffff);
	key->words[3] = address;
}

// Converts an IPv6 address to a map key. Returns 0 for an address in ::ffff:0:0/96, which is
// invalid on the wire and must not match the key of an IPv4 address.
static __always_inline int from_ipv6(struct address *key, const struct in6_addr *address)
{
	__builtin_memcpy(key, address, sizeof(*key));
	return key->words[0] || key->words[1] || key->words[2] != bpf_htonl(0xffff);
}
