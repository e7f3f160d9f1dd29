/* SPDX-License-Identifier: Apache-2.0 */
#include <malloc.h>

#include "local.h"

/* Sanitizers end a program where malloc() would return NULL, which one test needs. They ask
 * before they are set up. */
MCSHM_API __attribute__((no_sanitize_thread)) const char *__asan_default_options(void);
MCSHM_API __attribute__((no_sanitize_thread)) const char *__tsan_default_options(void);

const char *__asan_default_options(void)
{
    return "allocator_may_return_null=1";
}

const char *__tsan_default_options(void)
{
    return "allocator_may_return_null=1";
}

TestSuite(view, .timeout = 10, .fini = local_teardown);

static struct mcl_extent extent(uint32_t handle, uintptr_t base, uint64_t size)
{
    return (struct mcl_extent){
        .handle = handle, .base = (uint8_t *)base, .size = size, .map_size = size};
}

Test(view, finds_the_range_around_an_address)
{
    struct local l;

    local_setup(&l, 8, 8, 2, 0);
    l.c->nextents = 3;
    l.c->extents[0] = extent(30, 0x30000, 0x1000);
    l.c->extents[1] = extent(10, 0x10000, 0x1000);
    l.c->extents[2] = extent(11, 0x11000, 0x1000); /* a neighbour without a gap */
    cr_assert_eq(mcl_view_update(l.c, NULL), 0);

    cr_assert_null(mcl_view_range(l.c->view, 0));
    cr_assert_null(mcl_view_range(l.c->view, 0xffff));
    cr_assert_eq(mcl_view_range(l.c->view, 0x10000)->extent, 10);
    cr_assert_eq(mcl_view_range(l.c->view, 0x10fff)->extent, 10);
    cr_assert_eq(mcl_view_range(l.c->view, 0x11000)->extent, 11);
    cr_assert_null(mcl_view_range(l.c->view, 0x12000));
    cr_assert_eq(mcl_view_range(l.c->view, 0x30fff)->extent, 30);
    cr_assert_null(mcl_view_range(l.c->view, 0x31000));
    cr_assert_null(mcl_view_range(l.c->view, UINTPTR_MAX));
}

Test(view, private_memory_points_into_its_shadow)
{
    static uint8_t mine[4096];
    struct mcl_private p = {.start = mine, .size = sizeof(mine)};
    const struct mcl_range *r;
    struct local l;

    local_setup(&l, 8, 8, 2, 0);
    local_private(&l, &p, 8192);
    r = mcl_queue_range(l.q, mine + 100);
    cr_assert_not_null(r);
    cr_assert_eq(r->staged, &p);
    cr_assert_eq(r->extent, LOCAL_EXTENT);
    cr_assert_eq(r->offset, 8192);
}

Test(view, queue_follows_a_change)
{
    struct local l;

    local_setup(&l, 8, 8, 2, 0);
    cr_assert_not_null(mcl_queue_range(l.q, l.memory));
    cr_assert_not_null(mcl_queue_range(l.q, l.memory + LOCAL_SIZE - 1));
    l.c->nextents = 0;
    cr_assert_eq(mcl_view_update(l.c, NULL), 0);
    cr_assert_null(mcl_queue_range(l.q, l.memory), "the cached hit is of an old view");
}

Test(view, replaced_views_live_while_pinned_and_no_longer)
{
    static uint8_t mine[64];
    struct mcl_private *p = calloc(1, sizeof(*p));
    struct local l;

    local_setup(&l, 8, 8, 2, 0);
    *p = (struct mcl_private){.start = mine, .size = sizeof(mine)};
    local_private(&l, p, 8192);
    cr_assert_not_null(mcl_queue_range(l.q, mine));
    cr_assert_eq(mcl_view_update(l.c, NULL), 0);
    l.c->privates = NULL;
    cr_assert_eq(mcl_view_update(l.c, p), 0);
    for (int i = 0; i < 5; i++)
        cr_assert_eq(mcl_view_update(l.c, calloc(1, sizeof(*p))), 0);
    cr_assert_eq(l.c->retired, l.q->view, "the oldest is pinned");
    cr_assert_eq(l.c->retired_last, l.q->view, "and keeps no later one waiting");
    cr_assert_eq(l.q->view->dropped, p, "but what it knows stays");
    cr_assert_null(p->next, "and nothing else");
    cr_assert_null(mcl_queue_range(l.q, mine));
    mcl_view_reclaim(l.c);
    cr_assert_null(l.c->retired);
    cr_assert_null(l.c->retired_last);
}

Test(view, without_memory_additions_change_nothing_and_removals_leave_nothing)
{
    struct mcl_segment segment = {.handle = 1, .ngrants = SIZE_MAX >> 8};
    struct local l;

    local_setup(&l, 8, 8, 2, 0);
    l.c->segments = &segment;
    l.c->nsegments = 1;
    cr_assert_eq(mcl_view_extend(l.c), -ENOMEM);
    cr_assert_not_null(mcl_queue_range(l.q, l.memory), "what was known is known");
    cr_assert_eq(mcl_view_update(l.c, NULL), -ENOMEM);
    cr_assert_null(mcl_queue_range(l.q, l.memory));
    segment.ngrants = 0;
    l.c->nsegments = 0;
    cr_assert_eq(mcl_view_extend(l.c), 0);
    cr_assert_not_null(mcl_queue_range(l.q, l.memory));
}

