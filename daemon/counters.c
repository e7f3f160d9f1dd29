/* SPDX-License-Identifier: Apache-2.0 */
#include "counters.h"

#include <string.h>

#define C(field, text)                                                                             \
    {                                                                                              \
#field, text, offsetof(struct mcd_totals, field)                                           \
    }

const struct mcd_counter mcd_counter_list[] = {
    C(tasks, "Tasks that ended, whatever came of them"),
    C(bytes, "Bytes moved by engines"),
    C(completed, "Tasks that ended COMPLETED"),
    C(invalid, "Tasks that ended INVALID: bad requests"),
    C(canceled, "Tasks that ended CANCELED"),
    C(timeout, "Tasks that ended TIMEOUT"),
    C(failed, "Tasks that ended FAILED"),
    C(notifications, "Notifications delivered"),
    C(inbox_full, "Turns in which a notification found its receiver's inbox full"),
    C(futex_wakes, "Sleeping clients woken"),
    C(broken_queues, "Queues given up because their client broke the protocol"),
    C(memory_faults, "Copies that met shared memory which its client had taken away"),
    C(engine_sleeps, "Times an engine went to sleep"),
    C(caller_tasks, "Tasks copied in the caller's thread, as clients report them"),
    C(caller_bytes, "Bytes copied in the caller's thread, as clients report them"),
    C(staged_tasks, "Tasks staged from or to private memory, as clients report them"),
    C(staged_bytes, "Bytes staged from or to private memory, as clients report them"),
    C(sessions_accepted, "Connections accepted"),
    C(sessions_refused, "Connections refused for a limit"),
    C(sessions_ended, "Sessions ended, for any reason"),
    C(sessions_thrown_out, "Sessions ended because the client misbehaved"),
    C(requests, "Control requests"),
    C(requests_refused, "Control requests answered with an error"),
    C(protocol_errors, "Malformed control messages"),
    C(version_errors, "Clients refused for their version"),
    C(revoke_timeouts, "Revocations that met a caller's copy which did not end"),
    C(page_fallbacks, "Extents made of ordinary pages for want of hugepages"),
    C(memory_refused, "Requests for memory refused"),
};
const size_t mcd_counter_count = sizeof(mcd_counter_list) / sizeof(mcd_counter_list[0]);

void mcd_totals(struct mcd_agent *a, struct mcd_totals *t)
{
    *t = (struct mcd_totals){
        .caller_tasks = a->caller_tasks,
        .caller_bytes = a->caller_bytes,
        .staged_tasks = a->staged_tasks,
        .staged_bytes = a->staged_bytes,
        .sessions_accepted = a->accepted,
        .sessions_refused = a->refused,
        .sessions_ended = a->ended,
        .sessions_thrown_out = a->fault_ends,
        .requests = a->requests,
        .protocol_errors = a->protocol_errors,
        .version_errors = a->version_errors,
        .revoke_timeouts = a->revoke_timeouts,
        .page_fallbacks = a->pool.fallbacks,
        .memory_refused = a->pool.refused,
    };
    for (size_t i = 1; i <= MCS_INTERNAL; i++)
        t->requests_refused += a->refusals[i];
    for (unsigned i = 0; i < a->nengines; i++) {
        const struct mcd_counters *c = &a->engines[i]->counters;

        t->tasks += mcs_load_relaxed(&c->tasks);
        t->bytes += mcs_load_relaxed(&c->bytes);
        t->completed += mcs_load_relaxed(&c->states[MCS_STATE_COMPLETED]);
        t->invalid += mcs_load_relaxed(&c->states[MCS_STATE_INVALID]);
        t->canceled += mcs_load_relaxed(&c->states[MCS_STATE_CANCELED]);
        t->timeout += mcs_load_relaxed(&c->states[MCS_STATE_TIMEOUT]);
        t->failed += mcs_load_relaxed(&c->states[MCS_STATE_FAILED]);
        t->notifications += mcs_load_relaxed(&c->notifications);
        t->inbox_full += mcs_load_relaxed(&c->inbox_full);
        t->futex_wakes += mcs_load_relaxed(&c->futex_wakes);
        t->broken_queues += mcs_load_relaxed(&c->broken);
        t->memory_faults += mcs_load_relaxed(&c->faults);
        t->engine_sleeps += mcs_load_relaxed(&c->sleeps);
    }
    for (const struct mcd_session *s = a->sessions; s != NULL; s = s->next) {
        for (const struct mcd_queue *q = s->queues; q != NULL; q = q->next) {
            t->caller_tasks += mcs_load_relaxed(&q->shm.doorbell->caller_tasks);
            t->caller_bytes += mcs_load_relaxed(&q->shm.doorbell->caller_bytes);
            t->staged_tasks += mcs_load_relaxed(&q->shm.doorbell->staged_tasks);
            t->staged_bytes += mcs_load_relaxed(&q->shm.doorbell->staged_bytes);
        }
    }
}

uint64_t mcd_counter_value(const struct mcd_totals *t, size_t index)
{
    uint64_t v;

    memcpy(&v, (const char *)t + mcd_counter_list[index].offset, sizeof(v));
    return v;
}

const char *mcd_status_word(uint32_t status)
{
    static const char *const words[] = {
#define WORD(name, value, text) [value] = #name,
        MCS_STATUS_LIST(WORD)
#undef WORD
    };

    return status < sizeof(words) / sizeof(words[0]) ? words[status] : "UNKNOWN";
}
