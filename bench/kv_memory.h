/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where a process of `kv` keeps its blocks: in pool memory, whose content is made and checked in place, or on a GPU, to
 * which content goes and from which it comes back through pinned host memory, on the process's own stream.
 */
#ifndef BENCH_KV_MEMORY_H
#define BENCH_KV_MEMORY_H

#include "device.h"

#include <mcshm.h>

#define KV_MEMORY_CHECKS 1024u

struct kv_memory {
    bool gpu;
    struct device device;
    uint8_t *base;   /* as mcshm_request.local wants it */
    uint8_t *bounce; /* of a GPU's: what is on its way, one behind the other */
    size_t room, used;
    struct {
        uint64_t seed;
        size_t size;
    } checks[KV_MEMORY_CHECKS]; /* of what was fetched to the bounce buffer and not looked at yet */
    unsigned nchecks;
};

/* Before libmcshm is used. location: NULL or "cpu": pool memory. 0, or a negative errno, said already. */
int kv_memory_open(struct kv_memory *m, const char *location);
/* piece: the most that fill and check are called with. who: for messages. */
int kv_memory_alloc(struct kv_memory *m, mcshm *c, const char *location, uint64_t size,
                    uint64_t piece, const char *who);
/* Before the connection is closed: nothing of a GPU's is under way any more. */
void kv_memory_settle(struct kv_memory *m);
/* After it is closed; also of one that is all zero. */
void kv_memory_close(struct kv_memory *m);

/* Puts the pattern there: on a GPU it may still be on its way afterwards. 0, or a negative errno, said already. */
int kv_memory_fill(struct kv_memory *m, uint64_t offset, uint64_t size, uint64_t seed);
/* All that was filled is there. */
int kv_memory_sync(struct kv_memory *m);

/* Adds the words that are wrong, now or at the next kv_memory_check_end(). */
int kv_memory_check(struct kv_memory *m, uint64_t offset, uint64_t size, uint64_t seed,
                    uint64_t *wrong);
int kv_memory_check_end(struct kv_memory *m, uint64_t *wrong);

#endif
