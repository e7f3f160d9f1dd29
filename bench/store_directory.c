/* SPDX-License-Identifier: Apache-2.0 */
/* The directory by itself, on this core: no sockets, no other threads. */
#include "store.h"

#include "clock.h"
#include "say.h"
#include "store/object/directory.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define BATCH 1024u
#define REBUILD 1000000u

struct keys {
    char text[BATCH][STORE_KEY_SIZE];
    struct mco_key key[BATCH];
    struct mco_start start[BATCH];
    struct mco_started started[BATCH];
    struct mco_report report[BATCH];
    uint8_t status[BATCH];
};

static unsigned fill(struct keys *k, uint64_t first, uint64_t end)
{
    unsigned n = end - first < BATCH ? (unsigned)(end - first) : BATCH;

    for (unsigned i = 0; i < n; i++) {
        store_key(first + i, k->text[i]);
        k->key[i] = mco_key(0, k->text[i], STORE_KEY_SIZE);
        k->start[i] = (struct mco_start){
            .key = k->key[i], .size = 4096, .replicas = 1, .preferred = MCO_NO_HOLDER};
    }
    return n;
}

static int create(struct mco_directory **d, uint32_t *holder)
{
    const struct mco_directory_options o = {.token = 1,
                                            .rebuild_ns = 1,
                                            .put_ns = UINT64_C(600000000000),
                                            .away_ns = UINT64_C(600000000000),
                                            .gone_ns = UINT64_C(600000000000),
                                            .now = clock_ns()};
    struct mco_holder h = {.identity = 7, .life = 1, .capacity = UINT64_C(1) << 50};
    bool report;
    int rc = mco_directory_create(&o, d);

    if (rc != 0)
        return say_error(rc, "no directory: %s", strerror(-rc));
    strcpy(h.address, "10.0.0.1:7717");
    *holder = mco_directory_join(*d, &h, clock_ns(), &report);
    mco_directory_report_begins(*d, *holder);
    mco_directory_report_ends(*d, *holder, clock_ns());
    return 0;
}

/* *ns: time inside the directory. */
static int put(struct mco_directory *d, uint32_t holder, struct keys *k, unsigned n, uint64_t *ns)
{
    uint64_t start = clock_ns();

    mco_directory_start(d, holder, k->start, n, start, k->started);
    for (unsigned i = 0; i < n; i++) {
        if (k->started[i].status != MCS_OK)
            return say_error(-EIO, "the directory refused a put: status %u", k->started[i].status);
        k->report[i] = (struct mco_report){
            .key = k->key[i], .version = k->started[i].version, .size = 4096, .there = true};
    }
    mco_directory_end(d, holder, k->report, n, start, k->status);
    *ns += clock_ns() - start;
    for (unsigned i = 0; i < n; i++)
        if (k->status[i] != MCS_OK)
            return say_error(-EIO, "the directory refused the end of a put: status %u",
                             k->status[i]);
    return 0;
}

static int rebuild(struct keys *k, uint64_t keys, struct store_directory *out)
{
    struct mco_directory *d = NULL;
    uint64_t ns = 0, start;
    uint32_t holder;
    int rc = create(&d, &holder);

    if (rc != 0)
        return rc;
    out->rebuilt = keys < REBUILD ? keys : REBUILD;
    start = clock_ns();
    mco_directory_report_begins(d, holder);
    ns += clock_ns() - start;
    for (uint64_t at = 0; at < out->rebuilt; at += BATCH) {
        unsigned n = fill(k, at, out->rebuilt);

        for (unsigned i = 0; i < n; i++)
            k->report[i] = (struct mco_report){
                .key = k->key[i], .version = {0, at + i + 1}, .size = 4096, .there = true};
        start = clock_ns();
        mco_directory_report(d, holder, k->report, n, start);
        ns += clock_ns() - start;
    }
    start = clock_ns();
    mco_directory_report_ends(d, holder, start);
    fill(k, 0, BATCH);
    if (mco_directory_exist(d, k->key, 1, start, k->status) != 1)
        rc = say_error(-EIO, "the directory does not know what it was told of");
    ns += clock_ns() - start;
    mco_directory_destroy(d);
    out->rebuild_s = (double)ns / 1e9;
    return rc;
}

int store_directory(uint64_t keys, double seconds, struct store_directory *out)
{
    struct mco_directory *d = NULL;
    struct keys *k = calloc(1, sizeof(*k));
    struct mco_directory_stats stats;
    uint64_t ns = 0, done = 0, at = 0, end, start;
    uint32_t holder;
    int rc;

    *out = (struct store_directory){.keys = keys};
    rc = k == NULL ? say_error(-ENOMEM, "no memory for keys") : create(&d, &holder);
    if (rc != 0)
        goto out;
    for (at = 0; rc == 0 && at < keys; at += BATCH)
        rc = put(d, holder, k, fill(k, at, keys), &ns);
    if (rc != 0)
        goto out;
    out->start_end_s = (double)keys * 1e9 / (double)ns;
    mco_directory_get_stats(d, clock_ns(), &stats);
    out->bytes_per_key = (double)stats.bytes_memory / (double)keys;
    end = clock_ns() + (uint64_t)(seconds * 1e9);
    ns = at = 0;
    do {
        unsigned n = fill(k, at, keys);

        start = clock_ns();
        done += mco_directory_exist(d, k->key, n, start, k->status);
        ns += clock_ns() - start;
        at = (at + 7919 * BATCH) % keys / BATCH * BATCH;
    } while (clock_ns() < end);
    out->exist_s = (double)done * 1e9 / (double)ns;
    mco_directory_destroy(d);
    d = NULL;
    rc = rebuild(k, keys, out);
out:
    if (d != NULL)
        mco_directory_destroy(d);
    free(k);
    return rc;
}
