/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The bytes in shared memory.  Fixed-width types, explicit padding, offsets and
 * never pointers.  Both sides include this file; it includes nothing of ours but
 * the list of status codes.  docs/shared-memory.md tells the protocol around it.
 *
 * Two kinds of memory are shared, each in a sealed memfd that the agent made:
 *
 *   session region, one per session              queue region, one per queue
 *   +--------------------------------+ 0         +--------------------------------+ 0
 *   | mcs_session_header    (agent)  |           | mcs_queue_header      (agent)  |
 *   +--------------------------------+ 512       +--------------------------------+ 512
 *   | mcs_session_words              |           | mcs_doorbell                   |
 *   |   agent line   inbox head,     |           |   agent line   need_wakeup     |
 *   |                grants version, |           |   client line  waiters         |
 *   |                ended           |           |   caller line  copy in the     |
 *   |   client line  inbox tail,     |           |                caller's thread |
 *   |                inbox waiter    |           |   life line    taken, resumed  |
 *   +--------------------------------+ 1024      +--------------------------------+ ring_offset
 *   | inbox: records of 64-byte      |           | struct rte_ring, elements of   |
 *   | units, wraps, agent writes     |           | 64 bytes (mcs_desc), SP/SC     |
 *   +--------------------------------+           +--------------------------------+ batches_offset
 *                                                | mcs_batch_line x batches       |
 *                                                +--------------------------------+ slots_offset
 *                                                | mcs_slot x slots               |
 *                                                +--------------------------------+ args_offset
 *                                                | argument area   (client)       |
 *                                                +--------------------------------+
 *
 * All of it is writable by the client's process.  The agent therefore believes
 * nothing it reads back: sizes, masks, indices and generations are kept in its
 * private memory, and each descriptor is copied once, then checked, then used.
 */
#ifndef MCS_ABI_H
#define MCS_ABI_H

#include <assert.h>
#include <stddef.h>
#include <stdint.h>

#include "status.h"

#define MCS_ABI_VERSION 2u
#define MCS_QUEUE_MAGIC UINT64_C(0x4555455551434d01)   /* "\1MCQUEUE" */
#define MCS_SESSION_MAGIC UINT64_C(0x5353534553434d01) /* "\1MCSESSS" */

#define MCS_LINE 64u
/* Words of different writers keep two lines apart: x86 fetches lines in pairs. */
#define MCS_GUARD 128u

#define MCS_NAME_MAX 256u /* segment and client names with their NUL */
#define MCS_LOCATION_MAX 32u
#define MCS_ADDRESS_MAX 256u /* "host:port" with its NUL */

/* Notification limits: those of TENT's tent_notifi_record. */
#define MCS_NOTIFY_NAME_MAX 256u
#define MCS_NOTIFY_MESSAGE_MAX 4096u

/* Features an agent may offer; a client ignores bits it does not know. */
#define MCS_FEATURE_NEVER_SLEEPS (UINT64_C(1) << 0) /* idle = busy: no doorbell needed */
#define MCS_FEATURE_KEPT                                                                           \
    (UINT64_C(1) << 1) /* somebody keeps the ledger: a later agent takes over */
#define MCS_FEATURE_OBJECTS (UINT64_C(1) << 3) /* this agent holds objects: object.h */
#define MCS_FEATURE_GPU (UINT64_C(1) << 4)     /* GPU memory may be asked for: [gpu] enable */
/* And one that a client offers, in HELLO. */
#define MCS_FEATURE_LEAVES (UINT64_C(1) << 2) /* it will not come back to a later agent */

enum mcs_op {
    MCS_OP_NONE = 0,
    MCS_OP_READ = 1,   /* remote -> local */
    MCS_OP_WRITE = 2,  /* local -> remote */
    MCS_OP_NOTIFY = 3, /* notification alone; message in the arguments */
    MCS_OP_CANCEL = 4, /* names slot and generation of another task; has no slot */
    /* objects: object.h */
    MCS_OP_PUT = 5,
    MCS_OP_GET = 6,
    MCS_OP_EXIST = 7,
    MCS_OP_PREFIX = 8,
    MCS_OP_REMOVE = 9,
    MCS_OP_CREATE = 10,
    MCS_OP_SEAL = 11,
    MCS_OP_HOLD = 12,
    MCS_OP_RELEASE = 13, /* a struct mcs_release; has no slot */
    MCS_OP_COUNT
};

enum mcs_shape { MCS_SHAPE_ONE = 0, MCS_SHAPE_LIST = 1, MCS_SHAPE_STRIDE = 2, MCS_SHAPE_COUNT };

