/* SPDX-License-Identifier: Apache-2.0 */
/* Control requests about objects: mappings of the store's extents; lists and removals begin here. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "handlers.h"
#include "shm/failpoint.h"
#include "store_internal.h"

#define MAPS_MAX 4096u

/* An extent of the store's that a session has mapped, or may have. */
struct mcd_object_map {
    struct mcd_extent *extent;
    uint32_t id;
    bool writable;
    struct mcd_object_map *next; /* of the session */
};

/* The store; refuses and returns NULL where there is none. */
static struct mcd_store *store_of(struct mcd_session *s)
{
    if (s->agent->store == NULL)
        mcd_session_refuse(s, MCS_NOT_SUPPORTED,
                           "this agent holds no objects: [store] size is 0, set it");
    return s->agent->store;
}

static struct mcd_object_map **find_map(struct mcd_session *s, uint32_t id, bool writable)
{
    struct mcd_object_map **link = &s->object_maps;

    while (*link != NULL && ((*link)->id != id || (*link)->writable != writable))
        link = &(*link)->next;
    return link;
}

/* For an agent after this one, as of granted mappings (handlers_memory.c). */
static void count_writable(struct mcd_session *s, const struct mcd_object_map *m, int by)
{
    if (m->writable && s->record != NULL) /* relaxed: read by a later life */
        mcs_store_relaxed(&s->record->writable, s->record->writable + (uint32_t)by);
}

static struct mcd_object_map *add_map(struct mcd_session *s, const struct mcd_store_extent *x,
                                      bool writable)
{
    const struct mcd_tenant *t = s->account;
    struct mcd_object_map *m;

    if (s->nobject_maps >= MAPS_MAX) {
        mcd_session_refuse(s, MCS_LIMIT, "a session maps at most %u extents of objects", MAPS_MAX);
        return NULL;
    }
    if (!mcd_tenant_allows(s->account, MCD_LIMIT_MEMORY, t->memory, x->memory->size)) {
        mcd_session_refuse_limit(s, MCD_LIMIT_MEMORY, t->memory, x->memory->size);
        return NULL;
    }
    m = calloc(1, sizeof(*m));
    if (m == NULL) {
        mcd_session_refuse(s, MCS_NO_MEMORY, "no memory for one more mapping");
        return NULL;
    }
    m->id = x->id;
    m->writable = writable;
    m->extent = mcd_extent_get(x->memory);
    m->next = s->object_maps;
    s->object_maps = m;
    s->nobject_maps++;
    count_writable(s, m, 1);
    mcd_session_hold(s, (int64_t)m->extent->size);
    return m;
}

static void drop_map(struct mcd_session *s, struct mcd_object_map **link)
{
    struct mcd_object_map *m = *link;

    *link = m->next;
    s->nobject_maps--;
    count_writable(s, m, -1);
    mcd_session_hold(s, -(int64_t)m->extent->size);
    mcd_extent_put(m->extent->pool, m->extent);
    free(m);
}

void mcd_store_unmap_all(struct mcd_session *s)
{
    while (s->object_maps != NULL)
        drop_map(s, &s->object_maps);
}

void mcd_store_unmap_extent(struct mcd_agent *a, const struct mcd_extent *e)
{
    for (struct mcd_session *s = a->sessions; s != NULL; s = s->next) {
        bool had = false;

        for (struct mcd_object_map **link = &s->object_maps; *link != NULL;) {
            if ((*link)->extent == e) {
                drop_map(s, link);
                had = true;
            } else {
                link = &(*link)->next;
            }
        }
        if (had &&
            s->region.words != NULL) /* partner: the library's look at each call about objects */
            mcs_store_release(&s->region.words->objects_gone, ++s->objects_gone);
    }
}

void mcd_on_object_map(struct mcd_session *s, struct mcs_msg *m)
{
    const struct mcs_msg_object_map r = m->b.object_map;
    struct mcd_store *st = store_of(s);
    const struct mcd_store_extent *x;
    struct mcd_object_map *map;
    bool fresh;
    char path[64];
    int fd;

    if (st == NULL)
        return;
    x = mcd_store_find(st, r.extent);
    if (x == NULL || x->tenant != s->tenant) {
        mcd_session_refuse(s, MCS_INVALID_HANDLE, "the store has no extent %u of this tenant's",
                           r.extent);
        return;
    }
    if (r.writable != 0 && !x->open) {
        mcd_session_refuse(s, MCS_ACCESS,
                           "extent %u holds what the agent alone writes: it is mapped read-only",
                           r.extent);
        return;
    }
    /* once: a client that has lost its mapping to its own exec() or restart may ask again */
    map = *find_map(s, x->id, r.writable != 0);
    fresh = map == NULL;
    if (fresh)
        map = add_map(s, x, r.writable != 0);
    if (map == NULL)
        return;
    /* read-only is a descriptor of its own, as for granted mappings (handlers_memory.c) */
    snprintf(path, sizeof(path), "/proc/self/fd/%d", x->memory->fd);
    errno = -MCS_FAIL(object_map_open);
    fd = errno != 0      ? -1
         : map->writable ? fcntl(x->memory->fd, F_DUPFD_CLOEXEC, 3)
                         : open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        mcd_session_refuse(s, errno == EMFILE ? MCS_LIMIT : MCS_NO_MEMORY,
                           "cannot open extent %u for mapping: %s", r.extent, strerror(errno));
        if (fresh)
            drop_map(s, find_map(s, x->id, r.writable != 0));
        return;
    }
    x->memory->handed = true;
    MCS_FAILPOINT(object_mapped);
    m->b.object_map_reply = (struct mcs_msg_object_map_reply){
        .size = x->memory->size,
        .address = x->memory->address,
        .page_size = x->memory->kind.page_size,
    };
    m->h.status = MCS_OK;
    mcd_session_reply(s, m, sizeof(m->b.object_map_reply), &fd, 1);
    close(fd);
}

void mcd_on_object_unmap(struct mcd_session *s, struct mcs_msg *m)
{
    const struct mcs_msg_object_unmap r = m->b.object_unmap;
    struct mcd_object_map **link = find_map(s, r.extent, r.writable != 0);

    if (*link != NULL) /* else the store has given the extent up, and does not count it any more */
        drop_map(s, link);
    MCS_FAILPOINT(object_unmapped);
    mcd_reply_empty(s);
}

void mcd_on_objects(struct mcd_session *s, struct mcs_msg *m)
{
    struct mcd_store *st = store_of(s);

    if (st == NULL)
        return;
    if (m->b.objects.what >= MCS_OBJECTS_COUNT ||
        m->b.objects.length > (m->b.objects.what >= MCS_OBJECTS_COPY ? sizeof(m->b.objects.text)
                                                                     : MCS_OBJECTS_TEXT_MAX) ||
        (m->b.objects.flags & ~(uint32_t)(MCS_OBJECT_FORCE | MCS_OBJECT_LOCAL)) != 0) {
        mcd_session_refuse(s, MCS_NOT_SUPPORTED, "request %u about objects, flags %#x: not known",
                           m->b.objects.what, m->b.objects.flags);
        return;
    }
    mcd_store_list(s, &m->b.objects);
}
