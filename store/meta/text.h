/* SPDX-License-Identifier: Apache-2.0 */
/* A string that grows: request bodies, replies, records. Always NUL-terminated beyond its size. */
#ifndef MCM_TEXT_H
#define MCM_TEXT_H

#include <stdbool.h>
#include <stddef.h>

struct mcm_text {
    char *at; /* NULL while nothing was added */
    size_t size, room;
    bool failed; /* memory ran out: what is there is not whole */
};

void mcm_text_fini(struct mcm_text *t);
void mcm_text_add(struct mcm_text *t, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
void mcm_text_bytes(struct mcm_text *t, const void *data, size_t size);
/* Standard base64 with padding, as JSON of protobuf has it. */
void mcm_text_base64(struct mcm_text *t, const void *data, size_t size);
/* A JSON string with its quotes. `text` is valid UTF-8. */
void mcm_text_quoted(struct mcm_text *t, const char *text);
/* All but letters, digits and "-._~" as %XX. */
void mcm_text_percent(struct mcm_text *t, const void *data, size_t size);

/* Decodes into `out`, at most `room` bytes. Padding is asked for and every character checked.
 * -EBADMSG: no base64; -EMSGSIZE: more than `room`. */
int mcm_base64_decode(const char *text, void *out, size_t room, size_t *size);

#endif
