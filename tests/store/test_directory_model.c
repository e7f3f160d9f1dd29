/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The directory among agents that put, remove, evict, lose their connections, restart and lose their memory at random, with
 * leaders that change, also while puts are under way: these end under the next one, and are told until they are answered.
 * What agents say arrives in order, but late.  Whenever all has arrived, the directory and
 * the agents agree; what was acknowledged is there, and what was removed is not.  An agent that a leader has promised to wait for
 * has, for so long, no life that was said to be over: it may lease what it has.
 */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "store/object/directory.h"

#define S UINT64_C(1000000000)
enum { AGENTS = 4, KEYS = 12, QUEUE = 4096 };

/* What an agent has to say to the master, or the master to it. */
struct said {
    enum { SAID_REPORT, SAID_END, SAID_DONE, SAID_BEGINS, SAID_ENDS } kind;
    unsigned key;
    struct mco_report report;
    struct mco_order order;
    bool upsert;
    uint64_t reign;
};

struct queue {
    struct said *items[QUEUE];
    unsigned first, count;
};

/* A put of an agent's, until it has heard that it is over. */
struct put {
    enum { PUT_NONE, PUT_OPEN, PUT_SEALED, PUT_GIVEN_UP } state;
    struct mco_version version;
};

struct agent {
    struct mco_version has[KEYS]; /* sequence 0: nothing */
    struct put puts[KEYS];
    struct mco_version named[KEYS]; /* the last life that a leader has sent others for */
    struct mco_version late[KEYS];  /* one that was over before a leader had heard of it */
    uint64_t identity, life;
    uint64_t current_until;
    uint32_t holder;
    bool connected;
    bool promised; /* in this reign */
    struct queue out, in;
};

/* A removal, or a put that replaces, that is not answered before earlier lives are dropped. */
struct unanswered {
    unsigned key, agent;              /* AGENTS: a removal */
    struct mco_version version, over; /* what it waits for; what is over when it is answered */
};

struct sim {
    struct mco_directory *d;
    struct agent agents[AGENTS];
    uint64_t now, token, random, graves;
    char names[KEYS][8];
    struct mco_version acked[KEYS], removed[KEYS];
    struct mco_version over[KEYS];        /* that it is was said, by whatever leader */
    struct mco_version sealed_late[KEYS]; /* the last one that was so when it was over */
    struct mco_version evicted
        [KEYS]; /* a leader may hear late that it was there, and takes it for the last one, then */
    struct unanswered unanswered[QUEUE];
    unsigned nunanswered;
    unsigned long promises, kept; /* given; that an agent had while something was said to be over */
    unsigned long late;           /* puts that ended under another leader than they began under */
    unsigned steps, settled;
};

static uint64_t random_of(struct sim *s, uint64_t below)
{
    s->random ^= s->random << 13;
    s->random ^= s->random >> 7;
    s->random ^= s->random << 17;
    return s->random % below;
}

static struct mco_key key_of(struct sim *s, unsigned k)
{
    return mco_key(1, s->names[k], (uint32_t)strlen(s->names[k]));
}

static void push(struct queue *q, const struct said *w)
{
    struct said *copy = malloc(sizeof(*copy));

    cr_assert_lt(q->count, QUEUE);
    *copy = *w;
    q->items[(q->first + q->count++) % QUEUE] = copy;
}

static struct said *pop(struct queue *q)
{
    struct said *w;

    if (q->count == 0)
        return NULL;
    w = q->items[q->first];
    q->first = (q->first + 1) % QUEUE;
    q->count--;
    return w;
}

static void drop_all(struct queue *q)
{
    struct said *w;

    while ((w = pop(q)) != NULL)
        free(w);
}

static struct mco_report report_of(struct sim *s, unsigned k, struct mco_version v, bool there)
{
    return (struct mco_report){.key = key_of(s, k),
                               .version = v,
                               .size = 10,
                               .crc = (uint32_t)v.sequence,
                               .there = there,
                               .copies = 1};
}

static void says(struct sim *s, unsigned i, unsigned k, struct mco_version v, bool there)
{
    struct said w = {.kind = SAID_REPORT, .key = k, .report = report_of(s, k, v, there)};

    push(&s->agents[i].out, &w);
}

