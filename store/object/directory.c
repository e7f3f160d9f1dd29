/* SPDX-License-Identifier: Apache-2.0 */
/* The directory: its holders, and what entries know of them. */
#include "directory_internal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define GRAVES (UINT64_C(1) << 20)

int mco_directory_create(const struct mco_directory_options *o, struct mco_directory **out)
{
    struct mco_directory *d = calloc(1, sizeof(*d));

    if (d == NULL)
        return -ENOMEM;
    d->o = *o;
    if (d->o.graves_max == 0)
        d->o.graves_max = GRAVES;
    d->created = o->now;
    d->rebuilt = o->rebuild_ns == 0;
    *out = d;
    return 0;
}

void mco_directory_destroy(struct mco_directory *d)
{
    if (d == NULL)
        return;
    mco_entries_destroy(d);
    for (uint32_t i = 0; i < d->nmembers; i++)
        free(d->members[i]);
    free(d->expected);
    free(d);
}

uint64_t mco_directory_token(const struct mco_directory *d)
{
    return d->o.token;
}

/* ---- the rebuilding --------------------------------------------------------------------- */

static struct mco_expected *expected(struct mco_directory *d, const char *address)
{
    for (size_t i = 0; i < d->nexpected; i++)
        if (strcmp(d->expected[i].address, address) == 0)
            return &d->expected[i];
    return NULL;
}

void mco_directory_expect(struct mco_directory *d, const char *address)
{
    struct mco_expected *more, *x;

    if (expected(d, address) != NULL)
        return;
    if (d->nexpected == d->expected_room) {
        size_t room = d->expected_room == 0 ? 16 : d->expected_room * 2;

        more = realloc(d->expected, room * sizeof(*more));
        if (more == NULL)
            return; /* the rebuilding is over by the clock, then */
        d->expected = more;
        d->expected_room = room;
    }
    x = &d->expected[d->nexpected++];
    memset(x, 0, sizeof(*x));
    strncpy(x->address, address, sizeof(x->address) - 1);
    for (uint32_t i = 0; i < d->nmembers; i++)
        if (d->members[i] != NULL && strcmp(d->members[i]->info.address, x->address) == 0) {
            x->joined = true;
            x->heard |= d->members[i]->told;
        }
}

void mco_directory_expected(struct mco_directory *d)
{
    d->expected_all = true;
}

bool mco_directory_rebuilding(const struct mco_directory *d, uint64_t now)
{
    bool waiting = !d->expected_all;

    if (d->rebuilt || (now > d->created && now - d->created >= d->o.rebuild_ns))
        return false;
    for (size_t i = 0; i < d->nexpected; i++)
        waiting |= !d->expected[i].heard;
    for (uint32_t i = 0; i < d->nmembers; i++)
        waiting |= d->members[i] != NULL && d->members[i]->state == MCO_HOLDER_REPORTING;
    return waiting;
}

void mco_rebuilt_look(struct mco_directory *d, uint64_t now)
{
    if (d->rebuilt || mco_directory_rebuilding(d, now))
        return;
    d->rebuilt = true;
    d->repair = true;
    /* from here on lives are over whether these have them or not */
    for (uint32_t i = 0; i < d->nmembers; i++)
        if (d->members[i] != NULL && !d->members[i]->told)
            mco_holder_stale(d->members[i]);
}

uint64_t mco_directory_members(struct mco_directory *d, uint64_t now,
                               void (*each)(void *context, const char *address), void *context)
{
    uint64_t sum = 0;

    for (uint32_t i = 0; i < d->nmembers; i++) {
        const struct mco_member *h = d->members[i];

        if (h == NULL || h->state == MCO_HOLDER_GONE)
            continue;
        sum += mco_key_hash(1, h->info.address, (uint32_t)strlen(h->info.address));
        if (each != NULL)
            each(context, h->info.address);
    }
    for (size_t i = 0; i < d->nexpected && now - d->created < d->o.gone_ns; i++) {
        const struct mco_expected *x = &d->expected[i];

        if (x->heard || x->joined)
            continue;
        sum += mco_key_hash(1, x->address, (uint32_t)strlen(x->address));
        if (each != NULL)
            each(context, x->address);
    }
    return sum;
}

/* ---- holders ------------------------------------------------------------------------------ */

struct mco_member *mco_member(const struct mco_directory *d, uint32_t holder)
{
    return holder < d->nmembers ? d->members[holder] : NULL;
}

uint32_t mco_directory_holder(const struct mco_directory *d, uint64_t identity)
{
    for (uint32_t i = 0; i < d->nmembers; i++)
        if (d->members[i] != NULL && d->members[i]->info.identity == identity)
            return i;
    return MCO_NO_HOLDER;
}

