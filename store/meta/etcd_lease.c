/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The lease. When to renew follows from when it is known to end, never from when it was last tried:
 * after a third of what is left, so that several tries fit in before the end. What is known is
 * careful: the lease's time runs from when the request was sent. Even past the end the old lease is
 * asked for first: etcd lengthens leases after an election, and only its answer settles the matter.
 */
#include "etcd.h"
#include "shm/failpoint.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>

#define TRY_MIN_MS 500u

static void failed(struct mcm_service *s, struct mcm_call *c)
{
    struct mcm_etcd *e = mcm_etcd_of(s);

    e->lease_at = mcm_now() + mcm_backoff(s, e->lease_failures++);
    if (c->res)
        return;
    s->now.bad_replies++;
    mcm_failure(s, "etcd's answer about the lease makes no sense");
}

static void lost(struct mcm_service *s)
{
    struct mcm_etcd *e = mcm_etcd_of(s);

    mcm_log(s, MCM_LOG_WARNING,
            "metadata: the lease %" PRIx64 " is gone; taking a new one and registering again",
            (uint64_t)e->lease);
    s->now.leases_lost++;
    s->now.lease = 0;
    e->lease = 0;
    e->lease_lost = true;
    e->lease_failures = 0;
    /* many lose theirs at the same time: not all come back in the same instant */
    e->lease_at = mcm_now() + mcm_random(s) % 200;
    mcm_keep_all_missing(s);
}

static void held(struct mcm_service *s, uint64_t sent, uint64_t ttl_s)
{
    struct mcm_etcd *e = mcm_etcd_of(s);
    uint64_t now = mcm_now();

    e->lease_ends = sent + ttl_s * 1000;
    e->lease_failures = 0;
    e->lease_at = now;
    if (e->lease_ends > now)
        e->lease_at += mcm_jitter(s, (e->lease_ends - now) / 3);
}

static void renewed(struct mcm_service *s, struct mcm_call *c)
{
    struct mcm_etcd *e = mcm_etcd_of(s);
    const cJSON *result;
    bool bad = false;
    uint64_t ttl = 0;
    int64_t id;

    e->lease_busy = false;
    if (c->res == -ENOENT || MCS_FAIL(lease_renewed) != 0) {
        lost(s);
        return;
    }
    result = c->res ? NULL : mcm_json_object(c->json, "result", &bad);
    id = mcm_json_i64(result, "ID", &bad);
    ttl = mcm_json_u64(result, "TTL", &bad);
    if (c->res || bad || !result || id != e->lease || ttl > 1000000)
        failed(s, c);
    else if (!ttl)
        lost(s);
    else
        held(s, c->sent, ttl);
}

static void granted(struct mcm_service *s, struct mcm_call *c)
{
    struct mcm_etcd *e = mcm_etcd_of(s);
    bool bad = false;
    uint64_t ttl = s->o.ttl_s;
    int64_t id = e->asked;

    e->lease_busy = false;
    bad = MCS_FAIL(lease_granted) != 0;
    if (!c->res) {
        id = mcm_json_i64(c->json, "ID", &bad);
        ttl = mcm_json_u64(c->json, "TTL", &bad);
    }
    /* "already exists": an earlier try got through, and only its answer was lost */
    if ((c->res && c->res != -EEXIST) || bad || id != e->asked || !ttl || ttl > 1000000) {
        failed(s, c);
        if (c->res == -EACCES || c->res == -ENOSPC)
            mcm_keep_refuse(s, c->res, c->text);
        return;
    }
    e->lease = id;
    s->now.lease = (uint64_t)id;
    e->asked = 0;
    held(s, c->sent, ttl);
    if (c->res == -EEXIST)
        e->lease_at = mcm_now(); /* how old it is, only a renewal tells */
    if (e->lease_lost)
        mcm_log(s, MCM_LOG_INFO, "metadata: the new lease is %" PRIx64, (uint64_t)id);
    e->lease_lost = false;
    mcm_keep_go(s);
}

static void grant(struct mcm_service *s, uint64_t now)
{
    struct mcm_etcd *e = mcm_etcd_of(s);
    struct mcm_call *c = mcm_etcd_call(s, "/v3/lease/grant", now + s->o.timeout_ms, granted, NULL);

    if (!c) {
        e->lease_at = now + mcm_backoff(s, e->lease_failures++);
        return;
    }
    /* the id is ours to choose: a grant that is tried twice leaves no second lease behind */
    if (!e->asked)
        e->asked = (int64_t)(mcm_random(s) & INT64_MAX) | 1;
    mcm_text_add(&c->body, "{\"TTL\":\"%" PRIu64 "\",\"ID\":\"%" PRId64 "\"}", s->o.ttl_s,
                 e->asked);
    c->urgent = true;
    e->lease_busy = true;
    mcm_call_start(s, c);
}

static void renew(struct mcm_service *s, uint64_t now)
{
    struct mcm_etcd *e = mcm_etcd_of(s);
    uint64_t left = e->lease_ends > now ? e->lease_ends - now : 0;
    uint64_t limit = left / 3 > TRY_MIN_MS ? left / 3 : TRY_MIN_MS;
    struct mcm_call *c;

    /* one that is swallowed must leave time for others */
    if (!left || limit > s->o.timeout_ms)
        limit = s->o.timeout_ms;
    c = mcm_etcd_call(s, "/v3/lease/keepalive", now + limit, renewed, NULL);
    if (!c) {
        e->lease_at = now + mcm_backoff(s, e->lease_failures++);
        return;
    }
    mcm_text_add(&c->body, "{\"ID\":\"%" PRId64 "\"}", e->lease);
    c->urgent = true;
    e->lease_busy = true;
    mcm_call_start(s, c);
}

void mcm_lease_tick(struct mcm_service *s, uint64_t now)
{
    struct mcm_etcd *e = mcm_etcd_of(s);

    if (e->lease_busy)
        return;
    if (now < e->lease_at)
        mcm_service_at(s, e->lease_at);
    else if (e->lease)
        renew(s, now);
    else
        grant(s, now);
}

void mcm_lease_doubt(struct mcm_service *s)
{
    mcm_etcd_of(s)->lease_at = 0;
    mcm_service_at(s, 0);
}

static void revoked(struct mcm_service *s, struct mcm_call *c)
{
    if (c->res && c->res != -ENOENT && mcm_etcd_of(s)->lease)
        mcm_log(s, MCM_LOG_WARNING,
                "metadata: the lease could not be given back and ends by itself within %" PRIu64
                " s: %s",
                s->o.ttl_s, c->text);
}

void mcm_lease_stop(struct mcm_service *s, uint64_t deadline)
{
    struct mcm_etcd *e = mcm_etcd_of(s);
    int64_t id = e->lease ? e->lease : e->asked;
    struct mcm_call *c;

    if (!id)
        return;
    c = mcm_etcd_call(s, "/v3/lease/revoke", deadline, revoked, NULL);
    if (!c)
        return;
    mcm_text_add(&c->body, "{\"ID\":\"%" PRId64 "\"}", id);
    c->last_words = c->urgent = true;
    mcm_call_start(s, c);
}