static void loses(struct sim *s, unsigned i, unsigned k)
{
    struct agent *a = &s->agents[i];

    if (a->has[k].sequence == 0)
        return;
    says(s, i, k, a->has[k], false);
    a->has[k] = (struct mco_version){0};
}

static void gets(struct sim *s, unsigned i, unsigned k, struct mco_version v)
{
    struct mco_version before = s->agents[i].has[k];

    s->agents[i].has[k] = v;
    says(s, i, k, v, true);
    if (before.sequence != 0)
        says(s, i, k, before, false); /* replaced */
}

/* What the leader promises with its answer to what it has just heard. It may not arrive. */
static void promises(struct sim *s, unsigned i)
{
    struct agent *a = &s->agents[i];
    uint64_t ns = mco_directory_promise(s->d, a->holder, s->now);

    /* what was removed while it was away comes back with it, where the leader is another */
    if (ns != 0 && !a->promised && s->now >= a->current_until)
        memset(s->over, 0, sizeof(s->over));
    a->promised |= ns != 0;
    if (ns == 0)
        a->current_until = 0;
    else if (random_of(s, 4) != 0 && a->current_until < s->now + ns)
        a->current_until = s->now + ns;
    s->promises += ns != 0;
}

static void waits(struct sim *s, unsigned i, unsigned k, struct mco_version version,
                  struct mco_version over)
{
    cr_assert_lt(s->nunanswered, QUEUE);
    s->unanswered[s->nunanswered++] = (struct unanswered){k, i, version, over};
}

/* How this put of the agent's has gone, as it is now. */
static void tells_end(struct sim *s, unsigned i, unsigned k)
{
    const struct put *p = &s->agents[i].puts[k];
    bool there =
        p->state == PUT_SEALED && mco_version_compare(&s->agents[i].has[k], &p->version) == 0;
    struct said w = {.kind = SAID_END, .key = k, .report = report_of(s, k, p->version, there)};

    push(&s->agents[i].out, &w);
}

/* It has heard what has become of it. */
static void put_is_over(struct sim *s, unsigned i, unsigned k, const struct mco_version *v)
{
    struct put *p = &s->agents[i].puts[k];

    if (p->state != PUT_NONE && mco_version_compare(&p->version, v) == 0) {
        s->late += p->state == PUT_SEALED && v->token != s->token;
        p->state = PUT_NONE;
    }
}

/* Which lives does the master send others for? One that was never named nobody asks for. */
static void note_named(struct sim *s, unsigned k)
{
    struct mco_key key = key_of(s, k);
    struct mco_found_at f;

    mco_directory_find(s->d, &key, 1, s->now, &f);
    for (unsigned i = 0; i < AGENTS; i++)
        for (unsigned n = 0; n < f.nholders; n++)
            if (f.holders[n] == s->agents[i].holder)
                s->agents[i].named[k] = f.version;
}

static bool queued(const struct queue *q, unsigned k)
{
    for (unsigned n = 0; n < q->count; n++)
        if (q->items[(q->first + n) % QUEUE]->key == k)
            return true;
    return false;
}

/*
 * A put that was undone, and sealed after later lives were over. The next leaders do not know that any more where the last one was removed,
 * or where nobody who has it has been heard in time: the key comes back with this put.
 */
static bool comes_back(struct sim *s, unsigned k, const struct mco_version *v)
{
    bool later = mco_directory_rebuilding(s->d, s->now);

    for (unsigned i = 0; i < AGENTS; i++)
        later |= s->agents[i].connected && !queued(&s->agents[i].out, k) &&
                 mco_version_compare(&s->agents[i].has[k], &s->over[k]) > 0 &&
                 mco_directory_state(s->d, s->agents[i].holder) == MCO_HOLDER_HERE;
    return !later && v->token != s->token && mco_version_compare(v, &s->sealed_late[k]) == 0;
}

