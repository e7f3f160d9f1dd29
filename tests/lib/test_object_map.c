/* SPDX-License-Identifier: Apache-2.0 */
/* Extents of the store's that a client maps: when it asks, what it asks a later agent, what becomes of
 * requests and holds in between. */
#include "world.h"

#include "shm/object.h"

TestSuite(object_map, .timeout = 60);

static mcshm_batch submit_hold(struct world *w, mcshm_object_op op, struct mcs_desc *d)
{
    static const uint64_t size = 100;
    mcshm_key key = {"k", 1};
    mcshm_object_request r = {.op = op, .keys = &key, .count = 1, .sizes = &size};
    mcshm_batch b;

    cr_assert_eq(mcshm_batch_alloc(w->q, 1, &b), MCSHM_OK);
    cr_assert_eq(mcshm_submit_objects(w->q, b, &r), MCSHM_OK, "%s", mcshm_last_error(NULL));
    take(w, d, 1);
    return b;
}

static void answer(struct world *w, const struct mcs_desc *d, uint32_t extent, uint64_t offset)
{
    struct mcs_object_args *a = (void *)(w->a.queue.args + (uint64_t)d->args * MCS_LINE);

    *(struct mcs_object_result *)((uint8_t *)a + a->results) = (struct mcs_object_result){
        .size = 100, .hold = 9, .extent = extent, .offset = offset, .status = MCS_OK};
    end(w, d, MCS_STATE_COMPLETED, 1);
}

static mcshm_object_result held(struct world *w, mcshm_object_op op, uint32_t extent,
                                uint64_t offset)
{
    mcshm_object_result r;
    struct mcs_desc d;
    mcshm_batch b = submit_hold(w, op, &d);

    answer(w, &d, extent, offset);
    cr_assert_eq(mcshm_object_results(w->q, b, 0, 0, &r, 1), MCSHM_OK, "%s",
                 mcshm_last_error(NULL));
    cr_assert_eq(mcshm_batch_free(w->q, b), MCSHM_OK);
    return r;
}

static uint32_t asked(struct world *w, uint32_t life)
{
    return later_asked(&w->a, life, MCS_MSG_OBJECT_MAP);
}

Test(object_map, an_extent_is_mapped_once_for_each_kind)
{
    static struct world w = {.a.features = MCS_FEATURE_OBJECTS};
    mcshm_object_result r, other;

    set_up(&w, NULL);
    r = held(&w, MCSHM_HOLD, 5, 4096);
    cr_assert_eq(asked(&w, 1), 1);
    w.a.extent[4096] = 77;
    cr_assert_eq(*(uint8_t *)r.address, 77, "the very memory");
    other = held(&w, MCSHM_HOLD, 5, 8192);
    cr_assert_eq((uint8_t *)other.address - (uint8_t *)r.address, 4096);
    cr_assert_eq(asked(&w, 1), 1, "it is mapped");
    other = held(&w, MCSHM_CREATE, 5, 4096);
    cr_assert_neq(other.address, r.address);
    *(uint8_t *)other.address = 78;
    cr_assert_eq(*(uint8_t *)r.address, 78);
    cr_assert_eq(asked(&w, 1), 2, "once more to write there");
    /* ids that share their place in what the queue remembers */
    for (unsigned i = 0; i < 3; i++) {
        (void)held(&w, MCSHM_HOLD, 5 + MCL_OBJECT_MAPS, 0);
        cr_assert_eq(held(&w, MCSHM_HOLD, 5, 4096).address, r.address);
    }
    cr_assert_eq(asked(&w, 1), 3);
    /* a queue that remembers nothing finds them, too */
    free(w.q->object_maps);
    w.q->object_maps = NULL;
    cr_assert_eq(held(&w, MCSHM_HOLD, 5, 4096).address, r.address);
    cr_assert_eq(asked(&w, 1), 3);
    tear_down(&w);
}

static enum later_say refuse_maps(struct later *a, const struct mcs_msg *m, uint32_t *status)
{
    (void)a;
    *status = MCS_LIMIT;
    return m->h.type == MCS_MSG_OBJECT_MAP ? LATER_REFUSE : LATER_ANSWER;
}

/* Without a mapping there is no result; what could not be taken is not lost, and mcshm_objects() gives it back. */
Test(object_map, a_mapping_that_is_refused_is_told)
{
    static struct world w = {.a.features = MCS_FEATURE_OBJECTS};
    mcshm_object_result r;
    struct mcs_desc d;
    mcshm_batch b;

    set_up(&w, NULL);
    mcs_store_release(&w.a.hook, refuse_maps);
    b = submit_hold(&w, MCSHM_HOLD, &d);
    answer(&w, &d, 5, 0);
    cr_assert_eq(mcshm_object_results(w.q, b, 0, 0, &r, 1), MCSHM_LIMIT);
    mcs_store_release(&w.a.hook, NULL);
    cr_assert_eq(mcshm_object_results(w.q, b, 0, 0, &r, 1), MCSHM_OK, "asked again");
    cr_assert_not_null(r.address);
    tear_down(&w);
}

