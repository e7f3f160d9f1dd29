/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A transport that plays links and the peer behind them, in simulated time: latency, rate, loss,
 * silence, refusals, damage.  It keeps the promises of transport.h and checks those of its user: no
 * WRITE is posted while one that was lost may still land in the same bytes, nothing is posted
 * after it was given up, and so on.  One world a process.
 */
#ifndef TESTS_FAKE_NET_H
#define TESTS_FAKE_NET_H

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "shm/abi.h"
#include "transports/transport.h"

#define FAKE_CONNS 16u
#define FAKE_NOTES 64u
#define FAKE_BASE UINT64_C(0x700000000000) /* the peer's segment */
#define FAKE_SIZE (4u << 20)

/* A slice with the transport, or what is left of one at the peer. */
struct fake_item {
    struct fake_item *next;
    struct mct_slice *slice; /* NULL: it came back, and still lands unless it is killed */
    uint64_t conn;
    uint64_t begins, ends, answer; /* ns: of sending, of the answer's arrival */
    bool canceled;
    unsigned asked; /* turns ago */
    /* of the leftover */
    uint64_t address, length;
    uint8_t *bytes;
};

struct mct_link {
    void *owner;
    struct mct_link *next;
    uint64_t conns[FAKE_CONNS];
    unsigned nconns, turn;
    struct fake_item *items, **items_end;
    uint64_t busy_until, moved, progress;
    uint64_t posted; /* slices, ever */
    /* the script */
    uint64_t latency; /* ns */
    double rate;      /* bytes a ns; 0: no limit */
    unsigned max_out, out;
    bool silent;     /* nothing arrives any more */
    unsigned damage; /* so many slices come back as CHECKSUM */
    unsigned refuse; /* so many with this status */
    uint16_t refuse_with;
    uint64_t kill_asked; /* conn; 0 none */
    uint64_t kill_at;
};

struct fake_note {
    uint64_t source, bytes, notice;
    char text[64];
    uint32_t name_length, length;
};

static struct {
    uint64_t now;  /* ns, simulated */
    uint64_t step; /* that a turn of the transport takes */
    struct mct_host host;
    struct mct_link *links;
    struct fake_item *leftovers; /* of lost connections */
    uint8_t *memory;             /* the peer's, FAKE_SIZE */
    struct fake_note notes[FAKE_NOTES];
    unsigned nnotes, inbox_room; /* notifications it takes */
    uint64_t random;
    unsigned slices; /* with the transport */
    unsigned killed, leftovers_landed;
    unsigned cancel_turns; /* that it takes to give a slice back */
    bool stubborn;         /* gives nothing back that is canceled */
    bool haunt; /* what is left of lost connections lands at any time, until it is killed */
    uint64_t last_length;                            /* of the slice that was posted last */
    const struct mct_rdma_memory *last_registration; /* likewise */
    const struct mct_rdma_keys *last_keys;
} fake;

static inline uint64_t fake_random(void)
{
    fake.random = fake.random * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return fake.random >> 33;
}

static inline uint64_t fake_clock(void)
{
    return fake.now;
}

static int fake_init(const struct mct_env *env, struct mct **out)
{
    fake.host = env->host;
    *out = (struct mct *)&fake;
    return 0;
}

static void fake_hand_back(struct mct_link *l, struct fake_item *i, uint16_t status, int error,
                           bool settled)
{
    struct mct_slice *s = i->slice;

    i->slice = NULL;
    s->status = status;
    s->error = error;
    s->settled = settled;
    s->moved = status == MCS_OK ? s->length : 0;
    l->out--;
    fake.slices--;
    fake.host.done(fake.host.context, s);
}

static void fake_free(struct fake_item *i)
{
    free(i->bytes);
    free(i);
}

/* What is left of a WRITE whose slice came back: it lands later, or never. */
static void fake_leave(struct fake_item *i, const struct mct_slice *s)
{
    i->address = s->remote_address;
    i->length = s->op == MCT_WRITE ? s->length : 0;
    i->bytes = malloc(s->length + 1);
    memcpy(i->bytes, s->local, s->length);
}

