/* SPDX-License-Identifier: Apache-2.0 */
/* long */
/* GPU memory as clients ask an agent for it, over a driver that the test plays: when what is asked of it, counted and given back. */
#include "daemon/gpu_internal.h"
#include "gpu_agent.h"

TestSuite(gpu_memory, .timeout = 60);

/* ---- the driver ------------------------------------------------------------------------------ */

Test(gpu_memory, the_driver_is_asked_for_nothing_before_a_client_wants_gpu_memory)
{
    struct mcd_agent *a = begin();
    struct sa_client c;

    sa_arrive(a, &c);
    sa_alloc(a, &c, 3 * MIB);
    cr_assert_eq(
        sa_buffer(a, &c, MCS_MSG_BUFFER_ADD, c.m.b.extent_reply.extent, 0, MIB, MCS_ACCESS_ALL),
        MCS_OK);
    sa_leave(&c);
    sa_until(a, a->sessions == NULL);
    for (unsigned k = 0; k < PC_KINDS; k++)
        cr_assert_eq(pc.begun[k], 0, "kind %u", k);
    end(a);
}

Test(gpu_memory, without_a_driver_gpu_memory_is_refused_in_words_and_the_rest_goes_on)
{
    struct mcd_agent *a = begin();
    struct sa_client c;

    pc.no_driver = true;
    sa_arrive(a, &c);
    for (unsigned i = 0; i < 3; i++) {
        cr_assert_eq(alloc(a, &c, 0, SMALL), MCS_NO_GPU);
        cr_assert_not_null(strstr(c.m.b.error.text, "the played driver says no"), "%s",
                           c.m.b.error.text);
        cr_assert_not_null(strstr(c.m.b.error.text, "GPU-10101010-"), "%s", c.m.b.error.text);
    }
    cr_assert_eq(pc.begun[MCT_CUDA_OPEN], 1, "it is asked once");
    sa_alloc(a, &c, SMALL);
    cr_assert_eq(pc.begun[MCT_CUDA_PIN], 0);
    cr_assert_eq(a->refusals[MCS_NO_GPU], 3);
    sa_leave(&c);
    end(a);
}

Test(gpu_memory, a_driver_that_was_not_there_is_asked_again_after_a_while)
{
    struct mcd_agent *a = begin();
    struct sa_client c;

    pc.no_driver = true;
    sa_arrive(a, &c);
    for (unsigned tries = 1; tries < 4; tries++) {
        cr_assert_eq(alloc(a, &c, 0, SMALL), MCS_NO_GPU);
        cr_assert_eq(alloc(a, &c, 0, SMALL), MCS_NO_GPU);
        cr_assert_eq(pc.begun[MCT_CUDA_OPEN], tries);
        cr_assert_eq(a->gpu->failed_opens, tries);
        cr_assert_gt(a->gpu->again_ns, mcd_now_ns());
        a->gpu->again_ns = 0; /* the while */
    }
    pc.no_driver = false;
    cr_assert_eq(alloc(a, &c, 0, SMALL), MCS_OK, "%s", c.m.b.error.text);
    cr_assert_str_eq(mcd_gpu_why(a), "");
    cr_assert_eq(pc.begun[MCT_CUDA_OPEN], 4);
    sa_leave(&c);
    end(a);
}

Test(gpu_memory, with_enable_off_there_is_no_gpu_and_it_is_not_offered)
{
    struct mcd_agent *a;
    struct sa_client c;
    char error[512] = "";

    memset(&pc, 0, sizeof(pc));
    a = sa_init();
    a->config.gpu_enable = MCD_GPU_OFF;
    cr_assert_eq(mcd_gpu_create(a, error, sizeof(error)), 0);
    sa_arrive(a, &c);
    cr_assert_eq(c.m.b.hello_reply.features & MCS_FEATURE_GPU, 0);
    cr_assert_eq(alloc(a, &c, 0, SMALL), MCS_NO_GPU);
    cr_assert_not_null(strstr(c.m.b.error.text, "[gpu] enable = off"), "%s", c.m.b.error.text);
    sa_leave(&c);
    sa_until(a, a->sessions == NULL);
    sa_fini(a);
}

