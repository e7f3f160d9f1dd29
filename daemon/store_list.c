/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Requests about many objects: lists, removals by pattern, the feed; drains.  What this host holds is walked through by
 * a thread of its own, one request after the other, each for a limited time; what the cluster has is the master's to say.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "catalog.h"
#include "handlers.h"
#include "shm/failpoint.h"
#include "store/object/match.h"
#include "store_internal.h"
#include "store_json.h"

#define TIME_NS UINT64_C(10000000000) /* of one request, from its beginning */
#define TEXT_MAX ((size_t)64 << 20)   /* bytes of an answer: then there is "more" */
#define LIST_MAX UINT64_C(1000000)    /* objects, as mcshm.h says */
#define EVENTS_MAX UINT64_C(1000000)
#define BATCH 64u /* keys between two looks at the clock; and that are removed at a time */

struct mcd_listing {
    struct mcd_job job;
    struct mcd_store *store;
    struct mcs_msg_objects m;
    uint64_t tenant;
    bool all; /* the asker sees those of others, too */
    uint64_t epoch, deadline;
    uint32_t stop; /* atomic: nobody waits for it any more */
    bool done;
    enum mcs_status status;
    char text[200];
    char *json;
};

/* ---- the walk: the thread of its own ------------------------------------------------------------ */

struct walk {
    struct mcd_listing *l;
    struct mco_match *match;
    FILE *out;
    uint64_t now, seen, listed, skipped;
    uint64_t removed, in_use;
    bool more;
    /* keys to be removed */
    uint8_t *keys;
    size_t size, room;
    uint32_t lengths[BATCH], n;
    bool failed;
};

static void give_up(struct mcd_listing *l, enum mcs_status status, const char *text)
{
    l->status = status;
    snprintf(l->text, sizeof(l->text), "%s", text);
}

static bool wanted(struct walk *w, const struct mco_listed *o)
{
    const struct mcs_msg_objects *m = &w->l->m;

    if (o->writing || o->leaving)
        return false;
    switch (m->what) {
    case MCS_OBJECTS_REGEX:
        return mco_match(w->match, o->key.bytes, o->key.length);
    case MCS_OBJECTS_ALL:
        return true;
    default:
        return o->key.length >= m->length && memcmp(o->key.bytes, m->text, m->length) == 0;
    }
}

static bool list_one(void *context, const struct mco_listed *o)
{
    struct walk *w = context;

    w->seen++;
    if (!wanted(w, o))
        return w->seen % BATCH != 0;
    if (w->skipped < w->l->m.skip) {
        w->skipped++;
        return w->seen % BATCH != 0;
    }
    if (w->listed == w->l->m.limit || (size_t)ftell(w->out) > TEXT_MAX) {
        w->more = true;
        return false;
    }
    if (w->listed++ != 0)
        fputc(',', w->out);
    mcd_json_object(w->out, &w->l->store->config, o, w->now);
    return w->seen % BATCH != 0;
}

static bool note_one(void *context, const struct mco_listed *o)
{
    struct walk *w = context;

    w->seen++;
    if (!wanted(w, o))
        return w->seen % BATCH != 0;
    if (w->room - w->size < o->key.length) {
        size_t room = w->room * 2 + o->key.length + 65536;
        uint8_t *more = realloc(w->keys, room);

        if (more == NULL) {
            w->failed = true;
            return false;
        }
        w->keys = more;
        w->room = room;
    }
    memcpy(w->keys + w->size, o->key.bytes, o->key.length);
    w->size += o->key.length;
    w->lengths[w->n++] = o->key.length;
    return w->n < BATCH && w->seen % BATCH != 0;
}

static void remove_noted(struct walk *w)
{
    struct mcd_listing *l = w->l;
    size_t at = 0;

    for (uint32_t i = 0; i < w->n; at += w->lengths[i], i++) {
        struct mco_key key = mco_key(l->tenant, w->keys + at, w->lengths[i]);
        enum mcs_status res =
            mco_remove(l->store->objects, &key, NULL, (l->m.flags & MCS_OBJECT_FORCE) != 0, w->now);

        w->removed += res == MCS_OK;
        w->in_use += res == MCS_IN_USE;
    }
    w->n = 0;
    w->size = 0;
}

