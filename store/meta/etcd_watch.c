/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The mirror of the segments' keys: listed once, page by page at one revision, then followed by a
 * watch, which after a break goes on at the next revision. Only when etcd has no more of what was
 * missed is everything listed again.
 *
 * A stream that is silent may be dead without anybody having said so (a proxy that forgot it). So
 * the mirror is audited: now and then one cheap question tells whether something changed that the
 * stream did not tell.
 */
#include "etcd.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define PAGE_FIRST 500u
#define AUDIT_MIN_MS 1000u
#define AUDIT_MAX_MS 10000u

static void stream_finished(struct mcm_service *s, void *watch, CURLcode code);
static void audit(struct mcm_service *s, uint64_t now, bool whole);

void mcm_watch_init(struct mcm_service *s)
{
    struct mcm_watch *w = &mcm_etcd_of(s)->watch;

    w->finished = stream_finished;
    w->service = s;
    w->page = PAGE_FIRST;
}

void mcm_watch_close(struct mcm_service *s)
{
    struct mcm_watch *w = &mcm_etcd_of(s)->watch;

    if (w->easy) {
        curl_multi_remove_handle(s->multi, w->easy);
        curl_easy_cleanup(w->easy);
    }
    curl_slist_free_all(w->headers);
    mcm_text_fini(&w->body);
    mcm_text_fini(&w->line);
    w->easy = NULL;
    w->headers = NULL;
}

void mcm_watch_relist(struct mcm_service *s)
{
    struct mcm_watch *w = &mcm_etcd_of(s)->watch;

    /* from within a transfer of its own, or a page: that one sees the state and stops */
    w->state = MCM_WATCH_LIST;
    w->at = 0;
    mcm_text_fini(&w->from);
    if (w->easy && w->end == MCM_END_NONE) {
        w->end = MCM_END_RELIST;
        w->created_by = 0;
    }
    mcm_service_at(s, 0);
}

static void again(struct mcm_service *s, int state)
{
    struct mcm_watch *w = &mcm_etcd_of(s)->watch;

    w->state = (typeof(w->state))state;
    w->at = mcm_now() + mcm_backoff(s, w->failures++);
    mcm_service_at(s, w->at);
}

/* -- records -- */

static bool from_us(const struct mcm_service *s, const struct mcm_record *r)
{
    return r->agent_incarnation == s->o.incarnation && strcmp(r->agent, s->o.address) == 0;
}

/* What the service says of a key that this agent may want there. */
static void compare_own(struct mcm_service *s, const struct mcm_kv *kv, const struct mcm_record *r)
{
    struct mcm_watch *w = &mcm_etcd_of(s)->watch;
    struct mcm_kept *k = mcm_keep_find(s, kv->key);
    bool ours = r && from_us(s, r);

    if (k) {
        k->list = w->list;
        if (k->wanted && k->present && !ours && kv->modified > k->revision)
            mcm_keep_missing(s, k);
        else if (k->wanted && k->lost && !r) /* who had taken it has let go */
            mcm_keep_missing(s, k);
    } else if (ours && !mcm_stopping(s)) {
        mcm_keep_stray(s, kv->key, r, kv->value, kv->value_size);
    }
}

/* A key with a value; deleted: without. */
static void take(struct mcm_service *s, const struct mcm_kv *kv, bool deleted)
{
    struct mcm_stamp stamp = {.epoch = s->epoch, .revision = kv->modified};
    const char *name = mcm_kv_name(s, kv);
    struct mcm_record record;
    struct mcm_times times;
    bool good = false;

    if (!name) {
        s->now.bad_replies++; /* somebody else's key under our prefix */
        return;
    }
    if (!deleted) {
        good = mcm_record_decode(kv->value, kv->value_size, name, &record, &times) == 0;
        s->now.bad_replies += !good;
    }
    compare_own(s, kv, good ? &record : NULL);
    if (good)
        mcm_tell(s, MCM_NEWS_RECORD, &record, NULL, stamp);
    else
        mcm_tell(s, MCM_NEWS_GONE, NULL, name, stamp);
}

/* -- listing -- */

static void list_end(struct mcm_service *s)
{
    struct mcm_watch *w = &mcm_etcd_of(s)->watch;

    mcm_tell(s, MCM_NEWS_LIST_END, NULL, NULL,
             (struct mcm_stamp){.epoch = s->epoch, .revision = w->list_revision});
    for (struct mcm_kept *k = s->kept; k; k = k->next)
        if (k->claim && k->present && k->list != w->list && k->revision <= w->list_revision)
            mcm_keep_missing(s, k);
    mcm_text_fini(&w->from);
    w->next = w->list_revision + 1;
    w->state = MCM_WATCH_OPEN;
    w->at = 0;
    w->failures = 0;
    w->doubts = 0;
    w->listed_once = true;
}

