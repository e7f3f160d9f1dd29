/* SPDX-License-Identifier: Apache-2.0 */
/* Control requests about segments: names, buffers, open handles. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cluster.h"
#include "gpu.h"
#include "handlers.h"
#include "log.h"
#include "mooncake.h"
#include "store_wire.h"
#include "shm/failpoint.h"

/* ---- segments -------------------------------------------------------------------- */

static struct mcd_segment *find_name(struct mcd_agent *a, const char *name)
{
    struct mcd_segment *seg = a->segments;

    while (seg != NULL && strcmp(seg->name, name) != 0)
        seg = seg->next;
    return seg;
}

/* ---- names in the cluster's metadata ------------------------------------------------- */

static bool in_metadata(const struct mcd_agent *a)
{
    return a->cluster != NULL &&
           (a->config.meta_backend == MCM_ETCD || a->config.meta_backend == MCM_HTTP);
}

static void registered(void *context, const struct mcm_result *result)
{
    struct mcd_session *s = context;
    const struct mcm_record *holder = result->record;

    s->op.answered = true;
    MCS_FAILPOINT(meta_registered);
    switch (result->res) {
    case 0:
        s->op.status = MCS_OK;
        return;
    case -EEXIST:
        s->op.status = MCS_EXISTS;
        snprintf(
            s->op.text, sizeof(s->op.text),
            "segment '%.80s' belongs to the living agent %.60s: choose another name or end its "
            "owner",
            s->segment->name, holder != NULL ? holder->agent : "of another host");
        return;
    case -EINVAL:
        s->op.status = MCS_INVALID_ARGUMENT;
        break;
    default:
        s->op.status = MCS_METADATA;
        break;
    }
    snprintf(s->op.text, sizeof(s->op.text), "%s",
             result->text != NULL ? result->text : strerror(-result->res));
}

static bool is_answered(struct mcd_session *s)
{
    return s->op.answered;
}

static void announced(struct mcd_session *s)
{
    struct mcs_msg m;

    if (s->op.status != MCS_OK) {
        mcd_session_unname(s);
        mcd_segments_changed(s->agent); /* for who has opened it in the meantime */
        mcd_session_refuse(s, s->op.status, "%s", s->op.text);
        return;
    }
    m.b.publish_reply.incarnation = s->segment->incarnation;
    mcd_reply(s, &m, sizeof(m.b.publish_reply));
    mcd_segments_changed(s->agent);
}

/* The name is taken on this host; now in the cluster. The session cannot go away in between, and the
 * metadata answers within its time limit, whatever it says. */
static void announce(struct mcd_session *s)
{
    struct mcm_record r;

    mcd_session_meta_record(s, &r);
    mcd_session_defer(s, is_answered, announced);
    MCS_FAILPOINT(meta_register);
    mcm_register(s->agent->cluster->meta, &r, registered, s);
}

void mcd_on_publish(struct mcd_session *s, struct mcs_msg *m)
{
    const struct mcs_msg_publish *r = &m->b.publish;
    struct mcd_agent *a = s->agent;
    struct mcd_segment *seg = s->segment;

    if (!mcd_good_name(r->name) || (r->flags & ~MCS_SEGMENT_FLAGS) != 0) {
        mcd_session_refuse(s, MCS_INVALID_ARGUMENT,
                           "segment name or flags %#x: want 1 to %u bytes of UTF-8 without "
                           "control characters, and known flags",
                           r->flags, MCS_NAME_MAX - 1);
        return;
    }
    if (seg->named && s->restored && strcmp(seg->name, r->name) == 0 && seg->flags == r->flags) {
        /* asked again, since the answer of an earlier agent was lost */
        m->b.publish_reply.incarnation = seg->incarnation;
        mcd_reply(s, m, sizeof(m->b.publish_reply));
        return;
    }
    if (seg->named) {
        mcd_session_refuse(s, MCS_EXISTS, "this session's segment is already named '%s'",
                           seg->name);
        return;
    }
    if (find_name(a, r->name) != NULL) {
        mcd_session_refuse(s, MCS_EXISTS,
                           "segment '%s' belongs to a living session: choose "
                           "another name or end that client",
                           r->name);
        return;
    }
    snprintf(seg->name, sizeof(seg->name), "%s", r->name);
    seg->flags = r->flags;
    mcd_session_name(s);
    MCS_FAILPOINT(published);
    if (in_metadata(a)) {
        announce(s);
        return;
    }
    m->b.publish_reply.incarnation = seg->incarnation;
    mcd_reply(s, m, sizeof(m->b.publish_reply));
    mcd_segments_changed(a);
}

