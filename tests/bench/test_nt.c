/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/nt.c"

#include <criterion/criterion.h>
#include <string.h>

static void check(nt_copy *copy)
{
    static uint8_t from[4096], to[4096];

    for (size_t i = 0; i < sizeof(from); i++)
        from[i] = (uint8_t)(i * 7 + i / 256);
    for (size_t at = 0; at < 70; at += 3)
        for (size_t size = 0; size < 700; size += 13) {
            memset(to, 0xee, sizeof(to));
            copy(to + at, from + 5, size);
            cr_assert_eq(memcmp(to + at, from + 5, size), 0, "at %zu, size %zu", at, size);
            cr_assert_eq(to[at + size], 0xee);
            cr_assert(at == 0 || to[at - 1] == 0xee);
        }
}

Test(nt, copies_every_byte_and_no_other)
{
    const char *name;

    check(nt_choose(&name));
#if defined(__x86_64__)
    check(copy_sse2);
    if (__builtin_cpu_supports("avx2"))
        check(copy_avx2);
#endif
}
