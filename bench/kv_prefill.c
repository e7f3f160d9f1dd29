/* SPDX-License-Identifier: Apache-2.0 */
#include "kv_run.h"

#include "client.h"
#include "clock.h"
#include "kv_memory.h"
#include "pattern.h"
#include "proc.h"
#include "say.h"

#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#define RETRY_US 1000     /* a ring or argument area that is full: wait for a task, then retry */
#define NOTIFY_ROOM 4416u /* argument bytes of a notification, rounded up */
#define ARGS_MAX (UINT64_C(64) << 20)
#define DEPTH_MIN 64u
#define DEPTH_MAX 4096u

enum source_state { SOURCE_FREE, SOURCE_OFFERED, SOURCE_MOVING, SOURCE_MOVED };

/* A request being served: its content lies in one source area until decode has answered. */
struct source {
    enum source_state state;
    uint32_t request;
    uint64_t offset;       /* in prefill's memory */
    uint32_t total, count; /* blocks offered so far */
    uint64_t layer_stride;
    struct kv_place *places;
    mcshm_batch batch;
    uint64_t started; /* before the first layer was submitted */
    uint64_t ended;   /* when the last was seen to have ended */
};

struct prefill {
    const struct kv_context *x;
    struct client k;
    mcshm_segment decode;
    struct source *sources;
    mcshm_piece *pieces;
    struct kv_memory memory;
    mcshm_gate gate;   /* with --order gate */
    uint32_t *reached; /* its value once a layer's content is there */
    uint32_t moving;
    bool over; /* decode has no more requests */
    uint64_t fill_ns;
    uint64_t busy_until; /* end of the latest transfer accounted for */
};

static void see_end(struct prefill *p, struct source *s)
{
    s->ended = clock_ns();
    s->state = SOURCE_MOVED;
    p->moving--;
}

/* Looks between two pieces of other work. */
static void see_ends(struct prefill *p)
{
    for (uint32_t i = 0; p->moving > 0 && i < p->x->in_flight; i++) {
        struct source *s = &p->sources[i];

        if (s->state == SOURCE_MOVING && mcshm_batch_poll(p->k.q, s->batch, NULL) == MCSHM_OK)
            see_end(p, s);
    }
}

static uint64_t layer_offset(const struct prefill *p, const struct source *s, uint32_t layer)
{
    return s->offset + (uint64_t)layer * p->x->trace.longest * p->x->model.layer_bytes;
}

/* Of a GPU's memory, either waits until all is there, or has a gate tell of each layer. */
static int fill(struct prefill *p, const struct source *s)
{
    const struct kv_model *m = &p->x->model;
    uint64_t before = clock_thread_ns();
    mcshm_status status = MCSHM_OK;
    int rc = 0;

    for (uint32_t layer = 0; rc == 0 && layer < m->layers; layer++) {
        see_ends(p);
        for (uint32_t i = 0; rc == 0 && i < s->total; i++)
            rc = kv_memory_fill(&p->memory, layer_offset(p, s, layer) + i * m->layer_bytes,
                                m->layer_bytes, pattern_seed(s->places[i].hash_id, layer));
        if (rc == 0 && p->x->gates)
            status =
                mcshm_gate_record(p->k.c, &p->gate, p->memory.device.stream, &p->reached[layer]);
        if (status != MCSHM_OK)
            rc = say_status(p->k.c, status, "prefill: recording a gate");
    }
    if (rc == 0 && !p->x->gates)
        rc = kv_memory_sync(&p->memory);
    p->fill_ns += clock_thread_ns() - before;
    return rc;
}

static mcshm_status submit_layer(struct prefill *p, const struct source *s,
                                 const mcshm_request *request)
{
    mcshm_status status;

    for (;;) {
        status = mcshm_submit_list(p->k.q, s->batch, request, p->pieces, s->total);
        if (status != MCSHM_RING_FULL && status != MCSHM_NO_SLOTS && status != MCSHM_ARGS_FULL)
            return status;
        status = mcshm_batch_wait(p->k.q, s->batch, RETRY_US);
        if (status != MCSHM_OK && status != MCSHM_TIMEOUT)
            return status;
    }
}