static void withdrawn(struct mcd_session *s)
{
    struct mcs_msg m;

    mcd_reply_taken(s, 0, &m);
}

/* Nobody reaches the memory any more. Others may take the name once the metadata has let go of it,
 * which it has a limited time for. */
static void unreachable(struct mcd_session *s)
{
    mcd_session_defer(s, is_answered, withdrawn);
}

void mcd_on_withdraw(struct mcd_session *s)
{
    if (!s->segment->named) {
        mcd_session_refuse(s, MCS_NOT_FOUND, "this session has published no segment");
        return;
    }
    s->op.answered = s->agent->cluster == NULL;
    mcd_session_withdraw(s, &s->op.old);
    s->op.extent = NULL;
    mcd_take_away(s, unreachable);
}

/* The own extent and range that a buffer request names; refuses and returns NULL when bad. */
static struct mcd_extent *buffer_range(struct mcd_session *s, const struct mcs_msg_buffer *r)
{
    struct mcd_extent *e = mcd_session_extent(s, r->extent);

    if (e == NULL)
        mcd_session_refuse(s, MCS_INVALID_HANDLE, "extent %#x is not this session's", r->extent);
    else if (r->length == 0)
        mcd_session_refuse(s, MCS_INVALID_ARGUMENT, "a buffer of 0 bytes");
    else if (r->offset > e->size || r->length > e->size - r->offset)
        mcd_session_refuse(s, MCS_BAD_RANGE, "offset %llu, length %llu: the extent has %llu bytes",
                           (unsigned long long)r->offset, (unsigned long long)r->length,
                           (unsigned long long)e->size);
    else
        return e;
    return NULL;
}

static void buffer_added(struct mcd_session *s)
{
    struct mcs_msg m;

    m.b.buffer_reply.address = s->op.extent->address + s->op.offset;
    free(s->op.old);
    mcd_reply(s, &m, sizeof(m.b.buffer_reply));
}

static void refuse_buffer(struct mcd_session *s, int res)
{
    if (res == -EEXIST)
        mcd_session_refuse(s, MCS_OVERLAP,
                           "offset %llu, length %llu overlaps a buffer that is published already",
                           (unsigned long long)s->op.offset, (unsigned long long)s->op.length);
    else if (res == -ENOSPC)
        mcd_session_refuse(s, MCS_LIMIT,
                           "a segment has at most %u buffers: publish larger ones, ranges need not "
                           "be a single allocation",
                           MCD_BUFFERS_MAX);
    else
        mcd_session_refuse(s, MCS_NO_MEMORY, "no memory for the new list of buffers");
}

/* Peers' devices can reach it, if they are to: now peers may hear of it. */
static void buffer_registered(struct mcd_session *s)
{
    struct mcd_registration *r = s->op.fresh[0];
    struct mcd_operation *op = &s->op;
    int res;

    op->fresh[0] = NULL;
    if (mcd_op_refused(s)) {
        if (r != NULL)
            mcd_registration_drop(r, NULL, NULL);
        return;
    }
    res = mcd_segment_add(s->segment, op->extent, op->offset, op->length, op->access, &op->old);
    if (r != NULL &&
        (res != 0 || !mcd_segment_attach(s->segment, op->extent, op->offset, op->length, r)))
        mcd_registration_drop(r, NULL, NULL);
    if (res != 0) {
        refuse_buffer(s, res);
        return;
    }
    mcd_segments_changed(s->agent);
    mcd_session_defer(s, NULL, buffer_added); /* the old list must outlive this turn */
}

/* Of a session that comes back: others wait for it, so it is reached over other transports until then. */
static struct mcd_registration *register_late(struct mcd_session *s)
{
    struct mcd_registry *g = &s->agent->registry;
    unsigned access = mcd_registration_access(s->op.access);
    struct mcd_registration *r = NULL;

    if (g->rdma != NULL && access != 0)
        (void)mcd_registration_create(g, s->op.extent, s->op.offset, s->op.length, access,
                                      mcd_registered_late, s->agent, &r);
    return r;
}

