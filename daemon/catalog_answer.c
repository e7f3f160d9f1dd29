/* SPDX-License-Identifier: Apache-2.0 */
/* What masters and holders answer, key by key. Nothing is believed that does not fit its question. */
#include <stdlib.h>
#include <string.h>

#include "catalog_op.h"
#include "shm/status.h"

/* ---- what holders say --------------------------------------------------------------------- */

static bool good_leased(const Mcd__StoreLeased *m, uint32_t n, bool exist)
{
    return m != NULL && m->status.len == n &&
           (exist || (m->n_version_token == n && m->n_version_sequence == n && m->n_size == n &&
                      m->n_crc == n && m->n_address == n && m->summed.len == n));
}

static void leased(struct mcd_op *op, const struct mcd_op_call *oc, const Mcd__StoreLeased *m)
{
    struct mcd_catalog *c = op->catalog;
    bool exist = op->ask->kind == MCD_ASK_EXIST;
    /* whatever it says: a place is not believed in for longer than an agent leases it */
    uint64_t lease = (m->lease_ms < MCD_LEASE_MAX_MS ? m->lease_ms : MCD_LEASE_MAX_MS) * MCD_MS;

    for (uint32_t j = 0; j < oc->n; j++) {
        uint32_t i = oc->index[j];
        struct mcd_ask_key *k = &op->ask->keys[i];
        uint8_t status = m->status.data[j];
        struct mco_version version;

        if (op->keys[i].step != STEP_ASKED)
            continue;
        if (status == MCS_BUSY) { /* on its way from its holder's disk */
            op->keys[i].step = STEP_LEASE;
            op->keys[i].last = MCS_BUSY;
            mcd_op_wait(op, i, SOON_NS);
            continue;
        }
        if (status == MCS_NO_DIRECTORY) {
            mcd_op_stale(op, i);
            continue;
        }
        if (status != MCS_OK) {
            mcd_op_elsewhere(op, i,
                             status < MCS_STATUS_COUNT ? (enum mcs_status)status : MCS_PROTOCOL);
            continue;
        }
        if (exist) {
            mcd_op_over(op, i, MCS_OK);
            continue;
        }
        if (oc->holder->reach == NULL) { /* it has become another one meanwhile */
            op->keys[i].step = STEP_LEASE;
            continue;
        }
        version = (struct mco_version){m->version_token[j], m->version_sequence[j]};
        if (mcd_place_is_over(c, &k->key, &version)) { /* it has not heard of the later one yet */
            mcd_op_stale(op, i);
            continue;
        }
        mcd_op_let_go(k);
        k->version = version;
        k->size = m->size[j];
        k->crc = m->crc[j];
        k->address = m->address[j];
        k->summed = m->summed.data[j] != 0;
        k->hard_pin = j < m->hard_pin.len && m->hard_pin.data[j] != 0;
        k->soft_pin_ms = j < m->n_soft_pin_ms ? m->soft_pin_ms[j] : 0;
        k->soft_pin_ms =
            k->soft_pin_ms < MCS_SOFT_PIN_MAX_MS ? k->soft_pin_ms : MCS_SOFT_PIN_MAX_MS;
        k->group = j < m->n_group ? m->group[j] : 0;
        k->until = oc->sent + lease;
        k->reach = oc->holder->reach;
        k->segment = k->reach->segment;
        (void)mcs_fetch_add(&k->reach->users, 1u); /* partner: mcd_reaches_poll(), this thread */
        if (op->ask->kind == MCD_ASK_PULL) {
            op->keys[i].step = STEP_PULL;
            continue;
        }
        mcd_place_put(c, k, lease);
        mcd_pulls_outdate(c, &k->key, &version);
        mcd_op_over(op, i, MCS_OK);
    }
}

/* ---- what the master says --------------------------------------------------------------------- */

/* True: it is none that ends the question. */
static bool try_again(uint32_t status)
{
    return status == MCS_REBUILDING || status == MCS_NO_DIRECTORY || status == MCS_FENCED;
}

/* It has come here since the engine looked: put by another request, or copied by order. */
static bool is_here(const struct mcd_op *op, uint32_t i)
{
    struct mco_store *s = op->catalog->store->objects;
    uint8_t status;

    return mco_exist(s, &op->ask->keys[i].key, NULL, 1, 0, op->catalog->now, &status, NULL) == 1;
}

