/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Requests about objects: what lies in the argument area behind a descriptor whose op is one of
 * MCS_OP_PUT .. MCS_OP_HOLD.  One request names up to MCS_KEYS_MAX keys; each has its own result.
 *
 *   0          128                 keys             pieces           results           total
 *   +----------+----------+--------+----------------+----------------+-----------------+
 *   | mcs_     | key bytes, groups | mcs_object_key | mcs_object_    | mcs_object_     |
 *   | object_  | host name         |   x count      |   piece        |   result x count|
 *   | args     | (anywhere)        |                |   x npieces    | EXIST: bytes    |
 *   +----------+-------------------+----------------+----------------+-----------------+
 *
 * Offsets count from the start of the block; parts may lie in any order and must be aligned to 8.
 * The client writes all but the results; the agent writes the results before the slot (its release),
 * so a client that has seen its task end reads them as they are.  Nothing of it is believed: the
 * agent copies the head once, each key and piece when it gets to it, and checks the copy.
 *
 * The task ends COMPLETED when every key has a result, whatever that is.  slot.bytes: PUT, GET: bytes
 * moved; EXIST: keys that exist; PREFIX: how many keys from the first on exist; REMOVE: objects removed;
 * CREATE, SEAL, HOLD: keys with an OK.
 *
 * A piece in GPU memory needs MCS_DESC_SYNCED or MCS_DESC_WAIT in the descriptor, else its key ends with GPU_ORDER.
 *
 *   op       keys   pieces  per key
 *   PUT      yes    yes     a new object, the concatenation of its pieces (none: an empty one)
 *   GET      yes    yes     without MCS_OBJECT_RANGES: its pieces are filled in order from the object's
 *                           start, and must have room for all of it (TOO_SMALL; result.size says how
 *                           much it takes); with it: each piece gets [offset, offset + length) of the object
 *   EXIST    yes    no      result is one byte: enum mcs_status, OK or NOT_FOUND or why it is not known
 *   PREFIX   yes    no      no results: slot.bytes says it all
 *   REMOVE   yes    no
 *   CREATE   yes    no      space for key.size bytes, to be filled in place: result has hold, extent, offset
 *   SEAL     no     no      key.size is the hold of a CREATE: the object is there from now on, as its bytes
 *                           are now; the hold is over
 *   HOLD     yes    no      the object is to be read in place: result has hold, extent, offset
 */
#ifndef MCS_OBJECT_H
#define MCS_OBJECT_H

#include "abi.h"

#define MCS_KEYS_MAX 65536u
#define MCS_KEY_MAX 4096u /* bytes of a key, 1 at least; any bytes */
#define MCS_GROUP_MAX 256u
#define MCS_PIECES_MAX (1u << 20) /* of one request */
#define MCS_REPLICAS_MAX 8u
#define MCS_SOFT_PIN_MAX_MS (24u * 3600u * 1000u) /* as Mooncake's limit */

/* Flags of a request. */
#define MCS_OBJECT_UPSERT 0x001u   /* PUT, CREATE: replaces an object that is there */
#define MCS_OBJECT_NEW 0x002u      /* PUT, CREATE: one that is there is EXISTS, not OK */
#define MCS_OBJECT_HARD_PIN 0x004u /* PUT, CREATE: never evicted */
#define MCS_OBJECT_RANGES 0x008u   /* GET */
#define MCS_OBJECT_VERIFY 0x010u   /* GET, HOLD: check the checksum here, too */
#define MCS_OBJECT_FORCE 0x020u    /* REMOVE: also what has a lease or is pinned */
#define MCS_OBJECT_LOCAL 0x040u    /* what this host's agent holds, and nothing else */
#define MCS_OBJECT_CHAIN 0x080u    /* keys are blocks of one prefix chain, in its order */
#define MCS_OBJECT_LEASE 0x100u    /* EXIST, PREFIX: what exists is not evicted for lease_ms */
#define MCS_OBJECT_FLAGS 0x1ffu

struct mcs_object_args {
    uint64_t total; /* bytes of the block */
    uint32_t count; /* keys, 1 .. MCS_KEYS_MAX */
    uint32_t flags; /* MCS_OBJECT_* */
    uint32_t keys;  /* offset */
    uint32_t pieces;
    uint32_t npieces;
    uint32_t results;
    uint32_t replicas;    /* PUT, CREATE; 0: 1 */
    uint32_t soft_pin_ms; /* PUT, CREATE; 0: none */
    uint32_t lease_ms;    /* 0: the agent's */
    uint32_t position;    /* CHAIN: of the first key in its chain, 0 .. 2^31 - 1 */
    uint32_t host;        /* PUT, CREATE: where it is to be, "host:port" of an agent: offset, */
    uint32_t host_length; /* and bytes; 0: here */
    uint32_t gates;       /* WAIT, SIGNAL: as mcs_args.gates; without them 0 */
    uint32_t reserved[17];
};
static_assert(sizeof(struct mcs_object_args) == 128, "mcs_object_args layout");

struct mcs_object_key {
    uint32_t text, length;        /* of the key */
    uint32_t group, group_length; /* PUT, CREATE: evicted together; length 0: none */
    uint64_t size;                /* CREATE: bytes; SEAL: the hold */
    uint32_t first, pieces;       /* in the table of pieces */
};
static_assert(sizeof(struct mcs_object_key) == 32, "mcs_object_key layout");

struct mcs_object_piece {
    uint64_t offset; /* RANGES: in the object; else 0 */
    uint64_t length; /* bytes, not 0 */
    uint64_t local;  /* offset in the extent */
    uint32_t extent; /* this session's handle of it */
    uint32_t reserved;
};
static_assert(sizeof(struct mcs_object_piece) == 32, "mcs_object_piece layout");

/* Where the bytes came from, or went. */
enum mcs_tier { MCS_TIER_NONE, MCS_TIER_MEMORY, MCS_TIER_DISK, MCS_TIER_REMOTE, MCS_TIER_COUNT };

struct mcs_object_result {
    uint64_t size;   /* of the object, bytes */
    uint32_t status; /* enum mcs_status */
    uint8_t path;    /* enum mcs_path */
    uint8_t tier;    /* enum mcs_tier */
    uint16_t copies; /* PUT: replicas that were made */
    uint64_t hold;   /* CREATE, HOLD: names it to SEAL and RELEASE; 0: none */
    uint64_t offset; /* CREATE, HOLD: of its bytes in the extent */
    uint32_t extent; /* CREATE, HOLD: id of the store's extent, to MCS_MSG_OBJECT_MAP */
    uint32_t crc;    /* CRC32C of the object */
    uint64_t version;
};
static_assert(sizeof(struct mcs_object_result) == 48, "mcs_object_result layout");

/*
 * RELEASE: a descriptor of its own shape, without slot and answer, as CANCEL.  Holds end: what was
 * read in place may be evicted; what was created and not sealed is undone.  Holds that are 0 or
 * over are passed by.
 */
#define MCS_RELEASE_MAX 7u
struct mcs_release {
    uint8_t op; /* MCS_OP_RELEASE */
    uint8_t zero[7];
    uint64_t holds[MCS_RELEASE_MAX];
};
static_assert(sizeof(struct mcs_release) == sizeof(struct mcs_desc), "a release is a descriptor");

#endif