void mcd_on_buffer_add(struct mcd_session *s, struct mcs_msg *m)
{
    const struct mcs_msg_buffer r = m->b.buffer;
    struct mcd_extent *e = buffer_range(s, &r);
    int res;

    if (e == NULL)
        return;
    if (r.access == 0 || (r.access & ~MCS_ACCESS_ALL) != 0) {
        mcd_session_refuse(s, MCS_INVALID_ARGUMENT,
                           "access %#x: want a mix of READ, WRITE, "
                           "MAP_READ and MAP_WRITE",
                           r.access);
        return;
    }
    if (e->foreign && e->gpu == NULL &&
        (r.access & (MCS_ACCESS_MAP_READ | MCS_ACCESS_MAP_WRITE)) == MCS_ACCESS_MAP_READ) {
        mcd_session_refuse(
            s, MCS_NOT_SUPPORTED,
            "memory of a registered memfd cannot be mapped read-only: whoever maps it "
            "could open it for writing; use pool memory, or grant MAP_WRITE too");
        return;
    }
    if (e->gpu != NULL &&
        (r.access & (MCS_ACCESS_MAP_READ | MCS_ACCESS_MAP_WRITE)) == MCS_ACCESS_MAP_READ) {
        mcd_session_refuse(s, MCS_NOT_SUPPORTED,
                           "GPU memory cannot be mapped read-only: whoever imports it chooses his "
                           "own access; grant "
                           "MAP_WRITE too, or READ alone");
        return;
    }
    s->op.extent = e;
    s->op.offset = r.offset;
    s->op.length = r.length;
    s->op.access = r.access;
    res = mcd_segment_may_add(s->segment, e, r.offset, r.length, r.access);
    if (res != 0 && res != -EALREADY) {
        refuse_buffer(s, res);
        return;
    }
    s->op.fresh[0] = NULL;
    if (res == 0)
        s->op.fresh[0] = s->limbo != NULL ? register_late(s)
                                          : mcd_op_register(s, e, r.offset, r.length, r.access);
    mcd_op_registered(s, buffer_registered);
}

static void buffer_removed(struct mcd_session *s)
{
    struct mcs_msg m;

    m.b.buffer_reply.address = 0;
    mcd_reply_taken(s, sizeof(m.b.buffer_reply), &m);
}

static void buffer_cut(struct mcd_session *s)
{
    if (mcd_op_swap(s) != 0)
        mcd_session_refuse(s, MCS_NO_MEMORY, "no memory for the new list of buffers");
    else
        mcd_take_away(s, buffer_removed);
}

void mcd_on_buffer_remove(struct mcd_session *s, struct mcs_msg *m, bool revoke)
{
    const struct mcs_msg_buffer r = m->b.buffer;
    struct mcd_extent *e = buffer_range(s, &r);
    int res;

    if (e == NULL)
        return;
    s->op.extent = e;
    s->op.offset = r.offset;
    s->op.length = r.length;
    if (revoke) {
        mcd_op_cut(s, buffer_cut);
        return;
    }
    res = mcd_segment_remove(s->segment, e, r.offset, r.length, &s->op.old);
    if (res == -ENOENT) {
        mcd_session_refuse(s, MCS_NOT_FOUND, "offset %llu, length %llu is no published buffer",
                           (unsigned long long)r.offset, (unsigned long long)r.length);
        return;
    }
    if (res != 0) {
        mcd_session_refuse(s, MCS_NO_MEMORY, "no memory for the new list of buffers");
        return;
    }
    mcd_take_away(s, buffer_removed);
}

/* ---- open handles -------------------------------------------------------------------- */

/* NULL: no memory. */
static struct mcd_open *enter_open(struct mcd_session *s, uint32_t handle, struct mcd_segment *seg)
{
    struct mcd_open *o = MCS_FAIL(segment_open) != 0 ? NULL : calloc(1, sizeof(*o));

    if (o == NULL)
        return NULL;
    o->handle = handle;
    o->segment = mcd_segment_get(seg);
    s->nopens++;
    /* partner: find_segment() in task.c */
    mcs_store_release(&s->opens[MCD_HANDLE_INDEX(handle)], o);
    return o;
}

/* An entry of the session's table with a reference to the segment; refuses and returns NULL when it is full. */
static struct mcd_open *add_open(struct mcd_session *s, struct mcd_segment *seg)
{
    uint32_t handle = mcd_session_handle_new(s, (void *const *)s->opens);
    struct mcd_open *o = handle == 0 ? NULL : enter_open(s, handle, seg);

    if (o == NULL)
        mcd_session_refuse(s, MCS_LIMIT, "a session has at most %u open segments", MCD_TABLE_SIZE);
    return o;
}

static bool is_mooncake(const char *name)
{
    return strncmp(name, MCD_MOONCAKE_PREFIX, strlen(MCD_MOONCAKE_PREFIX)) == 0;
}

/* A segment that is open again takes the place of the stale one. No engine looks: the session's
 * queues are not given to any before RESUME. */
