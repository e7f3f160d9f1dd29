/* SPDX-License-Identifier: Apache-2.0 */
#include "limbo.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "cluster.h"
#include "gpu_memory.h"
#include "log.h"
#include "shm/failpoint.h"

#define GPU_NS                                                                                     \
    UINT64_C(                                                                                      \
        10000000000) /* that the barrier may last longer for what is in GPUs: drivers take seconds to start */
#define TRIES_MAX 3u /* starts over one ledger that did not become ready */

/* ---- the ledger at the start ------------------------------------------------------------- */

/* Goes on where the earlier agent was: nothing that it gave is given a second time. */
static void go_on(struct mcd_agent *a)
{
    const struct mcd_ledger_head *h = mcd_ledger_head(a->recovery.ledger);

    a->recovery.before = h->incarnation;
    a->recovery.lives = h->lives;
    if (h->next_address > a->pool.next_address)
        a->pool.next_address = a->pool.earlier = h->next_address;
    if (h->next_extent > a->pool.next_id)
        a->pool.next_id = h->next_extent;
    if (h->next_session > a->next_session)
        a->next_session = h->next_session;
}

int mcd_recovery_open(struct mcd_agent *a, char *error, size_t error_size)
{
    struct mcd_recovery *r = &a->recovery;
    struct mcd_ledger_head *h;
    int res;

    if (!mcd_keeper_keeps(&a->keeper))
        return 0;
    if (a->keeper.ledger_fd >= 0) {
        res = mcd_ledger_adopt(a->keeper.ledger_fd, &r->ledger);
        if (res != 0) {
            mcd_warning("the ledger of the agent before cannot be read (%s): its clients cannot "
                        "come back",
                        res == -EPROTO ? "damaged, or of another version" : strerror(-res));
        } else {
            a->keeper.ledger_fd = -1; /* the ledger's now */
            h = mcd_ledger_head(r->ledger);
            if (h->tries >= TRIES_MAX) {
                mcd_warning("%u starts over the ledger of an earlier agent have failed: starting "
                            "without it, its clients cannot come back",
                            h->tries);
                mcd_ledger_clear(r->ledger);
                h->tries = 0;
                r->given_up = true;
            }
        }
    }
    if (r->ledger == NULL) {
        res = mcd_ledger_create(&r->ledger);
        if (res != 0) {
            snprintf(error, error_size, "no memory for the ledger: %s", strerror(-res));
            return res;
        }
        mcd_keeper_store(&a->keeper, MCD_KEEPER_LEDGER, mcd_ledger_fd(r->ledger));
    }
    h = mcd_ledger_head(r->ledger);
    h->tries++;
    go_on(a);
    h->lives++;
    r->lives = h->lives;
    h->incarnation = a->incarnation;
    a->pool.ledger = r->ledger;
    return 0;
}

/* ---- sessions ------------------------------------------------------------------------------ */

static int by_incarnation(const void *a, const void *b)
{
    const struct mcd_session *s = *(const struct mcd_session *const *)a;
    const struct mcd_session *t = *(const struct mcd_session *const *)b;

    return s->incarnation < t->incarnation ? -1 : s->incarnation > t->incarnation;
}

static int to_incarnation(const void *key, const void *b)
{
    const struct mcd_session *t = *(const struct mcd_session *const *)b;
    uint64_t incarnation = *(const uint64_t *)key;

    return incarnation < t->incarnation ? -1 : incarnation > t->incarnation;
}

static struct mcd_session *find_in(struct mcd_session **list, size_t n, uint64_t incarnation)
{
    struct mcd_session **found =
        n == 0 ? NULL
               : bsearch(&incarnation, list, n, sizeof(struct mcd_session *), to_incarnation);

    return found == NULL ? NULL : *found;
}

/* -1: it cannot be seen from here; 0: dead, or another process has its pid. */
static int process_of(const struct mcd_ledger_session *r, int *pidfd)
{
    *pidfd = -1;
    if (r->pid <= 0)
        return -1;
    *pidfd = (int)syscall(SYS_pidfd_open, (pid_t)r->pid, 0);
    if (*pidfd < 0)
        return errno == ESRCH || errno == EINVAL ? 0 : -1;
    /* after the pidfd is there: the pid cannot change hands any more */
    if (r->started != 0 && mcd_process_started((pid_t)r->pid) != r->started) {
        close(*pidfd);
        *pidfd = -1;
        return 0;
    }
    return 1;
}

static void give_up(struct mcd_alarm *t)
{
    mcd_session_end(t->context, "has not come back in [agent] recovery_s, and this agent cannot "
                                "see whether its process lives");
}