/* Who has it, best first, and last whose bytes were wrong. */
static void take_holders(struct mcd_op *op, uint32_t i, const Mcd__StoreFound *m, size_t at,
                         unsigned n, bool away)
{
    enum mcs_status missing = away ? MCS_PEER_UNREACHABLE : MCS_NOT_FOUND;
    struct mcd_catalog *c = op->catalog;
    struct mcd_op_key *k = &op->keys[i];
    struct mcd_holder *last = NULL;
    bool own = false;

    k->nholders = k->at = 0;
    k->silent = away;
    for (unsigned j = 0; j < n && k->nholders < MCD_OP_HOLDERS; j++) {
        uint32_t host = m->holders[at + j];
        struct mcd_holder *h = NULL;

        own |= host < m->n_hosts && strcmp(m->hosts[host], c->agent->cluster->address) == 0;
        if (host < m->n_hosts && strcmp(m->hosts[host], c->agent->cluster->address) != 0)
            h = mcd_holder_get(c, m->hosts[host]);
        if (h != NULL && mcd_op_avoids(op, i, h))
            last = h;
        else if (h != NULL)
            k->holders[k->nholders++] = h;
    }
    if (own && is_here(op, i)) {
        mcd_op_over(op, i, op->ask->kind == MCD_ASK_FIND ? MCS_EXISTS : MCS_OK);
        return;
    }
    if (last != NULL && k->nholders < MCD_OP_HOLDERS)
        k->holders[k->nholders++] = last;
    if (k->nholders != 0) {
        k->step = STEP_LEASE;
        return;
    }
    /* only this agent is said to have it, which had it not when it was asked: evicted just now */
    if (++k->tries >= TRIES)
        mcd_op_over(op, i, missing);
    else
        mcd_op_again(op, i, missing);
}

static bool good_found(const Mcd__StoreFound *m, uint32_t n, bool exist)
{
    size_t holders = 0;

    if (m == NULL || m->status.len != n)
        return false;
    if (exist)
        return true;
    if (m->nholders.len != n)
        return false;
    for (uint32_t j = 0; j < n; j++)
        holders += m->nholders.data[j];
    return holders == m->n_holders;
}

static void found(struct mcd_op *op, const struct mcd_op_call *oc, const Mcd__StoreFound *m,
                  bool exist)
{
    size_t at = 0;

    for (uint32_t j = 0; j < oc->n; j++) {
        uint32_t i = oc->index[j];
        uint8_t status = m->status.data[j];
        unsigned n = exist ? 0 : m->nholders.data[j];

        if (op->keys[i].step == STEP_ASKED) {
            if (try_again(status))
                mcd_op_again(op, i, (enum mcs_status)status);
            else if (exist || status != MCS_OK)
                mcd_op_over(op, i, (enum mcs_status)status);
            else
                take_holders(op, i, m, at, n, j < m->away.len && m->away.data[j] != 0);
        }
        at += n;
    }
}

/* Somebody else writes key i: it is asked for again, for some time. False: that is over. */
static bool wait_for_writer(struct mcd_op *op, uint32_t i)
{
    uint64_t now = op->catalog->now;

    if (now >= op->ask->patience || op->granted)
        return false;
    op->keys[i].step = STEP_MASTER;
    op->keys[i].last = MCS_IN_USE;
    mcd_op_wait(op, i, SOON_NS + (now >> 7) % (2 * SOON_NS));
    return true;
}

/* Who has something to write does not wait for others: somebody may wait for that. */
static void end_waits(struct mcd_op *op)
{
    for (uint32_t i = 0; i < op->n; i++)
        if (op->keys[i].step == STEP_MASTER && op->keys[i].last == MCS_IN_USE)
            mcd_op_over(op, i, MCS_IN_USE);
}

