/* SPDX-License-Identifier: Apache-2.0 */
/* Questions about keys, puts, removals and reports. */
#include "directory_internal.h"

#include <stdlib.h>
#include <string.h>

#define SEQUENCE_JUMP (UINT64_C(1) << 40) /* puts that no leader has given in its time */
#define AHEAD 16u /* keys whose slots and entries are on their way to the cache */

/* ---- finding ------------------------------------------------------------------------------- */

static void prefetch(const struct mco_directory *d, const struct mco_key *keys, size_t n, size_t i)
{
    if (i == 0)
        for (size_t j = 0; j < AHEAD && j < n; j++)
            mco_table_prefetch(d, keys[j].hash);
    if (i + AHEAD < n)
        mco_table_prefetch(d, keys[i + AHEAD].hash);
    if (i + AHEAD / 2 < n)
        mco_table_prefetch_entry(d, keys[i + AHEAD / 2].hash);
}

/* OK, NOT_FOUND, or PEER_UNREACHABLE: all its holders are away. */
static uint8_t status_of(const struct mco_directory *d, const struct mco_entry *e)
{
    uint8_t status = MCS_NOT_FOUND;

    for (int i = 0; i < e->nholders; i++) {
        enum mco_holder_state s = d->members[e->holders[i] & MCO_SLOT_HOLDER]->state;

        if (s <= MCO_HOLDER_HERE)
            return MCS_OK;
        if (s == MCO_HOLDER_AWAY)
            status = MCS_PEER_UNREACHABLE;
    }
    return status;
}

static void fill(const struct mco_directory *d, const struct mco_entry *e, struct mco_found_at *f)
{
    f->version = e->version;
    f->size = e->size;
    f->crc = e->crc;
    for (unsigned disk = 0; disk < 2; disk++)
        for (int i = 0; i < e->nholders; i++)
            if (mco_here(d, e->holders[i] & MCO_SLOT_HOLDER) &&
                !(e->holders[i] & MCO_SLOT_DISK) == !disk)
                f->holders[f->nholders++] = e->holders[i] & MCO_SLOT_HOLDER;
    for (int i = 0; i < e->nholders; i++)
        if (d->members[e->holders[i] & MCO_SLOT_HOLDER]->state == MCO_HOLDER_AWAY)
            f->naway++;
}

void mco_directory_find(struct mco_directory *d, const struct mco_key *keys, size_t n, uint64_t now,
                        struct mco_found_at *out)
{
    uint8_t unknown = mco_directory_rebuilding(d, now) ? MCS_REBUILDING : MCS_NOT_FOUND;
    const struct mco_entry *e;

    d->stats.finds += n;
    for (size_t i = 0; i < n; i++) {
        prefetch(d, keys, n, i);
        memset(&out[i], 0, sizeof(out[i]));
        e = mco_entry_find(d, &keys[i]);
        out[i].status = e == NULL ? MCS_NOT_FOUND : status_of(d, e);
        if (out[i].status == MCS_NOT_FOUND)
            out[i].status = unknown;
        else
            fill(d, e, &out[i]);
    }
}

size_t mco_directory_exist(struct mco_directory *d, const struct mco_key *keys, size_t n,
                           uint64_t now, uint8_t *status)
{
    uint8_t unknown = mco_directory_rebuilding(d, now) ? MCS_REBUILDING : MCS_NOT_FOUND;
    const struct mco_entry *e;
    size_t there = 0;

    d->stats.exists += n;
    for (size_t i = 0; i < n; i++) {
        prefetch(d, keys, n, i);
        e = mco_entry_find(d, &keys[i]);
        status[i] = e == NULL ? MCS_NOT_FOUND : status_of(d, e);
        if (status[i] == MCS_NOT_FOUND)
            status[i] = unknown;
        there += status[i] == MCS_OK;
    }
    return there;
}

/* ---- puts ---------------------------------------------------------------------------------- */

