/* SPDX-License-Identifier: Apache-2.0 */
#include "store.h"

#include "client.h"
#include "clock.h"
#include "say.h"
#include "stats.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define WAIT_US 60000000
#define TRIPS_MAX 65536u
#define AGENTS_MAX 2u
#define RELEASES 4096u /* holds given back at a time */

struct store_client {
    struct client k;
    char *text;
    mcshm_key *keys;
    mcshm_span *spans;
    mcshm_object_result *results;
    uint64_t *holds;
    uint8_t *buffer;
    uint64_t most;
    const char *host;
    pid_t agents[AGENTS_MAX];
    unsigned nagents;
    uint64_t published; /* address of the buffer */
};

void store_client_close(struct store_client *k)
{
    if (k == NULL)
        return;
    client_close(&k->k);
    free(k->text);
    free(k->keys);
    free(k->spans);
    free(k->results);
    free(k->holds);
    free(k);
}

int store_client_open(const char *socket, uint64_t most, uint64_t keys, const char *host,
                      const pid_t *agents, unsigned nagents, struct store_client **out)
{
    mcshm_queue_options qo = {.size = sizeof(qo), .args_size = 192 * keys + (1u << 20)};
    struct store_client *k = calloc(1, sizeof(*k));
    char name[64];
    mcshm_status s;
    void *buffer;
    int rc = -ENOMEM;

    if (k == NULL)
        return say_error(-ENOMEM, "no memory for a client");
    k->text = malloc(keys * STORE_KEY_SIZE);
    k->keys = malloc(keys * sizeof(k->keys[0]));
    k->spans = malloc(keys * sizeof(k->spans[0]));
    k->results = malloc(keys * sizeof(k->results[0]));
    k->holds = malloc(keys * sizeof(k->holds[0]));
    if (k->text == NULL || k->keys == NULL || k->spans == NULL || k->results == NULL ||
        k->holds == NULL) {
        say_error(-ENOMEM, "no memory for %llu keys", (unsigned long long)keys);
        goto failed;
    }
    k->most = most;
    k->host = host;
    for (; k->nagents < nagents && k->nagents < AGENTS_MAX; k->nagents++)
        k->agents[k->nagents] = agents[k->nagents];
    for (uint64_t i = 0; i < keys; i++) {
        store_key(i, k->text + i * STORE_KEY_SIZE);
        k->keys[i] = (mcshm_key){.bytes = k->text + i * STORE_KEY_SIZE, .size = STORE_KEY_SIZE};
    }
    snprintf(name, sizeof(name), "mcshm-bench-store-%d", (int)getpid());
    rc = client_open(&k->k, socket, name, 0, &qo);
    if (rc != 0)
        goto failed;
    s = mcshm_alloc(k->k.c, most, 2u << 20, NULL, &buffer);
    if (s != MCSHM_OK) {
        rc = say_status(k->k.c, s, "memory for the measurement");
        goto failed;
    }
    k->buffer = buffer;
    memset(k->buffer, 1, most);
    *out = k;
    return 0;
failed:
    store_client_close(k);
    return rc;
}

static int release(struct store_client *k, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        k->holds[i] = k->results[i].hold;
    for (size_t at = 0, done = 0; at < n; at += done) {
        size_t more = n - at < RELEASES ? n - at : RELEASES;
        mcshm_status s = mcshm_object_release(k->k.q, k->holds + at, more, &done);

        if (s != MCSHM_OK && s != MCSHM_RING_FULL)
            return say_status(k->k.c, s, "giving objects back");
    }
    return 0;
}

int store_client_run(void *context, enum store_op op, uint64_t size, uint32_t n, uint32_t *queue_ns,
                     uint32_t *move_ns)
{
    static const struct {
        mcshm_object_op op;
        uint32_t flags;
        const char *name;
    } ops[STORE_OPS] = {
        [STORE_PUT] = {MCSHM_PUT, MCSHM_OBJECT_NEW, "PUT"},
        [STORE_GET] = {MCSHM_GET, 0, "GET"},
        [STORE_GET_IN_PLACE] = {MCSHM_HOLD, 0, "HOLD"},
        [STORE_EXIST] = {MCSHM_EXIST, 0, "EXIST"},
        [STORE_PREFIX] = {MCSHM_PREFIX, MCSHM_OBJECT_CHAIN, "PREFIX"},
        [STORE_REMOVE] = {MCSHM_REMOVE, MCSHM_OBJECT_FORCE, "REMOVE"},
    };
    struct store_client *k = context;
    mcshm_object_request r = {.op = ops[op].op,
                              .flags = ops[op].flags,
                              .priority = MCSHM_CLASS_NORMAL,
                              .keys = k->keys,
                              .count = n};
    mcshm_task_status status;
    mcshm_status s;
    uint64_t expected = n;

    if (op == STORE_PUT || op == STORE_GET) {
        for (uint64_t i = 0; i < n; i++)
            k->spans[i] = (mcshm_span){.address = k->buffer + i * size, .size = size};
        r.spans = k->spans;
        expected = n * size;
    }
    if (op == STORE_PUT)
        r.host = k->host;
    s = mcshm_objects(k->k.q, &r, op == STORE_PREFIX ? NULL : k->results, &status, WAIT_US);
    if (s != MCSHM_OK)
        return say_status(k->k.c, s, ops[op].name);
    if (status.bytes != expected) {
        s = MCSHM_OK;
        for (uint32_t i = 0; op != STORE_PREFIX && i < n && s == MCSHM_OK; i++)
            s = k->results[i].status;
        return say_error(-EIO, "%s of %u keys of %llu bytes: %llu instead of %llu: %s",
                         ops[op].name, n, (unsigned long long)size,
                         (unsigned long long)status.bytes, (unsigned long long)expected,
                         mcshm_strerror(s));
    }
    if (queue_ns != NULL) {
        *queue_ns = status.queue_ns;
        *move_ns = status.move_ns;
    }
    return op == STORE_GET_IN_PLACE ? release(k, n) : 0;
}

