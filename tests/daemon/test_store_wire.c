/* SPDX-License-Identifier: Apache-2.0 */
/* Lists of keys in messages about objects. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/store_wire.h"
#include "shm/object.h"

Test(store_wire, what_was_written_is_read)
{
    static uint8_t longest[MCS_KEY_MAX];
    struct mcd_names l = {0};
    const uint8_t *at;
    struct mco_key k;

    memset(longest, 7, sizeof(longest));
    cr_assert_eq(mcd_names_count(NULL, 0), 0);
    cr_assert_eq(mcd_names_add(&l, "a\0/b", 4), 0);
    cr_assert_eq(mcd_names_add(&l, longest, sizeof(longest)), 0);
    cr_assert_eq(mcd_names_add(&l, "z", 1), 0);
    cr_assert_eq(l.n, 3u);
    cr_assert_eq(mcd_names_count(l.bytes, l.size), 3);
    at = l.bytes;
    k = mcd_names_next(&at, 5);
    cr_assert(k.length == 4 && k.tenant == 5 && memcmp(k.bytes, "a\0/b", 4) == 0);
    k = mcd_names_next(&at, 5);
    cr_assert(k.length == MCS_KEY_MAX && memcmp(k.bytes, longest, sizeof(longest)) == 0);
    k = mcd_names_next(&at, 5);
    cr_assert(k.length == 1 && *(const char *)k.bytes == 'z');
    cr_assert_eq(at, l.bytes + l.size);
    mcd_names_free(&l);
}

Test(store_wire, malformed_lists_are_told)
{
    static const struct {
        const char *bytes;
        size_t size;
    } bad[] = {
        {"\0\0", 2},    /* a key of 0 bytes */
        {"\1", 1},      /* half a length */
        {"\2\0x", 3},   /* half a key */
        {"\1\0x\1", 4}, /* rubbish behind one */
        {"\x01\x10"
         "aaaa",
         6} /* 4097 bytes */
    };
    uint8_t *many = malloc(3 * ((size_t)MCS_KEYS_MAX + 1));
    uint8_t *big = calloc(1, 2 + MCS_KEY_MAX + 1);

    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        cr_assert_eq(mcd_names_count((const uint8_t *)bad[i].bytes, bad[i].size), -1, "%zu", i);
    for (size_t i = 0; i <= MCS_KEYS_MAX; i++)
        memcpy(many + 3 * i, "\1\0k", 3);
    cr_assert_eq(mcd_names_count(many, 3 * (size_t)MCS_KEYS_MAX), MCS_KEYS_MAX);
    cr_assert_eq(mcd_names_count(many, 3 * ((size_t)MCS_KEYS_MAX + 1)), -1);
    big[0] = (MCS_KEY_MAX + 1) & 0xff;
    big[1] = (MCS_KEY_MAX + 1) >> 8;
    cr_assert_eq(mcd_names_count(big, 2 + MCS_KEY_MAX + 1), -1);
    free(many);
    free(big);
}

Test(store_wire, a_list_is_full_in_time)
{
    static const uint8_t key[MCS_KEY_MAX];
    struct mcd_names l = {0};

    while (!mcd_names_full(&l))
        cr_assert_eq(mcd_names_add(&l, key, 1), 0);
    cr_assert_eq(l.n, MCD_NAMES_KEYS);
    mcd_names_free(&l);
    while (!mcd_names_full(&l))
        cr_assert_eq(mcd_names_add(&l, key, sizeof(key)), 0);
    cr_assert_lt(l.size, MCD_NAMES_BYTES + sizeof(key) + 2);
    mcd_names_free(&l);
}