static void list_failed(struct mcm_service *s, struct mcm_call *c)
{
    struct mcm_watch *w = &mcm_etcd_of(s)->watch;
    bool too_large = c->res == -EMSGSIZE || c->too_large;

    /* smaller pages; at the last, one key a page, waiting is all that is left */
    if (too_large && w->page > 1) {
        w->page = w->page / 4 ? w->page / 4 : 1;
        w->state = MCM_WATCH_LIST;
        w->at = 0;
        mcm_service_at(s, 0);
        return;
    }
    mcm_text_fini(&w->from);
    again(s, MCM_WATCH_LIST);
}

static void listed(struct mcm_service *s, struct mcm_call *c)
{
    struct mcm_watch *w = &mcm_etcd_of(s)->watch;
    bool bad = false, more;
    const cJSON *kvs, *o;
    uint64_t revision = 0;

    if (w->state != MCM_WATCH_LISTING || w->turn != (uintptr_t)c->context)
        return; /* everything begins anew */
    if (c->res) {
        list_failed(s, c);
        return;
    }
    if (mcm_etcd_revision(s, c, c->json, &revision))
        return;
    kvs = mcm_json_array(c->json, "kvs", &bad);
    more = mcm_json_bool(c->json, "more", &bad);
    if (!bad && revision && !w->from.size) {
        w->list_revision = revision;
        w->list++;
        s->now.relists += w->listed_once;
        w->keys = 0;
        mcm_tell(s, MCM_NEWS_LIST_BEGIN, NULL, NULL, (struct mcm_stamp){0});
    }
    for (o = kvs ? kvs->child : NULL; !bad && o; o = o->next) {
        struct mcm_kv kv;

        if (mcm_kv_read(o, &kv)) {
            bad = true;
        } else {
            w->keys++;
            take(s, &kv, false);
            if (!o->next && more) {
                mcm_text_fini(&w->from);
                mcm_text_bytes(&w->from, kv.key, kv.key_size);
                mcm_text_bytes(&w->from, "", 1); /* the key right behind it */
            }
        }
        mcm_kv_fini(&kv);
    }
    if (bad || !revision || (more && !cJSON_GetArraySize(kvs))) {
        s->now.bad_replies++;
        mcm_failure(s, "etcd's list of segments makes no sense");
        mcm_text_fini(&w->from);
        again(s, MCM_WATCH_LIST);
    } else if (more) {
        w->state = MCM_WATCH_LIST;
        w->at = 0;
    } else {
        list_end(s);
    }
    mcm_service_at(s, w->at);
}

static void list_page(struct mcm_service *s, uint64_t now)
{
    struct mcm_watch *w = &mcm_etcd_of(s)->watch;
    struct mcm_call *c;

    if (mcm_congested(s)) { /* the agent reads what there is first, and wakes us */
        mcm_service_at(s, now + 100);
        return;
    }
    c = mcm_etcd_call(s, "/v3/kv/range", now + s->o.timeout_ms, listed, (void *)(w->turn + 1));
    if (!c) {
        again(s, MCM_WATCH_LIST);
        return;
    }
    mcm_text_add(&c->body, "{");
    mcm_etcd_range(s, &c->body, w->from.at, w->from.size);
    mcm_text_add(&c->body, ",\"limit\":\"%u\",\"sort_target\":\"KEY\",\"sort_order\":\"ASCEND\"",
                 w->page);
    if (w->from.size) /* all pages of one moment */
        mcm_text_add(&c->body, ",\"revision\":\"%" PRIu64 "\"", w->list_revision);
    mcm_text_add(&c->body, "}");
    w->turn++;
    w->state = MCM_WATCH_LISTING;
    mcm_call_start(s, c);
}

/* -- the stream -- */

static void end(struct mcm_watch *w, int how, const char *text)
{
    if (w->end != MCM_END_NONE)
        return;
    w->end = (typeof(w->end))how;
    snprintf(w->text, sizeof(w->text), "%s", text);
}

