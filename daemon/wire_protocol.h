/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What travels on the control connection between two agents. Little endian. docs/protocol.md draws it.
 *
 *   both ways, at once        greeting
 *   none, psk                 initiator: proof; acceptor: proof; then frames
 *   tls                       TLS 1.3; inside it the greeting again, both ways; then frames
 *   instead of any of these   refusal, and the end
 *
 * Sizes and places in greeting and refusal never change: they are read before a version is chosen.
 */
#ifndef MCD_WIRE_PROTOCOL_H
#define MCD_WIRE_PROTOCOL_H

#include <assert.h>
#include <stdint.h>

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "what travels is little endian, and so are the hosts this is written for"
#endif

#define MCD_WIRE_REFUSAL_MAGIC UINT64_C(0x315355464552434d) /* "MCREFUS1" */
#define MCD_WIRE_PROOF_MAGIC UINT64_C(0x31464f4f5250434d)   /* "MCPROOF1" */
#define MCD_WIRE_FRAME_MAGIC UINT32_C(0x3146434d)           /* "MCF1" */

#define MCD_WIRE_INITIATOR 1u
#define MCD_WIRE_ACCEPTOR 2u
#define MCD_WIRE_NONCE 32u
#define MCD_WIRE_MAC 16u /* bytes of HMAC-SHA256 that follow a frame's payload with psk */

struct mcd_wire_greeting {
    uint64_t magic; /* MCD_WIRE_MAGIC */
    uint16_t version_min, version_max;
    uint8_t method; /* enum mcd_wire_method */
    uint8_t role;   /* MCD_WIRE_INITIATOR or MCD_WIRE_ACCEPTOR: of who sends this */
    uint16_t reserved0;
    uint64_t incarnation; /* of the sending agent, not 0 */
    uint8_t nonce[MCD_WIRE_NONCE];
    uint64_t reserved1;
};
static_assert(sizeof(struct mcd_wire_greeting) == 64, "greeting layout");

struct mcd_wire_proof {
    uint64_t magic;
    uint64_t reserved;
    uint8_t mac[32]; /* none: zeros */
};
static_assert(sizeof(struct mcd_wire_proof) == 48, "proof layout");

struct mcd_wire_refusal {
    uint64_t magic;
    uint16_t status; /* enum mcs_status */
    uint16_t length; /* bytes of text */
    uint32_t reserved;
    char text[240]; /* one sentence, printable ASCII, zeros behind it */
};
static_assert(sizeof(struct mcd_wire_refusal) == 256, "refusal layout");

#define MCD_WIRE_REPLY 0x1u /* flags */

struct mcd_wire_frame {
    uint32_t magic;
    uint16_t version; /* the chosen one */
    uint16_t type;
    uint16_t flags;
    uint16_t status;      /* replies; else 0 */
    uint32_t length;      /* bytes of payload */
    uint32_t id;          /* replies: of the request; 0: no answer wanted */
    uint32_t deadline_ms; /* requests; else 0 */
    uint64_t sequence;    /* of this direction, from 0, rising by one a frame */
};
static_assert(sizeof(struct mcd_wire_frame) == 32, "frame layout");

#endif