Test(gpu_memory, enable_require_opens_the_driver_at_the_start_or_says_why_not)
{
    struct mcd_agent *a;
    char error[512] = "";

    memset(&pc, 0, sizeof(pc));
    a = sa_init();
    a->config.gpu_enable = MCD_GPU_REQUIRE;
    cr_assert_eq(mcd_gpu_create(a, error, sizeof(error)), 0, "%s", error);
    cr_assert_eq(mcd_gpu_state(a), MCD_GPU_OPEN);
    mcd_gpu_destroy(a);
    pc.no_driver = true;
    cr_assert_eq(mcd_gpu_create(a, error, sizeof(error)), -ENODEV);
    cr_assert_str_eq(
        error, "[gpu] enable = require: the played driver says no; enable = auto starts without");
    end(a);
}

Test(gpu_memory, a_device_that_the_agent_does_not_see_is_named)
{
    struct mcd_agent *a = begin();
    struct sa_client c;

    sa_arrive(a, &c);
    cr_assert_neq(c.m.b.hello_reply.features & MCS_FEATURE_GPU, 0);
    cr_assert_eq(alloc(a, &c, 7, SMALL), MCS_NO_GPU);
    cr_assert_not_null(strstr(c.m.b.error.text, "GPU-17171717-1717-1717-1717-171717171717"), "%s",
                       c.m.b.error.text);
    cr_assert_not_null(strstr(c.m.b.error.text, "none of the 2"), "%s", c.m.b.error.text);
    cr_assert_eq(pc.begun[MCT_CUDA_PIN] + pc.begun[MCT_CUDA_MAKE], 0, "nothing makes a context");
    sa_leave(&c);
    end(a);
}

/* ---- allocations ------------------------------------------------------------------------------ */

Test(gpu_memory, small_allocations_share_an_extent_and_the_last_one_frees_it)
{
    struct mcs_msg_extent_reply one, two, three;
    struct mcd_agent *a = begin();
    union mcs_msg_body b;
    struct sa_client c;
    struct mcd_extent *e;

    sa_arrive(a, &c);
    cr_assert_eq(alloc(a, &c, 1, SMALL), MCS_OK, "%s", c.m.b.error.text);
    one = c.m.b.extent_reply;
    cr_assert(one.is_new == 1 && c.answer_fd >= 0);
    cr_assert_eq(one.extent_size, EXTENT);
    cr_assert_eq(one.page_size, PC_GRANULARITY);
    e = extent_of(a, one.extent);
    cr_assert(e->gpu != NULL && e->gpu_device == 1 && !e->foreign);
    cr_assert_eq((uint64_t)(uintptr_t)e->map, one.address);
    cr_assert_eq(one.address % (UINT64_C(1) << 30), 0);
    cr_assert_eq(alloc(a, &c, 1, SMALL + 1), MCS_OK);
    two = c.m.b.extent_reply;
    cr_assert(two.extent == one.extent && two.is_new == 0 && c.answer_fd < 0);
    cr_assert_eq(two.offset % 256, 0);
    b = alloc_body(1, SMALL, MIB);
    cr_assert_eq(sa_ask(a, &c, MCS_MSG_GPU_ALLOC, &b), MCS_OK);
    three = c.m.b.extent_reply;
    cr_assert(three.extent == one.extent && three.offset % MIB == 0);
    cr_assert_eq(pc.begun[MCT_CUDA_MAKE], 1);
    cr_assert_eq(alloc(a, &c, 0, SMALL), MCS_OK);
    cr_assert_neq(c.m.b.extent_reply.extent, one.extent, "another device is another extent");
    cr_assert(used(a, 0) == EXTENT && used(a, 1) == EXTENT);
    cr_assert_eq(a->pool.used, 0, "none of it is the pool's");
    cr_assert_eq(a->sessions->memory, 2 * EXTENT);
    cr_assert_eq(give(a, &c, one.extent, one.offset), MCS_OK);
    cr_assert_eq(c.m.b.free_reply.extent_gone, 0);
    cr_assert_eq(give(a, &c, one.extent, one.offset), MCS_INVALID_HANDLE, "twice");
    cr_assert_eq(give(a, &c, three.extent, three.offset), MCS_OK);
    cr_assert_eq(pc.begun[MCT_CUDA_FREE], 0);
    cr_assert_eq(give(a, &c, two.extent, two.offset), MCS_OK);
    cr_assert_eq(c.m.b.free_reply.extent_gone, 1);
    cr_assert_eq(pc.begun[MCT_CUDA_FREE], 1);
    cr_assert(used(a, 1) == 0 && pc.made == EXTENT);
    sa_leave(&c);
    end(a);
}