static void fake_land(struct fake_item *i)
{
    if (i->length == 0)
        return;
    memcpy(fake.memory + (i->address - FAKE_BASE), i->bytes, i->length);
    fake.leftovers_landed++;
}

/* The peer's agent has ended this connection: what was left of it is gone. */
static inline void fake_end(uint64_t conn)
{
    struct fake_item **z = &fake.leftovers;

    while (*z != NULL) {
        struct fake_item *i = *z;

        if (i->conn != conn) {
            z = &i->next;
            continue;
        }
        *z = i->next;
        if (fake_random() % 2 == 0)
            fake_land(i); /* just in time */
        fake_free(i);
    }
}

static inline void fake_lose(struct mct_link *l, uint64_t conn, int error)
{
    struct fake_item **at = &l->items;
    unsigned k = 0;

    while (k < l->nconns && l->conns[k] != conn)
        k++;
    cr_assert_lt(k, l->nconns, "no such connection");
    l->conns[k] = l->conns[--l->nconns];
    while (*at != NULL) {
        struct fake_item *i = *at;
        struct mct_slice *s = i->slice;
        bool begun = i->begins <= fake.now;

        if (i->conn != conn) {
            at = &i->next;
            continue;
        }
        *at = i->next;
        if (s == NULL) {
            i->next = fake.leftovers; /* it was canceled */
            fake.leftovers = i;
            continue;
        }
        if (begun && s->op != MCT_READ) {
            fake_leave(i, s);
            i->next = fake.leftovers;
            fake.leftovers = i;
            fake_hand_back(l, i, MCS_RAIL, error, false);
        } else {
            if (!begun)
                s->conn = 0;
            fake_hand_back(l, i, MCS_RAIL, error, true);
            fake_free(i);
        }
    }
    l->items_end = at;
    fake.host.lost(fake.host.context, l, conn, error);
}

static void fake_abort(struct mct_link *l, int error)
{
    while (l->nconns != 0)
        fake_lose(l, l->conns[0], error);
}

static void fake_fini(struct mct *t)
{
    (void)t;
    while (fake.leftovers != NULL) {
        struct fake_item *i = fake.leftovers;

        fake.leftovers = i->next;
        fake_free(i);
    }
}

static int fake_connect(struct mct *t, void *owner, struct mct_link **out)
{
    struct mct_link *l = calloc(1, sizeof(*l));

    (void)t;
    l->owner = owner;
    l->items_end = &l->items;
    l->max_out = 1024;
    l->next = fake.links;
    fake.links = l;
    *out = l;
    return 0;
}

static void fake_disconnect(struct mct_link *l)
{
    struct mct_link **at = &fake.links;

    fake_abort(l, -ECONNABORTED);
    while (*at != l)
        at = &(*at)->next;
    *at = l->next;
    free(l);
}

static int fake_adopt(struct mct_link *l, const struct mct_conn *conn)
{
    cr_assert_lt(l->nconns, FAKE_CONNS);
    l->conns[l->nconns++] = conn->id;
    return 0;
}

static bool fake_overlap(const struct fake_item *i, const struct mct_slice *s)
{
    return i->address < s->remote_address + s->length && s->remote_address < i->address + i->length;
}

