/* SPDX-License-Identifier: Apache-2.0 */
/* A master: who leads, the clock, and messages on their way to whoever works on them. */
#include "master_internal.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "log.h"
#include "shm/status.h"

#define POLL_NS (50 * MCD_MASTER_MS)   /* the directory's clock, and the leader's lease */
#define STILL_NS (500 * MCD_MASTER_MS) /* between two looks: this process stood still */
#define MARGIN_MS 500u /* so long before its lease may end a leader answers no more */
#define AWAY_MS                                                                                    \
    6500u /* an elected leader waits for silent holders for longer than its own lease lasts, 5 s, and a beat: where it is itself that
             is cut off, it does not lead any more by then, and has not said that anything is over of which the others know nothing */
#define WAIT_MS 30000u /* of an asker who names no limit */
/* Tokens are revisions of etcd, or count reigns. One that lies so far above was never given: who says that he has seen it is not
 * believed, or nobody could lead any more once they have come to their end. */
#define JUMP_MAX (UINT64_C(1) << 48)

/* ---- who leads ------------------------------------------------------------------------------ */

static struct mcd_catalog *catalog_of(struct mcd_master *m)
{
    return m->agent->store != NULL ? m->agent->store->catalog : NULL;
}

static const char *own_address(const struct mcd_master *m)
{
    return m->agent->cluster != NULL ? m->agent->cluster->address : "";
}

static void tell_catalog(struct mcd_master *m, const char *address, uint64_t token)
{
    struct mcd_catalog *c = catalog_of(m);

    if (m->told_catalog && m->leader_token == token && strcmp(m->leader, address) == 0)
        return;
    snprintf(m->leader, sizeof(m->leader), "%s", address);
    m->leader_token = token;
    m->seen = token > m->seen ? token : m->seen;
    m->told_catalog = true;
    if (c != NULL)
        mcd_catalog_leader(c, address, token, m->d != NULL ? m : NULL);
}

static void lost_key(void *context, const struct mco_key *key, const struct mco_version *version,
                     uint64_t size, const struct mco_holder *h, unsigned left)
{
    struct mcd_master *m = context;
    struct mco_event e = {.kind = MCO_LOST, .key = *key, .version = *version, .size = size};
    struct mco_events *feed = mcd_master_events(m);

    m->stats.lost += left == 0;
    if (feed != NULL)
        mco_events_add(feed, &e, h->address);
}

struct mco_events *mcd_master_events(struct mcd_master *m)
{
    return m == NULL ? NULL : m->agent->store != NULL ? m->agent->store->events : m->events;
}

static bool knows_of_a_leader(const struct mcd_master *m)
{
    return m->token != 0 || m->seen != 0 ||
           (m->agent->store != NULL && m->agent->store->objects != NULL &&
            mco_token(m->agent->store->objects) != 0);
}

/* Those who are known to have objects; who waits for them alone knows all keys when they have reported. */
static size_t expect(struct mcd_master *m)
{
    char(*holders)[MCM_ADDRESS_MAX] = NULL;
    size_t n = mcm_lead_holders(m->agent->cluster->meta, &holders);

    if (!mcm_lead_noted(m->agent->cluster->meta) && knows_of_a_leader(m))
        m->unsure = true;
    for (size_t i = 0; i < n; i++)
        mco_directory_expect(m->d, holders[i]);
    free(holders);
    if (m->unsure)
        mcd_warning("store: the metadata has lost which agents hold objects: what is not known is "
                    "not called absent for %llu ms",
                    (unsigned long long)m->agent->config.store_rebuild_ms);
    else
        mco_directory_expected(m->d);
    return n;
}

