/* SPDX-License-Identifier: Apache-2.0 */
/* Questions about keys, puts, removals; and answers that wait for holders. */
#include "master_internal.h"

#include <stdlib.h>
#include <string.h>

#include "shm/status.h"

static void malformed(struct mcd_master *m, const struct mcd_asker *who)
{
    m->stats.malformed++;
    mcd_master_reply(m, who, MCS_PROTOCOL, NULL);
}

static ProtobufCBinaryData bytes_of(uint8_t *data, size_t n)
{
    return (ProtobufCBinaryData){.data = data, .len = n};
}

/* ---- finding ----------------------------------------------------------------------------------- */

/* What a FIND's answer is made of, in one piece of memory. */
struct found {
    struct mco_key *keys;
    struct mco_found_at *at;
    uint64_t *tokens, *sequences, *sizes;
    uint32_t *crcs, *holders;
    uint8_t *status, *nholders, *away;
    char **hosts;
    uint32_t *host_of; /* by holder: its place in hosts and one more; 0: none */
};

static void find_answer(struct mcd_master *m, const struct mcd_asker *who, struct found *f,
                        size_t n)
{
    Mcd__StoreFound a = MCD__STORE_FOUND__INIT;

    for (size_t i = 0; i < n; i++) {
        const struct mco_found_at *o = &f->at[i];

        f->status[i] = o->status;
        f->tokens[i] = o->version.token;
        f->sequences[i] = o->version.sequence;
        f->sizes[i] = o->size;
        f->crcs[i] = o->crc;
        f->nholders[i] = o->nholders;
        f->away[i] = o->naway;
        for (unsigned k = 0; k < o->nholders; k++) {
            uint32_t *host = &f->host_of[o->holders[k]];

            if (*host == 0) {
                f->hosts[a.n_hosts] =
                    (char *)(uintptr_t)mco_directory_holder_at(m->d, o->holders[k])->address;
                *host = (uint32_t)++a.n_hosts;
            }
            f->holders[a.n_holders++] = *host - 1;
        }
    }
    a.token = m->token;
    a.status = bytes_of(f->status, n);
    a.nholders = bytes_of(f->nholders, n);
    a.away = bytes_of(f->away, n);
    a.n_version_token = a.n_version_sequence = a.n_size = a.n_crc = n;
    a.version_token = f->tokens;
    a.version_sequence = f->sequences;
    a.size = f->sizes;
    a.crc = f->crcs;
    a.holders = f->holders;
    a.hosts = f->hosts;
    mcd_master_reply(m, who, MCS_OK, &a.base);
}

static void exist_answer(struct mcd_master *m, const struct mcd_asker *who, struct found *f,
                         size_t n)
{
    Mcd__StoreFound a = MCD__STORE_FOUND__INIT;

    a.token = m->token;
    a.status = bytes_of(f->status, n);
    mcd_master_reply(m, who, MCS_OK, &a.base);
}