/* Answers what need not wait any more, and looks whether promises are kept. */
static void answers(struct sim *s)
{
    for (unsigned n = 0; n < s->nunanswered; n++) {
        struct unanswered *u = &s->unanswered[n];
        struct mco_key key = key_of(s, u->key);
        bool there = mco_version_compare(&u->over, &u->version) == 0; /* a removal */

        if (mco_directory_pending(s->d, &key, &u->version, s->now) != 0)
            continue;
        for (unsigned i = 0; i < AGENTS; i++) /* or it was evicted before its put was answered */
            there |= mco_version_compare(&s->agents[i].has[u->key], &u->version) >= 0;
        if (there && mco_version_compare(&u->over, &s->over[u->key]) > 0)
            s->over[u->key] = u->over;
        for (unsigned i = 0; i < AGENTS; i++)
            if (mco_version_compare(&s->agents[i].has[u->key], &s->agents[i].named[u->key]) != 0)
                s->agents[i].late[u->key] = s->agents[i].has[u->key];
        if (u->agent < AGENTS)
            put_is_over(s, u->agent, u->key, &u->version);
        *u = s->unanswered[--s->nunanswered];
        n--;
    }
    for (unsigned i = 0; i < AGENTS; i++)
        for (unsigned k = 0; k < KEYS && s->now < s->agents[i].current_until; k++) {
            const struct mco_version *v = &s->agents[i].has[k];
            const struct put *p = &s->agents[i].puts[k];

            if (p->state == PUT_SEALED && mco_version_compare(v, &p->version) == 0 &&
                v->token != s->token)
                continue; /* the leader has not said yet that it is the last one: it is not leased */
            if (comes_back(s, k, v))
                s->over[k] = (struct mco_version){0};
            s->kept += s->over[k].sequence != 0;
            cr_assert(v->sequence == 0 || mco_version_compare(v, &s->over[k]) > 0 ||
                          mco_version_compare(v, &s->agents[i].named[k]) != 0 ||
                          mco_version_compare(v, &s->agents[i].late[k]) == 0,
                      "step %u: agent %u may lease key %u %lu.%lu, which is over up to %lu.%lu",
                      s->steps, i, k, v->token, v->sequence, s->over[k].token, s->over[k].sequence);
        }
}

/* Joins and, when that is wanted, tells everything. */
static void joins(struct sim *s, unsigned i)
{
    struct agent *a = &s->agents[i];
    struct mco_holder h = {.identity = a->identity,
                           .life = a->life,
                           .capacity = 1 << 20,
                           .current = s->now < a->current_until};
    struct said begins = {.kind = SAID_BEGINS}, ends = {.kind = SAID_ENDS};
    bool report;

    snprintf(h.address, sizeof(h.address), "agent%u:1", i);
    a->holder = mco_directory_join(s->d, &h, s->now, &report);
    cr_assert_neq(a->holder, MCO_NO_HOLDER);
    a->connected = true;
    promises(s, i);
    if (report) {
        drop_all(&a->out); /* the full report says it all */
        push(&a->out, &begins);
    }
    for (unsigned k = 0; k < KEYS; k++) {
        bool early = random_of(s, 2) != 0, end = a->puts[k].state >= PUT_SEALED;

        if (end && early)
            tells_end(s, i, k);
        if (report && a->has[k].sequence != 0)
            says(s, i, k, a->has[k], true);
        if (end && !early)
            tells_end(s, i, k);
    }
    if (report)
        push(&a->out, &ends);
}

static void leaves(struct sim *s, unsigned i)
{
    struct agent *a = &s->agents[i];
    struct queue kept = {0};
    struct said *w;

    if (!a->connected)
        return;
    a->connected = false;
    drop_all(&a->in);
    /* events are kept and told when it is back; answers to orders are not */
    while ((w = pop(&a->out)) != NULL) {
        if (w->kind == SAID_REPORT)
            push(&kept, w);
        free(w);
    }
    a->out = kept;
    for (unsigned n = 0; n < s->nunanswered; n++)
        if (s->unanswered[n].agent == i)
            s->unanswered[n--] = s->unanswered[--s->nunanswered];
    mco_directory_left(s->d, a->holder, s->now);
}

/* Whoever filled it is gone; what is sealed is there. */
static void dies(struct sim *s, unsigned i)
{
    struct agent *a = &s->agents[i];

    leaves(s, i);
    drop_all(&a->out);
    for (unsigned k = 0; k < KEYS; k++)
        a->puts[k].state = PUT_NONE;
    a->life++;
    a->current_until = 0;
}

