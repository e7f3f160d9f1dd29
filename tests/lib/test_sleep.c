/* SPDX-License-Identifier: Apache-2.0 */
/*
 * On which value of a batch line a waiting client goes to bed; tests/model/client_sleep.pml is about
 * the same. The library's calls of futex(2) end up here.
 */
#include <criterion/criterion.h>

#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdarg.h>
#include <sys/syscall.h>

#include "tests/lib/local.h"

#define FORMER 1u /* what the former life's line counts */
#define WAITS 400

static uint32_t sleeps_on_former; /* lives, with a value that this life will come to */

/* In the place of the C library's: nobody sleeps. */
long syscall(long number, ...)
{
    va_list ap;
    uint32_t value;
    int op;

    va_start(ap, number);
    (void)va_arg(ap, void *);
    op = va_arg(ap, int);
    value = va_arg(ap, uint32_t);
    va_end(ap);
    if (number == SYS_futex && (op & FUTEX_CMD_MASK) == FUTEX_WAIT && value == FORMER)
        sleeps_on_former++;
    errno = number == SYS_futex ? EAGAIN : ENOSYS;
    return -1;
}

struct late {
    struct local *l;
    uint32_t batch, generation; /* of the former life */
    uint32_t stop;
};

/* An engine whose line of the batch's former life gets out at any time. */
static void *publish_late(void *arg)
{
    struct late *late = arg;

    while (mcs_load_acquire(&late->stop) == 0) /* partner: the test */
        mcs_batch_publish(&late->l->q->shm, late->batch, late->generation, FORMER, 0, FORMER, 8);
    return NULL;
}

/* A batch may be freed when its slots have ended, before its line says so. The next life's first
 * task then takes the line from FORMER to FORMER, and nobody would wake who sleeps on that. */
Test(sleep, nobody_sleeps_on_a_line_of_a_former_life_that_comes_late)
{
    struct late late;
    mcshm_request r;
    pthread_t thread;
    struct local l;
    struct mcs_desc d;
    mcshm_batch b;

    local_setup(&l, 8, 8, 2, 0);
    r = local_request(&l, 8);
    b = local_submit_taken(&l, 1, &r, &d);
    late = (struct late){.l = &l, .batch = d.batch, .generation = d.batch_generation};
    mcs_slot_complete(&l.q->shm, d.slot,
                      MCS_SLOT_WORD(d.generation, MCS_OK, MCS_PATH_LOCAL, MCS_STATE_COMPLETED), 8,
                      1, 2, 3);
    cr_assert_eq(mcshm_batch_free(l.q, b), MCSHM_OK);
    b = local_submit_taken(&l, 1, &r, &d);
    cr_assert_eq(d.batch, late.batch);
    cr_assert_eq(pthread_create(&thread, NULL, publish_late, &late), 0);
    for (int i = 0; i < WAITS; i++)
        cr_assert_eq(mcshm_batch_wait(l.q, b, 200), MCSHM_TIMEOUT);
    mcs_store_release(&late.stop, 1u); /* partner: publish_late() */
    pthread_join(thread, NULL);
    cr_assert_eq(sleeps_on_former, 0, "%u times", sleeps_on_former);
    local_end(&l, &d, MCS_STATE_COMPLETED, MCS_OK, 1, 0);
    cr_assert_eq(mcshm_batch_wait(l.q, b, -1), MCSHM_OK);
}

TestSuite(sleep, .fini = local_teardown);