enum mcs_class {
    MCS_CLASS_HIGH = 0,
    MCS_CLASS_NORMAL = 1,
    MCS_CLASS_BACKGROUND = 2,
    MCS_CLASS_COUNT
};

/* Flags of a descriptor. */
#define MCS_DESC_FENCE 0x01u  /* start after all earlier tasks of this queue have ended */
#define MCS_DESC_NOTIFY 0x02u /* deliver the notification in the arguments after the data */
#define MCS_DESC_STRICT 0x04u /* fail rather than take a slower path */
#define MCS_DESC_WAIT 0x08u   /* begin once the first gate in the arguments has its value */
#define MCS_DESC_SIGNAL                                                                            \
    0x10u /* store the value of the next gate when the task has ended, however */
#define MCS_DESC_SYNCED 0x20u /* what wrote or reads the local GPU memory has ended already */
#define MCS_DESC_FLAGS 0x3fu

/* States of a task: Mooncake's TransferStatusEnum, same values. */
enum mcs_state {
    MCS_STATE_WAITING = 0,
    MCS_STATE_PENDING = 1,
    MCS_STATE_INVALID = 2,
    MCS_STATE_CANCELED = 3,
    MCS_STATE_COMPLETED = 4,
    MCS_STATE_TIMEOUT = 5,
    MCS_STATE_FAILED = 6,
    MCS_STATE_COUNT
};

/* How the bytes went. */
enum mcs_path {
    MCS_PATH_NONE = 0,
    MCS_PATH_LOCAL = 1,  /* the agent copied, both sides in pool memory */
    MCS_PATH_CALLER = 2, /* libmcshm copied in the caller's thread */
    MCS_PATH_STAGED = 3, /* private memory, through pool memory of the library */
    MCS_PATH_TCP = 4,
    MCS_PATH_RDMA = 5,
    MCS_PATH_CUDA = 6,
    MCS_PATH_FILE = 7,
    MCS_PATH_MOONCAKE = 8, /* stock Mooncake's TCP protocol */
    MCS_PATH_COUNT
};

/* Access rights of a published buffer. */
#define MCS_ACCESS_READ 0x1u      /* others may READ through the agent */
#define MCS_ACCESS_WRITE 0x2u     /* others may WRITE through the agent */
#define MCS_ACCESS_MAP_READ 0x4u  /* clients of the tenant may map it read-only */
#define MCS_ACCESS_MAP_WRITE 0x8u /* clients of the tenant may map it writable */
#define MCS_ACCESS_ALL 0xfu

/* Segment flags. */
#define MCS_SEGMENT_PUBLIC 0x1u /* open to other tenants too */
#define MCS_SEGMENT_FLAGS 0x1u

/*
 * A descriptor: one element of the submission ring.
 *
 *   0        4          8            12      16           20
 *   +--------+----------+------------+-------+------------+--------+
 *   |op sh fl|   slot   | generation | batch | batch gen. | extent |
 *   |class   |          |            |       |            |        |
 *   +--------+----------+------------+-------+------------+--------+
 *   24             32        36          40            48      56     60
 *   +--------------+---------+-----------+-------------+-------+------+----------+
 *   | local_offset | segment | submitted | remote_addr | length| args | deadline |
 *   +--------------+---------+-----------+-------------+-------+------+----------+ 64
 *
 * With shape LIST or STRIDE, local_offset and remote_addr are the bases that the
 * pieces in the argument block are relative to, and length is their total bytes.
 * CANCEL uses slot and generation only. Requests about objects use op, flags (all but NOTIFY), priority, slot,
 * batch, submitted, args and deadline; the rest is 0 (object.h). RELEASE has a shape of its own there.
 */
struct mcs_desc {
    uint8_t op;       /* enum mcs_op */
    uint8_t shape;    /* enum mcs_shape */
    uint8_t flags;    /* MCS_DESC_* */
    uint8_t priority; /* enum mcs_class */
    uint32_t slot;
    uint32_t generation;
    uint32_t batch;
    uint32_t batch_generation;
    uint32_t extent;       /* this session's handle of the local extent */
    uint64_t local_offset; /* bytes into it */
    uint32_t segment;      /* this session's handle of an open segment */
    uint32_t submitted;    /* ticks >> tick_shift at submission, low 32 bits */
    uint64_t remote_addr;  /* address in the segment's address space */
    uint64_t length;       /* bytes */
    uint32_t args;         /* offset of the argument block in units of MCS_LINE */
    uint32_t deadline_us;  /* microseconds after submission; 0: the agent's default */
};
static_assert(sizeof(struct mcs_desc) == 64, "a descriptor is one cache line");
static_assert(offsetof(struct mcs_desc, local_offset) == 24, "mcs_desc layout");
static_assert(offsetof(struct mcs_desc, remote_addr) == 40, "mcs_desc layout");
static_assert(offsetof(struct mcs_desc, deadline_us) == 60, "mcs_desc layout");