/* Through all objects, with a look at the clock in between. False: given up, and why is said. */
static bool walk_all(struct walk *w, uint64_t tenant, bool lists)
{
    struct mcd_listing *l = w->l;
    uint64_t cursor = 0;

    while (cursor != UINT64_MAX && !w->more && !w->failed &&
           (w->match == NULL || !mco_match_gave_up(w->match))) {
        if (mcs_load_relaxed(&l->stop) != 0) { /* partner: is_done() */
            give_up(l, MCS_CANCELED, "the session has ended");
            return false;
        }
        w->now = mcd_now_ns();
        if (w->now > l->deadline) {
            snprintf(l->text, sizeof(l->text),
                     "not through with all objects within %llu s, %llu of them are%s",
                     (unsigned long long)(TIME_NS / 1000000000), (unsigned long long)w->seen,
                     lists ? ": ask for a longer prefix" : "; what was removed is: ask again");
            l->status = MCS_TIMEOUT;
            return false;
        }
        mco_walk(l->store->objects, tenant, &cursor, lists ? list_one : note_one, w);
        remove_noted(w);
    }
    if (w->failed)
        give_up(l, MCS_NO_MEMORY, "no memory for the keys");
    return !w->failed;
}

static void run_list(struct walk *w)
{
    struct mcd_listing *l = w->l;

    fputs("{\"objects\":[", w->out);
    if (walk_all(w, l->all ? UINT64_MAX : l->tenant, true))
        fprintf(w->out, "],\"more\":%s}", w->more ? "true" : "false");
}

static void run_stat(struct walk *w)
{
    struct mcd_listing *l = w->l;
    struct mco_key key = mco_key(l->tenant, l->m.text, l->m.length);
    struct mco_listed o;

    if (mco_stat(l->store->objects, &key, &o)) {
        o.key = key;
        mcd_json_object(w->out, &l->store->config, &o, mcd_now_ns());
    } else {
        give_up(l, MCS_NOT_FOUND, "no object has this key");
    }
}

static void run_remove(struct walk *w)
{
    struct mcd_listing *l = w->l;
    char why[128];
    int res = 0;

    if (l->m.what == MCS_OBJECTS_REGEX)
        res = mco_match_create((const char *)l->m.text, l->m.length, &w->match, why, sizeof(why));
    if (res != 0) {
        l->status = res == -ENOMEM ? MCS_NO_MEMORY : MCS_INVALID_ARGUMENT;
        snprintf(l->text, sizeof(l->text), "the regular expression: %s",
                 res == -ENOMEM ? strerror(ENOMEM) : why);
        return;
    }
    if (walk_all(w, l->tenant, false) && w->match != NULL && mco_match_gave_up(w->match))
        give_up(l, MCS_INVALID_ARGUMENT,
                "the regular expression: it tries too many ways to match a key; what was removed "
                "before is");
    if (l->status == MCS_OK)
        fprintf(w->out, "{\"removed\":%llu,\"in_use\":%llu}", (unsigned long long)w->removed,
                (unsigned long long)w->in_use);
    mco_match_destroy(w->match);
}

static void run(struct mcd_job *job)
{
    struct mcd_listing *l = (struct mcd_listing *)job;
    struct walk w = {.l = l};
    size_t size = 0;

    w.out = MCS_FAIL(store_list) != 0 ? NULL : open_memstream(&l->json, &size);
    if (w.out == NULL) {
        give_up(l, MCS_NO_MEMORY, "no memory for the answer");
        return;
    }
    switch ((enum mcs_objects)l->m.what) {
    case MCS_OBJECTS_LIST:
        run_list(&w);
        break;
    case MCS_OBJECTS_STAT:
        run_stat(&w);
        break;
    case MCS_OBJECTS_EVENTS:
        mcd_json_events(w.out, &l->store->config, l->store->events, l->epoch,
                        l->all ? UINT64_MAX : l->tenant, l->m.skip, l->m.limit);
        break;
    default:
        run_remove(&w);
        break;
    }
    free(w.keys);
    if (ferror(w.out) != 0 && l->status == MCS_OK)
        give_up(l, MCS_NO_MEMORY, "no memory for the answer");
    fclose(w.out);
    if (l->status == MCS_OK && l->json == NULL)
        give_up(l, MCS_NO_MEMORY, "no memory for the answer");
}

/* ---- the request: control thread ------------------------------------------------------------------ */

static void done(struct mcd_job *job, void *context)
{
    struct mcd_listing *l = (struct mcd_listing *)job;

    (void)context;
    l->done = true;
}

