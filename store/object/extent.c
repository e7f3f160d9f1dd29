/* SPDX-License-Identifier: Apache-2.0 */
/* Extents come from the owner and go back to it. */
#include <errno.h>

#include "internal.h"

#define REFUSED_NS UINT64_C(1000000000) /* what could not be had is not asked for again so soon */

/* Where one was removed just now its memory may not be back yet: asked again soon. */
static void refuse(struct mco_store *s, struct mco_arena *a)
{
    uint64_t now = mco_clock();

    a->refused_until =
        now + (s->removed_at != 0 && now - s->removed_at < MCO_RETURNS_NS ? REFUSED_NS / 100
                                                                          : REFUSED_NS);
}

static void wanted_no_more(struct mco_store *s, struct mco_arena *a)
{
    s->wanted_bytes -= a->wanted;
    a->wanted = 0;
}

int mco_extent_add(struct mco_store *s, const struct mco_extent *e, uint32_t *id)
{
    struct mco_extent given = *e;
    struct mco_space *sp = NULL;
    struct mco_after after;
    struct mco_tenant *t;
    uint32_t record = MCO_NONE;
    int res = 0;

    mco_after_init(&after);
    mco_lock(&s->lock);
    t = mco_tenant_get(s, e->tenant);
    if (t == NULL)
        res = -ENOMEM;
    else
        wanted_no_more(s, &t->arenas[e->open]);
    if (res == 0 && (e->size == 0 || e->size % MCO_UNIT != 0 || e->size / MCO_UNIT >= MCO_NONE))
        res = -EINVAL;
    if (res == 0 && (e->size > s->o.size || s->extent_bytes > s->o.size - e->size))
        res = -ENOSPC;
    if (res == 0 && given.id == 0)
        given.id = mco_extent_id(s);
    if (res == 0 && (given.id == 0 || mco_space_by_id(s, given.id) != NULL))
        res = -EEXIST;
    if (res == 0)
        res = mco_extent_record_new(s, &given, &record);
    if (res == 0) {
        res = mco_space_new(s, &given, record, true, &sp);
        if (res != 0)
            mco_extent_record_free(s, record);
    }
    if (res == 0 && s->starving == sp->arena)
        s->starving = NULL;
    if (res == 0)
        *id = given.id;
    else if (t != NULL)
        refuse(s, &t->arenas[e->open]);
    mco_space_freed(s, &after);
    mco_unlock(&s->lock);
    mco_run_after(s, &after);
    return res;
}

void mco_extent_failed(struct mco_store *s, uint64_t tenant, bool open)
{
    struct mco_after after;
    struct mco_tenant *t;

    mco_after_init(&after);
    mco_lock(&s->lock);
    t = mco_tenant_find(s, tenant);
    if (t != NULL) {
        wanted_no_more(s, &t->arenas[open]);
        refuse(s, &t->arenas[open]);
    }
    mco_space_freed(s, &after);
    mco_unlock(&s->lock);
    mco_run_after(s, &after);
}

int mco_extent_remove(struct mco_store *s, uint32_t id)
{
    struct mco_after after;
    struct mco_space *sp;
    int res = 0;

    mco_after_init(&after);
    mco_lock(&s->lock);
    sp = mco_space_by_id(s, id);
    if (sp == NULL) {
        res = -ENOENT;
    } else if (sp->count != 0) {
        res = -EBUSY;
    } else {
        s->removed_at = mco_clock();
        if (s->starving != NULL)
            s->starving->refused_until = 0; /* it asks again */
        mco_extent_record_free(s, sp->record);
        mco_space_gone(s, sp);
        mco_space_freed(s, &after);
    }
    mco_unlock(&s->lock);
    mco_run_after(s, &after);
    return res;
}

bool mco_extent_idle(struct mco_store *s, struct mco_space *sp, struct mco_after *after)
{
    if (sp->idle || s->o.idle == NULL ||
        after->idles == sizeof(after->idle) / sizeof(after->idle[0]))
        return false;
    sp->idle = true;
    s->empty--;
    s->idle_bytes += sp->e.size;
    s->idle_until = mco_clock() + MCO_OWNER_NS;
    mco_space_drain(s, sp, true);
    after->idle[after->idles++] = sp->e.id;
    return true;
}

void mco_extent_empty(struct mco_store *s, struct mco_space *sp, struct mco_after *after)
{
    if (sp->drains) /* if it cannot be told now, upkeep comes back to it */
        (void)mco_extent_idle(s, sp, after);
}