static bool put_open(struct mco_directory *d, struct mco_entry *e, uint32_t writer,
                     const struct mco_start *s, uint64_t now)
{
    struct mco_opened *p = calloc(1, sizeof(*p));

    if (p == NULL)
        return false;
    p->e = e;
    p->version = (struct mco_version){d->o.token, ++d->sequence};
    p->size = s->size;
    p->started = now;
    p->writer = writer;
    p->preferred = mco_member(d, s->preferred) == NULL ? MCO_NO_HOLDER : s->preferred;
    p->replicas = s->replicas < 1                  ? 1
                  : s->replicas > MCS_REPLICAS_MAX ? (uint8_t)MCS_REPLICAS_MAX
                                                   : s->replicas;
    p->before = d->newest;
    if (d->newest != NULL)
        d->newest->after = p;
    else
        d->oldest = p;
    d->newest = p;
    e->put = p;
    d->members[writer]->puts++;
    d->stats.puts_open++;
    return true;
}

void mco_put_over(struct mco_directory *d, struct mco_entry *e)
{
    struct mco_opened *p = e->put;

    if (p->before != NULL)
        p->before->after = p->after;
    else
        d->oldest = p->after;
    if (p->after != NULL)
        p->after->before = p->before;
    else
        d->newest = p->before;
    e->put = NULL;
    d->members[p->writer]->puts--;
    d->stats.puts_open--;
    free(p);
}

void mco_puts_undo(struct mco_directory *d, uint32_t writer)
{
    struct mco_opened *p, *after;

    for (p = d->oldest; p != NULL && d->members[writer]->puts != 0; p = after) {
        after = p->after;
        if (p->writer != writer)
            continue;
        struct mco_entry *e = p->e;

        mco_put_over(d, e);
        mco_entry_settle(d, e);
        d->stats.undone++;
    }
}

/* Where it is to be: the writer's, then who is asked for, then the best others. */
static void places(struct mco_directory *d, const struct mco_entry *e, struct mco_started *out)
{
    const struct mco_opened *p = e->put;

    out->places[out->nplaces++] = p->writer;
    if (p->preferred != MCO_NO_HOLDER && p->preferred != p->writer && mco_here(d, p->preferred))
        out->places[out->nplaces++] = p->preferred;
}

static void start(struct mco_directory *d, uint32_t writer, const struct mco_start *s, uint64_t now,
                  bool rebuilding, struct mco_started *out)
{
    struct mco_entry *e = mco_entry_find(d, &s->key);
    uint8_t there = e == NULL ? MCS_NOT_FOUND : status_of(d, e);

    memset(out, 0, sizeof(*out));
    if (there == MCS_NOT_FOUND && rebuilding) {
        out->status = MCS_REBUILDING;
    } else if (there == MCS_OK && !(s->flags & MCS_OBJECT_UPSERT)) {
        out->status = MCS_EXISTS;
        out->version = e->version;
    } else if (e != NULL && e->put != NULL) {
        out->status = MCS_IN_USE;
    } else {
        if (e == NULL)
            e = mco_entry_make(d, &s->key);
        if (e == NULL || !put_open(d, e, writer, s, now)) {
            if (e != NULL)
                mco_entry_settle(d, e);
            out->status = MCS_LIMIT;
            d->stats.refused++;
        } else {
            out->status = MCS_OK;
            out->version = e->put->version;
            places(d, e, out);
        }
    }
}

void mco_directory_start(struct mco_directory *d, uint32_t writer, const struct mco_start *s,
                         size_t n, uint64_t now, struct mco_started *out)
{
    bool rebuilding = mco_directory_rebuilding(d, now);

    d->stats.starts += n;
    for (size_t i = 0; i < n; i++) {
        if (i + AHEAD < n)
            mco_table_prefetch(d, s[i + AHEAD].key.hash);
        if (i + AHEAD / 2 < n)
            mco_table_prefetch_entry(d, s[i + AHEAD / 2].key.hash);
        start(d, writer, &s[i], now, rebuilding, &out[i]);
    }
}

