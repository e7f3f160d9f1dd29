/* SPDX-License-Identifier: Apache-2.0 */
#include "keep.h"

#include "record.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static void key_of_name(const struct mcm_service *s, const char *name, char *key, size_t size)
{
    snprintf(key, size, "%s%s", s->prefix, name);
}

static uint64_t hash_of(const char *key)
{
    uint64_t h = 14695981039346656037u; /* FNV-1a */

    for (const unsigned char *p = (const unsigned char *)key; *p; p++)
        h = (h ^ *p) * 1099511628211u;
    return h;
}

struct mcm_kept *mcm_keep_find(struct mcm_service *s, const char *key)
{
    uint64_t hash = hash_of(key);
    struct mcm_kept *k;

    for (k = s->kept; k && (k->hash != hash || strcmp(k->key, key) != 0); k = k->next)
        ;
    return k;
}

static void due(struct mcm_service *s, struct mcm_kept *k, uint64_t when)
{
    k->due = when;
    if (when < s->kept_at)
        s->kept_at = when;
}

static struct mcm_kept *add(struct mcm_service *s, const char *key)
{
    struct mcm_kept *k = calloc(1, sizeof(*k));

    if (!k)
        return NULL;
    snprintf(k->key, sizeof(k->key), "%s", key);
    k->hash = hash_of(key);
    k->next = s->kept;
    s->kept = k;
    s->kept_n++;
    return k;
}

static void discard(struct mcm_service *s, struct mcm_kept *k)
{
    struct mcm_kept **p = &s->kept;

    while (*p != k)
        p = &(*p)->next;
    *p = k->next;
    s->kept_n--;
    mcm_text_fini(&k->value);
    free(k);
}

static void answer(struct mcm_service *s, struct mcm_request **r, int res, const char *text)
{
    struct mcm_request *is = *r;

    *r = NULL;
    if (is)
        mcm_answer(s, is, res, "%s", text);
}

static void put(struct mcm_service *s, struct mcm_request *r, struct mcm_kept *k)
{
    answer(s, &k->put, -ECANCELED, "a later value of the same key has come");
    answer(s, &k->gone, 0, "");
    mcm_text_fini(&k->value);
    k->claim = r->kind == MCM_REGISTER;
    if (k->claim) {
        k->record = r->record;
        k->since = (uint64_t)time(NULL);
        mcm_record_encode(&k->record, &(struct mcm_times){.since = k->since}, &k->value);
    } else {
        k->value = r->value;
        r->value = (struct mcm_text){0};
    }
    k->version++;
    k->wanted = true;
    k->present = k->lost = false;
    k->failures = 0;
    k->put = r;
    due(s, k, 0);
}

static void drop(struct mcm_service *s, struct mcm_request *r, struct mcm_kept *k)
{
    if (r->kind == MCM_UNREGISTER && k->record.incarnation != r->record.incarnation) {
        mcm_answer(s, r, 0, "%s", ""); /* a later one has the name */
        return;
    }
    answer(s, &k->put, -ECANCELED, "it was withdrawn meanwhile");
    answer(s, &k->gone, -ECANCELED, "it was asked for again");
    if (r->kind == MCM_DELETE)
        k->maybe = true;
    k->wanted = false;
    k->failures = 0;
    k->gone = r;
    due(s, k, 0);
}

void mcm_keep_request(struct mcm_service *s, struct mcm_request *r)
{
    char key[sizeof(((struct mcm_kept *)0)->key)];
    bool puts = r->kind == MCM_REGISTER || r->kind == MCM_PUT;
    struct mcm_kept *k;

    if (r->kind == MCM_REGISTER || r->kind == MCM_UNREGISTER)
        key_of_name(s, r->record.name, key, sizeof(key));
    else
        snprintf(key, sizeof(key), "%s", r->key);
    k = mcm_keep_find(s, key);
    if (!k && r->kind == MCM_UNREGISTER) {
        mcm_answer(s, r, 0, "%s", "");
        return;
    }
    if (!k)
        k = add(s, key);
    if (!k)
        mcm_answer(s, r, -ENOMEM, "no memory to keep %s", key);
    else if (puts)
        put(s, r, k);
    else
        drop(s, r, k);
}

int mcm_keep_own(struct mcm_service *s, const char *key, const char *value)
{
    struct mcm_kept *k = add(s, key);

    if (!k)
        return -ENOMEM;
    mcm_text_add(&k->value, "%s", value);
    k->wanted = true;
    due(s, k, 0);
    return k->value.failed ? -ENOMEM : 0;
}

void mcm_keep_stray(struct mcm_service *s, const char *key, const struct mcm_record *r,
                    const void *value, size_t size)
{
    struct mcm_kept *k = add(s, key);

    if (!k)
        return;
    k->claim = true;
    k->record = *r;
    mcm_text_bytes(&k->value, value, size);
    k->maybe = true;
    due(s, k, 0);
}

/* It did not come about, for good. What may have got there of a claim has to go; a plain key may
 * hold what another wrote, and stays. */
static void give_up(struct mcm_service *s, struct mcm_kept *k, int res, const char *text)
{
    answer(s, &k->put, res, text);
    k->wanted = false;
    k->maybe = k->maybe && k->claim;
    k->failures = 0;
    due(s, k, 0);
}

/* Requests that have waited long enough. The work goes on without them. */
static void expire(struct mcm_service *s, struct mcm_kept *k, uint64_t now)
{
    char text[256];
    const char *why = *s->now.error ? s->now.error : "the service does not answer";

    if (k->put && now >= k->put->deadline) {
        snprintf(text, sizeof(text), "not registered within the time limit: %.200s", why);
        give_up(s, k, -ECOMM, text);
    }
    if (k->gone && now >= k->gone->deadline) {
        snprintf(text, sizeof(text), "not removed yet, that goes on: %.200s", why);
        answer(s, &k->gone, -ECOMM, text);
    }
    if (k->put && k->put->deadline < s->kept_at)
        s->kept_at = k->put->deadline;
    if (k->gone && k->gone->deadline < s->kept_at)
        s->kept_at = k->gone->deadline;
}

