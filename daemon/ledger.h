/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The ledger: what the agent has given to whom, in a memfd that outlives it.  A later agent reads
 * it to know whose extents, queues and names are out there, and checks what clients hand back.
 *
 * One writer, the control thread, which may be killed at any instruction.  A record is filled
 * first and made valid by one store; it is made invalid by one store before anything of it
 * changes.  So a reader after that death sees each record whole or not at all.  Of the fields that
 * change while a record is valid, each is one word, and the word that gives sense to others is
 * stored after them.
 *
 *   0           64 KiB                                             a chunk holds records of one
 *   +-----------+-----------+-----------+-----------+- - -         kind; the file grows by chunks
 *   | head      | sessions  | extents   | extents   |              and never shrinks
 *   +-----------+-----------+-----------+-----------+- - -
 */
#ifndef MCD_LEDGER_H
#define MCD_LEDGER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "shm/abi.h"

#define MCD_LEDGER_CHUNK (UINT64_C(64) << 10)
#define MCD_LEDGER_MAX (UINT64_C(256) << 20) /* bytes: some two million extents */

struct mcd_ledger;

/* What holds for the whole agent. Each word is kept ahead of its use: what it does not name yet was
 * not given to anybody. */
struct mcd_ledger_head {
    uint64_t magic;
    uint32_t version;
    uint32_t lives; /* agents that have written here, this one included */
    uint64_t incarnation;
    uint64_t tick_hz;
    uint32_t tick_shift;
    uint32_t next_session;
    uint64_t next_address;
    uint32_t next_extent;
    uint32_t tries; /* starts over it since the last that became ready */
    /* allocations that a session has ever had: so many may come back, whatever the limit is by then */
    uint64_t most_allocs;
};

enum mcd_ledger_kind {
    MCD_LEDGER_NONE,
    MCD_LEDGER_SESSION,
    MCD_LEDGER_EXTENT,
    MCD_LEDGER_QUEUE,
    MCD_LEDGER_KINDS
};

/* `check` comes first in each of them: 0 when the record is free, else a sum over its other fields
 * up to those that may change. */
struct mcd_ledger_session {
    uint64_t check;
    uint64_t incarnation;
    uint64_t segment; /* incarnation of its segment */
    uint64_t tenant;
    uint64_t started; /* of the process: field 22 of /proc/PID/stat; 0: not known */
    uint64_t region_ino, region_dev, inbox_size;
    uint32_t id;
    int32_t pid; /* 0: of another pid namespace */
    uint32_t uid, gid;
    char name[MCS_NAME_MAX];
    /* may change */
    uint32_t named;    /* 1: the two fields below hold; stored after them */
    uint32_t writable; /* mappings of others' memory, granted for writing */
    uint32_t flags;    /* MCS_SEGMENT_* */
    uint32_t leaves;   /* 1: the client said that it will not come back */
    char segment_name[MCS_NAME_MAX];
};

#define MCD_LEDGER_FOREIGN 1u /* the client made, or brought, the memory */
#define MCD_LEDGER_GPU 2u     /* GPU memory */

struct mcd_ledger_extent {
    uint64_t check;
    uint64_t session; /* incarnation */
    union {
        struct {
            uint64_t ino, dev; /* of the memfd */
        };
        uint8_t
            gpu[16]; /* with MCD_LEDGER_GPU: UUID of the device, whose descriptors all look alike */
    };
    uint64_t size, page_size, address;
    uint32_t handle, id;
    int32_t node;
    uint32_t flags; /* MCD_LEDGER_FOREIGN, MCD_LEDGER_GPU */
};

struct mcd_ledger_queue {
    uint64_t check;
    uint64_t session; /* incarnation */
    uint64_t ino, dev, args_size;
    uint32_t id, depth, slots, batches;
};

/* A fresh, empty one. 0 or a negative errno. */
int mcd_ledger_create(struct mcd_ledger **out);

/*
 * Takes the one over that an earlier agent has left. fd becomes the ledger's on success. Records that
 * are not sound are dropped with a line in the log. -EPROTO: no ledger of this version.
 */
int mcd_ledger_adopt(int fd, struct mcd_ledger **out);

/* Unmaps and closes; the contents live on with whoever else holds the memfd. */
void mcd_ledger_destroy(struct mcd_ledger *l);

int mcd_ledger_fd(const struct mcd_ledger *l);
struct mcd_ledger_head *mcd_ledger_head(struct mcd_ledger *l);
uint64_t mcd_ledger_size(const struct mcd_ledger *l); /* bytes */

/* Writes *record, whose `check` does not matter, to a free place. NULL: no memory. Stays where it
 * is until it is dropped. */
void *mcd_ledger_add(struct mcd_ledger *l, enum mcd_ledger_kind kind, const void *record);
/* record may be NULL. */
void mcd_ledger_drop(struct mcd_ledger *l, enum mcd_ledger_kind kind, void *record);
/* The valid record of that kind behind `after`; NULL: the first one. NULL at the end. */
void *mcd_ledger_next(struct mcd_ledger *l, enum mcd_ledger_kind kind, const void *after);
/* Drops everything: nobody will come back. */
void mcd_ledger_clear(struct mcd_ledger *l);

/* The session's segment gets its name, or loses it (NULL). */
void mcd_ledger_name(struct mcd_ledger_session *r, const char *name, uint32_t flags);

/* When the process was started, in the kernel's ticks since boot; 0: not known. */
uint64_t mcd_process_started(pid_t pid);

#endif
