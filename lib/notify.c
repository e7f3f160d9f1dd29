/* SPDX-License-Identifier: Apache-2.0 */
/* Receiving notifications: the session's inbox is written by the agent alone. */
#include "internal.h"
#include "shm/failpoint.h"

/* Takes the next record into the connection's own memory. MCSHM_BUSY: there is none. */
static mcshm_status take(struct mcshm *c, mcshm_notification *out)
{
    const struct mcs_inbox_record *record = mcs_inbox_peek(&c->region);
    uint64_t left;
    struct mcs_inbox_record r;

    if (record == NULL)
        return MCSHM_BUSY;
    r = *record; /* one copy, then checked, then used */
    left = c->region.inbox_size - (uint64_t)((const uint8_t *)record - c->region.inbox);
    if (r.name_length > MCS_NOTIFY_NAME_MAX || r.message_length > MCS_NOTIFY_MESSAGE_MAX ||
        r.size > left || sizeof(r) + r.name_length + r.message_length > r.size)
        return mcl_fail(MCSHM_PROTOCOL, "a notification of %u + %u bytes in %u contradicts itself",
                        r.name_length, r.message_length, r.size);
    memcpy(c->notify_name, record + 1, r.name_length);
    memcpy(c->notify_message, (const uint8_t *)(record + 1) + r.name_length, r.message_length);
    MCS_FAILPOINT(notify_taken);
    mcs_inbox_release(&c->region, record);
    mcs_count(&c->notifications, 1); /* relaxed: partner mcshm_get_stats() */
    c->notify_idle = (struct mcl_idle){0};
    *out = (mcshm_notification){.name = c->notify_name,
                                .name_size = r.name_length,
                                .message = c->notify_message,
                                .message_size = r.message_length};
    return MCSHM_OK;
}

/* Sleeps until the inbox changes or the deadline comes. */
static mcshm_status sleep_once(struct mcshm *c, mcshm_notification *out, int64_t deadline)
{
    uint32_t value = mcs_inbox_wait_begin(&c->region);
    mcshm_status status = take(c, out);
    int64_t left = deadline - mcl_now_ns();

    if (status == MCSHM_BUSY && mcl_hangup(c)) {
        status = take(c, out); /* what came before the end */
        if (status == MCSHM_BUSY)
            status = mcl_fail(MCSHM_AGENT_DOWN, "the agent ended the session: connect again");
    } else if (status == MCSHM_BUSY && left <= 0) {
        status = MCSHM_TIMEOUT;
    } else if (status == MCSHM_BUSY) {
        mcs_count(&c->notify_sleeps, 1);
        mcl_futex_wait(&c->region.words->inbox_head, value,
                       left < MCL_SLEEP_NS ? left : MCL_SLEEP_NS);
    }
    mcs_inbox_wait_end(&c->region);
    return status;
}

MCSHM_API mcshm_status mcshm_notify_recv(mcshm *c, mcshm_notification *out, int64_t timeout_us)
{
    int64_t deadline = INT64_MAX;
    uint64_t start, spin;
    mcshm_status status = mcl_check(c);

    if (status != MCSHM_OK)
        return status;
    if (out == NULL)
        return mcl_fail(MCSHM_INVALID_ARGUMENT, "mcshm_notify_recv: out is NULL");
    status = take(c, out);
    if (status != MCSHM_BUSY)
        return status;
    if (timeout_us == 0)
        return mcl_idle_down(c, &c->notify_idle) ? MCSHM_AGENT_DOWN : MCSHM_TIMEOUT;
    if (timeout_us > 0 && timeout_us < INT64_MAX / 2000)
        deadline = mcl_now_ns() + timeout_us * 1000;

    start = mcs_ticks();
    spin = mcl_spin_ticks(c, timeout_us);
    do {
        mcl_spin_pause(c, mcs_ticks() - start);
        status = take(c, out);
    } while (status == MCSHM_BUSY && mcs_ticks() - start < spin);
    while (status == MCSHM_BUSY)
        status = sleep_once(c, out, deadline);
    return status;
}
