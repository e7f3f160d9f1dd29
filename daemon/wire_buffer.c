/* SPDX-License-Identifier: Apache-2.0 */
#include "wire_internal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define KEPT (64u << 10) /* an empty buffer larger than this is freed */

int mcd_wire_buffer_reserve(struct mcd_wire_buffer *b, size_t n)
{
    size_t used = b->end - b->begin, capacity = b->capacity;
    uint8_t *data;

    if (b->capacity - b->end >= n)
        return 0;
    if (b->begin > 0 && b->capacity - used >= n) {
        memmove(b->data, b->data + b->begin, used);
    } else {
        if (capacity < 512)
            capacity = 512;
        while (capacity - used < n)
            capacity *= 2;
        data = malloc(capacity);
        if (data == NULL)
            return -ENOMEM;
        if (used > 0)
            memcpy(data, b->data + b->begin, used);
        free(b->data);
        b->data = data;
        b->capacity = capacity;
    }
    b->begin = 0;
    b->end = used;
    return 0;
}

int mcd_wire_buffer_add(struct mcd_wire_buffer *b, const void *data, size_t n)
{
    int res = mcd_wire_buffer_reserve(b, n);

    if (res == 0 && n > 0) {
        memcpy(b->data + b->end, data, n);
        b->end += n;
    }
    return res;
}

void mcd_wire_buffer_drop(struct mcd_wire_buffer *b, size_t n)
{
    b->begin += n;
    if (b->begin < b->end)
        return;
    if (b->capacity > KEPT)
        mcd_wire_buffer_free(b);
    b->begin = b->end = 0;
}

void mcd_wire_buffer_free(struct mcd_wire_buffer *b)
{
    free(b->data);
    memset(b, 0, sizeof(*b));
}
