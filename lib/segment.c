/* SPDX-License-Identifier: Apache-2.0 */
#include "internal.h"

#include <stdlib.h>

static bool good_name(const char *name)
{
    size_t n = strnlen(name, MCS_NAME_MAX);

    if (n == 0 || n == MCS_NAME_MAX)
        return false;
    for (size_t i = 0; i < n; i++) {
        if ((unsigned char)name[i] < 0x20 || name[i] == 0x7f)
            return false;
    }
    return true;
}

static mcshm_status bad_name(void)
{
    return mcl_fail(MCSHM_INVALID_ARGUMENT,
                    "a segment's name has 1 .. %u bytes and no control characters",
                    MCS_NAME_MAX - 1);
}

/* ---- publishing ------------------------------------------------------------------ */

MCSHM_API mcshm_status mcshm_segment_publish(mcshm *c, const char *name, uint32_t flags)
{
    struct mcs_msg m = {.b.publish.flags = flags};
    mcshm_status status = mcl_check(c);

    if (status != MCSHM_OK)
        return status;
    if (name == NULL || !good_name(name))
        return bad_name();
    if ((flags & ~MCS_SEGMENT_FLAGS) != 0)
        return mcl_fail(MCSHM_INVALID_ARGUMENT, "segment flags 0x%x are unknown",
                        flags & ~MCS_SEGMENT_FLAGS);
    memcpy(m.b.publish.name, name, strlen(name));
    pthread_mutex_lock(&c->mutex);
    status = mcl_call(c, MCS_MSG_PUBLISH, &m, -1, NULL);
    if (status == MCSHM_OK)
        c->segment_incarnation = m.b.publish_reply.incarnation;
    pthread_mutex_unlock(&c->mutex);
    return status;
}

MCSHM_API mcshm_status mcshm_segment_withdraw(mcshm *c)
{
    struct mcs_msg m = {0};
    mcshm_status status = mcl_check(c);

    if (status != MCSHM_OK)
        return status;
    pthread_mutex_lock(&c->mutex);
    status = mcl_call(c, MCS_MSG_WITHDRAW, &m, -1, NULL);
    if (status == MCSHM_OK || status == MCSHM_TIMEOUT) {
        c->segment_incarnation = 0;
        c->nbuffers = 0;
        for (size_t i = 0; i < c->nsegments; i++)
            c->segments[i].own = false; /* handles of the name's former life */
        (void)mcl_view_update(c, NULL); /* when memory is short it knows less: that is safe */
        mcl_grants_check(c);
    }
    pthread_mutex_unlock(&c->mutex);
    return status;
}

static struct mcl_buffer *buffer_find(struct mcshm *c, const void *start, uint64_t size)
{
    for (size_t i = 0; i < c->nbuffers; i++) {
        if (c->buffers[i].start == start && c->buffers[i].size == size)
            return &c->buffers[i];
    }
    return NULL;
}

/* Notes what the agent has just published, so that copies onto the own segment may use it. */
static mcshm_status buffer_note(struct mcshm *c, void *start, uint64_t size, uint32_t access,
                                uint64_t address)
{
    mcshm_status unused;
    const struct mcl_extent *e = mcl_extent_around(c, start, size, &unused);
    struct mcl_buffer *b = buffer_find(c, start, size);

    if (b != NULL) {
        b->references++;
        return MCSHM_OK;
    }
    if (mcl_grow(&c->buffers, c->nbuffers, &c->buffers_room, sizeof(*b)) != 0)
        return mcl_fail(MCSHM_NO_MEMORY, "out of memory for one more buffer");
    c->buffers[c->nbuffers++] = (struct mcl_buffer){.start = start,
                                                    .size = size,
                                                    .address = address,
                                                    .access = access,
                                                    .references = 1,
                                                    .gpu = e != NULL && e->gpu};
    (void)mcl_view_extend(c); /* when memory is short the agent copies */
    return MCSHM_OK;
}

