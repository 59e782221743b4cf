// A QEMU plugin that counts how often each block of guest instructions runs.
//
// A block is a run of instructions that QEMU translates as a unit. QEMU executes a block from its
// first instruction, so the number of executions of the block is the number of executions of each
// of its instructions. An inline counter costs little, and callbacks are not needed.
//
// The argument `fifo` names a pipe. Each line that arrives on it is the path of a file: the plugin
// writes all counters to PATH.new and renames it to PATH. The VM must be stopped at that time. When
// the other end of the pipe is closed, the plugin ends QEMU, so no VM outlives its user.
//
// File format, little-endian, for each block in the order of its first translation:
//   u64 address of the first instruction, u64 executions, u32 number of instructions n,
//   n * u16 distance of each instruction from the first one. Bit 15 is set for string instructions
//   with a repeat prefix. With -icount, QEMU executes each iteration of these as a block.
//
// The prototypes are those of API version 4 (QEMU 9.1 and later). They are declared here because
// Debian has no package with qemu-plugin.h.

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef uint64_t qemu_plugin_id_t;
struct qemu_plugin_tb;
struct qemu_plugin_insn;
struct qemu_plugin_scoreboard;
typedef struct qemu_info_t qemu_info_t;
typedef struct {
  struct qemu_plugin_scoreboard *score;
  size_t offset;
} qemu_plugin_u64;
enum qemu_plugin_op { QEMU_PLUGIN_INLINE_ADD_U64, QEMU_PLUGIN_INLINE_STORE_U64 };

void qemu_plugin_register_vcpu_tb_trans_cb(qemu_plugin_id_t id,
    void (*translated)(qemu_plugin_id_t, struct qemu_plugin_tb *));
void qemu_plugin_register_vcpu_tb_exec_inline_per_vcpu(struct qemu_plugin_tb *, enum qemu_plugin_op,
    qemu_plugin_u64, uint64_t value);
size_t qemu_plugin_tb_n_insns(const struct qemu_plugin_tb *);
uint64_t qemu_plugin_tb_vaddr(const struct qemu_plugin_tb *);
struct qemu_plugin_insn *qemu_plugin_tb_get_insn(const struct qemu_plugin_tb *, size_t n);
uint64_t qemu_plugin_insn_vaddr(const struct qemu_plugin_insn *);
size_t qemu_plugin_insn_size(const struct qemu_plugin_insn *);
size_t qemu_plugin_insn_data(const struct qemu_plugin_insn *, void *to, size_t size);
struct qemu_plugin_scoreboard *qemu_plugin_scoreboard_new(size_t element_size);
uint64_t qemu_plugin_u64_get(qemu_plugin_u64, unsigned vcpu);

#define EXPORT __attribute__((visibility("default")))
EXPORT int qemu_plugin_version = 4;

#define MOST_BLOCKS (1u << 20)
#define BUCKETS (1u << 22)
#define LONGEST 512

struct block {
  uint64_t address, hash;
  uint32_t n;
  uint16_t *distances;
};

static struct block *blocks;
static uint32_t *buckets; // index of a block plus one, or 0
static uint32_t count;
static struct qemu_plugin_scoreboard *score;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char fifo[512];

static _Noreturn void fail(const char *why) {
  fprintf(stderr, "count: %s\n", why);
  abort();
}

static uint64_t mixed(uint64_t hash, uint64_t value) {
  hash = (hash ^ value) * 0x9e3779b97f4a7c15ull;
  return hash ^ (hash >> 29);
}

static bool repeats(const uint8_t *bytes, size_t size) {
  size_t at = 0;
  bool prefix = false;
  for (; at < size; at++) {
    uint8_t byte = bytes[at];
    bool repeat = byte == 0xf2 || byte == 0xf3;
    if (!repeat && byte != 0x66 && byte != 0x67 && (byte & 0xf0) != 0x40) break;
    prefix |= repeat;
  }
  if (!prefix || at >= size) return false;
  uint8_t code = bytes[at];
  return (code >= 0xa4 && code <= 0xa7) || (code >= 0xaa && code <= 0xaf);
}