/* A later life takes the place of what was there. */
static void switch_to(struct mco_directory *d, struct mco_entry *e, const struct mco_report *r,
                      uint32_t holder)
{
    if (e->version.token != 0 || e->version.sequence != 0)
        e->flags |= MCO_ENTRY_EARLIER;
    mco_duties_cancel(d, e);
    while (e->nholders > 0) {
        uint32_t old = e->holders[0] & MCO_SLOT_HOLDER;

        mco_entry_drop(d, e, 0);
        mco_duty_drop(d, e, old, &e->version);
    }
    e->flags &= (uint8_t)~MCO_ENTRY_REMOVED;
    e->version = r->version;
    e->size = r->size;
    e->crc = r->crc;
    mco_entry_add(d, e, holder, r->disk);
}

/*
 * May a life whose put this directory has not begun, or has undone, be taken for what it is? Where it was sealed it has taken the place
 * of what was there before, which must not be lost for nothing: it is refused only for what is later.
 */
static bool taken_over(const struct mco_directory *d, const struct mco_entry *e,
                       const struct mco_version *v)
{
    const struct mco_version newest = {d->o.token, d->sequence};

    if (mco_version_compare(v, &newest) > 0)
        return false; /* of a later leader, who will have it, or of none */
    return (e == NULL || mco_version_compare(v, &e->version) > 0) &&
           mco_version_compare(v, &d->floor) > 0;
}

static uint8_t given_up(struct mco_directory *d, struct mco_entry *e, uint32_t writer,
                        const struct mco_report *r)
{
    int slot = mco_entry_slot(e, writer);
    uint8_t status = MCS_NOT_OWNER;

    if (e->put != NULL && e->put->writer == writer &&
        mco_version_compare(&e->put->version, &r->version) == 0) {
        mco_put_over(d, e);
        d->stats.undone++;
        status = MCS_OK;
    }
    if (slot >= 0 && mco_version_compare(&e->version, &r->version) == 0) {
        mco_entry_drop(d, e, slot);
        status = MCS_OK;
    }
    mco_entry_settle(d, e);
    return status;
}

static uint8_t end(struct mco_directory *d, uint32_t writer, const struct mco_report *r)
{
    struct mco_entry *e = mco_entry_find(d, &r->key);
    uint32_t preferred = MCO_NO_HOLDER;
    uint8_t copies = r->copies;
    bool mine;
    int order;

    if (!r->there)
        return e == NULL ? MCS_NOT_OWNER : given_up(d, e, writer, r);
    mine = e != NULL && e->put != NULL && mco_version_compare(&e->put->version, &r->version) == 0;
    if (mine && e->put->writer != writer)
        return MCS_NOT_OWNER;
    order = e == NULL ? 1 : mco_version_compare(&r->version, &e->version);
    if (order < 0 && mine)
        mco_put_over(d, e);
    if (order < 0 || (order == 0 && e->nholders == 0 && !mine))
        return MCS_NOT_OWNER;
    if (order > 0 && !mine && !taken_over(d, e, &r->version))
        return MCS_NOT_OWNER;
    if (e == NULL)
        e = mco_entry_make(d, &r->key);
    if (e == NULL)
        return MCS_LIMIT;
    if (mine) {
        copies = e->put->replicas;
        preferred = e->put->preferred;
        mco_put_over(d, e);
    }
    if (order == 0 &&
        e->nholders == 0) { /* it was told before this, and removed or evicted since */
        mco_entry_settle(d, e);
        return MCS_OK;
    }
    if (order > 0)
        switch_to(d, e, r, writer);
    else
        mco_entry_add(d, e, writer, r->disk);
    if (copies > e->copies || order > 0)
        e->copies = copies > MCS_REPLICAS_MAX ? (uint8_t)MCS_REPLICAS_MAX : copies < 1 ? 1 : copies;
    mco_duties_place(d, e, preferred);
    return MCS_OK;
}

void mco_directory_end(struct mco_directory *d, uint32_t writer, const struct mco_report *r,
                       size_t n, uint64_t now, uint8_t *status)
{
    (void)now;
    d->stats.ends += n;
    for (size_t i = 0; i < n; i++) {
        if (i + AHEAD < n)
            mco_table_prefetch(d, r[i + AHEAD].key.hash);
        if (i + AHEAD / 2 < n)
            mco_table_prefetch_entry(d, r[i + AHEAD / 2].key.hash);
        status[i] = mco_member(d, writer) == NULL ? MCS_NOT_OWNER : end(d, writer, &r[i]);
        d->stats.refused += status[i] != MCS_OK;
    }
    mco_graves_trim(d);
}