Test(object_map, a_later_agent_is_told_of_the_mappings)
{
    static struct world w = {.a.features = MCS_FEATURE_OBJECTS};
    mcshm_object_result r, created;
    uint64_t holds[] = {9, 10};
    struct mcs_desc d[3];
    mcshm_batch done, lost, waiting;

    set_up(&w, NULL);
    r = held(&w, MCSHM_HOLD, 5, 4096);
    created = held(&w, MCSHM_CREATE, 6, 0);
    done = submit_hold(&w, MCSHM_HOLD, &d[0]);
    answer(&w, &d[0], 7, 64);
    lost = submit_hold(&w, MCSHM_HOLD, &d[1]);
    later_kill(&w.a);
    await_restarts(&w, 1);
    waiting = submit_hold(&w, MCSHM_HOLD, &d[2]);
    while (asked(&w, 2) < 2) /* the watcher's, after it is back */
        sched_yield();
    cr_assert_eq(asked(&w, 2), 2, "both, each of its kind");
    /* what was there can be read and filled on */
    w.a.extent[4096] = 99;
    cr_assert_eq(*(uint8_t *)r.address, 99);
    *(uint8_t *)created.address = 98;
    cr_assert_eq(w.a.extent[0], 98);
    /* what had ended has its results, and a later agent maps what they name */
    cr_assert_eq(mcshm_object_results(w.q, done, 0, 0, &r, 1), MCSHM_OK);
    cr_assert_not_null(r.address);
    cr_assert_eq(asked(&w, 2), 3);
    cr_assert_eq(mcshm_object_results(w.q, lost, 0, 0, &r, 1), MCSHM_AGENT_RESTARTED);
    cr_assert_eq(mcshm_object_results(w.q, waiting, 0, 0, &r, 1), MCSHM_BUSY);
    cr_assert_eq(mcshm_object_release(w.q, holds, 2, NULL), MCSHM_OK);
    cr_assert_eq(mcshm_batch_free(w.q, lost), MCSHM_OK);
    cr_assert_eq(mcshm_batch_free(w.q, done), MCSHM_OK);
    tear_down(&w);
}

/* A later agent that begins its extents anew gives an id to another one: what was mapped stays for who reads there,
 * and what the id names now is found. */
Test(object_map, an_id_of_a_later_agent_may_name_another_extent)
{
    static struct world w = {.a.features = MCS_FEATURE_OBJECTS};
    mcshm_object_result old, now;
    void *mem;
    int fd;

    set_up(&w, NULL);
    old = held(&w, MCSHM_HOLD, 5, 4096);
    w.a.extent[4096] = 1;
    cr_assert_eq(mcs_region_create("another", LATER_EXTENT_SIZE, 0, -1, NULL, &fd, &mem), 0);
    ((uint8_t *)mem)[4096] = 2;
    cr_assert_geq(dup2(fd, w.a.extent_fd),
                  0); /* only the agent's thread has it, and is not asked now */
    later_kill(&w.a);
    await_restarts(&w, 1);
    now = held(&w, MCSHM_HOLD, 5, 4096);
    cr_assert_eq(*(uint8_t *)old.address, 1);
    cr_assert_eq(*(uint8_t *)now.address, 2);
    cr_assert_eq(held(&w, MCSHM_HOLD, 5, 4096).address, now.address);
    tear_down(&w);
}

/* A later agent may have no objects: then that is said, at once. */
Test(object_map, a_later_agent_without_objects)
{
    static struct world w = {.a.features = MCS_FEATURE_OBJECTS};
    mcshm_key key = {"k", 1};
    mcshm_object_request r = {.op = MCSHM_EXIST, .keys = &key, .count = 1};
    mcshm_batch b;

    set_up(&w, NULL);
    mcs_store_release(&w.a.features, UINT64_C(0));
    later_kill(&w.a);
    await_restarts(&w, 1);
    cr_assert_eq(mcshm_batch_alloc(w.q, 1, &b), MCSHM_OK);
    cr_assert_eq(mcshm_submit_objects(w.q, b, &r), MCSHM_NOT_SUPPORTED);
    tear_down(&w);
}

static enum later_say refuse_five(struct later *a, const struct mcs_msg *m, uint32_t *status)
{
    (void)a;
    *status = MCS_INVALID_HANDLE;
    return m->h.type == MCS_MSG_OBJECT_MAP && m->b.object_map.extent == 5 ? LATER_REFUSE
                                                                          : LATER_ANSWER;
}

static bool is_mapped(const void *at)
{
    unsigned char there;

    return mincore((void *)((uintptr_t)at & ~UINT64_C(4095)), 1, &there) == 0;
}

/* Extents that the store gives up are unmapped, and the agent is told; others stay. */
Test(object_map, what_the_store_gives_up_is_unmapped)
{
    static struct world w = {.a.features = MCS_FEATURE_OBJECTS};
    mcshm_object_result five, six;
    struct mcs_desc d;
    mcshm_batch b;

    set_up(&w, NULL);
    five = held(&w, MCSHM_HOLD, 5, 0);
    (void)held(&w, MCSHM_CREATE, 5, 0);
    six = held(&w, MCSHM_HOLD, 6, 0);
    mcs_store_release(&w.a.hook, refuse_five);
    mcs_store_release(&w.a.region.words->objects_gone, 1u);
    b = submit_hold(&w, MCSHM_HOLD, &d);
    while (later_asked(&w.a, 1, MCS_MSG_OBJECT_UNMAP) < 2)
        sched_yield();
    pthread_mutex_lock(&w.c->mutex); /* the watcher is done with it */
    cr_assert_eq(w.c->nobject_maps, 1);
    pthread_mutex_unlock(&w.c->mutex);
    cr_assert(!is_mapped(five.address));
    cr_assert(is_mapped(six.address));
    answer(&w, &d, 6, 64);
    cr_assert_eq(mcshm_object_results(w.q, b, 0, 0, &six, 1), MCSHM_OK);
    cr_assert(is_mapped(six.address));
    cr_assert_eq(mcshm_batch_free(w.q, b), MCSHM_OK);
    tear_down(&w);
}
