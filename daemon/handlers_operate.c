/* SPDX-License-Identifier: Apache-2.0 */
/* Requests of the people on call: the configuration read again, the last tasks of a client. */
#include <cjson/cJSON.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "counters.h"
#include "handlers.h"
#include "reload.h"
#include "tenant.h"

void mcd_on_reload(struct mcd_session *s, struct mcs_msg *m)
{
    char error[512], by[64];
    cJSON *told;
    char *text;

    if (s->uid != 0 && s->uid != geteuid()) {
        mcd_session_refuse(s, MCS_PERMISSION,
                           "user %u may not reload the configuration: root or the agent's user %u "
                           "may",
                           s->uid, geteuid());
        return;
    }
    snprintf(by, sizeof(by), "reload by pid %d, uid %u", (int)s->pid, s->uid);
    if (mcd_reload(s->agent, by, &told, error, sizeof(error)) != 0) {
        mcd_session_refuse(s, MCS_INVALID_ARGUMENT, "%s", error);
        return;
    }
    text = cJSON_PrintUnformatted(told);
    cJSON_Delete(told);
    mcd_reply_text(s, m, text);
}

/* ---- TRACE ----------------------------------------------------------------------- */

/* Is the session what the text names, as an id, a pid, or a name? */
enum trace_by { BY_ID, BY_PID, BY_NAME, BY_COUNT };

static bool is_called(const struct mcd_session *s, enum trace_by by, const char *text)
{
    unsigned long long number;
    char *end;

    if (by == BY_NAME)
        return strcmp(s->name, text) == 0;
    if (text[0] < '0' || text[0] > '9')
        return false;
    number = strtoull(text, &end, 10);
    return *end == '\0' && number == (by == BY_ID ? s->id : (unsigned long long)s->pid);
}

struct found {
    struct mcd_traced task;
    const struct mcd_session *session;
    uint32_t queue;
    uint32_t order; /* in its queue */
};

/* The clock is looked at once in a few turns: tasks of one look are in the order of their queue. */
static int later_first(const void *a, const void *b)
{
    const struct found *x = a, *y = b;

    if (x->task.when != y->task.when)
        return x->task.when < y->task.when ? 1 : -1;
    if (x->queue != y->queue)
        return x->queue < y->queue ? 1 : -1;
    return x->order < y->order ? 1 : x->order > y->order ? -1 : 0;
}

static const char *word_of(const char *const *words, size_t n, unsigned i)
{
    return i < n && words[i] != NULL ? words[i] : "?";
}
#define WORD(words, i) word_of(words, sizeof(words) / sizeof(words[0]), i)

static void add_task(const struct mcd_agent *a, cJSON *list, const struct found *f, uint64_t now)
{
    static const char *const ops[] = {"none", "read", "write", "notify", "cancel"};
    static const char *const shapes[] = {"one", "list", "stride"};
    static const char *const classes[] = {"high", "normal", "background"};
    static const char *const states[] = {"WAITING",   "PENDING", "INVALID", "CANCELED",
                                         "COMPLETED", "TIMEOUT", "FAILED"};
    static const char *const paths[] = {"none", "local", "caller", "staged",  "tcp",
                                        "rdma", "cuda",  "file",   "mooncake"};
    const struct mcd_traced *t = &f->task;
    cJSON *o = cJSON_CreateObject();
    char text[24];

    cJSON_AddNumberToObject(o, "session", f->session->id);
    cJSON_AddNumberToObject(o, "queue", f->queue);
    cJSON_AddNumberToObject(
        o, "ago_us", now > t->when ? (double)(now - t->when) * 1e6 / (double)a->tick_hz : 0.0);
    cJSON_AddStringToObject(o, "op", WORD(ops, t->op));
    cJSON_AddStringToObject(o, "shape", WORD(shapes, t->shape));
    cJSON_AddStringToObject(o, "class", WORD(classes, t->priority));
    cJSON_AddBoolToObject(o, "fence", (t->flags & MCS_DESC_FENCE) != 0);
    cJSON_AddNumberToObject(o, "length", (double)t->length);
    cJSON_AddNumberToObject(o, "bytes", (double)t->bytes);
    cJSON_AddStringToObject(o, "path", WORD(paths, t->path));
    cJSON_AddStringToObject(o, "state", WORD(states, t->state));
    if (t->error != MCS_OK)
        cJSON_AddStringToObject(o, "error", mcd_status_word(t->error));
    else
        cJSON_AddNullToObject(o, "error");
    cJSON_AddNumberToObject(o, "queue_ns", t->queue_ns);
    cJSON_AddNumberToObject(o, "move_ns", t->move_ns);
    cJSON_AddNumberToObject(o, "notify_ns", t->notify_ns);
    snprintf(text, sizeof(text), "0x%llx", (unsigned long long)t->remote_addr);
    cJSON_AddStringToObject(o, "remote_address", text);
    cJSON_AddNumberToObject(o, "segment", t->segment);
    cJSON_AddNumberToObject(o, "slot", t->slot);
    cJSON_AddItemToArray(list, o);
}

