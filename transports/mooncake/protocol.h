/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Mooncake's classic TCP data protocol, as its own processes speak it.  Little endian.
 *
 *   request   size u64, address u64, opcode u8, 7 bytes that nobody reads; a WRITE's payload follows
 *   status    code u32, magic u32: the answer of version 2, before a READ's payload and after a WRITE's
 *
 * One request at a time on a connection, answers in order, no ids.  Version 1 knows no status: a READ's
 * payload comes bare, a WRITE is not answered, a refusal is a closed connection.
 */
#ifndef MCT_MOONCAKE_PROTOCOL_H
#define MCT_MOONCAKE_PROTOCOL_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#define MCT_MOONCAKE_HEADER 24u /* bytes */
#define MCT_MOONCAKE_STATUS 8u
#define MCT_MOONCAKE_MAGIC UINT32_C(0x4D435456)
#define MCT_MOONCAKE_OK 0u
#define MCT_MOONCAKE_REJECTED 1u

#define MCT_MOONCAKE_OP_WRITE 0x01u /* of the low seven bits; all else reads */
#define MCT_MOONCAKE_V2 0x80u

/* Bits of mct_conn.features. */
#define MCT_MOONCAKE_FEATURE_V2 UINT64_C(1) /* the peer's descriptor says tcp_proto_version >= 2 */

struct mct_mooncake_request {
    uint64_t size, address;
    bool write, v2;
};

static inline void mct_mooncake_put(uint8_t *p, uint64_t v, unsigned bytes)
{
    for (unsigned i = 0; i < bytes; i++)
        p[i] = (uint8_t)(v >> (8 * i));
}

static inline uint64_t mct_mooncake_take(const uint8_t *p, unsigned bytes)
{
    uint64_t v = 0;

    for (unsigned i = 0; i < bytes; i++)
        v |= (uint64_t)p[i] << (8 * i);
    return v;
}

static inline void mct_mooncake_request_pack(uint8_t out[MCT_MOONCAKE_HEADER],
                                             const struct mct_mooncake_request *r)
{
    memset(out, 0, MCT_MOONCAKE_HEADER);
    mct_mooncake_put(out, r->size, 8);
    mct_mooncake_put(out + 8, r->address, 8);
    out[16] = (uint8_t)((r->write ? MCT_MOONCAKE_OP_WRITE : 0u) | (r->v2 ? MCT_MOONCAKE_V2 : 0u));
}

static inline void mct_mooncake_request_unpack(struct mct_mooncake_request *r,
                                               const uint8_t in[MCT_MOONCAKE_HEADER])
{
    r->size = mct_mooncake_take(in, 8);
    r->address = mct_mooncake_take(in + 8, 8);
    r->write = (in[16] & 0x7fu) == MCT_MOONCAKE_OP_WRITE;
    r->v2 = (in[16] & MCT_MOONCAKE_V2) != 0;
}

static inline void mct_mooncake_status_pack(uint8_t out[MCT_MOONCAKE_STATUS], uint32_t code)
{
    mct_mooncake_put(out, code, 4);
    mct_mooncake_put(out + 4, MCT_MOONCAKE_MAGIC, 4);
}

/* False: no status frame. */
static inline bool mct_mooncake_status_unpack(const uint8_t in[MCT_MOONCAKE_STATUS], uint32_t *code)
{
    *code = (uint32_t)mct_mooncake_take(in, 4);
    return mct_mooncake_take(in + 4, 4) == MCT_MOONCAKE_MAGIC;
}

#endif
