/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the parts of a request about objects share: object.c has its life, object_args.c what a client has written,
 * object_exist.c EXIST, PREFIX and REMOVE, object_put.c PUT, CREATE and SEAL, object_get.c GET and HOLD of what is here,
 * object_far.c of what is not, object_gpu.c what lies in GPU memory of the caller's.  Engine's thread only.
 *
 * Keys are worked off by windows of up to MCD_WINDOW: read from the argument area once, worked on in steps, their results
 * written, the next ones.  A window belongs to a request while that has keys in hand; what it has asked the catalog may
 * outlive the request.
 */
#ifndef MCD_OBJECT_WORK_H
#define MCD_OBJECT_WORK_H

#include "catalog.h"
#include "hold.h"
#include "leg.h"
#include "object.h"
#include "store.h"

#define MCD_WINDOW 256u
#define MCD_WINDOW_TEXT 32768u /* bytes of keys */
#define MCD_KEY_COST MCD_PIECE_COST
#define MCD_LEG_BYTES (4u << 20) /* what one leg reads, as a rule */
#define MCD_WINDOW_PIECES 512u   /* of all legs of a window */

/* How far one key is. */
enum mcd_item_state {
    MCD_ITEM_FRESH,
    MCD_ITEM_MEASURED, /* its pieces were looked at */
    MCD_ITEM_BUSY,     /* waits for the store */
    MCD_ITEM_OPEN,     /* has a view: pinned, or being written */
    MCD_ITEM_FAR,      /* not here: the catalog is to be asked */
    MCD_ITEM_FOUND,    /* another host has it, and it is leased there */
    MCD_ITEM_LEG,      /* is being read from there */
    MCD_ITEM_READ,     /* was */
    MCD_ITEM_MOVING,   /* its bytes are copied; those of GPU memory may be under way yet */
    MCD_ITEM_LATER,    /* PUT, CREATE: another request writes the key, or an earlier item does */
    MCD_ITEM_SEALED,   /* PUT: the catalog is to be told */
    MCD_ITEM_DONE      /* result */
};

struct mcd_item {
    struct mco_key key; /* in the window's text */
    uint64_t size;      /* PUT, GET: bytes of its pieces; CREATE: as asked for; SEAL: the hold */
    uint64_t group;     /* hash of its name, 0: none */
    uint32_t first, pieces;
    uint32_t piece;      /* next one */
    uint64_t piece_done; /* bytes of it */
    uint64_t done;       /* bytes of the object */
    uint32_t crc;        /* of them */
    bool started;        /* the catalog has it as being written, by us */
    bool gpu;            /* some of its pieces are GPU memory, */
    bool summing;        /* PUT: which have come: their checksum is taken */
    bool verified;       /* its checksum is right */
    bool from_disk;
    uint8_t state;                   /* enum mcd_item_state */
    uint8_t tries;                   /* reads from other hosts */
    int16_t twin;                    /* earlier item of the same key; -1: none */
    int16_t asked;                   /* index in the window's question; -1: not in it */
    int16_t legs;                    /* under way; of GPU memory: pieces */
    uint8_t leg_error;               /* enum mcs_status */
    const struct mcd_segment *avoid; /* the store that it could not be read from; only compared; */
    bool damaged;                    /* its bytes had a wrong checksum there */
    struct mco_view view;
    struct mco_version version;
    struct mcs_object_result result;
};

/* A leg and what it reads. */
struct mcd_window_leg {
    struct mcd_leg leg;
    struct mcd_window *window;
    uint32_t piece, pieces; /* in the window's table */
    int device;             /* GPU memory: where all of it lies */
    int16_t first, last;    /* items; how far the first one was: */
    uint32_t first_piece;
    uint64_t first_done;
    bool busy;
};