/* One block list a layer; the last one waits for the others and says that all is there. */
static int move(struct prefill *p, struct source *s)
{
    const struct kv_model *m = &p->x->model;
    struct kv_head done = {.word = KV_DONE, .request = s->request};
    mcshm_notification n = {
        .name = "kv", .name_size = 2, .message = &done, .message_size = sizeof(done)};
    mcshm_order order = {.wait = p->gate.word};
    uint64_t lowest = UINT64_MAX;
    mcshm_status status;
    int rc;

    for (uint32_t i = 0; i < s->total; i++)
        if (s->places[i].address < lowest)
            lowest = s->places[i].address;
    for (uint32_t i = 0; i < s->total; i++)
        p->pieces[i] = (mcshm_piece){.local_offset = i * m->layer_bytes,
                                     .remote_offset = s->places[i].address - lowest,
                                     .length = m->layer_bytes};
    rc = fill(p, s);
    if (rc != 0)
        return rc;
    status = mcshm_batch_alloc(p->k.q, m->layers, &s->batch);
    s->started = clock_ns();
    for (uint32_t layer = 0; status == MCSHM_OK && layer < m->layers; layer++) {
        mcshm_request r = {.opcode = MCSHM_WRITE,
                           .priority = MCSHM_CLASS_NORMAL,
                           .local = p->memory.base + layer_offset(p, s, layer),
                           .segment = p->decode,
                           .remote_address = lowest + layer * s->layer_stride,
                           .cookie = s->request};

        if (layer + 1 == m->layers) {
            r.flags = MCSHM_FENCE | MCSHM_NOTIFY;
            r.notify = &n;
        }
        if (p->x->gates) {
            order.wait_value = p->reached[layer];
            r.order = &order;
        } else if (p->memory.gpu) {
            r.flags |= MCSHM_GPU_SYNCED;
        }
        status = submit_layer(p, s, &r);
    }
    if (status != MCSHM_OK)
        return say_status(p->k.c, status, "prefill: submitting a layer");
    s->state = SOURCE_MOVING;
    p->moving++;
    return 0;
}

static int take_offer(struct prefill *p, const mcshm_notification *n)
{
    struct kv_offer o;
    struct source *s;

    memset(&o, 0, offsetof(struct kv_offer, places));
    memcpy(&o, n->message, n->message_size < sizeof(o) ? n->message_size : sizeof(o));
    if (n->message_size < offsetof(struct kv_offer, places) || o.count > KV_OFFER_PLACES ||
        n->message_size != offsetof(struct kv_offer, places) + o.count * sizeof(o.places[0]) ||
        o.source >= p->x->in_flight || o.total > p->x->trace.longest)
        return say_error(-EPROTO, "prefill: an offer that does not fit the trace");
    s = &p->sources[o.source];
    if (s->state == SOURCE_FREE) {
        s->state = SOURCE_OFFERED;
        s->request = o.head.request;
        s->total = o.total;
        s->layer_stride = o.layer_stride;
        s->count = 0;
    }
    if (s->state != SOURCE_OFFERED || s->request != o.head.request || s->count + o.count > s->total)
        return say_error(-EPROTO, "prefill: an offer for a source that is in use");
    memcpy(&s->places[s->count], o.places, o.count * sizeof(o.places[0]));
    s->count += o.count;
    return s->count == s->total ? move(p, s) : 0;
}

/*
 * Adds up what the tasks of a transfer say.  It ended when prefill saw that, or decode heard of
 * it: the earlier counts, for either may have had no core when it happened.
 */
