/* SPDX-License-Identifier: Apache-2.0 */
/* A short run of the fuzz target, with fixed seeds: both roles, damaged conversations and noise. */
#include <criterion/criterion.h>

#include "tests/fuzz/fuzz_tcp.h"

/* The target is a program of its own, too; here it is a part of this one. */
#include "tests/fuzz/fuzz_tcp.c"

Test(tcp_fuzz, damaged_conversations)
{
    for (uint64_t seed = 1; seed <= 5; seed++) {
        unsigned noticed = fuzz_tcp_rounds(seed, 200);

        cr_assert(noticed > 20 && noticed < 200, "%u of 200", noticed); /* damage, and soundness */
    }
}

Test(tcp_fuzz, noise)
{
    static uint8_t noise[4000];
    uint64_t x = 99;

    for (unsigned i = 0; i < 300; i++) {
        for (size_t k = 0; k < sizeof(noise); k++)
            noise[k] = (uint8_t)rng(&x);
        cr_assert_eq(LLVMFuzzerTestOneInput(noise, 1 + rng(&x) % (sizeof(noise) - 1)), 0);
    }
}
