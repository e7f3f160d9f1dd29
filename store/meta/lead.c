/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who leads the store's masters: whoever's key PREFIX/store/leader is, created where there was none, under a short lease of
 * its own. The token is the revision at which the key was written (plus a base, see below), so later leaders have greater ones.
 * The leader's time runs from when a renewal was sent, so it ends here before it ends in etcd; whoever acts as the leader
 * compares that time with the clock first.
 *
 * Everybody else asks who it is about once a second. A key of this agent's own address that is not of this lease is an
 * earlier life's, or a late write of its own: it is replaced, which is a later revision.
 *
 * An etcd that was emptied begins with small revisions again. Agents remember the greatest token; the leader that hears of a greater one
 * than its own writes its key again with a base that lifts it above, and forgets with it who was noted to have objects.
 */
#include "etcd.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TTL_S 5u
#define LOOK_MS 1000u
#define HERD_MS 300u /* candidates that see an empty place do not all try in the same instant */
#define HOLDERS_MAX 4096u

static struct mcm_lead *lead_of(struct mcm_service *s)
{
    return &mcm_etcd_of(s)->lead;
}

/* Tells the front, when it is news. */
static void publish(struct mcm_service *s, const struct mcm_leader *leader)
{
    struct mcm_leader *known = &s->lead.known;
    bool news;

    pthread_mutex_lock(&s->lock);
    news = known->mine != leader->mine || known->token != leader->token ||
           strcmp(known->address, leader->address) != 0;
    *known = *leader;
    pthread_mutex_unlock(&s->lock);
    if (news)
        mcm_tell(s, MCM_NEWS_STATE, NULL, NULL, (struct mcm_stamp){0});
}

static void look(struct mcm_service *s, uint64_t ms)
{
    struct mcm_lead *l = lead_of(s);

    l->look_at = mcm_now() + ms;
    mcm_service_at(s, l->look_at);
}

static void failed(struct mcm_service *s)
{
    look(s, mcm_backoff(s, lead_of(s)->failures++));
}

static void publish_mine(struct mcm_service *s)
{
    struct mcm_lead *l = lead_of(s);
    struct mcm_leader leader = {
        .incarnation = s->o.incarnation, .token = l->token, .mine = true, .until = l->ends};

    snprintf(leader.address, sizeof(leader.address), "%s", s->o.address);
    publish(s, &leader);
}

static void lost(struct mcm_service *s, const char *why)
{
    struct mcm_lead *l = lead_of(s);

    if (l->leading)
        mcm_log(s, MCM_LOG_WARNING, "metadata: this agent does not lead the store any more: %s",
                why);
    l->leading = false;
    l->lease = 0;
    publish(s, &(struct mcm_leader){0});
    look(s, 0);
}

/* -- the key's value -- */

static bool decode(const struct mcm_kv *kv, struct mcm_leader *out, uint64_t *base)
{
    cJSON *json = NULL;
    bool bad = false;
    const char *address;

    *out = (struct mcm_leader){0};
    if (mcm_json_parse(kv->value ? kv->value : "", kv->value_size, &json) != 0)
        return false;
    address = mcm_json_string(json, "address", &bad);
    out->incarnation = mcm_json_u64(json, "incarnation", &bad);
    *base = mcm_json_u64(json, "base", &bad);
    if (address && strlen(address) < sizeof(out->address))
        strcpy(out->address, address);
    bad = bad || !out->address[0] || !out->incarnation || *base > UINT64_MAX / 2;
    out->token = *base + kv->modified;
    cJSON_Delete(json);
    return !bad;
}

static void add_value(struct mcm_service *s, struct mcm_text *t, uint64_t base)
{
    struct mcm_text value = {0};

    mcm_text_add(&value, "{\"version\":%u,\"address\":", MCM_VERSION);
    mcm_text_quoted(&value, s->o.address);
    mcm_text_add(&value, ",\"incarnation\":\"%" PRIu64 "\",\"base\":\"%" PRIu64 "\"}",
                 s->o.incarnation, base);
    mcm_etcd_bytes(t, "value", value.at ? value.at : "", value.size);
    t->failed = t->failed || value.failed;
    mcm_text_fini(&value);
}

/* -- whose are the objects? -- */

struct holders {
    char (*all)[MCM_ADDRESS_MAX];
    size_t n, room;
    bool failed, members;
};