/* Fills a message about the range. */
static mcshm_status buffer_message(struct mcshm *c, const void *address, size_t size,
                                   struct mcs_msg *m)
{
    mcshm_status status = MCSHM_OK;
    const struct mcl_extent *e;

    if (address == NULL || size == 0)
        return mcl_fail(MCSHM_INVALID_ARGUMENT, "%zu bytes at %p are no range", size, address);
    e = mcl_extent_around(c, address, size, &status);
    if (e == NULL)
        return status;
    *m = (struct mcs_msg){.b.buffer = {
                              .extent = e->handle,
                              .offset = (uint64_t)((const uint8_t *)address - e->base),
                              .length = size,
                          }};
    return MCSHM_OK;
}

MCSHM_API mcshm_status mcshm_buffer_publish(mcshm *c, void *address, size_t size, uint32_t access,
                                            uint64_t *published)
{
    struct mcs_msg m;
    mcshm_status status = mcl_check(c);

    if (status != MCSHM_OK)
        return status;
    if (access == 0 || (access & ~MCS_ACCESS_ALL) != 0)
        return mcl_fail(MCSHM_INVALID_ARGUMENT, "access 0x%x is not a set of MCSHM_ACCESS_* rights",
                        access);
    pthread_mutex_lock(&c->mutex);
    status = buffer_message(c, address, size, &m);
    if (status != MCSHM_OK)
        goto out;
    m.b.buffer.access = access;
    status = mcl_call(c, MCS_MSG_BUFFER_ADD, &m, -1, NULL);
    if (status != MCSHM_OK)
        goto out;
    if (published != NULL)
        *published = m.b.buffer_reply.address;
    status = buffer_note(c, address, size, access, m.b.buffer_reply.address);
    if (status != MCSHM_OK && buffer_message(c, address, size, &m) == MCSHM_OK)
        (void)mcl_call(c, MCS_MSG_BUFFER_REMOVE, &m, -1, NULL);
out:
    pthread_mutex_unlock(&c->mutex);
    return status;
}

MCSHM_API mcshm_status mcshm_buffer_withdraw(mcshm *c, void *address, size_t size)
{
    struct mcs_msg m;
    struct mcl_buffer *b;
    mcshm_status status = mcl_check(c);

    if (status != MCSHM_OK)
        return status;
    pthread_mutex_lock(&c->mutex);
    status = buffer_message(c, address, size, &m);
    if (status == MCSHM_OK)
        status = mcl_call(c, MCS_MSG_BUFFER_REMOVE, &m, -1, NULL);
    b = status == MCSHM_OK || status == MCSHM_TIMEOUT ? buffer_find(c, address, size) : NULL;
    if (b != NULL && --b->references == 0) {
        *b = c->buffers[--c->nbuffers];
        (void)mcl_view_update(c, NULL); /* when memory is short it knows less: that is safe */
    }
    mcl_grants_check(c);
    pthread_mutex_unlock(&c->mutex);
    return status;
}

void mcl_buffers_cut(struct mcshm *c, const uint8_t *start, uint64_t size)
{
    uintptr_t low = (uintptr_t)start, high = low + size;

    for (size_t i = 0; i < c->nbuffers;) {
        struct mcl_buffer *b = &c->buffers[i];
        uintptr_t b_low = (uintptr_t)b->start, b_high = b_low + b->size;

        if (b_high <= low || high <= b_low) {
            i++;
            continue;
        }
        /* what remains below and above; without room for a second part it is forgotten,
         * and the agent copies there */
        if (b_low < low && high < b_high &&
            mcl_grow(&c->buffers, c->nbuffers, &c->buffers_room, sizeof(*b)) == 0) {
            struct mcl_buffer above = c->buffers[i];

            above.start += high - b_low;
            above.address += high - b_low;
            above.size = b_high - high;
            c->buffers[c->nbuffers++] = above;
            b = &c->buffers[i];
        }
        if (b_low < low) {
            b->size = low - b_low;
            i++;
        } else if (high < b_high) {
            b->start += high - b_low;
            b->address += high - b_low;
            b->size = b_high - high;
            i++;
        } else {
            *b = c->buffers[--c->nbuffers];
        }
    }
}

