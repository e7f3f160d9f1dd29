/* SPDX-License-Identifier: Apache-2.0 */
/* A device that fails for good while it copies: everything about it fails at once, everything about the other one goes on. */
#include "cuda_rig.h"

#define N 40u
#define GOOD 2u /* jobs that are over before it fails */

/* One test: the double's device stays lost in this process. */
Test(cuda_lost, all_jobs_of_a_lost_device_come_back_and_the_other_device_goes_on)
{
    static struct mct_cuda_piece pieces[N];
    static struct mct_cuda_job jobs[N];
    struct mct_cuda_call memory[2], call;
    uint8_t *host = aligned_alloc(4096, 2 * MIB);
    unsigned good = 0, lost = 0;
    struct rig_port p;
    struct rig r;
    uint32_t errors;

    rig_create(&r, 2, 0);
    cr_assert_eq(rig_open(&r), MCS_OK);
    for (unsigned i = 0; i < 2; i++)
        memory[i] = rig_make(&r, i, 2 * MIB);
    rig_pin(&r, host, 2 * MIB, true);
    rig_port_open(&r, &p);
    errors = mcs_load_relaxed(&rig_lines[MCT_CUDA_LOG_ERROR]);
    mcs_store_relaxed(&fake->delay_us,
                      3000); /* several batches are under way when one of them fails */
    fake_cuda_arm(fake, 0, "run:copy", FAKE_FAIL, CUDA_ERROR_ECC_UNCORRECTABLE, GOOD + 1, 1);
    for (unsigned i = 0; i < N; i++) {
        pieces[i] = (struct mct_cuda_piece){
            .to = memory[0].address + i * 8192, .from = (uintptr_t)host + i * 8192, .length = 8192};
        jobs[i] = (struct mct_cuda_job){.to_device = 0,
                                        .from_device = MCT_CUDA_HOST,
                                        .pinned = true,
                                        .n = 1,
                                        .pieces = &pieces[i]};
        rig_post(&p, &jobs[i]);
        if (i < GOOD)
            good += rig_take(&p)->status == MCS_OK;
    }
    for (unsigned i = GOOD; i < N; i++)
        lost += rig_take(&p)->status == MCS_GPU_LOST;
    cr_assert_eq(good, GOOD);
    cr_assert_eq(lost, N - GOOD);
    mcs_store_relaxed(&fake->delay_us, 0);
    fake_cuda_disarm(fake);

    cr_assert_eq(mcs_load_relaxed(&mct_cuda_device_get(r.cuda, 0)->lost), 1);
    cr_assert_eq(mcs_load_relaxed(&mct_cuda_device_get(r.cuda, 1)->lost), 0);
    cr_assert_eq(mcs_load_relaxed(&rig_lines[MCT_CUDA_LOG_ERROR]), errors + 1);
    /* from now on at once, and without the driver */
    cr_assert_eq(rig_copy(&p, 0, memory[0].address, MCT_CUDA_HOST, (uintptr_t)host, 64, true),
                 MCS_GPU_LOST);
    cr_assert_eq(rig_copy(&p, 1, memory[1].address, 0, memory[0].address, 64, true), MCS_GPU_LOST);
    cr_assert_eq(rig_copy(&p, 0, memory[0].address, 1, memory[1].address, 64, true), MCS_GPU_LOST);
    call = (struct mct_cuda_call){.kind = MCT_CUDA_MAKE, .device = 0, .size = 2 * MIB};
    cr_assert_eq(rig_call(&r, &call), MCS_GPU_LOST);
    cr_expect(strstr(call.text, "GPU-") != NULL, "%s", call.text);

    /* the other one */
    rig_pattern(host, 2 * MIB, 5);
    cr_assert_eq(rig_copy(&p, 1, memory[1].address, MCT_CUDA_HOST, (uintptr_t)host, MIB, true),
                 MCS_OK);
    cr_assert_eq(
        rig_copy(&p, MCT_CUDA_HOST, (uintptr_t)host + MIB, 1, memory[1].address, MIB, true),
        MCS_OK);
    cr_assert_eq(memcmp(host, host + MIB, MIB), 0);
    call = (struct mct_cuda_call){.kind = MCT_CUDA_MAKE, .device = 1, .size = 2 * MIB};
    cr_assert_eq(rig_call(&r, &call), MCS_OK, "%s", call.text);
    close(call.fd);
    cr_assert_eq(rig_free(&r, call.memory), MCS_OK);
    rig_pin(&r, host, 2 * MIB, false);

    (void)rig_free(&r, memory[0].memory); /* gone, whatever the driver says of it */
    cr_assert_eq(mcs_load_relaxed(&rig_lines[MCT_CUDA_LOG_ERROR]), errors + 1, "said again");
    cr_assert_eq(rig_free(&r, memory[1].memory), MCS_OK);
    rig_port_close(&p);
    mct_cuda_destroy(r.cuda);
    close(r.control_fd);
    free(host);
}
