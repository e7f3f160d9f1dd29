/* SPDX-License-Identifier: Apache-2.0 */
#include "etcd.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* gRPC's codes, as the gateway passes them on */
enum {
    GRPC_INVALID = 3,
    GRPC_TIMEOUT = 4,
    GRPC_NOT_FOUND = 5,
    GRPC_DENIED = 7,
    GRPC_EXHAUSTED = 8,
    GRPC_PRECONDITION = 9,
    GRPC_OUT_OF_RANGE = 11,
    GRPC_UNAVAILABLE = 14,
    GRPC_UNAUTHENTICATED = 16,
};

/* -- keys and values -- */

static int read_bytes(const cJSON *o, const char *name, char **out, size_t *size)
{
    bool bad = false;
    const char *text = mcm_json_string(o, name, &bad);
    size_t room = text ? strlen(text) / 4 * 3 : 0;
    int err;

    *out = calloc(1, room + 1);
    if (!*out)
        return -ENOMEM;
    if (bad)
        return -EBADMSG;
    err = text ? mcm_base64_decode(text, *out, room, size) : 0;
    return err ? -EBADMSG : 0;
}

int mcm_kv_read(const cJSON *o, struct mcm_kv *kv)
{
    bool bad = false;
    int err;

    *kv = (struct mcm_kv){0};
    if (!cJSON_IsObject(o))
        return -EBADMSG;
    err = read_bytes(o, "key", &kv->key, &kv->key_size);
    if (!err)
        err = read_bytes(o, "value", &kv->value, &kv->value_size);
    kv->created = mcm_json_u64(o, "create_revision", &bad);
    kv->modified = mcm_json_u64(o, "mod_revision", &bad);
    kv->lease = mcm_json_i64(o, "lease", &bad);
    if (!err && (bad || !kv->modified || !kv->key_size))
        err = -EBADMSG;
    return err;
}

void mcm_kv_fini(struct mcm_kv *kv)
{
    free(kv->key);
    free(kv->value);
    *kv = (struct mcm_kv){0};
}

const char *mcm_kv_name(const struct mcm_service *s, const struct mcm_kv *kv)
{
    size_t n = strlen(s->prefix);

    if (kv->key_size <= n || memcmp(kv->key, s->prefix, n) != 0 ||
        strlen(kv->key) != kv->key_size || !mcm_good_name(kv->key + n))
        return NULL;
    return kv->key + n;
}

void mcm_etcd_bytes(struct mcm_text *t, const char *name, const void *data, size_t size)
{
    mcm_text_add(t, "\"%s\":\"", name);
    mcm_text_base64(t, data, size);
    mcm_text_add(t, "\"");
}

void mcm_etcd_range(const struct mcm_service *s, struct mcm_text *t, const void *from, size_t size)
{
    size_t n = strlen(s->prefix);
    char end[256];

    /* the first key that does not begin with the prefix: '0' follows '/' */
    memcpy(end, s->prefix, n);
    end[n - 1]++;
    mcm_etcd_bytes(t, "key", size ? from : s->prefix, size ? size : n);
    mcm_text_add(t, ",");
    mcm_etcd_bytes(t, "range_end", end, n);
}

/* -- answers -- */

static bool says(const char *message, const char *what)
{
    return strcasestr(message, what) != NULL;
}

