/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The two processes of `kv` and what they say to each other.  All of it goes through the
 * agent: data by block lists, words by notifications.
 *
 *   decode                                        prefill
 *     finds the blocks it holds
 *     offer  addresses of the missing blocks  -->   makes their content
 *                                                   one block list a layer
 *            data, layer by layer             <==
 *     done   with the last layer              <--
 *     checks every byte, in place, or after copying it back from the GPU
 *     answer                                  -->   its source may be used again
 *     end    after the last request           -->
 *
 * Blocks lie layer by layer on both sides: layer l of place p is at
 * base + (l * places + p) * layer_bytes.
 */
#ifndef BENCH_KV_RUN_H
#define BENCH_KV_RUN_H

#include "kv_model.h"
#include "kv_trace.h"
#include "pin.h"

#include <mcshm.h>
#include <stdbool.h>
#include <stdint.h>

#define KV_PATHS 9u         /* values of mcshm_path */
#define KV_WAIT_US 30000000 /* an answer that takes longer is a failure */

enum kv_word { KV_OFFER = 1, KV_DONE = 2, KV_ANSWER = 3, KV_END = 4 };

struct kv_head {
    uint32_t word; /* enum kv_word */
    uint32_t request;
};

struct kv_place {
    uint64_t hash_id;
    uint64_t address; /* of its layer 0; the next layer is layer_stride further */
};

#define KV_OFFER_PLACES 250u /* what fits into one notification */

struct kv_offer {
    struct kv_head head;
    uint32_t source; /* which of prefill's source areas */
    uint32_t total;  /* blocks of the request, over all its offers */
    uint32_t count;  /* in this offer */
    uint32_t reserved;
    uint64_t layer_stride;
    struct kv_place places[KV_OFFER_PLACES];
};

struct kv_answer {
    struct kv_head head;
    uint64_t mismatches;
    uint64_t received_ns; /* when KV_DONE came, by the host's monotonic clock */
};

/* Memory that the parent and both processes share for their results. */
struct kv_shared {
    uint64_t finished; /* requests; the parent's progress bar */
    /* decode */
    uint64_t hits, blocks, verified_bytes, mismatches;
    uint64_t decode_cpu_ns; /* without checking */
    /* prefill */
    uint64_t bytes, tasks, transfers;
    uint64_t transfer_ns, copy_ns, notify_ns, queue_ns;
    uint64_t prefill_cpu_ns; /* without making content */
    uint64_t path_tasks[KV_PATHS];
    uint64_t page_size;
    double request_us[]; /* of each transfer */
};

struct kv_context {                             /* for proc_start() */
    const char *decode_socket, *prefill_socket; /* of their agents: the same, or of two hosts */
    char decode[64], prefill[64];               /* segment names, as their own agents know them */
    char decode_peer[128], prefill_peer[128];   /* and as the other side opens them */
    const char *location;                       /* of both caches; NULL: pool memory */
    bool gates; /* tasks wait for prefill's stream, which nobody waits for */
    struct kv_model model;
    struct kv_trace trace;
    uint32_t cache_blocks;
    uint32_t in_flight;       /* requests */
    unsigned hosts;           /* 1 or 2 */
    struct pin_cores engines; /* .engine is kept free for the agent; with two hosts both are,
                               * where there are others; -1: not known */
    struct kv_shared *shared;
};

int kv_decode_main(int fd, void *context);
int kv_prefill_main(int fd, void *context);

/* Both: leave the engines' cores alone. */
void kv_step_aside(const struct kv_context *x);
/* Both: tells the parent that all is published, waits for the start. */
int kv_meet(int fd);
/* Both: tells the parent that all is done, waits until the other side is too. */
int kv_part(int fd);

#endif
