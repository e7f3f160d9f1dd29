/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Extents of the store's that this process has mapped, to read objects in place and to fill what it
 * creates there.  One mapping for each extent and kind, made when a result first names it.  It stays until
 * the connection is closed, or the store has given the extent up, which it does only when nothing is held
 * there; the same id never names another.  So a queue may keep a copy of where it is, and look there
 * without the mutex: no result that it still has to read names what has gone.
 */
#include "internal.h"

#include <stdlib.h>
#include <sys/stat.h>

/* With the mutex. */
static struct mcl_object_map *find(struct mcshm *c, uint32_t extent, bool writable)
{
    for (size_t i = 0; i < c->nobject_maps; i++) {
        if (c->object_maps[i].extent == extent && c->object_maps[i].writable == writable)
            return &c->object_maps[i];
    }
    return NULL;
}

static mcshm_status ask(struct mcshm *c, uint32_t extent, bool writable,
                        struct mcs_msg_object_map_reply *reply, struct mcl_fds *fds)
{
    struct mcs_msg m = {.b.object_map = {.extent = extent, .writable = writable}};
    mcshm_status status = mcl_call(c, MCS_MSG_OBJECT_MAP, &m, -1, fds);

    if (status != MCSHM_OK)
        return status;
    *reply = m.b.object_map_reply;
    if (fds->n == 1 && reply->size != 0)
        return MCSHM_OK;
    mcl_close_fds(fds);
    return mcl_fail(MCSHM_PROTOCOL, "the agent's mapping of an extent contradicts itself");
}

static uint64_t inode(int fd)
{
    struct stat st;

    return fstat(fd, &st) == 0 ? st.st_ino : 0;
}

static void give_back(struct mcshm *c, uint32_t extent, bool writable)
{
    struct mcs_msg m = {.b.object_unmap = {.extent = extent, .writable = writable}};

    (void)mcl_call(c, MCS_MSG_OBJECT_UNMAP, &m, -1, NULL);
}

void mcl_object_maps_stale(struct mcshm *c, uint32_t gone)
{
    mcs_store_relaxed(&c->objects_gone, gone); /* partner: mcshm_submit_objects() of any thread */
    mcl_stir(c);
}

void mcl_object_maps_sweep(struct mcshm *c)
{
    /* acquire: pairs with the agent's store, which comes after the extent's end */
    uint32_t gone = mcs_load_acquire(&c->region.words->objects_gone);

    if (gone == c->objects_swept)
        return;
    c->objects_swept = gone;
    for (size_t i = 0; i < c->nobject_maps;) {
        struct mcl_object_map m = c->object_maps[i];
        struct mcs_msg_object_map_reply r;
        struct mcl_fds fds = {.n = 0};
        mcshm_status status = MCSHM_OK;

        if (m.life == c->restarts && m.extent != 0)
            status = ask(c, m.extent, m.writable, &r, &fds);
        mcl_close_fds(&fds);
        /* where an earlier agent's holds may be it stays, whatever a later one says of it */
        if (status != MCSHM_INVALID_HANDLE || m.life != c->restarts) {
            i++;
            continue;
        }
        c->object_maps[i] = c->object_maps[--c->nobject_maps];
        mcs_region_unmap(m.base, m.map_size);
        give_back(c, m.extent, m.writable);
    }
}

