/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `mcshm-bench store`: requests about objects, by size and batch, on one host and between two, beside redis-server,
 * memcached and Mooncake Store; and the directory by itself.
 */
#ifndef BENCH_STORE_H
#define BENCH_STORE_H

#include <stdbool.h>
#include <stdint.h>

#include "agent.h"
#include "options.h"
#include "pin.h"

#define STORE_SIZES_MAX 16u
#define STORE_ROWS_MAX 512u
#define STORE_KEY_SIZE 24u

enum store_op {
    STORE_PUT,
    STORE_GET,
    STORE_GET_IN_PLACE,
    STORE_EXIST,
    STORE_PREFIX,
    STORE_REMOVE, /* not measured */
    STORE_OPS
};

struct store_options {
    struct options_common common;
    uint64_t sizes[STORE_SIZES_MAX], batches[STORE_SIZES_MAX];
    unsigned nsizes, nbatches;
    double seconds; /* of one row */
    uint64_t most;  /* bytes of one request */
    uint64_t directory_keys;
    const char *mooncake; /* virtual environment with Mooncake Store; NULL: none */
    bool no_remote, no_peers;
};

struct store_row {
    enum store_op op;
    uint64_t size, batch;
    bool remote;
    double ops_s, gbps, p50_us, p99_us;
    double cpu_s_per_gb; /* of client and agents; NAN: no bytes move */
    double queue_us, move_us,
        rest_us;  /* medians of one request: until it starts, moves, and around it; NAN: not told */
    double limit; /* memcpy's or the raw transfer's gbps; NAN: none */
};

struct store_rows {
    struct store_row row[STORE_ROWS_MAX];
    unsigned count;
};

/* Somebody who holds objects. Each call is one request about keys 0 .. n - 1, in the order of the buffer's n spans. */
struct store_driver {
    void *context;
    bool remote;
    uint8_t *buffer; /* populated; `most` bytes */
    /* 0; -ENOTSUP: it has no such thing; another negative errno, said already. times: what the answer tells of stages */
    int (*run)(void *context, enum store_op op, uint64_t size, uint32_t n, uint32_t *queue_ns,
               uint32_t *move_ns);
    uint64_t (*cpu_ns)(void *context); /* so far, of all that serve; NULL: not known */
};

/* Key number i, STORE_KEY_SIZE bytes, not ended by a NUL. */
void store_key(uint64_t i, char *out);

/* Measures all ops, sizes and batches that are asked for and that the driver has. 0, or a negative errno, said already. */
int store_measure(const struct store_options *o, const struct store_driver *d,
                  struct store_rows *out);

/* Our own client. `host`: where PUTs go, NULL: here. */
struct store_client;
int store_client_open(const char *socket, uint64_t most, uint64_t keys, const char *host,
                      const pid_t *agents, unsigned nagents, struct store_client **out);
void store_client_close(struct store_client *k);
void store_client_drive(struct store_client *k, bool remote, struct store_driver *out);
/* What it drives; for drivers made of several. */
int store_client_run(void *context, enum store_op op, uint64_t size, uint32_t n, uint32_t *queue_ns,
                     uint32_t *move_ns);
uint64_t store_client_cpu(void *context);
uint64_t store_client_page_size(const struct store_client *k);
uint8_t *store_client_buffer(const struct store_client *k);
/* Nanoseconds of a 64-byte WRITE through the ring to this client's own segment, median; NAN: it failed. */
double store_client_rtt(struct store_client *k, double seconds);
/* READs of the same size as rows with `remote` and STORE_GET have, from a buffer that this client publishes as `name`. */
int store_client_publish(struct store_client *k, const char *name);
int store_client_raw(struct store_client *k, const char *segment, double seconds,
                     struct store_rows *rows);

enum store_peer_kind { STORE_REDIS, STORE_MEMCACHED, STORE_PEERS };
extern const char *const store_peer_names[STORE_PEERS];
/* Starts the program on a core and measures it. -ENOENT: it is not installed (nothing said). */
int store_peer(enum store_peer_kind kind, const struct store_options *o,
               const struct pin_cores *cores, uint8_t *buffer, struct store_rows *out);

/* The same of Mooncake Store. -ENOENT: it is not there. */
int store_mooncake(const struct store_options *o, const struct pin_cores *cores,
                   struct store_rows *out);
/* What its client prints. 0 or -EPROTO. */
int store_mooncake_parse(const char *text, struct store_rows *out);

struct store_directory {
    uint64_t keys;
    double exist_s, start_end_s; /* per second, in batches of 1,024 */
    double bytes_per_key;
    double rebuild_s; /* for 1,000,000 objects, or keys if less */
    uint64_t rebuilt;
};
int store_directory(uint64_t keys, double seconds, struct store_directory *out);

struct store_figures {
    struct store_rows ours, peers[STORE_PEERS];
    struct store_rows mooncake;
    bool peer_there[STORE_PEERS], mooncake_there;
    struct store_directory directory;
    double ring_rtt_ns;
    uint64_t page_size;
    const char *no_remote; /* why there are no remote rows; NULL: there are */
};
int store_print(const struct store_options *o, const struct agent *a, const struct pin_cores *cores,
                const struct store_figures *f);

int store_command(int argc, char **argv);

#endif
