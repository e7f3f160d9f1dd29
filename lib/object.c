/* SPDX-License-Identifier: Apache-2.0 */
/* Requests about objects: built into the argument area, submitted like any other task, results read from it. */
#include "internal.h"
#include "shm/object.h"

static mcshm_status not_yet(void)
{
    return mcl_fail(MCSHM_NOT_SUPPORTED, "this library knows no objects");
}

MCSHM_API mcshm_status mcshm_submit_objects(mcshm_queue *q, mcshm_batch batch,
                                            const mcshm_object_request *r)
{
    (void)q, (void)batch, (void)r;
    return not_yet();
}

MCSHM_API mcshm_status mcshm_object_results(mcshm_queue *q, mcshm_batch batch, uint32_t index,
                                            size_t first, mcshm_object_result *out, size_t n)
{
    (void)q, (void)batch, (void)index, (void)first, (void)out, (void)n;
    return not_yet();
}

MCSHM_API mcshm_status mcshm_object_release(mcshm_queue *q, const uint64_t *holds, size_t n,
                                            size_t *done)
{
    (void)q, (void)holds, (void)n, (void)done;
    return not_yet();
}

MCSHM_API mcshm_status mcshm_objects(mcshm_queue *q, const mcshm_object_request *r,
                                     mcshm_object_result *results, mcshm_task_status *status,
                                     int64_t timeout_us)
{
    (void)q, (void)r, (void)results, (void)status, (void)timeout_us;
    return not_yet();
}

MCSHM_API mcshm_status mcshm_objects_remove_prefix(mcshm *c, const void *prefix, size_t size,
                                                   uint32_t flags, uint64_t *removed)
{
    (void)c, (void)prefix, (void)size, (void)flags, (void)removed;
    return not_yet();
}

MCSHM_API mcshm_status mcshm_objects_remove_regex(mcshm *c, const char *regex, uint32_t flags,
                                                  uint64_t *removed)
{
    (void)c, (void)regex, (void)flags, (void)removed;
    return not_yet();
}

MCSHM_API mcshm_status mcshm_objects_remove_all(mcshm *c, uint32_t flags, uint64_t *removed)
{
    (void)c, (void)flags, (void)removed;
    return not_yet();
}

MCSHM_API mcshm_status mcshm_objects_list(mcshm *c, const void *prefix, size_t size, uint32_t flags,
                                          uint64_t skip, uint64_t limit, char **json)
{
    (void)c, (void)prefix, (void)size, (void)flags, (void)skip, (void)limit, (void)json;
    return not_yet();
}

MCSHM_API mcshm_status mcshm_object_stat(mcshm *c, const mcshm_key *key, char **json)
{
    (void)c, (void)key, (void)json;
    return not_yet();
}

MCSHM_API mcshm_status mcshm_objects_events(mcshm *c, uint64_t from, uint64_t limit, char **json)
{
    (void)c, (void)from, (void)limit, (void)json;
    return not_yet();
}

MCSHM_API mcshm_status mcshm_drain(mcshm *c, const char *host, bool drain, char **json)
{
    (void)c, (void)host, (void)drain, (void)json;
    return not_yet();
}