static void enter_name(struct mcd_session *s)
{
    const struct mcd_ledger_session *r = s->record;

    if (r->named == 0 || r->leaves != 0)
        return;
    snprintf(s->segment->name, sizeof(s->segment->name), "%s", r->segment_name);
    s->segment->flags = r->flags;
    mcd_session_name(s);
}

/* NULL: its process is dead, or nobody will come back, or there is no memory. */
static struct mcd_session *make_session(struct mcd_agent *a, struct mcd_ledger_session *r)
{
    struct mcd_session *s = NULL;
    struct mcd_limbo *l = NULL;
    int pidfd, lives;

    /* A client that will not come back matters only to owners of memory that it may still copy
     * into: until its process is dead, or one of them has waited for it in vain. */
    if (r->leaves != 0 && r->writable == 0)
        return NULL;
    lives = process_of(r, &pidfd);
    if (lives == 0)
        return NULL;
    s = MCS_FAIL(recovery_session) != 0 ? NULL : calloc(1, sizeof(*s));
    l = aligned_alloc(16, (sizeof(*l) + 15) & ~(size_t)15);
    if (s == NULL || l == NULL)
        goto error;
    memset(l, 0, sizeof(*l));
    s->agent = a;
    s->socket = s->doorbell = s->region_fd = s->region_guard = -1;
    s->pidfd = pidfd;
    s->pid = r->pid;
    s->uid = r->uid;
    s->tenant = r->tenant;
    if (mcd_tenant_get_again(&a->tenants, &a->config, r->tenant, &s->account) != 0)
        goto error;
    s->account->sessions++;
    s->id = r->id;
    s->incarnation = r->incarnation;
    s->salt = (uint32_t)mcd_incarnation();
    s->since = mcd_now_ns();
    s->greeted = true;
    s->recovering = 1;
    s->record = r;
    s->limbo = l;
    snprintf(s->name, sizeof(s->name), "%s", r->name);
    s->segment = mcd_segment_create(s, s->tenant, r->segment);
    if (s->segment == NULL)
        goto error;
    l->nwritable = r->writable;
    if (s->id > a->next_session)
        a->next_session = s->id;
    if (pidfd >= 0)
        mcd_control_watch(a, pidfd, MCD_SOURCE_SESSION, s);
    mcd_session_link(s);
    s->admitted = true;
    a->nadmitted++;
    enter_name(s);
    l->timer = (struct mcd_alarm){.fire = give_up, .context = s};
    if (lives < 0)
        mcd_alarm_set(a, &l->timer, mcd_now_ns() + a->config.recovery_s * 1000000000u);
    a->recovery.away++;
    return s;

error:
    if (s != NULL && s->account != NULL) {
        s->account->sessions--;
        mcd_tenant_put(&a->tenants, s->account);
    }
    if (pidfd >= 0)
        close(pidfd);
    free(s);
    free(l);
    return NULL;
}

/* Two records cannot be of one thing, or the writer was broken: the later one goes. */
static bool add_extent(struct mcd_agent *a, struct mcd_session *s, struct mcd_ledger_extent *r)
{
    struct mcd_limbo *l = s->limbo;
    struct mcd_ledger_extent **more;

    for (uint32_t i = 0; i < l->nextents; i++)
        if (MCD_HANDLE_INDEX(l->extents[i]->handle) == MCD_HANDLE_INDEX(r->handle))
            return false;
    if (l->nextents == MCD_TABLE_SIZE)
        return false;
    more = realloc(l->extents, (l->nextents + 1) * sizeof(struct mcd_ledger_extent *));
    if (more == NULL)
        return false;
    l->extents = more;
    mcd_pool_keep(&a->pool, r->address, r->size);
    if (r->id >= a->pool.next_id)
        a->pool.next_id = r->id + 1;
    if ((r->flags & MCD_LEDGER_GPU) == 0)
        a->pool.used += r->size;
    else if (!mcd_gpu_expect(a, r))
        return false;
    l->ngpu += (r->flags & MCD_LEDGER_GPU) != 0;
    l->extents[l->nextents++] = r;
    l->memory += r->size;
    s->account->memory += r->size;
    return true;
}

static bool add_queue(struct mcd_session *s, struct mcd_ledger_queue *r)
{
    struct mcd_limbo *l = s->limbo;
    struct mcd_ledger_queue **more;

    for (uint32_t i = 0; i < l->nqueues; i++)
        if (l->queues[i]->id == r->id)
            return false;
    more = realloc(l->queues, (l->nqueues + 1) * sizeof(struct mcd_ledger_queue *));
    if (more == NULL)
        return false;
    l->queues = more;
    l->queues[l->nqueues++] = r;
    if (r->id > s->next_queue)
        s->next_queue = r->id;
    return true;
}