static void events(struct mcm_service *s, struct mcm_watch *w, const cJSON *result, bool *bad)
{
    struct mcm_etcd *e = mcm_etcd_of(s);
    const cJSON *list = mcm_json_array(result, "events", bad), *o;
    uint64_t next = w->fragment ? w->fragment_next : w->next;

    for (o = list ? list->child : NULL; o && !*bad; o = o->next) {
        const char *type = mcm_json_string(o, "type", bad);
        bool deleted = type && strcmp(type, "DELETE") == 0;
        struct mcm_kv kv;

        if (mcm_kv_read(mcm_json_object(o, "kv", bad), &kv)) {
            *bad = true;
        } else if (kv.modified >= w->next) { /* else it was told before */
            take(s, &kv, deleted);
            if (deleted)
                w->keys -= w->keys > 0;
            else
                w->keys += kv.created == kv.modified;
            if (kv.modified >= next)
                next = kv.modified + 1;
        }
        mcm_kv_fini(&kv);
    }
    w->fragment = mcm_json_bool(result, "fragment", bad);
    w->fragment_next = next;
    if (*bad || w->fragment || next == w->next)
        return;
    w->next = next;
    w->doubts = 0;
    w->failures = 0;
    if (next - 1 > e->revision)
        e->revision = next - 1;
}

static void message(struct mcm_service *s, struct mcm_watch *w, const cJSON *o)
{
    bool bad = false;
    const cJSON *result = mcm_json_object(o, "result", &bad);
    uint64_t revision = 0;
    char text[200];
    int res;

    if (cJSON_GetObjectItemCaseSensitive(o, "error")) {
        int verdict = mcm_etcd_error(o, 0, &res, text, sizeof(text));

        end(w,
            verdict == MCM_VERDICT_TOKEN         ? MCM_END_TOKEN
            : res == -EMSGSIZE || res == -ESTALE ? MCM_END_RELIST
                                                 : MCM_END_BAD,
            text);
        return;
    }
    if (!result || bad) {
        s->now.bad_replies++;
        end(w, MCM_END_BAD, "etcd's watch says what makes no sense");
        return;
    }
    mcm_etcd_revision(s, NULL, result, &revision);
    if (mcm_json_bool(result, "canceled", &bad)) {
        const char *reason = mcm_json_string(result, "cancel_reason", &bad);

        /* compacted, or any other reason why it does not go on from here */
        if (mcm_json_u64(result, "compact_revision", &bad) || (reason && strstr(reason, "compact")))
            end(w, MCM_END_RELIST, "etcd has compacted what the watch missed");
        else
            end(w, MCM_END_BAD, reason ? reason : "etcd has ended the watch");
        return;
    }
    if (mcm_json_bool(result, "created", &bad) && !bad) {
        if (revision && revision + 1 < w->next) {
            /* a member may lag behind what was listed; whether history is gone, a read tells */
            w->audit_at = 0;
        }
        w->state = MCM_WATCH_LIVE;
        w->lived_from = mcm_now();
        mcm_endpoint_good(s, w->endpoint);
    }
    events(s, w, result, &bad);
    if (bad) {
        s->now.bad_replies++;
        end(w, MCM_END_BAD, "etcd's watch tells events that make no sense");
    }
}

static size_t on_stream(char *data, size_t one, size_t n, void *context)
{
    struct mcm_watch *w = context;
    struct mcm_service *s = w->service;
    size_t at = 0;

    (void)one;
    while (at < n && w->end == MCM_END_NONE) {
        bool closed;
        long used = mcm_json_scan(&w->scan, data + at, n - at, &closed);
        cJSON *o = NULL;

        if (used < 0) {
            s->now.bad_replies++;
            end(w, MCM_END_BAD, "etcd's watch sends no JSON of ours; is this etcd's client URL?");
            break;
        }
        mcm_text_bytes(&w->line, data + at, (size_t)used);
        at += (size_t)used;
        if (w->line.failed || w->line.size > MCM_REPLY_MAX) {
            end(w, MCM_END_RELIST, "an event of etcd's watch is too large");
        } else if (closed) {
            if (mcm_json_parse(w->line.at, w->line.size, &o) == 0) {
                message(s, w, o);
            } else {
                s->now.bad_replies++;
                end(w, MCM_END_BAD, "etcd's watch sends no JSON");
            }
            cJSON_Delete(o);
            mcm_text_fini(&w->line);
        }
    }
    return w->end == MCM_END_NONE ? n : 0;
}

