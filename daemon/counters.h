/* SPDX-License-Identifier: Apache-2.0 */
/* The agent's counters, added up over engines, queues and the control thread: one list serves
 * /metrics and `mcshm status`. Control thread only. */
#ifndef MCD_COUNTERS_H
#define MCD_COUNTERS_H

#include "agent.h"

struct mcd_totals {
    uint64_t tasks, bytes, completed, invalid, canceled, timeout, failed;
    uint64_t notifications, inbox_full, futex_wakes, broken_queues, memory_faults, engine_sleeps;
    uint64_t caller_tasks, caller_bytes, staged_tasks, staged_bytes;
    uint64_t sessions_accepted, sessions_refused, sessions_ended, sessions_thrown_out;
    uint64_t requests, requests_refused, protocol_errors, version_errors, revoke_timeouts;
    uint64_t page_fallbacks, memory_refused;
};

struct mcd_counter {
    const char *name;
    const char *help;
    size_t offset; /* in struct mcd_totals */
};

extern const struct mcd_counter mcd_counter_list[];
extern const size_t mcd_counter_count;

void mcd_totals(struct mcd_agent *a, struct mcd_totals *out);
uint64_t mcd_counter_value(const struct mcd_totals *t, size_t index);

/* The name of a status in metrics: "bad_range". Static. */
const char *mcd_status_word(uint32_t status);

#endif
