/* SPDX-License-Identifier: Apache-2.0 */
/* CRC32C against the vectors of RFC 3720, B.4, and in pieces. */
#include <criterion/criterion.h>
#include <string.h>

#include "transports/crc32c.h"

Test(crc32c, known_vectors)
{
    uint8_t b[32];

    cr_assert_eq(mct_crc32c(0, "123456789", 9), 0xe3069283u);
    cr_assert_eq(mct_crc32c(0, "", 0), 0u);
    memset(b, 0, sizeof(b));
    cr_assert_eq(mct_crc32c(0, b, sizeof(b)), 0x8a9136aau);
    memset(b, 0xff, sizeof(b));
    cr_assert_eq(mct_crc32c(0, b, sizeof(b)), 0x62a8ab43u);
    for (unsigned i = 0; i < sizeof(b); i++)
        b[i] = (uint8_t)i;
    cr_assert_eq(mct_crc32c(0, b, sizeof(b)), 0x46dd794eu);
    for (unsigned i = 0; i < sizeof(b); i++)
        b[i] = (uint8_t)(31 - i);
    cr_assert_eq(mct_crc32c(0, b, sizeof(b)), 0x113fdb5cu);
}

Test(crc32c, pieces_give_the_same_as_the_whole)
{
    uint8_t b[1000];
    uint32_t whole, crc;

    for (unsigned i = 0; i < sizeof(b); i++)
        b[i] = (uint8_t)(i * 7 + i / 256);
    whole = mct_crc32c(0, b, sizeof(b));
    for (size_t cut = 0; cut <= sizeof(b); cut += 13) {
        crc = mct_crc32c(0, b, cut);
        cr_assert_eq(mct_crc32c(crc, b + cut, sizeof(b) - cut), whole, "cut at %zu", cut);
    }
    b[500] ^= 1;
    cr_assert_neq(mct_crc32c(0, b, sizeof(b)), whole);
}