static void add_holder(struct holders *h, const char *address, size_t size)
{
    if (size == 0 || size >= MCM_ADDRESS_MAX || memchr(address, 0, size) || h->n == HOLDERS_MAX)
        return;
    for (size_t i = 0; i < h->n; i++)
        if (strncmp(h->all[i], address, size) == 0 && !h->all[i][size])
            return;
    if (h->n == h->room) {
        size_t room = h->room ? h->room * 2 : 16;
        void *more = realloc(h->all, room * sizeof(*h->all));

        if (!more) {
            h->failed = true;
            return;
        }
        h->all = more;
        h->room = room;
    }
    memcpy(h->all[h->n], address, size);
    h->all[h->n++][size] = '\0';
}

/* A key under PREFIX/store/: one holder's, or what the leader before has noted. */
static void take_holders(struct mcm_service *s, struct holders *h, const struct mcm_kv *kv)
{
    size_t skip = strlen(s->o.prefix) + strlen("/store/");
    const char *rest = kv->key_size > skip ? kv->key + skip : "";

    if (strncmp(rest, "holders/", 8) == 0)
        add_holder(h, rest + 8, strlen(rest + 8));
    if (strcmp(rest, "members") != 0)
        return;
    h->members = true;
    for (const char *line = kv->value, *end; line && *line; line = *end ? end + 1 : end) {
        end = strchrnul(line, '\n');
        add_holder(h, line, (size_t)(end - line));
    }
}

static void listed(struct mcm_service *s, struct mcm_call *c)
{
    struct mcm_lead *l = lead_of(s);
    struct holders h = {0};
    bool bad = false;
    const cJSON *kvs = c->res ? NULL : mcm_json_array(c->json, "kvs", &bad);

    l->busy = false;
    for (const cJSON *o = kvs ? kvs->child : NULL; o; o = o->next) {
        struct mcm_kv kv;

        if (mcm_kv_read(o, &kv) == 0)
            take_holders(s, &h, &kv);
        mcm_kv_fini(&kv);
    }
    if (c->res || bad || !l->lease || h.failed) {
        free(h.all);
        failed(s); /* the lead is this agent's, and is told once it is known whom to wait for */
        return;
    }
    pthread_mutex_lock(&s->lock);
    free(s->lead.holders);
    s->lead.holders = h.all;
    s->lead.nholders = h.n;
    s->lead.members = h.members;
    l->noted = s->lead.note_new; /* what was to be noted was so in an earlier reign */
    pthread_mutex_unlock(&s->lock);
    l->leading = true;
    l->failures = 0;
    l->note_at = 0;
    mcm_log(s, MCM_LOG_INFO, "metadata: this agent leads the store, token %" PRIu64, l->token);
    publish_mine(s);
    look(s, mcm_jitter(s, LOOK_MS));
}

static void list(struct mcm_service *s, uint64_t now)
{
    struct mcm_call *c = mcm_etcd_call(s, "/v3/kv/range", now + s->o.timeout_ms, listed, NULL);
    struct mcm_text from = {0}, end = {0};

    if (!c) {
        failed(s);
        return;
    }
    mcm_text_add(&from, "%s/store/", s->o.prefix);
    mcm_text_add(&end, "%s/store0", s->o.prefix); /* '0' follows '/' */
    mcm_text_add(&c->body, "{");
    mcm_etcd_bytes(&c->body, "key", from.at, from.size);
    mcm_text_add(&c->body, ",");
    mcm_etcd_bytes(&c->body, "range_end", end.at, end.size);
    mcm_text_add(&c->body, ",\"limit\":\"%u\"}", HOLDERS_MAX * 2);
    c->body.failed = c->body.failed || from.failed || end.failed;
    mcm_text_fini(&from);
    mcm_text_fini(&end);
    c->urgent = true;
    lead_of(s)->busy = true;
    mcm_call_start(s, c);
}

/* -- what the next leader is to know -- */

static void noted(struct mcm_service *s, struct mcm_call *c)
{
    struct mcm_lead *l = lead_of(s);
    bool bad = false;

    l->busy = false;
    if (c->res) {
        l->note_at = mcm_now() + mcm_backoff(s, l->failures++);
        mcm_service_at(s, l->note_at);
    } else if (mcm_json_bool(c->json, "succeeded", &bad) && !bad) {
        l->noted = l->noting;
    } else {
        look(s, 0); /* the lead is another's */
        l->note_at = mcm_now() + LOOK_MS;
    }
}

