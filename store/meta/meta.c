/* SPDX-License-Identifier: Apache-2.0 */
/* The front: what the agent's control thread calls. It owns the cache and the callbacks. */
#include "meta.h"

#include "local.h"
#include "record.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define GROUPS 1024u
#define REQUESTS_MAX 65536u /* that may wait at a time */

/* Everybody who asks for one name. */
struct group {
    struct group *next;
    char name[MCM_NAME_MAX];
    struct mcm_request *waiting; /* for the answer under way */
    struct mcm_request *later;   /* asked for a fresh one when that was under way already */
};

struct mcm {
    struct mcm_service *service; /* NULL: memory, p2p */
    enum mcm_backend backend;
    int notify_fd;
    uint64_t timeout_ms, incarnation;
    char address[MCM_ADDRESS_MAX];
    void *context;
    void (*changed)(void *context, const char *name, uint64_t incarnation);
    struct mcm_cache cache; /* memory, p2p: what this agent registered */
    struct group *groups[GROUPS];
    struct mcm_request *ready, **ready_end; /* answered here */
    size_t open;                            /* requests whose callback is due */
    uint64_t requests;                      /* answered without the service */
    bool in_step, down, closing;
};

static void wake(const struct mcm *m)
{
    uint64_t one = 1;

    /* a counter that is full wakes as well, and there is nobody else to tell */
    if (write(m->notify_fd, &one, sizeof(one)) < 0)
        return;
}

static struct mcm_request *request_new(struct mcm *m, enum mcm_kind kind, mcm_done done,
                                       void *context)
{
    struct mcm_request *r = calloc(1, sizeof(*r));

    /* a callback that is never called would be worse than a wait for a few hundred bytes */
    while (!r) {
        usleep(1000);
        r = calloc(1, sizeof(*r));
    }
    r->kind = kind;
    r->done = done;
    r->context = context;
    r->deadline = mcm_now() + m->timeout_ms;
    m->open++;
    return r;
}

/* Its callback is called at the next mcm_run(). */
static void ready(struct mcm *m, struct mcm_request *r)
{
    if (!m->ready)
        wake(m);
    r->next = NULL;
    *m->ready_end = r;
    m->ready_end = &r->next;
    m->requests++;
}

static void refuse(struct mcm *m, struct mcm_request *r, int res, const char *text)
{
    r->res = res;
    snprintf(r->text, sizeof(r->text), "%s", text);
    ready(m, r);
}

static void call_back(struct mcm *m, struct mcm_request *r)
{
    struct mcm_result result = {.res = r->res, .text = r->text};

    if (r->has_record && (r->res == 0 || r->res == -EEXIST))
        result.record = &r->found;
    if (r->kind == MCM_GET && r->res == 0) {
        result.value = r->value.at ? r->value.at : "";
        result.size = r->value.size;
    }
    m->open--;
    if (r->done)
        r->done(r->context, &result);
    mcm_text_fini(&r->value);
    free(r);
}

/* -- lookups -- */

static struct group **group_of(struct mcm *m, const char *name)
{
    uint32_t h = 2166136261u;
    struct group **p;

    for (const unsigned char *c = (const unsigned char *)name; *c; c++)
        h = (h ^ *c) * 16777619u;
    for (p = &m->groups[h % GROUPS]; *p && strcmp((*p)->name, name) != 0; p = &(*p)->next)
        ;
    return p;
}

/* Asks the service on behalf of a group. */
static void ask(struct mcm *m, struct group *g)
{
    struct mcm_request *r = request_new(m, MCM_LOOKUP, NULL, NULL);

    strcpy(r->record.name, g->name);
    for (struct mcm_request *w = g->waiting; w; w = w->next)
        if (w->deadline < r->deadline)
            r->deadline = w->deadline;
    mcm_service_post(m->service, r);
}

static bool from_cache(struct mcm *m, struct mcm_request *r)
{
    struct mcm_cached *e = mcm_cache_find(&m->cache, r->record.name);

    if (!e)
        return false;
    e->used = true;
    r->res = 0;
    r->text[0] = '\0';
    r->has_record = true;
    r->found = e->record;
    return true;
}

static void tell_changed(void *context, const char *name)
{
    struct mcm *m = context;

    if (m->changed)
        m->changed(m->context, name, 0);
}

static void learn(struct mcm *m, const struct mcm_record *r, struct mcm_stamp stamp)
{
    struct mcm_cached *e;

    if (mcm_cache_put(&m->cache, r, stamp, &e) && m->changed)
        m->changed(m->context, r->name, r->incarnation);
}

