/* SPDX-License-Identifier: Apache-2.0 */
/* Agents that hold objects: how they join, beat and report. */
#include "master_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "handlers.h"
#include "log.h"
#include "shm/status.h"

#define BEATS 4u          /* of a holder within the time that it is promised */
#define BEAT_LEAST_MS 20u /* between them */

struct mcd_joined *mcd_joined_of(struct mcd_master *m, const struct mcd_peer *peer)
{
    struct mcd_joined *j = m->joined;

    while (j != NULL && (j->away || j->peer != peer))
        j = j->next;
    return j;
}

struct mcd_joined *mcd_joined_at(struct mcd_master *m, uint32_t holder)
{
    struct mcd_joined *j = m->joined;

    while (j != NULL && j->holder != holder)
        j = j->next;
    return j;
}

static struct mcd_joined *of_identity(struct mcd_master *m, uint64_t identity)
{
    struct mcd_joined *j = m->joined;

    while (j != NULL && j->identity != identity)
        j = j->next;
    return j;
}

static void leave(struct mcd_master *m, struct mcd_joined *j)
{
    j->away = true;
    j->peer = NULL;
    mco_directory_left(m->d, j->holder, mcd_now_ns());
}

void mcd_joined_left(struct mcd_master *m, const struct mcd_peer *peer)
{
    struct mcd_joined *j = m->d != NULL ? mcd_joined_of(m, peer) : NULL;

    if (j != NULL)
        leave(m, j);
}

void mcd_joined_destroy(struct mcd_master *m)
{
    struct mcd_joined *next;

    for (struct mcd_joined *j = m->joined; j != NULL; j = next) {
        next = j->next;
        free(j);
    }
    m->joined = NULL;
}

/* ---- joining --------------------------------------------------------------------------------- */

static bool good_text(const char *text)
{
    return text[0] == '\0' || (strlen(text) < MCO_TEXT_MAX && mcd_good_name(text));
}

/* What is wrong with it, in one sentence; NULL: nothing. */
static const char *wrong(const Mcd__StoreJoin *q, char address[MCD_ADDRESS_TEXT_MAX])
{
    struct mcd_address a;

    if (q->identity == 0 || q->life == 0)
        return "its store has no identity or no life";
    if (strlen(q->address) >= MCO_TEXT_MAX || mcd_address_parse(q->address, false, &a) != 0 ||
        !a.has_port)
        return "its address is none: want host:port";
    if (!good_text(q->domain))
        return "its failure domain is no text of at most 255 bytes";
    mcd_address_print(&a, address, MCD_ADDRESS_TEXT_MAX);
    if (strlen(address) >= MCO_TEXT_MAX)
        return "its address is longer than 255 bytes";
    return NULL;
}

static struct mcd_joined *note(struct mcd_master *m, const struct mcd_asker *who,
                               const struct mco_holder *h, uint32_t holder)
{
    struct mcd_joined *j = of_identity(m, h->identity), *other = mcd_joined_of(m, who->peer);

    if (other != NULL && other != j)
        leave(m, other); /* this agent has another memory now */
    if (j == NULL) {
        j = calloc(1, sizeof(*j));
        if (j == NULL)
            return NULL;
        j->next = m->joined;
        m->joined = j;
        mcd_info("store: %s has joined, %llu MiB", h->address,
                 (unsigned long long)(h->capacity >> 20));
    }
    j->peer = who->peer;
    j->away = false;
    j->holder = holder;
    j->identity = h->identity;
    if (j->life != h->life)
        j->told = 0;
    j->life = h->life;
    return j;
}

static void refuse_join(struct mcd_master *m, const struct mcd_asker *who, uint32_t status,
                        const char *why)
{
    Mcd__StoreJoined a = MCD__STORE_JOINED__INIT;
    char text[300];

    snprintf(text, sizeof(text), "the master does not take this store: %s", why);
    mcd_log_limited(MCD_LOG_WARNING, "store: %s was turned down: %s",
                    who->peer != NULL ? who->peer->address : "this agent", why);
    a.token = m->token;
    a.error = text;
    mcd_master_reply(m, who, status, &a.base);
}

/* For how long the holder may lease what it has, ms; 0: not now. */
static uint32_t promise(struct mcd_master *m, uint32_t holder)
{
    return (uint32_t)(mco_directory_promise(m->d, holder, mcd_now_ns()) / MCD_MASTER_MS);
}

/* How often it is to say that it lives: several times within the time that is promised to it. */
static uint32_t beat_ms(const struct mcd_master *m)
{
    const struct mcd_config *c = &m->agent->config;
    uint64_t promised = c->store_rebuild_ms != 0 && c->store_rebuild_ms < c->store_away_ms
                            ? c->store_rebuild_ms
                            : c->store_away_ms;
    uint64_t often = promised / BEATS < BEAT_LEAST_MS ? BEAT_LEAST_MS : promised / BEATS;

    return (uint32_t)(c->store_beat_ms < often ? c->store_beat_ms : often);
}