#define MCS_ARGS_NONE UINT32_MAX

/*
 * The head of an argument block; pieces and notification follow it.  Offsets
 * count from the start of the block.
 *
 *   0         64                      pieces + 24 * count       total
 *   +---------+-----------------------+-------------------------+
 *   | mcs_args| mcs_piece x count     | name, message (no NUL)  |
 *   +---------+-----------------------+-------------------------+
 *                                       and up to two mcs_gate, anywhere at a multiple of 8
 */
struct mcs_args {
    uint64_t total;         /* bytes of the block, this head included */
    uint64_t count;         /* pieces (list) or blocks (stride) */
    uint64_t block;         /* stride: bytes of one block */
    uint64_t local_stride;  /* stride: bytes from one block to the next, local side */
    uint64_t remote_stride; /* the same, remote side */
    uint32_t pieces;        /* list: offset of the pieces */
    uint32_t notify;        /* offset of the notification's name */
    uint32_t name_length;
    uint32_t message_length;
    uint32_t gates; /* WAIT, SIGNAL: offset of one struct mcs_gate for each, in this order */
    uint32_t reserved;
};
static_assert(sizeof(struct mcs_args) == 64, "mcs_args layout");

/*
 * A gate: 32 bits in host memory of an extent of this session, 4-byte aligned, which a GPU's stream and the agent
 * take turns at.  WAIT: until (int32_t)(word - value) >= 0, as CU_STREAM_WAIT_VALUE_GEQ compares; the stream's write
 * (cuStreamWriteValue32) comes after everything that was queued before it.
 */
struct mcs_gate {
    uint32_t extent;
    uint32_t value;
    uint64_t offset; /* bytes into the extent */
};
static_assert(sizeof(struct mcs_gate) == 16, "mcs_gate layout");

struct mcs_piece {
    uint64_t local;  /* added to the descriptor's local_offset */
    uint64_t remote; /* added to the descriptor's remote_addr */
    uint64_t length; /* bytes, not 0 */
};
static_assert(sizeof(struct mcs_piece) == 24, "mcs_piece layout");

/*
 * A completion slot, two to a line.  The agent writes the other fields first and
 * then `word` (release); the client polls `word` (acquire) until the generation
 * is the one it submitted, and never writes here.
 *
 *   63          32 31     16 15       8 7          0
 *   +-------------+---------+----------+-----------+
 *   | generation  | error   | path     | state     |   state: bit 7 = remote_quiesced
 *   +-------------+---------+----------+-----------+
 */
struct mcs_slot {
    uint64_t word;
    uint64_t bytes;     /* moved */
    uint32_t queue_ns;  /* submission -> taken by the engine */
    uint32_t move_ns;   /* taken -> last byte in place */
    uint32_t notify_ns; /* last byte -> notification in the receiver's inbox */
    uint32_t reserved;
};
static_assert(sizeof(struct mcs_slot) == 32, "two slots a line");

#define MCS_SLOT_REMOTE_QUIESCED 0x80u
#define MCS_SLOT_WORD(generation, error, path, state)                                              \
    ((uint64_t)(generation) << 32 | (uint64_t)(error) << 16 | (uint64_t)(path) << 8 | (state))

/*
 * A batch line.  Written by the agent after the slots it counts.  The low half of
 * `word` is the futex that a waiting client sleeps on.
 */
struct mcs_batch_line {
    uint64_t word;   /* generation << 32 | tasks that have ended */
    uint32_t failed; /* of them, ended in another state than COMPLETED */
    uint32_t taken;  /* tasks the agent has taken from the ring */
    uint64_t bytes;  /* moved */
    uint64_t reserved[5];
};
static_assert(sizeof(struct mcs_batch_line) == 64, "a batch is one cache line");

/* What a waiter waits for: a batch of the queue, or nothing. */
#define MCS_WAIT_NONE 0u
#define MCS_WAIT_BATCH(index) ((uint32_t)(index) + 1u)