static int step_up(struct mcd_master *m, uint64_t token)
{
    const struct mcd_config *config = &m->agent->config;
    uint64_t away_ms =
        m->elects && config->store_away_ms < AWAY_MS ? AWAY_MS : config->store_away_ms;
    struct mco_directory_options o = {
        .token = token,
        .keys_max = config->store_keys,
        .rebuild_ns = m->agent->cluster != NULL ? config->store_rebuild_ms * MCD_MASTER_MS : 0,
        .put_ns = config->store_put_ms * MCD_MASTER_MS,
        .away_ns = away_ms * MCD_MASTER_MS,
        .gone_ns =
            (config->store_gone_ms < away_ms ? away_ms : config->store_gone_ms) * MCD_MASTER_MS,
        .now = mcd_now_ns(),
        .lost = lost_key,
        .context = m,
    };
    size_t n = 0;
    int res = mco_directory_create(&o, &m->d);

    if (res != 0)
        return res;
    if (m->elects) {
        n = expect(m);
    } else if (strcmp(config->store_master, "embedded") == 0 && m->agent->store != NULL) {
        /* for itself alone: nobody else will come */
        mco_directory_expect(m->d, m->agent->cluster->address);
        mco_directory_expected(m->d);
        n = 1;
    }
    m->token = token;
    m->members = 0;
    m->stats.terms++;
    mcd_info("store: this agent leads the directory, token %llu, %zu agents are expected",
             (unsigned long long)token, n);
    return 0;
}

/* Millions of entries take seconds to free: not in this thread. */
struct burial {
    struct mcd_job job;
    struct mco_directory *d;
};

static void run_burial(struct mcd_job *job)
{
    mco_directory_destroy(((struct burial *)job)->d);
}

static void burial_done(struct mcd_job *job, void *context)
{
    (void)context;
    free(job);
}

static void bury(struct mcd_agent *a, struct mco_directory *d)
{
    struct burial *b = a->worker != NULL ? calloc(1, sizeof(*b)) : NULL;

    if (b == NULL) {
        mco_directory_destroy(d);
        return;
    }
    *b = (struct burial){.job = {.run = run_burial, .done = burial_done}, .d = d};
    mcd_worker_submit(a->worker, &b->job);
}

/* Whoever waits is told; all that was known is in the agents' hands. */
static void step_down(struct mcd_master *m)
{
    if (m->d == NULL)
        return;
    mcd_info("store: this agent does not lead the directory any more, token %llu",
             (unsigned long long)m->token);
    mcd_waitings_end(m, NULL, true);
    mcd_jobs_end(m, NULL, true);
    mcd_orders_destroy(m);
    mcd_joined_destroy(m);
    bury(m->agent, m->d);
    m->d = NULL;
}

/* A leader without an election takes a greater token. */
static void raise_own(struct mcd_master *m)
{
    uint64_t token = m->raise + 1;

    m->raise = 0;
    if (token <= m->token)
        return;
    step_down(m);
    if (step_up(m, token) == 0)
        tell_catalog(m, own_address(m), m->token);
}

/* Looks at the clock and the lease before anything is said or done as the leader: this process may have stood still. False: it
 * does not lead. Only from outside the reign ends, or another begins. */
static bool look(struct mcd_master *m)
{
    struct mcm_leader l;
    bool leads;

    if (!m->elects) {
        if (m->busy == 0 && m->raise != 0)
            raise_own(m);
        return m->d != NULL;
    }
    mcm_lead_get(m->agent->cluster->meta, &l);
    leads = l.mine && mcd_boot_ns() / MCD_MASTER_MS + MARGIN_MS < l.until;
    if (m->busy != 0)
        return m->d != NULL && leads && l.token == m->token;
    if (m->d != NULL && (!leads || l.token != m->token))
        step_down(m);
    if (m->d == NULL && leads && l.token <= m->token) {
        /* Its lease was in doubt for a while, and is not any more. No second reign with the same token: versions would be given
         * twice. */
        mcm_lead_raise(m->agent->cluster->meta, m->token, false);
    } else if (m->d == NULL && leads && step_up(m, l.token) != 0) {
        mcd_log_limited(MCD_LOG_ERROR, "store: no memory to lead the directory");
    }
    if (m->d != NULL)
        tell_catalog(m, own_address(m), m->token);
    else
        tell_catalog(m, l.mine ? "" : l.address, l.mine ? 0 : l.token);
    return m->d != NULL;
}

bool mcd_master_leads(const struct mcd_master *m)
{
    return m != NULL && look((struct mcd_master *)(uintptr_t)m);
}

