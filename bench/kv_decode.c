/* SPDX-License-Identifier: Apache-2.0 */
#include "kv_run.h"

#include "client.h"
#include "clock.h"
#include "kv_cache.h"
#include "kv_memory.h"
#include "pattern.h"
#include "proc.h"
#include "say.h"

#include "shm/atomic.h"

#include <errno.h>
#include <inttypes.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

/* A request whose blocks are on their way. */
struct flight {
    uint32_t request;
    uint32_t count; /* of all its blocks: pinned */
    uint32_t *places;
    uint32_t missing;
    uint32_t *missing_places; /* and what they will hold: */
    uint64_t *missing_ids;
};

struct decode {
    const struct kv_context *x;
    struct client k;
    mcshm_segment prefill;
    struct kv_cache cache;
    struct kv_memory memory;
    uint64_t published;
    struct flight *flights;
    uint32_t flying; /* index: transfer number % in_flight */
    uint64_t transfers;
    uint64_t check_ns;
};

static uint64_t layer_stride(const struct decode *d)
{
    return d->x->cache_blocks * d->x->model.layer_bytes;
}

static int tell(struct decode *d, const void *message, size_t size)
{
    mcshm_notification n = {.name = "kv", .name_size = 2, .message = message, .message_size = size};
    mcshm_request r = {.segment = d->prefill, .priority = MCSHM_CLASS_NORMAL, .notify = &n};
    mcshm_task_status task;
    mcshm_batch batch;
    mcshm_status s = mcshm_batch_alloc(d->k.q, 1, &batch);

    if (s == MCSHM_OK)
        s = mcshm_submit_notify(d->k.q, batch, &r);
    if (s == MCSHM_OK)
        s = mcshm_batch_wait(d->k.q, batch, KV_WAIT_US);
    if (s == MCSHM_OK)
        s = mcshm_task_poll(d->k.q, batch, 0, &task);
    if (s == MCSHM_OK && task.state != MCSHM_STATE_COMPLETED)
        s = task.error;
    if (s == MCSHM_OK)
        s = mcshm_batch_free(d->k.q, batch);
    return s == MCSHM_OK ? 0 : say_status(d->k.c, s, "decode: notifying prefill");
}

static int offer(struct decode *d, const struct flight *f, uint32_t source)
{
    struct kv_offer o = {.head = {.word = KV_OFFER, .request = f->request},
                         .source = source,
                         .total = f->missing,
                         .layer_stride = layer_stride(d)};
    int rc = 0;

    for (uint32_t i = 0; rc == 0 && i < f->missing; i += o.count) {
        o.count = f->missing - i < KV_OFFER_PLACES ? f->missing - i : KV_OFFER_PLACES;
        for (uint32_t k = 0; k < o.count; k++)
            o.places[k] = (struct kv_place){.hash_id = f->missing_ids[i + k],
                                            .address = d->published + f->missing_places[i + k] *
                                                                          d->x->model.layer_bytes};
        rc = tell(d, &o, offsetof(struct kv_offer, places) + o.count * sizeof(o.places[0]));
    }
    return rc;
}

static void land(struct decode *d, struct flight *f)
{
    for (uint32_t i = 0; i < f->count; i++)
        kv_cache_unpin(&d->cache, f->places[i]);
    f->count = 0;
    mcs_store_relaxed(&d->x->shared->finished, d->x->shared->finished + 1); /* partner: the bar */
}

/* Looks every block up, makes room for the missing, and asks for them. */
static int take_off(struct decode *d, uint32_t number)
{
    const struct kv_request *r = &d->x->trace.requests[number];
    uint32_t source = (uint32_t)(d->transfers % d->x->in_flight);
    struct flight *f = &d->flights[source];

    f->request = number;
    f->count = f->missing = 0;
    for (uint32_t i = 0; i < r->count; i++) {
        uint32_t place = kv_cache_find(&d->cache, r->hash_ids[i]);

        if (place != KV_CACHE_NONE) {
            d->x->shared->hits++;
        } else {
            place = kv_cache_insert(&d->cache, r->hash_ids[i]);
            f->missing_places[f->missing] = place;
            f->missing_ids[f->missing++] = r->hash_ids[i];
        }
        f->places[f->count++] = place;
    }
    d->x->shared->blocks += r->count;
    if (f->missing == 0) {
        land(d, f);
        return 0;
    }
    d->transfers++;
    d->flying++;
    return offer(d, f, source);
}

static int check(struct decode *d, const struct flight *f, uint64_t *mismatches)
{
    const struct kv_model *m = &d->x->model;
    uint64_t before = clock_thread_ns();
    int rc = 0;

    for (uint32_t layer = 0; layer < m->layers; layer++)
        for (uint32_t i = 0; rc == 0 && i < f->missing; i++) {
            rc = kv_memory_check(
                &d->memory, layer * layer_stride(d) + f->missing_places[i] * m->layer_bytes,
                m->layer_bytes, pattern_seed(f->missing_ids[i], layer), mismatches);
            d->x->shared->verified_bytes += m->layer_bytes;
        }
    if (rc == 0)
        rc = kv_memory_check_end(&d->memory, mismatches);
    d->check_ns += clock_thread_ns() - before;
    return rc;
}

