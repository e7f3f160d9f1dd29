/* SPDX-License-Identifier: Apache-2.0 */
#include "mooncake_frame.h"

#include <endian.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#define FIRST 4096u
#define TURN_MAX (256u << 10) /* bytes in one call: others have a right to theirs */

static void open_up(struct mcd_mooncake_frame *f)
{
    f->typed = f->body[0] < MCD_MOONCAKE_TYPES;
    f->type = f->typed ? (enum mcd_mooncake_type)f->body[0] : MCD_MOONCAKE_CONNECTION;
    f->json = (const char *)f->body + f->typed;
    f->json_size = f->size - f->typed;
}

/* Room for at least one byte more of the body. */
static int grow(struct mcd_mooncake_frame *f)
{
    size_t room = f->room == 0 ? FIRST : 2 * f->room;
    uint8_t *p;

    if (f->have - sizeof(f->head) < f->room)
        return 0;
    if (room > f->size)
        room = f->size;
    p = realloc(f->body, room);
    if (p == NULL)
        return -ENOMEM;
    f->body = p;
    f->room = room;
    return 0;
}

int mcd_mooncake_frame_read(struct mcd_mooncake_frame *f, int fd)
{
    size_t total = 0;
    int res = 0;

    while (total < TURN_MAX) {
        bool head = f->have < sizeof(f->head);
        size_t at = head ? f->have : f->have - sizeof(f->head);
        ssize_t n;

        if (!head)
            res = grow(f);
        if (res != 0)
            return res;
        n = recv(fd, (head ? f->head : f->body) + at, (head ? sizeof(f->head) : f->room) - at,
                 MSG_DONTWAIT);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return errno == EAGAIN ? 0 : -errno;
        if (n == 0)
            return -ECONNRESET;
        f->have += (size_t)n;
        total += (size_t)n;
        if (head && f->have == sizeof(f->head)) {
            uint64_t length;

            memcpy(&length, f->head, sizeof(length));
            length = le64toh(length);
            if (length == 0 || length > MCD_MOONCAKE_FRAME_MAX)
                return -EMSGSIZE;
            f->size = (size_t)length;
        } else if (!head && f->have - sizeof(f->head) == f->size) {
            open_up(f);
            return 1;
        }
    }
    return 0;
}

void mcd_mooncake_frame_free(struct mcd_mooncake_frame *f)
{
    free(f->body);
    memset(f, 0, sizeof(*f));
}

int mcd_mooncake_frame_make(enum mcd_mooncake_type type, bool typed, const char *json,
                            size_t json_size, uint8_t **out, size_t *size)
{
    uint64_t length = htole64(json_size + typed);
    uint8_t *p = malloc(sizeof(length) + typed + json_size);

    if (p == NULL)
        return -ENOMEM;
    memcpy(p, &length, sizeof(length));
    if (typed)
        p[sizeof(length)] = (uint8_t)type;
    memcpy(p + sizeof(length) + typed, json, json_size);
    *out = p;
    *size = sizeof(length) + typed + json_size;
    return 0;
}