Test(gpu_memory, host_and_gpu_allocations_never_share_an_extent)
{
    struct mcd_agent *a = begin();
    struct sa_client c;
    uint32_t gpu;

    sa_arrive(a, &c);
    cr_assert_eq(alloc(a, &c, 0, SMALL), MCS_OK);
    gpu = c.m.b.extent_reply.extent;
    cr_assert_neq(sa_alloc(a, &c, SMALL), gpu);
    cr_assert_eq(extent_of(a, c.m.b.extent_reply.extent)->gpu, NULL);
    sa_leave(&c);
    end(a);
}

Test(gpu_memory, sizes_and_alignments_that_cannot_be)
{
    struct mcd_agent *a = begin();
    struct sa_client c;

    sa_arrive(a, &c);
    const struct {
        uint64_t size, align;
        uint32_t status;
    } cases[] = {
        {0, 0, MCS_INVALID_ARGUMENT},
        {1, 3, MCS_INVALID_ARGUMENT},
        {1, UINT64_C(1) << 31, MCS_INVALID_ARGUMENT},
        {1, UINT64_C(1) << 63, MCS_INVALID_ARGUMENT},
        {UINT64_MAX, 0, MCS_NO_MEMORY},
        {UINT64_C(1) << 63, 0, MCS_NO_MEMORY},
        {(UINT64_C(1) << 63) + 1, 256, MCS_NO_MEMORY},
        {UINT64_MAX - PC_GRANULARITY + 2, 1, MCS_NO_MEMORY},
        {PC_TOTAL + 1, 0, MCS_NO_MEMORY},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        union mcs_msg_body b = alloc_body(0, cases[i].size, cases[i].align);

        cr_assert_eq(sa_ask(a, &c, MCS_MSG_GPU_ALLOC, &b), cases[i].status, "case %zu", i);
        cr_assert_eq(used(a, 0), 0);
        cr_assert_eq(a->sessions->memory, 0);
    }
    cr_assert_eq(pc.begun[MCT_CUDA_MAKE], 0);
    cr_assert_eq(alloc(a, &c, 0, 1), MCS_OK, "and the next one is as good as ever");
    cr_assert_eq(alloc(a, &c, 0, EXTENT + 1), MCS_OK, "larger than [gpu] extent_size");
    cr_assert_eq(c.m.b.extent_reply.extent_size, EXTENT + PC_GRANULARITY);
    sa_leave(&c);
    end(a);
}

Test(gpu_memory, the_limit_of_a_device_holds_for_all_clients_and_changes_while_they_live)
{
    struct mcd_agent *a = begin();
    struct sa_client c, d;
    struct mcd_gpu_sums sums;
    const struct mcs_gpu_id id = pc_id(0);

    a->config.gpu_size = EXTENT + 3 * PC_GRANULARITY;
    sa_arrive(a, &c);
    sa_arrive(a, &d);
    cr_assert_eq(alloc(a, &c, 0, SMALL), MCS_OK);
    cr_assert_eq(alloc(a, &d, 0, PC_GRANULARITY + 1), MCS_OK,
                 "there is no room for a whole extent, but for this");
    cr_assert_eq(d.m.b.extent_reply.extent_size, 2 * PC_GRANULARITY);
    cr_assert_eq(alloc(a, &d, 0, 2 * PC_GRANULARITY), MCS_NO_MEMORY);
    cr_assert_not_null(strstr(d.m.b.error.text, "[gpu] size lets them: free some or raise it"),
                       "%s", d.m.b.error.text);
    cr_assert_not_null(strstr(d.m.b.error.text, "37748736 of the 39845888"), "%s",
                       d.m.b.error.text);
    mcd_gpu_get_sums(a, &id, &sums);
    cr_assert_eq(sums.refused, 1);
    cr_assert_eq(alloc(a, &d, 1, 2 * PC_GRANULARITY), MCS_OK,
                 "of the other device there is as much");
    a->config.gpu_size = 0;
    cr_assert_eq(alloc(a, &d, 0, 2 * PC_GRANULARITY), MCS_OK);
    a->config.gpu_size = PC_GRANULARITY;
    cr_assert_eq(alloc(a, &d, 0, EXTENT), MCS_NO_MEMORY, "below what is used nothing is left");
    sa_leave(&c);
    sa_leave(&d);
    end(a);
}