static void sort_things(struct mcd_agent *a, struct mcd_session **list, size_t n)
{
    struct mcd_ledger *ledger = a->recovery.ledger;
    void *r, *next;

    for (r = mcd_ledger_next(ledger, MCD_LEDGER_EXTENT, NULL); r != NULL; r = next) {
        struct mcd_session *s = find_in(list, n, ((struct mcd_ledger_extent *)r)->session);

        next = mcd_ledger_next(ledger, MCD_LEDGER_EXTENT, r);
        if (s == NULL || !add_extent(a, s, r))
            mcd_ledger_drop(ledger, MCD_LEDGER_EXTENT, r);
    }
    for (r = mcd_ledger_next(ledger, MCD_LEDGER_QUEUE, NULL); r != NULL; r = next) {
        struct mcd_session *s = find_in(list, n, ((struct mcd_ledger_queue *)r)->session);

        next = mcd_ledger_next(ledger, MCD_LEDGER_QUEUE, r);
        if (s == NULL || !add_queue(s, r))
            mcd_ledger_drop(ledger, MCD_LEDGER_QUEUE, r);
    }
}

/* The metadata's record names the agent before: this one takes it over, or hears that somebody
 * else has in the meantime. */
struct announcing {
    struct mcd_agent *agent;
    uint64_t session;
};

static void announced(void *context, const struct mcm_result *result)
{
    struct announcing *n = context;
    struct mcd_session *s = n->agent->sessions;

    while (s != NULL && s->incarnation != n->session)
        s = s->next;
    if (result->res != 0 && result->res != -ECANCELED && s != NULL)
        mcd_warning("session %u: the name '%.80s' is not in the metadata any more: %s", s->id,
                    s->segment->name,
                    result->res == -EEXIST ? "another owner has it"
                    : result->text != NULL ? result->text
                                           : strerror(-result->res));
    if (result->res == -EEXIST && s != NULL && s->segment->named) {
        mcd_session_unname(s);
        mcd_segments_changed(n->agent);
    }
    free(n);
}

static void announce(struct mcd_agent *a, struct mcd_session *s)
{
    struct announcing *n = calloc(1, sizeof(*n));
    struct mcm_record r;

    if (n == NULL)
        return;
    *n = (struct announcing){.agent = a, .session = s->incarnation};
    mcd_session_meta_record(s, &r);
    mcm_register(a->cluster->meta, &r, announced, n);
}

void mcd_recovery_begin(struct mcd_agent *a)
{
    struct mcd_ledger *ledger = a->recovery.ledger;
    struct mcd_session **list = NULL;
    size_t n = 0, room = 0;
    void *r, *next;

    if (ledger == NULL)
        return;
    for (r = mcd_ledger_next(ledger, MCD_LEDGER_SESSION, NULL); r != NULL;
         r = mcd_ledger_next(ledger, MCD_LEDGER_SESSION, r))
        room++;
    list = room == 0 ? NULL : calloc(room, sizeof(struct mcd_session *));
    for (r = mcd_ledger_next(ledger, MCD_LEDGER_SESSION, NULL); r != NULL; r = next) {
        struct mcd_session *s = list == NULL ? NULL : make_session(a, r);

        next = mcd_ledger_next(ledger, MCD_LEDGER_SESSION, r);
        if (s == NULL)
            mcd_ledger_drop(ledger, MCD_LEDGER_SESSION, r);
        else
            list[n++] = s;
    }
    if (n != 0)
        qsort(list, n, sizeof(struct mcd_session *), by_incarnation);
    MCS_FAILPOINT(recovery_sessions);
    sort_things(a, list, n);
    MCS_FAILPOINT(recovery_begun);
    if (a->cluster != NULL)
        for (size_t i = 0; i < n; i++)
            if (list[i]->segment->named)
                announce(a, list[i]);
    free(list);
    if (a->recovery.before != 0)
        mcd_info("taking over from agent %#llx: %u session%s to come back, %llu MiB of memory",
                 (unsigned long long)a->recovery.before, a->recovery.away,
                 a->recovery.away == 1 ? "" : "s", (unsigned long long)(a->pool.used >> 20));
    a->recovery.total = a->recovery.away;
    a->recovery.told = a->recovery.total == 0;
}

void mcd_recovery_serve(struct mcd_agent *a)
{
    a->recovery.until = mcd_now_ns() + a->config.barrier_ms * 1000000u;
    if (a->recovery.ledger != NULL)
        mcd_ledger_head(a->recovery.ledger)->tries = 0; /* it can be started over */
}

