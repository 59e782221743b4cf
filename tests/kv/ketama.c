/* Stores COUNT values on the servers that libmemcached chooses: weighted ketama with MD5.
 * Usage: ketama COUNT (HOST WEIGHT)... */
#include <libmemcached/memcached.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void well(memcached_st *client, memcached_return_t is, const char *what)
{
	if (memcached_success(is))
		return;
	fprintf(stderr, "%s: %s\n", what, memcached_strerror(client, is));
	exit(1);
}

int main(int count, char **words)
{
	memcached_st *client = memcached_create(NULL);

	well(client, memcached_behavior_set(client, MEMCACHED_BEHAVIOR_KETAMA_WEIGHTED, 1), "ketama");
	for (int word = 2; word + 1 < count; word += 2)
		well(client, memcached_server_add_with_weight(client, words[word], 11211, atoi(words[word + 1])),
		     words[word]);
	for (int number = 0; number < atoi(words[1]); number++) {
		char key[32], value[32];

		snprintf(key, sizeof key, "key:%d", number);
		snprintf(value, sizeof value, "value of %d", number);
		well(client, memcached_set(client, key, strlen(key), value, strlen(value), 0, 0), key);
	}
	memcached_free(client);
	return 0;
}