/* ---- removal ------------------------------------------------------------------------------- */

static unsigned pending(const struct mco_directory *d, const struct mco_entry *e,
                        const struct mco_version *version)
{
    unsigned n = 0;

    for (const struct mco_duty *y = e->duties; y != NULL; y = y->next)
        n += y->kind == MCO_ORDER_DROP && mco_here(d, y->holder) &&
             mco_version_compare(&y->since, version) <= 0;
    return n;
}

enum mcs_status mco_directory_remove(struct mco_directory *d, const struct mco_key *key,
                                     struct mco_version *upto, uint64_t now, unsigned *left)
{
    struct mco_entry *e = mco_entry_find(d, key);
    enum mcs_status status = MCS_OK;

    d->stats.removes++;
    *left = 0;
    memset(upto, 0, sizeof(*upto));
    if (e != NULL)
        *upto = e->version;
    if (mco_directory_rebuilding(d, now)) {
        return MCS_REBUILDING; /* who has not reported yet may have it, too */
    } else if (e == NULL || status_of(d, e) == MCS_NOT_FOUND) {
        status = MCS_NOT_FOUND;
    } else {
        mco_duties_cancel(d, e);
        while (e->nholders > 0) {
            uint32_t old = e->holders[0] & MCO_SLOT_HOLDER;

            mco_entry_drop(d, e, 0);
            mco_duty_drop(d, e, old, &e->version);
        }
        e->flags |= MCO_ENTRY_REMOVED;
        mco_entry_bury(d, e);
    }
    if (e != NULL)
        *left = pending(d, e, upto);
    mco_graves_trim(d);
    return status;
}

unsigned mco_directory_pending(struct mco_directory *d, const struct mco_key *key,
                               const struct mco_version *version, uint64_t now)
{
    struct mco_entry *e = mco_entry_find(d, key);

    /* who has not reported yet may have an earlier life */
    return (e == NULL ? 0 : pending(d, e, version)) + mco_directory_rebuilding(d, now);
}

unsigned mco_directory_missing(struct mco_directory *d, const struct mco_key *key,
                               const struct mco_version *version, unsigned *copies)
{
    struct mco_entry *e = mco_entry_find(d, key);
    unsigned n = 0;

    if (copies != NULL)
        *copies = 0;
    if (e == NULL || mco_version_compare(&e->version, version) != 0)
        return 0;
    for (const struct mco_duty *y = e->duties; y != NULL; y = y->next)
        n += y->kind != MCO_ORDER_DROP && mco_version_compare(&y->version, version) == 0;
    if (copies != NULL)
        *copies = e->nholders;
    return n;
}

/* ---- reports --------------------------------------------------------------------------------- */

