/* SPDX-License-Identifier: Apache-2.0 */
/* Devices that do not reach each other, and a driver of CUDA 12.8: an earlier form of batched copies. */
#include "cuda_rig.h"

static __attribute__((constructor)) void settings(void)
{
    setenv("FAKE_CUDA_PEER", "0", 1);
    setenv("FAKE_CUDA_VERSION", "12080", 1);
    setenv("FAKE_CUDA_MISSING", "cuMemcpyBatchAsync_v2", 1);
}

Test(cuda_apart, copies_between_them_are_staged_and_counted_and_strict_refuses)
{
    struct mct_cuda_piece pieces[64];
    struct mct_cuda_call memory[2];
    struct mct_cuda_job j;
    uint8_t *host = malloc(2 * MIB), *back = malloc(2 * MIB);
    const struct mct_cuda_stats *s;
    struct rig_port p;
    struct rig r;

    rig_create(&r, 2, 0);
    s = mct_cuda_stats(r.cuda);
    cr_assert_eq(rig_open(&r), MCS_OK);
    cr_assert_eq(mct_cuda_driver_version(r.cuda), 12080);
    cr_assert_eq(mct_cuda_device_get(r.cuda, 0)->peers, 0);
    for (unsigned i = 0; i < 2; i++)
        memory[i] = rig_make(&r, i, 2 * MIB);
    rig_port_open(&r, &p);
    rig_pattern(host, 2 * MIB, 1);
    rig_write(&p, 0, memory[0].address, host, 2 * MIB);
    for (unsigned i = 0; i < 64; i++)
        pieces[i] = (struct mct_cuda_piece){.to = memory[1].address + i * 32768,
                                            .from = memory[0].address + i * 32768,
                                            .length = 32768};
    j = (struct mct_cuda_job){
        .to_device = 1, .from_device = 0, .strict = true, .n = 64, .pieces = pieces};
    rig_post(&p, &j);
    cr_assert_eq(rig_take(&p), &j);
    cr_assert_eq(j.status, MCS_STRICT);
    cr_assert_eq(mcs_load_relaxed(&s->peer_staged), 0);
    j.strict = false;
    rig_post(&p, &j);
    cr_assert_eq(rig_take(&p), &j);
    cr_assert_eq(j.status, MCS_OK);
    cr_assert(j.staged);
    cr_assert_eq(mcs_load_relaxed(&s->peer_staged), 64);
    rig_read(&p, 1, back, memory[1].address, 2 * MIB);
    cr_assert_eq(memcmp(host, back, 2 * MIB), 0);
    for (unsigned i = 0; i < 2; i++)
        cr_assert_eq(rig_free(&r, memory[i].memory), MCS_OK);
    rig_port_close(&p);
    rig_destroy(&r);
    free(host);
    free(back);
}

Test(cuda_apart, a_list_goes_in_one_batch_of_the_earlier_form)
{
    static struct mct_cuda_piece pieces[500];
    struct mct_cuda_call memory;
    struct mct_cuda_job j;
    uint8_t *host = aligned_alloc(4096, 4 * MIB), *back = malloc(4 * MIB);
    struct rig_port p;
    struct rig r;
    uint64_t calls;

    rig_create(&r, 2, 0);
    cr_assert_eq(rig_open(&r), MCS_OK);
    memory = rig_make(&r, 0, 4 * MIB);
    rig_pin(&r, host, 4 * MIB, true);
    rig_port_open(&r, &p);
    rig_pattern(host, 4 * MIB, 1);
    calls = fake_cuda_calls(fake, getpid(), "cuMemcpyBatchAsync");
    for (unsigned i = 0; i < 500; i++)
        pieces[i] = (struct mct_cuda_piece){.to = memory.address + (499 - i) * 8192,
                                            .from = (uintptr_t)host + i * 8192,
                                            .length = 8192};
    j = (struct mct_cuda_job){
        .to_device = 0, .from_device = MCT_CUDA_HOST, .pinned = true, .n = 500, .pieces = pieces};
    rig_post(&p, &j);
    cr_assert_eq(rig_take(&p), &j);
    cr_assert_eq(j.status, MCS_OK);
    cr_assert_not(j.staged);
    cr_assert_eq(fake_cuda_calls(fake, getpid(), "cuMemcpyBatchAsync"), calls + 1);
    rig_read(&p, 0, back, memory.address, 4 * MIB);
    for (unsigned i = 0; i < 500; i++)
        cr_assert_eq(memcmp(host + i * 8192, back + (499 - i) * 8192, 8192), 0);
    rig_port_close(&p);
    rig_pin(&r, host, 4 * MIB, false);
    cr_assert_eq(rig_free(&r, memory.memory), MCS_OK);
    rig_destroy(&r);
    free(host);
    free(back);
}
