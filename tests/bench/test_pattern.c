/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/pattern.c"

#include <criterion/criterion.h>
#include <string.h>

Test(pattern, what_was_filled_passes_the_check)
{
    uint64_t memory[64];

    pattern_fill(memory, sizeof(memory), pattern_seed(5, 3));
    cr_assert_eq(pattern_check(memory, sizeof(memory), pattern_seed(5, 3)), 0);
}

Test(pattern, every_single_bit_is_seen)
{
    uint64_t memory[16];

    pattern_fill(memory, sizeof(memory), pattern_seed(5, 3));
    for (unsigned bit = 0; bit < 8 * sizeof(memory); bit++) {
        memory[bit / 64] ^= UINT64_C(1) << bit % 64;
        cr_assert_eq(pattern_check(memory, sizeof(memory), pattern_seed(5, 3)), 1);
        memory[bit / 64] ^= UINT64_C(1) << bit % 64;
    }
}

Test(pattern, block_layer_and_offset_all_matter)
{
    uint64_t memory[64], other[64];

    pattern_fill(memory, sizeof(memory), pattern_seed(5, 3));
    cr_assert_eq(pattern_check(memory, sizeof(memory), pattern_seed(6, 3)), 64);
    cr_assert_eq(pattern_check(memory, sizeof(memory), pattern_seed(5, 4)), 64);
    /* moved by a line: each word is at a wrong offset */
    memcpy(other, memory + 8, sizeof(memory) - 64);
    cr_assert_eq(pattern_check(other, sizeof(memory) - 64, pattern_seed(5, 3)), 56);
}