int mcm_etcd_error(const cJSON *answer, long status, int *res, char *text, size_t size)
{
    bool bad = false;
    const cJSON *inner = cJSON_GetObjectItemCaseSensitive(answer, "error");
    const cJSON *o = cJSON_IsObject(inner) ? inner : answer;
    const char *message = mcm_json_string(o, "message", &bad);
    uint64_t code = mcm_json_u64(o, o == answer ? "code" : "grpc_code", &bad);
    int verdict = MCM_VERDICT_GOOD;

    if (!message)
        message = cJSON_IsString(inner) ? inner->valuestring : "an error without words";
    *res = -ECOMM;
    if (code == GRPC_UNAUTHENTICATED || says(message, "invalid auth token") ||
        says(message, "revision of auth store is old")) {
        *res = -EACCES;
        verdict = MCM_VERDICT_TOKEN;
    } else if (says(message, "database space exceeded")) {
        *res = -ENOSPC;
    } else if (says(message, "too large") || says(message, "larger than max")) {
        *res = -EMSGSIZE;
    } else if (code == GRPC_DENIED || says(message, "user name is empty") ||
               says(message, "authentication failed")) {
        *res = -EACCES;
    } else if (code == GRPC_NOT_FOUND) {
        *res = -ENOENT;
    } else if (code == GRPC_OUT_OF_RANGE) {
        *res = -ESTALE;
    } else if (code == GRPC_PRECONDITION) {
        *res = says(message, "lease already exists") ? -EEXIST : -ENOTSUP;
    } else if (code == GRPC_UNAVAILABLE || code == GRPC_TIMEOUT || code == GRPC_EXHAUSTED ||
               status >= 500) {
        verdict = MCM_VERDICT_RETRY;
    }
    snprintf(text, size, "etcd answers: %.160s%s", message,
             *res == -ENOSPC   ? "; compact, defragment and disarm its alarm, or raise its quota"
             : *res == -EACCES ? "; see [meta] user and password_file, and the user's role"
                               : "");
    return verdict;
}

static int judge(struct mcm_service *s, struct mcm_call *c)
{
    const char *url = s->endpoints[c->endpoint].url;
    char text[200];
    int err = mcm_json_parse(c->reply.at ? c->reply.at : "", c->reply.size, &c->json);
    int verdict;

    if (err && c->status >= 500) {
        snprintf(c->text, sizeof(c->text), "etcd at %s answers HTTP status %ld", url, c->status);
        c->res = -ECOMM;
        return MCM_VERDICT_RETRY;
    }
    if (err) {
        s->now.bad_replies++;
        snprintf(c->text, sizeof(c->text),
                 "etcd at %.100s answers HTTP status %ld with no JSON of ours (%zu bytes); is this "
                 "etcd's client URL?",
                 url, c->status, c->reply.size);
        c->res = -EBADMSG;
        return MCM_VERDICT_RETRY;
    }
    if (c->status == 200 && !cJSON_GetObjectItemCaseSensitive(c->json, "error"))
        return MCM_VERDICT_GOOD;
    verdict = mcm_etcd_error(c->json, c->status, &c->res, text, sizeof(text));
    snprintf(c->text, sizeof(c->text), "%.40s: %.200s", url, text);
    return verdict;
}

/* An answer that is JSON but not what was asked for. */
static int nonsense(struct mcm_service *s, struct mcm_call *c)
{
    s->now.bad_replies++;
    snprintf(c->text, sizeof(c->text),
             "etcd at %.100s: its answer to %.40s makes no sense; is this etcd's client URL?",
             s->endpoints[c->endpoint].url, c->path.at);
    mcm_failure(s, c->text);
    return c->res = -EBADMSG;
}

void mcm_etcd_reset(struct mcm_service *s, uint64_t revision)
{
    struct mcm_etcd *e = mcm_etcd_of(s);

    mcm_log(s, MCM_LOG_WARNING,
            "metadata: etcd has lost its history (revision %" PRIu64 " after %" PRIu64
            "); everything is registered and listed anew",
            revision, e->revision);
    s->epoch++;
    e->revision = revision;
    mcm_keep_all_missing(s);
    mcm_lease_doubt(s);
    mcm_watch_relist(s);
}

bool mcm_etcd_revision(struct mcm_service *s, const struct mcm_call *call, const cJSON *answer,
                       uint64_t *revision)
{
    struct mcm_etcd *e = mcm_etcd_of(s);
    bool bad = false;

    *revision = mcm_json_u64(mcm_json_object(answer, "header", &bad), "revision", &bad);
    if (bad || !*revision)
        return false;
    if (call && *revision < call->seen_revision) {
        if (*revision < e->revision)
            mcm_etcd_reset(s, *revision);
        return true;
    }
    if (call && *revision > e->revision)
        e->revision = *revision;
    return false;
}

