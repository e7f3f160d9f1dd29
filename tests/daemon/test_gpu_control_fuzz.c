/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The fuzzer's entry for control messages with an agent that has GPUs, whose driver is played: whatever clients ask for, in any
 * order, hanging up at any point, while the driver is slow and refuses now and then, nothing is left with it in the end.
 */
#include "played_cuda.h"

static void gpu_made(void);
static void gpu_begin(const uint8_t *data, size_t size);
static void gpu_end(void);
#define FUZZ_CONTROL_MADE gpu_made
#define FUZZ_CONTROL_BEGIN gpu_begin
#define FUZZ_CONTROL_END gpu_end
#include "tests/fuzz/fuzz_control.c"
/* after the target */
#include "tests/fuzz/rounds.h"

#include "daemon/gpu_memory.h"

#ifdef __SANITIZE_THREAD__
#define ROUNDS 40
#elif defined(__SANITIZE_ADDRESS__)
#define ROUNDS 200
#else
#define ROUNDS 1500
#endif

static void gpu_made(void)
{
    char error[512] = "";

    agent->config.gpu_size = UINT64_C(128) << 20;
    fz_must(mcd_gpu_create(agent, error, sizeof(error)) == 0, "%s", error);
}

/* A quarter of the inputs meet a driver that is slow; one in sixteen, for each kind of call, one that refuses it. */
static void gpu_begin(const uint8_t *data, size_t size)
{
    uint8_t how = size != 0 ? data[size / 2] : 0;

    pc.every = how % 4 == 1 ? 3 : 0;
    for (unsigned k = MCT_CUDA_MAKE; k < PC_KINDS; k++)
        pc.refuses[k] = how % 16 == k ? MCS_GPU_CONTEXT : MCS_OK;
}

static void gpu_end(void)
{
    struct mcd_gpu_sums sums;

    fz_must(pc.made == 0 && pc.first == NULL, "the driver still has memory or calls");
    if (pc.refuses[MCT_CUDA_UNPIN] == MCS_OK)
        fz_must(pc.pinned == 0, "memory that is gone is still pinned");
    pc.pinned = 0;
    for (unsigned i = 0; i < PC_DEVICES; i++) {
        const struct mcs_gpu_id id = pc_id(i);

        mcd_gpu_get_sums(agent, &id, &sums);
        fz_must(sums.used == 0, "device %u: %llu bytes are counted", i,
                (unsigned long long)sums.used);
    }
}

static void gpu_gone(void)
{
    if (agent != NULL)
        mcd_gpu_destroy(agent);
    fuzz_control_fini();
}

TestSuite(gpu_control_fuzz, .timeout = 200, .fini = gpu_gone);

/* The corpus is of clients without GPUs; this is one that has some, byte by byte as fuzz_control.c takes them. */
static void ask_well(void)
{
#define ACT 5 << 2 /* client 0 sends a message */
    static const uint8_t alloc[] = {ACT, MCS_MSG_ALLOC, 0, 100, 0, 0};
    static const uint8_t gpu_alloc[] = {ACT, MCS_MSG_GPU_ALLOC, 0, 100, 0, 0};
    static const uint8_t import[] = {ACT, MCS_MSG_GPU_IMPORT, 0, 0, 0, 0, 0, 0, 0, 0, 0};
    static const uint8_t give[] = {ACT, MCS_MSG_FREE, 0, 0, 0, 0};
    static const uint8_t turn[] = {3 << 2 | 0xc0};
    uint8_t bytes[512] = {0, ACT}; /* nobody in limbo; it arrives */
    size_t n = 2;

    for (unsigned i = 0; i < 18; i++) {
        const uint8_t *what = i % 6 == 0   ? alloc
                              : i % 6 == 1 ? gpu_alloc
                              : i % 6 < 5  ? import
                                           : give;
        size_t size = what == import ? sizeof(import) : sizeof(alloc);

        memcpy(bytes + n, what, size);
        n += size;
        for (unsigned k = 0; k < 4; k++)
            bytes[n++] = turn[0];
    }
    (void)LLVMFuzzerTestOneInput(bytes, n);
}

Test(gpu_control_fuzz, corpus)
{
    ask_well();
    fuzz_corpus("control");
    for (unsigned k = MCT_CUDA_MAKE; k <= MCT_CUDA_IMPORT; k++)
        cr_assert_gt(pc.begun[k], 0, "no call of kind %u", k);
    cr_assert(pc.begun[MCT_CUDA_FREE] > 0 && pc.begun[MCT_CUDA_PIN] > 0 &&
              pc.begun[MCT_CUDA_UNPIN] > 0);
}

Test(gpu_control_fuzz, changed_corpus)
{
    ask_well();
    fuzz_rounds("control", ROUNDS);
}
