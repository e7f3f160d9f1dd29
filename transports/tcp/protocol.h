/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What travels on a data connection between two agents. Little endian. docs/protocol.md draws it.
 *
 *   opening, between the control threads        then, between the engines, pipelined, in any order
 *   initiator -> target   mct_tcp_open          READ, WRITE + payload + trailer, NOTIFY + payload +
 *   target -> initiator   mct_tcp_opened        trailer, KILL, PING
 *                                               DATA + payload + trailer, DONE, KILLED, PONG, BUSY
 *
 * Each request (KILL and PING, too) takes the next id, from 1 on, in the order of sending; each is
 * answered once. READ has no payload; WRITE, NOTIFY and DATA with status OK have one, and then a
 * trailer. What is cancelled or taken away half-way goes on as zeros, and its trailer says so.
 * Whatever breaks these rules ends its connection, and nothing else.
 */
#ifndef MCT_TCP_PROTOCOL_H
#define MCT_TCP_PROTOCOL_H

#include <assert.h>
#include <stdint.h>

#define MCT_TCP_MAGIC UINT64_C(0x3154414450434d01) /* "\1MCPDAT1": first bytes of an opening */
#define MCT_TCP_VERSION 1u
#define MCT_TCP_TOKEN 32u /* bytes; random, good for one connection */

struct mct_tcp_open {
    uint64_t magic;
    uint16_t version;
    uint16_t reserved;
    uint32_t size;     /* sizeof(struct mct_tcp_open) */
    uint64_t conn;     /* chosen by the initiator: random, not 0 */
    uint64_t features; /* MCT_TCP_FEATURE_* that the initiator has */
    uint8_t token[MCT_TCP_TOKEN];
};
static_assert(sizeof(struct mct_tcp_open) == 64, "mct_tcp_open layout");

struct mct_tcp_opened {
    uint64_t magic;
    uint16_t version;
    uint16_t status; /* enum mcs_status */
    uint32_t size;
    uint64_t conn;
    uint64_t features; /* in force: those of both sides */
};
static_assert(sizeof(struct mct_tcp_opened) == 32, "mct_tcp_opened layout");

#define MCT_TCP_FEATURE_NOTIFY (UINT64_C(1) << 0)
#define MCT_TCP_FEATURE_BUSY (UINT64_C(1) << 1) /* the initiator takes BUSY */
#define MCT_TCP_FEATURES (MCT_TCP_FEATURE_NOTIFY | MCT_TCP_FEATURE_BUSY)

enum mct_tcp_type {
    MCT_TCP_READ = 1,
    MCT_TCP_WRITE = 2,
    MCT_TCP_NOTIFY = 3,
    MCT_TCP_KILL = 4, /* address: the connection to end */
    MCT_TCP_PING = 5,
    MCT_TCP_DATA = 0x81, /* answer to READ; status != OK: no payload, no trailer */
    MCT_TCP_DONE = 0x82, /* answer to WRITE and NOTIFY: applied, or refused with a status */
    MCT_TCP_KILLED = 0x84,
    MCT_TCP_PONG = 0x85,
    MCT_TCP_BUSY = 0x86 /* id 0, answers nothing: the target is at work on what was asked */
};

#define MCT_TCP_FRAME_MAGIC 0x5243u /* "CR" */
#define MCT_TCP_CHECKSUM 0x01u      /* the trailer has the payload's CRC32C; in READ: please do */

/* Largest payload of one request; a slice is at most so long. */
#define MCT_TCP_LENGTH_MAX (UINT64_C(16) << 20)

struct mct_tcp_header {
    uint16_t magic;
    uint8_t type;         /* enum mct_tcp_type */
    uint8_t flags;        /* MCT_TCP_CHECKSUM */
    uint16_t status;      /* enum mcs_status; answers */
    uint16_t name_length; /* NOTIFY */
    uint64_t id;          /* chosen by the initiator, rising by one a request; answers repeat it */
    uint64_t address;
    uint64_t length;      /* payload bytes: of this frame, or (READ) of the answer */
    uint64_t incarnation; /* of the segment; NOTIFY, too */
    uint32_t export_index;
    uint32_t reserved;
    uint64_t source;        /* NOTIFY: incarnation of the sending session; else 0 */
    uint32_t task_bytes_lo; /* NOTIFY: bytes that its task moved, low and high half; else 0 */
    uint16_t task_bytes_hi;
    uint16_t check; /* low half of the CRC32C of the header with this field 0 */
};
static_assert(sizeof(struct mct_tcp_header) == 64, "mct_tcp_header layout");

struct mct_tcp_trailer {
    uint16_t magic;
    uint16_t status; /* enum mcs_status: OK, or the payload is filler from some point on */
    uint32_t crc;    /* CRC32C of the payload, or 0 */
    uint64_t id;
};
static_assert(sizeof(struct mct_tcp_trailer) == 16, "mct_tcp_trailer layout");

#endif
