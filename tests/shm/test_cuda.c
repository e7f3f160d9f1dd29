/* SPDX-License-Identifier: Apache-2.0 */
/* What a GPU is called, and a host without the driver. What the driver's functions do is tested with tests/fake-cuda. */
#include <criterion/criterion.h>

#include <errno.h>
#include <string.h>

#include "shm/cuda.h"

Test(cuda, an_id_is_printed_as_the_driver_prints_it_and_read_back)
{
    struct mcs_gpu_id id, back;
    char text[MCS_GPU_ID_TEXT];

    for (unsigned i = 0; i < sizeof(id.bytes); i++)
        id.bytes[i] = (uint8_t)(0xf0u - 15u * i);
    mcs_gpu_id_print(&id, "NVIDIA A100-SXM4-40GB MIG 1g.5gb", text);
    cr_assert_str_eq(text, "MIG-f0e1d2c3-b4a5-9687-7869-5a4b3c2d1e0f");
    mcs_gpu_id_print(&id, "NVIDIA A100-SXM4-40GB", text);
    cr_assert_str_eq(text, "GPU-f0e1d2c3-b4a5-9687-7869-5a4b3c2d1e0f");
    mcs_gpu_id_print(&id, NULL, text);
    cr_assert_str_eq(text, "GPU-f0e1d2c3-b4a5-9687-7869-5a4b3c2d1e0f");
    cr_assert_eq(strlen(text) + 1, MCS_GPU_ID_TEXT);
    memset(&back, 0, sizeof(back));
    cr_assert_eq(mcs_gpu_id_parse(text, &back), 0);
    cr_assert_eq(memcmp(&id, &back, sizeof(id)), 0);
    memset(&back, 0, sizeof(back));
    cr_assert_eq(mcs_gpu_id_parse("MIG-F0E1D2C3-B4A5-9687-7869-5A4B3C2D1E0F", &back), 0);
    cr_assert_eq(memcmp(&id, &back, sizeof(id)), 0);
    memset(&back, 0, sizeof(back));
    cr_assert_eq(mcs_gpu_id_parse("f0e1d2c3-b4a5-9687-7869-5a4b3c2d1e0f", &back), 0);
    cr_assert_eq(memcmp(&id, &back, sizeof(id)), 0);
}

Test(cuda, what_is_no_id_is_refused_and_leaves_its_place_alone)
{
    static const char *const bad[] = {
        "",
        "GPU-",
        "GPU",
        "0",
        "f0e1d2c3b4a5968778695a4b3c2d1e0f",
        "GPU-f0e1d2c3-b4a5-9687-7869-5a4b3c2d1e0",
        "GPU-f0e1d2c3-b4a5-9687-7869-5a4b3c2d1e0f0",
        "GPU-f0e1d2c3-b4a5-9687-7869-5a4b3c2d1e0f ",
        "GPU-f0e1d2c3-b4a5-9687-7869-5a4b3c2d1g0f",
        "GPU-f0e1d2c3-b4a5-9687+7869-5a4b3c2d1e0f",
        "XPU-f0e1d2c3-b4a5-9687-7869-5a4b3c2d1e0f",
        "gpu-f0e1d2c3-b4a5-9687-7869-5a4b3c2d1e0f",
    };
    struct mcs_gpu_id id;

    for (unsigned i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        memset(&id, 0x5a, sizeof(id));
        cr_expect_eq(mcs_gpu_id_parse(bad[i], &id), -EINVAL, "'%s' is taken", bad[i]);
        for (unsigned k = 0; k < sizeof(id.bytes); k++)
            cr_expect_eq(id.bytes[k], 0x5a, "'%s' has written", bad[i]);
    }
}

Test(cuda, errors_that_break_a_device_are_told_from_those_that_do_not)
{
    static const CUresult lost[] = {CUDA_ERROR_ILLEGAL_ADDRESS, CUDA_ERROR_ECC_UNCORRECTABLE,
                                    CUDA_ERROR_LAUNCH_FAILED, CUDA_ERROR_CONTAINED};
    static const CUresult not_lost[] = {CUDA_SUCCESS, CUDA_ERROR_NOT_READY,
                                        CUDA_ERROR_OUT_OF_MEMORY, CUDA_ERROR_INVALID_VALUE,
                                        CUDA_ERROR_UNKNOWN};

    for (unsigned i = 0; i < sizeof(lost) / sizeof(lost[0]); i++)
        cr_expect(mcs_cuda_is_lost(lost[i]), "%d", (int)lost[i]);
    for (unsigned i = 0; i < sizeof(not_lost) / sizeof(not_lost[0]); i++)
        cr_expect(!mcs_cuda_is_lost(not_lost[i]), "%d", (int)not_lost[i]);
}
