/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Engines in threads of their own, with peers whose connections fail and are made anew all the time, on devices that move
 * bytes when they like: every slice comes back once, what came through is right, nothing else stands still, and once a
 * peer has ended a connection nothing of it lands any more.
 */
#include "rdma_fixture.h"

#include <pthread.h>

#include "tests/fake-verbs/fake.h"

#define ENGINES 2u /* of each side */
#define LINKS 2u   /* of an initiator's engine: one to each of the peer's */
#define PAIRS 2u   /* of a link, wanted */
#define NICS 2u
#define SLOTS 12u /* slices of an engine at a time */
#define SLOT_BYTES UINT64_C(300000)
#define IDS 32768u
#define TRANSFERS 10000u
#define LOOKS 500u /* turns of the control thread in which memory must not change */
#define MAIL 64u

enum slot_state { FREE, OUT, BACK, OPEN, WATCHED };

struct slot {
    struct mct_slice s; /* first: it is found by its slice */
    enum slot_state state;
    unsigned backs, link, looks;
    bool canceled;
    uint64_t offset, at; /* of the slot, and in it */
    uint64_t seed;
    uint8_t *copy;
};

enum mail_kind { ADOPT, SERVE, END };

struct mail {
    enum mail_kind kind;
    struct mct_rdma_pair *pair;
    uint64_t id;
    unsigned which; /* link, or visitor */
};

struct engine {
    struct fix_side *side, *other;
    struct mct *t;
    unsigned index;
    bool initiator;
    pthread_t thread;
    uint32_t random;
    struct mct_link *links[LINKS];
    char visitors[ENGINES];
    struct slot slots[SLOTS];
    struct mail ends[MAIL]; /* that go on: the thread's */
    unsigned nends;
    unsigned good, bad, watched; /* the thread's until it ended */
    /* lock */
    struct mail box[MAIL];
    unsigned nbox;
};

/* What is known of a connection, by its number. */
struct known {
    unsigned char from, to, link; /* engines, and the link of the first one */
    bool served, lost, wanted_dead, asked, dead;
};

static struct fix f;
static struct engine ends[2][ENGINES]; /* initiators, targets */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct known known[IDS]; /* lock; so what follows */
static unsigned next_id, pairs[ENGINES][LINKS], transfers, turns;
static bool calm, stop;
static unsigned finished;               /* engines */
static struct fake_device *down, *hung; /* the control thread's: its port is; its commands do */
static unsigned hung_turns, landed;

static uint32_t dice(uint32_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 17;
    *state ^= *state << 5;
    return *state;
}

/* ---- what engines are told ------------------------------------------------------- */

static void churn_done(void *context, struct mct_slice *s)
{
    struct slot *slot = (struct slot *)s;

    (void)context;
    slot->backs++;
    slot->state = BACK;
}

static void churn_lost(void *context, struct mct_link *link, uint64_t conn, int error)
{
    struct engine *e = context;

    (void)link;
    (void)error;
    pthread_mutex_lock(&lock);
    known[conn].lost = true;
    pairs[e->index][known[conn].link]--;
    pthread_mutex_unlock(&lock);
}

static void churn_left(void *context, void *visitor, uint64_t conn, int error, const char *why)
{
    (void)context;
    (void)visitor;
    (void)error;
    (void)why;
    pthread_mutex_lock(&lock);
    known[conn].dead = true;
    pthread_mutex_unlock(&lock);
}

static uint16_t churn_notify(void *context, void *visitor, const struct mct_request *r,
                             uint64_t source, uint64_t bytes, const void *name,
                             uint32_t name_length, const void *message, uint32_t message_length)
{
    (void)context;
    (void)visitor;
    (void)r;
    (void)source;
    (void)bytes;
    (void)message;
    (void)message_length;
    return name_length == 5 && memcmp(name, "churn", 5) == 0 ? MCS_OK : MCS_INVALID_ARGUMENT;
}

/* ---- mail ------------------------------------------------------------------------ */

static void mail_to(struct engine *e, const struct mail *m)
{
    pthread_mutex_lock(&lock);
    cr_assert_lt(e->nbox, MAIL);
    e->box[e->nbox++] = *m;
    pthread_mutex_unlock(&lock);
}