Test(gpu_memory, a_tenants_limit_counts_gpu_memory_too)
{
    struct mcd_agent *a = begin();
    struct sa_client c;

    a->config.tenants[0].memory = EXTENT - 1;
    sa_arrive(a, &c);
    cr_assert_eq(alloc(a, &c, 0, SMALL), MCS_OK, "%s", c.m.b.error.text);
    cr_assert_eq(c.m.b.extent_reply.extent_size, PC_GRANULARITY,
                 "no whole extent where the tenant has no room for it");
    cr_assert_eq(alloc(a, &c, 0, EXTENT - PC_GRANULARITY), MCS_LIMIT);
    cr_assert_not_null(strstr(c.m.b.error.text, "[tenant] memory = 33554431"), "%s",
                       c.m.b.error.text);
    cr_assert_eq(alloc(a, &c, 0, EXTENT - 2 * PC_GRANULARITY), MCS_OK);
    sa_leave(&c);
    end(a);
}

Test(gpu_memory, where_the_driver_has_no_memory_for_an_extent_it_is_asked_for_what_is_needed)
{
    struct mcd_agent *a = begin();
    struct sa_client c;

    sa_arrive(a, &c);
    pc.refuses[MCT_CUDA_MAKE] = MCS_NO_MEMORY;
    cr_assert_eq(alloc(a, &c, 0, SMALL), MCS_NO_MEMORY);
    cr_assert_eq(pc.begun[MCT_CUDA_MAKE], 2, "a whole extent, then the least");
    cr_assert_str_eq(c.m.b.error.text, "2097152 bytes of GPU memory: the played driver says no");
    cr_assert(used(a, 0) == 0 && a->sessions->memory == 0);
    pc.refuses[MCT_CUDA_MAKE] = MCS_GPU_CONTEXT;
    cr_assert_eq(alloc(a, &c, 0, SMALL), MCS_GPU_CONTEXT);
    cr_assert_eq(pc.begun[MCT_CUDA_MAKE], 3);
    pc.refuses[MCT_CUDA_MAKE] = MCS_OK;
    cr_assert_eq(alloc(a, &c, 0, SMALL), MCS_OK);
    cr_assert_eq(used(a, 0), EXTENT);
    sa_leave(&c);
    end(a);
}

Test(gpu_memory, a_session_has_as_many_extents_as_its_table)
{
    struct mcd_agent *a = begin();
    struct sa_client c;
    unsigned n = 0;

    a->config.gpu_size = UINT64_C(1) << 40;
    a->config.gpu_extent_size = PC_GRANULARITY;
    sa_arrive(a, &c);
    while (n < MCD_TABLE_SIZE && alloc(a, &c, 0, PC_GRANULARITY) == MCS_OK)
        n++;
    cr_assert_eq(n, MCD_TABLE_SIZE);
    cr_assert_eq(alloc(a, &c, 0, PC_GRANULARITY), MCS_LIMIT, "%s", c.m.b.error.text);
    sa_until(a, pc.made == n * PC_GRANULARITY); /* what it was made of is freed */
    cr_assert_eq(used(a, 0), n * PC_GRANULARITY);
    sa_leave(&c);
    end(a);
}

/* ---- places ----------------------------------------------------------------------------------------- */

#define PLACES 6u
#define END (UINT64_C(1) << 47)

static struct mcd_agent *begin_near_the_end(void)
{
    struct mcd_agent *a = begin();

    a->config.address_base = a->pool.next_address = END - ((uint64_t)PLACES << 30);
    return a;
}