/* One answer, for all who wait for it. */
static void found(struct mcm *m, struct mcm_request *answer)
{
    struct group **at = group_of(m, answer->record.name), *g = *at;
    struct mcm_request *w, *next;

    if (answer->res == 0)
        learn(m, &answer->found, answer->stamp);
    else if (answer->res == -ENOENT &&
             mcm_cache_drop(&m->cache, answer->record.name, answer->stamp))
        tell_changed(m, answer->record.name);
    at = group_of(m, answer->record.name);
    g = *at;
    w = g->waiting;
    g->waiting = g->later;
    g->later = NULL;
    if (g->waiting && answer->res != -ECANCELED) {
        ask(m, g);
    } else {
        next = g->waiting;
        g->waiting = NULL;
        *at = g->next;
        free(g);
        while (next) {
            struct mcm_request *r = next;

            next = r->next;
            refuse(m, r, -ECANCELED, answer->text);
        }
    }
    for (; w; w = next) {
        next = w->next;
        w->res = answer->res;
        w->has_record = answer->has_record;
        w->found = answer->found;
        memcpy(w->text, answer->text, sizeof(w->text));
        if (w->res == 0) {
            struct mcm_cached *e = mcm_cache_find(&m->cache, w->record.name);

            if (e)
                e->used = true;
        } else if (w->res == -ECOMM && !w->fresh) {
            from_cache(m, w); /* what is known stays known */
        }
        call_back(m, w);
    }
}

void mcm_lookup(struct mcm *m, const char *name, bool fresh, mcm_done done, void *context)
{
    struct mcm_request *r = request_new(m, MCM_LOOKUP, done, context), **end;
    struct group **at, *g;
    bool known;

    r->fresh = fresh;
    if (m->closing) {
        refuse(m, r, -ECANCELED, "the agent ends");
        return;
    }
    if (mcm_p2p_explicit(r, name)) {
        ready(m, r);
        return;
    }
    if (!mcm_good_name(name)) {
        refuse(m, r, -EINVAL,
               "a name has 1 to 255 bytes of UTF-8, no control characters, and is not blank");
        return;
    }
    strcpy(r->record.name, name);
    if (!m->service) {
        m->backend == MCM_P2P ? mcm_p2p_answer(&m->cache, r) : mcm_memory_answer(&m->cache, r);
        ready(m, r);
        return;
    }
    if (!fresh && (m->in_step || m->down) && from_cache(m, r)) {
        ready(m, r);
        return;
    }
    if (m->open > REQUESTS_MAX) {
        refuse(m, r, -ECOMM, "too many requests wait for the metadata service; try again later");
        return;
    }
    at = group_of(m, name);
    g = *at;
    known = g != NULL;
    while (!g) {
        g = calloc(1, sizeof(*g));
        if (!g)
            usleep(1000);
    }
    if (!known) {
        strcpy(g->name, name);
        *at = g;
    }
    /* an answer under way may be older than what made the caller ask for a fresh one */
    for (end = known && fresh ? &g->later : &g->waiting; *end; end = &(*end)->next)
        ;
    *end = r;
    if (!known)
        ask(m, g);
}

/* -- the other requests -- */

static void post(struct mcm *m, struct mcm_request *r)
{
    if (m->closing) {
        refuse(m, r, -ECANCELED, "the agent ends");
    } else if (m->service && m->open > REQUESTS_MAX) {
        refuse(m, r, -ECOMM, "too many requests wait for the metadata service; try again later");
    } else if (m->service) {
        mcm_service_post(m->service, r);
    } else {
        mcm_memory_answer(&m->cache, r);
        ready(m, r);
    }
}

void mcm_register(struct mcm *m, const struct mcm_record *record, mcm_done done, void *context)
{
    struct mcm_request *r = request_new(m, MCM_REGISTER, done, context);
    char agent[MCM_ADDRESS_MAX], name[MCM_NAME_MAX];

    if (memchr(record->name, '\0', sizeof(record->name)) == NULL || !mcm_good_name(record->name)) {
        refuse(m, r, -EINVAL,
               "a name has 1 to 255 bytes of UTF-8, no control characters, and is not blank");
    } else if (mcm_explicit_name(record->name, agent, name)) {
        refuse(
            m, r, -EINVAL,
            "a name of the form HOST:PORT/NAME says where a segment is and cannot be registered");
    } else if (!record->incarnation ||
               (m->service && (strcmp(record->agent, m->address) != 0 ||
                               record->agent_incarnation != m->incarnation))) {
        refuse(m, r, -EINVAL, "the record is none of this agent's");
    } else {
        r->record = *record;
        post(m, r);
    }
}

