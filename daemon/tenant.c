/* SPDX-License-Identifier: Apache-2.0 */
#include "tenant.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "rule.h"
#include "session.h"
#include "shm/atomic.h"

#define IDLE_MAX 256u   /* tenants without a session that are remembered, with their counters */
#define SAVED_PARTS 50u /* unused time counts for a second by this */

const char *const mcd_limit_words[MCD_LIMIT_COUNT] = {"memory", "sessions", "queues", "tasks",
                                                      "batches"};

uint64_t mcd_tenant_id(const char *name)
{
    uint64_t h = 14695981039346656037u; /* FNV-1a */

    for (const unsigned char *p = (const unsigned char *)name; *p != '\0'; p++)
        h = (h ^ *p) * 1099511628211u;
    return h | UINT64_C(1) << 63;
}

static void set_limits(struct mcd_tenant *t, const struct mcd_tenant_rule *r)
{
    bool other_rate = t->limits.rate != r->rate;

    t->limits = *r;
    if (r->name[0] != '\0') /* it had none while its section was gone */
        memcpy(t->name, r->name, sizeof(t->name));
    /* partners: mcd_share_charge(), mcd_tenant_may(), mcd_tenant_admit() */
    mcs_store_relaxed(&t->scale, MCD_SHARE_ONE / r->weight);
    mcs_store_relaxed(&t->rate, r->rate);
    mcs_store_relaxed(&t->tasks_max, r->tasks);
    mcs_store_relaxed(&t->batches_max, r->batches);
    /* What it owes was reckoned at the other rate: days, where that was a few bytes a second. After the rate, so
     * that mcd_tenant_pay(), the partner, which loses its exchange to this, finds the new one. */
    if (other_rate)
        mcs_store_release(&t->due, UINT64_C(0));
}

/* The oldest one without a session goes when there are too many. */
static void forget_one(struct mcd_tenants *all)
{
    struct mcd_tenant **oldest = NULL;
    unsigned idle = 0;

    for (struct mcd_tenant **link = &all->list; *link != NULL; link = &(*link)->next) {
        if ((*link)->refs != 0)
            continue;
        oldest = link; /* newer ones are in front */
        idle++;
    }
    if (idle > IDLE_MAX) {
        struct mcd_tenant *t = *oldest;

        *oldest = t->next;
        all->count--;
        free(t);
    }
}

/* One more that has it; made when it is new. */
static int get(struct mcd_tenants *all, const struct mcd_tenant_rule *r, uint64_t id,
               struct mcd_tenant **out)
{
    struct mcd_tenant *t = all->list;

    while (t != NULL && t->id != id)
        t = t->next;
    if (t == NULL) {
        t = aligned_alloc(64, (sizeof(*t) + 63) & ~(size_t)63);
        if (t == NULL)
            return -ENOMEM;
        memset(t, 0, sizeof(*t));
        t->id = id;
        t->named = id >> 63 != 0;
        snprintf(t->name, sizeof(t->name), t->named ? "%#" PRIx64 : "%" PRIu64, id);
        t->next = all->list;
        all->list = t;
        all->count++;
    }
    if (t->refs++ == 0)
        set_limits(t, r);
    *out = t;
    return 0;
}

int mcd_tenant_get(struct mcd_tenants *all, const struct mcd_config *c, uid_t uid,
                   const gid_t *gids, size_t ngids, struct mcd_tenant **out)
{
    const struct mcd_tenant_rule *r = mcd_tenant_rule_of(c, uid, gids, ngids);

    return get(all, r, r->name[0] != '\0' ? mcd_tenant_id(r->name) : uid, out);
}

int mcd_tenant_get_again(struct mcd_tenants *all, const struct mcd_config *c, uint64_t id,
                         struct mcd_tenant **out)
{
    const struct mcd_tenant_rule *r = &c->tenants[0];

    for (uint64_t i = 1; i <= c->ntenants; i++)
        if (mcd_tenant_id(c->tenants[i].name) == id)
            r = &c->tenants[i];
    return get(all, r, id, out);
}

void mcd_tenant_put(struct mcd_tenants *all, struct mcd_tenant *t)
{
    if (--t->refs == 0)
        forget_one(all);
}

void mcd_tenants_adopt(struct mcd_tenants *all, const struct mcd_config *c)
{
    for (struct mcd_tenant *t = all->list; t != NULL; t = t->next) {
        if (!t->named) {
            set_limits(t, &c->tenants[0]);
            continue;
        }
        for (uint64_t i = 1; i <= c->ntenants; i++)
            if (mcd_tenant_id(c->tenants[i].name) == t->id)
                set_limits(t, &c->tenants[i]);
    }
}