Test(gpu_memory, memory_that_does_not_come_to_be_takes_no_addresses_with_it)
{
    struct mcd_agent *a = begin_near_the_end();
    struct sa_client c;

    sa_arrive(a, &c);
    for (unsigned i = 0; i < 3 * PLACES; i++) {
        pc.refuses[MCT_CUDA_MAKE] = i % 2 == 0 ? MCS_NO_MEMORY : MCS_GPU_CONTEXT;
        cr_assert_neq(alloc(a, &c, 0, SMALL), MCS_OK);
    }
    pc.refuses[MCT_CUDA_MAKE] = MCS_OK;
    cr_assert_eq(alloc(a, &c, 0, SMALL), MCS_OK);
    cr_assert_lt(c.m.b.extent_reply.address, END);
    sa_leave(&c);
    end(a);
}

Test(gpu_memory, addresses_of_sessions_that_are_gone_are_used_again_and_none_twice_in_a_session)
{
    struct mcd_agent *a = begin_near_the_end();
    struct mcs_msg_extent_reply r;
    struct sa_client c, stays;
    uint64_t had[PLACES] = {0}, kept;

    sa_arrive(a, &stays);
    cr_assert_eq(alloc(a, &stays, 1, SMALL), MCS_OK);
    kept = stays.m.b.extent_reply.address;
    for (unsigned i = 0; i < 3 * PLACES; i++) {
        sa_arrive(a, &c);
        cr_assert_eq(alloc(a, &c, 0, SMALL), MCS_OK);
        cr_assert_lt(c.m.b.extent_reply.address, END, "the %u. one", i);
        cr_assert_neq(c.m.b.extent_reply.address, kept);
        sa_leave(&c);
        sa_until(a, a->sessions->next == NULL && pc.made == EXTENT);
    }
    sa_arrive(a, &c);
    for (unsigned i = 0; i < PLACES; i++) {
        cr_assert_eq(alloc(a, &c, 0, SMALL), MCS_OK);
        r = c.m.b.extent_reply;
        cr_assert_eq(r.address < END, i < PLACES - 1, "the %u. one: %#llx", i,
                     (unsigned long long)r.address);
        for (unsigned k = 0; k < i; k++)
            cr_assert_neq(r.address, had[k], "what was said of its segment would reach this");
        had[i] = r.address;
        cr_assert_eq(give(a, &c, r.extent, r.offset), MCS_OK);
    }
    sa_leave(&c);
    sa_leave(&stays);
    end(a);
}

Test(gpu_memory, where_strangers_say_addresses_alone_none_is_used_again)
{
    struct mcd_agent *a = begin_near_the_end();
    struct sa_client c;

    snprintf(a->config.mooncake_listen, sizeof(a->config.mooncake_listen), "127.0.0.1:0");
    for (unsigned i = 0; i < 2 * PLACES; i++) {
        sa_arrive(a, &c);
        cr_assert_eq(alloc(a, &c, 0, SMALL), MCS_OK);
        cr_assert_eq(c.m.b.extent_reply.address < END, i < PLACES, "the %u. one", i);
        sa_leave(&c);
        sa_until(a, a->sessions == NULL && pc.made == 0);
    }
    end(a);
}

/* ---- calls that hang --------------------------------------------------------------------------- */

Test(gpu_memory, a_call_that_hangs_holds_up_nobody_else)
{
    union mcs_msg_body b = alloc_body(0, SMALL, 0);
    struct mcd_agent *a = begin();
    struct sa_client c, d;

    sa_arrive(a, &c);
    sa_arrive(a, &d);
    pc.holds[MCT_CUDA_MAKE] = true;
    sa_send(&c, MCS_MSG_GPU_ALLOC, &b, NULL, 0);
    sa_until(a, pc.begun[MCT_CUDA_MAKE] == 1);
    sa_alloc(a, &d, SMALL);
    cr_assert_eq(alloc(a, &d, 9, SMALL), MCS_NO_GPU);
    cr_assert_not(sa_answered(&c));
    cr_assert_eq(used(a, 0), EXTENT, "it counts from the start");
    sa_until(a, !mcd_sessions_poll(a)); /* nor does it keep the control thread awake */
    pc_end(MCT_CUDA_MAKE);
    sa_until(a, sa_answered(&c));
    cr_assert_eq(c.m.h.status, MCS_OK);
    sa_leave(&c);
    sa_leave(&d);
    end(a);
}