void mcm_unregister(struct mcm *m, const char *name, uint64_t incarnation, mcm_done done,
                    void *context)
{
    struct mcm_request *r = request_new(m, MCM_UNREGISTER, done, context);

    if (!mcm_good_name(name)) {
        refuse(m, r, -EINVAL, "no such name can be registered");
        return;
    }
    strcpy(r->record.name, name);
    r->record.incarnation = incarnation;
    post(m, r);
}

static void post_key(struct mcm *m, struct mcm_request *r, const char *key)
{
    if (!*key || strlen(key) >= MCM_KEY_MAX) {
        refuse(m, r, -EINVAL, "a key has 1 to 511 bytes");
        return;
    }
    strcpy(r->key, key);
    post(m, r);
}

void mcm_get(struct mcm *m, const char *key, mcm_done done, void *context)
{
    post_key(m, request_new(m, MCM_GET, done, context), key);
}

void mcm_put(struct mcm *m, const char *key, const char *value, size_t size, mcm_done done,
             void *context)
{
    struct mcm_request *r = request_new(m, MCM_PUT, done, context);

    if (size > MCM_VALUE_MAX) {
        r->res = -EMSGSIZE;
        snprintf(r->text, sizeof(r->text), "a value of %zu bytes; at most %u are taken", size,
                 MCM_VALUE_MAX);
        ready(m, r);
        return;
    }
    mcm_text_bytes(&r->value, value, size);
    if (r->value.failed)
        refuse(m, r, -ENOMEM, "no memory for the value");
    else
        post_key(m, r, key);
}

void mcm_delete(struct mcm *m, const char *key, mcm_done done, void *context)
{
    post_key(m, request_new(m, MCM_DELETE, done, context), key);
}

/* -- the lead -- */

int mcm_lead(struct mcm *m, bool candidate)
{
    if (m->backend != MCM_ETCD)
        return -ENOTSUP;
    pthread_mutex_lock(&m->service->lock);
    m->service->lead.wanted = true;
    m->service->lead.candidate = candidate;
    pthread_mutex_unlock(&m->service->lock);
    mcm_service_wake(m->service);
    return 0;
}

void mcm_lead_get(struct mcm *m, struct mcm_leader *out)
{
    *out = (struct mcm_leader){0};
    if (m->backend != MCM_ETCD)
        return;
    pthread_mutex_lock(&m->service->lock);
    *out = m->service->lead.known;
    pthread_mutex_unlock(&m->service->lock);
}

void mcm_lead_hurry(struct mcm *m)
{
    if (m->backend != MCM_ETCD)
        return;
    pthread_mutex_lock(&m->service->lock);
    m->service->lead.hurry = true;
    pthread_mutex_unlock(&m->service->lock);
    mcm_service_wake(m->service);
}

void mcm_lead_raise(struct mcm *m, uint64_t token, bool emptied)
{
    if (m->backend != MCM_ETCD)
        return;
    pthread_mutex_lock(&m->service->lock);
    if (token > m->service->lead.raise)
        m->service->lead.raise = token;
    m->service->lead.emptied |= emptied;
    pthread_mutex_unlock(&m->service->lock);
    mcm_service_wake(m->service);
}

size_t mcm_lead_holders(struct mcm *m, char (**out)[MCM_ADDRESS_MAX])
{
    size_t n;

    *out = NULL;
    if (m->backend != MCM_ETCD)
        return 0;
    pthread_mutex_lock(&m->service->lock);
    n = m->service->lead.nholders;
    *out = m->service->lead.holders;
    m->service->lead.nholders = 0;
    m->service->lead.holders = NULL;
    pthread_mutex_unlock(&m->service->lock);
    return n;
}

bool mcm_lead_noted(struct mcm *m)
{
    bool noted;

    if (m->backend != MCM_ETCD)
        return false;
    pthread_mutex_lock(&m->service->lock);
    noted = m->service->lead.members;
    pthread_mutex_unlock(&m->service->lock);
    return noted;
}