struct mcs_doorbell {
    /* agent's line */
    uint32_t need_wakeup; /* 1: the engine is about to sleep or sleeps */
    uint8_t pad0[MCS_GUARD - 4];
    /* client's line */
    uint32_t waiters; /* MCS_WAIT_* */
    uint8_t pad1[MCS_GUARD - 4];
    /* caller's line: copies made in the client's own thread */
    uint32_t caller_active; /* 1 while such a copy runs */
    uint32_t pad2;
    uint64_t caller_tasks; /* counters; the agent adds them up and trusts them no further */
    uint64_t caller_bytes;
    uint64_t staged_tasks;
    uint64_t staged_bytes;
    uint8_t pad3[MCS_GUARD - 40];
    /*
     * life line, the agent's: what an agent that takes over from a dead one must know, and what a
     * client must know of the change. In the normal course nobody reads it.
     */
    uint32_t taken;      /* descriptors ever taken from the ring; free-running */
    uint32_t resumed;    /* value of `taken` from which the present agent goes on */
    uint64_t resumed_by; /* that agent's incarnation; 0: the one that made the queue */
    uint8_t pad4[MCS_GUARD - 16];
};
static_assert(sizeof(struct mcs_doorbell) == 4 * MCS_GUARD, "mcs_doorbell layout");
static_assert(offsetof(struct mcs_doorbell, taken) == 3 * MCS_GUARD, "mcs_doorbell layout");
static_assert(offsetof(struct mcs_doorbell, waiters) == MCS_GUARD, "mcs_doorbell layout");
static_assert(offsetof(struct mcs_doorbell, caller_active) == 2 * MCS_GUARD, "mcs_doorbell layout");

struct mcs_queue_header {
    uint64_t magic;
    uint32_t abi_version;
    uint32_t header_size; /* sizeof(struct mcs_queue_header) as built by the agent */
    uint64_t features;    /* MCS_FEATURE_* */
    uint64_t session_incarnation;
    uint32_t queue_id;
    uint32_t ring_header_size; /* sizeof(struct rte_ring) as built by the agent */
    uint32_t ring_depth;       /* elements, a power of two; one is never used */
    uint32_t desc_size;        /* sizeof(struct mcs_desc) */
    uint32_t slots;
    uint32_t slot_size;
    uint32_t batches;
    uint32_t batch_size;
    uint64_t args_size;
    uint64_t doorbell_offset;
    uint64_t ring_offset;
    uint64_t batches_offset;
    uint64_t slots_offset;
    uint64_t args_offset;
    uint64_t total_size;
};
static_assert(sizeof(struct mcs_queue_header) == 120, "mcs_queue_header layout");

#define MCS_QUEUE_DOORBELL_OFFSET 512u

/* Depth limits of a queue; the agent's configuration may be narrower. */
#define MCS_QUEUE_DEPTH_MIN 2u
#define MCS_QUEUE_DEPTH_MAX (1u << 16)
#define MCS_QUEUE_SLOTS_MAX (1u << 17)
#define MCS_QUEUE_BATCHES_MAX (1u << 16)
#define MCS_QUEUE_ARGS_MAX (UINT64_C(1) << 30)

struct mcs_session_header {
    uint64_t magic;
    uint32_t abi_version;
    uint32_t header_size;
    uint64_t features;
    uint64_t agent_incarnation;
    uint64_t session_incarnation;
    uint64_t tick_hz;    /* rate of mcs_ticks() */
    uint32_t tick_shift; /* mcs_desc.submitted = ticks >> tick_shift */
    uint32_t reserved;
    uint64_t words_offset;
    uint64_t inbox_offset;
    uint64_t inbox_size; /* bytes, a power of two */
    uint64_t total_size;
};
static_assert(sizeof(struct mcs_session_header) == 88, "mcs_session_header layout");

#define MCS_SESSION_WORDS_OFFSET 512u
#define MCS_SESSION_INBOX_OFFSET 1024u

struct mcs_session_words {
    /* agent's line */
    uint64_t inbox_head;     /* bytes ever produced; its low half is the reader's futex */
    uint64_t grants_version; /* grows whenever a mapped grant of this session is withdrawn */
    uint32_t ended;          /* 1: the agent has ended this session for good, it cannot come back */
    uint32_t
        objects_gone; /* grows when the store gives up an extent that this session has mapped */
    uint8_t pad0[MCS_GUARD - 24];
    /* client's line */
    uint64_t inbox_tail; /* bytes ever consumed */
    uint32_t inbox_waiting;
    uint8_t pad1[MCS_GUARD - 12];
};
static_assert(sizeof(struct mcs_session_words) == 2 * MCS_GUARD, "mcs_session_words layout");

/* One notification in an inbox; name and message follow, padded to MCS_LINE. */
struct mcs_inbox_record {
    uint32_t size; /* bytes with padding; a record with source 0 only fills the end */
    uint32_t name_length;
    uint32_t message_length;
    uint32_t reserved;
    uint64_t source; /* incarnation of the sending session */
    uint64_t bytes;  /* moved by the task that carried it */
    uint8_t pad[32];
};
static_assert(sizeof(struct mcs_inbox_record) == 64, "mcs_inbox_record layout");

#endif