void mcd_master_on_find(struct mcd_master *m, const struct mcd_asker *who, const Mcd__StoreFind *q)
{
    int64_t n = mcd_names_count(q->keys.data, q->keys.len);
    bool exist = who->header.type == MCD_WIRE_STORE_EXIST;
    const uint8_t *at = q->keys.data;
    size_t each = sizeof(struct mco_key) + 1 +
                  (exist ? 0
                         : sizeof(struct mco_found_at) + 3 * sizeof(uint64_t) + sizeof(uint32_t) +
                               MCS_REPLICAS_MAX * sizeof(uint32_t) + 2);
    size_t hosts = exist ? 0 : MCO_HOLDERS_MAX * (sizeof(char *) + sizeof(uint32_t));
    struct found f = {0};
    uint8_t *memory;

    if (n < 0) {
        malformed(m, who);
        return;
    }
    memory = calloc(1, each * (size_t)n + hosts + 64);
    if (memory == NULL) {
        mcd_master_reply(m, who, MCS_NO_MEMORY, NULL);
        return;
    }
    f.keys = (struct mco_key *)memory;
    for (int64_t i = 0; i < n; i++)
        f.keys[i] = mcd_names_next(&at, q->tenant);
    if (exist) {
        f.status = (uint8_t *)(f.keys + n);
        mco_directory_exist(m->d, f.keys, (size_t)n, mcd_now_ns(), f.status);
        exist_answer(m, who, &f, (size_t)n);
    } else {
        f.at = (struct mco_found_at *)(f.keys + n);
        f.tokens = (uint64_t *)(f.at + n);
        f.sequences = f.tokens + n;
        f.sizes = f.sequences + n;
        f.hosts = (char **)(f.sizes + n);
        f.host_of = (uint32_t *)(f.hosts + MCO_HOLDERS_MAX);
        f.crcs = f.host_of + MCO_HOLDERS_MAX;
        f.holders = f.crcs + n;
        f.status = (uint8_t *)(f.holders + (size_t)n * MCS_REPLICAS_MAX);
        f.nholders = f.status + n;
        f.away = f.nholders + n;
        mco_directory_find(m->d, f.keys, (size_t)n, mcd_now_ns(), f.at);
        find_answer(m, who, &f, (size_t)n);
    }
    free(memory);
}

/* ---- puts ---------------------------------------------------------------------------------------- */

void mcd_master_on_start(struct mcd_master *m, const struct mcd_asker *who,
                         const Mcd__StoreStart *q)
{
    Mcd__StoreStarted a = MCD__STORE_STARTED__INIT;
    struct mcd_joined *j = mcd_joined_of(m, who->peer);
    int64_t n = mcd_names_count(q->keys.data, q->keys.len);
    const uint8_t *at = q->keys.data;
    uint32_t preferred = MCO_NO_HOLDER;
    uint64_t *versions, now = mcd_now_ns();
    uint8_t *status;

    if (j == NULL) {
        m->stats.fenced++;
        mcd_master_reply(m, who, MCS_FENCED, NULL);
        return;
    }
    if (n < 0 || q->n_size != (size_t)n || q->replicas > MCS_REPLICAS_MAX) {
        malformed(m, who);
        return;
    }
    versions = malloc((size_t)n * (2 * sizeof(*versions) + 1) + 1);
    if (versions == NULL) {
        mcd_master_reply(m, who, MCS_NO_MEMORY, NULL);
        return;
    }
    status = (uint8_t *)(versions + 2 * n);
    if (q->preferred[0] != '\0')
        preferred = mco_directory_holder_named(m->d, q->preferred);
    for (int64_t i = 0; i < n; i++) {
        struct mco_start s = {.key = mcd_names_next(&at, q->tenant),
                              .size = q->size[i],
                              .flags = q->flags,
                              .replicas = (uint8_t)q->replicas,
                              .preferred = preferred};
        struct mco_started out;

        mco_directory_start(m->d, j->holder, &s, 1, now, &out);
        status[i] = out.status;
        versions[i] = out.version.token;
        versions[n + i] = out.version.sequence;
    }
    a.token = m->token;
    a.status = bytes_of(status, (size_t)n);
    a.n_version_token = a.n_version_sequence = (size_t)n;
    a.version_token = versions;
    a.version_sequence = versions + n;
    mcd_master_reply(m, who, MCS_OK, &a.base);
    free(versions);
}

/* ---- answers that wait ---------------------------------------------------------------------------- */

static void waiting_free(struct mcd_waiting *w)
{
    if (w->check != NULL)
        w->check->done = NULL;
    free(w->keys);
    free(w->versions);
    free(w->status);
    free(w);
}

static struct mcd_waiting *waiting_create(const struct mcd_asker *who, uint64_t tenant,
                                          ProtobufCBinaryData keys, uint32_t n)
{
    struct mcd_waiting *w = calloc(1, sizeof(*w));

    if (w == NULL)
        return NULL;
    w->keys = malloc(keys.len + 1);
    w->versions = calloc(n + 1, sizeof(*w->versions));
    w->status = calloc(n + 1, 2);
    if (w->keys == NULL || w->versions == NULL || w->status == NULL) {
        waiting_free(w);
        return NULL;
    }
    memcpy(w->keys, keys.data, keys.len);
    w->next_key = w->keys;
    w->copies = w->status + n;
    w->asker = *who;
    w->tenant = tenant;
    w->n = n;
    w->deadline = mcd_master_deadline(&who->header);
    return w;
}