MCSHM_API mcshm_status mcshm_revoke(mcshm *c, void *address, size_t size)
{
    struct mcs_msg m;
    mcshm_status status = mcl_check(c);

    if (status != MCSHM_OK)
        return status;
    pthread_mutex_lock(&c->mutex);
    status = buffer_message(c, address, size, &m);
    if (status == MCSHM_OK) {
        /* first our own threads, then everybody else */
        mcl_buffers_cut(c, address, size);
        (void)mcl_view_update(c, NULL); /* when memory is short it knows less: that is safe */
        status = mcl_call(c, MCS_MSG_REVOKE, &m, -1, NULL);
        mcl_grants_check(c);
    }
    pthread_mutex_unlock(&c->mutex);
    return status;
}

/* ---- opening --------------------------------------------------------------------- */

struct mcl_segment *mcl_segment_by_handle(struct mcshm *c, uint32_t handle)
{
    for (size_t i = 0; i < c->nsegments; i++) {
        if (c->segments[i].handle == handle)
            return &c->segments[i];
    }
    return NULL;
}

static mcshm_status not_open(mcshm_segment segment)
{
    return mcl_fail(MCSHM_INVALID_HANDLE, "segment %u is not open", segment);
}

MCSHM_API mcshm_status mcshm_segment_open(mcshm *c, const char *name, mcshm_segment *out)
{
    struct mcs_msg m = {0};
    struct mcs_msg_segment_open_reply r;
    struct mcl_segment *s;
    char *copy = NULL;
    mcshm_status status = mcl_check(c);

    if (status != MCSHM_OK)
        return status;
    if (out == NULL)
        return mcl_fail(MCSHM_INVALID_ARGUMENT, "mcshm_segment_open: out is NULL");
    *out = 0;
    if (name == NULL || !good_name(name))
        return bad_name();
    memcpy(m.b.segment_open.name, name, strlen(name));
    pthread_mutex_lock(&c->mutex);
    copy = strdup(name);
    if (copy == NULL || mcl_grow(&c->segments, c->nsegments, &c->segments_room, sizeof(*s)) != 0) {
        status = mcl_fail(MCSHM_NO_MEMORY, "out of memory for one more segment");
        goto out;
    }
    status = mcl_call(c, MCS_MSG_SEGMENT_OPEN, &m, -1, NULL);
    if (status != MCSHM_OK)
        goto out;
    r = m.b.segment_open_reply;
    s = mcl_segment_by_handle(c, r.segment);
    if (s == NULL) {
        s = &c->segments[c->nsegments++];
        *s = (struct mcl_segment){
            .handle = r.segment,
            .name = copy,
            .incarnation = r.incarnation,
            .own = c->segment_incarnation != 0 && r.incarnation == c->segment_incarnation,
            .same_tenant = r.same_tenant != 0,
        };
        copy = NULL;
    }
    s->references++;
    mcl_grants_take(c, s);
    *out = r.segment;
out:
    pthread_mutex_unlock(&c->mutex);
    free(copy);
    return status;
}

MCSHM_API mcshm_status mcshm_segment_close(mcshm *c, mcshm_segment segment)
{
    struct mcs_msg m = {.b.segment_close.segment = segment};
    struct mcl_segment *s;
    mcshm_status status = mcl_check(c);

    if (status != MCSHM_OK)
        return status;
    pthread_mutex_lock(&c->mutex);
    s = mcl_segment_by_handle(c, segment);
    if (s == NULL) {
        status = not_open(segment);
        goto out;
    }
    if (s->references == 1)
        mcl_grants_drop(c, s);
    status = mcl_call(c, MCS_MSG_SEGMENT_CLOSE, &m, -1, NULL);
    if (--s->references == 0) {
        free(s->name);
        *s = c->segments[--c->nsegments];
        (void)mcl_view_update(c, NULL); /* when memory is short it knows less: that is safe */
    }
out:
    pthread_mutex_unlock(&c->mutex);
    return status;
}