Test(gpu_memory, who_waits_for_a_call_is_told_after_a_limit_and_what_comes_of_it_is_freed)
{
    struct mcd_agent *a = begin();
    struct sa_client c, d;

    a->config.gpu_call_s = 1;
    sa_arrive(a, &c);
    sa_arrive(a, &d);
    pc.holds[MCT_CUDA_MAKE] = true;
    cr_assert_eq(alloc(a, &c, 0, SMALL), MCS_TIMEOUT);
    cr_assert_not_null(strstr(c.m.b.error.text, "within 1 s ([gpu] call_s)"), "%s",
                       c.m.b.error.text);
    cr_assert(used(a, 0) == EXTENT && a->tenants.list->memory == EXTENT, "it may yet come");
    cr_assert_eq(a->gpu->told_late, 1);
    pc.holds[MCT_CUDA_MAKE] = false; /* of what comes from now on */
    struct mct_cuda_call *hangs = pc.first;
    pc.first = NULL;
    pc.last = &pc.first;
    /* not the same client, nor another connection of its process, which this one is */
    cr_assert_eq(alloc(a, &c, 0, SMALL), MCS_TIMEOUT);
    cr_assert_not_null(strstr(c.m.b.error.text, "still hangs"), "%s", c.m.b.error.text);
    cr_assert_eq(alloc(a, &d, 0, SMALL), MCS_TIMEOUT);
    cr_assert_eq(pc.begun[MCT_CUDA_MAKE], 1);
    for (struct mcd_session *s = a->sessions; s != NULL; s = s->next)
        s->pid += s->next == NULL ? 0 : 1; /* the later one is another process */
    cr_assert_eq(alloc(a, &d, 0, SMALL), MCS_OK, "%s", d.m.b.error.text);
    sa_leave(&c);
    pc.first = hangs;
    pc.last = &hangs->next;
    pc_wake();
    sa_until(a, pc.begun[MCT_CUDA_FREE] == 1 && pc.made == EXTENT);
    cr_assert_null(a->gpu->late);
    cr_assert_eq(a->tenants.list->memory, EXTENT);
    sa_leave(&d);
    end(a);
}

Test(gpu_memory, who_waits_for_the_driver_to_start_is_told_after_a_limit)
{
    struct mcd_agent *a = begin();
    struct sa_client c;

    a->config.gpu_call_s = 1;
    pc.holds[MCT_CUDA_OPEN] = true;
    sa_arrive(a, &c);
    cr_assert_eq(alloc(a, &c, 0, SMALL), MCS_TIMEOUT);
    cr_assert_not_null(strstr(c.m.b.error.text, "has not started within 1 s"), "%s",
                       c.m.b.error.text);
    pc_end(MCT_CUDA_OPEN);
    sa_until(a, mcd_gpu_state(a) == MCD_GPU_OPEN);
    cr_assert_eq(alloc(a, &c, 0, SMALL), MCS_OK, "%s", c.m.b.error.text);
    sa_leave(&c);
    end(a);
}

Test(gpu_memory, who_leaves_while_memory_is_made_is_gone_and_the_memory_counts_until_it_is_freed)
{
    union mcs_msg_body b = alloc_body(0, SMALL, 0);
    struct mcd_agent *a = begin();
    struct sa_client c, d;

    a->config.tenants[0].memory = EXTENT;
    sa_arrive(a, &c);
    pc.holds[MCT_CUDA_MAKE] = pc.holds[MCT_CUDA_FREE] = true;
    sa_send(&c, MCS_MSG_GPU_ALLOC, &b, NULL, 0);
    sa_until(a, pc.begun[MCT_CUDA_MAKE] == 1);
    sa_leave(&c);
    sa_until(a, a->sessions == NULL);
    cr_assert_eq(used(a, 0), EXTENT);
    cr_assert_eq(a->tenants.list->memory, EXTENT, "it is still its tenant's");
    sa_arrive(a, &d);
    cr_assert_eq(alloc(a, &d, 1, SMALL), MCS_LIMIT, "so hanging calls are no way around the limit");
    pc_end(MCT_CUDA_MAKE);
    sa_until(a, pc.begun[MCT_CUDA_FREE] == 1);
    turns(a, 5);
    cr_assert(used(a, 0) == EXTENT && a->tenants.list->memory == EXTENT && pc.made == EXTENT);
    pc_end(MCT_CUDA_FREE);
    sa_until(a, used(a, 0) == 0);
    cr_assert_eq(a->tenants.list->memory, 0);
    cr_assert_eq(alloc(a, &d, 1, SMALL), MCS_OK);
    sa_leave(&d);
    end(a);
}