struct mcm_call *mcm_etcd_call(struct mcm_service *s, const char *path, uint64_t deadline,
                               void (*done)(struct mcm_service *s, struct mcm_call *c),
                               void *context)
{
    struct mcm_call *c = mcm_call_new(s, "POST", path, deadline, done, context);

    if (c)
        c->seen_revision = mcm_etcd_of(s)->revision;
    return c;
}

/* -- the token of [meta] user -- */

static void authenticated(struct mcm_service *s, struct mcm_call *c)
{
    struct mcm_etcd *e = mcm_etcd_of(s);
    bool bad = false;
    const char *token = c->res ? NULL : mcm_json_string(c->json, "token", &bad);

    e->token_busy = false;
    if (!c->res && (!token || strpbrk(token, "\r\n")))
        nonsense(s, c);
    if (!c->res) {
        e->token = strdup(token);
        e->token_failures = 0;
        return;
    }
    if (c->res == -ENOTSUP) { /* "authentication is not enabled" */
        e->token_useless = true;
        return;
    }
    e->token_at = mcm_now() + mcm_backoff(s, e->token_failures++);
    mcm_failure(s, c->text);
    if (c->res == -EACCES)
        mcm_calls_refuse(s, c->res, c->text);
}

const char *mcm_etcd_token(struct mcm_service *s)
{
    return s->ops == &mcm_etcd_ops ? mcm_etcd_of(s)->token : NULL;
}

void mcm_etcd_token_refused(struct mcm_service *s)
{
    struct mcm_etcd *e = s->backend;

    if (s->ops != &mcm_etcd_ops)
        return;
    free(e->token);
    e->token = NULL;
    e->token_useless = false;
    e->token_at = 0;
}

bool mcm_etcd_token_awaited(struct mcm_service *s)
{
    struct mcm_etcd *e = s->backend;
    uint64_t now = mcm_now();
    struct mcm_call *c;

    if (s->ops != &mcm_etcd_ops || !*s->o.user || e->token || e->token_useless)
        return false;
    if (e->token_busy)
        return true;
    if (now < e->token_at) {
        mcm_service_at(s, e->token_at);
        return true;
    }
    c = mcm_etcd_call(s, "/v3/auth/authenticate", now + s->o.timeout_ms, authenticated, NULL);
    if (!c)
        return true;
    mcm_text_add(&c->body, "{\"name\":");
    mcm_text_quoted(&c->body, s->o.user);
    mcm_text_add(&c->body, ",\"password\":");
    mcm_text_quoted(&c->body, s->o.password);
    mcm_text_add(&c->body, "}");
    c->no_token = c->urgent = true;
    e->token_busy = true;
    mcm_call_start(s, c);
    return true;
}

/* -- LOOKUP and GET -- */

static void asked(struct mcm_service *s, struct mcm_call *c)
{
    struct mcm_request *r = c->context;
    bool bad = false, lost;
    const cJSON *kvs;
    struct mcm_times times;
    struct mcm_kv kv = {0};
    uint64_t revision = 0;
    int res = c->res;

    if (res)
        goto out;
    lost = mcm_etcd_revision(s, c, c->json, &revision);
    kvs = mcm_json_array(c->json, "kvs", &bad);
    if (bad || !revision) {
        res = nonsense(s, c);
        goto out;
    }
    r->stamp = (struct mcm_stamp){.epoch = s->epoch, .revision = lost ? 0 : revision};
    if (!cJSON_GetArraySize(kvs)) {
        res = -ENOENT;
        snprintf(c->text, sizeof(c->text), "etcd knows no such %s",
                 r->kind == MCM_LOOKUP ? "segment" : "key");
        goto out;
    }
    if (mcm_kv_read(kvs->child, &kv)) {
        res = nonsense(s, c);
        goto out;
    }
    if (r->kind == MCM_GET) {
        r->value = (struct mcm_text){.at = kv.value, .size = kv.value_size};
        kv.value = NULL;
        goto out;
    }
    r->stamp.revision = lost ? 0 : kv.modified;
    if (mcm_record_decode(kv.value, kv.value_size, r->record.name, &r->found, &times)) {
        s->now.bad_replies++;
        res = -EBADMSG;
        snprintf(c->text, sizeof(c->text),
                 "what etcd has under %.100s... is no record of a segment; delete that key",
                 s->prefix);
        goto out;
    }
    r->has_record = true;
out:
    mcm_kv_fini(&kv);
    mcm_answer(s, r, res, "%s", res ? c->text : "");
}