static void started(struct mcd_op *op, const struct mcd_op_call *oc, const Mcd__StoreStarted *m)
{
    for (uint32_t j = 0; j < oc->n; j++)
        op->granted |= m->status.data[j] == MCS_OK;
    for (uint32_t j = 0; j < oc->n; j++) {
        uint32_t i = oc->index[j];

        if (try_again(m->status.data[j])) {
            mcd_op_again(op, i, (enum mcs_status)m->status.data[j]);
            continue;
        }
        if (m->status.data[j] == MCS_IN_USE && wait_for_writer(op, i))
            continue;
        op->ask->keys[i].version =
            (struct mco_version){m->version_token[j], m->version_sequence[j]};
        mcd_op_over(op, i, (enum mcs_status)m->status.data[j]);
    }
    if (op->granted)
        end_waits(op);
}

static void ended(struct mcd_op *op, const struct mcd_op_call *oc, const Mcd__StoreEnded *m)
{
    for (uint32_t j = 0; j < oc->n; j++) {
        uint32_t i = oc->index[j];

        if (try_again(m->status.data[j])) {
            mcd_op_again(op, i, (enum mcs_status)m->status.data[j]);
            continue;
        }
        op->ask->keys[i].copies = j < m->copies.len ? m->copies.data[j] : 1;
        if (m->status.data[j] == MCS_OK && op->ask->keys[i].given == MCS_OK)
            mcd_place_outdate(op->catalog, &op->ask->keys[i].key, &op->ask->keys[i].version);
        if (m->status.data[j] ==
            MCS_NOT_OWNER) /* the put was over: nobody knows of what was sealed */
            (void)mco_remove(op->catalog->store->objects, &op->ask->keys[i].key,
                             &op->ask->keys[i].version, true, op->catalog->now);
        mcd_op_over(op, i, (enum mcs_status)m->status.data[j]);
    }
}

static void removed(struct mcd_op *op, const struct mcd_op_call *oc, const Mcd__StoreRemoved *m)
{
    for (uint32_t j = 0; j < oc->n; j++) {
        uint32_t i = oc->index[j];

        mcd_place_forget(op->catalog, &op->ask->keys[i].key, NULL);
        if (try_again(m->status.data[j]))
            mcd_op_again(op, i, (enum mcs_status)m->status.data[j]);
        else
            mcd_op_over(op, i, (enum mcs_status)m->status.data[j]);
    }
}

/* What a call was about has its answer from it. False: nonsense. */
bool mcd_op_take_answer(struct mcd_op *op, const struct mcd_op_call *oc, const uint8_t *p,
                        size_t size)
{
    bool good = false;

    if (oc->holder != NULL) {
        Mcd__StoreLeased *m = mcd__store_leased__unpack(NULL, size, p);

        good = good_leased(m, oc->n, op->ask->kind == MCD_ASK_EXIST);
        if (good)
            leased(op, oc, m);
        if (m != NULL)
            mcd__store_leased__free_unpacked(m, NULL);
    } else if (op->ask->kind == MCD_ASK_START) {
        Mcd__StoreStarted *m = mcd__store_started__unpack(NULL, size, p);

        good = m != NULL && m->status.len == oc->n && m->n_version_token == oc->n &&
               m->n_version_sequence == oc->n;
        if (good)
            started(op, oc, m);
        if (m != NULL)
            mcd__store_started__free_unpacked(m, NULL);
    } else if (op->ask->kind == MCD_ASK_END) {
        Mcd__StoreEnded *m = mcd__store_ended__unpack(NULL, size, p);

        good = m != NULL && m->status.len == oc->n;
        if (good)
            ended(op, oc, m);
        if (m != NULL)
            mcd__store_ended__free_unpacked(m, NULL);
    } else if (op->ask->kind == MCD_ASK_REMOVE) {
        Mcd__StoreRemoved *m = mcd__store_removed__unpack(NULL, size, p);

        good = m != NULL && m->status.len == oc->n;
        if (good)
            removed(op, oc, m);
        if (m != NULL)
            mcd__store_removed__free_unpacked(m, NULL);
    } else {
        Mcd__StoreFound *m = mcd__store_found__unpack(NULL, size, p);

        good = good_found(m, oc->n, mcd_op_asks_exist(op));
        if (good)
            found(op, oc, m, mcd_op_asks_exist(op));
        if (m != NULL)
            mcd__store_found__free_unpacked(m, NULL);
    }
    return good;
}