static unsigned fake_post(struct mct_link *l, struct mct_slice *const *slices, unsigned n)
{
    unsigned k = 0;

    for (; k < n && l->nconns != 0 && l->out < l->max_out; k++) {
        struct mct_slice *s = slices[k];
        struct fake_item *i = calloc(1, sizeof(*i));
        uint64_t ns = l->rate > 0 ? (uint64_t)((double)s->length / l->rate) : 0;

        cr_assert_neq(s->length, 0u);
        if (s->op == MCT_WRITE)
            for (const struct fake_item *z = fake.leftovers; z != NULL; z = z->next)
                cr_assert(z->canceled || !fake_overlap(z, s),
                          "a WRITE while a lost one may still land");
        fake.last_length = s->length;
        fake.last_registration = s->registration;
        fake.last_keys = s->remote_keys;
        i->slice = s;
        i->conn = s->conn = l->conns[l->turn++ % l->nconns];
        i->begins = l->busy_until > fake.now ? l->busy_until : fake.now;
        i->ends = l->busy_until = i->begins + ns;
        i->answer = i->ends + l->latency;
        *l->items_end = i;
        l->items_end = &i->next;
        l->out++;
        l->posted++;
        fake.slices++;
    }
    return k;
}

static void fake_cancel(struct mct_link *l, struct mct_slice *s)
{
    for (struct fake_item *i = l->items; i != NULL; i = i->next)
        if (i->slice == s) {
            cr_assert(!i->canceled, "canceled twice");
            i->canceled = true;
            return;
        }
    cr_assert_fail("a slice is canceled that is not there");
}

static int fake_kill(struct mct_link *l, uint64_t conn)
{
    if (l->nconns == 0)
        return -EAGAIN;
    if (l->kill_asked != 0 && l->kill_asked != conn)
        return -EAGAIN; /* one at a time will do here */
    l->kill_asked = conn;
    l->kill_at = fake.now + l->latency;
    return 0;
}

static uint64_t fake_progress(struct mct_link *l)
{
    return l->progress;
}

static int fake_serve(struct mct *t, const struct mct_conn *conn, void *visitor)
{
    (void)t;
    (void)conn;
    (void)visitor;
    return -EOPNOTSUPP;
}

static int fake_dismiss(struct mct *t, void *visitor)
{
    (void)t;
    (void)visitor;
    return 0;
}

static int fake_quiesce(struct mct *t, const void *base, uint64_t length)
{
    int res = 0;

    (void)t;
    for (struct mct_link *l = fake.links; l != NULL; l = l->next)
        for (struct fake_item *i = l->items; i != NULL; i = i->next)
            if (i->slice != NULL && (uintptr_t)i->slice->local < (uintptr_t)base + length &&
                (uintptr_t)base < (uintptr_t)i->slice->local + i->slice->length) {
                i->canceled = true;
                res = -EINPROGRESS;
            }
    return res;
}

/* The peer's answer to a whole request. */
static uint16_t fake_apply(struct mct_link *l, const struct mct_slice *s)
{
    if (l->damage != 0) {
        l->damage--;
        return MCS_CHECKSUM;
    }
    if (l->refuse != 0) {
        l->refuse--;
        return l->refuse_with;
    }
    if (s->op == MCT_NOTIFY) {
        struct fake_note *n = &fake.notes[fake.nnotes % FAKE_NOTES];

        if (fake.inbox_room == 0)
            return MCS_INBOX_FULL;
        fake.inbox_room--;
        *n = (struct fake_note){.source = s->source,
                                .bytes = s->bytes,
                                .notice = s->remote_address,
                                .name_length = s->name_length,
                                .length = (uint32_t)s->length};
        memcpy(n->text, s->local, s->length < 64 ? s->length : 64);
        fake.nnotes++;
        return MCS_OK;
    }
    if (s->remote_address < FAKE_BASE || s->remote_address - FAKE_BASE > FAKE_SIZE ||
        s->length > FAKE_SIZE - (s->remote_address - FAKE_BASE))
        return MCS_BAD_RANGE;
    if (s->op == MCT_WRITE)
        memcpy(fake.memory + (s->remote_address - FAKE_BASE), s->local, s->length);
    else
        memcpy(s->local, fake.memory + (s->remote_address - FAKE_BASE), s->length);
    return MCS_OK;
}