static struct mcd_open *back_open(struct mcd_session *s, struct mcd_segment *seg)
{
    struct mcd_open *o = mcd_session_open(s, s->op.handle);

    s->op.handle = 0;
    if (seg->incarnation != s->op.incarnation && !is_mooncake(seg->name)) {
        mcd_session_refuse(s, MCS_STALE,
                           "segment '%.80s' is not the one any more that was open: open it again",
                           seg->name);
        return NULL;
    }
    mcd_segment_put(o->segment);
    o->segment = mcd_segment_get(seg);
    return o;
}

static void reply_open(struct mcd_session *s, struct mcd_segment *seg)
{
    struct mcd_open *o = s->op.handle != 0 ? back_open(s, seg) : add_open(s, seg);
    struct mcs_msg m;

    if (o == NULL)
        return;
    m.b.segment_open_reply = (struct mcs_msg_segment_open_reply){
        .segment = o->handle,
        .same_tenant = seg->tenant == s->tenant,
        .incarnation = seg->incarnation,
    };
    mcd_reply(s, &m, sizeof(m.b.segment_open_reply));
}

static void remote_found(void *context, uint32_t status, const char *text, struct mcd_segment *seg)
{
    struct mcd_session *s = context;

    s->op.opening = NULL;
    s->op.mooncake = NULL;
    s->op.answered = true;
    s->op.status = status;
    s->op.found = seg;
    snprintf(s->op.text, sizeof(s->op.text), "%s", text);
}

static bool is_found(struct mcd_session *s)
{
    if (s->ending && !s->op.answered) { /* nobody waits for it any more */
        if (s->op.opening != NULL)
            mcd_remote_cancel(s->op.opening);
        if (s->op.mooncake != NULL)
            mcd_mooncake_cancel(s->op.mooncake);
        s->op.opening = NULL;
        s->op.mooncake = NULL;
        s->op.answered = true;
        s->op.status = MCS_CANCELED;
    }
    return s->op.answered;
}

static void remote_opened(struct mcd_session *s)
{
    struct mcd_segment *seg = s->op.found;

    if (seg == NULL) {
        mcd_session_refuse(s, s->op.status, "%s", s->op.text);
        return;
    }
    reply_open(s, seg);
    mcd_segment_put(seg);
}

/* Of a stock Mooncake process. */
static void open_mooncake(struct mcd_session *s, const char *name)
{
    struct mcd_agent *a = s->agent;

    if (a->mooncake == NULL)
        mcd_session_refuse(s, MCS_NOT_SUPPORTED, "'%s%s': [mooncake] listen = off on this agent",
                           MCD_MOONCAKE_PREFIX, name);
    else if (mcd_mooncake_open(a->mooncake, name, a->config.open_ms, remote_found, s,
                               &s->op.mooncake) != 0)
        mcd_session_refuse(s, MCS_NO_MEMORY, "no memory to open a segment of another host");
    else
        mcd_session_defer(s, is_found, remote_opened);
}

static void open_elsewhere(struct mcd_session *s, const char *name)
{
    struct mcd_agent *a = s->agent;
    int res;

    if (strstr(name, MCD_STORE_SEGMENT) != NULL) { /* of no client's business */
        mcd_session_refuse(s, MCS_NOT_FOUND, "no segment has a name with control characters");
        return;
    }
    if (is_mooncake(name)) {
        open_mooncake(s, name + strlen(MCD_MOONCAKE_PREFIX));
        return;
    }
    if (a->cluster == NULL) {
        mcd_session_refuse(
            s, MCS_NOT_FOUND,
            "no segment '%s' on this host; `mcshm ls segments` lists them; other hosts "
            "are out of reach: [peer] listen = off",
            name);
        return;
    }
    res = mcd_remote_open(a->cluster, name, s->tenant, remote_found, s, &s->op.opening);
    if (res != 0)
        mcd_session_refuse(s, MCS_NO_MEMORY, "no memory to open a segment of another host");
    else
        mcd_session_defer(s, is_found, remote_opened);
}

static void open_by_name(struct mcd_session *s, const char *name)
{
    struct mcd_segment *seg;
    char address[MCD_ADDRESS_TEXT_MAX];
    const char *rest;

    seg = find_name(s->agent, name);
    if (seg == NULL && s->agent->cluster != NULL && mcd_name_split(name, address, &rest) &&
        strcmp(address, s->agent->cluster->address) == 0)
        seg = find_name(s->agent, rest); /* of this host, by its full name */
    if (seg == NULL) {
        open_elsewhere(s, name);
        return;
    }
    if (seg->tenant != s->tenant && (seg->flags & MCS_SEGMENT_PUBLIC) == 0) {
        mcd_session_refuse(s, MCS_ACCESS,
                           "segment '%s' is tenant %llu's and not public, this "
                           "session is tenant %llu's",
                           seg->name, (unsigned long long)seg->tenant,
                           (unsigned long long)s->tenant);
        return;
    }
    reply_open(s, seg);
}