/* Only as long as the leader's key is as this agent has written it. */
static void note(struct mcm_service *s, uint64_t now)
{
    struct mcm_lead *l = lead_of(s);
    struct mcm_call *c = mcm_etcd_call(s, "/v3/kv/txn", now + s->o.timeout_ms, noted, NULL);
    struct mcm_text key = {0};

    if (!c) {
        l->note_at = now + mcm_backoff(s, l->failures++);
        return;
    }
    mcm_text_add(&key, "%s/store/members", s->o.prefix);
    mcm_text_add(&c->body, "{\"compare\":[{");
    mcm_etcd_bytes(&c->body, "key", l->key, strlen(l->key));
    mcm_text_add(&c->body,
                 ",\"result\":\"EQUAL\",\"target\":\"MOD\",\"mod_revision\":\"%" PRIu64
                 "\"}],\"success\":[{\"request_put\":{",
                 l->modified);
    mcm_etcd_bytes(&c->body, "key", key.at, key.size);
    mcm_text_add(&c->body, ",");
    pthread_mutex_lock(&s->lock);
    mcm_etcd_bytes(&c->body, "value", s->lead.note, strlen(s->lead.note));
    l->noting = s->lead.note_new;
    pthread_mutex_unlock(&s->lock);
    mcm_text_add(&c->body, "}}]}");
    c->body.failed = c->body.failed || key.failed;
    mcm_text_fini(&key);
    l->busy = true;
    mcm_call_start(s, c);
}

/* -- taking it -- */

static void taken(struct mcm_service *s, struct mcm_call *c)
{
    struct mcm_lead *l = lead_of(s);
    bool bad = false;
    uint64_t revision = 0;

    l->busy = false;
    if (c->res == -ENOENT) /* "requested lease not found" */
        l->lease = 0;
    if (c->res) {
        failed(s); /* whether it was done, the next look tells */
        return;
    }
    mcm_etcd_revision(s, c, c->json, &revision);
    if (!l->lease) {
        look(s, 0); /* it has run out meanwhile */
    } else if (revision && mcm_json_bool(c->json, "succeeded", &bad) && !bad) {
        l->modified = revision;
        l->token = l->base + revision;
        if (l->forgetting) {
            pthread_mutex_lock(&s->lock);
            s->lead.emptied = false;
            pthread_mutex_unlock(&s->lock);
        }
        list(s, mcm_now());
    } else if (l->leading) {
        lost(s, "its key was written by another");
    } else {
        look(s, mcm_random(s) % HERD_MS);
    }
}

/* modified: of the key that is replaced; 0: there must be none. forget: what is noted goes with it. */
static void take(struct mcm_service *s, uint64_t modified, uint64_t base, bool forget, uint64_t now)
{
    struct mcm_lead *l = lead_of(s);
    uint64_t limit = l->ends > now ? l->ends - now : 1;
    struct mcm_call *c = mcm_etcd_call(
        s, "/v3/kv/txn", now + (limit < s->o.timeout_ms ? limit : s->o.timeout_ms), taken, NULL);
    struct mcm_text key = {0};

    if (!c) {
        failed(s);
        return;
    }
    mcm_text_add(&c->body, "{\"compare\":[{");
    mcm_etcd_bytes(&c->body, "key", l->key, strlen(l->key));
    if (modified)
        mcm_text_add(&c->body,
                     ",\"result\":\"EQUAL\",\"target\":\"MOD\",\"mod_revision\":\"%" PRIu64 "\"",
                     modified);
    else
        mcm_text_add(&c->body,
                     ",\"result\":\"EQUAL\",\"target\":\"CREATE\",\"create_revision\":\"0\"");
    mcm_text_add(&c->body, "}],\"success\":[{\"request_put\":{");
    mcm_etcd_bytes(&c->body, "key", l->key, strlen(l->key));
    mcm_text_add(&c->body, ",");
    add_value(s, &c->body, base);
    mcm_text_add(&c->body, ",\"lease\":\"%" PRId64 "\"}}", l->lease);
    if (forget) {
        mcm_text_add(&key, "%s/store/members", s->o.prefix);
        mcm_text_add(&c->body, ",{\"request_delete_range\":{");
        mcm_etcd_bytes(&c->body, "key", key.at, key.size);
        mcm_text_add(&c->body, "}}");
        c->body.failed = c->body.failed || key.failed;
        mcm_text_fini(&key);
    }
    mcm_text_add(&c->body, "]}");
    l->base = base;
    l->forgetting = forget;
    c->urgent = true;
    l->busy = true;
    mcm_call_start(s, c);
}

static void held(struct mcm_service *s, uint64_t sent)
{
    struct mcm_lead *l = lead_of(s);
    uint64_t now = mcm_now();

    l->ends = sent + l->ttl_s * 1000;
    l->renew_at = l->ends > now ? now + (l->ends - now) / 3 : now;
    mcm_service_at(s, l->renew_at);
}