struct mco_directory *mcd_master_directory(struct mcd_master *m)
{
    return mcd_master_leads(m) ? m->d : NULL;
}

bool mcd_master_raise(struct mcd_master *m, uint64_t token)
{
    if (token - m->token >= JUMP_MAX) {
        mcd_log_limited(MCD_LOG_WARNING,
                        "store: an agent says that it has seen a leader with token %llu, which "
                        "none can have had: its table of objects is damaged",
                        (unsigned long long)token);
        return false;
    }
    mcd_log_limited(
        MCD_LOG_WARNING,
        "store: an agent has seen a leader with token %llu, this one's is %llu: taking a "
        "greater one",
        (unsigned long long)token, (unsigned long long)m->token);
    m->stats.raised++;
    if (m->elects)
        mcm_lead_raise(m->agent->cluster->meta, token, true);
    else if (token > m->raise)
        m->raise = token;
    mcd_master_soon(m);
    return true;
}

/* ---- answers --------------------------------------------------------------------------------- */

void mcd_master_reply(struct mcd_master *m, const struct mcd_asker *who, uint32_t status,
                      const ProtobufCMessage *answer)
{
    struct mcd_catalog *c = catalog_of(m);

    if (who->peer != NULL)
        mcd_peer_answer(who->peer, &who->header, status, answer);
    else if (c != NULL)
        mcd_catalog_answer(c, &who->header, status, answer);
}

uint64_t mcd_master_deadline(const struct mcd_wire_header *h)
{
    uint64_t ms = h->deadline_ms == 0 ? WAIT_MS : h->deadline_ms;

    return mcd_now_ns() + ms * MCD_MASTER_MS / 8 * 7; /* the answer has a way to go */
}

/* ---- messages --------------------------------------------------------------------------------- */

static bool is_ours(uint16_t type)
{
    return type >= MCD_WIRE_STORE_JOIN && type <= MCD_WIRE_STORE_LIST;
}

static const ProtobufCMessageDescriptor *descriptor_of(uint16_t type)
{
    switch (type) {
    case MCD_WIRE_STORE_JOIN:
        return &mcd__store_join__descriptor;
    case MCD_WIRE_STORE_REPORT:
        return &mcd__store_report__descriptor;
    case MCD_WIRE_STORE_EXIST:
    case MCD_WIRE_STORE_FIND:
        return &mcd__store_find__descriptor;
    case MCD_WIRE_STORE_START:
        return &mcd__store_start__descriptor;
    case MCD_WIRE_STORE_END:
        return &mcd__store_end__descriptor;
    case MCD_WIRE_STORE_REMOVE:
        return &mcd__store_remove__descriptor;
    default:
        return &mcd__store_list__descriptor;
    }
}

static uint64_t token_of(uint16_t type, const ProtobufCMessage *q)
{
    switch (type) {
    case MCD_WIRE_STORE_JOIN:
        return ((const Mcd__StoreJoin *)q)->token;
    case MCD_WIRE_STORE_REPORT:
        return ((const Mcd__StoreReport *)q)->token;
    case MCD_WIRE_STORE_EXIST:
    case MCD_WIRE_STORE_FIND:
        return ((const Mcd__StoreFind *)q)->token;
    case MCD_WIRE_STORE_START:
        return ((const Mcd__StoreStart *)q)->token;
    case MCD_WIRE_STORE_END:
        return ((const Mcd__StoreEnd *)q)->token;
    case MCD_WIRE_STORE_REMOVE:
        return ((const Mcd__StoreRemove *)q)->token;
    default:
        return ((const Mcd__StoreList *)q)->token;
    }
}

/* Nobody leads here: a JOIN is told who does. */
static void not_here(struct mcd_master *m, const struct mcd_asker *who)
{
    Mcd__StoreJoined joined = MCD__STORE_JOINED__INIT;
    char error[400];

    m->stats.not_leading++;
    joined.leader = m->leader;
    joined.error = error;
    if (m->leader[0] != '\0')
        snprintf(error, sizeof(error), "not the leader of the store's masters: %s is", m->leader);
    else
        snprintf(error, sizeof(error), "not the leader of the store's masters, and none is known");
    mcd_master_reply(m, who, MCS_NO_DIRECTORY,
                     who->header.type == MCD_WIRE_STORE_JOIN ? &joined.base : NULL);
}