static int await_done(struct decode *d)
{
    struct kv_answer answer = {.head.word = KV_ANSWER};
    struct flight *f = NULL;
    mcshm_notification n;
    struct kv_head head;
    mcshm_status s = mcshm_notify_recv(d->k.c, &n, KV_WAIT_US);
    int rc;

    if (s != MCSHM_OK)
        return say_status(d->k.c, s, "decode: waiting for blocks");
    answer.received_ns = clock_ns();
    if (n.message_size != sizeof(head))
        return say_error(-EPROTO, "decode: a notification of %zu bytes that nobody should send",
                         n.message_size);
    memcpy(&head, n.message, sizeof(head));
    for (uint32_t i = 0; i < d->x->in_flight && f == NULL; i++)
        if (d->flights[i].count > 0 && d->flights[i].request == head.request)
            f = &d->flights[i];
    if (head.word != KV_DONE || f == NULL)
        return say_error(-EPROTO,
                         "decode: word %" PRIu32 " for request %" PRIu32 " that is not under way",
                         head.word, head.request);
    rc = check(d, f, &answer.mismatches);
    if (rc != 0)
        return rc;
    if (answer.mismatches > 0)
        say_note("decode: %" PRIu64 " words of request %" PRIu32 " are not what was sent",
                 answer.mismatches, head.request);
    d->x->shared->mismatches += answer.mismatches;
    answer.head.request = head.request;
    land(d, f);
    d->flying--;
    return tell(d, &answer, sizeof(answer));
}

static int replay(struct decode *d)
{
    const struct kv_trace *t = &d->x->trace;
    struct kv_head end = {.word = KV_END};
    int rc = 0;

    for (uint32_t next = 0; rc == 0 && (next < t->count || d->flying > 0);) {
        bool room = next < t->count && d->flying < d->x->in_flight &&
                    d->cache.pinned + t->requests[next].count <= d->x->cache_blocks;

        if (room)
            rc = take_off(d, next++);
        else
            rc = await_done(d);
    }
    return rc != 0 ? rc : tell(d, &end, sizeof(end));
}

static int prepare(struct decode *d)
{
    uint64_t size = d->x->model.layers * layer_stride(d);
    size_t ids = d->x->trace.longest;
    mcshm_info info;
    mcshm_status s;
    int rc;

    rc = kv_cache_create(&d->cache, d->x->cache_blocks);
    d->flights = calloc(d->x->in_flight, sizeof(d->flights[0]));
    if (rc != 0 || d->flights == NULL)
        return say_error(-ENOMEM, "decode: out of memory");
    for (uint32_t i = 0; i < d->x->in_flight; i++) {
        d->flights[i].places = calloc(ids + 1, sizeof(uint32_t));
        d->flights[i].missing_places = calloc(ids + 1, sizeof(uint32_t));
        d->flights[i].missing_ids = calloc(ids + 1, sizeof(uint64_t));
        if (d->flights[i].places == NULL || d->flights[i].missing_places == NULL ||
            d->flights[i].missing_ids == NULL)
            return say_error(-ENOMEM, "decode: out of memory");
    }
    rc = kv_memory_open(&d->memory, d->x->location);
    if (rc == 0)
        rc = client_open(&d->k, d->x->decode_socket, d->x->decode, MCSHM_CALLER_DEFAULT, NULL);
    if (rc == 0)
        rc = kv_memory_alloc(&d->memory, d->k.c, d->x->location, size, d->x->model.layer_bytes,
                             "decode");
    if (rc != 0)
        return rc;
    s = mcshm_segment_publish(d->k.c, d->x->decode, 0);
    if (s == MCSHM_OK)
        s = mcshm_buffer_publish(d->k.c, d->memory.base, size, MCSHM_ACCESS_WRITE, &d->published);
    if (s == MCSHM_OK)
        s = mcshm_get_info(d->k.c, &info);
    if (s != MCSHM_OK)
        return say_status(d->k.c, s, "decode: publishing its blocks");
    d->x->shared->page_size = info.page_size;
    return 0;
}

static void release(struct decode *d)
{
    kv_memory_settle(&d->memory);
    client_close(&d->k);
    kv_memory_close(&d->memory);
    for (uint32_t i = 0; d->flights != NULL && i < d->x->in_flight; i++) {
        free(d->flights[i].places);
        free(d->flights[i].missing_places);
        free(d->flights[i].missing_ids);
    }
    free(d->flights);
    kv_cache_destroy(&d->cache);
}

int kv_decode_main(int fd, void *context)
{
    struct decode d = {.x = context};
    uint64_t before;
    mcshm_status s;
    int rc;

    kv_step_aside(d.x);
    rc = prepare(&d);
    if (rc == 0)
        rc = kv_meet(fd);
    if (rc != 0)
        goto out;
    s = mcshm_segment_open(d.k.c, d.x->prefill_peer, &d.prefill);
    if (s != MCSHM_OK) {
        rc = say_status(d.k.c, s, "decode: opening prefill's segment");
        goto out;
    }
    before = clock_thread_ns();
    rc = replay(&d);
    d.x->shared->decode_cpu_ns = clock_thread_ns() - before - d.check_ns;
    if (rc == 0)
        rc = kv_part(fd);
out:
    release(&d);
    return rc;
}