struct mcd_window {
    struct mcd_object *owner; /* NULL: the request is over, a question is not */
    struct mcd_window *next;  /* unused ones; or of a request, those that are told of */
    uint32_t first;           /* key of the request's */
    uint32_t n, at;           /* items; the one in work */
    uint32_t text_used;
    uint32_t legs; /* under way */
    bool asking;
    bool aside; /* all is written, and the catalog is told of it, while the request goes on */
    struct mcd_ask ask;
    struct mcd_ask_key asked[MCD_WINDOW];
    struct mcd_item items[MCD_WINDOW];
    struct mcd_window_leg leg[MCD_LEGS];
    struct mcd_leg_piece leg_pieces[MCD_WINDOW_PIECES];
    int16_t leg_items[MCD_WINDOW_PIECES];    /* GPU memory: whose each of them is, */
    uint32_t leg_extents[MCD_WINDOW_PIECES]; /* and where it lies */
    uint32_t leg_pieces_used;
    struct mcd_window_leg *plan; /* the leg that is put together; NULL: none */
    uint64_t plan_bytes;
    bool legless; /* none was to be had for the next piece */
    uint8_t text[MCD_WINDOW_TEXT];
};

/* Keys of EXIST and PREFIX that are not here, in one question. */
struct mcd_far {
    struct mcd_object *owner; /* NULL: the request is over */
    struct mcd_far *next;     /* unused ones */
    bool asking;
    struct mcd_ask ask;
    uint32_t n, room;
    uint32_t text_used, text_room;
    uint32_t *index; /* of the request's keys */
    uint8_t *text;
    struct mcd_ask_key keys[];
};

enum mcd_step {
    MCD_STEP_FILL,
    MCD_STEP_BEGIN, /* PUT, CREATE: a round with those that are not over */
    MCD_STEP_ASK,   /* may it be written? where is it? */
    MCD_STEP_WORK,  /* bytes */
    MCD_STEP_TELL,  /* it was written */
    MCD_STEP_CHECK, /* what came from other hosts */
    MCD_STEP_SHOW   /* results */
};

/* What a run of a request says. */
enum mcd_run {
    MCD_RUN_DONE,
    MCD_RUN_MORE,   /* the budget is used up */
    MCD_RUN_WAIT,   /* an answer or a leg has to come */
    MCD_RUN_SPACE,  /* the store has to say ready() */
    MCD_RUN_FAILED, /* r->error */
};

struct mcd_object {
    struct mcd_objects *all;
    struct mcd_queue *q;
    struct mcd_task *task; /* NULL: not parked */
    struct mcs_desc desc;
    struct mcs_object_args args; /* private copy, checked */
    uint64_t base;               /* of the block in the argument area */
    uint64_t tenant;
    struct mcs_gate gate; /* WAIT: private copy, checked */
    uint32_t next;        /* key that the next window begins with */
    enum mcd_step step;
    uint16_t error; /* enum mcs_status */
    uint8_t path, tier;
    bool shown;        /* the slot says that it has begun */
    bool waits;        /* in no list */
    bool open;         /* WAIT: the gate has its value */
    bool for_space;    /* and in that of those that wait for the store, */
    bool for_window;   /* or for one of the queue's windows */
    bool catalog;      /* other hosts are there, and may be asked */
    bool ended;        /* PREFIX: a key is not there */
    uint64_t bytes;    /* slot.bytes */
    uint64_t now;      /* ns of CLOCK_MONOTONIC, of this run */
    uint64_t previous; /* CHAIN: hash of the last key */
    uint64_t deadline; /* ticks */
    uint64_t started;  /* ticks: first run */
    uint64_t patience; /* ns: until then it waits for others who write its keys; 0: nobody does */
    struct mcd_window *window;
    struct mcd_window *aside; /* windows that wait for an answer alone, */
    unsigned naside;          /* so many */
    uint32_t taken_back;      /* ending: so many results were */
    struct mcd_far *far;
    struct mcd_object *space_prev, *space_next;
    struct mcd_object *idle_next; /* unused ones */
    char host[MCS_ADDRESS_MAX];
};