static int account(struct prefill *p, struct source *s, uint64_t received)
{
    struct kv_shared *shared = p->x->shared;
    uint64_t end = received < s->ended ? received : s->ended;
    uint64_t wall = end - s->started;
    uint64_t from = s->started > p->busy_until ? s->started : p->busy_until;
    uint64_t copy = 0, notify = 0;
    mcshm_task_status task;
    mcshm_status status;

    for (uint32_t i = 0; i < p->x->model.layers; i++) {
        status = mcshm_task_poll(p->k.q, s->batch, i, &task);
        if (status == MCSHM_OK && task.state != MCSHM_STATE_COMPLETED)
            status = task.error;
        if (status != MCSHM_OK)
            return say_error(-EIO, "prefill: layer %" PRIu32 " of request %" PRIu32 ": %s", i,
                             s->request, mcshm_strerror(status));
        copy += task.move_ns;
        notify += task.notify_ns;
        shared->bytes += task.bytes;
        shared->tasks++;
        if ((unsigned)task.path < KV_PATHS)
            shared->path_tasks[task.path]++;
    }
    /* What is neither copying nor notifying is waiting; stamps are taken per turn of the engine
     * and may add up to a little more than the wall clock. */
    shared->copy_ns += copy;
    shared->notify_ns += notify;
    shared->queue_ns += wall > copy + notify ? wall - copy - notify : 0;
    if (end > from) { /* time that several requests share counts once */
        shared->transfer_ns += end - from;
        p->busy_until = end;
    }
    shared->request_us[shared->transfers++] = (double)wall / 1e3;
    status = mcshm_batch_free(p->k.q, s->batch);
    if (status != MCSHM_OK)
        return say_status(p->k.c, status, "prefill: freeing a batch");
    s->state = SOURCE_FREE;
    return 0;
}

/* Decode has seen all of a request: its source may be used again. */
static int take_answer(struct prefill *p, const mcshm_notification *n)
{
    struct kv_answer a;

    if (n->message_size != sizeof(a))
        return say_error(-EPROTO, "prefill: an answer of %zu bytes", n->message_size);
    memcpy(&a, n->message, sizeof(a));
    for (uint32_t i = 0; i < p->x->in_flight; i++) {
        struct source *s = &p->sources[i];

        if (s->request != a.head.request)
            continue;
        if (s->state == SOURCE_MOVING) { /* decode was faster than this process's look */
            mcshm_status status = mcshm_batch_wait(p->k.q, s->batch, KV_WAIT_US);

            if (status != MCSHM_OK)
                return say_status(p->k.c, status, "prefill: waiting for a transfer");
            see_end(p, s);
        }
        if (s->state == SOURCE_MOVED)
            return account(p, s, a.received_ns);
    }
    return say_error(-EPROTO, "prefill: an answer to request %" PRIu32 " that was not sent",
                     a.head.request);
}

static int hear(struct prefill *p, const mcshm_notification *n)
{
    struct kv_head head;

    if (n->message_size < sizeof(head))
        return say_error(-EPROTO, "prefill: a notification of %zu bytes", n->message_size);
    memcpy(&head, n->message, sizeof(head));
    switch (head.word) {
    case KV_OFFER:
        return take_offer(p, n);
    case KV_ANSWER:
        return take_answer(p, n);
    case KV_END:
        p->over = true;
        return 0;
    default:
        return say_error(-EPROTO, "prefill: word %" PRIu32 " that nobody should send", head.word);
    }
}

/* Waits a little for the oldest transfer under way. */
static int look_at_batches(struct prefill *p)
{
    struct source *oldest = NULL;
    mcshm_status status;

    for (uint32_t i = 0; i < p->x->in_flight; i++) {
        struct source *s = &p->sources[i];

        if (s->state == SOURCE_MOVING && (oldest == NULL || s->started < oldest->started))
            oldest = s;
    }
    if (oldest == NULL) /* serve() asks only while something moves */
        return say_error(-EPROTO, "prefill: no transfer is under way");
    status = mcshm_batch_wait(p->k.q, oldest->batch, RETRY_US);
    if (status == MCSHM_OK)
        see_end(p, oldest);
    else if (status != MCSHM_TIMEOUT)
        return say_status(p->k.c, status, "prefill: waiting for a transfer");
    return 0;
}

/* Until decode says that it has no more requests. */
static int serve(struct prefill *p)
{
    int rc = 0;

    while (rc == 0 && !p->over) {
        mcshm_notification n;
        mcshm_status status = mcshm_notify_recv(p->k.c, &n, p->moving > 0 ? 0 : KV_WAIT_US);

        if (status == MCSHM_OK)
            rc = hear(p, &n);
        else if (status != MCSHM_TIMEOUT || p->moving == 0)
            rc = say_status(p->k.c, status, "prefill: waiting for offers");
        else
            rc = look_at_batches(p);
    }
    return rc;
}

