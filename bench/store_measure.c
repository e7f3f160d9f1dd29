/* SPDX-License-Identifier: Apache-2.0 */
#include "store.h"

#include "clock.h"
#include "say.h"
#include "stats.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SAMPLES_MAX 65536u
#define WARM 2u /* requests before the timed ones */

void store_key(uint64_t i, char *out)
{
    char text[STORE_KEY_SIZE + 1];

    snprintf(text, sizeof(text), "bench-%018llx", (unsigned long long)i);
    memcpy(out, text, STORE_KEY_SIZE);
}

struct samples {
    double *total, *queue, *move;
    size_t count;
    uint64_t ns; /* of all timed requests */
};

static int timed(const struct store_driver *d, enum store_op op, uint64_t size, uint32_t n,
                 struct samples *s)
{
    uint32_t queue = 0, move = 0;
    uint64_t start = clock_ns(), ns;
    int rc = d->run(d->context, op, size, n, &queue, &move);

    ns = clock_ns() - start;
    if (rc != 0)
        return rc;
    if (s->count < SAMPLES_MAX) {
        s->total[s->count] = (double)ns / 1e3;
        s->queue[s->count] = queue / 1e3;
        s->move[s->count++] = move / 1e3;
    }
    s->ns += ns;
    return 0;
}

static uint64_t cpu_now(const struct store_driver *d)
{
    return clock_thread_ns() + (d->cpu_ns != NULL ? d->cpu_ns(d->context) : 0);
}

static int check_bytes(const struct store_driver *d, uint64_t size, uint32_t n)
{
    for (uint64_t i = 0; i < n; i++) {
        uint64_t word;

        memcpy(&word, d->buffer + i * size, sizeof(word));
        if (word != ~i)
            return say_error(-EIO, "key %llu came back with other bytes than it was put with",
                             (unsigned long long)i);
    }
    return 0;
}

static void fill(const struct store_driver *d, uint64_t size, uint32_t n, bool good)
{
    for (uint64_t i = 0; i < n; i++) {
        uint64_t word = good ? ~i : 0;

        memcpy(d->buffer + i * size, &word, sizeof(word));
    }
}

/* Of a put what was put is removed again, outside of the time. */
static int one_row(const struct store_options *o, const struct store_driver *d, struct samples *s,
                   struct store_row *row)
{
    uint32_t n = (uint32_t)row->batch;
    uint64_t end, cpu = 0, requests = 0, before;
    uint32_t queue, move;
    double bytes;
    int rc = 0;

    s->count = 0;
    s->ns = 0;
    fill(d, row->size, n, true);
    if (row->op != STORE_PUT) {
        rc = d->run(d->context, STORE_PUT, row->size, n, NULL, NULL);
        fill(d, row->size, n, false);
    }
    for (unsigned i = 0; rc == 0 && i < WARM; i++) {
        rc = d->run(d->context, row->op, row->size, n, &queue, &move); /* as if it counted */
        if (rc == 0 && row->op == STORE_PUT)
            rc = d->run(d->context, STORE_REMOVE, row->size, n, NULL, NULL);
    }
    if (rc == -ENOTSUP) {
        d->run(d->context, STORE_REMOVE, row->size, n, NULL, NULL);
        return rc;
    }
    end = clock_ns() + (uint64_t)(o->seconds * 1e9);
    while (rc == 0 && (requests == 0 || clock_ns() < end)) {
        before = cpu_now(d);
        rc = timed(d, row->op, row->size, n, s);
        cpu += cpu_now(d) - before;
        requests++;
        if (rc == 0 && row->op == STORE_PUT)
            rc = d->run(d->context, STORE_REMOVE, row->size, n, NULL, NULL);
    }
    if (rc == 0 && row->op == STORE_GET)
        rc = check_bytes(d, row->size, n);
    if (rc == 0 && row->op != STORE_PUT)
        rc = d->run(d->context, STORE_REMOVE, row->size, n, NULL, NULL);
    if (rc != 0)
        return rc;
    bytes = row->op == STORE_PUT || row->op == STORE_GET || row->op == STORE_GET_IN_PLACE
                ? (double)(requests * row->batch * row->size)
                : 0;
    row->ops_s = (double)(requests * row->batch) * 1e9 / (double)s->ns;
    row->gbps = bytes > 0 ? bytes / (double)s->ns : NAN;
    row->cpu_s_per_gb = bytes > 0 && row->op != STORE_GET_IN_PLACE ? (double)cpu / bytes : NAN;
    row->p50_us = stats_percentile(s->total, s->count, 50);
    row->p99_us = stats_percentile(s->total, s->count, 99);
    row->queue_us = stats_percentile(s->queue, s->count, 50);
    row->move_us = stats_percentile(s->move, s->count, 50);
    if (row->queue_us + row->move_us > 0)
        row->rest_us = fmax(0, row->p50_us - row->queue_us - row->move_us);
    else
        row->queue_us = row->move_us = row->rest_us = NAN;
    return 0;
}

/* GB/s of the median copy, source and target rotating. */
static double copy_rate(uint8_t *buffer, uint64_t most, uint64_t size, double seconds,
                        double *samples)
{
    uint64_t half = most / 2, end = clock_ns() + (uint64_t)(seconds * 1e9), at = 0, start, now;
    uint64_t many = size < 65536 ? 65536 / size : 1; /* copies that are timed together */
    size_t count = 0;

    if (many * size > half)
        return NAN;
    do {
        start = clock_ns();
        for (uint64_t i = 0; i < many; i++) {
            memcpy(buffer + at, buffer + half + at, size);
            at = at + 2 * size <= half ? at + size : 0;
        }
        now = clock_ns();
        samples[count++] = (double)(now - start);
    } while (now < end && count < SAMPLES_MAX);
    return (double)(many * size) / stats_percentile(samples, count, 50);
}

int store_measure(const struct store_options *o, const struct store_driver *d,
                  struct store_rows *out)
{
    struct samples s = {.total = malloc(SAMPLES_MAX * sizeof(double)),
                        .queue = malloc(SAMPLES_MAX * sizeof(double)),
                        .move = malloc(SAMPLES_MAX * sizeof(double))};
    int rc = s.total != NULL && s.queue != NULL && s.move != NULL
                 ? 0
                 : say_error(-ENOMEM, "no memory for samples");

    for (unsigned i = 0; rc == 0 && i < o->nsizes; i++) {
        double copy =
            d->remote ? NAN : copy_rate(d->buffer, o->most, o->sizes[i], o->seconds / 4, s.total);

        for (unsigned b = 0; rc == 0 && b < o->nbatches; b++)
            for (unsigned op = 0; rc == 0 && op < STORE_REMOVE; op++) {
                struct store_row *row = &out->row[out->count];

                if (o->sizes[i] * o->batches[b] > o->most || out->count == STORE_ROWS_MAX)
                    continue;
                *row = (struct store_row){.op = op,
                                          .size = o->sizes[i],
                                          .batch = o->batches[b],
                                          .remote = d->remote,
                                          .limit = op == STORE_PUT || op == STORE_GET ? copy : NAN};
                rc = one_row(o, d, &s, row);
                if (rc == 0)
                    out->count++;
                else if (rc == -ENOTSUP)
                    rc = 0;
            }
    }
    free(s.total);
    free(s.queue);
    free(s.move);
    return rc;
}