/* The stream is over, for whatever reason: closes it and says how to go on. */
static void stream_over(struct mcm_service *s, CURLcode code)
{
    struct mcm_watch *w = &mcm_etcd_of(s)->watch;
    uint64_t now = mcm_now();
    char text[256];

    if (w->end == MCM_END_NONE) {
        snprintf(text, sizeof(text), "etcd at %.100s: the watch has ended: %.80s",
                 s->endpoints[w->endpoint].url,
                 code == CURLE_OK ? "closed by etcd"
                 : *w->curl_error ? w->curl_error
                                  : curl_easy_strerror(code));
        end(w, MCM_END_BAD, text);
        if (code != CURLE_OK || w->state == MCM_WATCH_OPENING)
            mcm_endpoint_bad(s, w->endpoint, w->text);
    }
    mcm_watch_close(s);
    if (w->state == MCM_WATCH_LIST || w->state == MCM_WATCH_LISTING)
        return; /* decided already */
    if (w->state == MCM_WATCH_LIVE && now - w->lived_from > 5000)
        w->failures = 0;
    if (w->end == MCM_END_TOKEN)
        mcm_etcd_token_refused(s);
    if (w->end == MCM_END_RELIST) {
        mcm_log(s, MCM_LOG_INFO, "metadata: %s; listing all segments again", w->text);
        mcm_watch_relist(s);
        return;
    }
    mcm_failure(s, w->text);
    again(s, MCM_WATCH_OPEN);
}

static void stream_finished(struct mcm_service *s, void *watch, CURLcode code)
{
    (void)watch;
    stream_over(s, code);
}

static void open_stream(struct mcm_service *s, uint64_t now)
{
    struct mcm_watch *w = &mcm_etcd_of(s)->watch;
    const char *token = mcm_etcd_token(s);
    char url[MCM_ADDRESS_MAX + 16];
    struct mcm_text header = {0};
    struct curl_slist *list;

    if (mcm_etcd_token_awaited(s))
        return;
    w->endpoint = s->current;
    w->scan = (struct mcm_json_scan){0};
    w->end = MCM_END_NONE;
    w->fragment = false;
    *w->curl_error = '\0';
    w->created_by = now + s->o.timeout_ms;
    w->audit_at = now + mcm_jitter(s, AUDIT_MIN_MS);
    if (w->lived_from)
        s->now.watch_restarts++;
    snprintf(url, sizeof(url), "%s/v3/watch", s->endpoints[w->endpoint].url);
    mcm_text_add(&w->body, "{\"create_request\":{");
    mcm_etcd_range(s, &w->body, NULL, 0);
    mcm_text_add(&w->body, ",\"start_revision\":\"%" PRIu64 "\",\"fragment\":true}}", w->next);
    if (token)
        mcm_text_add(&header, "Authorization: %s", token);
    w->easy = mcm_easy_new(s);
    w->headers = curl_slist_append(NULL, "Content-Type: application/json");
    list = w->headers && header.size ? curl_slist_append(w->headers, header.at) : w->headers;
    if (!w->easy || !list || w->body.failed || header.failed) {
        mcm_watch_close(s);
        again(s, MCM_WATCH_OPEN);
    } else {
        curl_easy_setopt(w->easy, CURLOPT_URL, url);
        curl_easy_setopt(w->easy, CURLOPT_PRIVATE, w);
        curl_easy_setopt(w->easy, CURLOPT_ERRORBUFFER, w->curl_error);
        curl_easy_setopt(w->easy, CURLOPT_HTTPHEADER, w->headers);
        curl_easy_setopt(w->easy, CURLOPT_POSTFIELDSIZE, (long)w->body.size);
        curl_easy_setopt(w->easy, CURLOPT_POSTFIELDS, w->body.at);
        curl_easy_setopt(w->easy, CURLOPT_WRITEFUNCTION, on_stream);
        curl_easy_setopt(w->easy, CURLOPT_WRITEDATA, w);
        curl_easy_setopt(w->easy, CURLOPT_CONNECTTIMEOUT_MS, (long)s->o.timeout_ms);
        w->state = MCM_WATCH_OPENING;
        if (curl_multi_add_handle(s->multi, w->easy) != CURLM_OK) {
            mcm_watch_close(s);
            again(s, MCM_WATCH_OPEN);
        }
    }
    mcm_text_fini(&header);
}

/* -- the audit -- */

static uint64_t audit_pause(struct mcm_service *s)
{
    uint64_t ms = s->o.ttl_s * 1000 / 3;

    return mcm_jitter(s, ms < AUDIT_MIN_MS ? AUDIT_MIN_MS : ms > AUDIT_MAX_MS ? AUDIT_MAX_MS : ms);
}