static void take_mail(struct engine *e)
{
    struct mail box[MAIL];
    unsigned n;

    pthread_mutex_lock(&lock);
    n = e->nbox;
    e->nbox = 0;
    memcpy(box, e->box, n * sizeof(box[0]));
    pthread_mutex_unlock(&lock);
    for (unsigned i = 0; i < n; i++) {
        struct mct_conn conn = {.fd = -1, .pair = box[i].pair, .id = box[i].id};

        switch (box[i].kind) {
        case ADOPT:
            if (mct_rdma_ops.adopt(e->links[box[i].which], &conn) != 0)
                churn_lost(e, NULL, conn.id, -EIO);
            break;
        case SERVE:
            if (mct_rdma_ops.serve(e->t, &conn, &e->visitors[box[i].which]) != 0)
                churn_left(e, NULL, conn.id, -EIO, "");
            pthread_mutex_lock(&lock);
            known[conn.id].served = true;
            pthread_mutex_unlock(&lock);
            break;
        default:
            if (e->nends < MAIL)
                e->ends[e->nends++] = box[i];
            break;
        }
    }
    for (unsigned i = 0; i < e->nends;) {
        uint64_t id = e->ends[i].id;

        if (mct_rdma_ops.end(e->t, &e->visitors[e->ends[i].which], id) != 0) {
            i++;
            continue;
        }
        pthread_mutex_lock(&lock);
        known[id].dead = true;
        pthread_mutex_unlock(&lock);
        e->ends[i] = e->ends[--e->nends];
    }
}

/* ---- an initiator ---------------------------------------------------------------- */

static uint8_t *local(const struct engine *e, const struct slot *s)
{
    return e->side->memory + s->offset + s->at;
}

static uint8_t *remote(const struct engine *e, const struct slot *s)
{
    return e->other->memory + s->offset + s->at;
}

static void post(struct engine *e, struct slot *s)
{
    static char name[] = "churn and more";
    uint32_t kind = dice(&e->random) % 16, sizes = dice(&e->random) % 4;
    uint64_t length = 1 + dice(&e->random) % (sizes == 0 ? 100 : sizes < 3 ? 5000 : 250000);
    struct mct_slice *list[1] = {&s->s};

    s->at = dice(&e->random) % (SLOT_BYTES - length + 1);
    s->link = dice(&e->random) % LINKS;
    s->canceled = false;
    s->backs = 0;
    if (kind == 0) {
        s->s = fix_notice(name, 5, sizeof(name));
    } else {
        s->s = fix_slice(&f, kind % 2 == 0 ? MCT_WRITE : MCT_READ, s->offset + s->at,
                         s->offset + s->at, length);
        s->seed = dice(&e->random);
        fix_fill(kind % 2 == 0 ? local(e, s) : remote(e, s), length, s->seed);
    }
    s->state = OUT;
    fake_engine_thread(true);
    if (mct_rdma_ops.post(e->links[s->link], list, 1) == 0)
        s->state = FREE;
    else if (s->state == OUT && dice(&e->random) % 50 == 0) {
        s->canceled = true;
        mct_rdma_ops.cancel(e->links[s->link], &s->s);
    }
    fake_engine_thread(false);
}

static void came_back(struct engine *e, struct slot *s)
{
    cr_assert_eq(s->backs, 1);
    s->state = FREE;
    if (s->s.status == MCS_OK) {
        e->good++;
        if (s->s.op != MCT_NOTIFY)
            cr_assert_arr_eq(local(e, s), remote(e, s), s->s.length);
        pthread_mutex_lock(&lock);
        transfers++;
        pthread_mutex_unlock(&lock);
        return;
    }
    e->bad++;
    cr_assert(s->s.status == MCS_RAIL || s->s.status == MCS_ACCESS ||
                  s->s.status == MCS_NOT_REGISTERED || (s->s.status == MCS_CANCELED && s->canceled),
              "%u", s->s.status);
    if (s->s.settled || s->s.op != MCT_WRITE)
        return;
    cr_assert_neq(s->s.conn, 0);
    s->state = OPEN;
    pthread_mutex_lock(&lock);
    known[s->s.conn].wanted_dead = true;
    pthread_mutex_unlock(&lock);
}