Test(view, room_for_grants_that_were_refused_is_given_back)
{
    struct mcl_segment segment = {.handle = 2};
    struct local l;
    size_t before;

    local_setup(&l, 8, 8, 2, 0);
    before = mallinfo2().uordblks;
    segment.grants = calloc(64, sizeof(*segment.grants)); /* too large for a thread's cache */
    mcl_grants_drop(l.c, &segment);
    cr_assert_null(segment.grants);
    cr_assert_eq(mallinfo2().uordblks, before);
}

Test(view, targets_are_per_segment)
{
    struct mcl_segment segments[2] = {{.handle = 1, .own = true}, {.handle = 2}};
    struct mcl_grant grants[1] = {{.access = MCS_ACCESS_READ | MCS_ACCESS_WRITE,
                                   .address = 0x5000,
                                   .size = 0x1000,
                                   .extent_address = 0x4000,
                                   .writable = false}};
    struct mcl_buffer buffers[2] = {{.size = 0x100, .address = 0x2000, .access = MCS_ACCESS_READ},
                                    {.size = 0x100, .address = 0x1000, .access = MCS_ACCESS_WRITE}};
    const struct mcl_target *t;
    struct local l;

    local_setup(&l, 8, 8, 2, 0);
    buffers[0].start = l.memory;
    buffers[1].start = l.memory + 0x1000;
    grants[0].extent = l.memory + 0x4000;
    segments[1].grants = grants;
    segments[1].ngrants = 1;
    l.c->segments = segments;
    l.c->nsegments = 2;
    l.c->buffers = buffers;
    l.c->nbuffers = 2;
    cr_assert_eq(mcl_view_update(l.c, NULL), 0);

    t = mcl_view_target(l.c->view, 1, 0x20ff);
    cr_assert_eq(t->memory, l.memory);
    cr_assert(t->readable && !t->writable);
    cr_assert_null(mcl_view_target(l.c->view, 1, 0x2100));
    cr_assert_null(mcl_view_target(l.c->view, 1, 0xfff));
    cr_assert_null(mcl_view_target(l.c->view, 1, 0x5000), "that is segment 2's");
    t = mcl_view_target(l.c->view, 2, 0x5000);
    cr_assert_eq(t->memory, l.memory + 0x5000);
    cr_assert(t->readable && !t->writable, "the mapping is read-only");
    cr_assert_null(mcl_view_target(l.c->view, 3, 0x1000));
}

Test(view, cutting_a_buffer_keeps_the_rest)
{
    struct local l;

    local_setup(&l, 8, 8, 2, 0);
    l.c->buffers = calloc(1, sizeof(*l.c->buffers));
    l.c->buffers_room = l.c->nbuffers = 1;
    l.c->buffers[0] = (struct mcl_buffer){.start = l.memory, .size = 1000, .address = 0x9000};
    mcl_buffers_cut(l.c, l.memory + 2000, 10);
    cr_assert_eq(l.c->nbuffers, 1);
    mcl_buffers_cut(l.c, l.memory + 400, 200);
    cr_assert_eq(l.c->nbuffers, 2);
    cr_assert_eq(l.c->buffers[0].size, 400);
    cr_assert_eq(l.c->buffers[1].start, l.memory + 600);
    cr_assert_eq(l.c->buffers[1].address, 0x9000 + 600);
    cr_assert_eq(l.c->buffers[1].size, 400);
    mcl_buffers_cut(l.c, l.memory, 100);
    cr_assert_eq(l.c->buffers[0].start, l.memory + 100);
    cr_assert_eq(l.c->buffers[0].size, 300);
    mcl_buffers_cut(l.c, l.memory + 900, 500);
    cr_assert_eq(l.c->buffers[1].size, 300);
    mcl_buffers_cut(l.c, l.memory, 1000);
    cr_assert_eq(l.c->nbuffers, 0);
    free(l.c->buffers);
}

/* One thread looks up while another changes the lists: never a freed view, never a wrong hit. */
static void *change_views(void *arg)
{
    struct local *l = arg;

    for (int i = 0; i < 2000; i++) {
        pthread_mutex_lock(&l->c->mutex);
        l->c->extents[0].handle = LOCAL_EXTENT + (uint32_t)i % 2;
        cr_assert_eq(mcl_view_update(l->c, NULL), 0);
        pthread_mutex_unlock(&l->c->mutex);
    }
    return NULL;
}

Test(view, lookups_race_with_changes)
{
    pthread_t thread;
    struct local l;

    local_setup(&l, 8, 8, 2, 0);
    cr_assert_eq(pthread_create(&thread, NULL, change_views, &l), 0);
    for (int i = 0; i < 200000; i++) {
        const struct mcl_range *r = mcl_queue_range(l.q, l.memory + i % LOCAL_SIZE);

        cr_assert_not_null(r);
        cr_assert(r->extent == LOCAL_EXTENT || r->extent == LOCAL_EXTENT + 1);
    }
    pthread_join(thread, NULL);
}