static void waiting_answer(struct mcd_master *m, struct mcd_waiting *w, uint32_t status)
{
    Mcd__StoreEnded ended = MCD__STORE_ENDED__INIT;
    Mcd__StoreRemoved removed = MCD__STORE_REMOVED__INIT;

    ended.token = removed.token = m->token;
    ended.status = removed.status = bytes_of(w->status, w->n);
    ended.copies = bytes_of(w->copies, w->n);
    for (uint32_t i = 0; i < w->n; i++)
        removed.removed += w->status[i] == MCS_OK;
    if (status != MCS_OK)
        mcd_master_reply(m, &w->asker, status, NULL);
    else
        mcd_master_reply(m, &w->asker, status,
                         w->asker.header.type == MCD_WIRE_STORE_END ? &ended.base : &removed.base);
}

/* The keys in turn, as far as they are settled. late: as they are. True: all are. */
static bool settle(struct mcd_master *m, struct mcd_waiting *w, uint64_t now, bool late)
{
    bool end = w->asker.header.type == MCD_WIRE_STORE_END;

    if (w->check != NULL && !late)
        return false;
    if (w->check != NULL) {
        m->stats.late++;
        memset(w->status, MCS_TIMEOUT, w->n);
        return true;
    }
    while (w->at < w->n) {
        const uint8_t *at = w->next_key;
        struct mco_key key = mcd_names_next(&at, w->tenant);
        const struct mco_version *v = &w->versions[w->at];
        unsigned copies = 0, missing = 0, pending = 0;

        if (w->status[w->at] == MCS_OK || !end) /* a removal waits also for one before it */
            pending = mco_directory_pending(m->d, &key, v, now);
        if (w->status[w->at] == MCS_OK && end)
            missing = mco_directory_missing(m->d, &key, v, &copies);
        if ((pending != 0 || missing != 0) && !late)
            return false;
        m->stats.late += pending != 0 || missing != 0;
        if (pending != 0)
            w->status[w->at] = MCS_TIMEOUT;
        w->copies[w->at] = (uint8_t)copies;
        w->next_key = at;
        w->at++;
    }
    return true;
}

/* Answers it, or lets it wait. */
static void wait_for(struct mcd_master *m, struct mcd_waiting *w)
{
    if (settle(m, w, mcd_now_ns(), false)) {
        waiting_answer(m, w, MCS_OK);
        waiting_free(w);
        return;
    }
    *m->waiting_end = w;
    m->waiting_end = &w->next;
    m->stats.waiting++;
}

void mcd_waitings_poll(struct mcd_master *m, uint64_t now)
{
    struct mcd_waiting **link = &m->waiting, *w;

    while ((w = *link) != NULL) {
        if (!settle(m, w, now, now >= w->deadline)) {
            link = &w->next;
            continue;
        }
        *link = w->next;
        m->stats.waiting--;
        waiting_answer(m, w, MCS_OK);
        waiting_free(w);
    }
    m->waiting_end = link;
}

void mcd_waitings_end(struct mcd_master *m, const struct mcd_peer *peer, bool everybody)
{
    struct mcd_waiting **link = &m->waiting, *w;

    while ((w = *link) != NULL) {
        if (!everybody && w->asker.peer != peer) {
            link = &w->next;
            continue;
        }
        *link = w->next;
        m->stats.waiting--;
        if (everybody)
            waiting_answer(m, w, MCS_NO_DIRECTORY);
        waiting_free(w);
    }
    m->waiting_end = link;
}

