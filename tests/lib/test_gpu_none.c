/* SPDX-License-Identifier: Apache-2.0 */
/* Clients that do not ask for GPU memory, or in vain.  A program of its own, since a process has one driver; in this order. */
#include "gpu.h"

TestSuite(gpu_none, .timeout = 60);

Test(gpu_none, nothing_of_the_driver_without_gpu_memory)
{
    struct gpu_world w = {0};
    void *p;

    gpu_start(&w, MCS_FEATURE_GPU, NULL);
    cr_assert_eq(mcshm_alloc(w.c, 4096, 0, "cpu", &p), MCSHM_OK);
    cr_assert_eq(mcshm_free(w.c, p), MCSHM_OK);
    cr_assert_null(fake_cuda_process(w.fake, getpid()));
    gpu_stop(&w);
    cr_assert_null(fake_cuda_process(w.fake, getpid()), "nor at the end");
}

Test(gpu_none, an_agent_without_gpus_is_not_asked)
{
    struct gpu_world w = {0};
    mcshm_gate gate;
    void *p;

    gpu_start(&w, 0, NULL);
    cr_assert_eq(mcshm_alloc(w.c, 4096, 0, "cuda:0", &p), MCSHM_NO_GPU);
    cr_assert_null(p);
    cr_assert_eq(mcshm_register_gpu(w.c, &w, 64), MCSHM_NO_GPU);
    cr_assert_eq(mcshm_gate_create(w.c, "cuda:0", &gate), MCSHM_NO_GPU);
    cr_assert_eq(later_asked(&w.a, 0, MCS_MSG_GPU_ALLOC), 0);
    cr_assert_null(fake_cuda_process(w.fake, getpid()));
    gpu_stop(&w);
}

Test(gpu_none, a_driver_that_does_not_start_is_no_gpu)
{
    struct gpu_world w = {0};
    void *p;

    gpu_start(&w, MCS_FEATURE_GPU, NULL);
    fake_cuda_arm(w.fake, 0, "cuInit", FAKE_FAIL, CUDA_ERROR_UNKNOWN, 1, 0);
    for (int i = 0; i < 3; i++) {
        cr_assert_eq(mcshm_alloc(w.c, 4096, 0, "cuda:0", &p), MCSHM_NO_GPU);
        cr_assert_not_null(strstr(mcshm_last_error(w.c), "CUDA_ERROR_UNKNOWN"));
    }
    cr_assert_eq(fake_cuda_calls(w.fake, getpid(), "cuInit"), 1);
    cr_assert_eq(mcshm_alloc(w.c, 4096, 0, NULL, &p), MCSHM_OK, "other memory is not touched");
    gpu_stop(&w);
}