static void there(struct mco_directory *d, uint32_t holder, const struct mco_report *r)
{
    struct mco_version newest = {d->o.token, d->sequence};
    struct mco_entry *e = mco_entry_find(d, &r->key);
    const struct mco_duty *y;
    bool fits = true;
    int order;

    /* a leader that was started anew may have its former life's token: it goes on behind what that one gave */
    if (r->version.token == d->o.token && r->version.sequence > d->sequence &&
        r->version.sequence - d->sequence < SEQUENCE_JUMP)
        newest.sequence = d->sequence = r->version.sequence;
    if (mco_version_compare(&r->version, &newest) > 0) {
        d->stats.refused++; /* no leader has given it: nobody loses a true one for it */
        return;
    }
    if (e == NULL) {
        e = mco_entry_make(d, &r->key);
        if (e == NULL) {
            d->stats.refused++; /* it stays where it is, and is not found from elsewhere */
            return;
        }
        e->copies = 1;
    }
    if (e->version.token == 0 && e->version.sequence == 0 &&
        mco_version_compare(&r->version, &d->floor) <= 0) {
        e->version = d->floor;
        e->flags |= MCO_ENTRY_REMOVED;
        mco_entry_bury(d, e);
    }
    order = mco_version_compare(&r->version, &e->version);
    y = mco_duty_of(e, holder, MCO_ORDER_DROP);
    if (y != NULL && mco_version_compare(&r->version, &y->version) <= 0)
        return; /* it is about to be dropped */
    if (order < 0 || (order == 0 && (e->flags & MCO_ENTRY_REMOVED))) {
        mco_duty_drop(d, e, holder, order < 0 ? &r->version : &e->version);
        return;
    }
    if (order > 0)
        switch_to(d, e, r, holder);
    else
        fits = mco_entry_add(d, e, holder, r->disk);
    if (!fits)
        mco_duty_drop(d, e, holder, &r->version);
    if (r->copies > e->copies || (order > 0 && r->copies != 0))
        e->copies = r->copies > MCS_REPLICAS_MAX ? (uint8_t)MCS_REPLICAS_MAX : r->copies;
    /* one that was given is over when that is said: this may be an earlier event, and the copy still be made */
    if ((y = mco_duty_of(e, holder, MCO_ORDER_COPY)) != NULL && !y->once &&
        mco_version_compare(&y->version, &r->version) == 0)
        mco_duty_end(d, (struct mco_duty *)y);
}

static void not_there(struct mco_directory *d, uint32_t holder, const struct mco_report *r)
{
    struct mco_entry *e = mco_entry_find(d, &r->key);
    int slot;

    if (e == NULL)
        return;
    slot = mco_entry_slot(e, holder);
    if (slot < 0 || mco_version_compare(&r->version, &e->version) < 0)
        return;
    mco_entry_drop(d, e, slot);
    /* it was let go on purpose: no copy is made for it */
    if (e->copies > e->nholders)
        e->copies = e->nholders < 1 ? 1 : e->nholders;
    mco_entry_settle(d, e);
}

void mco_directory_report(struct mco_directory *d, uint32_t holder, const struct mco_report *r,
                          size_t n, uint64_t now)
{
    struct mco_member *h = mco_member(d, holder);

    if (h == NULL || h->state == MCO_HOLDER_GONE)
        return;
    h->heard = now;
    d->stats.reports += n;
    for (size_t i = 0; i < n; i++) {
        if (i + AHEAD < n)
            mco_table_prefetch(d, r[i + AHEAD].key.hash);
        if (i + AHEAD / 2 < n)
            mco_table_prefetch_entry(d, r[i + AHEAD / 2].key.hash);
        if (r[i].there)
            there(d, holder, &r[i]);
        else
            not_there(d, holder, &r[i]);
    }
    mco_graves_trim(d);
}

void mco_directory_report_begins(struct mco_directory *d, uint32_t holder)
{
    struct mco_member *h = mco_member(d, holder);

    if (h == NULL || h->state == MCO_HOLDER_GONE)
        return;
    h->told = false;
    if (d->rebuilt)
        mco_holder_stale(h); /* what it has is not what it has told */
    h->state = MCO_HOLDER_REPORTING;
    h->turn = (h->turn + 1) & 7;
    h->marked = 0;
    /* what the report before did not tell again may be in this one: its end says what there is to sweep */
    h->scan &= (uint8_t)~MCO_SCAN_SWEEP;
    h->scans &= (uint8_t)~MCO_SCAN_SWEEP;
}

void mco_directory_report_ends(struct mco_directory *d, uint32_t holder, uint64_t now)
{
    struct mco_member *h = mco_member(d, holder);

    if (h == NULL || h->state == MCO_HOLDER_GONE || h->told)
        return;
    h->heard = now;
    h->told = true;
    h->state = MCO_HOLDER_HERE;
    if (h->marked != h->objects)
        h->scan |= MCO_SCAN_SWEEP;
    d->repair |= d->lacking;
    for (size_t i = 0; i < d->nexpected; i++)
        if (strcmp(d->expected[i].address, h->info.address) == 0)
            d->expected[i].heard = true;
}