Test(gpu_memory, who_frees_hears_of_it_when_the_driver_has_let_go)
{
    struct mcd_agent *a = begin();
    struct mcs_msg_extent_reply r;
    union mcs_msg_body b;
    struct sa_client c, d;

    sa_arrive(a, &c);
    sa_arrive(a, &d);
    cr_assert_eq(alloc(a, &c, 0, SMALL), MCS_OK);
    r = c.m.b.extent_reply;
    pc.holds[MCT_CUDA_FREE] = true;
    memset(&b, 0, sizeof(b));
    b.free.extent = r.extent;
    b.free.offset = r.offset;
    sa_send(&c, MCS_MSG_FREE, &b, NULL, 0);
    sa_until(a, pc.begun[MCT_CUDA_FREE] == 1);
    sa_alloc(a, &d, SMALL);
    sa_until(a, !mcd_sessions_poll(a));
    cr_assert(a->due > mcd_now_ns() && a->due < mcd_now_ns() + UINT64_C(6000000000),
              "a limited time");
    turns(a, 5);
    cr_assert_not(sa_answered(&c));
    cr_assert(used(a, 0) == EXTENT && pc.made == EXTENT);
    pc_end(MCT_CUDA_FREE);
    sa_until(a, sa_answered(&c));
    cr_assert(c.m.h.status == MCS_OK && c.m.b.free_reply.extent_gone == 1);
    cr_assert(used(a, 0) == 0 && pc.made == 0);
    sa_leave(&c);
    sa_leave(&d);
    end(a);
}

Test(gpu_memory, a_free_that_hangs_keeps_its_client_for_a_limited_time_and_its_bytes_counted)
{
    struct mcd_agent *a = begin();
    struct sa_client c;

    sa_arrive(a, &c);
    cr_assert_eq(alloc(a, &c, 0, SMALL), MCS_OK);
    pc.holds[MCT_CUDA_FREE] = true;
    cr_assert_eq(give(a, &c, c.m.b.extent_reply.extent, 0), MCS_OK, "after five seconds");
    cr_assert_eq(c.m.b.free_reply.extent_gone, 1);
    cr_assert_eq(used(a, 0), EXTENT);
    cr_assert_eq(a->tenants.list->memory, EXTENT);
    cr_assert_eq(alloc(a, &c, 0, SMALL), MCS_OK, "and goes on");
    sa_leave(&c);
    sa_until(a, a->sessions == NULL);
    cr_assert(mcd_gpu_busy(a), "two extents are with the driver");
    pc_end(MCT_CUDA_FREE);
    end(a);
}

Test(gpu_memory, a_free_that_fails_is_counted_and_its_bytes_are_not_any_more)
{
    struct mcd_agent *a = begin();
    struct sa_client c;

    sa_arrive(a, &c);
    cr_assert_eq(alloc(a, &c, 0, SMALL), MCS_OK);
    pc.refuses[MCT_CUDA_FREE] = MCS_GPU_LOST;
    cr_assert_eq(give(a, &c, c.m.b.extent_reply.extent, 0), MCS_OK);
    cr_assert_eq(used(a, 0), 0);
    pc.refuses[MCT_CUDA_FREE] = MCS_OK;
    sa_leave(&c);
    end(a);
}

/* ---- host memory -------------------------------------------------------------------------------- */

