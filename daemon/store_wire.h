/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What catalog and master share of the messages about objects (peer.proto, Store*): lists of keys, and how many
 * fit into a frame.
 */
#ifndef MCD_STORE_WIRE_H
#define MCD_STORE_WIRE_H

#include <stddef.h>

#include <protobuf-c/protobuf-c.h>

#include "store/object/key.h"

/* The name that peers open an agent's store under. No client can say it: it has a control character. */
#define MCD_STORE_SEGMENT "\001store"

/* Of one message, so that it, and its answer with all that is said of a key, fit into a frame (wire.h). */
#define MCD_NAMES_KEYS 8192u          /* keys */
#define MCD_NAMES_BYTES (256u * 1024) /* bytes of the list; one key more than that is fine */

/* A list that is being made. Zeroed: empty. */
struct mcd_names {
    uint8_t *bytes;
    size_t size, room;
    uint32_t n; /* keys */
};
/* 0 or -ENOMEM. The bytes are copied. */
int mcd_names_add(struct mcd_names *l, const void *key, uint32_t length);
static inline bool mcd_names_full(const struct mcd_names *l)
{
    return l->n >= MCD_NAMES_KEYS || l->size >= MCD_NAMES_BYTES;
}
/* For a field of a message; good as long as the list is not changed. */
static inline ProtobufCBinaryData mcd_names_data(const struct mcd_names *l)
{
    return (ProtobufCBinaryData){.data = l->bytes, .len = l->size};
}
void mcd_names_free(struct mcd_names *l);

/* How many keys a list that came has; -1: it is malformed: a key of 0 or more than MCS_KEY_MAX bytes, more than
 * MCS_KEYS_MAX of them, or it ends within one. */
int64_t mcd_names_count(const uint8_t *bytes, size_t size);
/* The key at *at of a list that was counted; *at goes on to the next one. */
struct mco_key mcd_names_next(const uint8_t **at, uint64_t tenant);

#endif
