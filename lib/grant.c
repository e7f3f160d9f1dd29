/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What others let this process map: read-only by mcshm_map(), to be read in place; and,
 * behind the caller's back, buffers that he may copy to or from in his own thread.
 */
#include "gpu.h"
#include "shm/failpoint.h"

#include <stdlib.h>
#include <sys/mman.h>
#include <sys/vfs.h>

/* Asks for the grant and maps its whole extent, which children of fork() do not get: the
 * grant is this session's. *size: of the mapping. */
static mcshm_status grant_ask(struct mcshm *c, uint32_t segment, uint64_t address, uint64_t length,
                              bool writable, struct mcs_msg_map_reply *reply, struct mcl_fds *fds)
{
    struct mcs_msg m = {
        .b.map = {.segment = segment, .writable = writable, .address = address, .length = length}};
    mcshm_status status = mcl_call(c, MCS_MSG_MAP, &m, -1, fds);

    if (status != MCSHM_OK)
        return status;
    *reply = m.b.map_reply;
    if (fds->n != 1 || reply->offset > reply->extent_size ||
        length > reply->extent_size - reply->offset) {
        mcl_close_fds(fds);
        return mcl_fail(MCSHM_PROTOCOL, "the agent's grant contradicts itself");
    }
    return MCSHM_OK;
}

static void grant_return(struct mcshm *c, uint32_t grant, uint32_t life)
{
    struct mcs_msg m = {.b.unmap.grant = grant};

    if (life != c->restarts) /* a later agent knows nothing of it */
        return;
    /* the agent may have withdrawn it already */
    (void)mcl_call(c, MCS_MSG_UNMAP, &m, -1, NULL);
}

int mcl_extent_map(int fd, bool writable, void *hint, uint64_t *size, void **out)
{
    struct statfs fs;
    int res;

    /* the kernel maps whole pages, and hugepages it unmaps only whole */
    if (fstatfs(fd, &fs) == 0 && fs.f_bsize > 0)
        *size = (*size + (uint64_t)fs.f_bsize - 1) / (uint64_t)fs.f_bsize * (uint64_t)fs.f_bsize;
    res = MCS_FAIL(grant_mapped);
    if (res == 0)
        res = mcs_region_map(fd, *size, writable, hint, out);
    if (res == 0)
        (void)madvise(*out, *size, MADV_DONTFORK);
    return res;
}

/* ---- read in place --------------------------------------------------------------- */

/* Maps a granted extent of host memory into *map. */
static mcshm_status map_host(const struct mcs_msg_map_reply *r, int fd, struct mcl_map *map)
{
    void *base;
    int res;

    map->size = r->extent_size;
    res = mcl_extent_map(fd, false, (void *)(uintptr_t)r->extent_address, &map->size, &base);
    if (res != 0)
        return mcl_fail(MCSHM_NO_MEMORY, "mapping an extent of %llu bytes: %s",
                        (unsigned long long)r->extent_size, strerror(-res));
    map->base = base;
    return MCSHM_OK;
}

/* With gpu_mutex: where the agent says the buffer around the address is. */
static mcshm_status find_location(struct mcshm *c, const struct mcl_map *map,
                                  char location[MCS_LOCATION_MAX])
{
    struct mcs_msg_buffer_info *list = NULL;
    mcshm_status status;
    size_t n = 0;

    pthread_mutex_lock(&c->mutex);
    status = mcl_describe(c, map->segment, &list, &n);
    pthread_mutex_unlock(&c->mutex);
    location[0] = '\0';
    for (size_t i = 0; i < n; i++) {
        if (map->address - list[i].address < list[i].length)
            snprintf(location, MCS_LOCATION_MAX, "%s", list[i].location);
    }
    free(list);
    if (status == MCSHM_OK && !mcl_gpu_is_location(location))
        return mcl_fail(MCSHM_PROTOCOL,
                        "the agent granted GPU memory and says that it lies at \"%s\"", location);
    return status;
}