void mcd_recovery_close(struct mcd_agent *a)
{
    if (a->recovery.ledger == NULL)
        return;
    if (a->stopping && !a->keeping) /* and not after a start that has failed */
        mcd_ledger_clear(a->recovery.ledger);
    mcd_ledger_destroy(a->recovery.ledger);
    a->recovery.ledger = a->pool.ledger = NULL;
}

bool mcd_recovery_over(const struct mcd_agent *a)
{
    const struct mcd_recovery *r = &a->recovery;

    if (r->away == 0 && r->coming == 0)
        return true;
    if (r->until == 0 || mcd_now_ns() < r->until)
        return false;
    /* those who are here, and wait for the GPU driver with everything that they have there */
    for (const struct mcd_session *s = a->sessions; s != NULL; s = s->next)
        if (s->limbo != NULL && s->limbo->here && s->limbo->ngpu != 0 && !s->ending)
            return mcd_now_ns() >= r->until + GPU_NS;
    return true;
}

void mcd_limbo_take(struct mcd_session *s, const struct mcd_ledger_extent *r)
{
    struct mcd_limbo *l = s->limbo;
    uint32_t i = 0;

    while (l->extents[i] != r)
        i++;
    l->extents[i] = l->extents[--l->nextents];
    l->ngpu -= (r->flags & MCD_LEDGER_GPU) != 0;
    l->memory -= r->size;
    s->account->memory -= r->size; /* the session holds it from here on */
    mcd_session_hold(s, (int64_t)r->size);
}

/* ---- coming back ------------------------------------------------------------------------ */

static void tell_all_back(struct mcd_agent *a)
{
    struct mcd_recovery *r = &a->recovery;

    if (r->told || r->restored + r->lost < r->total)
        return;
    r->told = true;
    mcd_info("all sessions are back or gone %.0f ms after the start: %llu restored, %llu lost",
             (double)(mcd_now_ns() - a->started_ns) / 1e6, (unsigned long long)r->restored,
             (unsigned long long)r->lost);
}

struct mcd_session *mcd_limbo_find(struct mcd_agent *a, uint64_t incarnation)
{
    for (struct mcd_session *s = a->sessions; s != NULL; s = s->next)
        if (s->limbo != NULL && !s->limbo->here && !s->ending && s->incarnation == incarnation)
            return s;
    return NULL;
}

void mcd_limbo_arrive(struct mcd_session *s)
{
    mcd_alarm_clear(s->agent, &s->limbo->timer);
    s->limbo->here = true;
    s->agent->recovery.away--;
    s->agent->recovery.coming++;
    MCS_FAILPOINT(restore_arrived);
}

/* Takes the rest out of the ledger and the pool. */
static void drop_rest(struct mcd_session *s)
{
    struct mcd_ledger *ledger = s->agent->recovery.ledger;
    struct mcd_limbo *l = s->limbo;

    for (uint32_t i = 0; i < l->nextents; i++) {
        if ((l->extents[i]->flags & MCD_LEDGER_GPU) != 0)
            mcd_gpu_expect_no_more(s->agent, l->extents[i]);
        else
            s->agent->pool.used -= l->extents[i]->size;
        mcd_pool_leave(&s->agent->pool, l->extents[i]->address, l->extents[i]->size);
        mcd_ledger_drop(ledger, MCD_LEDGER_EXTENT, l->extents[i]);
    }
    for (uint32_t i = 0; i < l->nqueues; i++)
        mcd_ledger_drop(ledger, MCD_LEDGER_QUEUE, l->queues[i]);
    s->account->memory -= l->memory;
    free(l->extents);
    free(l->queues);
    free(l);
    s->limbo = NULL;
    mcs_store_release(&s->recovering, 0u); /* partner: the engines' look in task.c */
}

void mcd_limbo_leave(struct mcd_session *s)
{
    struct mcd_recovery *r = &s->agent->recovery;

    if (!s->limbo->asked)
        r->coming--;
    drop_rest(s);
    MCS_FAILPOINT(restore_left);
    mcs_store_relaxed(&s->record->writable, 0u); /* it maps anew, and is counted anew */
    r->restored++;
    tell_all_back(s->agent);
}

void mcd_limbo_free(struct mcd_session *s)
{
    struct mcd_recovery *r = &s->agent->recovery;

    if (s->limbo == NULL)
        return;
    mcd_alarm_clear(s->agent, &s->limbo->timer);
    if (!s->limbo->here)
        r->away--;
    else if (!s->limbo->asked)
        r->coming--;
    r->lost++;
    drop_rest(s);
    tell_all_back(s->agent);
}

bool mcd_limbo_may_write(const struct mcd_session *s, uint64_t tenant)
{
    return s->limbo != NULL && !s->limbo->here && s->limbo->nwritable != 0 && s->tenant == tenant;
}