static void add_session(cJSON *list, const struct mcd_session *s)
{
    uint64_t tasks = 0, traced = 0;
    cJSON *o = cJSON_CreateObject();

    for (const struct mcd_queue *q = s->queues; q != NULL; q = q->next) {
        tasks += mcs_load_relaxed(&q->stats->sums.tasks);
        traced += mcs_load_relaxed(&q->stats->sums.traced);
    }
    cJSON_AddNumberToObject(o, "id", s->id);
    cJSON_AddStringToObject(o, "name", s->name);
    cJSON_AddNumberToObject(o, "pid", s->pid);
    cJSON_AddNumberToObject(o, "uid", s->uid);
    if (s->account->named)
        cJSON_AddStringToObject(o, "tenant", s->account->name);
    else
        cJSON_AddNumberToObject(o, "tenant", (double)s->tenant);
    cJSON_AddNumberToObject(o, "tasks", (double)tasks);
    cJSON_AddNumberToObject(o, "recorded", (double)(traced < tasks ? traced : tasks));
    cJSON_AddItemToArray(list, o);
}

/* The last tasks of one session, `count` at most, into *all, which holds *n and has room for as many
 * again as `count`. */
static int collect(const struct mcd_session *s, uint32_t count, struct found **all, size_t *n)
{
    for (const struct mcd_queue *q = s->queues; q != NULL; q = q->next) {
        struct mcd_traced tasks[MCD_TRACE_SIZE];
        unsigned k = mcd_trace_copy(&q->trace, tasks, MCD_TRACE_SIZE);
        struct found *more;

        if (k == 0)
            continue;
        more = realloc(*all, (*n + k) * sizeof(*more));
        if (more == NULL)
            return -1;
        *all = more;
        for (unsigned i = 0; i < k; i++)
            more[*n + i] =
                (struct found){.task = tasks[i], .session = s, .queue = q->id, .order = i};
        *n += k;
        if (*n > 2 * (size_t)count + MCD_TRACE_SIZE) { /* as many as are wanted, and no more */
            qsort(more, *n, sizeof(*more), later_first);
            *n = *n < count ? *n : count;
        }
    }
    return 0;
}

void mcd_on_trace(struct mcd_session *s, struct mcs_msg *m)
{
    struct mcd_agent *a = s->agent;
    struct mcs_msg_trace r = m->b.trace;
    cJSON *root, *sessions, *tasks;
    struct found *all = NULL;
    unsigned matches = 0;
    size_t n = 0;
    char *text;
    int res = 0;

    if (!mcd_good_name(r.client) || r.count == 0 || r.count > MCS_TRACE_MAX) {
        mcd_session_refuse(s, MCS_INVALID_ARGUMENT,
                           "trace: want a client's name, pid or session and 1 to %u tasks",
                           MCS_TRACE_MAX);
        return;
    }
    root = cJSON_CreateObject();
    sessions = cJSON_AddArrayToObject(root, "sessions");
    tasks = cJSON_AddArrayToObject(root, "tasks");
    for (unsigned by = BY_ID; by < BY_COUNT && matches == 0; by++) {
        for (const struct mcd_session *t = a->sessions; t != NULL && res == 0; t = t->next) {
            if (!t->greeted || !mcd_may_see(s, t->tenant) ||
                !is_called(t, (enum trace_by)by, r.client))
                continue;
            matches++;
            add_session(sessions, t);
            res = collect(t, r.count, &all, &n);
        }
    }
    if (matches == 0) {
        mcd_session_refuse(s, MCS_NOT_FOUND,
                           "no client with the session, pid or name '%.100s' that user %u may see; "
                           "`mcshm ls sessions` lists them",
                           r.client, s->uid);
    } else {
        uint64_t now = mcs_ticks();

        if (n != 0)
            qsort(all, n, sizeof(*all), later_first);
        n = n < r.count ? n : r.count;
        for (size_t i = n; i-- > 0;) /* the oldest first */
            add_task(a, tasks, &all[i], now);
        text = res == 0 ? cJSON_PrintUnformatted(root) : NULL;
        mcd_reply_text(s, m, text);
    }
    cJSON_Delete(root);
    free(all);
}
