/* SPDX-License-Identifier: Apache-2.0 */
/* Lists of keys in messages about objects. */
#include "store_wire.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "shm/object.h"

#define HEAD 2u /* bytes of a key's length, little endian */

int mcd_names_add(struct mcd_names *l, const void *key, uint32_t length)
{
    size_t need = l->size + HEAD + length;

    if (need > l->room) {
        size_t room = l->room == 0 ? 1024 : l->room;
        uint8_t *bytes;

        while (room < need)
            room *= 2;
        bytes = realloc(l->bytes, room);
        if (bytes == NULL)
            return -ENOMEM;
        l->bytes = bytes;
        l->room = room;
    }
    l->bytes[l->size] = (uint8_t)length;
    l->bytes[l->size + 1] = (uint8_t)(length >> 8);
    memcpy(l->bytes + l->size + HEAD, key, length);
    l->size = need;
    l->n++;
    return 0;
}

void mcd_names_free(struct mcd_names *l)
{
    free(l->bytes);
    *l = (struct mcd_names){0};
}

static uint32_t length_at(const uint8_t *at)
{
    return at[0] | (uint32_t)at[1] << 8;
}

int64_t mcd_names_count(const uint8_t *bytes, size_t size)
{
    int64_t n = 0;

    while (size != 0) {
        uint32_t length = size < HEAD ? 0 : length_at(bytes);

        if (length == 0 || length > MCS_KEY_MAX || length > size - HEAD || n == MCS_KEYS_MAX)
            return -1;
        bytes += HEAD + length;
        size -= HEAD + length;
        n++;
    }
    return n;
}

struct mco_key mcd_names_next(const uint8_t **at, uint64_t tenant)
{
    uint32_t length = length_at(*at);
    const uint8_t *bytes = *at + HEAD;

    *at = bytes + length;
    return mco_key(tenant, bytes, length);
}