/* With gpu_mutex: the same for device memory. */
static mcshm_status map_gpu(struct mcshm *c, const struct mcs_msg_map_reply *r, int fd,
                            struct mcl_map *map)
{
    char location[MCS_LOCATION_MAX];
    mcshm_status status = find_location(c, map, location);

    map->gpu = true;
    map->size = r->extent_size;
    if (status == MCSHM_OK)
        status = mcl_gpu_use(c, location, &map->device);
    if (status == MCSHM_OK)
        status = mcl_gpu_map(c, map->device, fd, map->size, r->extent_address, &map->base);
    return status;
}

static mcshm_status map_note(struct mcshm *c, const struct mcl_map *map)
{
    if (mcl_grow(&c->maps, c->nmaps, &c->maps_room, sizeof(*c->maps)) != 0)
        return mcl_fail(MCSHM_NO_MEMORY, "out of memory for one more mapping");
    c->maps[c->nmaps++] = *map;
    return MCSHM_OK;
}

/* Device memory: without the mutex. */
static void map_undo(struct mcshm *c, const struct mcl_map *map)
{
    CUresult e;

    if (map->base == NULL)
        return;
    if (!map->gpu) {
        mcs_region_unmap(map->base, map->size);
        return;
    }
    e = mcl_gpu_unmap(c->gpu, map->device, map->base, map->size);
    if (e != CUDA_SUCCESS)
        mcl_log(c, MCSHM_LOG_WARNING, "unmapping %llu bytes of GPU memory at %p: %s",
                (unsigned long long)map->size, (void *)map->base,
                mcs_cuda_error(c->gpu->driver, e));
}

/* What mcshm_map() does about a grant; one of device memory is mapped without the mutex. */
static mcshm_status map_grant(struct mcshm *c, const struct mcs_msg_map_reply *r, int fd,
                              struct mcl_map *map)
{
    mcshm_status status;

    if (r->memory != MCS_MEMORY_GPU) {
        status = map_host(r, fd, map);
    } else {
        pthread_mutex_unlock(&c->mutex);
        pthread_mutex_lock(&c->gpu_mutex);
        status = map_gpu(c, r, fd, map);
        pthread_mutex_unlock(&c->gpu_mutex);
        pthread_mutex_lock(&c->mutex);
    }
    if (status == MCSHM_OK) {
        map->start = map->base + r->offset;
        status = map_note(c, map);
    }
    if (status == MCSHM_OK && map->life != c->restarts) { /* another agent has come meanwhile */
        c->grants_due = true;
        mcl_stir(c);
    }
    return status;
}

MCSHM_API mcshm_status mcshm_map(mcshm *c, mcshm_segment segment, uint64_t address, size_t size,
                                 const void **out)
{
    struct mcl_map map = {.segment = segment, .address = address, .length = size};
    struct mcs_msg_map_reply r;
    struct mcl_fds fds;
    mcshm_status status = mcl_check(c);
    char why[512];

    if (status != MCSHM_OK)
        return status;
    if (out == NULL || size == 0)
        return mcl_fail(MCSHM_INVALID_ARGUMENT, "mcshm_map: %s",
                        out == NULL ? "out is NULL" : "size is 0");
    *out = NULL;
    pthread_mutex_lock(&c->mutex);
    status = grant_ask(c, segment, address, size, false, &r, &fds);
    if (status != MCSHM_OK)
        goto out_unlock;
    map.grant = r.grant;
    map.life = c->restarts;
    status = map_grant(c, &r, fds.fd[0], &map);
    mcl_close_fds(&fds);
    if (status != MCSHM_OK) {
        snprintf(why, sizeof(why), "%s", mcshm_last_error(c));
        grant_return(c, map.grant, map.life);
        mcl_fail(status, "%s", why);
    }
out_unlock:
    pthread_mutex_unlock(&c->mutex);
    if (status == MCSHM_OK)
        *out = map.start;
    else
        map_undo(c, &map);
    return status;
}

