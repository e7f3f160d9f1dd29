/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Back end http: Mooncake's metadata server, GET, PUT and DELETE of URL?key=KEY.
 *
 * It knows neither leases nor conditions. So a record says when it was renewed and for how long
 * that holds, by the wall clock: agents' clocks must agree within the ttl. A name is claimed by
 * reading, writing and reading back, which leaves a short gap in which two agents can both believe
 * to have won; the next renewal of the one that lost finds that out. Where this matters, use etcd.
 */
#include "call.h"
#include "keep.h"
#include "record.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define LIVES_TTLS 3u /* a record not renewed for so long is dead */

/* A claim or a removal, from one call to the next. */
struct op {
    struct mcm_kept *k;
    uint64_t deadline;
    struct mcm_text value; /* what was written */
};

struct http {
    uint64_t answers; /* orders what the cache is told */
};

static struct mcm_call *http_call(struct mcm_service *s, const char *method, const char *key,
                                  uint64_t deadline,
                                  void (*done)(struct mcm_service *s, struct mcm_call *c),
                                  void *context)
{
    struct mcm_call *c = mcm_call_new(s, method, "?key=", deadline, done, context);

    if (c)
        mcm_text_percent(&c->path, key, strlen(key));
    return c;
}

static int judge(struct mcm_service *s, struct mcm_call *c)
{
    const char *url = s->endpoints[c->endpoint].url;
    int verdict = MCM_VERDICT_GOOD;

    if (c->status == 200)
        return verdict;
    switch (c->status) {
    case 404:
        c->res = -ENOENT;
        break;
    case 401:
    case 403:
        c->res = -EACCES;
        break;
    case 413:
        c->res = -EMSGSIZE;
        break;
    case 507:
        c->res = -ENOSPC;
        break;
    case 400:
    case 409: /* Mooncake's servers refuse to replace some keys */
        c->res = strcmp(c->method, "PUT") == 0 ? -EEXIST : -EBADMSG;
        break;
    default:
        c->res = c->status >= 500 ? -ECOMM : -EBADMSG;
        verdict = MCM_VERDICT_RETRY;
        break;
    }
    s->now.bad_replies += c->res == -EBADMSG;
    snprintf(c->text, sizeof(c->text), "the metadata server at %.100s answers HTTP status %ld%s",
             url, c->status,
             c->res == -EACCES    ? "; see [meta] user and password_file"
             : c->res == -EEXIST  ? ": the key is there and may not be replaced; delete it first"
             : c->res == -EBADMSG ? "; is this the URL of a metadata server, with its path?"
                                  : "");
    return verdict;
}

static bool dead(const struct mcm_times *t)
{
    uint64_t now = (uint64_t)time(NULL);

    return t->ttl_s && t->ttl_s <= 3600 && now > t->renewed &&
           now - t->renewed > LIVES_TTLS * t->ttl_s;
}

/* -- LOOKUP and GET -- */

static void asked(struct mcm_service *s, struct mcm_call *c)
{
    struct http *h = s->backend;
    struct mcm_request *r = c->context;
    struct mcm_times times;
    int res = c->res;

    r->stamp = (struct mcm_stamp){.epoch = s->epoch, .revision = ++h->answers};
    if (res == -ENOENT) {
        snprintf(c->text, sizeof(c->text), "the metadata server knows no such %s",
                 r->kind == MCM_LOOKUP ? "segment" : "key");
    } else if (!res && r->kind == MCM_GET) {
        r->value = c->reply;
        c->reply = (struct mcm_text){0};
    } else if (!res && mcm_record_decode(c->reply.at ? c->reply.at : "", c->reply.size,
                                         r->record.name, &r->found, &times)) {
        s->now.bad_replies++;
        res = -EBADMSG;
        snprintf(c->text, sizeof(c->text),
                 "what the metadata server has under %.100s... is no record of a segment; delete "
                 "that key",
                 s->prefix);
        mcm_failure(s, c->text);
    } else if (!res && dead(&times)) {
        res = -ENOENT;
        snprintf(c->text, sizeof(c->text),
                 "its agent %.100s has not renewed the record for %u times its ttl and counts as "
                 "dead",
                 r->found.agent, LIVES_TTLS);
    } else if (!res) {
        r->has_record = true;
    }
    mcm_answer(s, r, res, "%s", res ? c->text : "");
}

static void ask(struct mcm_service *s, struct mcm_request *r)
{
    char key[MCM_KEY_MAX + MCM_NAME_MAX];
    struct mcm_call *c;

    if (r->kind == MCM_LOOKUP)
        snprintf(key, sizeof(key), "%s%s", s->prefix, r->record.name);
    else
        snprintf(key, sizeof(key), "%s", r->key);
    c = http_call(s, "GET", key, r->deadline, asked, r);
    if (c)
        mcm_call_start(s, c);
    else
        mcm_answer(s, r, -ENOMEM, "no memory for a request to the metadata server");
}

/* -- what is kept -- */

static void over(struct mcm_service *s, struct op *op, int res, const struct mcm_record *holder,
                 const char *text)
{
    struct mcm_kept *k = op->k;

    mcm_text_fini(&op->value);
    free(op);
    if (k->writing && k->claim)
        k->renew = mcm_now() + mcm_jitter(s, s->o.ttl_s * 1000 / 3);
    mcm_keep_done(s, k, res, 0, holder, text);
}

/* The next call of an operation. */
static void next(struct mcm_service *s, struct op *op, const char *method,
                 void (*done)(struct mcm_service *s, struct mcm_call *c))
{
    struct mcm_call *c = http_call(s, method, op->k->key, op->deadline, done, op);

    if (!c) {
        over(s, op, -ENOMEM, NULL, "no memory for a request to the metadata server");
        return;
    }
    if (strcmp(method, "PUT") == 0)
        mcm_text_bytes(&c->body, op->value.at ? op->value.at : "", op->value.size);
    mcm_call_start(s, c);
}

