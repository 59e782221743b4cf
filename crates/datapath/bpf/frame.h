// What all programs share: the way from the first byte of a frame to its network header.
#pragma once

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

// Where a frame ends. A program that has the frame before it compares pointers with its end; one that has copied the headers
// out of a packet buffer compares lengths.
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

#define MAX_TAGS 2 // 802.1Q inside 802.1ad; a third tag is not ours to judge

struct tag {
	__be16 control;
	__be16 protocol; // EtherType of what follows
};

// An address as the maps have it: IPv4 stands as ::ffff:a.b.c.d.
struct address {
	__u32 words[4];
};

// Where the network header starts, and what it is.
struct network {
	void *header;
	__be16 protocol;
	__u32 tags;
};

// Walks over Ethernet and its tags. False: the frame ends before its network header.
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

// False: an IPv6 address in ::ffff:0:0/96, which never stands on a wire and must not match IPv4's key.
static __always_inline int from_ipv6(struct address *key, const struct in6_addr *address)
{
	__builtin_memcpy(key, address, sizeof(*key));
	return key->words[0] || key->words[1] || key->words[2] != bpf_htonl(0xffff);
}