struct mcd_objects {
    uint32_t ready; /* atomic: bumped by mcd_objects_ready(), any thread */
    uint32_t woken; /* atomic: bumped by it and mcd_objects_wake(), any thread */
    uint32_t ready_seen, woken_seen;
    struct mcd_object *space;  /* those that wait for the store */
    struct mcd_window *undone; /* creations that the catalog is to be told of, at the next turn */
    struct mcd_object *idle;
    struct mcd_window *windows;     /* unused ones, */
    struct mcd_far *far;            /* likewise */
    unsigned nidle, nwindows, nfar; /* bounded */
};

/* ---- object_args.c --------------------------------------------------------------------- */

/* The head of the block, in private memory and checked. */
enum mcs_status mcd_object_head(const struct mcd_queue *q, const struct mcs_desc *d,
                                struct mcd_object *r);
/* The next window's keys, as many as the budget pays for. A bad key is DONE, with its status. */
void mcd_object_fill(struct mcd_object *r, struct mcd_window *w, uint64_t *budget);
/* One key's record and text alone, for EXIST: OK and *key, whose bytes were copied to `text` (MCS_KEY_MAX of room). */
enum mcs_status mcd_object_key(const struct mcd_object *r, uint32_t index, uint8_t *text,
                               struct mco_key *key, struct mcs_object_key *record);
/* May the request have GPU memory as the caller's end? */
static inline bool mcd_object_may_gpu(const struct mcd_object *r)
{
    return mcd_gpu_order(&r->desc) == MCS_OK;
}
/* Piece of a key, which lies in *extent. That may be GPU memory, if mcd_object_may_gpu(). */
enum mcs_status mcd_object_piece(const struct mcd_object *r, const struct mcd_item *it,
                                 uint32_t piece, struct mcs_object_piece *out,
                                 const struct mcd_extent **extent);
/* Sums up the pieces' lengths in it->size, and finds out whether some are GPU memory. True: through, with *error; false: the
 * budget is used up. */
bool mcd_object_measure(const struct mcd_object *r, struct mcd_item *it, uint64_t *budget,
                        enum mcs_status *error);
/* Writes results of the window's keys, from w->first on. */
void mcd_object_show(struct mcd_engine *g, struct mcd_object *r, const struct mcd_window *w);
void mcd_object_show_byte(const struct mcd_object *r, uint32_t index, uint8_t status);

/* ---- object.c -------------------------------------------------------------------------- */

/* What is awaited has come. */
void mcd_object_awake(struct mcd_engine *g, struct mcd_object *r);
void mcd_object_end_item(struct mcd_item *it, enum mcs_status status);
static inline void mcd_object_pay(uint64_t *budget, uint64_t cost)
{
    *budget -= cost < *budget ? cost : *budget;
}
/* What the policy is told of a key of this request. */
struct mco_hint mcd_object_hint(const struct mcd_object *r, const struct mco_key *key,
                                uint32_t index, uint64_t previous);

/* Continues a checksum; what it takes is counted. */
uint32_t mcd_object_sum(struct mcd_engine *g, uint32_t crc, const void *data, uint64_t size);

/* ---- object_window.c ------------------------------------------------------------------- */

void mcd_windows_free(struct mcd_objects *o);
/* A window for it. WAIT: its queue has as many as it may: when one is given back. */
enum mcd_run mcd_window_provide(struct mcd_engine *g, struct mcd_object *r);
/* The request has none any more; whoever waits for one goes on. */
void mcd_window_leave(struct mcd_engine *g, struct mcd_object *r);
/* Who has waited longest goes on, when there may be a window more. */
void mcd_window_offer(struct mcd_engine *g, struct mcd_queue *q);
/* Out of the line for a window. */
void mcd_window_wait_no_more(struct mcd_object *r);
uint64_t mcd_object_deadline_ns(const struct mcd_engine *g, const struct mcd_object *r);
/* The window's question is out, and all that is left for it are results: it stands aside, the request gets another one.
 * False: it has to wait. */