// Returns the index of a block with this content, and adds the block if it is new. Programs that
// run one after the other can have different code at the same address, so the content is compared
// too.
static uint32_t index_of(const struct qemu_plugin_tb *tb) {
  size_t n = qemu_plugin_tb_n_insns(tb);
  if (n > LONGEST) fail("a block is too long");
  struct block block = { .address = qemu_plugin_tb_vaddr(tb), .n = n };
  uint16_t distances[LONGEST];
  block.hash = mixed(block.address, n);
  for (size_t i = 0; i < n; i++) {
    const struct qemu_plugin_insn *insn = qemu_plugin_tb_get_insn(tb, i);
    uint8_t bytes[16] = { 0 };
    size_t size = qemu_plugin_insn_data(insn, bytes, sizeof bytes);
    uint64_t words[2];
    memcpy(words, bytes, sizeof words);
    block.hash = mixed(mixed(block.hash, words[0]), words[1]);
    uint64_t distance = qemu_plugin_insn_vaddr(insn) - block.address;
    if (distance >= 0x8000) fail("a block covers too many bytes");
    distances[i] = distance | (repeats(bytes, size) ? 0x8000 : 0);
  }
  for (uint32_t at = block.hash % BUCKETS;; at = (at + 1) % BUCKETS) {
    if (!buckets[at]) {
      if (count == MOST_BLOCKS) fail("too many blocks");
      block.distances = malloc(n * sizeof *distances);
      if (!block.distances) fail("no memory");
      memcpy(block.distances, distances, n * sizeof *distances);
      blocks[count] = block;
      buckets[at] = ++count;
      return count - 1;
    }
    const struct block *known = &blocks[buckets[at] - 1];
    if (known->address == block.address && known->hash == block.hash && known->n == n)
      return buckets[at] - 1;
  }
}

static qemu_plugin_u64 counter(uint32_t index) {
  return (qemu_plugin_u64) { score, (size_t)index * 8 };
}

static void translated(qemu_plugin_id_t id, struct qemu_plugin_tb *tb) {
  (void)id;
  pthread_mutex_lock(&lock);
  uint32_t index = index_of(tb);
  pthread_mutex_unlock(&lock);
  qemu_plugin_register_vcpu_tb_exec_inline_per_vcpu(tb, QEMU_PLUGIN_INLINE_ADD_U64, counter(index), 1);
}

static void write_to(const char *path) {
  char unfinished[sizeof fifo + 8];
  snprintf(unfinished, sizeof unfinished, "%s.new", path);
  FILE *file = fopen(unfinished, "wb");
  if (!file) fail("cannot create a file");
  pthread_mutex_lock(&lock);
  for (uint32_t i = 0; i < count; i++) {
    uint64_t fields[2] = { blocks[i].address, qemu_plugin_u64_get(counter(i), 0) };
    fwrite(fields, sizeof fields, 1, file);
    fwrite(&blocks[i].n, sizeof blocks[i].n, 1, file);
    fwrite(blocks[i].distances, sizeof *blocks[i].distances, blocks[i].n, file);
  }
  pthread_mutex_unlock(&lock);
  if (fclose(file) || rename(unfinished, path)) fail("cannot write the counters");
}

static void *serve(void *unused) {
  char line[sizeof fifo];
  (void)unused;
  FILE *requests = fopen(fifo, "r");
  if (!requests) fail("cannot open the pipe");
  while (fgets(line, sizeof line, requests)) {
    line[strcspn(line, "\n")] = 0;
    write_to(line);
  }
  _exit(1);
}

EXPORT int qemu_plugin_install(qemu_plugin_id_t id, const qemu_info_t *info, int argc, char **argv) {
  (void)info;
  for (int i = 0; i < argc; i++)
    if (!strncmp(argv[i], "fifo=", 5)) snprintf(fifo, sizeof fifo, "%s", argv[i] + 5);
  blocks = calloc(MOST_BLOCKS, sizeof *blocks);
  buckets = calloc(BUCKETS, sizeof *buckets);
  score = qemu_plugin_scoreboard_new((size_t)MOST_BLOCKS * 8);
  if (!fifo[0] || !blocks || !buckets || !score) fail("cannot start");
  qemu_plugin_register_vcpu_tb_trans_cb(id, translated);
  pthread_t thread;
  if (pthread_create(&thread, NULL, serve, NULL)) fail("cannot start a thread");
  return 0;
}
