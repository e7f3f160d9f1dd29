/* SPDX-License-Identifier: Apache-2.0 */
/* Headers and trailers of data frames. Little endian, as every host that mcshm runs on. */
#include <stddef.h>
#include <string.h>

#include "frame.h"
#include "transports/crc32c.h"

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "frames are sent as they lie in memory");

static uint16_t check_of(const struct mct_tcp_header *h)
{
    return (uint16_t)mct_crc32c(0, h, offsetof(struct mct_tcp_header, check));
}

static_assert(offsetof(struct mct_tcp_header, check) + 2 == sizeof(struct mct_tcp_header),
              "the check covers all before it");

void mct_tcp_header_seal(struct mct_tcp_header *h)
{
    h->magic = MCT_TCP_FRAME_MAGIC;
    h->reserved = 0;
    h->check = check_of(h);
}

const char *mct_tcp_header_open(struct mct_tcp_header *h, const void *bytes)
{
    memcpy(h, bytes, sizeof(*h));
    if (h->magic != MCT_TCP_FRAME_MAGIC)
        return "a frame began with something else than the frame's magic number";
    if (h->check != check_of(h))
        return "a frame's header does not match its checksum";
    if (h->reserved != 0 || (h->flags & ~MCT_TCP_CHECKSUM) != 0)
        return "a frame's header used bits that are reserved";
    return NULL;
}

const char *mct_tcp_request_check(const struct mct_tcp_header *h)
{
    const char *wrong = NULL;

    switch (h->type) {
    case MCT_TCP_READ:
    case MCT_TCP_WRITE:
        if (h->length == 0 || h->length > MCT_TCP_LENGTH_MAX)
            wrong = "a request's length was 0 or above the limit";
        break;
    case MCT_TCP_NOTIFY:
        if (h->length == 0 || h->length > MCT_TCP_NOTIFY_MAX)
            wrong = "a notification's length was 0 or above the limit";
        else if (h->name_length > h->length || h->name_length > MCS_NOTIFY_NAME_MAX)
            wrong = "a notification's name was longer than the notification or the limit";
        break;
    case MCT_TCP_KILL:
    case MCT_TCP_PING:
        if (h->length != 0)
            wrong = "a request without payload announced one";
        break;
    default:
        wrong = "a request's type is unknown";
        break;
    }
    return wrong;
}

const char *mct_tcp_answer_check(const struct mct_tcp_header *h)
{
    const char *wrong = NULL;

    switch (h->type) {
    case MCT_TCP_DATA:
        if ((h->status == MCS_OK) != (h->length != 0) || h->length > MCT_TCP_LENGTH_MAX)
            wrong = "an answer's length does not fit its status, or is above the limit";
        break;
    case MCT_TCP_DONE:
    case MCT_TCP_KILLED:
    case MCT_TCP_PONG:
        if (h->length != 0)
            wrong = "an answer without payload announced one";
        break;
    case MCT_TCP_BUSY:
        if (h->length != 0 || h->id != 0 || h->status != 0)
            wrong = "a frame that answers nothing has an id, a status or a length";
        break;
    default:
        wrong = "an answer's type is unknown";
        break;
    }
    return wrong;
}

uint8_t mct_tcp_answer_type(uint8_t request)
{
    switch (request) {
    case MCT_TCP_READ:
        return MCT_TCP_DATA;
    case MCT_TCP_WRITE:
    case MCT_TCP_NOTIFY:
        return MCT_TCP_DONE;
    case MCT_TCP_KILL:
        return MCT_TCP_KILLED;
    case MCT_TCP_PING:
        return MCT_TCP_PONG;
    default:
        return 0;
    }
}

void mct_tcp_trailer_make(struct mct_tcp_trailer *t, uint64_t id, uint16_t status, uint32_t crc)
{
    *t = (struct mct_tcp_trailer){
        .magic = MCT_TCP_FRAME_MAGIC, .status = status, .crc = crc, .id = id};
}

const char *mct_tcp_trailer_open(struct mct_tcp_trailer *t, const void *bytes, uint64_t id)
{
    memcpy(t, bytes, sizeof(*t));
    if (t->magic != MCT_TCP_FRAME_MAGIC || t->id != id)
        return "a payload was not followed by its trailer";
    return NULL;
}