void mcd_master_on_end(struct mcd_master *m, const struct mcd_asker *who, const Mcd__StoreEnd *q)
{
    struct mcd_joined *j = mcd_joined_of(m, who->peer);
    int64_t n = mcd_names_count(q->keys.data, q->keys.len);
    const uint8_t *at = q->keys.data;
    struct mcd_waiting *w;
    uint64_t now = mcd_now_ns();

    if (j == NULL) {
        m->stats.fenced++;
        mcd_master_reply(m, who, MCS_FENCED, NULL);
        return;
    }
    if (n < 0 || q->n_version_token != (size_t)n || q->n_version_sequence != (size_t)n ||
        q->n_size != (size_t)n || q->n_crc != (size_t)n || q->status.len != (size_t)n) {
        malformed(m, who);
        return;
    }
    w = waiting_create(who, q->tenant, q->keys, (uint32_t)n);
    if (w == NULL) {
        mcd_master_reply(m, who, MCS_NO_MEMORY, NULL);
        return;
    }
    for (int64_t i = 0; i < n; i++) {
        struct mco_report r = {.key = mcd_names_next(&at, q->tenant),
                               .version = {q->version_token[i], q->version_sequence[i]},
                               .size = q->size[i],
                               .crc = q->crc[i],
                               .there = q->status.data[i] == MCS_OK,
                               .copies = 1};

        w->versions[i] = r.version;
        mco_directory_end(m->d, j->holder, &r, 1, now, &w->status[i]);
    }
    mcd_orders_send(m, now);
    wait_for(m, w);
}

static void remove_keys(struct mcd_master *m, struct mcd_waiting *w, uint64_t now)
{
    const uint8_t *at = w->keys;
    unsigned left;

    for (uint32_t i = 0; i < w->n; i++) {
        struct mco_key key = mcd_names_next(&at, w->tenant);

        if (w->status[i] != MCS_IN_USE)
            w->status[i] = (uint8_t)mco_directory_remove(m->d, &key, &w->versions[i], now, &left);
    }
}

/* Of which keys of a removal somebody makes use is known. */
static void checked(struct mcd_master *m, struct mcd_check *k)
{
    struct mcd_waiting *w = k->context;

    w->check = NULL;
    for (uint32_t i = 0; i < w->n; i++)
        w->status[i] = k->used[i] != 0 ? MCS_IN_USE : MCS_OK;
    remove_keys(m, w, mcd_now_ns());
    mcd_master_soon(m);
}

/* False: no memory. */
static bool check_keys(struct mcd_master *m, struct mcd_waiting *w, uint64_t now)
{
    struct mcd_check *k = mcd_check_create(checked, w);
    const uint8_t *at = w->keys;
    bool good = k != NULL;

    for (uint32_t i = 0; good && i < w->n; i++) {
        struct mco_key key = mcd_names_next(&at, w->tenant);

        good = mcd_check_add(m, k, &key, now);
    }
    if (good) {
        w->check = k;
        mcd_check_send(m, k);
    } else if (k != NULL) {
        mcd_check_destroy(k);
    }
    return good;
}

void mcd_master_on_remove(struct mcd_master *m, const struct mcd_asker *who,
                          const Mcd__StoreRemove *q)
{
    bool force = (q->flags & MCS_OBJECT_FORCE) != 0;
    int64_t n = mcd_names_count(q->keys.data, q->keys.len);
    struct mcd_waiting *w;
    uint64_t now = mcd_now_ns();

    if (n < 0) {
        malformed(m, who);
        return;
    }
    w = waiting_create(who, q->tenant, q->keys, (uint32_t)n);
    if (w == NULL) {
        mcd_master_reply(m, who, MCS_NO_MEMORY, NULL);
        return;
    }
    if (force || mco_directory_rebuilding(m->d, now)) { /* then nothing is removed */
        remove_keys(m, w, now);
    } else if (!check_keys(m, w, now)) {
        mcd_master_reply(m, who, MCS_NO_MEMORY, NULL);
        waiting_free(w);
        return;
    }
    mcd_orders_send(m, now);
    wait_for(m, w);
}