/* Of the leader that the sender has joined, if that is this one in this reign. */
static bool of_this_reign(struct mcd_master *m, const struct mcd_asker *who, uint64_t token)
{
    if (token == m->token || (token == 0 && who->header.type == MCD_WIRE_STORE_LIST))
        return true;
    m->stats.fenced++;
    if (token > m->token)
        (void)mcd_master_raise(m, token);
    mcd_master_reply(m, who, MCS_FENCED, NULL);
    return false;
}

static void handle(struct mcd_master *m, const struct mcd_asker *who, const ProtobufCMessage *q)
{
    switch (who->header.type) {
    case MCD_WIRE_STORE_JOIN:
        mcd_master_on_join(m, who, (const Mcd__StoreJoin *)q);
        break;
    case MCD_WIRE_STORE_REPORT:
        mcd_master_on_report(m, who, (const Mcd__StoreReport *)q);
        break;
    case MCD_WIRE_STORE_EXIST:
    case MCD_WIRE_STORE_FIND:
        mcd_master_on_find(m, who, (const Mcd__StoreFind *)q);
        break;
    case MCD_WIRE_STORE_START:
        mcd_master_on_start(m, who, (const Mcd__StoreStart *)q);
        break;
    case MCD_WIRE_STORE_END:
        mcd_master_on_end(m, who, (const Mcd__StoreEnd *)q);
        break;
    case MCD_WIRE_STORE_REMOVE:
        if (((const Mcd__StoreRemove *)q)->what != 0)
            mcd_master_on_remove_many(m, who, (const Mcd__StoreRemove *)q);
        else
            mcd_master_on_remove(m, who, (const Mcd__StoreRemove *)q);
        break;
    default:
        mcd_master_on_list(m, who, (const Mcd__StoreList *)q);
        break;
    }
}

bool mcd_master_on_message(struct mcd_master *m, struct mcd_peer *p,
                           const struct mcd_wire_header *h, const uint8_t *payload, size_t size)
{
    struct mcd_asker who = {.peer = p, .header = *h};
    ProtobufCMessage *q;
    bool leads;

    if (m == NULL || h->reply || !is_ours(h->type))
        return false;
    leads = look(m);
    q = protobuf_c_message_unpack(descriptor_of(h->type), NULL, size, payload);
    if (q == NULL) {
        m->stats.malformed++;
        mcd_master_reply(m, &who, MCS_PROTOCOL, NULL);
        return true;
    }
    m->stats.requests++;
    m->busy++;
    if (!leads)
        not_here(m, &who);
    else if (h->type == MCD_WIRE_STORE_JOIN || of_this_reign(m, &who, token_of(h->type, q)))
        handle(m, &who, q);
    m->busy--;
    protobuf_c_message_free_unpacked(q, NULL);
    mcd_master_soon(m);
    return true;
}

void mcd_master_peer_gone(struct mcd_master *m, struct mcd_peer *p)
{
    if (m == NULL)
        return;
    mcd_waitings_end(m, p, false);
    mcd_jobs_end(m, p, false);
    mcd_joined_left(m, p);
    mcd_master_soon(m);
}

static void add_line(void *context, const char *address)
{
    fprintf(context, "%s\n", address);
}

/* The next leader is to know whose reports it has to wait for, whatever becomes of their leases. */
static void note_members(struct mcd_master *m, uint64_t now)
{
    uint64_t members = m->elects ? mco_directory_members(m->d, now, NULL, NULL) : m->members;
    char *text = NULL;
    size_t size = 0;
    FILE *out;

    if (m->unsure && mco_directory_rebuilding(m->d, now))
        return; /* the next leader would take these for all */
    m->unsure = false;
    if (members == m->members)
        return;
    out = open_memstream(&text, &size);
    if (out != NULL) {
        mco_directory_members(m->d, now, add_line, out);
        fclose(out);
    }
    if (text != NULL) {
        mcm_lead_note(m->agent->cluster->meta, text);
        m->members = members;
    }
    free(text);
}