void mcd_on_segment_open(struct mcd_session *s, struct mcs_msg *m)
{
    char name[MCS_NAME_MAX];

    m->b.segment_open.name[MCS_NAME_MAX - 1] = '\0';
    snprintf(name, sizeof(name), "%s", m->b.segment_open.name);
    open_by_name(s, name);
}

/* The handle is there from now on, and leads to nothing unless the segment can be had. */
void mcd_on_open_back(struct mcd_session *s, struct mcs_msg *m)
{
    const struct mcs_msg_open_back *r = &m->b.open_back;
    struct mcd_open *o = NULL;
    struct mcd_segment *none;
    char name[MCS_NAME_MAX];

    m->b.open_back.name[MCS_NAME_MAX - 1] = '\0';
    snprintf(name, sizeof(name), "%s", r->name);
    if (r->segment < MCD_TABLE_SIZE || s->opens[MCD_HANDLE_INDEX(r->segment)] != NULL) {
        mcd_session_refuse(s, MCS_INVALID_HANDLE, "%#x is no handle, or is open already",
                           r->segment);
        return;
    }
    none = mcd_segment_create(NULL, s->tenant, r->incarnation);
    if (none != NULL) {
        none->stale = true;
        o = enter_open(s, r->segment, none);
        mcd_segment_put(none);
    }
    if (o == NULL) {
        mcd_session_refuse(s, MCS_NO_MEMORY, "no memory for an open segment");
        return;
    }
    s->op.handle = r->segment;
    s->op.incarnation = r->incarnation;
    open_by_name(s, name);
    if (!s->op.active)
        s->op.handle = 0;
}

static void segment_closed(struct mcd_session *s)
{
    MCS_FAILPOINT(segment_closed);
    mcd_segment_put(s->op.open->segment);
    free(s->op.open);
    mcd_reply_empty(s);
}

struct mcd_open *mcd_open_of(struct mcd_session *s, uint32_t handle)
{
    struct mcd_open *o = mcd_session_open(s, handle);

    if (o == NULL)
        mcd_session_refuse(s, MCS_INVALID_HANDLE, "segment %#x is not open", handle);
    return o;
}

void mcd_on_segment_close(struct mcd_session *s, struct mcs_msg *m)
{
    struct mcd_open *o = mcd_open_of(s, m->b.segment_close.segment);

    if (o == NULL)
        return;
    mcs_store_release(&s->opens[MCD_HANDLE_INDEX(o->handle)], NULL);
    s->nopens--;
    s->op.open = o;
    mcd_session_defer(s, NULL, segment_closed);
}

void mcd_on_describe(struct mcd_session *s, struct mcs_msg *m)
{
    uint32_t first = m->b.describe.first;
    struct mcd_open *o = mcd_open_of(s, m->b.describe.segment);
    struct mcs_msg_describe_reply *r = &m->b.describe_reply;
    const struct mcd_snapshot *snap;

    if (o == NULL)
        return;
    snap = o->segment->snapshot;
    *r = (struct mcs_msg_describe_reply){.version = o->segment->version, .total = snap->count};
    for (uint32_t i = first; i < snap->count && r->count < MCS_MSG_DESCRIBE_MAX; i++) {
        const struct mcd_buffer *b = &snap->buffers[i];
        struct mcs_msg_buffer_info *info = &r->buffers[r->count++];

        info->address = b->address;
        info->length = b->length;
        info->access = b->access;
        if (b->extent != NULL && b->extent->gpu != NULL) {
            info->memory = MCS_MEMORY_GPU;
            mcd_gpu_location(b->extent, info->location);
        } else if (b->gpu) {
            info->memory = MCS_MEMORY_GPU;
            snprintf(info->location, sizeof(info->location), "cuda");
        } else if (b->node >= 0)
            snprintf(info->location, sizeof(info->location), "cpu:%d", b->node);
        else
            snprintf(info->location, sizeof(info->location), "cpu");
    }
    mcd_reply(s, m,
              offsetof(struct mcs_msg_describe_reply, buffers) + r->count * sizeof(r->buffers[0]));
}