uint32_t mco_directory_holder_named(const struct mco_directory *d, const char *address)
{
    uint32_t found = MCO_NO_HOLDER;

    for (uint32_t i = 0; i < d->nmembers; i++)
        if (d->members[i] != NULL && strcmp(d->members[i]->info.address, address) == 0 &&
            (found == MCO_NO_HOLDER || d->members[i]->state != MCO_HOLDER_GONE))
            found = i;
    return found;
}

uint64_t mco_directory_objects(const struct mco_directory *d, uint32_t holder)
{
    struct mco_member *h = mco_member(d, holder);

    return h == NULL ? 0 : h->objects;
}

const struct mco_holder *mco_directory_holder_at(const struct mco_directory *d, uint32_t holder)
{
    struct mco_member *h = mco_member(d, holder);

    return h == NULL ? NULL : &h->info;
}

enum mco_holder_state mco_directory_state(const struct mco_directory *d, uint32_t holder)
{
    struct mco_member *h = mco_member(d, holder);

    return h == NULL ? MCO_HOLDER_GONE : h->state;
}

static uint64_t domain_of(const struct mco_holder *h)
{
    return h->domain[0] == '\0' ? h->identity
                                : mco_key_hash(0, h->domain, (uint32_t)strlen(h->domain));
}

/* A place for a new one: free, or of one that is gone and that nothing names any more. */
static uint32_t place(struct mco_directory *d)
{
    struct mco_member *h;

    for (uint32_t i = 0; i < MCO_HOLDERS_MAX; i++) {
        h = d->members[i];
        if (h == NULL)
            return i;
        if (h->state == MCO_HOLDER_GONE && h->objects == 0 && h->due[0].first == NULL &&
            h->due[1].first == NULL && h->nmoves == 0 && h->puts == 0 && h->scan == 0 &&
            h->scans == 0 && !h->told)
            return i;
    }
    return MCO_NO_HOLDER;
}

void mco_holder_stale(struct mco_member *h)
{
    h->current = false;
    mco_duties_owe(h);
}

void mco_holder_gone(struct mco_directory *d, struct mco_member *h)
{
    h->state = MCO_HOLDER_GONE;
    mco_holder_stale(h);
    h->connected = false;
    h->told = false;
    h->turn = (h->turn + 1) & 7;
    h->marked = 0;
    h->scan |= MCO_SCAN_LOST;
    h->scan &= (uint8_t)~MCO_SCAN_DRAIN;
    d->repair = true;
}

/* The memory of one that was at this address is no more: another has come up there. */
static void replaced(struct mco_directory *d, const struct mco_holder *by)
{
    struct mco_member *h;

    for (uint32_t i = 0; i < d->nmembers; i++) {
        h = d->members[i];
        if (h == NULL || h->info.identity == by->identity || h->state == MCO_HOLDER_GONE ||
            strcmp(h->info.address, by->address) != 0)
            continue;
        mco_puts_undo(d, i);
        mco_duties_again(d, h, true);
        mco_duties_void(d, h);
        mco_holder_gone(d, h);
    }
}

uint32_t mco_directory_join(struct mco_directory *d, const struct mco_holder *info, uint64_t now,
                            bool *report)
{
    uint32_t i = mco_directory_holder(d, info->identity);
    struct mco_member *h = mco_member(d, i);
    struct mco_expected *x;
    bool again;

    mco_rebuilt_look(d, now); /* before this one is waited for */
    if (h == NULL) {
        i = place(d);
        if (i == MCO_NO_HOLDER)
            return i;
        h = calloc(1, sizeof(*h));
        if (h == NULL)
            return MCO_NO_HOLDER;
        free(d->members[i]);
        d->members[i] = h;
        if (i >= d->nmembers)
            d->nmembers = i + 1;
        h->state = MCO_HOLDER_REPORTING;
        h->info = *info;
        h->ordered =
            info->draining; /* what an earlier leader has ordered; from here on this one's word counts */
        h->current = info->current && !d->rebuilt;
        replaced(d, info);
        x = expected(d, info->address);
        if (x != NULL)
            x->joined = true;
    }
    again = h->info.life != info->life || h->state == MCO_HOLDER_GONE;
    if (h->info.life != info->life)
        mco_puts_undo(d, i);
    if (again) {
        h->told = false;
        mco_holder_stale(h);
    }
    if (again || !h->connected)
        mco_duties_again(d, h, false);
    h->info = *info;
    h->info.draining = h->ordered;
    h->domain = domain_of(info);
    h->heard = now;
    h->connected = true;
    h->state = h->told ? MCO_HOLDER_HERE : MCO_HOLDER_REPORTING;
    *report = !h->told;
    return i;
}