static void ask(struct mcm_service *s, struct mcm_request *r)
{
    struct mcm_call *c = mcm_etcd_call(s, "/v3/kv/range", r->deadline, asked, r);
    struct mcm_text key = {0};

    if (!c) {
        mcm_answer(s, r, -ENOMEM, "no memory for a request to etcd");
        return;
    }
    if (r->kind == MCM_LOOKUP)
        mcm_text_add(&key, "%s%s", s->prefix, r->record.name);
    else
        mcm_text_add(&key, "%s", r->key);
    mcm_text_add(&c->body, "{");
    mcm_etcd_bytes(&c->body, "key", key.at, key.size);
    mcm_text_add(&c->body, "}");
    mcm_text_fini(&key);
    mcm_call_start(s, c);
}

/* -- what is kept -- */

static void add_key(struct mcm_text *t, const struct mcm_kept *k)
{
    mcm_etcd_bytes(t, "key", k->key, strlen(k->key));
}

static void add_put(struct mcm_service *s, struct mcm_text *t, const struct mcm_kept *k)
{
    mcm_text_add(t, "{");
    add_key(t, k);
    mcm_text_add(t, ",");
    mcm_etcd_bytes(t, "value", k->value.at ? k->value.at : "", k->value.size);
    mcm_text_add(t, ",\"lease\":\"%" PRId64 "\"}", mcm_etcd_of(s)->lease);
}

/* {"compare":[...],"success":[...],"failure":[the key as it is]} */
static void add_txn(struct mcm_service *s, struct mcm_text *t, const struct mcm_kept *k,
                    const char *compare, bool put)
{
    mcm_text_add(t, "{\"compare\":[{");
    add_key(t, k);
    mcm_text_add(t, ",\"result\":\"EQUAL\",%s}],\"success\":[{\"%s\":", compare,
                 put ? "request_put" : "request_delete_range");
    if (put) {
        add_put(s, t, k);
    } else {
        mcm_text_add(t, "{");
        add_key(t, k);
        mcm_text_add(t, "}");
    }
    mcm_text_add(t, "}],\"failure\":[{\"request_range\":{");
    add_key(t, k);
    mcm_text_add(t, "}}]}");
}

/* The key in the failure branch. -ENOENT: it is not there. */
static int held_key(const cJSON *answer, struct mcm_kv *kv)
{
    bool bad = false;
    const cJSON *list = mcm_json_array(answer, "responses", &bad);
    const cJSON *range = list ? mcm_json_object(list->child, "response_range", &bad) : NULL;
    const cJSON *kvs = mcm_json_array(range, "kvs", &bad);

    if (bad || !range)
        return -EBADMSG;
    return kvs && kvs->child ? mcm_kv_read(kvs->child, kv) : -ENOENT;
}

/* Ends a call for a kept key that did not do what it should. */
static void not_done(struct mcm_service *s, struct mcm_kept *k, struct mcm_call *c, int res)
{
    if (res == -ENOENT && k->writing) { /* "requested lease not found" */
        mcm_lease_doubt(s);
        res = -ECOMM;
    } else if (res == -ESTALE || res == -EEXIST || res == -ENOTSUP) {
        res = -ECOMM;
    }
    mcm_keep_done(s, k, res, 0, NULL, c->text);
}

static void replaced(struct mcm_service *s, struct mcm_call *c)
{
    struct mcm_kept *k = c->context;
    bool bad = false;
    uint64_t revision = 0;

    if (c->res) {
        not_done(s, k, c, c->res);
        return;
    }
    mcm_etcd_revision(s, c, c->json, &revision);
    if (!revision)
        mcm_keep_done(s, k, nonsense(s, c), 0, NULL, c->text);
    else if (mcm_json_bool(c->json, "succeeded", &bad))
        mcm_keep_done(s, k, 0, revision, NULL, "");
    else /* it changed meanwhile: the next try sees how */
        mcm_keep_done(s, k, -ECOMM, 0, NULL, "the key changed meanwhile");
}

