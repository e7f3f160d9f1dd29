/* SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>
#include <pthread.h>
#include <string.h>

#include "lib/internal.h"

TestSuite(status, .timeout = 5);

Test(status, texts_are_the_contracts)
{
#define CHECK(name, value, text) cr_assert_str_eq(mcshm_strerror((mcshm_status)(value)), text);
    MCS_STATUS_LIST(CHECK)
#undef CHECK
}

Test(status, unknown_values_say_so)
{
    cr_assert_str_eq(mcshm_strerror((mcshm_status)MCS_STATUS_COUNT), "unknown status");
    cr_assert_str_eq(mcshm_strerror((mcshm_status)-1), "unknown status");
    cr_assert_str_eq(mcshm_state_name((mcshm_state)7), "UNKNOWN");
    cr_assert_str_eq(mcshm_path_name((mcshm_path)99), "unknown");
}

Test(status, names)
{
    cr_assert_str_eq(mcshm_state_name(MCSHM_STATE_COMPLETED), "COMPLETED");
    cr_assert_str_eq(mcshm_state_name(MCSHM_STATE_TIMEOUT), "TIMEOUT");
    cr_assert_str_eq(mcshm_path_name(MCSHM_PATH_LOCAL), "local");
    cr_assert_str_eq(mcshm_path_name(MCSHM_PATH_CALLER), "caller");
    cr_assert_str_eq(mcshm_version(), MCSHM_VERSION);
}

static void *other_thread(void *arg)
{
    (void)arg;
    cr_assert_str_eq(mcshm_last_error(NULL), "");
    mcl_fail(MCSHM_LIMIT, "theirs");
    return NULL;
}

Test(status, last_error_is_the_threads_own)
{
    pthread_t thread;

    cr_assert_eq(mcl_fail(MCSHM_BAD_RANGE, "mine: %d", 3), MCSHM_BAD_RANGE);
    cr_assert_eq(pthread_create(&thread, NULL, other_thread, NULL), 0);
    pthread_join(thread, NULL);
    cr_assert_str_eq(mcshm_last_error(NULL), "mine: 3");
}

Test(status, null_handles_are_refused_everywhere)
{
    void *p = NULL;
    mcshm_batch b;
    size_t n = 0;

    cr_assert_eq(mcshm_connect(NULL, NULL), MCSHM_INVALID_ARGUMENT);
    cr_assert_eq(mcshm_get_info(NULL, NULL), MCSHM_INVALID_ARGUMENT);
    cr_assert_eq(mcshm_alloc(NULL, 1, 0, NULL, &p), MCSHM_INVALID_ARGUMENT);
    cr_assert_eq(mcshm_free(NULL, &n), MCSHM_INVALID_ARGUMENT);
    cr_assert_eq(mcshm_register(NULL, &n, 1), MCSHM_INVALID_ARGUMENT);
    cr_assert_eq(mcshm_register_memfd(NULL, 0, 1, &p), MCSHM_INVALID_ARGUMENT);
    cr_assert_eq(mcshm_unregister(NULL, &n), MCSHM_INVALID_ARGUMENT);
    cr_assert_eq(mcshm_segment_publish(NULL, "x", 0), MCSHM_INVALID_ARGUMENT);
    cr_assert_eq(mcshm_segment_withdraw(NULL), MCSHM_INVALID_ARGUMENT);
    cr_assert_eq(mcshm_buffer_publish(NULL, &n, 1, 1, NULL), MCSHM_INVALID_ARGUMENT);
    cr_assert_eq(mcshm_buffer_withdraw(NULL, &n, 1), MCSHM_INVALID_ARGUMENT);
    cr_assert_eq(mcshm_revoke(NULL, &n, 1), MCSHM_INVALID_ARGUMENT);
    cr_assert_eq(mcshm_segment_open(NULL, "x", NULL), MCSHM_INVALID_ARGUMENT);
    cr_assert_eq(mcshm_segment_close(NULL, 1), MCSHM_INVALID_ARGUMENT);
    cr_assert_eq(mcshm_segment_describe(NULL, 1, NULL, &n), MCSHM_INVALID_ARGUMENT);
    cr_assert_eq(mcshm_map(NULL, 1, 0, 1, NULL), MCSHM_INVALID_ARGUMENT);
    cr_assert_eq(mcshm_unmap(NULL, &n), MCSHM_INVALID_ARGUMENT);
    cr_assert_eq(mcshm_queue_open(NULL, NULL, NULL), MCSHM_INVALID_ARGUMENT);
    cr_assert_eq(mcshm_queue_close(NULL), MCSHM_INVALID_ARGUMENT);
    cr_assert_eq(mcshm_batch_alloc(NULL, 1, &b), MCSHM_INVALID_ARGUMENT);
    cr_assert_eq(mcshm_batch_free(NULL, 0), MCSHM_INVALID_ARGUMENT);
    cr_assert_eq(mcshm_submit(NULL, 0, NULL, 1), MCSHM_INVALID_ARGUMENT);
    cr_assert_eq(mcshm_submit_list(NULL, 0, NULL, NULL, 1), MCSHM_INVALID_ARGUMENT);
    cr_assert_eq(mcshm_submit_stride(NULL, 0, NULL, NULL), MCSHM_INVALID_ARGUMENT);
    cr_assert_eq(mcshm_submit_notify(NULL, 0, NULL), MCSHM_INVALID_ARGUMENT);
    cr_assert_eq(mcshm_batch_poll(NULL, 0, NULL), MCSHM_INVALID_ARGUMENT);
    cr_assert_eq(mcshm_batch_wait(NULL, 0, 0), MCSHM_INVALID_ARGUMENT);
    cr_assert_eq(mcshm_task_poll(NULL, 0, 0, NULL), MCSHM_INVALID_ARGUMENT);
    cr_assert_eq(mcshm_cancel(NULL, 0, 0), MCSHM_INVALID_ARGUMENT);
    cr_assert_eq(mcshm_notify_recv(NULL, NULL, 0), MCSHM_INVALID_ARGUMENT);
    cr_assert_eq(mcshm_get_stats(NULL, NULL), MCSHM_INVALID_ARGUMENT);
    cr_assert_eq(mcshm_query(NULL, MCSHM_QUERY_STATUS, NULL), MCSHM_INVALID_ARGUMENT);
    mcshm_close(NULL);
    mcshm_options_init(NULL);
}