static void read_back(struct mcm_service *s, struct mcm_call *c)
{
    struct op *op = c->context;
    struct mcm_record holder;
    struct mcm_times times;

    if (c->res)
        over(s, op, c->res == -ENOENT ? -ECOMM : c->res, NULL, c->text);
    else if (c->reply.size == op->value.size &&
             (!c->reply.size || memcmp(c->reply.at, op->value.at, c->reply.size) == 0))
        over(s, op, 0, NULL, "");
    else if (mcm_record_decode(c->reply.at ? c->reply.at : "", c->reply.size, op->k->record.name,
                               &holder, &times))
        over(s, op, -EBADMSG, NULL,
             "the metadata server gives back another record than it was given");
    else {
        mcm_record_held(&holder, &times, c->text, sizeof(c->text));
        over(s, op, -EEXIST, &holder, c->text);
    }
}

static void written(struct mcm_service *s, struct mcm_call *c)
{
    struct op *op = c->context;

    if (c->res || !op->k->claim || op->k->present)
        over(s, op, c->res, NULL, c->text);
    else
        next(s, op, "GET", read_back);
}

static void found_before_write(struct mcm_service *s, struct mcm_call *c)
{
    struct op *op = c->context;
    struct mcm_kept *k = op->k;
    struct mcm_record holder;
    struct mcm_times times = {.since = k->since,
                              .renewed = (uint64_t)time(NULL),
                              .ttl_s = s->o.ttl_s},
                     theirs;

    if (c->res && c->res != -ENOENT) {
        over(s, op, c->res, NULL, c->text);
        return;
    }
    if (!c->res && mcm_record_decode(c->reply.at ? c->reply.at : "", c->reply.size, k->record.name,
                                     &holder, &theirs)) {
        s->now.bad_replies++;
        over(s, op, -EBADMSG, NULL,
             "what the metadata server has under that name is no record of a segment; delete the "
             "key");
        return;
    }
    if (!c->res && strcmp(holder.agent, s->o.address) != 0 && !dead(&theirs)) {
        mcm_record_held(&holder, &theirs, c->text, sizeof(c->text));
        over(s, op, -EEXIST, &holder, c->text);
        return;
    }
    if (!c->res &&
        (strcmp(holder.agent, s->o.address) != 0 || holder.agent_incarnation != s->o.incarnation))
        s->now.stale_taken++;
    if (k->busy_version != k->version || !k->wanted) {
        over(s, op, -ECOMM, NULL, "it was asked for otherwise meanwhile");
        return;
    }
    mcm_record_encode(&k->record, &times, &op->value);
    next(s, op, "PUT", written);
}

static void removed(struct mcm_service *s, struct mcm_call *c)
{
    over(s, c->context, c->res == -ENOENT ? 0 : c->res, NULL, c->text);
}

static void found_before_removal(struct mcm_service *s, struct mcm_call *c)
{
    struct op *op = c->context;
    struct mcm_record holder;
    struct mcm_times times;

    if (c->res)
        over(s, op, c->res == -ENOENT ? 0 : c->res, NULL, c->text);
    else if (mcm_record_decode(c->reply.at ? c->reply.at : "", c->reply.size, op->k->record.name,
                               &holder, &times) ||
             strcmp(holder.agent, s->o.address) != 0 ||
             holder.agent_incarnation != s->o.incarnation)
        over(s, op, 0, NULL, ""); /* somebody else's by now */
    else
        next(s, op, "DELETE", removed);
}

static struct op *op_new(struct mcm_service *s, struct mcm_kept *k, uint64_t deadline)
{
    struct op *op = calloc(1, sizeof(*op));

    if (!op) {
        mcm_keep_done(s, k, -ENOMEM, 0, NULL, "no memory for a request to the metadata server");
        return NULL;
    }
    op->k = k;
    op->deadline = deadline;
    return op;
}

static void keep(struct mcm_service *s, struct mcm_kept *k, uint64_t deadline)
{
    struct op *op = op_new(s, k, deadline);

    if (!op)
        return;
    if (k->claim) {
        next(s, op, "GET", found_before_write);
        return;
    }
    mcm_text_bytes(&op->value, k->value.at ? k->value.at : "", k->value.size);
    next(s, op, "PUT", written);
}

static void drop(struct mcm_service *s, struct mcm_kept *k, uint64_t deadline)
{
    struct op *op = op_new(s, k, deadline);

    if (!op)
        return;
    if (k->claim)
        next(s, op, "GET", found_before_removal);
    else
        next(s, op, "DELETE", removed);
}

/* -- the back end -- */

static struct mcm_call *probe(struct mcm_service *s)
{
    /* 404 is as good an answer as any */
    return http_call(s, "GET", s->prefix, mcm_now() + s->o.timeout_ms, NULL, NULL);
}

static int start(struct mcm_service *s)
{
    s->backend = calloc(1, sizeof(struct http));
    return s->backend ? 0 : -ENOMEM;
}

static void release(struct mcm_service *s)
{
    free(s->backend);
    s->backend = NULL;
}

static void tick(struct mcm_service *s, uint64_t now)
{
    (void)s;
    (void)now;
}

static void stop(struct mcm_service *s, uint64_t deadline)
{
    (void)s;
    (void)deadline; /* nothing is wanted any more: mcm_keep_tick() removes it */
}

static bool in_step(struct mcm_service *s)
{
    (void)s;
    return false; /* nobody tells of changes: every lookup asks */
}

static bool healthy(struct mcm_service *s)
{
    (void)s;
    return true;
}

const struct mcm_backend_ops mcm_http_ops = {
    .name = "http",
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