static void work(struct mcm_service *s, struct mcm_kept *k, uint64_t now)
{
    uint64_t deadline = now + s->o.timeout_ms;

    if (mcm_stopping(s))
        deadline = s->stop_by;
    if (k->wanted && k->put && k->put->deadline < deadline)
        deadline = k->put->deadline;
    k->busy = true;
    k->writing = k->wanted;
    k->busy_version = k->version;
    s->kept_busy++;
    if (k->wanted) {
        k->maybe = true;
        s->ops->keep(s, k, deadline);
    } else {
        s->ops->drop(s, k, deadline);
    }
}

void mcm_keep_tick(struct mcm_service *s, uint64_t now)
{
    struct mcm_kept *k, *next;

    if (now < s->kept_at) {
        mcm_service_at(s, s->kept_at);
        return;
    }
    s->kept_at = MCM_NEVER;
    if (mcm_stopping(s) && s->ops->leases)
        return;
    for (k = s->kept; k; k = next) {
        next = k->next;
        expire(s, k, now);
        if (k->busy)
            continue;
        if (k->wanted && k->present && (!k->renew || now < k->renew)) {
            if (k->renew && k->renew < s->kept_at)
                s->kept_at = k->renew;
            continue;
        }
        if (!k->wanted && !k->maybe) {
            answer(s, &k->gone, 0, "");
            discard(s, k);
            continue;
        }
        if (now < k->due && k->due < s->kept_at)
            s->kept_at = k->due;
        if (now < k->due || s->kept_busy >= MCM_KEEP_PARALLEL)
            continue; /* the end of a call brings the next turn */
        work(s, k, now);
    }
    mcm_service_at(s, s->kept_at);
}

static void kept(struct mcm_service *s, struct mcm_kept *k, uint64_t revision)
{
    k->revision = revision;
    k->failures = 0;
    if (k->busy_version != k->version || !k->wanted)
        return; /* another value or the removal comes next */
    if (k->lost)
        mcm_log(s, MCM_LOG_INFO, "metadata: '%s' is this agent's again", k->key);
    k->present = true;
    k->lost = false;
    answer(s, &k->put, 0, "");
}

static void not_kept(struct mcm_service *s, struct mcm_kept *k, int res,
                     const struct mcm_record *holder, const char *text)
{
    uint64_t now = mcm_now();

    due(s, k, now + mcm_backoff(s, k->failures++));
    if (k->busy_version != k->version || !k->wanted)
        return;
    if (k->put && res == -ECOMM && now < k->put->deadline)
        return; /* once more */
    if (k->put) {
        if (res == -EEXIST && holder) {
            k->put->has_record = true;
            k->put->found = *holder;
        }
        if (res == -EEXIST) /* what is there is another's */
            k->maybe = false;
        give_up(s, k, res, text);
        return;
    }
    if (res == -EEXIST) {
        if (!k->lost)
            mcm_log(s, MCM_LOG_WARNING,
                    "metadata: '%s' was lost to agent %s while this one had no lease; peers find "
                    "that one until it ends",
                    k->key, holder ? holder->agent : "(unknown)");
        k->lost = true;
        k->present = false;
        due(s, k, now + mcm_jitter(s, s->o.ttl_s * 500));
    }
}

void mcm_keep_done(struct mcm_service *s, struct mcm_kept *k, int res, uint64_t revision,
                   const struct mcm_record *holder, const char *text)
{
    k->busy = false;
    s->kept_busy--;
    due(s, k, 0);
    if (k->writing && !res)
        kept(s, k, revision);
    else if (k->writing)
        not_kept(s, k, res, holder, text);
    else if (res)
        due(s, k, mcm_now() + mcm_backoff(s, k->failures++));
    else
        k->maybe = k->present = false;
}

void mcm_keep_wait(struct mcm_service *s, struct mcm_kept *k)
{
    k->busy = k->maybe = false;
    s->kept_busy--;
    k->due = MCM_NEVER;
}

void mcm_keep_refuse(struct mcm_service *s, int res, const char *text)
{
    for (struct mcm_kept *k = s->kept; k; k = k->next)
        if (k->put && !k->busy)
            give_up(s, k, res, text);
}

void mcm_keep_go(struct mcm_service *s)
{
    for (struct mcm_kept *k = s->kept; k; k = k->next)
        due(s, k, 0);
}

void mcm_keep_missing(struct mcm_service *s, struct mcm_kept *k)
{
    k->present = false;
    k->failures = 0;
    due(s, k, 0);
}

void mcm_keep_all_missing(struct mcm_service *s)
{
    for (struct mcm_kept *k = s->kept; k; k = k->next) {
        /* a plain key that shall go may be another's, and outlive our lease */
        if (!k->busy && (k->claim || k->wanted))
            k->maybe = false;
        k->version++; /* what is under way speaks of the old life */
        mcm_keep_missing(s, k);
    }
}

void mcm_keep_cancel(struct mcm_service *s)
{
    for (struct mcm_kept *k = s->kept; k; k = k->next) {
        answer(s, &k->put, -ECANCELED, "the agent ends");
        answer(s, &k->gone, -ECANCELED, "the agent ends");
        k->wanted = k->present = false;
        k->failures = 0;
        due(s, k, 0);
    }
}

void mcm_keep_free(struct mcm_service *s)
{
    while (s->kept)
        discard(s, s->kept);
}