static void leads(struct sim *s)
{
    struct mco_directory_options o = {.token = ++s->token,
                                      .rebuild_ns = S,
                                      .put_ns = 8 * S,
                                      .away_ns = 3 * S,
                                      .gone_ns = 30 * S,
                                      .graves_max = s->graves,
                                      .now = s->now};

    mco_directory_destroy(s->d);
    cr_assert_eq(mco_directory_create(&o, &s->d), 0);
    for (unsigned i = 0; i < AGENTS; i++) {
        char address[16];

        snprintf(address, sizeof(address), "agent%u:1", i);
        mco_directory_expect(s->d, address);
    }
    mco_directory_expected(s->d);
    memset(s->removed, 0, sizeof(s->removed)); /* what was away then may come back with it */
    s->nunanswered = 0;
    for (unsigned i = 0; i < AGENTS; i++)
        s->agents[i].promised = false;
    for (unsigned i = 0; i < AGENTS; i++)
        if (s->agents[i].connected) {
            drop_all(&s->agents[i].in);
            drop_all(&s->agents[i].out);
            joins(s, i);
        }
}

/* One message of an agent's reaches the master. */
static bool master_hears(struct sim *s, unsigned i)
{
    struct agent *a = &s->agents[i];
    struct said *w = a->connected ? pop(&a->out) : NULL;
    uint8_t status;

    if (w == NULL)
        return false;
    mco_directory_heard(s->d, a->holder, s->now);
    switch (w->kind) {
    case SAID_REPORT:
        mco_directory_report(s->d, a->holder, &w->report, 1, s->now);
        break;
    case SAID_BEGINS:
        mco_directory_report_begins(s->d, a->holder);
        break;
    case SAID_ENDS:
        mco_directory_report_ends(s->d, a->holder, s->now);
        break;
    case SAID_END:
        mco_directory_end(s->d, a->holder, &w->report, 1, s->now, &status);
        if (status == MCS_OK && w->report.there)
            waits(s, i, w->key, w->report.version,
                  (struct mco_version){w->report.version.token, w->report.version.sequence - 1});
        else
            put_is_over(s, i, w->key, &w->report.version);
        if (status == MCS_OK && mco_version_compare(&w->report.version, &s->acked[w->key]) > 0 &&
            mco_version_compare(&w->report.version, &s->removed[w->key]) > 0 &&
            mco_version_compare(&w->report.version, &s->evicted[w->key]) > 0)
            s->acked[w->key] =
                mco_version_compare(&w->report.version, &a->has[w->key]) == 0
                    ? w->report.version
                    : (struct mco_version){0}; /* evicted already, and what came before is over */
        if (status == MCS_NOT_OWNER &&
            mco_version_compare(&w->report.version, &a->has[w->key]) == 0)
            loses(s, i, w->key);
        break;
    case SAID_DONE:
        mco_directory_done(s->d, &w->order, MCS_OK, s->now);
        break;
    }
    promises(s, i);
    note_named(s, w->key);
    answers(s);
    free(w);
    return true;
}

/* One order reaches its holder. */
static bool agent_hears(struct sim *s, unsigned i)
{
    struct agent *a = &s->agents[i];
    struct said *w = a->connected ? pop(&a->in) : NULL;

    if (w == NULL)
        return false;
    if (w->order.kind == MCO_ORDER_DROP) {
        if (mco_version_compare(&a->has[w->key], &w->order.version) <= 0)
            loses(s, i, w->key);
    } else {
        struct agent *from = NULL;

        for (unsigned n = 0; n < AGENTS; n++)
            if (s->agents[n].holder == w->order.from && s->agents[n].connected)
                from = &s->agents[n];
        if (from == NULL || mco_version_compare(&from->has[w->key], &w->order.version) != 0 ||
            mco_version_compare(&a->has[w->key], &w->order.version) > 0) {
            free(w); /* not answered: it comes again */
            return true;
        }
        if (mco_version_compare(&a->has[w->key], &w->order.version) != 0)
            gets(s, i, w->key, w->order.version);
    }
    w->kind = SAID_DONE;
    push(&a->out, w);
    free(w);
    return true;
}