bool mcd_object_aside(struct mcd_engine *g, struct mcd_object *r);
/* The END of what is given up: it outlives the request, and so has a time of its own. True: it is out. */
bool mcd_object_tell(struct mcd_engine *g, struct mcd_window *w);
/* Asks. True: it was answered at once. */
bool mcd_object_ask(struct mcd_engine *g, struct mcd_object *r, struct mcd_window *w);
/* The catalog is told that a creation will never be there, of many in one question. */
struct mcd_held;
void mcd_window_add_undone(struct mcd_engine *g, const struct mcd_held *held);
void mcd_window_send_undone(struct mcd_engine *g);

/* ---- the ops: on by up to *budget ------------------------------------------------------- */

void mcd_far_put(struct mcd_objects *o, struct mcd_far *f);
void mcd_far_free(struct mcd_objects *o);
enum mcd_run mcd_object_exist(struct mcd_engine *g, struct mcd_object *r, uint64_t *budget);
enum mcd_run mcd_object_remove(struct mcd_engine *g, struct mcd_object *r, uint64_t *budget);
enum mcd_run mcd_object_put(struct mcd_engine *g, struct mcd_object *r, uint64_t *budget);
enum mcd_run mcd_object_seal(struct mcd_engine *g, struct mcd_object *r, uint64_t *budget);
enum mcd_run mcd_object_get(struct mcd_engine *g, struct mcd_object *r, uint64_t *budget);
/* The END of a window that stands aside was answered. */
void mcd_object_put_told(struct mcd_engine *g, struct mcd_object *r, struct mcd_window *w);
/* Spaces and creations that are not through are undone; the catalog is told of what was begun. */
void mcd_object_put_down(struct mcd_engine *g, struct mcd_object *r, struct mcd_window *w);
/* FAR items of a window: questions, legs. DONE: none is left under way. */
enum mcd_run mcd_object_fetch(struct mcd_engine *g, struct mcd_object *r, uint64_t *budget);
/* Between memory here and objects here, in slices. OK: through, but for legs of GPU memory; BUSY: the budget is used up, or the
 * window is legless. sum: of host memory alone. */
enum mcs_status mcd_object_copy(struct mcd_engine *g, struct mcd_object *r, struct mcd_item *it,
                                bool put, bool sum, uint64_t *budget);
/* Sums the object from it->done on. OK: through; BUSY: the budget is used up. */
enum mcs_status mcd_object_sum_rest(struct mcd_engine *g, struct mcd_item *it, uint64_t *budget);

/* ---- object_gpu.c ----------------------------------------------------------------------- */

/*
 * The caller's GPU memory: copiers move its pieces straight from and into objects that are here, by legs of this host
 * (leg.h); several pieces, of several keys, are one leg.
 *
 *   OPEN --all pieces are copied or in a leg--> MOVING --the last leg has ended--> checksum, seal, or unpinned
 */
struct mcd_object_part {
    const struct mcd_extent *extent; /* of the caller's end */
    uint32_t handle;                 /* of it */
    uint64_t local;                  /* offset there */
    uint64_t at;                     /* in the object */
    uint64_t length;
    uint64_t rest; /* of the piece: length, or more than the object has */
};
/* One more piece of the item into the leg that is put together. BUSY: none is to be had now, and the window is legless. */
enum mcs_status mcd_object_gpu_add(struct mcd_engine *g, struct mcd_object *r, struct mcd_item *it,
                                   bool put, const struct mcd_object_part *p);
/* The leg that is put together goes; before a run ends. What the run comes to where it says MORE: a leg may be awaited. */
enum mcd_run mcd_object_gpu_go(struct mcd_engine *g, struct mcd_object *r, enum mcd_run run);

#endif