void mcm_lead_note(struct mcm *m, const char *lines)
{
    char *copy = m->backend == MCM_ETCD ? strdup(lines) : NULL;

    if (!copy)
        return;
    pthread_mutex_lock(&m->service->lock);
    free(m->service->lead.note);
    m->service->lead.note = copy;
    m->service->lead.note_new++;
    pthread_mutex_unlock(&m->service->lock);
    mcm_service_wake(m->service);
}

/* -- life -- */

static int bad_option(char *error, size_t error_size, const char *text)
{
    snprintf(error, error_size, "%s", text);
    return -EINVAL;
}

int mcm_create(const struct mcm_options *o, struct mcm **out, char *error, size_t error_size)
{
    struct mcm *m = calloc(1, sizeof(*m));
    const char *address = o->address ? o->address : "";
    int err;

    if (!m) {
        snprintf(error, error_size, "no memory for metadata");
        return -ENOMEM;
    }
    m->backend = o->backend;
    m->notify_fd = o->notify_fd;
    m->timeout_ms = o->timeout_ms;
    m->incarnation = o->incarnation;
    m->context = o->context;
    m->changed = o->changed;
    m->ready_end = &m->ready;
    err = strlen(address) >= sizeof(m->address)
              ? bad_option(error, error_size, "[peer] advertise is longer than 255 bytes")
              : 0;
    if (!err) {
        strcpy(m->address, address);
        snprintf(error, error_size, "no memory for metadata");
        err = mcm_cache_init(&m->cache, MCM_CACHE_MAX, m->address, m->incarnation);
    }
    if (!err && o->backend == MCM_ETCD)
        err = mcm_service_start(o, &mcm_etcd_ops, &m->service, error, error_size);
    else if (!err && o->backend == MCM_HTTP)
        err = mcm_service_start(o, &mcm_http_ops, &m->service, error, error_size);
    if (err) {
        mcm_cache_fini(&m->cache);
        free(m);
        m = NULL;
    } else {
        *error = '\0';
    }
    *out = m;
    return err;
}

static void heed(struct mcm *m, struct mcm_news *n)
{
    switch (n->kind) {
    case MCM_NEWS_DONE:
        if (n->request->kind == MCM_LOOKUP)
            found(m, n->request);
        call_back(m, n->request);
        break;
    case MCM_NEWS_RECORD:
        learn(m, &n->record, n->stamp);
        break;
    case MCM_NEWS_GONE:
        if (mcm_cache_drop(&m->cache, n->record.name, n->stamp))
            tell_changed(m, n->record.name);
        break;
    case MCM_NEWS_LIST_BEGIN:
        mcm_cache_list_begin(&m->cache);
        break;
    case MCM_NEWS_LIST_END:
        mcm_cache_list_end(&m->cache, n->stamp, tell_changed, m);
        break;
    case MCM_NEWS_SWEEP:
        mcm_cache_sweep(&m->cache, n->from, n->stamp, tell_changed, m);
        break;
    case MCM_NEWS_STATE:
        m->in_step = n->in_step;
        m->down = n->down;
        break;
    }
}

void mcm_run(struct mcm *m)
{
    /* what the callbacks add is the next round's */
    struct mcm_request *r = m->ready, *after;
    struct mcm_news *n = m->service ? mcm_service_news(m->service) : NULL, *next;

    m->ready = NULL;
    m->ready_end = &m->ready;
    for (; r; r = after) {
        after = r->next;
        call_back(m, r);
    }
    for (; n; n = next) {
        next = n->next;
        heed(m, n);
        free(n);
    }
}

void mcm_destroy(struct mcm *m)
{
    struct mcm_request *r;

    if (!m)
        return;
    m->changed = NULL;
    m->closing = true;
    if (m->service)
        mcm_service_stop(m->service);
    for (r = m->ready; r; r = r->next)
        r->res = -ECANCELED;
    while (m->open)
        mcm_run(m);
    if (m->service) {
        mcm_run(m); /* what is left besides answers */
        mcm_service_free(m->service);
    }
    mcm_cache_fini(&m->cache);
    free(m);
}

void mcm_get_state(struct mcm *m, struct mcm_state *out)
{
    if (m->service) {
        pthread_mutex_lock(&m->service->lock);
        *out = m->service->state;
        pthread_mutex_unlock(&m->service->lock);
        out->cached = m->cache.count - m->cache.own;
    } else {
        *out = (struct mcm_state){.registered = m->cache.count, .wanted = m->cache.count};
        snprintf(out->backend, sizeof(out->backend), "%s",
                 m->backend == MCM_P2P ? "p2p" : "memory");
    }
    out->requests += m->requests;
}
