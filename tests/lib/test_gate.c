/* SPDX-License-Identifier: Apache-2.0 */
/* Words that streams and requests wait for. */
#include "gpu.h"
#include "lib/gpu.h"

TestSuite(gate, .timeout = 60);

static CUresult stream_query(struct gpu_world *w, unsigned device, CUstream s)
{
    CUresult e;

    gpu_check(mcs_cuda_enter(w->cuda, w->primary[device]));
    e = w->cuda->stream_query(s);
    mcs_cuda_leave(w->cuda);
    return e;
}

static void start(struct gpu_world *w)
{
    gpu_start(w, MCS_FEATURE_GPU, NULL);
    gpu_driver(w);
}

Test(gate, records_come_after_what_was_queued)
{
    struct gpu_world w = {0};
    mcshm_gate g;
    uint32_t value = 0;
    CUstream s;

    start(&w);
    s = stream_make(&w, 0);
    cr_assert_eq(mcshm_gate_create(w.c, "cuda:0", &g), MCSHM_OK, "%s", mcshm_last_error(w.c));
    cr_assert_eq(mcs_load_relaxed(g.word), 0);
    cr_assert_eq((uintptr_t)g.word % MCS_LINE, 0);
    fake_cuda_arm(w.fake, 0, "run:write", FAKE_HANG, 0, 1, 1);
    for (uint32_t i = 1; i <= 3; i++) {
        cr_assert_eq(mcshm_gate_record(w.c, &g, s, &value), MCSHM_OK);
        cr_assert(value == i && g.last == i);
    }
    cr_assert_eq(mcs_load_acquire(g.word), 0, "the stream is not there yet");
    fake_cuda_disarm(w.fake);
    gpu_check(stream_end(&w, 0, s));
    cr_assert_eq(mcs_load_acquire(g.word), 3);
    cr_assert_eq(mcshm_gate_destroy(w.c, &g), MCSHM_OK);
    cr_assert_eq(gpu_count(&w, FAKE_REGISTRATIONS), 0);
    cr_assert_eq(w.c->nallocs, 0, "the page is the pool's again");
    cr_assert_eq(mcshm_gate_destroy(w.c, &g), MCSHM_INVALID_HANDLE);
    gpu_stop(&w);
}

Test(gate, a_stream_follows_a_signal)
{
    struct gpu_world w = {0};
    mcshm_gate g;
    CUstream s;

    start(&w);
    s = stream_make(&w, 1);
    cr_assert_eq(mcshm_gate_create(w.c, "cuda:1", &g), MCSHM_OK, "%s", mcshm_last_error(w.c));
    cr_assert_eq(mcshm_gate_follow(w.c, &g, s, 5), MCSHM_OK);
    cr_assert_eq(stream_query(&w, 1, s), CUDA_ERROR_NOT_READY);
    mcs_store_release(g.word, 4u); /* as the agent does */
    cr_assert_eq(stream_query(&w, 1, s), CUDA_ERROR_NOT_READY);
    mcs_store_release(g.word, 5u);
    gpu_check(stream_end(&w, 1, s));
    /* the page goes with the connection */
    gpu_stop(&w);
}

/* Few platforms can: where the attribute is 0, drivers refuse the flag, and the double, too. */
Test(gate, gates_share_a_registered_page)
{
    struct gpu_world w = {0};
    mcshm_gate g[65];

    start(&w);
    for (unsigned i = 0; i < 65; i++)
        cr_assert_eq(mcshm_gate_create(w.c, i % 2 == 0 ? "cuda:0" : "cuda:1", &g[i]), MCSHM_OK);
    cr_assert_eq(gpu_count(&w, FAKE_REGISTRATIONS), 2);
    for (unsigned i = 0; i < 65; i++) {
        for (unsigned k = 0; k < i; k++)
            cr_assert_neq(g[i].word, g[k].word);
    }
    mcs_store_release(g[7].word, 99u);
    cr_assert_eq(mcshm_gate_destroy(w.c, &g[7]), MCSHM_OK);
    cr_assert_eq(mcshm_gate_destroy(w.c, &g[64]), MCSHM_OK);
    cr_assert_eq(gpu_count(&w, FAKE_REGISTRATIONS), 1);
    cr_assert_eq(mcshm_gate_create(w.c, "cuda:1", &g[7]), MCSHM_OK);
    cr_assert_eq(gpu_count(&w, FAKE_REGISTRATIONS), 1, "in the place that was free");
    cr_assert_eq(mcs_load_relaxed(g[7].word), 0, "begins anew");
    for (unsigned i = 0; i < 64; i++)
        cr_assert_eq(mcshm_gate_destroy(w.c, &g[i]), MCSHM_OK);
    cr_assert_eq(gpu_count(&w, FAKE_REGISTRATIONS), 0);
    gpu_stop(&w);
}

Test(gate, refusals_leave_nothing)
{
    struct gpu_world w = {0};
    struct mcshm other = {0};
    mcshm_gate g;
    uint32_t value = 77;

    start(&w);
    cr_assert_eq(mcshm_gate_create(w.c, "cuda:0", NULL), MCSHM_INVALID_ARGUMENT);
    cr_assert_eq(mcshm_gate_create(w.c, NULL, &g), MCSHM_NOT_SUPPORTED);
    cr_assert_eq(mcshm_gate_create(w.c, "cpu", &g), MCSHM_NOT_SUPPORTED);
    cr_assert_eq(mcshm_gate_create(w.c, "cuda:5", &g), MCSHM_NO_GPU);
    fake_cuda_arm(w.fake, 0, "cuMemHostRegister_v2", FAKE_FAIL, CUDA_ERROR_OUT_OF_MEMORY, 1, 1);
    cr_assert_eq(mcshm_gate_create(w.c, "cuda:0", &g), MCSHM_NO_MEMORY);
    cr_assert_eq(w.c->nallocs, 0);
    fake_cuda_arm(w.fake, 0, "cuMemHostGetDevicePointer_v2", FAKE_FAIL, CUDA_ERROR_NOT_SUPPORTED, 1,
                  1);
    cr_assert_eq(mcshm_gate_create(w.c, "cuda:0", &g), MCSHM_GPU_CONTEXT);
    cr_assert_not_null(strstr(mcshm_last_error(w.c), "CUDA_ERROR_NOT_SUPPORTED"));
    cr_assert_eq(w.c->nallocs, 0);
    cr_assert_eq(gpu_count(&w, FAKE_REGISTRATIONS), 0);

    cr_assert_eq(mcshm_gate_create(w.c, "cuda:0", &g), MCSHM_OK);
    fake_cuda_arm(w.fake, 0, "cuStreamWriteValue32_v2", FAKE_FAIL, CUDA_ERROR_NOT_SUPPORTED, 1, 1);
    cr_assert_eq(mcshm_gate_record(w.c, &g, NULL, &value), MCSHM_GPU_CONTEXT);
    cr_assert(value == 77 && g.last == 0, "no value is lost");
    cr_assert_eq(mcshm_gate_record(w.c, &g, NULL, NULL), MCSHM_INVALID_ARGUMENT);
    cr_assert_eq(mcshm_gate_record(w.c, NULL, NULL, &value), MCSHM_INVALID_HANDLE);
    other.guard = w.c->guard;
    cr_assert_eq(mcshm_gate_record(&other, &g, NULL, &value), MCSHM_INVALID_HANDLE);
    cr_assert_eq(mcshm_gate_destroy(&other, &g), MCSHM_INVALID_HANDLE);
    cr_assert_eq(mcshm_gate_destroy(w.c, &g), MCSHM_OK);
    gpu_stop(&w);
}