void mcd_tenants_fini(struct mcd_tenants *all)
{
    while (all->list != NULL) {
        struct mcd_tenant *t = all->list;

        all->list = t->next;
        free(t);
    }
    all->count = 0;
}

void mcd_tenants_sum(struct mcd_tenants *all, const struct mcd_session *sessions)
{
    for (struct mcd_tenant *t = all->list; t != NULL; t = t->next)
        t->sums = (struct mcd_tenant_sums){
            .tasks = t->tasks_gone, .bytes = t->bytes_gone, .caller_bytes = t->caller_bytes_gone};
    for (const struct mcd_session *s = sessions; s != NULL; s = s->next) {
        for (const struct mcd_queue *q = s->queues; q != NULL; q = q->next) {
            struct mcd_tenant_sums *sums = &s->account->sums;
            struct mcd_reported reported = {0};

            mcd_queue_reported(q, &reported);
            sums->tasks += mcs_load_relaxed(&q->stats->sums.tasks);
            sums->bytes += mcs_load_relaxed(&q->stats->sums.bytes);
            sums->caller_bytes += reported.caller_bytes;
        }
    }
}

bool mcd_tenant_allows(struct mcd_tenant *t, enum mcd_limit what, uint64_t have, uint64_t more)
{
    const uint64_t limits[MCD_LIMIT_COUNT] = {
        [MCD_LIMIT_MEMORY] = t->limits.memory,
        [MCD_LIMIT_SESSIONS] = t->limits.sessions,
        [MCD_LIMIT_QUEUES] = t->limits.queues,
    };
    uint64_t limit = limits[what];

    if (limit == 0 || (have <= limit && more <= limit - have))
        return true;
    mcs_fetch_add(&t->refused[what], 1);
    return false;
}

/* ---- engines --------------------------------------------------------------------- */

enum mcd_limit mcd_tenant_admit(struct mcd_tenant *t, uint32_t of_batch)
{
    uint64_t tasks_max = mcs_load_relaxed(&t->tasks_max); /* partner: set_limits() */
    uint64_t batches_max = mcs_load_relaxed(&t->batches_max);
    enum mcd_limit limit = MCD_LIMIT_TASKS;

    /* Each engine adds before it looks, so that several of them together admit no more than the limit. */
    if (mcs_fetch_add(&t->tasks, 1) >= tasks_max && tasks_max != 0)
        goto refuse;
    limit = MCD_LIMIT_BATCHES;
    if (of_batch == 0 && mcs_fetch_add(&t->batches, 1) >= batches_max && batches_max != 0) {
        mcs_fetch_add(&t->batches, UINT64_MAX);
        goto refuse;
    }
    return MCD_LIMIT_COUNT;

refuse:
    mcs_fetch_add(&t->tasks, UINT64_MAX);
    mcs_fetch_add(&t->refused[limit], 1);
    return limit;
}

void mcd_tenant_release(struct mcd_tenant *t, uint32_t of_batch)
{
    mcs_fetch_add(&t->tasks, UINT64_MAX);
    if (of_batch == 0)
        mcs_fetch_add(&t->batches, UINT64_MAX);
}

bool mcd_tenant_may(const struct mcd_tenant *t, uint64_t now)
{
    /* partners: set_limits(), and mcd_tenant_pay() in any engine */
    return mcs_load_relaxed(&t->rate) == 0 || mcs_load_relaxed(&t->due) <= now;
}

void mcd_tenant_pay(struct mcd_tenant *t, uint64_t bytes, uint64_t now, uint64_t tick_hz)
{
    uint64_t saved = tick_hz / SAVED_PARTS, due, next;

    /* partners: set_limits(), and the exchange below in any engine */
    due = mcs_load_acquire(&t->due);
    do {
        uint64_t rate = mcs_load_relaxed(&t->rate);

        if (rate == 0)
            return;
        next = now > saved && due < now - saved ? now - saved : due;
        next += (uint64_t)((unsigned __int128)bytes * tick_hz / rate);
    } while (!mcs_compare_exchange(&t->due, &due, next));
}

uint64_t mcd_tenant_throttled_ms(const struct mcd_tenant *t, uint64_t tick_hz)
{
    /* partner: has_leave() in share.c */
    return (uint64_t)((unsigned __int128)mcs_load_relaxed(&t->throttled) * 1000 / tick_hz);
}