void mcd_master_on_join(struct mcd_master *m, const struct mcd_asker *who, const Mcd__StoreJoin *q)
{
    Mcd__StoreJoined a = MCD__STORE_JOINED__INIT;
    struct mco_holder h = {.identity = q->identity,
                           .life = q->life,
                           .capacity = q->capacity,
                           .used = q->used,
                           .draining = q->draining,
                           .current = q->current};
    char address[MCD_ADDRESS_TEXT_MAX];
    const char *why = wrong(q, address);
    struct mcd_joined *j;
    uint32_t holder;
    bool report;

    if (why != NULL) {
        m->stats.malformed++;
        refuse_join(m, who, MCS_PROTOCOL, why);
        return;
    }
    if (q->token > m->token) {
        if (mcd_master_raise(m, q->token))
            refuse_join(m, who, MCS_NO_DIRECTORY, "it has seen a later leader; join again");
        else
            refuse_join(m, who, MCS_PROTOCOL,
                        "it has seen a token that no leader can have had; its table of objects is "
                        "damaged, drop it");
        return;
    }
    memcpy(h.address, address, strlen(address) + 1); /* both were seen to fit */
    memcpy(h.domain, q->domain, strlen(q->domain) + 1);
    holder = mco_directory_join(m->d, &h, mcd_now_ns(), &report);
    j = holder == MCO_NO_HOLDER ? NULL : note(m, who, &h, holder);
    if (j == NULL) {
        refuse_join(m, who, MCS_LIMIT, "there are as many as the directory can take, or no memory");
        return;
    }
    if (!report && (j->told == 0 || q->next < j->told)) {
        mco_directory_report_begins(m->d, holder); /* what it has is not what was told */
        report = true;
    }
    a.token = m->token;
    a.report = report;
    a.beat_ms = beat_ms(m);
    a.current_ms = promise(m, holder);
    a.stale = a.current_ms == 0;
    a.told = report ? 0 : j->told;
    a.draining = mco_directory_holder_at(m->d, holder)->draining;
    mcd_master_reply(m, who, MCS_OK, &a.base);
}

/* ---- reports ----------------------------------------------------------------------------------- */

void mcd_master_on_report(struct mcd_master *m, const struct mcd_asker *who,
                          const Mcd__StoreReport *q)
{
    Mcd__StoreReported a = MCD__STORE_REPORTED__INIT;
    struct mcd_joined *j = mcd_joined_of(m, who->peer);
    int64_t n = mcd_names_count(q->keys.data, q->keys.len);
    const uint8_t *at = q->keys.data;
    struct mco_report batch[64];
    size_t fill = 0;
    uint64_t now = mcd_now_ns();

    if (j == NULL) {
        m->stats.fenced++;
        mcd_master_reply(m, who, MCS_FENCED, NULL);
        return;
    }
    if (n < 0 || q->n_tenant != (size_t)n || q->n_version_token != (size_t)n ||
        q->n_version_sequence != (size_t)n || q->n_size != (size_t)n || q->n_crc != (size_t)n ||
        q->n_flags != (size_t)n) {
        m->stats.malformed++;
        mcd_master_reply(m, who, MCS_PROTOCOL, NULL);
        return;
    }
    if (q->full && q->first)
        mco_directory_report_begins(m->d, j->holder);
    for (int64_t i = 0; i < n; i++) {
        uint32_t copies = q->flags[i] >> 8;

        batch[fill++] = (struct mco_report){
            .key = mcd_names_next(&at, q->tenant[i]),
            .version = {q->version_token[i], q->version_sequence[i]},
            .size = q->size[i],
            .crc = q->crc[i],
            .there = (q->flags[i] & 1) != 0,
            .disk = (q->flags[i] & 2) != 0,
            .copies = copies > MCS_REPLICAS_MAX ? (uint8_t)MCS_REPLICAS_MAX : (uint8_t)copies,
        };
        if (fill == sizeof(batch) / sizeof(batch[0]) || i + 1 == n) {
            mco_directory_report(m->d, j->holder, batch, fill, now);
            fill = 0;
        }
    }
    if (n == 0)
        mco_directory_heard(m->d, j->holder, now);
    if (q->full && q->last)
        mco_directory_report_ends(m->d, j->holder, now);
    if (!q->full || q->last)
        j->told = q->next;
    a.current_ms = promise(m, j->holder);
    a.stale = a.current_ms == 0;
    a.token = m->token;
    mcd_master_reply(m, who, MCS_OK, &a.base);
}
