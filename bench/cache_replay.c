/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The trace through a real agent: for each request one lookup of its blocks' longest prefix, and one PUT of the rest,
 * as an inference engine does. Blocks are small; what counts is how many of them fit.
 */
#include "cache.h"

#include "agent.h"
#include "client.h"
#include "clock.h"
#include "pin.h"
#include "say.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define KEY_SIZE 20u
#define EXTENT (UINT64_C(2) << 20)
#define EXTENTS_MAX 512u
#define WAIT_US 60000000

/* What one request takes. */
struct room {
    char *text; /* of the keys */
    mcshm_key *keys;
    mcshm_span *spans;
    mcshm_object_result *results;
};

static int take_room(struct room *r, uint32_t longest)
{
    r->text = malloc((size_t)longest * KEY_SIZE + 1);
    r->keys = malloc(longest * sizeof(r->keys[0]) + 1);
    r->spans = malloc(longest * sizeof(r->spans[0]) + 1);
    r->results = malloc(longest * sizeof(r->results[0]) + 1);
    return r->text != NULL && r->keys != NULL && r->spans != NULL && r->results != NULL
               ? 0
               : say_error(-ENOMEM, "no memory for a request of %" PRIu32 " blocks", longest);
}

static void free_room(struct room *r)
{
    free(r->text);
    free(r->keys);
    free(r->spans);
    free(r->results);
}

/* Bytes of an object: what was asked for, or so many that blocks of them are an extent, the least that a store has. */
static uint64_t object_size(const struct cache_options *o, uint64_t blocks)
{
    uint64_t least = ((EXTENT + blocks - 1) / blocks + 63) & ~UINT64_C(63);

    return o->block > least ? o->block : least;
}

static int start_agent(const struct cache_options *o, uint64_t blocks, uint64_t block,
                       const struct cache_row *row, struct agent *a)
{
    char settings[512];
    struct pin_cores cores;
    uint64_t size = blocks * block, extent = EXTENT;
    struct agent_options ao = {.program = o->common.mcshmd,
                               .core = 0,
                               .pool_size = (UINT64_C(64) << 20) + block,
                               .small = true,
                               .settings = settings};

    if (pin_choose(&cores) == 0)
        ao.core = cores.engine;
    if (row->capacity_blocks == 0)
        size += size / 4 + EXTENT; /* and never full */
    while (size / extent > EXTENTS_MAX)
        extent *= 2;
    snprintf(settings, sizeof(settings),
             "[store]\nsize = %" PRIu64 "\nextent_size = %" PRIu64 "\nobjects = %" PRIu64
             "\npolicy = %s\nhigh = 100\nlow = 99\nchecksum = off\nmaster = off\n",
             size, extent, blocks + blocks / 4 + 1000, row->policy);
    return agent_start(&ao, a);
}

static int replay(uint64_t size, const struct kv_trace *t, struct client *k, struct cache_row *row)
{
    struct room room = {.text = NULL};
    void *block = NULL;
    int rc = take_room(&room, t->longest);
    mcshm_status s;

    if (rc != 0)
        goto out;
    s = mcshm_alloc(k->c, size, 64, NULL, &block);
    if (s != MCSHM_OK) {
        rc = say_status(k->c, s, "memory for a block");
        goto out;
    }
    memset(block, 7, size);
    for (size_t i = 0; rc == 0 && i < t->count; i++) {
        const struct kv_request *r = &t->requests[i];
        mcshm_object_request q = {.op = MCSHM_PREFIX,
                                  .flags = MCSHM_OBJECT_CHAIN,
                                  .keys = room.keys,
                                  .count = r->count,
                                  .spans = room.spans};
        mcshm_task_status status;
        uint32_t found;

        for (uint32_t b = 0; b < r->count; b++) {
            char *text = room.text + (size_t)b * KEY_SIZE;

            snprintf(text, KEY_SIZE + 1, "kv%018" PRIx64, r->hash_ids[b]);
            room.keys[b] = (mcshm_key){.bytes = text, .size = KEY_SIZE};
            room.spans[b] = (mcshm_span){.address = block, .size = size};
        }
        if (r->count == 0)
            continue;
        s = mcshm_objects(k->q, &q, NULL, &status, WAIT_US);
        if (s != MCSHM_OK) {
            rc = say_status(k->c, s, "looking for the blocks of a request");
            break;
        }
        found = (uint32_t)status.bytes;
        row->count.hits += found;
        if (found == r->count)
            continue;
        q.op = MCSHM_PUT;
        q.keys += found;
        q.count -= found;
        q.position = found;
        s = mcshm_objects(k->q, &q, room.results, NULL, WAIT_US);
        if (s != MCSHM_OK)
            rc = say_status(k->c, s, "putting the blocks of a request");
        for (size_t b = 0; rc == 0 && b < q.count; b++)
            row->refused += room.results[b].status != MCSHM_OK;
    }
    if (block != NULL)
        mcshm_free(k->c, block);
out:
    free_room(&room);
    return rc;
}

int cache_replay(const struct cache_options *o, const struct kv_trace *t, struct cache_row *row)
{
    mcshm_queue_options qo = {.size = sizeof(qo), .args_size = UINT64_C(256) * (t->longest + 64)};
    uint64_t blocks = row->capacity_blocks != 0 ? row->capacity_blocks : t->blocks;
    uint64_t size = object_size(o, blocks), start;
    struct agent agent;
    struct client k;
    int rc;

    row->count = (struct cache_count){.requests = t->count, .blocks = t->blocks};
    rc = start_agent(o, blocks, size, row, &agent);
    if (rc != 0)
        return rc;
    rc = client_open(&k, agent.socket, NULL, 0, &qo);
    if (rc == 0) {
        start = clock_ns();
        rc = replay(size, t, &k, row);
        row->seconds = (double)(clock_ns() - start) / 1e9;
        client_close(&k);
    }
    agent_stop(&agent);
    return rc;
}