static void told(void *context, enum mcs_status status, uint64_t removed, const char *json,
                 const char *error)
{
    struct mcd_listing *l = context;
    char text[64];

    l->status = status;
    snprintf(l->text, sizeof(l->text), "%s", error != NULL ? error : "");
    snprintf(text, sizeof(text), "{\"removed\":%llu}", (unsigned long long)removed);
    if (status == MCS_OK) {
        l->json = strdup(json != NULL && json[0] != '\0' ? json : text);
        if (l->json == NULL)
            give_up(l, MCS_NO_MEMORY, "no memory for the answer");
    }
    l->done = true;
}

static bool is_done(struct mcd_session *s)
{
    if (s->ending)
        mcs_store_relaxed(&s->op.listing->stop, 1u); /* partner: walk_all() */
    return s->op.listing->done;
}

static void finish(struct mcd_session *s)
{
    struct mcd_listing *l = s->op.listing;
    struct mcs_msg m;
    char *json = l->json;

    if (l->status == MCS_OK) {
        mcd_reply_text(s, &m, json);
    } else {
        mcd_session_refuse(s, l->status, "%s", l->text);
        free(json);
    }
    free(l);
}

/* What only this host can tell, whatever the directory is. */
static bool is_local(const struct mcs_msg_objects *m)
{
    return (m->flags & MCS_OBJECT_LOCAL) != 0 || m->what == MCS_OBJECTS_EVENTS;
}

static bool is_place(const struct mcs_msg_objects *m)
{
    return m->what == MCS_OBJECTS_COPY || m->what == MCS_OBJECTS_MOVE;
}

static bool is_drain(const struct mcs_msg_objects *m)
{
    return m->what == MCS_OBJECTS_DRAIN || m->what == MCS_OBJECTS_UNDRAIN;
}

/* Refuses what is wrong with it. */
static bool check(struct mcd_session *s, const struct mcs_msg_objects *m)
{
    uint64_t most = m->what == MCS_OBJECTS_LIST ? LIST_MAX : EVENTS_MAX;

    if ((m->what == MCS_OBJECTS_LIST || m->what == MCS_OBJECTS_EVENTS) &&
        (m->limit == 0 || m->limit > most)) {
        mcd_session_refuse(s, MCS_INVALID_ARGUMENT, "%llu wanted at a time: want 1 to %llu",
                           (unsigned long long)m->limit, (unsigned long long)most);
        return false;
    }
    if (m->what == MCS_OBJECTS_STAT && m->length == 0) {
        mcd_session_refuse(s, MCS_BAD_KEY, "the key is empty: want 1 to %u bytes", MCS_KEY_MAX);
        return false;
    }
    if (is_place(m) && (m->flags & MCS_OBJECT_LOCAL) != 0) {
        mcd_session_refuse(s, MCS_NOT_SUPPORTED, "a host alone has one place for an object");
        return false;
    }
    if (is_drain(m) && s->uid != 0 && s->uid != geteuid()) {
        mcd_session_refuse(s, MCS_PERMISSION,
                           "user %u may not drain a host: root or the agent's user %u may", s->uid,
                           geteuid());
        return false;
    }
    return true;
}

void mcd_store_list(struct mcd_session *s, const struct mcs_msg_objects *m)
{
    struct mcd_store *st = s->agent->store;
    struct mcd_listing *l;
    int res = -ENOTSUP;

    if (!check(s, m))
        return;
    l = calloc(1, sizeof(*l));
    if (l == NULL) {
        mcd_session_refuse(s, MCS_NO_MEMORY, "no memory for the request");
        return;
    }
    l->job = (struct mcd_job){.run = run, .done = done};
    l->store = st;
    l->m = *m;
    l->tenant = s->tenant;
    l->all = mcd_may_see(s, UINT64_MAX);
    l->epoch = s->agent->incarnation;
    l->deadline = mcd_now_ns() + TIME_NS;
    s->op.listing = l;
    if (!is_local(m) && st->catalog != NULL)
        res = mcd_catalog_objects(st->catalog, &l->m, l->tenant, l->deadline, told, l);
    if (res == -ENOTSUP && (is_drain(m) || is_place(m))) {
        s->op.listing = NULL;
        free(l);
        mcd_session_refuse(s, MCS_NOT_SUPPORTED,
                           "this host is alone ([peer] listen, [store] master): there is nowhere "
                           "for its objects to go");
        return;
    }
    mcd_session_defer(s, is_done, finish);
    if (res == -ENOTSUP)
        mcd_worker_submit(st->work->lists, &l->job);
    else if (res != 0)
        told(l, MCS_NO_MEMORY, 0, NULL, strerror(-res));
}