MCSHM_API mcshm_status mcshm_unmap(mcshm *c, const void *mapped)
{
    mcshm_status status = mcl_check(c);
    struct mcl_map map = {0};
    size_t i = 0;

    if (status != MCSHM_OK)
        return status;
    if (mapped == NULL)
        return mcl_fail(MCSHM_INVALID_ARGUMENT, "mcshm_unmap: mapped is NULL");
    pthread_mutex_lock(&c->mutex);
    while (i < c->nmaps && c->maps[i].start != mapped)
        i++;
    if (i < c->nmaps) {
        map = c->maps[i];
        c->maps[i] = c->maps[--c->nmaps];
    } else {
        status = mcl_fail(MCSHM_INVALID_HANDLE, "%p was not returned by mcshm_map()", mapped);
    }
    pthread_mutex_unlock(&c->mutex);
    if (status != MCSHM_OK)
        return status;
    map_undo(c, &map);
    pthread_mutex_lock(&c->mutex);
    grant_return(c, map.grant, map.life);
    pthread_mutex_unlock(&c->mutex);
    return MCSHM_OK;
}

void mcl_maps_renew(struct mcshm *c)
{
    for (size_t i = 0; i < c->nmaps; i++) {
        struct mcl_map *map = &c->maps[i];
        struct mcs_msg_map_reply r;
        struct mcl_fds fds;

        if (map->life == c->restarts)
            continue;
        /* the memory is mapped, and stays so, as after its owner's death */
        if (grant_ask(c, map->segment, map->address, map->length, false, &r, &fds) == MCSHM_OK) {
            mcl_close_fds(&fds);
            map->grant = r.grant;
            map->life = c->restarts;
        } else {
            mcl_log(c, MCSHM_LOG_WARNING, "the mapping at %p is not granted anew: %s", map->start,
                    mcshm_last_error(c));
        }
    }
}

/* ---- copies in the caller's thread ----------------------------------------------- */

static void grants_unmap(const struct mcl_grant *grants, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (!grants[i].sharing)
            mcs_region_unmap(grants[i].extent, grants[i].map_size);
    }
}

void mcl_grants_drop(struct mcshm *c, struct mcl_segment *s)
{
    struct mcl_grant *grants = s->grants;
    size_t n = s->ngrants;

    s->grants = NULL;
    s->ngrants = 0;
    if (n == 0)
        goto out; /* room for grants that were not given */
    /* first our own threads, then the agent may know */
    (void)mcl_view_update(c, NULL); /* when memory is short it knows less: that is safe */
    for (size_t i = 0; i < n; i++) {
        if (!grants[i].sharing)
            grant_return(c, grants[i].grant, grants[i].life);
    }
    grants_unmap(grants, n);
out:
    free(grants);
}

/* The agent grants whole extents: does one that is mapped already hold this buffer? */
static const struct mcl_grant *find_mapping(const struct mcl_segment *s,
                                            const struct mcs_msg_buffer_info *b, bool writable)
{
    for (size_t i = 0; i < s->ngrants; i++) {
        const struct mcl_grant *g = &s->grants[i];
        uint64_t offset = b->address - g->extent_address;

        if (offset < g->map_size && b->length <= g->map_size - offset && (g->writable || !writable))
            return g;
    }
    return NULL;
}

/* Maps one buffer into *g. */
static int grant_map(struct mcshm *c, const struct mcl_segment *s,
                     const struct mcs_msg_buffer_info *b, struct mcl_grant *g)
{
    bool writable = (b->access & MCS_ACCESS_MAP_WRITE) != 0;
    const struct mcl_grant *other = find_mapping(s, b, writable);
    struct mcs_msg_map_reply r;
    struct mcl_fds fds;
    void *base = NULL;
    int res;

    if (other != NULL) {
        *g = *other;
        g->sharing = true;
        g->address = b->address;
        g->size = b->length;
        g->access = b->access;
        return 0;
    }
    if (grant_ask(c, s->handle, b->address, b->length, writable, &r, &fds) != MCSHM_OK)
        return -EACCES;
    *g = (struct mcl_grant){
        .address = b->address,
        .size = b->length,
        .access = b->access,
        .writable = writable,
        .grant = r.grant,
        .life = c->restarts,
        .extent_address = b->address - r.offset,
        .map_size = r.extent_size,
    };
    res = mcl_extent_map(fds.fd[0], writable, NULL, &g->map_size, &base);
    g->extent = base;
    mcl_close_fds(&fds);
    if (res != 0)
        grant_return(c, r.grant, g->life);
    return res;
}