static void granted(struct mcm_service *s, struct mcm_call *c)
{
    struct mcm_lead *l = lead_of(s);
    bool bad = false;
    int64_t id = c->res ? 0 : mcm_json_i64(c->json, "ID", &bad);
    uint64_t ttl = c->res ? 0 : mcm_json_u64(c->json, "TTL", &bad);

    l->busy = false;
    if (c->res || bad || id != l->lease || !ttl || ttl > 3600) {
        l->lease = 0; /* one that was granted all the same ends by itself */
        failed(s);
        return;
    }
    l->ttl_s = ttl;
    held(s, c->sent);
    look(s, 0);
}

static void grant(struct mcm_service *s, uint64_t now)
{
    struct mcm_lead *l = lead_of(s);
    struct mcm_call *c = mcm_etcd_call(s, "/v3/lease/grant", now + s->o.timeout_ms, granted, NULL);

    if (!c) {
        failed(s);
        return;
    }
    l->lease = (int64_t)(mcm_random(s) & INT64_MAX) | 1;
    mcm_text_add(&c->body, "{\"TTL\":\"%" PRIu64 "\",\"ID\":\"%" PRId64 "\"}",
                 s->o.ttl_s < TTL_S ? s->o.ttl_s : TTL_S, l->lease);
    c->urgent = true;
    l->busy = true;
    mcm_call_start(s, c);
}

/* -- keeping it -- */

static void renewed(struct mcm_service *s, struct mcm_call *c)
{
    struct mcm_lead *l = lead_of(s);
    bool bad = false;
    const cJSON *result = c->res ? NULL : mcm_json_object(c->json, "result", &bad);
    int64_t id = mcm_json_i64(result, "ID", &bad);
    uint64_t ttl = mcm_json_u64(result, "TTL", &bad);
    uint64_t now = mcm_now(), pause;

    l->busy = false;
    if (!l->lease)
        return;
    if (c->res == -ENOENT || (!c->res && !bad && result && !ttl)) {
        lost(s, "its lease has run out");
    } else if (c->res || bad || !result || id != l->lease || ttl > 3600) {
        pause = mcm_backoff(s, l->failures++);
        l->renew_at = now + pause;
        mcm_service_at(s, l->renew_at);
    } else if (c->sent + l->ttl_s * 1000 <= now) {
        lost(s, "its lease had run out before the answer was read"); /* this process stood still */
    } else {
        l->failures = 0;
        l->ttl_s = ttl;
        held(s, c->sent);
        if (l->leading)
            publish_mine(s);
    }
}

static void renew(struct mcm_service *s, uint64_t now)
{
    struct mcm_lead *l = lead_of(s);
    uint64_t limit = (l->ends - now) / 3 + 100;
    struct mcm_call *c =
        mcm_etcd_call(s, "/v3/lease/keepalive",
                      now + (limit < s->o.timeout_ms ? limit : s->o.timeout_ms), renewed, NULL);

    if (!c) {
        l->renew_at = now + mcm_backoff(s, l->failures++);
        return;
    }
    mcm_text_add(&c->body, "{\"ID\":\"%" PRId64 "\"}", l->lease);
    c->urgent = true;
    l->busy = true;
    mcm_call_start(s, c);
}

/* -- who is it? -- */

static void seen(struct mcm_service *s, struct mcm_kv *kv, bool candidate)
{
    struct mcm_lead *l = lead_of(s);
    uint64_t now = mcm_now(), base = 0;
    struct mcm_leader leader;
    bool good = decode(kv, &leader, &base);
    bool own = good && strcmp(leader.address, s->o.address) == 0;

    if (!good)
        s->now.bad_replies++;
    if (own && l->lease && kv->lease == l->lease && now < l->ends) {
        if (l->leading && kv->modified == l->modified) {
            look(s, mcm_jitter(s, LOOK_MS));
            return;
        }
        l->base = base; /* taken, and the answer was lost */
        l->modified = kv->modified;
        l->token = leader.token;
        list(s, now);
    } else if (l->leading) {
        lost(s, "another has the key");
    } else if (own && candidate && !l->lease) {
        grant(s, now);
    } else if (own && candidate) {
        take(s, kv->modified, base, false, now); /* what an earlier life of this agent has left */
    } else {
        publish(s, good ? &leader : &(struct mcm_leader){0});
        look(s, mcm_jitter(s, LOOK_MS));
    }
}