Test(gpu_memory, host_memory_is_pinned_when_a_device_is_first_used_and_from_then_on)
{
    union mcs_msg_body b = sa_alloc_body(SMALL);
    struct mcd_agent *a = begin();
    struct sa_client c, d;
    struct mcd_extent *e;
    uint32_t host, later;

    sa_arrive(a, &c);
    host = sa_alloc(a, &c, 3 * MIB);
    e = extent_of(a, host);
    cr_assert_eq(e->pinned, 0);
    pc.holds[MCT_CUDA_PIN] = true;
    union mcs_msg_body g = alloc_body(0, SMALL, 0);
    sa_send(&c, MCS_MSG_GPU_ALLOC, &g, NULL, 0);
    sa_until(a, pc.begun[MCT_CUDA_PIN] == 1);
    turns(a, 5);
    cr_assert_eq(e->pinned, 1);
    cr_assert_eq(pc.begun[MCT_CUDA_MAKE], 0, "whoever brings the device into use waits for it");
    pc_end(MCT_CUDA_PIN);
    sa_until(a, sa_answered(&c));
    cr_assert_eq(c.m.h.status, MCS_OK);
    cr_assert(e->pinned == 2 && pc.pinned == e->size);
    /* later ones, before their owner hears of them */
    sa_arrive(a, &d);
    pc.holds[MCT_CUDA_PIN] = true;
    sa_send(&d, MCS_MSG_ALLOC, &b, NULL, 0);
    sa_until(a, pc.begun[MCT_CUDA_PIN] == 2);
    turns(a, 5);
    cr_assert_not(sa_answered(&d));
    pc_end(MCT_CUDA_PIN);
    sa_until(a, sa_answered(&d));
    later = d.m.b.extent_reply.extent;
    cr_assert_eq(extent_of(a, later)->pinned, 2);
    /* registered memfds, too */
    int fd = sa_memfd(MIB);
    memset(&b, 0, sizeof(b));
    b.reg.size = MIB;
    sa_send(&d, MCS_MSG_REGISTER, &b, &fd, 1);
    sa_until(a, sa_answered(&d));
    cr_assert_eq(d.m.h.status, MCS_OK);
    cr_assert_eq(extent_of(a, d.m.b.extent_reply.extent)->pinned, 2);
    close(fd);
    /* unpinned before it is unmapped, and the client waits for that */
    pc.holds[MCT_CUDA_UNPIN] = true;
    memset(&b, 0, sizeof(b));
    b.free.extent = later;
    sa_send(&d, MCS_MSG_FREE, &b, NULL, 0);
    sa_until(a, pc.begun[MCT_CUDA_UNPIN] == 1);
    turns(a, 5);
    cr_assert_not(sa_answered(&d));
    cr_assert_eq(a->pool.used, 3 * MIB + 2 * MIB);
    pc_end(MCT_CUDA_UNPIN);
    sa_until(a, sa_answered(&d));
    cr_assert_eq(a->pool.used, 3 * MIB + MIB);
    sa_leave(&c);
    sa_leave(&d);
    end(a);
}

Test(gpu_memory, memory_that_goes_while_it_is_being_pinned_is_unpinned_first)
{
    union mcs_msg_body b = sa_alloc_body(SMALL);
    struct mcd_agent *a = begin();
    struct sa_client c;

    sa_arrive(a, &c);
    cr_assert_eq(alloc(a, &c, 0, SMALL), MCS_OK);
    pc.holds[MCT_CUDA_PIN] = true;
    sa_send(&c, MCS_MSG_ALLOC, &b, NULL, 0);
    sa_until(a, pc.begun[MCT_CUDA_PIN] == 1);
    sa_leave(&c);
    sa_until(a, a->sessions == NULL);
    cr_assert_neq(a->pool.used, 0);
    pc_end(MCT_CUDA_PIN);
    sa_until(a, a->pool.used == 0);
    cr_assert(pc.begun[MCT_CUDA_UNPIN] == 1 && pc.pinned == 0);
    end(a);
}

Test(gpu_memory, host_memory_that_the_driver_does_not_take_is_used_all_the_same)
{
    struct mcd_agent *a = begin();
    struct sa_client c;
    uint32_t host;

    sa_arrive(a, &c);
    cr_assert_eq(alloc(a, &c, 0, SMALL), MCS_OK);
    pc.refuses[MCT_CUDA_PIN] = MCS_NO_MEMORY;
    host = sa_alloc(a, &c, SMALL);
    cr_assert_eq(extent_of(a, host)->pinned, 3);
    cr_assert_eq(give(a, &c, host, 0), MCS_OK);
    cr_assert_eq(pc.begun[MCT_CUDA_UNPIN], 0, "nothing to unpin");
    sa_leave(&c);
    end(a);
}