/* The key is this agent's, or was an earlier life's: put or delete it as it stands. */
static void replace(struct mcm_service *s, struct mcm_call *before, struct mcm_kept *k,
                    uint64_t modified)
{
    struct mcm_call *c = mcm_etcd_call(s, "/v3/kv/txn", before->deadline, replaced, k);
    char compare[80];

    if (!c) {
        mcm_keep_done(s, k, -ENOMEM, 0, NULL, "no memory for a request to etcd");
        return;
    }
    snprintf(compare, sizeof(compare), "\"target\":\"MOD\",\"mod_revision\":\"%" PRIu64 "\"",
             modified);
    add_txn(s, &c->body, k, compare, k->writing);
    mcm_call_start(s, c);
}

static void claimed(struct mcm_service *s, struct mcm_call *c)
{
    struct mcm_etcd *e = mcm_etcd_of(s);
    struct mcm_kept *k = c->context;
    struct mcm_record holder;
    struct mcm_times times;
    struct mcm_kv kv = {0};
    bool bad = false, ours;
    uint64_t revision = 0;
    int err;

    if (c->res) {
        not_done(s, k, c, c->res);
        return;
    }
    mcm_etcd_revision(s, c, c->json, &revision);
    if (mcm_json_bool(c->json, "succeeded", &bad) && revision) {
        mcm_keep_done(s, k, 0, revision, NULL, "");
        return;
    }
    err = revision && !bad ? held_key(c->json, &kv) : -EBADMSG;
    if (err == -ENOENT) { /* to be removed, and it is not there */
        mcm_keep_done(s, k, k->writing ? -ECOMM : 0, 0, NULL, "the key changed meanwhile");
    } else if (err) {
        mcm_keep_done(s, k, nonsense(s, c), 0, NULL, c->text);
    } else if (k->writing && kv.lease == e->lease && kv.value_size == k->value.size &&
               memcmp(kv.value, k->value.at, kv.value_size) == 0) {
        /* an earlier try, whose answer was lost, did it */
        mcm_keep_done(s, k, 0, kv.modified, NULL, "");
    } else if (mcm_record_decode(kv.value, kv.value_size, k->record.name, &holder, &times)) {
        snprintf(c->text, sizeof(c->text),
                 "what etcd has under %.160s is no record of a segment; delete that key", k->key);
        s->now.bad_replies++;
        mcm_keep_done(s, k, k->writing ? -EBADMSG : 0, 0, NULL, c->text);
    } else {
        ours = strcmp(holder.agent, s->o.address) == 0;
        if (k->busy_version != k->version)
            mcm_keep_done(s, k, -ECOMM, 0, NULL, "it was asked for otherwise meanwhile");
        else if (ours && (k->writing || holder.agent_incarnation == s->o.incarnation)) {
            if (holder.agent_incarnation != s->o.incarnation)
                s->now.stale_taken++;
            replace(s, c, k, kv.modified);
        } else if (k->writing) {
            mcm_record_held(&holder, &times, c->text, sizeof(c->text));
            mcm_keep_done(s, k, -EEXIST, 0, &holder, c->text);
        } else {
            mcm_keep_done(s, k, 0, 0, NULL, "");
        }
    }
    mcm_kv_fini(&kv);
}

static void written(struct mcm_service *s, struct mcm_call *c)
{
    struct mcm_kept *k = c->context;
    uint64_t revision = 0;

    if (c->res) {
        not_done(s, k, c, c->res);
        return;
    }
    mcm_etcd_revision(s, c, c->json, &revision);
    if (revision)
        mcm_keep_done(s, k, 0, revision, NULL, "");
    else
        mcm_keep_done(s, k, nonsense(s, c), 0, NULL, c->text);
}

static void keep(struct mcm_service *s, struct mcm_kept *k, uint64_t deadline)
{
    struct mcm_call *c;

    if (!mcm_etcd_of(s)->lease) {
        mcm_keep_wait(s, k);
        return;
    }
    c = mcm_etcd_call(s, k->claim ? "/v3/kv/txn" : "/v3/kv/put", deadline,
                      k->claim ? claimed : written, k);
    if (!c) {
        mcm_keep_done(s, k, -ENOMEM, 0, NULL, "no memory for a request to etcd");
        return;
    }
    if (k->claim)
        add_txn(s, &c->body, k, "\"target\":\"CREATE\",\"create_revision\":\"0\"", true);
    else
        add_put(s, &c->body, k);
    mcm_call_start(s, c);
}