static void empty(struct mcm_service *s, bool candidate)
{
    struct mcm_lead *l = lead_of(s);
    bool again = l->absent;

    if (l->leading) {
        lost(s, "its key is gone");
        return;
    }
    publish(s, &(struct mcm_leader){0});
    l->absent = true;
    if (!candidate)
        look(s, mcm_jitter(s, LOOK_MS));
    else if (!again)
        look(s, mcm_random(s) % HERD_MS);
    else if (!l->lease)
        grant(s, mcm_now());
    else
        take(s, 0, 0, false, mcm_now());
}

static void looked(struct mcm_service *s, struct mcm_call *c)
{
    struct mcm_lead *l = lead_of(s);
    bool bad = false, candidate;
    const cJSON *kvs = c->res ? NULL : mcm_json_array(c->json, "kvs", &bad);
    uint64_t revision = 0;
    struct mcm_kv kv = {0};

    l->busy = false;
    pthread_mutex_lock(&s->lock);
    candidate = s->lead.candidate;
    pthread_mutex_unlock(&s->lock);
    if (!c->res)
        mcm_etcd_revision(s, c, c->json, &revision);
    if (c->res || bad || !revision) {
        failed(s);
        return;
    }
    l->failures = 0;
    if (!cJSON_GetArraySize(kvs)) {
        empty(s, candidate);
    } else if (mcm_kv_read(kvs->child, &kv) != 0) {
        s->now.bad_replies++;
        failed(s);
    } else {
        l->absent = false;
        seen(s, &kv, candidate);
    }
    mcm_kv_fini(&kv);
}

static void ask(struct mcm_service *s, uint64_t now)
{
    struct mcm_lead *l = lead_of(s);
    struct mcm_call *c = mcm_etcd_call(s, "/v3/kv/range", now + s->o.timeout_ms, looked, NULL);

    if (!c) {
        failed(s);
        return;
    }
    mcm_text_add(&c->body, "{");
    mcm_etcd_bytes(&c->body, "key", l->key, strlen(l->key));
    mcm_text_add(&c->body, "}");
    c->urgent = true;
    l->busy = true;
    mcm_call_start(s, c);
}

void mcm_lead_tick(struct mcm_service *s, uint64_t now)
{
    struct mcm_lead *l = lead_of(s);
    bool wanted, hurry, notes, emptied;
    uint64_t raise;

    pthread_mutex_lock(&s->lock);
    wanted = s->lead.wanted;
    hurry = s->lead.hurry;
    raise = s->lead.raise;
    emptied = s->lead.emptied;
    s->lead.hurry = false;
    notes = s->lead.note && s->lead.note_new != l->noted;
    pthread_mutex_unlock(&s->lock);
    if (!wanted)
        return;
    if (!l->key[0])
        snprintf(l->key, sizeof(l->key), "%s/store/leader", s->o.prefix);
    if (l->lease && now >= l->ends && !l->busy) {
        if (l->leading)
            lost(s, "its lease could not be renewed in time");
        l->lease = 0;
    }
    if (l->lease)
        mcm_service_at(s, l->ends);
    if (hurry && !l->leading && l->look_at > now + 50)
        l->look_at = now + 50;
    if (l->busy)
        return;
    if (l->leading && raise >= l->token) {
        take(s, l->modified, raise, emptied, now);
    } else if (l->leading && now >= l->renew_at) {
        renew(s, now);
    } else if (l->leading && notes && now >= l->note_at) {
        note(s, now);
    } else if (now >= l->look_at) {
        ask(s, now);
    } else {
        mcm_service_at(s, l->look_at);
        if (l->leading)
            mcm_service_at(s, l->renew_at);
    }
}

static void revoked(struct mcm_service *s, struct mcm_call *c)
{
    if (c->res && c->res != -ENOENT)
        mcm_log(s, MCM_LOG_WARNING,
                "metadata: the lead could not be given back and ends by itself within %" PRIu64
                " s: %s",
                lead_of(s)->ttl_s, c->text);
}

void mcm_lead_stop(struct mcm_service *s, uint64_t deadline)
{
    struct mcm_lead *l = lead_of(s);
    struct mcm_call *c;

    publish(s, &(struct mcm_leader){0});
    if (!l->lease)
        return;
    c = mcm_etcd_call(s, "/v3/lease/revoke", deadline, revoked, NULL);
    if (!c)
        return;
    mcm_text_add(&c->body, "{\"ID\":\"%" PRId64 "\"}", l->lease);
    c->last_words = c->urgent = true;
    mcm_call_start(s, c);
}