static bool has_grant(const struct mcl_segment *s, const struct mcs_msg_buffer_info *b)
{
    for (size_t i = 0; i < s->ngrants; i++) {
        if (s->grants[i].address == b->address && s->grants[i].size == b->length &&
            s->grants[i].access == b->access)
            return true;
    }
    return false;
}

/* Adds the grants that the segment's buffers offer and that are not there yet. */
static void grants_add(struct mcshm *c, struct mcl_segment *s)
{
    struct mcs_msg_buffer_info *list = NULL;
    struct mcl_grant *grants;
    size_t n = 0;

    if (s->own || !s->same_tenant || c->info.caller_max == 0)
        return;
    if (mcl_describe(c, s->handle, &list, &n) != MCSHM_OK || n == 0)
        goto out;
    grants = reallocarray(s->grants, s->ngrants + n, sizeof(*grants));
    if (grants == NULL)
        goto out;
    s->grants = grants;
    for (size_t i = 0; i < n; i++) {
        if ((list[i].access & (MCS_ACCESS_MAP_READ | MCS_ACCESS_MAP_WRITE)) != 0 &&
            list[i].memory == MCS_MEMORY_HOST && !has_grant(s, &list[i]) &&
            grant_map(c, s, &list[i], &grants[s->ngrants]) == 0)
            s->ngrants++;
    }
    if (s->ngrants != 0)
        mcl_log(c, MCSHM_LOG_DEBUG,
                "segment %u: %zu buffers mapped for copies in the caller's thread", s->handle,
                s->ngrants);
out:
    free(list);
}

/* Drops all grants and asks for those of the same segments anew, but for those of `s`. */
static void grants_exchange(struct mcshm *c, const struct mcl_segment *s, uint64_t version)
{
    /* the old version stays on all views until the last old grant is off them */
    for (size_t i = 0; i < c->nsegments; i++) {
        c->segments[i].granted = c->segments[i].ngrants != 0;
        mcl_grants_drop(c, &c->segments[i]);
    }
    c->grants_version = version;
    for (size_t i = 0; i < c->nsegments; i++) {
        if (c->segments[i].granted && &c->segments[i] != s)
            grants_add(c, &c->segments[i]);
    }
}

void mcl_grants_renew(struct mcshm *c)
{
    /* read before anything is asked, as below */
    uint64_t version = mcs_load_acquire(&c->region.words->grants_version);

    grants_exchange(c, NULL, version);
    if (!c->grants_due) /* else the agent died meanwhile */
        c->grants_off = false;
    (void)mcl_view_extend(c); /* when memory is short the agent copies */
}

void mcl_grants_take(struct mcshm *c, struct mcl_segment *s)
{
    /* read before anything is asked: what is withdrawn later makes the word differ from it;
     * acquire pairs with the agent's store */
    uint64_t version = mcs_load_acquire(&c->region.words->grants_version);

    if (version != c->grants_version)
        grants_exchange(c, s, version);
    if (s != NULL)
        grants_add(c, s);
    (void)mcl_view_extend(c); /* when memory is short the agent copies */
}

void mcl_grants_check(struct mcshm *c)
{
    /* acquire: pairs with the agent's store */
    if (mcs_load_acquire(&c->region.words->grants_version) != c->grants_version)
        mcl_grants_take(c, NULL);
}

void mcl_grants_fini(struct mcshm *c, bool mapped)
{
    for (size_t i = 0; i < c->nsegments; i++) {
        if (mapped)
            grants_unmap(c->segments[i].grants, c->segments[i].ngrants);
        free(c->segments[i].grants);
        free(c->segments[i].name);
    }
    free(c->segments);
    for (size_t i = 0; mapped && i < c->nmaps; i++)
        mcs_region_unmap(c->maps[i].base, c->maps[i].size);
    free(c->maps);
    mcl_object_maps_fini(c, mapped);
}
