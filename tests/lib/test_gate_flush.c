/* SPDX-License-Identifier: Apache-2.0 */
/* A driver whose streams can flush, when they wait, what others have written. The double reads that once in a process. */
#include "gpu.h"
#include "lib/gpu.h"

static __attribute__((constructor)) void settings(void)
{
    setenv("FAKE_CUDA_FLUSH", "1", 1);
}

Test(gate_flush, a_stream_that_follows_flushes_what_others_have_written_where_it_can)
{
    struct gpu_world w = {0};
    mcshm_gate g;
    CUstream s;

    gpu_start(&w, MCS_FEATURE_GPU, NULL);
    gpu_driver(&w);
    s = stream_make(&w, 0);
    cr_assert_eq(mcshm_gate_create(w.c, "cuda:0", &g), MCSHM_OK, "%s", mcshm_last_error(w.c));
    cr_assert_eq(w.c->gpu->devices[0].wait_flags,
                 CU_STREAM_WAIT_VALUE_GEQ | CU_STREAM_WAIT_VALUE_FLUSH);
    mcs_store_release(g.word, 1u);
    cr_assert_eq(mcshm_gate_follow(w.c, &g, s, 1), MCSHM_OK);
    gpu_check(stream_end(&w, 0, s));
    gpu_stop(&w);
}