static void look_at(struct engine *e, struct slot *s)
{
    unsigned looks;
    bool dead;

    switch (s->state) {
    case BACK:
        came_back(e, s);
        break;
    case OPEN:
        pthread_mutex_lock(&lock);
        dead = known[s->s.conn].dead;
        pthread_mutex_unlock(&lock);
        if (!dead)
            break;
        s->copy = malloc(s->s.length);
        cr_assert_not_null(s->copy);
        memcpy(s->copy, remote(e, s), s->s.length);
        memset(local(e, s), 0xaa, s->s.length); /* what must not come any more */
        pthread_mutex_lock(&lock);
        s->looks = turns;
        pthread_mutex_unlock(&lock);
        s->state = WATCHED;
        break;
    case WATCHED:
        pthread_mutex_lock(&lock);
        looks = turns - s->looks;
        pthread_mutex_unlock(&lock);
        if (looks < LOOKS)
            break;
        cr_assert_arr_eq(s->copy, remote(e, s), s->s.length,
                         "bytes of a dead connection have landed");
        free(s->copy);
        s->copy = NULL;
        e->watched++;
        s->state = FREE;
        break;
    default:
        break;
    }
}

static void *initiator(void *arg)
{
    struct engine *e = arg;
    unsigned busy;
    bool enough;

    do {
        take_mail(e);
        pthread_mutex_lock(&lock);
        enough = calm;
        pthread_mutex_unlock(&lock);
        busy = 0;
        for (unsigned i = 0; i < SLOTS; i++) {
            if (e->slots[i].state == FREE && !enough && dice(&e->random) % 4 == 0)
                post(e, &e->slots[i]);
            look_at(e, &e->slots[i]);
            busy += e->slots[i].state != FREE;
        }
        fake_engine_thread(true);
        if (!mct_rdma_ops.turn(e->t) && mct_rdma_ops.arm(e->t))
            sched_yield();
        fake_engine_thread(false);
    } while (!enough || busy != 0);
    pthread_mutex_lock(&lock);
    finished++;
    while (!stop) {
        pthread_mutex_unlock(&lock);
        take_mail(e);
        (void)mct_rdma_ops.turn(e->t);
        sched_yield();
        pthread_mutex_lock(&lock);
    }
    pthread_mutex_unlock(&lock);
    take_mail(e);
    for (unsigned l = 0; l < LINKS; l++)
        mct_rdma_ops.disconnect(e->links[l]);
    mct_rdma_ops.fini(e->t);
    return NULL;
}

static void *target(void *arg)
{
    struct engine *e = arg;
    bool over;

    do {
        take_mail(e);
        fake_engine_thread(true);
        if (!mct_rdma_ops.turn(e->t))
            sched_yield();
        fake_engine_thread(false);
        pthread_mutex_lock(&lock);
        over = stop;
        pthread_mutex_unlock(&lock);
    } while (!over);
    take_mail(e);
    for (unsigned v = 0; v < ENGINES; v++)
        while (mct_rdma_ops.dismiss(e->t, &e->visitors[v]) != 0)
            (void)mct_rdma_ops.turn(e->t);
    mct_rdma_ops.fini(e->t);
    return NULL;
}

/* ---- the control thread ---------------------------------------------------------- */

static void run_both(void)
{
    static uint32_t wire = 99;

    if (hung != NULL && --hung_turns == 0) {
        fake_unblock(hung);
        hung = NULL;
    }
    if (dice(&wire) % 16 == 0) /* some time later */
        landed += fake_land(3);
    pthread_mutex_lock(&lock);
    turns++;
    pthread_mutex_unlock(&lock);
    mct_rdma_run(f.a.r);
    mct_rdma_run(f.b.r);
    sched_yield();
}