/* With the mutex. */
static mcshm_status map(struct mcshm *c, uint32_t extent, bool writable)
{
    struct mcs_msg_object_map_reply r;
    struct mcl_object_map *m;
    struct mcl_fds fds;
    mcshm_status status;
    uint64_t size, ino;
    void *base;
    int res;

    mcl_object_maps_sweep(c);
    if (mcl_grow(&c->object_maps, c->nobject_maps, &c->object_maps_room, sizeof(*m)) != 0)
        return mcl_fail(MCSHM_NO_MEMORY, "out of memory for one more mapping");
    status = ask(c, extent, writable, &r, &fds);
    if (status != MCSHM_OK)
        return status;
    size = r.size;
    ino = inode(fds.fd[0]);
    res = mcl_extent_map(fds.fd[0], writable, (void *)(uintptr_t)r.address, &size, &base);
    mcl_close_fds(&fds);
    if (res != 0) {
        give_back(c, extent, writable);
        return mcl_fail(MCSHM_NO_MEMORY, "mapping an extent of %llu bytes: %s",
                        (unsigned long long)r.size, strerror(-res));
    }
    m = &c->object_maps[c->nobject_maps++];
    *m = (struct mcl_object_map){.extent = extent,
                                 .life = c->restarts,
                                 .ino = ino,
                                 .writable = writable,
                                 .base = base,
                                 .size = r.size,
                                 .map_size = size};
    return MCSHM_OK;
}

/* With the mutex: asks for it anew when that was another agent's to grant. */
static mcshm_status renew(struct mcshm *c, struct mcl_object_map *m)
{
    struct mcs_msg_object_map_reply r;
    struct mcl_fds fds;
    mcshm_status status;

    if (m->life == c->restarts)
        return MCSHM_OK;
    status = ask(c, m->extent, m->writable, &r, &fds);
    if (status != MCSHM_OK)
        return status;
    m->life = c->restarts;
    if (inode(fds.fd[0]) != m->ino)
        m->extent = 0; /* what lies there may be read on; what the id names now is to be mapped */
    mcl_close_fds(&fds);
    return MCSHM_OK;
}

/* With the mutex: a mapping that the present agent knows. */
static mcshm_status provide(struct mcshm *c, uint32_t extent, bool writable,
                            struct mcl_object_map *out)
{
    struct mcl_object_map *m = find(c, extent, writable);
    mcshm_status status = m != NULL ? renew(c, m) : MCSHM_OK;

    if (status == MCSHM_OK && (m == NULL || m->extent == 0))
        status = map(c, extent, writable);
    if (status == MCSHM_OK)
        *out = *find(c, extent, writable);
    return status;
}

const struct mcl_object_map *mcl_object_map(struct mcshm_queue *q, uint32_t extent, bool writable,
                                            mcshm_status *status)
{
    struct mcl_object_map *copy;
    struct mcshm *c = q->c;

    if (q->object_maps == NULL) {
        q->object_maps = calloc(MCL_OBJECT_MAPS, sizeof(*q->object_maps));
        if (q->object_maps == NULL) {
            *status = mcl_fail(MCSHM_NO_MEMORY, "out of memory for mappings");
            return NULL;
        }
    }
    copy = &q->object_maps[(extent * 2 + writable) % MCL_OBJECT_MAPS];
    /* relaxed: partner resumed(), restore.c */
    if (copy->base != NULL && copy->extent == extent && copy->writable == writable &&
        copy->life == mcs_load_relaxed(&c->restarts))
        return copy;
    pthread_mutex_lock(&c->mutex);
    *status = provide(c, extent, writable, copy);
    pthread_mutex_unlock(&c->mutex);
    return *status == MCSHM_OK ? copy : NULL;
}

void mcl_object_maps_renew(struct mcshm *c)
{
    for (size_t i = 0; i < c->nobject_maps; i++) {
        struct mcl_object_map *m = &c->object_maps[i];

        if (m->extent != 0 && renew(c, m) != MCSHM_OK)
            mcl_log(c, MCSHM_LOG_WARNING,
                    "the mapping of extent %u of the store is not granted anew: %s", m->extent,
                    mcshm_last_error(c));
    }
}

void mcl_object_maps_fini(struct mcshm *c, bool mapped)
{
    for (size_t i = 0; mapped && i < c->nobject_maps; i++)
        mcs_region_unmap(c->object_maps[i].base, c->object_maps[i].map_size);
    free(c->object_maps);
}
