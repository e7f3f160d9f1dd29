/* SPDX-License-Identifier: Apache-2.0 */
/* The stats file: rows given and taken back, read while they change hands, and more things than rows. */
#include <criterion/criterion.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/agent.h"
#include "daemon/trace.h"
#include "daemon/task.h"
#include "lib/mcshm.h"

static struct mcd_agent a;
static char folder[64];

/* On tmpfs, where engines write to the file itself, if there is one. */
static void begin(void)
{
    static struct mcd_engine engine;

    memset(&a, 0, sizeof(a));
    memset(&engine, 0, sizeof(engine));
    mcd_config_init(&a.config);
    snprintf(folder, sizeof(folder), "%s/mcshm-stats-XXXXXX",
             access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp");
    cr_assert_not_null(mkdtemp(folder));
    snprintf(a.config.socket, sizeof(a.config.socket), "%s/s", folder);
    a.config.sessions = 64;
    a.incarnation = 77;
    a.tick_hz = 1000000000;
    a.started_ns = mcd_now_ns();
    engine.o.core = 3;
    a.engines[0] = &engine;
    a.nengines = 1;
    mcd_stats_create(&a);
}

static void end(void)
{
    mcd_stats_remove(&a);
    cr_assert_eq(rmdir(folder), 0, "something is left in %s", folder);
}

TestSuite(stats, .init = begin, .fini = end);

static struct mcd_session *session(uint32_t id, const char *name)
{
    struct mcd_session *s = calloc(1, sizeof(*s));

    s->agent = &a;
    s->id = id;
    s->greeted = true;
    s->tenant = 5;
    snprintf(s->name, sizeof(s->name), "%s", name);
    return s;
}

static struct mcd_queue *queue(struct mcd_session *s, uint32_t id)
{
    struct mcd_queue *q = aligned_alloc(64, (sizeof(*q) + 63) & ~(size_t)63);

    memset(q, 0, sizeof(*q));
    q->id = id;
    q->session = s;
    q->engine = a.engines[0];
    q->stats = &q->own_stats;
    mcd_stats_queue(s, q);
    return q;
}

static const mcshm_monitor_view *look(mcshm_monitor *m)
{
    const mcshm_monitor_view *v;

    mcd_stats_beat(&a);
    mcd_stats_refresh(&a);
    cr_assert_eq(mcshm_monitor_read(m, &v), MCSHM_OK);
    return v;
}

Test(stats, what_is_counted_is_read)
{
    struct mcd_session *s = session(9, "nine");
    struct mcd_queue *q = queue(s, 1), *other = queue(s, 2);
    const mcshm_monitor_view *v;
    mcshm_monitor *m;

    cr_assert_eq(mcshm_monitor_open(a.config.socket, &m), MCSHM_OK, "%s", mcshm_last_error(NULL));
    cr_assert(mcshm_monitor_current(m));
    q->stats->sums.tasks = 10;
    q->stats->sums.bytes = 640;
    q->stats->sums.latency[5] = 10;
    q->stats->depth = 3;
    other->stats->sums.tasks = 1;
    other->stats->sums.failed = 1;
    a.sessions = NULL;
    v = look(m);
    cr_assert_eq(v->agent.incarnation, 77u);
    cr_assert_eq(v->agent.pid, (uint32_t)getpid());
    cr_assert_eq(v->nengines, 1u);
    cr_assert_eq(v->engines[0].core, 3);
    cr_assert_eq(v->nclients, 1u);
    cr_assert_eq(v->clients[0].session, 9u);
    cr_assert_eq(v->clients[0].tenant, 5u);
    cr_assert_str_eq(v->clients[0].name, "nine");
    cr_assert_eq(v->clients[0].tasks, 11u);
    cr_assert_eq(v->clients[0].failed, 1u);
    cr_assert_eq(v->clients[0].bytes, 640u);
    cr_assert_eq(v->clients[0].latency[5], 10u);
    cr_assert_eq(v->clients[0].depth, 3u);
    /* a queue that is closed leaves its sums, a session that ends leaves nothing */
    mcd_stats_queue_gone(s, q);
    cr_assert_eq(q->stats, &q->own_stats);
    v = look(m);
    cr_assert_eq(v->clients[0].tasks, 11u);
    cr_assert_eq(v->clients[0].depth, 0u);
    mcd_stats_queue_gone(s, other);
    mcd_stats_forget(s);
    cr_assert_eq(look(m)->nclients, 0u);
    mcd_stats_remove(&a);
    cr_assert_not(mcshm_monitor_current(m));
    mcshm_monitor_close(m);
    free(q);
    free(other);
    free(s);
}

Test(stats, more_things_than_rows)
{
    enum { N = 200 };
    struct mcd_session *s[N];
    struct mcd_queue *q[N];
    mcshm_monitor *m;

    cr_assert_eq(mcshm_monitor_open(a.config.socket, &m), MCSHM_OK);
    for (int round = 0; round < 3; round++) { /* rows are given back */
        for (uint32_t i = 0; i < N; i++) {
            s[i] = session(round * N + i + 1, "many");
            q[i] = queue(s[i], 1);
            q[i]->stats->sums.tasks = 1; /* of its own when it has no row */
        }
        cr_assert_eq(look(m)->nclients, 64u);
        for (uint32_t i = 0; i < 64; i++) {
            cr_assert_eq(look(m)->clients[i].session, round * N + i + 1);
            cr_assert_eq(look(m)->clients[i].tasks, 1u);
        }
        for (uint32_t i = 0; i < N; i++) {
            mcd_stats_queue_gone(s[i], q[i]);
            mcd_stats_forget(s[i]);
            free(q[i]);
            free(s[i]);
        }
        cr_assert_eq(look(m)->nclients, 0u);
    }
    mcshm_monitor_close(m);
}

static uint32_t stop;

static void *change_hands(void *context)
{
    (void)context;
    for (uint32_t i = 1; mcs_load_relaxed(&stop) == 0; i++) {
        struct mcd_session *s = session(i, "");
        struct mcd_queue *q;

        snprintf(s->name, sizeof(s->name), "%u", i);
        s->tenant = i;
        q = queue(s, i);
        mcs_store_relaxed(&q->stats->sums.tasks, (uint64_t)i); /* as an engine does */
        mcs_store_relaxed(&q->stats->sums.bytes, (uint64_t)i);
        mcd_stats_queue_gone(s, q);
        mcd_stats_forget(s);
        free(q);
        free(s);
    }
    return NULL;
}

Test(stats, a_row_that_changes_hands_is_not_two_halves)
{
    const mcshm_monitor_view *v;
    unsigned seen = 0;
    pthread_t thread;
    mcshm_monitor *m;

    cr_assert_eq(mcshm_monitor_open(a.config.socket, &m), MCSHM_OK);
    stop = 0;
    pthread_create(&thread, NULL, change_hands, NULL);
    for (int i = 0; seen < 200 && i < 10000000; i++) {
        char name[16];

        if (mcshm_monitor_read(m, &v) != MCSHM_OK || v->nclients == 0)
            continue;
        seen++;
        cr_assert_eq(v->nclients, 1u);
        snprintf(name, sizeof(name), "%u", v->clients[0].session);
        cr_assert_str_eq(v->clients[0].name, name);
        cr_assert_eq(v->clients[0].tenant, v->clients[0].session);
        /* the queue's row may have been counted when it was closed, and once more while it was not
         * yet free, or not at all */
        cr_assert(v->clients[0].tasks % v->clients[0].session == 0, "%llu of session %u",
                  (unsigned long long)v->clients[0].tasks, v->clients[0].session);
    }
    mcs_store_relaxed(&stop, 1u);
    pthread_join(thread, NULL);
    cr_assert_gt(seen, 0u);
    mcshm_monitor_close(m);
}

/* As on a disk: the rows are private, and copied out. */
static void on_a_disk(void)
{
    struct mcd_stats *s = &a.stats;
    const struct mcs_stats_header *h;

    if (s->copy != NULL)
        return;
    s->copy = s->header;
    s->header = aligned_alloc(4096, s->size);
    cr_assert_not_null(s->header);
    memcpy(s->header, s->copy, s->size);
    s->header->flags |= MCS_STATS_COPIED;
    h = s->header;
    s->sessions = (struct mcs_stats_session *)((char *)s->header + h->sessions_offset);
    s->queues = (struct mcs_stats_queue *)((char *)s->header + h->queues_offset);
    mcd_stats_refresh(&a);
}

/* From one hand to the next between two copies. */
static void *change_hands_unseen(void *context)
{
    (void)context;
    for (uint32_t i = 1; mcs_load_relaxed(&stop) == 0; i++) {
        struct mcd_session *s = session(i, "");
        struct mcd_queue *q;

        snprintf(s->name, sizeof(s->name), "%u", i);
        s->tenant = i;
        q = queue(s, i);
        mcs_store_relaxed(&q->stats->sums.tasks, (uint64_t)i);
        mcd_stats_refresh(&a);
        mcd_stats_queue_gone(s, q);
        mcd_stats_forget(s);
        free(q);
        free(s);
    }
    return NULL;
}

Test(stats, a_row_that_is_copied_out_is_not_two_halves)
{
    const mcshm_monitor_view *v;
    unsigned seen = 0;
    pthread_t thread;
    mcshm_monitor *m;

    on_a_disk();
    cr_assert_eq(mcshm_monitor_open(a.config.socket, &m), MCSHM_OK);
    stop = 0;
    pthread_create(&thread, NULL, change_hands_unseen, NULL);
    for (int i = 0; seen < 20000 && i < 10000000; i++) {
        char name[16];

        if (mcshm_monitor_read(m, &v) != MCSHM_OK || v->nclients == 0)
            continue;
        seen++;
        cr_assert_eq(v->nclients, 1u);
        snprintf(name, sizeof(name), "%u", v->clients[0].session);
        cr_assert_str_eq(v->clients[0].name, name);
        cr_assert_eq(v->clients[0].tenant, v->clients[0].session);
        cr_assert_eq(v->clients[0].tasks % v->clients[0].session, 0u);
    }
    mcs_store_relaxed(&stop, 1u);
    pthread_join(thread, NULL);
    cr_assert_gt(seen, 0u);
    mcshm_monitor_close(m);
}

/* A file on a disk outlives the machine's clock. */
Test(stats, a_beat_from_before_the_machine_started_is_no_sign_of_life)
{
    const mcshm_monitor_view *v;
    mcshm_monitor *m;

    cr_assert_eq(mcshm_monitor_open(a.config.socket, &m), MCSHM_OK);
    cr_assert_lt(look(m)->agent.silent_ns, mcd_now_ns() / 2);
    a.stats.header->beat_ns = UINT64_MAX / 2;
    cr_assert_eq(mcshm_monitor_read(m, &v), MCSHM_OK);
    cr_assert_gt(v->agent.silent_ns, mcd_now_ns() / 2);
    mcshm_monitor_close(m);
}

/* As many rows as a number holds, in a file of holes: one more would be none. */
Test(stats, a_file_that_claims_too_many_rows_is_refused)
{
    struct mcs_stats_header h = *a.stats.header;
    char path[128], socket[112];
    mcshm_monitor *m;
    FILE *f;

    snprintf(socket, sizeof(socket), "%s/t", folder);
    snprintf(path, sizeof(path), "%s.stats", socket);
    f = fopen(path, "w");
    cr_assert_not_null(f);
    h.session_rows = h.queue_rows = 0;
    h.engine_rows = UINT32_MAX;
    h.total_size = h.engines_offset + (uint64_t)h.engine_rows * h.engine_size;
    h.sessions_offset = h.queues_offset = h.engines_offset;
    cr_assert_eq(fwrite(&h, sizeof(h), 1, f), 1u);
    cr_assert_eq(fclose(f), 0);
    cr_assert_eq(truncate(path, (off_t)h.total_size), 0);
    cr_assert_eq(mcshm_monitor_open(socket, &m), MCSHM_BAD_SHM);
    cr_assert_null(m);
    cr_assert_eq(unlink(path), 0);
}

/* ---- the last tasks of a queue ---------------------------------------------------- */

static struct mcd_trace trace;

static void record(uint64_t i)
{
    struct mcs_desc desc = {.op = MCS_OP_WRITE, .length = i, .remote_addr = i, .slot = (uint32_t)i};
    struct mcd_outcome o = {.state = MCS_STATE_COMPLETED, .bytes = i, .queue_ns = (uint32_t)i};

    mcd_trace_add(&trace, &desc, &o, i);
}

Test(trace, the_last_ones_the_oldest_first)
{
    struct mcd_traced out[MCD_TRACE_SIZE];
    unsigned n;

    cr_assert_eq(mcd_trace_init(&trace), 0);
    cr_assert_eq(mcd_trace_copy(&trace, out, MCD_TRACE_SIZE), 0u);
    for (uint64_t i = 1; i <= 5; i++)
        record(i);
    cr_assert_eq(mcd_trace_copy(&trace, out, 3), 3u);
    cr_assert_eq(out[0].length, 3u);
    cr_assert_eq(out[2].bytes, 5u);
    for (uint64_t i = 6; i <= 1000; i++)
        record(i);
    n = mcd_trace_copy(&trace, out, MCD_TRACE_SIZE);
    cr_assert(n == MCD_TRACE_SIZE || n == MCD_TRACE_SIZE - 1, "%u", n);
    for (unsigned i = 0; i < n; i++)
        cr_assert_eq(out[i].when, 1000 - n + 1 + i);
    mcd_trace_fini(&trace);
}

static void *go_on(void *context)
{
    (void)context;
    for (uint64_t i = 1; mcs_load_relaxed(&stop) == 0; i++)
        record(i);
    return NULL;
}

Test(trace, records_are_whole_while_the_engine_goes_on)
{
    struct mcd_traced out[MCD_TRACE_SIZE];
    uint64_t seen = 0;
    pthread_t thread;

    cr_assert_eq(mcd_trace_init(&trace), 0);
    stop = 0;
    pthread_create(&thread, NULL, go_on, NULL);
    for (int k = 0; seen < 20000 && k < 10000000; k++) {
        unsigned n = mcd_trace_copy(&trace, out, MCD_TRACE_SIZE);

        for (unsigned i = 0; i < n; i++) {
            cr_assert(out[i].when == out[i].length && out[i].length == out[i].remote_addr &&
                      out[i].bytes == out[i].length && out[i].queue_ns == (uint32_t)out[i].length);
            cr_assert(i == 0 || out[i].when == out[i - 1].when + 1);
        }
        seen += n;
    }
    mcs_store_relaxed(&stop, 1u);
    pthread_join(thread, NULL);
    cr_assert_gt(seen, 0u);
    mcd_trace_fini(&trace);
}