static bool orders(struct sim *s)
{
    static struct said w;
    bool any = false;

    while (mco_directory_next_order(s->d, s->now, &w.order)) {
        any = true;
        w.kind = SAID_DONE;
        for (unsigned k = 0; k < KEYS; k++)
            if (strlen(s->names[k]) == w.order.length &&
                memcmp(s->names[k], w.order.key, w.order.length) == 0)
                w.key = k;
        for (unsigned i = 0; i < AGENTS; i++)
            if (s->agents[i].holder == w.order.holder && s->agents[i].connected)
                push(&s->agents[i].in, &w);
    }
    return any;
}

/* Is something under way about this key? Its last copy may be the one that a move has made. */
static bool in_flight(struct sim *s, unsigned k)
{
    struct mco_key key = key_of(s, k);
    struct mco_found_at f;

    mco_directory_find(s->d, &key, 1, s->now, &f);
    for (unsigned n = 0; n < AGENTS; n++)
        if (queued(&s->agents[n].in, k) || queued(&s->agents[n].out, k))
            return true;
    return mco_directory_missing(s->d, &key, &f.version, NULL) != 0 ||
           mco_directory_pending(s->d, &key, &f.version, s->now) != 0;
}

/* Is there no other that has it, as the directory knows, too? (One that is to drop it does not count.) */
static bool last_holder(struct sim *s, unsigned i, unsigned k)
{
    struct mco_key key = key_of(s, k);
    struct mco_found_at f;

    mco_directory_find(s->d, &key, 1, s->now, &f);
    for (unsigned n = 0; n < AGENTS; n++)
        for (unsigned h = 0; h < f.nholders; h++)
            if (n != i && f.holders[h] == s->agents[n].holder &&
                mco_version_compare(&s->agents[n].has[k], &s->agents[i].has[k]) >= 0)
                return false;
    return true;
}

static void forgets(struct sim *s, unsigned i, unsigned k)
{
    if (last_holder(s, i, k) || in_flight(s, k))
        s->acked[k] = (struct mco_version){0};
    if (mco_version_compare(&s->agents[i].has[k], &s->evicted[k]) > 0)
        s->evicted[k] = s->agents[i].has[k];
    s->over[k] = (struct mco_version){0}; /* who was away then may bring back what came before */
}

static void begins_put(struct sim *s, unsigned i, unsigned k)
{
    struct mco_start q = {.key = key_of(s, k),
                          .size = 10,
                          .flags = random_of(s, 2) ? MCS_OBJECT_UPSERT : 0,
                          .replicas = (uint8_t)(1 + random_of(s, 3)),
                          .preferred = random_of(s, 4) == 0 ? s->agents[random_of(s, AGENTS)].holder
                                                            : MCO_NO_HOLDER};
    struct mco_started out;

    if (!s->agents[i].connected || s->agents[i].puts[k].state != PUT_NONE)
        return;
    mco_directory_start(s->d, s->agents[i].holder, &q, 1, s->now, &out);
    if (out.status == MCS_OK)
        s->agents[i].puts[k] = (struct put){PUT_OPEN, out.version};
}

/* It is sealed, or cannot be: a later life is there, or its writer has had enough. */
static void seals(struct sim *s, unsigned i, unsigned k)
{
    struct agent *a = &s->agents[i];
    struct put *p = &a->puts[k];
    struct mco_version before = a->has[k];
    bool early = random_of(s, 2) != 0; /* its end may be heard of before or after its events */

    if (p->state != PUT_OPEN)
        return;
    p->state = random_of(s, 8) != 0 && mco_version_compare(&before, &p->version) < 0 ? PUT_SEALED
                                                                                     : PUT_GIVEN_UP;
    if (p->state == PUT_SEALED)
        a->has[k] = p->version;
    if (p->state == PUT_SEALED && mco_version_compare(&p->version, &s->over[k]) <= 0)
        s->sealed_late[k] = p->version;
    if (a->connected && early)
        tells_end(s, i, k);
    if (p->state == PUT_SEALED)
        says(s, i, k, p->version, true);
    if (p->state == PUT_SEALED && before.sequence != 0)
        says(s, i, k, before, false); /* replaced */
    if (a->connected && !early)
        tells_end(s, i, k);
}