#define await(condition)                                                                           \
    do {                                                                                           \
        uint64_t end_ = fix_now() + 6 * FIX_WAIT_NS;                                               \
                                                                                                   \
        while (!(condition)) {                                                                     \
            cr_assert_lt(fix_now(), end_, "line %d: %s", __LINE__, #condition);                    \
            run_both();                                                                            \
        }                                                                                          \
    } while (0)

static bool is_served(unsigned id)
{
    bool is;

    pthread_mutex_lock(&lock);
    is = known[id].served;
    pthread_mutex_unlock(&lock);
    return is;
}

/* A connection more, unless a device or queue pair fails meanwhile. */
static void connect_pair(unsigned from, unsigned link, uint32_t *random)
{
    unsigned to = link, nic = dice(random) % NICS, id;
    struct mct_rdma_pair *a, *b;
    struct fix_answer x = {0}, y = {0};
    struct mail m = {.kind = SERVE, .which = from};

    pthread_mutex_lock(&lock);
    id = ++next_id;
    cr_assert_lt(id, IDS);
    known[id] = (struct known){
        .from = (unsigned char)from, .to = (unsigned char)to, .link = (unsigned char)link};
    pthread_mutex_unlock(&lock);
    cr_assert_eq(mct_rdma_pair_create(f.a.r, nic, ends[0][from].t, id, fix_answered, &x, &a), 0);
    cr_assert_eq(mct_rdma_pair_create(f.b.r, nic, ends[1][to].t, id, fix_answered, &y, &b), 0);
    await(x.n == 1 && y.n == 1);
    if (x.res == 0 && y.res == 0) {
        mct_rdma_pair_connect(b, mct_rdma_pair_end(a), fix_answered, &y);
        mct_rdma_pair_connect(a, mct_rdma_pair_end(b), fix_answered, &x);
        await(x.n == 2 && y.n == 2);
    }
    if (x.res != 0 || y.res != 0) {
        cr_assert(x.res == 0 || x.text[0] != 0);
        cr_assert(y.res == 0 || y.text[0] != 0);
        mct_rdma_pair_destroy(a);
        mct_rdma_pair_destroy(b);
        return;
    }
    m.pair = b;
    m.id = id;
    mail_to(&ends[1][to], &m);
    await(is_served(id));
    pthread_mutex_lock(&lock);
    pairs[from][link]++;
    pthread_mutex_unlock(&lock);
    m = (struct mail){.kind = ADOPT, .pair = a, .id = id, .which = link};
    mail_to(&ends[0][from], &m);
}

/* Passes on which connections are to be dead. */
static void pass_on(void)
{
    for (unsigned id = 1;; id++) {
        struct mail m = {.kind = END, .id = id};
        struct engine *to;
        bool ask;

        pthread_mutex_lock(&lock);
        if (id > next_id) {
            pthread_mutex_unlock(&lock);
            break;
        }
        to = &ends[1][known[id].to];
        ask = known[id].wanted_dead && !known[id].asked && to->nbox < MAIL / 2;
        known[id].asked = known[id].asked || ask;
        m.which = known[id].from;
        pthread_mutex_unlock(&lock);
        if (ask)
            mail_to(to, &m);
    }
}

static void something_happens(uint32_t *random)
{
    static const enum ibv_wc_status statuses[] = {IBV_WC_RETRY_EXC_ERR,  IBV_WC_RNR_RETRY_EXC_ERR,
                                                  IBV_WC_REM_ACCESS_ERR, IBV_WC_REM_OP_ERR,
                                                  IBV_WC_GENERAL_ERR,    IBV_WC_LOC_PROT_ERR};
    unsigned nic = dice(random) % NICS;
    struct fix_side *side = dice(random) % 2 == 0 ? &f.a : &f.b;
    struct fake_device *d = side->devices[nic];
    uint32_t qpn = fake_qp(d, dice(random) % (2 * PAIRS * LINKS), NULL);

    switch (dice(random) % (down == NULL ? 14 : 12)) {
    case 0:
    case 1:
    case 2:
        fake_spoil(d, NULL, 1 + dice(random) % 20, 1, statuses[dice(random) % 6],
                   dice(random) % 2 == 0 ? UINT64_MAX : dice(random) % 5000);
        break;
    case 3:
        if (qpn != 0)
            (void)fake_qp_event(d, IBV_EVENT_QP_FATAL, qpn);
        break;
    case 4:
        if (qpn != 0)
            (void)fake_qp_event(d, IBV_EVENT_COMM_EST, qpn);
        break;
    case 5:
        fake_hold_flushes(d, true);
        break;
    case 6:
    case 7:
        fake_hold_flushes(d, false);
        break;
    case 8:
        fake_fail(FAKE_POST_SEND, d, 1 + dice(random) % 20, 1, ENOMEM);
        break;
    case 9:
        fake_pace(d, dice(random) % 2 == 0 ? FAKE_THREAD : FAKE_COMPLETIONS);
        break;
    case 10:
        fake_fail(FAKE_MODIFY_QP, d, 1 + dice(random) % 5, 1, EINVAL);
        break;
    case 11:
        if (hung != NULL)
            break;
        hung = d; /* for a while */
        hung_turns = 1 + dice(random) % 2000;
        fake_block(FAKE_ANY, d);
        break;
    case 12:
        fake_port_state(d, 1, IBV_PORT_DOWN, dice(random) % 2 == 0);
        down = d;
        break;
    default:
        pthread_mutex_lock(&lock); /* a peer ends a connection for reasons of its own */
        if (next_id > 0)
            known[1 + dice(random) % next_id].wanted_dead = true;
        pthread_mutex_unlock(&lock);
        break;
    }
}

static void start(struct engine *e, struct fix_side *side, struct fix_side *other, unsigned index,
                  bool is_initiator)
{
    struct mct_env env = {.log = fix_log,
                          .host = {.context = e,
                                   .done = churn_done,
                                   .lost = churn_lost,
                                   .left = churn_left,
                                   .notify = churn_notify},
                          .tick_hz = fix_tick_hz(),
                          .epoll_fd = -1,
                          .rdma = side->r};

    *e = (struct engine){.side = side,
                         .other = other,
                         .index = index,
                         .initiator = is_initiator,
                         .random = 77 + index};
    cr_assert_eq(mct_rdma_ops.init(&env, &e->t), 0);
    for (unsigned l = 0; is_initiator && l < LINKS; l++)
        cr_assert_eq(mct_rdma_ops.connect(e->t, e, &e->links[l]), 0);
    for (unsigned s = 0; s < SLOTS; s++)
        e->slots[s].offset = (index * SLOTS + s) * SLOT_BYTES;
    cr_assert_eq(pthread_create(&e->thread, NULL, is_initiator ? initiator : target, e), 0);
}

static unsigned moved(void)
{
    unsigned n;

    pthread_mutex_lock(&lock);
    n = transfers;
    pthread_mutex_unlock(&lock);
    return n;
}

static void keep_connected(uint32_t *random)
{
    for (unsigned e = 0; e < ENGINES; e++)
        for (unsigned l = 0; l < LINKS; l++) {
            unsigned there;

            pthread_mutex_lock(&lock);
            there = pairs[e][l];
            pthread_mutex_unlock(&lock);
            if (there < PAIRS)
                connect_pair(e, l, random);
        }
}

Test(rdma_storm, engines_peers_and_connections_that_come_and_go, .timeout = 200)
{
    const char *seed = getenv("SEED");
    uint32_t random = seed != NULL ? (uint32_t)atoi(seed) : 4711;
    unsigned good = 0, bad = 0, watched = 0, next = 0, looks = 0;
    uint64_t end = fix_now() + 8 * FIX_WAIT_NS;

    fix_devices(&f, NICS);
    f.o.chunk = UINT64_C(1) << 20; /* a slot may lie on a border */
    for (unsigned n = 0; n < NICS; n++)
        f.a.devices[n]->ports[0].attr.max_msg_sz = f.b.devices[n]->ports[0].attr.max_msg_sz = 65536;
    cr_assert_leq(ENGINES * SLOTS * SLOT_BYTES, f.size);
    fix_open(&f);
    for (unsigned n = 0; n < NICS; n++) {
        fake_pace(f.a.devices[n], FAKE_THREAD);
        fake_pace(f.b.devices[n], FAKE_THREAD);
        fake_linger(f.a.devices[n], true);
    }
    for (unsigned e = 0; e < ENGINES; e++) {
        start(&ends[1][e], &f.b, &f.a, e, false);
        start(&ends[0][e], &f.a, &f.b, e, true);
    }
    while (moved() < TRANSFERS) {
        cr_assert_lt(fix_now(), end, "it stands still at %u", moved());
        run_both();
        keep_connected(&random);
        if (moved() >= next) {
            something_happens(&random);
            next = moved() + dice(&random) % 40;
        }
        if (down != NULL && ++looks % 50 == 0) {
            fake_port_state(down, 1, IBV_PORT_ACTIVE, true);
            down = NULL;
        }
        for (unsigned n = 0; n < NICS; n++) { /* what is held at this pace */
            (void)fake_release(f.a.devices[n], dice(&random) % 10);
            (void)fake_release(f.b.devices[n], dice(&random) % 10);
        }
        pass_on();
    }
    /* what is open comes to its end */
    fake_mend();
    hung = NULL;
    if (down != NULL)
        fake_port_state(down, 1, IBV_PORT_ACTIVE, true);
    for (unsigned n = 0; n < NICS; n++) {
        fake_pace(f.a.devices[n], FAKE_AT_ONCE);
        fake_pace(f.b.devices[n], FAKE_AT_ONCE);
        fake_hold_flushes(f.a.devices[n], false);
        fake_hold_flushes(f.b.devices[n], false);
    }
    pthread_mutex_lock(&lock);
    calm = true;
    pthread_mutex_unlock(&lock);
    for (bool all = false; !all;) {
        cr_assert_lt(fix_now(), end, "a slice does not come back");
        run_both();
        pass_on();
        pthread_mutex_lock(&lock);
        all = finished == ENGINES;
        pthread_mutex_unlock(&lock);
    }
    pthread_mutex_lock(&lock);
    stop = true;
    pthread_mutex_unlock(&lock);
    for (unsigned e = 0; e < ENGINES; e++)
        for (unsigned side = 0; side < 2; side++) {
            cr_assert_eq(pthread_join(ends[side][e].thread, NULL), 0);
            good += ends[side][e].good;
            bad += ends[side][e].bad;
            watched += ends[side][e].watched;
        }
    cr_assert_geq(good, TRANSFERS);
    cr_assert_gt(bad, 0, "things did happen");
    cr_assert_gt(watched, 0, "connections were ended with WRITEs open");
    cr_assert_gt(landed, 0, "some bytes were late");
    cr_log_info("%u good, %u bad, %u watched, %u landed late, %u connections", good, bad, watched,
                landed, next_id);
    fix_fini(&f);
}

/* The case that all this is about, by itself: a WRITE came back unsettled, and its packets are still on the way. */
Test(rdma_storm, what_is_on_the_wire_dies_with_the_peers_end)
{
    static struct fix g;
    struct mct_slice s[2];

    fix_init(&g, 1);
    fake_pace(g.a.devices[0], FAKE_HELD);
    fake_linger(g.a.devices[0], true);
    memset(g.a.memory, 5, 8192);
    for (unsigned i = 0; i < 2; i++) {
        s[i] = fix_slice(&g, MCT_WRITE, i * 4096, i * 4096, 4096);
        cr_assert_eq(fix_post(&g, &s[i]), 1u);
    }
    cr_assert(fake_qp_event(g.a.devices[0], IBV_EVENT_QP_FATAL, fake_qp(g.a.devices[0], 0, NULL)));
    fix_until(&g, g.a.done == 2 && g.a.lost == 1);
    for (unsigned i = 0; i < 2; i++) {
        cr_assert_eq(s[i].status, MCS_RAIL);
        cr_assert(!s[i].settled && s[i].conn == g.ids[0]);
    }
    cr_assert_eq(fake_land(1), 1, "it lands, though its sender has long been told that it failed");
    cr_assert_eq(g.b.memory[0], 5);
    /* the peer's device does not let go at once: so it is not said to be over */
    fake_block(FAKE_ANY, g.b.devices[0]);
    for (unsigned i = 0; i < 1000; i++) {
        cr_assert_eq(mct_rdma_ops.end(g.b.t, &g.visitor, g.ids[0]), -EINPROGRESS);
        fix_turn(&g);
    }
    fake_unblock(g.b.devices[0]);
    fix_until(&g, mct_rdma_ops.end(g.b.t, &g.visitor, g.ids[0]) == 0);
    cr_assert_eq(fake_land(9), 0);
    cr_assert_eq(g.b.memory[4096], 0);
    fix_fini(&g);
}