static void drop(struct mcm_service *s, struct mcm_kept *k, uint64_t deadline)
{
    struct mcm_call *c = mcm_etcd_call(s, k->claim ? "/v3/kv/txn" : "/v3/kv/deleterange", deadline,
                                       k->claim ? claimed : written, k);
    struct mcm_text compare = {0};

    if (!c) {
        mcm_keep_done(s, k, -ENOMEM, 0, NULL, "no memory for a request to etcd");
        return;
    }
    if (k->claim) {
        mcm_text_add(&compare, "\"target\":\"VALUE\",");
        mcm_etcd_bytes(&compare, "value", k->value.at ? k->value.at : "", k->value.size);
        add_txn(s, &c->body, k, compare.at ? compare.at : "", false);
        c->body.failed = c->body.failed || compare.failed;
        mcm_text_fini(&compare);
    } else {
        mcm_text_add(&c->body, "{");
        add_key(&c->body, k);
        mcm_text_add(&c->body, "}");
    }
    mcm_call_start(s, c);
}

/* -- the back end -- */

static struct mcm_call *probe(struct mcm_service *s)
{
    /* a read that a member without the others cannot answer */
    struct mcm_call *c = mcm_etcd_call(s, "/v3/kv/range", mcm_now() + s->o.timeout_ms, NULL, NULL);

    if (!c)
        return NULL;
    mcm_text_add(&c->body, "{");
    mcm_etcd_bytes(&c->body, "key", s->prefix, strlen(s->prefix));
    mcm_text_add(&c->body, ",\"keys_only\":true}");
    return c;
}

static int start(struct mcm_service *s)
{
    struct mcm_etcd *e = calloc(1, sizeof(*e));
    struct mcm_text value = {0};
    char key[MCM_KEY_MAX];
    int err;

    if (!e)
        return -ENOMEM;
    s->backend = e;
    mcm_watch_init(s);
    snprintf(key, sizeof(key), "%s/hosts/%s", s->o.prefix, s->o.address);
    mcm_text_add(&value, "{\"version\":%u,\"incarnation\":\"%" PRIu64 "\"}", MCM_VERSION,
                 s->o.incarnation);
    err = value.failed ? -ENOMEM : mcm_keep_own(s, key, value.at);
    mcm_text_fini(&value);
    if (*s->o.user && strstr(s->o.endpoints, "http://"))
        mcm_log(s, MCM_LOG_WARNING,
                "metadata: the password for etcd goes in plain text over http://; use https://");
    return err;
}

static void release(struct mcm_service *s)
{
    struct mcm_etcd *e = mcm_etcd_of(s);

    mcm_watch_close(s);
    mcm_text_fini(&e->watch.from);
    free(e->token);
    free(e);
    s->backend = NULL;
}

static void tick(struct mcm_service *s, uint64_t now)
{
    if (mcm_stopping(s))
        return;
    mcm_lease_tick(s, now);
    mcm_watch_tick(s, now);
    mcm_lead_tick(s, now);
}

static void stop(struct mcm_service *s, uint64_t deadline)
{
    mcm_watch_close(s);
    mcm_lead_stop(s, deadline);
    mcm_lease_stop(s, deadline);
}

static bool in_step(struct mcm_service *s)
{
    return mcm_etcd_of(s)->watch.state == MCM_WATCH_LIVE;
}

static bool healthy(struct mcm_service *s)
{
    return mcm_etcd_of(s)->lease != 0 && in_step(s);
}

const struct mcm_backend_ops mcm_etcd_ops = {
    .name = "etcd",
    .leases = true,
    .start = start,
    .free = release,
    .tick = tick,
    .ask = ask,
    .keep = keep,
    .drop = drop,
    .judge = judge,
    .probe = probe,
    .stop = stop,
    .in_step = in_step,
    .healthy = healthy,
};