static void doubt(struct mcm_service *s)
{
    struct mcm_watch *w = &mcm_etcd_of(s)->watch;

    w->audit_at = mcm_now() + AUDIT_MIN_MS;
    switch (++w->doubts) {
    case 1: /* it may only be late */
        break;
    case 2:
        end(w, MCM_END_BAD, "etcd's watch was silent about a change; it is opened again");
        break;
    default:
        end(w, MCM_END_RELIST, "etcd's watch stays silent about a change");
        break;
    }
}

/* The keys at `revision` are those the mirror has, and none is of `next` or later. What came and
 * went in between is gone: a lookup may have found it, and its end would be told to nobody. */
static void skip_to(struct mcm_service *s, uint64_t revision)
{
    struct mcm_watch *w = &mcm_etcd_of(s)->watch;

    mcm_tell_sweep(s, w->next, (struct mcm_stamp){.epoch = s->epoch, .revision = revision});
    for (struct mcm_kept *k = s->kept; k; k = k->next)
        if (k->claim && k->present && k->revision >= w->next && k->revision <= revision)
            mcm_keep_missing(s, k);
    w->next = revision + 1;
    w->doubts = 0;
}

static void audited(struct mcm_service *s, struct mcm_call *c)
{
    struct mcm_watch *w = &mcm_etcd_of(s)->watch;
    bool bad = false, whole = c->context != NULL;
    uint64_t revision = 0, count;

    w->auditing = false;
    w->audit_at = mcm_now() + audit_pause(s);
    if (c->res || w->state != MCM_WATCH_LIVE || mcm_etcd_revision(s, c, c->json, &revision))
        return;
    count = mcm_json_u64(c->json, "count", &bad);
    if (bad || !revision || w->next != w->audit_next)
        return; /* it has told something meanwhile: it lives */
    if (revision < w->next && count == w->keys)
        w->doubts = 0;
    else if (!whole)
        audit(s, mcm_now(), true);
    else if (count == w->keys && !cJSON_GetArraySize(mcm_json_array(c->json, "kvs", &bad)))
        skip_to(s, revision);
    else
        doubt(s);
}

/* First how many keys there are and at which revision; if that has moved, whether keys of ours
 * have. The second question is dear to etcd where there are many keys. */
static void audit(struct mcm_service *s, uint64_t now, bool whole)
{
    struct mcm_watch *w = &mcm_etcd_of(s)->watch;
    struct mcm_call *c =
        mcm_etcd_call(s, "/v3/kv/range", now + s->o.timeout_ms, audited, whole ? w : NULL);

    if (!c) {
        w->audit_at = now + AUDIT_MIN_MS;
        return;
    }
    mcm_text_add(&c->body, "{");
    mcm_etcd_range(s, &c->body, NULL, 0);
    if (whole)
        mcm_text_add(&c->body,
                     ",\"keys_only\":true,\"limit\":\"1\",\"min_mod_revision\":\"%" PRIu64 "\"}",
                     w->next);
    else
        mcm_text_add(&c->body, ",\"count_only\":true}");
    w->auditing = true;
    w->audit_next = w->next;
    mcm_call_start(s, c);
}

void mcm_watch_tick(struct mcm_service *s, uint64_t now)
{
    struct mcm_watch *w = &mcm_etcd_of(s)->watch;

    /* ended by somebody else than the stream itself */
    if (w->easy && w->end != MCM_END_NONE)
        stream_over(s, CURLE_OK);
    if (w->state == MCM_WATCH_OPENING && now >= w->created_by) {
        end(w, MCM_END_BAD, "etcd does not open the watch within the time limit");
        mcm_endpoint_bad(s, w->endpoint, w->text);
        stream_over(s, CURLE_OK);
    }
    if (mcm_take_overflow(s))
        mcm_watch_relist(s);
    switch (w->state) {
    case MCM_WATCH_LIST:
    case MCM_WATCH_OPEN:
        if (now < w->at)
            mcm_service_at(s, w->at);
        else if (w->state == MCM_WATCH_OPEN)
            open_stream(s, now);
        else if (!w->easy)
            list_page(s, now);
        else
            mcm_service_at(s, 0);
        break;
    case MCM_WATCH_OPENING:
        mcm_service_at(s, w->created_by);
        break;
    case MCM_WATCH_LIVE:
        if (w->auditing)
            break;
        if (now >= w->audit_at)
            audit(s, now, false);
        else
            mcm_service_at(s, w->audit_at);
        break;
    case MCM_WATCH_LISTING:
        break;
    }
}
