/* SPDX-License-Identifier: Apache-2.0 */
/* What the supervisor does when the agent has ended. */
#include <criterion/criterion.h>
#include <signal.h>
#include <string.h>

#include "daemon/supervise.h"

#define MS UINT64_C(1000000)
#define EXITED(n) ((n) << 8) /* as waitpid() tells */
#define KILLED(n) (n)

Test(supervise, an_agent_that_dies_is_started_anew_at_once)
{
    struct mcd_life life = {.ready = true, .status = KILLED(SIGKILL), .lived_ns = 5000 * MS};
    struct mcd_verdict v = mcd_supervise_judge(&life, 0);

    cr_assert(v.again);
    cr_assert_eq(v.delay_ns, 0u);
    life.status = EXITED(3);
    cr_assert(mcd_supervise_judge(&life, 0).again);
    /* short lives before it are forgotten */
    v = mcd_supervise_judge(&life, 640 * MS);
    cr_assert_eq(v.delay_ns, 0u);
}

Test(supervise, short_lives_follow_each_other_ever_slower)
{
    struct mcd_life life = {.ready = true, .status = KILLED(SIGSEGV), .lived_ns = 20 * MS};
    uint64_t delay = 0, last = 0;

    for (int i = 0; i < 20; i++) {
        struct mcd_verdict v = mcd_supervise_judge(&life, delay);

        cr_assert(v.again);
        cr_assert(i == 0 ? v.delay_ns == 10 * MS
                         : v.delay_ns == (2 * last > 5000 * MS ? 5000 * MS : 2 * last));
        delay = last = v.delay_ns;
    }
    cr_assert_eq(last, 5000 * MS);
}

Test(supervise, a_first_start_that_fails_ends_it_with_the_same_status)
{
    struct mcd_life life = {.first = true, .status = EXITED(1), .lived_ns = 20 * MS};
    struct mcd_verdict v = mcd_supervise_judge(&life, 0);

    cr_assert_not(v.again);
    cr_assert_eq(v.exit, 1);
    life.status = KILLED(SIGSEGV);
    v = mcd_supervise_judge(&life, 0);
    cr_assert_not(v.again);
    cr_assert_eq(v.exit, 128 + SIGSEGV);
    /* unless it was to be restarted before it was ready */
    life.asked = true;
    life.status = KILLED(SIGTERM);
    cr_assert(mcd_supervise_judge(&life, 0).again);
    life.asked = false;
    life.status = KILLED(SIGSEGV);
    /* a later one is tried again: clients wait, and what is missing may come back */
    life.first = false;
    cr_assert(mcd_supervise_judge(&life, 0).again);
    cr_assert_geq(mcd_supervise_judge(&life, 0).delay_ns, 10 * MS);
}

Test(supervise, an_agent_that_was_told_to_stop_is_not_started_anew)
{
    struct mcd_life life = {.ready = true, .status = EXITED(0), .lived_ns = 5000 * MS};

    cr_assert_not(mcd_supervise_judge(&life, 0).again);
    cr_assert_eq(mcd_supervise_judge(&life, 0).exit, 0);
    life.stopping = true;
    life.status = KILLED(SIGKILL);
    cr_assert_not(mcd_supervise_judge(&life, 0).again);
    cr_assert_eq(mcd_supervise_judge(&life, 0).exit, 128 + SIGKILL);
    life.kept = life.asked = true;
    life.status = EXITED(0);
    cr_assert_not(mcd_supervise_judge(&life, 0).again, "a stop wins over a restart");
}

Test(supervise, an_agent_that_ends_for_the_next_one_is_started_anew_at_once)
{
    struct mcd_life life = {.ready = true, .kept = true, .status = EXITED(0), .lived_ns = 20 * MS};

    cr_assert(mcd_supervise_judge(&life, 0).again);
    cr_assert_eq(mcd_supervise_judge(&life, 80 * MS).delay_ns, 0u);
    life.kept = false;
    life.asked = true;
    cr_assert(mcd_supervise_judge(&life, 0).again);
    cr_assert_eq(mcd_supervise_judge(&life, 0).delay_ns, 0u);
}
