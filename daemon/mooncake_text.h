/* SPDX-License-Identifier: Apache-2.0 */
/* The JSON that Mooncake's processes exchange, made and taken apart.  What comes in is not trusted. */
#ifndef MCD_MOONCAKE_TEXT_H
#define MCD_MOONCAKE_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "address.h"
#include "segment.h"

#define MCD_MOONCAKE_BUFFERS_MAX (4 * MCD_BUFFERS_MAX) /* of one descriptor that is taken in */

struct mcd_mooncake_self {
    const char *name; /* what others open */
    const char *host; /* of the data port */
    uint16_t port;
};

/*
 * This agent's segment descriptor, at most `limit` bytes: as many buffers as fit. *out is the caller's to free().
 * *left_out: buffers that found no room. 0 or -ENOMEM.
 */
int mcd_mooncake_describe(const struct mcd_mooncake_self *self, const struct mcd_snapshot *buffers,
                          size_t limit, char **out, size_t *size, uint32_t *left_out);

/* What a peer's descriptor says. */
struct mcd_mooncake_descriptor {
    char name[MCD_ADDRESS_TEXT_MAX];
    char host[MCD_HOST_MAX]; /* of the data port; "": where `name` is */
    uint16_t port;
    bool v2; /* it answers WRITEs */
    struct mcd_snapshot *buffers;
};

/* 0, and buffers are the caller's to free(); -EBADMSG or -ENOMEM with one sentence in error. */
int mcd_mooncake_parse(const char *json, size_t size, struct mcd_mooncake_descriptor *out,
                       char *error, size_t error_size);

/* The value of rpc_meta: where a named process shakes hands. Written into out, "" when it does not fit. */
void mcd_mooncake_rpc_meta(const char *host, uint16_t port, char *out, size_t size);
/* Its host; -EBADMSG. */
int mcd_mooncake_parse_rpc_meta(const char *json, size_t size, char *host, size_t host_size);

/* A notification. *name and *message are the caller's to free(). -EBADMSG, -ENOMEM. */
int mcd_mooncake_parse_notify(const char *json, size_t size, char **name, char **message);

#endif