/* One item of a link whose time may have come. True: it goes. */
static bool fake_item_turn(struct mct_link *l, struct fake_item *i)
{
    struct mct_slice *s = i->slice;

    if (s != NULL && i->canceled && !fake.stubborn && i->asked++ >= fake.cancel_turns) {
        bool open = i->begins <= fake.now && s->op != MCT_READ;

        if (open)
            fake_leave(i, s);
        fake_hand_back(l, i, MCS_CANCELED, 0, !open);
        if (!open)
            return true;
    }
    if (l->silent || i->answer > fake.now)
        return false;
    if (i->slice != NULL) {
        l->moved += s->length;
        l->progress += s->length;
        fake_hand_back(l, i, fake_apply(l, s), 0, true);
    } else {
        fake_land(i);
    }
    return true;
}

static bool fake_turn(struct mct *t)
{
    bool any = false;

    (void)t;
    fake.now += fake.step;
    if (fake.haunt && fake.leftovers != NULL && fake_random() % 16 == 0) {
        struct fake_item *i = fake.leftovers;

        while (i->next != NULL && fake_random() % 2 == 0)
            i = i->next;
        fake_land(i);
    }
    for (struct mct_link *l = fake.links; l != NULL; l = l->next) {
        struct fake_item **at = &l->items;

        /* on its way: acknowledged bit by bit */
        if (!l->silent && l->busy_until > fake.now)
            l->progress++;
        while (*at != NULL) {
            struct fake_item *i = *at;

            if (fake_item_turn(l, i)) {
                *at = i->next;
                fake_free(i);
                any = true;
            } else {
                at = &i->next;
            }
        }
        l->items_end = at;
        if (l->kill_asked != 0 && !l->silent && fake.now >= l->kill_at && l->nconns != 0) {
            uint64_t conn = l->kill_asked;

            l->kill_asked = 0;
            fake_end(conn);
            fake.killed++;
            fake.host.killed(fake.host.context, l, conn);
            any = true;
        }
    }
    return any;
}

/* Of a second transport in the same world: the first one's turn is for both. */
static inline bool fake_no_turn(struct mct *t)
{
    (void)t;
    return false;
}

static inline void fake_no_fini(struct mct *t)
{
    (void)t;
}

static bool fake_pending(const struct mct *t)
{
    (void)t;
    return fake.slices != 0;
}

static const struct mct_stats *fake_stats(const struct mct *t)
{
    static const struct mct_stats none;

    (void)t;
    return &none;
}

static const struct mct_ops fake_ops = {
    .name = "fake",
    .path = MCS_PATH_TCP,
    .capabilities = MCT_CAP_CROSS_HOST | MCT_CAP_HOST_MEMORY | MCT_CAP_KILL,
    .init = fake_init,
    .fini = fake_fini,
    .connect = fake_connect,
    .disconnect = fake_disconnect,
    .adopt = fake_adopt,
    .abort = fake_abort,
    .post = fake_post,
    .cancel = fake_cancel,
    .kill = fake_kill,
    .progress = fake_progress,
    .serve = fake_serve,
    .dismiss = fake_dismiss,
    .quiesce = fake_quiesce,
    .turn = fake_turn,
    .pending = fake_pending,
    .stats = fake_stats,
};

/* A better transport, whose ends are registered with its devices and whose connections the agents end. */
static const struct mct_ops fake_rdma_ops = {
    .name = "fake rdma",
    .path = MCS_PATH_RDMA,
    .capabilities = MCT_CAP_CROSS_HOST | MCT_CAP_HOST_MEMORY | MCT_CAP_GPU_MEMORY |
                    MCT_CAP_KILL_BY_AGENT | MCT_CAP_REGISTERED,
    .init = fake_init,
    .fini = fake_no_fini,
    .connect = fake_connect,
    .disconnect = fake_disconnect,
    .adopt = fake_adopt,
    .abort = fake_abort,
    .post = fake_post,
    .cancel = fake_cancel,
    .progress = fake_progress,
    .serve = fake_serve,
    .dismiss = fake_dismiss,
    .quiesce = fake_quiesce,
    .turn = fake_no_turn,
    .pending = fake_pending,
    .stats = fake_stats,
};

#endif
