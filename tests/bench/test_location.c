/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/location.c"

#include <criterion/criterion.h>
#include <stdio.h>

Test(location, of_gpus)
{
    static const char *const bad[] = {"cuda",    "cuda:",       "cuda:x",     "cuda:-1",
                                      "cuda:1x", "gpu:0",       "",           "cuda: 1",
                                      "cuda:+1", "cuda:999999", "cuda:GPU-12"};
    struct mcs_gpu_id id, same;
    char text[MCS_GPU_ID_TEXT], location[80];
    int ordinal;

    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        cr_expect_neq(location_parse(bad[i], &ordinal, &id), 0, "%s", bad[i]);
    cr_expect_neq(location_parse(NULL, &ordinal, &id), 0);
    cr_assert_eq(location_parse("cuda:12", &ordinal, &id), 0);
    cr_assert_eq(ordinal, 12);
    for (unsigned i = 0; i < 16; i++)
        id.bytes[i] = (uint8_t)(i * 17);
    mcs_gpu_id_print(&id, NULL, text);
    snprintf(location, sizeof(location), "cuda:%s", text);
    cr_assert_eq(location_parse(location, &ordinal, &same), 0);
    cr_assert_eq(ordinal, -1);
    cr_assert_eq(memcmp(&id, &same, sizeof(id)), 0);
}