void mco_directory_heard(struct mco_directory *d, uint32_t holder, uint64_t now)
{
    struct mco_member *h = mco_member(d, holder);

    if (h == NULL || h->state == MCO_HOLDER_GONE)
        return;
    h->heard = now;
    if (h->state == MCO_HOLDER_AWAY)
        h->state = h->told ? MCO_HOLDER_HERE : MCO_HOLDER_REPORTING;
}

uint64_t mco_directory_promise(struct mco_directory *d, uint32_t holder, uint64_t now)
{
    uint64_t most =
        d->o.rebuild_ns != 0 && d->o.rebuild_ns < d->o.away_ns ? d->o.rebuild_ns : d->o.away_ns;
    struct mco_member *h = mco_member(d, holder);
    uint64_t end = d->created + d->o.rebuild_ns; /* of the rebuilding */

    mco_rebuilt_look(d, now);
    if (h == NULL || !h->connected || h->state > MCO_HOLDER_HERE)
        return 0;
    if (d->rebuilt && h->told && h->owed == 0)
        h->current = true;
    if (!h->current)
        return 0;
    if (h->told) /* it is waited for from now on */
        return most;
    return now >= end ? 0 : end - now < most ? end - now : most;
}

void mco_directory_stood_still(struct mco_directory *d, uint64_t ns)
{
    for (uint32_t i = 0; i < d->nmembers; i++)
        if (d->members[i] != NULL)
            d->members[i]->heard += ns;
}

void mco_directory_left(struct mco_directory *d, uint32_t holder, uint64_t now)
{
    struct mco_member *h = mco_member(d, holder);

    (void)now; /* away and gone count from when it was last heard */
    if (h == NULL)
        return;
    h->connected = false;
    mco_puts_undo(d, holder);
    mco_duties_again(d, h, false);
}

void mco_directory_drain(struct mco_directory *d, uint32_t holder, bool drain)
{
    struct mco_member *h = mco_member(d, holder);

    if (h == NULL)
        return;
    h->ordered = h->info.draining = drain;
    h->drain_at = 0;
    if (drain)
        h->scan |= MCO_SCAN_DRAIN;
    else
        h->scan &= (uint8_t)~MCO_SCAN_DRAIN;
}

/* ---- what entries know of holders ---------------------------------------------------------- */

int mco_entry_slot(const struct mco_entry *e, uint32_t holder)
{
    for (int i = 0; i < e->nholders; i++)
        if ((e->holders[i] & MCO_SLOT_HOLDER) == holder)
            return i;
    return -1;
}

bool mco_entry_add(struct mco_directory *d, struct mco_entry *e, uint32_t holder, bool disk)
{
    struct mco_member *h = d->members[holder];
    uint16_t word =
        (uint16_t)(holder | (disk ? MCO_SLOT_DISK : 0) | (unsigned)h->turn << MCO_SLOT_TURN);
    int i = mco_entry_slot(e, holder);

    if (i >= 0) {
        if (e->holders[i] >> MCO_SLOT_TURN != h->turn)
            h->marked++;
        e->holders[i] = word;
        return true;
    }
    if (e->nholders == MCS_REPLICAS_MAX)
        return false;
    e->holders[e->nholders++] = word;
    h->objects++;
    h->marked++;
    return true;
}

void mco_entry_drop(struct mco_directory *d, struct mco_entry *e, int slot)
{
    struct mco_member *h = d->members[e->holders[slot] & MCO_SLOT_HOLDER];

    h->objects--;
    if (e->holders[slot] >> MCO_SLOT_TURN == h->turn)
        h->marked--;
    e->nholders--;
    for (int i = slot; i < e->nholders; i++)
        e->holders[i] = e->holders[i + 1];
}

void mco_directory_get_stats(const struct mco_directory *d, uint64_t now,
                             struct mco_directory_stats *out)
{
    *out = d->stats;
    out->bytes_memory = sizeof(*d) + d->memory;
    out->copies_wanted = d->copies;
    out->drops_pending = d->drops;
    out->rebuilding = mco_directory_rebuilding(d, now);
    for (uint32_t i = 0; i < d->nmembers; i++) {
        if (d->members[i] == NULL)
            continue;
        out->holders++;
        out->here += d->members[i]->state == MCO_HOLDER_HERE;
        out->away += d->members[i]->state == MCO_HOLDER_AWAY;
        out->gone += d->members[i]->state == MCO_HOLDER_GONE;
        out->reporting += d->members[i]->state == MCO_HOLDER_REPORTING;
        out->bytes_memory += sizeof(*d->members[i]);
    }
}