static int by_address(const void *a, const void *b)
{
    const struct mcs_msg_buffer_info *x = a, *y = b;

    return (x->address > y->address) - (x->address < y->address);
}

/* One pass over the pages of the answer. *again: the buffers changed in between. */
static mcshm_status describe_once(struct mcshm *c, uint32_t segment,
                                  struct mcs_msg_buffer_info **list, size_t *count, bool *again)
{
    uint64_t version = 0;
    size_t total;

    *again = false;
    *count = 0;
    do {
        struct mcs_msg m = {.b.describe = {.segment = segment, .first = (uint32_t)*count}};
        const struct mcs_msg_describe_reply *r = &m.b.describe_reply;
        mcshm_status status = mcl_call(c, MCS_MSG_DESCRIBE, &m, -1, NULL);
        struct mcs_msg_buffer_info *p;

        if (status != MCSHM_OK)
            return status;
        if (*count != 0 && r->version != version) {
            *again = true;
            return MCSHM_OK;
        }
        version = r->version;
        total = r->total;
        if (total < *count || r->count > total - *count || (r->count == 0 && *count < total))
            return mcl_fail(MCSHM_PROTOCOL, "the agent's description contradicts itself");
        p = reallocarray(*list, total + 1, sizeof(*p));
        if (p == NULL)
            return mcl_fail(MCSHM_NO_MEMORY, "out of memory for %zu buffers", total);
        *list = p;
        memcpy(p + *count, r->buffers, r->count * sizeof(*p));
        *count += r->count;
    } while (*count < total);
    return MCSHM_OK;
}

mcshm_status mcl_describe(struct mcshm *c, uint32_t segment, struct mcs_msg_buffer_info **out,
                          size_t *count)
{
    struct mcs_msg_buffer_info *list = NULL;
    mcshm_status status;
    bool again;

    for (int tries = 0; tries < 16; tries++) {
        status = describe_once(c, segment, &list, count, &again);
        if (status != MCSHM_OK)
            break;
        if (!again) {
            qsort(list, *count, sizeof(*list), by_address);
            *out = list;
            return MCSHM_OK;
        }
        status = mcl_fail(MCSHM_BUSY, "the segment's buffers keep changing: ask again");
    }
    free(list);
    return status;
}

MCSHM_API mcshm_status mcshm_segment_describe(mcshm *c, mcshm_segment segment,
                                              mcshm_buffer *buffers, size_t *count)
{
    struct mcs_msg_buffer_info *list = NULL;
    struct mcl_segment *s;
    size_t n = 0, room;
    mcshm_status status = mcl_check(c);

    if (status != MCSHM_OK)
        return status;
    if (count == NULL || (buffers == NULL && *count != 0))
        return mcl_fail(MCSHM_INVALID_ARGUMENT, "mcshm_segment_describe: %s is NULL",
                        count == NULL ? "count" : "buffers");
    room = *count;
    pthread_mutex_lock(&c->mutex);
    s = mcl_segment_by_handle(c, segment);
    status = s == NULL ? not_open(segment) : mcl_describe(c, segment, &list, &n);
    if (status == MCSHM_OK)
        mcl_grants_take(c, s); /* buffers may be new */
    pthread_mutex_unlock(&c->mutex);
    if (status == MCSHM_OK) {
        for (size_t i = 0; i < n && i < room; i++) {
            buffers[i] = (mcshm_buffer){
                .address = list[i].address, .size = list[i].length, .access = list[i].access};
            memcpy(buffers[i].location, list[i].location, sizeof(buffers[i].location) - 1);
        }
        *count = n;
    }
    free(list);
    return status;
}