static void removes(struct sim *s, unsigned k)
{
    struct mco_key key = key_of(s, k);
    struct mco_version upto;
    unsigned left;

    if (mco_directory_remove(s->d, &key, &upto, s->now, &left) != MCS_OK)
        return;
    if (mco_version_compare(&s->acked[k], &upto) <= 0)
        s->acked[k] = (struct mco_version){0};
    s->removed[k] = upto;
    waits(s, AGENTS, k, upto, upto);
}

static void check_removed(struct sim *s)
{
    for (unsigned k = 0; k < KEYS; k++) {
        struct mco_key key = key_of(s, k);
        struct mco_found_at f;

        mco_directory_find(s->d, &key, 1, s->now, &f);
        if (f.nholders != 0 && s->removed[k].sequence != 0)
            cr_assert_gt(mco_version_compare(&f.version, &s->removed[k]), 0,
                         "step %u: key %u is found again", s->steps, k);
    }
}

/* What was acknowledged, and is held by one that has told everything, is not called absent. */
static void check_there(struct sim *s)
{
    for (unsigned k = 0; k < KEYS; k++) {
        struct mco_key key = key_of(s, k);
        struct mco_found_at f;

        mco_directory_find(s->d, &key, 1, s->now, &f);
        for (unsigned i = 0; i < AGENTS; i++) {
            struct agent *a = &s->agents[i];

            if (f.status == MCS_NOT_FOUND && s->graves == 0 && s->acked[k].sequence != 0 &&
                a->connected && mco_version_compare(&a->has[k], &s->acked[k]) >= 0 &&
                mco_directory_state(s->d, a->holder) == MCO_HOLDER_HERE)
                cr_assert(in_flight(s, k), "step %u: key %u, acknowledged with %lu.%lu, is absent",
                          s->steps, k, s->acked[k].token, s->acked[k].sequence);
        }
    }
}

/* Everybody is back, everything has arrived: directory and agents agree. */
static void settle(struct sim *s)
{
    bool busy = true;

    for (unsigned i = 0; i < AGENTS; i++)
        if (!s->agents[i].connected)
            joins(s, i);
    for (unsigned round = 0; busy || round < 40; round++) {
        cr_assert_lt(round, 4000u, "step %u: it does not come to rest", s->steps);
        busy = false;
        s->now += S / 4;
        for (unsigned i = 0; i < AGENTS; i++) {
            mco_directory_heard(s->d, s->agents[i].holder, s->now);
            while (agent_hears(s, i) || master_hears(s, i))
                busy = true;
        }
        while (mco_directory_tick(s->d, s->now))
            ;
        busy |= orders(s);
    }
    s->settled++;
    check_removed(s);
    for (unsigned k = 0; k < KEYS; k++) {
        struct mco_key key = key_of(s, k);
        struct mco_found_at f;
        struct mco_version greatest = {0};
        unsigned have = 0;

        mco_directory_find(s->d, &key, 1, s->now, &f);
        for (unsigned i = 0; i < AGENTS; i++)
            if (mco_version_compare(&s->agents[i].has[k], &greatest) > 0)
                greatest = s->agents[i].has[k];
        for (unsigned i = 0; i < AGENTS; i++) {
            bool named = false;

            for (unsigned n = 0; n < f.nholders; n++)
                named |= f.holders[n] == s->agents[i].holder;
            have += s->agents[i].has[k].sequence != 0;
            cr_assert_eq(named, s->agents[i].has[k].sequence != 0,
                         "step %u: key %u agent %u named %d has %lu.%lu, found %lu.%lu", s->steps,
                         k, i, named, s->agents[i].has[k].token, s->agents[i].has[k].sequence,
                         f.version.token, f.version.sequence);
            if (named)
                cr_assert_eq(mco_version_compare(&s->agents[i].has[k], &f.version), 0,
                             "step %u: key %u agent %u has an earlier life", s->steps, k, i);
        }
        cr_assert_eq(f.nholders, have);
        cr_assert(f.status == (have != 0 ? MCS_OK : MCS_NOT_FOUND));
        /* with few graves, who comes late gives up what may have been removed */
        if (s->acked[k].sequence != 0 && s->graves == 0)
            cr_assert_geq(mco_version_compare(&greatest, &s->acked[k]), 0,
                          "step %u: key %u was acknowledged with %lu.%lu, greatest %lu.%lu",
                          s->steps, k, s->acked[k].token, s->acked[k].sequence, greatest.token,
                          greatest.sequence);
    }
}

