/* SPDX-License-Identifier: Apache-2.0 */
/* Notifications into the inboxes of sessions of this host, by engines. */
#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "session.h"
#include "task.h"

int mcd_inbox_deliver(struct mcd_engine *g, struct mcd_session *owner, uint64_t source,
                      uint64_t bytes, const void *name, uint32_t name_length, const void *message,
                      uint32_t message_length)
{
    int res;

    if (mcs_load_acquire(&owner->recovering) != 0) /* partner: drop_rest() in limbo.c */
        return -ECONNRESET;
    while (mcs_exchange(&owner->inbox_lock, 1u) != 0) /* other engines hold it for one copy */
        mcs_pause();
    res = mcs_inbox_put(&owner->region, &owner->inbox_head, source, bytes, name, name_length,
                        message, message_length);
    mcs_store_release(&owner->inbox_lock, 0u); /* partner: the exchange above */
    if (res == -EPROTO) {
        mcs_store_release(&owner->inbox_error, (uint32_t)MCS_PROTOCOL); /* partner: session.c */
        mcd_engine_tell_control(g);
        return -ENOTCONN;
    }
    if (res != 0) {
        mcs_count(&g->counters.inbox_full, 1);
        return res;
    }
    mcs_count(&g->counters.notifications, 1);
    if (mcs_inbox_reader_waits(&owner->region)) {
        syscall(SYS_futex, &owner->region.words->inbox_head, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
        mcs_count(&g->counters.futex_wakes, 1);
    }
    return 0;
}

int mcd_task_deliver(struct mcd_engine *g, struct mcd_queue *q, struct mcd_task *t)
{
    struct mcd_segment *seg = mcd_find_segment(q, t->desc.segment);
    /* partner: the release in session.c when the owner ends; its region outlives this turn */
    struct mcd_session *owner = seg == NULL ? NULL : mcs_load_acquire(&seg->owner);
    const uint8_t *text = q->shm.args + (uint64_t)t->desc.args * MCS_LINE + t->args.notify;

    if (owner == NULL)
        return seg != NULL && seg->stale ? -ESTALE : -ENOTCONN;
    return mcd_inbox_deliver(g, owner, q->session->incarnation, t->bytes, text, t->args.name_length,
                             text + t->args.name_length, t->args.message_length);
}