/* ---- the clock ---------------------------------------------------------------------------------- */

void mcd_master_poll(struct mcd_master *m)
{
    bool more = false;
    uint64_t now;

    if (m == NULL)
        return;
    (void)look(m);
    now = mcd_now_ns(); /* not before a reign that has just begun */
    m->busy++;
    if (m->d != NULL) {
        /* what agents have said meanwhile has not been read yet */
        if (m->polled != 0 && now - m->polled > STILL_NS)
            mco_directory_stood_still(m->d, now - m->polled);
        more = mco_directory_tick(m->d, now);
        more |= mcd_jobs_poll(m);
        mcd_orders_send(m, now);
        mcd_waitings_poll(m, now);
        note_members(m, now);
    }
    m->busy--;
    m->polled = now;
    mcd_alarm_set(m->agent, &m->alarm, now + (more ? MCD_MASTER_MS : POLL_NS));
}

static void fire(struct mcd_alarm *t)
{
    mcd_master_poll(t->context);
}

void mcd_master_soon(struct mcd_master *m)
{
    mcd_alarm_set(m->agent, &m->alarm, mcd_now_ns());
}

/* ---- life ------------------------------------------------------------------------------------------- */

/* With etcd, a new leader waits for those who are named there. */
static void name_holder(struct mcd_agent *a)
{
    char key[MCM_KEY_MAX + MCD_ADDRESS_TEXT_MAX], value[40];

    if (a->store == NULL || a->store->objects == NULL)
        return;
    snprintf(key, sizeof(key), "%s/store/holders/%s", a->config.meta_prefix, a->cluster->address);
    snprintf(value, sizeof(value), "0x%llx", (unsigned long long)mco_identity(a->store->objects));
    mcm_put(a->cluster->meta, key, value, strlen(value), NULL, NULL);
}

static uint64_t first_token(const struct mcd_agent *a)
{
    return a->store != NULL && a->store->objects != NULL ? mco_token(a->store->objects) + 1 : 1;
}

int mcd_master_create(struct mcd_agent *a, struct mcd_master **out, char *error, size_t error_size)
{
    const char *master = a->config.store_master;
    bool embedded = strcmp(master, "embedded") == 0, follow = strcmp(master, "follow") == 0;
    struct mcd_master *m;
    int res = 0;

    *out = NULL;
    if (strcmp(master, "off") == 0 || a->cluster == NULL)
        return 0;
    m = calloc(1, sizeof(*m));
    if (m == NULL)
        return -ENOMEM;
    m->agent = a;
    m->waiting_end = &m->waiting;
    m->alarm.fire = fire;
    m->alarm.context = m;
    m->elects = a->config.meta_backend == MCM_ETCD && (embedded || follow);
    if (m->elects) {
        name_holder(a);
        res = mcm_lead(a->cluster->meta, embedded);
    } else if (embedded || strcmp(master, a->cluster->address) == 0) {
        res = step_up(m, first_token(a));
        if (res == 0)
            tell_catalog(m, own_address(m), m->token);
    } else if (follow) {
        snprintf(error, error_size,
                 "[store] master = follow: without [meta] backend = etcd nobody is elected; name "
                 "the leader, HOST:PORT, or say embedded or off");
        res = -EINVAL;
    } else {
        tell_catalog(m, master, 0);
    }
    if (res != 0) {
        mcd_master_destroy(m);
        return res;
    }
    /* that of the agent's store, where there is one */
    if (a->store == NULL)
        res = mco_events_create(a->config.store_events, &m->events);
    if (res != 0) {
        mcd_master_destroy(m);
        return res;
    }
    mcd_alarm_set(a, &m->alarm, mcd_now_ns());
    *out = m;
    return 0;
}

void mcd_master_destroy(struct mcd_master *m)
{
    if (m == NULL)
        return;
    step_down(m);
    mcd_alarm_clear(m->agent, &m->alarm);
    mco_events_destroy(m->events);
    free(m);
}
