/* SPDX-License-Identifier: Apache-2.0 */
#include "pair.h"

#include <stdlib.h>

#include "log.h"
#include "shm/status.h"
#include "way.h"

#define MS UINT64_C(1000000)
#define AGAIN_NS (300 * MS) /* one that is not confirmed by then is asked for again */
#define ANSWER_MS 1000u

struct mcd_unpair {
    struct mcd_unpair *next;
    struct mcd_peer *peer;
    struct mcd_way *way;
    uint64_t route, conn, asked_at;
    struct mcd_call call;
    bool confirmed, telling;
    struct mcd_command command;
    struct mcd_route_confirmed told;
};

static void ask(struct mcd_unpair *u, uint64_t now);

void mcd_unpair(struct mcd_peer *p, struct mcd_way *way, uint64_t route, uint64_t conn)
{
    struct mcd_unpair *u = calloc(1, sizeof(*u));

    if (u == NULL) { /* its WRITEs are never confirmed: they end with their deadlines */
        mcd_log_limited(MCD_LOG_ERROR, "peer %s: no memory to end a queue pair there", p->address);
        return;
    }
    u->peer = p;
    u->way = way;
    u->route = route;
    u->conn = conn;
    u->next = p->unpairs;
    p->unpairs = u;
    p->nunpairs++;
    ask(u, mcd_now_ns());
}

unsigned mcd_unpairs(const struct mcd_peer *p)
{
    return p->nunpairs;
}

static void remove_it(struct mcd_unpair *u)
{
    struct mcd_unpair **link = &u->peer->unpairs;

    while (*link != u)
        link = &(*link)->next;
    *link = u->next;
    u->peer->nunpairs--;
    mcd_peer_forget(u->peer, &u->call);
    free(u);
}

/* Nothing of it lands any more: the route goes on with what waited for that. */
static void tell(struct mcd_unpair *u)
{
    u->confirmed = true;
    if (u->way == NULL || u->way->leaving)
        return;
    u->telling = true;
    u->told = (struct mcd_route_confirmed){.route = u->way->route, .conn = u->conn};
    mcd_engine_call(u->way->engine, &u->command, mcd_route_confirm, &u->told);
}

static void answered(struct mcd_call *call, uint32_t status, const uint8_t *payload, size_t size)
{
    struct mcd_unpair *u = call->context;

    (void)payload;
    (void)size;
    if (status == MCS_OK)
        tell(u);
}

static void ask(struct mcd_unpair *u, uint64_t now)
{
    Mcd__Unpair m = MCD__UNPAIR__INIT;

    if (u->peer->state != MCD_PEER_UP || u->call.id != 0)
        return;
    m.route = u->route;
    m.conn = u->conn;
    u->asked_at = now;
    u->call.done = answered;
    u->call.context = u;
    (void)mcd_peer_call(u->peer, &u->call, MCD_WIRE_UNPAIR, &m.base, ANSWER_MS); /* else later */
}

void mcd_unpairs_poll(struct mcd_peer *p, uint64_t now)
{
    struct mcd_unpair *next;

    for (struct mcd_unpair *u = p->unpairs; u != NULL; u = next) {
        next = u->next;
        /* partner: the engine's release */
        if (u->telling && mcs_load_acquire(&u->command.done) == 0)
            continue;
        if (u->confirmed)
            remove_it(u);
        else if (now - u->asked_at >= AGAIN_NS)
            ask(u, now);
    }
}

bool mcd_unpairs_release(struct mcd_peer *p, const struct mcd_way *way)
{
    bool told = true;

    for (struct mcd_unpair *u = p->unpairs; u != NULL; u = u->next) {
        if (u->way != way)
            continue;
        if (u->telling && mcs_load_acquire(&u->command.done) == 0) /* partner: likewise */
            told = false;
        else
            u->way = NULL;
    }
    return told;
}

void mcd_unpairs_drop(struct mcd_peer *p)
{
    while (p->unpairs != NULL)
        remove_it(p->unpairs);
}