static void step(struct sim *s)
{
    unsigned i = (unsigned)random_of(s, AGENTS), k = (unsigned)random_of(s, KEYS);
    struct agent *a = &s->agents[i];

    s->now += random_of(s, S / 50);
    for (unsigned n = 0; n < AGENTS; n++)
        if (s->agents[n].connected) {
            mco_directory_heard(s->d, s->agents[n].holder, s->now);
            promises(s, n);
        }
    switch (random_of(s, 40)) {
    case 0:
    case 1:
    case 2:
    case 3:
    case 4:
        begins_put(s, i, k);
        break;
    case 5:
    case 6:
        removes(s, k);
        break;
    case 7:
        forgets(s, i, k);
        loses(s, i, k); /* evicted */
        break;
    case 8:
        if (random_of(s, 4) == 0)
            leaves(s, i);
        break;
    case 9:
        if (!a->connected)
            joins(s, i);
        break;
    case 10:
        if (random_of(s, 8) == 0) /* another life of the agent, with its memory */
            dies(s, i);
        break;
    case 11:
        if (random_of(s, 16) == 0) { /* another memory */
            dies(s, i);
            for (unsigned n = 0; n < KEYS; n++) {
                forgets(s, i, n);
                a->has[n] = (struct mco_version){0};
            }
            a->identity += 100;
        }
        break;
    case 12:
        if (random_of(s, 16) == 0)
            leads(s);
        break;
    case 13:
        if (random_of(s, 16) == 0)
            s->now += 5 * S; /* who is not connected is away now */
        break;
    case 14:
        if (random_of(s, 64) == 0)
            mco_directory_drain(s->d, a->holder, random_of(s, 2) != 0);
        break;
    case 15:
    case 16:
    case 17:
        orders(s);
        break;
    case 18:
        mco_directory_tick(s->d, s->now);
        break;
    case 19:
    case 20:
    case 21:
        seals(s, i, k);
        break;
    default:
        if (random_of(s, 2))
            agent_hears(s, i);
        else
            master_hears(s, i);
        break;
    }
    check_removed(s);
    check_there(s);
    answers(s);
}

static void run(uint64_t seed, unsigned steps)
{
    struct sim *s = calloc(1, sizeof(*s));

    s->random = seed;
    s->now = S;
    s->graves = seed % 2 ? 4 : 0;
    for (unsigned k = 0; k < KEYS; k++)
        snprintf(s->names[k], sizeof(s->names[k]), "k%u", k);
    for (unsigned i = 0; i < AGENTS; i++) {
        s->agents[i].identity = i + 1;
        s->agents[i].life = 1;
        s->agents[i].connected = true;
    }
    leads(s);
    settle(s);
    for (s->steps = 0; s->steps < steps; s->steps++) {
        step(s);
        if (s->steps % 500 == 499)
            settle(s);
    }
    for (unsigned i = 0; i < AGENTS; i++) {
        drop_all(&s->agents[i].in);
        drop_all(&s->agents[i].out);
    }
    cr_assert_gt(s->promises, steps / 4, "%lu promises", s->promises);
    cr_assert_gt(s->kept, steps / 4, "%lu promises mattered", s->kept);
    cr_assert_gt(s->late, 0u, "no put has ended under another leader");
    mco_directory_destroy(s->d);
    free(s);
}

Test(directory_model, agents_and_directory_agree)
{
    const char *more = getenv("MODEL_SEEDS");
    uint64_t seeds = more != NULL ? strtoull(more, NULL, 10) : 20;

    for (uint64_t seed = 1; seed <= seeds; seed++)
        run(seed * 7919, 10000);
}
