/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What two agents send each other over a queue pair: notifications and their answers. READ and WRITE are
 * one-sided and need no message. Little endian. docs/protocol.md draws it.
 *
 *   initiator -> target   NOTIFY + name + message
 *   target -> initiator   DONE
 *
 * A message is one SEND. Completions of a shared receive queue name a queue pair by its number only, and adapters
 * use numbers again: so each message names its connection, too. A NOTIFY takes the next id, from 1 on; each is
 * answered once. An initiator that waits a second for an answer, with nothing on its way, sends a WRITE of no byte, once a second:
 * if the target's queue pair is gone, that fails. Whatever breaks these rules ends its queue pair, and nothing else.
 */
#ifndef MCT_RDMA_PROTOCOL_H
#define MCT_RDMA_PROTOCOL_H

#include <assert.h>
#include <stdint.h>

#define MCT_RDMA_MAGIC 0x4d52u /* "RM" */
#define MCT_RDMA_VERSION 1u

enum mct_rdma_type { MCT_RDMA_NOTIFY = 3, MCT_RDMA_DONE = 0x82 };

struct mct_rdma_header {
    uint16_t magic;
    uint8_t version;
    uint8_t type;         /* enum mct_rdma_type */
    uint16_t status;      /* DONE: enum mcs_status; else 0 */
    uint16_t name_length; /* NOTIFY; else 0 */
    uint64_t conn;        /* the connection's id */
    uint64_t id;          /* rising by one a NOTIFY; DONE repeats it */
    /* NOTIFY; else 0 */
    uint64_t address;     /* the notification's own number */
    uint64_t incarnation; /* of the segment */
    uint64_t source;      /* incarnation of the sending session */
    uint64_t bytes;       /* moved by the task that carries it */
    uint32_t export_index;
    uint32_t length; /* bytes after the header: name and message */
};
static_assert(sizeof(struct mct_rdma_header) == 64, "mct_rdma_header layout");

/* NOTIFYs of one queue pair that wait for their answer, at most; a peer that sends more breaks the rules. */
#define MCT_RDMA_NOTICES 8u

#endif
