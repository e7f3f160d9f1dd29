/* SPDX-License-Identifier: Apache-2.0 */
/* An engine's calls that fail, one after the other: what was posted comes back once, and the next try goes well. */
#include "rdma_fixture.h"

#include "tests/fake-verbs/fake.h"

#define SLICES 24u
#define CALLS_MAX 200u

static char notice[] = "name and message";

static bool all_back(const struct mct_slice *s, const bool *taken)
{
    for (unsigned i = 0; i < SLICES; i++)
        if (taken[i] && fix_backs(&s[i]) == 0)
            return false;
    return true;
}

/* A bit of everything: moves, notifications, sleep, a slice called back. */
static void work(struct fix *f)
{
    struct mct_slice s[SLICES];
    bool taken[SLICES] = {false};

    memset(f->b.memory, 0, SLICES * 8192);
    for (unsigned i = 0; i < SLICES; i++) {
        s[i] = i % 4 == 3 ? fix_notice(notice, 4, sizeof(notice))
                          : fix_slice(f, i % 4 == 2 ? MCT_READ : MCT_WRITE, i * 8192, i * 8192,
                                      i % 4 == 0 ? 64 : 8000);
        fix_fill(i % 4 == 2 ? f->b.memory + i * 8192 : f->a.memory + i * 8192, 8000, i);
        taken[i] = fix_post(f, &s[i]) == 1;
        if (i == SLICES / 2) {
            fake_engine_thread(true);
            (void)mct_rdma_ops.arm(f->a.t);
            fake_engine_thread(false);
        }
    }
    if (taken[1])
        mct_rdma_ops.cancel(f->link, &s[1]);
    fix_until(f, all_back(s, taken));
    for (unsigned i = 0; i < SLICES; i++) {
        cr_assert_eq(fix_backs(&s[i]), taken[i] ? 1u : 0u, "%u", i);
        if (!taken[i])
            continue;
        cr_assert(s[i].status == MCS_OK || s[i].status == MCS_RAIL ||
                      (i == 1 && s[i].status == MCS_CANCELED),
                  "%u: %u", i, s[i].status);
        if (s[i].status == MCS_OK && i % 4 != 3)
            cr_assert_arr_eq(f->a.memory + i * 8192, f->b.memory + i * 8192, s[i].length);
        if (s[i].status != MCS_OK && s[i].op == MCT_WRITE && !s[i].settled)
            cr_assert_neq(s[i].conn, 0u, "somebody must be able to end it");
    }
}

static void each_fails(enum fake_call call)
{
    const char *failed = "";
    unsigned n;

    for (n = 1; failed != NULL && n < CALLS_MAX; n++)
        for (unsigned side = 0; side < 2; side++) {
            struct fix f;

            fix_devices(&f, 1);
            fix_open(&f);
            fake_fail(call, side == 0 ? f.a.devices[0] : f.b.devices[0], n, 1, ENOMEM);
            fix_join(&f, 0);
            fix_join(&f, 0);
            work(&f);
            if (side == 0)
                failed = fake_failed();
            fake_mend();
            fix_join(&f, 0);
            for (unsigned i = 0; i < 3; i++)
                fix_check_alive(&f);
            fix_fini(&f);
        }
    cr_assert_gt(n, 2u, "none was made");
    cr_assert_lt(n, CALLS_MAX);
}

TestSuite(rdma_calls, .timeout = 200);

Test(rdma_calls, each_work_request_is_not_taken_once)
{
    each_fails(FAKE_POST_SEND);
}

Test(rdma_calls, a_queue_that_cannot_be_armed)
{
    each_fails(FAKE_NOTIFY);
}

/* 512 buffers are posted at the beginning: some of these calls, and those that replace what was received. */
Test(rdma_calls, buffers_are_not_taken_once)
{
    static const unsigned at[] = {1, 2, 31, 32, 33, 64, 500, 511, 512, 513, 514, 515, 520};

    for (size_t i = 0; i < sizeof(at) / sizeof(at[0]); i++)
        for (unsigned side = 0; side < 2; side++) {
            struct fix f;

            fix_devices(&f, 1);
            fix_open(&f);
            fake_fail(FAKE_POST_RECV, side == 0 ? f.a.devices[0] : f.b.devices[0], at[i], 1,
                      ENOMEM);
            fix_join(&f, 0);
            fix_join(&f, 0);
            for (unsigned k = 0; k < 3; k++)
                work(&f);
            fake_mend();
            fix_check_alive(&f);
            fix_fini(&f);
        }
}