static uint32_t queue_depth(const struct prefill *p)
{
    uint32_t depth = DEPTH_MIN;

    while (depth < DEPTH_MAX && depth < 2 * p->x->in_flight * p->x->model.layers)
        depth *= 2;
    return depth;
}

static int prepare(struct prefill *p)
{
    const struct kv_model *m = &p->x->model;
    uint64_t area = (uint64_t)m->layers * p->x->trace.longest * m->layer_bytes;
    mcshm_queue_options queue = {.size = sizeof(queue), .depth = queue_depth(p)};
    mcshm_status s;
    int rc;

    queue.args_size = (p->x->trace.longest * sizeof(mcshm_piece) + 256) * m->layers + NOTIFY_ROOM;
    queue.args_size = (queue.args_size * (p->x->in_flight + 1) + 65535) / 65536 * 65536;
    if (queue.args_size > ARGS_MAX)
        queue.args_size = ARGS_MAX; /* submission waits for room then */
    p->sources = calloc(p->x->in_flight, sizeof(p->sources[0]));
    p->pieces = calloc(p->x->trace.longest + 1, sizeof(p->pieces[0]));
    p->reached = calloc(m->layers, sizeof(p->reached[0]));
    if (p->sources == NULL || p->pieces == NULL || p->reached == NULL)
        return say_error(-ENOMEM, "prefill: out of memory");
    for (uint32_t i = 0; i < p->x->in_flight; i++) {
        p->sources[i].places = calloc(p->x->trace.longest + 1, sizeof(struct kv_place));
        if (p->sources[i].places == NULL)
            return say_error(-ENOMEM, "prefill: out of memory");
    }
    for (uint32_t i = 0; i < p->x->in_flight; i++)
        p->sources[i].offset = i * area;
    rc = kv_memory_open(&p->memory, p->x->location);
    if (rc == 0)
        rc = client_open(&p->k, p->x->prefill_socket, p->x->prefill, MCSHM_CALLER_DEFAULT, &queue);
    if (rc == 0)
        rc = kv_memory_alloc(&p->memory, p->k.c, p->x->location, area * p->x->in_flight,
                             m->layer_bytes, "prefill");
    if (rc != 0)
        return rc;
    s = mcshm_segment_publish(p->k.c, p->x->prefill, 0);
    if (s != MCSHM_OK)
        return say_status(p->k.c, s, "prefill: publishing its segment");
    if (p->x->gates)
        s = mcshm_gate_create(p->k.c, p->x->location, &p->gate);
    return s == MCSHM_OK ? 0 : say_status(p->k.c, s, "prefill: creating a gate");
}

static void release(struct prefill *p)
{
    kv_memory_settle(&p->memory);
    if (p->gate.word != NULL)
        mcshm_gate_destroy(p->k.c, &p->gate);
    client_close(&p->k);
    kv_memory_close(&p->memory);
    for (uint32_t i = 0; p->sources != NULL && i < p->x->in_flight; i++)
        free(p->sources[i].places);
    free(p->sources);
    free(p->pieces);
    free(p->reached);
}

int kv_prefill_main(int fd, void *context)
{
    struct prefill p = {.x = context};
    uint64_t before;
    mcshm_status s;
    int rc;

    kv_step_aside(p.x);
    rc = prepare(&p);
    if (rc == 0)
        rc = kv_meet(fd);
    if (rc != 0)
        goto out;
    s = mcshm_segment_open(p.k.c, p.x->decode_peer, &p.decode);
    if (s != MCSHM_OK) {
        rc = say_status(p.k.c, s, "prefill: opening decode's segment");
        goto out;
    }
    before = clock_thread_ns();
    rc = serve(&p);
    p.x->shared->prefill_cpu_ns = clock_thread_ns() - before - p.fill_ns;
    if (rc == 0)
        rc = kv_part(fd);
out:
    release(&p);
    return rc;
}