uint64_t store_client_cpu(void *context)
{
    const struct store_client *k = context;
    uint64_t sum = 0, ns;

    for (unsigned i = 0; i < k->nagents; i++)
        if (clock_process_ns(k->agents[i], &ns) == 0)
            sum += ns;
    return sum;
}

void store_client_drive(struct store_client *k, bool remote, struct store_driver *out)
{
    *out = (struct store_driver){.context = k,
                                 .remote = remote,
                                 .buffer = k->buffer,
                                 .run = store_client_run,
                                 .cpu_ns = k->nagents != 0 ? store_client_cpu : NULL};
}

uint64_t store_client_page_size(const struct store_client *k)
{
    mcshm_info info;

    return mcshm_get_info(k->k.c, &info) == MCSHM_OK ? info.page_size : 0;
}

uint8_t *store_client_buffer(const struct store_client *k)
{
    return k->buffer;
}

/* ---- the ring, and bare transfers ------------------------------------------------------------ */

int store_client_publish(struct store_client *k, const char *name)
{
    mcshm_status s = mcshm_segment_publish(k->k.c, name, 0);

    if (s == MCSHM_OK)
        s = mcshm_buffer_publish(k->k.c, k->buffer, k->most, MCSHM_ACCESS_READ | MCSHM_ACCESS_WRITE,
                                 &k->published);
    return s == MCSHM_OK ? 0 : say_status(k->k.c, s, "publishing a buffer");
}

/* n transfers as one batch. Returns whether all completed. */
static bool transfer(struct store_client *k, mcshm_request *r, uint32_t n, uint64_t size,
                     uint64_t address)
{
    mcshm_batch_status status;
    mcshm_batch batch;
    bool good;

    if (mcshm_batch_alloc(k->k.q, n, &batch) != MCSHM_OK)
        return false;
    good = true;
    for (uint32_t i = 0; good && i < n; i++) {
        r->local = k->buffer + i * size;
        r->remote_address = address + i * size;
        r->length = size;
        good = mcshm_submit(k->k.q, batch, r, 1) == MCSHM_OK;
    }
    if (good)
        good = mcshm_batch_wait(k->k.q, batch, WAIT_US) == MCSHM_OK &&
               mcshm_batch_poll(k->k.q, batch, &status) == MCSHM_OK && status.failed == 0;
    while (mcshm_batch_free(k->k.q, batch) == MCSHM_BUSY) {
    }
    return good;
}

double store_client_rtt(struct store_client *k, double seconds)
{
    double *ns = malloc(TRIPS_MAX * sizeof(*ns)), median;
    uint64_t end = clock_ns() + (uint64_t)(seconds * 1e9);
    mcshm_request r = {.opcode = MCSHM_WRITE, .priority = MCSHM_CLASS_NORMAL};
    size_t count = 0;
    char name[64];

    snprintf(name, sizeof(name), "mcshm-bench-store-%d", (int)getpid());
    if (ns == NULL || store_client_publish(k, name) != 0 ||
        mcshm_segment_open(k->k.c, name, &r.segment) != MCSHM_OK) {
        free(ns);
        return NAN;
    }
    while (count < TRIPS_MAX && (count == 0 || clock_ns() < end)) {
        uint64_t start = clock_ns();

        if (!transfer(k, &r, 1, 64, k->published + k->most / 2))
            break;
        ns[count++] = (double)(clock_ns() - start);
    }
    median = stats_percentile(ns, count, 50);
    free(ns);
    return median;
}

int store_client_raw(struct store_client *k, const char *segment, double seconds,
                     struct store_rows *rows)
{
    mcshm_request r = {.opcode = MCSHM_READ, .priority = MCSHM_CLASS_NORMAL};
    mcshm_buffer where;
    double *samples;
    size_t count = 1;
    mcshm_status s = mcshm_segment_open(k->k.c, segment, &r.segment);

    if (s == MCSHM_OK)
        s = mcshm_segment_describe(k->k.c, r.segment, &where, &count);
    if (s != MCSHM_OK || count == 0)
        return say_status(k->k.c, s, "opening the other host's buffer");
    samples = malloc(TRIPS_MAX * sizeof(*samples));
    if (samples == NULL)
        return say_error(-ENOMEM, "no memory for samples");
    for (unsigned i = 0; i < rows->count; i++) {
        struct store_row *row = &rows->row[i];
        uint64_t end, start, now;
        size_t n = 0;
        bool good;

        if (!row->remote || row->op != STORE_GET || row->batch > 256)
            continue;
        good = transfer(k, &r, (uint32_t)row->batch, row->size, where.address);
        end = clock_ns() + (uint64_t)(seconds * 1e9);
        do {
            start = clock_ns();
            good = good && transfer(k, &r, (uint32_t)row->batch, row->size, where.address);
            now = clock_ns();
            samples[n++] = (double)(now - start);
        } while (good && now < end && n < TRIPS_MAX);
        row->limit =
            good ? (double)(row->batch * row->size) / stats_percentile(samples, n, 50) : NAN;
    }
    free(samples);
    return 0;
}
