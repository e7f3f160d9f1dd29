/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Frames of Mooncake's handshake port, one each way on a connection: length u64 (little endian; of what
 * follows), a type byte, JSON.  The oldest senders leave the type out: their first byte is '{'.
 */
#ifndef MCD_MOONCAKE_FRAME_H
#define MCD_MOONCAKE_FRAME_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define MCD_MOONCAKE_FRAME_MAX (1u << 20) /* bytes after the length: Mooncake's own default */

enum mcd_mooncake_type {
    MCD_MOONCAKE_CONNECTION,
    MCD_MOONCAKE_METADATA,
    MCD_MOONCAKE_NOTIFY,
    MCD_MOONCAKE_PROBE,
    MCD_MOONCAKE_TYPES
};

/* A frame that is coming in. All zero before the first byte. */
struct mcd_mooncake_frame {
    uint8_t head[8];
    size_t have; /* bytes of head and body */
    size_t size; /* of the body, known after the head */
    size_t room;
    uint8_t *body; /* grows as bytes come: who only announces much costs nothing */
    /* when it is complete */
    enum mcd_mooncake_type type;
    bool typed;
    const char *json; /* in body, not terminated */
    size_t json_size;
};

/* Reads what is there from a socket, a bounded amount. 1: complete, 0: more must come, -ECONNRESET: it ended,
 * -EMSGSIZE: no length that is allowed, -ENOMEM, or the socket's error. */
int mcd_mooncake_frame_read(struct mcd_mooncake_frame *f, int fd);
void mcd_mooncake_frame_free(struct mcd_mooncake_frame *f);

/* A frame to send: *out is the caller's to free(). json need not end with a newline. 0 or -ENOMEM. */
int mcd_mooncake_frame_make(enum mcd_mooncake_type type, bool typed, const char *json,
                            size_t json_size, uint8_t **out, size_t *size);

#endif
