/* SPDX-License-Identifier: Apache-2.0 */
/* Slices of tasks to other hosts, and where they come from: pools of an engine, so that a task
 * costs no call of malloc(). */
#ifndef MCD_SLICE_H
#define MCD_SLICE_H

#include "shm/abi.h"
#include "transports/transport.h"

struct mcd_stage;
struct mcd_task;

/* A notification on its way: a private copy, since the client may write to its own. */
struct mcd_text {
    struct mcd_text *next;
    uint8_t bytes[MCS_NOTIFY_NAME_MAX + MCS_NOTIFY_MESSAGE_MAX];
};

struct mcd_slice {
    struct mct_slice s; /* first: what the transport gets */
    struct mcd_task *task;
    struct mcd_slice *next, *prev;             /* of the task; next: of the pool, too */
    struct mcd_slice *again_next, *again_prev; /* of the route's list of those to be sent again */
    uint64_t local_offset;                     /* in the task's local extent */
    uint64_t posted;                           /* ns of the engine's clock */
    struct mcd_text *text;
    uint8_t class;
    uint8_t rail;       /* last */
    uint8_t damaged_on; /* rail + 1 */
    uint8_t damages;
    uint8_t denied;  /* times that a peer's device refused key or range */
    uint32_t unfit;  /* rails, a bit each, with whose devices an end of it is not registered */
    uint32_t wanted; /* of the description that it awaits */
    /* remote_stage.c */
    bool far_gpu;            /* its end at the peer is a GPU's */
    struct mcd_stage *stage; /* its bytes are in there, or will be; NULL: they go without */
    bool filled;             /* a WRITE's are */
    bool copying;            /* `out`, and no transport has it */
    bool hungry;             /* there was no room for it */
    bool awaits;
    bool out;    /* the transport has it, */
    bool back;   /* or has given it back, and that was not looked at yet */
    bool failed; /* on its last rail */
    bool asked;  /* to come back early */
};

/* FIFO of slices to be sent again. */
struct mcd_slice_list {
    struct mcd_slice *head, *tail;
};

struct mcd_slices {
    struct mcd_slice *free;
    struct mcd_text *texts;
    struct mcd_slice_chunk *chunks;
    uint64_t used;
};

/* NULL: no memory. Zeroed but for the result's fields. */
struct mcd_slice *mcd_slice_get(struct mcd_slices *p);
/* Its text goes, too. */
void mcd_slice_put(struct mcd_slices *p, struct mcd_slice *s);
struct mcd_text *mcd_text_get(struct mcd_slices *p);
/* All memory goes; none is in use. */
void mcd_slices_fini(struct mcd_slices *p);

void mcd_slice_list_append(struct mcd_slice_list *l, struct mcd_slice *s);
void mcd_slice_list_prepend(struct mcd_slice_list *l, struct mcd_slice *s);
void mcd_slice_list_remove(struct mcd_slice_list *l, struct mcd_slice *s);

#endif
