/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Objects whose bytes somebody has found to be others than their checksum says, elsewhere: was it on the way, or are they so
 * here?  A thread of its own looks; what is damaged is not found any more.
 */
#include <stdlib.h>
#include <string.h>

#include "log.h"
#include "store_internal.h"
#include "transports/crc32c.h"

#define DOUBTS_MAX 64u /* at a time: whoever reads on says it again */

uint64_t mcd_now_ns(void);

struct doubt {
    struct mcd_job job;
    struct mcd_store *store;
    struct mco_key key;
    bool damaged;
    uint8_t bytes[];
};

static void run(struct mcd_job *job)
{
    struct doubt *d = (struct doubt *)job;
    struct mco_store *s = d->store->objects;
    struct mco_view v;

    if (mco_pin(s, &d->key, NULL, mcd_now_ns(), &v) != MCS_OK)
        return;
    if (v.summed && mct_crc32c(0, v.data, v.size) != v.crc) {
        mco_damaged(s, v.object);
        d->damaged = true;
    }
    mco_unpin(s, v.object);
}

static void done(struct mcd_job *job, void *context)
{
    struct doubt *d = (struct doubt *)job;

    (void)context;
    d->store->work->doubts--;
    if (d->damaged)
        mcd_log_limited(
            MCD_LOG_WARNING,
            "another host has found an object's checksum wrong, and it is wrong here: it was "
            "dropped (memory, or a client that wrote after the seal)");
    free(d);
}

void mcd_store_doubt(struct mcd_store *st, const struct mco_key *key)
{
    struct mcd_store_work *w = st->work;
    struct doubt *d;

    if (w == NULL || w->lists == NULL || w->stopped || w->doubts >= DOUBTS_MAX)
        return;
    d = calloc(1, sizeof(*d) + key->length);
    if (d == NULL)
        return;
    d->job = (struct mcd_job){.run = run, .done = done};
    d->store = st;
    d->key = *key;
    d->key.bytes = d->bytes;
    memcpy(d->bytes, key->bytes, key->length);
    w->doubts++;
    mcd_worker_submit(w->lists, &d->job);
}
