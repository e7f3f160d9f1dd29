/* SPDX-License-Identifier: Apache-2.0 */
/* Devices: what they say of themselves, opening them, and their events. */
#include "inside.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

/* The functions behind libibverbs' macros. */
#undef ibv_query_port
#undef ibv_get_device_list

struct fake_device *fake_add(const char *name)
{
    struct device *d = fake_alloc(sizeof(*d)), **end;
    struct fake_device *v = &d->v;
    unsigned index = 0;

    pthread_mutex_lock(&fake_lock);
    for (end = &fake_devices; *end != NULL; end = &(*end)->next)
        index++;
    if (index == FAKE_DEVICES)
        fake_abort("more devices than FAKE_DEVICES");
    snprintf(v->name, sizeof(v->name), "%s", name);
    v->index = index;
    v->nports = 1;
    v->max_inline = 220;
    v->node = -1;
    v->attr = (struct ibv_device_attr){
        .fw_ver = "1.0",
        .node_guid = htobe64(0x0202c90300000000u + index),
        .sys_image_guid = htobe64(0x0202c90300000000u + index),
        .max_mr_size = UINT64_MAX,
        .page_size_cap = 4096,
        .max_qp = 1024,
        .max_qp_wr = 16384,
        .max_sge = FAKE_SGES,
        .max_sge_rd = FAKE_SGES,
        .max_cq = 1024,
        .max_cqe = 32767,
        .max_mr = 1 << 19,
        .max_pd = 1024,
        .max_qp_rd_atom = 16,
        .max_res_rd_atom = 16384,
        .max_qp_init_rd_atom = 16,
        .max_srq = 1024,
        .max_srq_wr = 16384,
        .max_srq_sge = FAKE_SGES,
        .max_pkeys = 1,
        .phys_port_cnt = 1,
    };
    for (unsigned p = 0; p < FAKE_PORTS; p++) {
        struct fake_port *port = &v->ports[p];
        uint8_t last = (uint8_t)(p * 100 + index + 1);

        port->attr = (struct ibv_port_attr){
            .state = IBV_PORT_ACTIVE,
            .max_mtu = IBV_MTU_4096,
            .active_mtu = IBV_MTU_1024,
            .gid_tbl_len = FAKE_GIDS,
            .max_msg_sz = 8 << 20,
            .pkey_tbl_len = 1,
            .active_width = 2, /* 4x */
            .active_speed = 32,
            .phys_state = 5, /* LinkUp */
            .link_layer = IBV_LINK_LAYER_ETHERNET,
        };
        for (unsigned g = 0; g < 2; g++) {
            port->gids[g].type = IBV_GID_TYPE_ROCE_V2;
            port->gids[g].ifindex = 1000 + index * FAKE_PORTS + p;
            snprintf(port->gids[g].netdev, sizeof(port->gids[g].netdev), "fake%u",
                     index * FAKE_PORTS + p);
        }
        memcpy(port->gids[0].gid,
               (uint8_t[16]){0xfe, 0x80, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0xff, 0xfe, 0, 0, last}, 16);
        memcpy(port->gids[1].gid,
               (uint8_t[16]){0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 77, 0, last}, 16);
    }
    *end = d;
    fake_sysfs_update();
    pthread_mutex_unlock(&fake_lock);
    return v;
}

/* ---- the list -------------------------------------------------------------------- */

static void let_go(struct listed *l)
{
    if (--l->users == 0)
        fake_die(&l->o);
}

struct ibv_device **ibv_get_device_list(int *n)
{
    struct ibv_device **list = NULL;
    int there = 0, error = fake_enter(FAKE_GET_DEVICE_LIST, NULL);

    if (error != 0)
        goto out;
    list = fake_alloc((FAKE_DEVICES + 1) * sizeof(*list));
    for (struct device *d = fake_devices; d != NULL; d = d->next) {
        struct listed *l;

        if (d->gone)
            continue;
        l = fake_alloc(sizeof(*l));
        l->users = 1;
        l->v.node_type = IBV_NODE_CA;
        l->v.transport_type = IBV_TRANSPORT_IB;
        snprintf(l->v.name, sizeof(l->v.name), "%s", d->v.name);
        snprintf(l->v.dev_name, sizeof(l->v.dev_name), "uverbs%u", d->v.index);
        if (fake_sysfs_dir != NULL) {
            snprintf(l->v.dev_path, sizeof(l->v.dev_path), "%.200s/class/infiniband_verbs/uverbs%u",
                     fake_sysfs_dir, d->v.index);
            snprintf(l->v.ibdev_path, sizeof(l->v.ibdev_path), "%.150s/class/infiniband/%.64s",
                     fake_sysfs_dir, d->v.name);
        }
        fake_live(&l->o, FAKE_LIST, d, &l->v, sizeof(l->v));
        list[there++] = &l->v;
    }
    if (n != NULL)
        *n = there;
out:
    fake_leave();
    errno = error != 0 ? error : errno;
    return list;
}

void ibv_free_device_list(struct ibv_device **list)
{
    pthread_mutex_lock(&fake_lock);
    for (struct ibv_device **i = list; *i != NULL; i++) {
        struct listed *l = FAKE_OF(listed, v, *i);

        fake_need(&l->o, "ibv_free_device_list");
        let_go(l);
    }
    free(list);
    fake_leave();
}

const char *ibv_get_device_name(struct ibv_device *device)
{
    return device->name;
}

__be64 ibv_get_device_guid(struct ibv_device *device)
{
    struct listed *l = FAKE_OF(listed, v, device);

    pthread_mutex_lock(&fake_lock);
    fake_need(&l->o, "ibv_get_device_guid");
    fake_leave();
    return l->o.device->v.attr.node_guid;
}

int ibv_get_device_index(struct ibv_device *device)
{
    return (int)FAKE_OF(listed, v, device)->o.device->v.index;
}

/* ---- contexts -------------------------------------------------------------------- */

static struct context *context_of(struct ibv_context *c)
{
    return FAKE_OF(context, v.context, c);
}

static int query_port_ex(struct ibv_context *context, uint8_t port, struct ibv_port_attr *attr,
                         size_t size)
{
    struct context *c = context_of(context);
    int error = fake_enter_on(FAKE_QUERY_PORT, &c->o, "ibv_query_port");
    struct device *d = c->o.device;

    if (error == 0 && d->fatal)
        error = EIO;
    if (error == 0 && (port < 1 || port > d->v.nports))
        error = EINVAL;
    if (error == 0)
        memcpy(attr, &d->v.ports[port - 1].attr, size);
    fake_leave();
    return error;
}

int ibv_query_port(struct ibv_context *context, uint8_t port, struct _compat_ibv_port_attr *attr)
{
    return query_port_ex(context, port, (struct ibv_port_attr *)(void *)attr,
                         offsetof(struct ibv_port_attr, port_cap_flags2));
}

int ibv_query_device(struct ibv_context *context, struct ibv_device_attr *attr)
{
    struct context *c = context_of(context);
    int error = fake_enter_on(FAKE_QUERY_DEVICE, &c->o, "ibv_query_device");

    if (error == 0 && c->o.device->fatal)
        error = EIO;
    if (error == 0) {
        *attr = c->o.device->v.attr;
        attr->phys_port_cnt = (uint8_t)c->o.device->v.nports;
    }
    fake_leave();
    return error;
}

static int query_device_ex(struct ibv_context *context,
                           const struct ibv_query_device_ex_input *input,
                           struct ibv_device_attr_ex *attr, size_t size)
{
    (void)input;
    memset(attr, 0, size);
    return ibv_query_device(context, &attr->orig_attr);
}

static int query_gid(struct ibv_context *context, uint32_t port, uint32_t index,
                     struct fake_gid *out)
{
    struct context *c = context_of(context);
    int error = fake_enter_on(FAKE_QUERY_GID, &c->o, "ibv_query_gid");
    struct device *d = c->o.device;

    if (error == 0 && d->fatal)
        error = EIO;
    if (error == 0 && (port < 1 || port > d->v.nports || index >= FAKE_GIDS ||
                       (int)index >= d->v.ports[port - 1].attr.gid_tbl_len))
        error = EINVAL;
    if (error == 0)
        *out = d->v.ports[port - 1].gids[index];
    fake_leave();
    return error;
}

static bool is_empty(const struct fake_gid *g)
{
    return memcmp(g->gid, (uint8_t[16]){0}, 16) == 0;
}

int ibv_query_gid(struct ibv_context *context, uint8_t port, int index, union ibv_gid *gid)
{
    struct fake_gid g;
    int error = query_gid(context, port, (uint32_t)index, &g);

    if (error != 0) {
        errno = error;
        return -1;
    }
    memcpy(gid->raw, g.gid, sizeof(gid->raw));
    return 0;
}

static void entry(struct ibv_gid_entry *e, const struct fake_gid *g, uint32_t port, uint32_t index)
{
    memcpy(e->gid.raw, g->gid, sizeof(e->gid.raw));
    e->gid_index = index;
    e->port_num = port;
    e->gid_type = g->type;
    e->ndev_ifindex = g->ifindex;
}

int _ibv_query_gid_ex(struct ibv_context *context, uint32_t port, uint32_t index,
                      struct ibv_gid_entry *e, uint32_t flags, size_t size)
{
    struct fake_gid g;
    int error = query_gid(context, port, index, &g);

    (void)size;
    if (error == 0 && flags != 0)
        error = EOPNOTSUPP;
    if (error == 0 && is_empty(&g))
        error = ENODATA;
    if (error == 0)
        entry(e, &g, port, index);
    return error;
}

ssize_t _ibv_query_gid_table(struct ibv_context *context, struct ibv_gid_entry *entries, size_t max,
                             uint32_t flags, size_t size)
{
    struct context *c = context_of(context);
    int error = fake_enter_on(FAKE_QUERY_GID, &c->o, "ibv_query_gid_table");
    struct device *d = c->o.device;
    ssize_t n = 0;

    (void)size;
    if (error == 0 && d->fatal)
        error = EIO;
    for (uint32_t p = 1; error == 0 && flags == 0 && p <= d->v.nports; p++)
        for (uint32_t g = 0; g < FAKE_GIDS; g++)
            if (!is_empty(&d->v.ports[p - 1].gids[g])) {
                if ((size_t)n == max)
                    error = EINVAL;
                else
                    entry(&entries[n++], &d->v.ports[p - 1].gids[g], p, g);
                if (error != 0)
                    break;
            }
    fake_leave();
    return error != 0 ? -error : n;
}

int ibv_query_pkey(struct ibv_context *context, uint8_t port, int index, __be16 *pkey)
{
    pthread_mutex_lock(&fake_lock);
    fake_need(&context_of(context)->o, "ibv_query_pkey");
    fake_leave();
    if (port < 1 || index != 0) {
        errno = EINVAL;
        return -1;
    }
    *pkey = 0xffff;
    return 0;
}

struct ibv_context *ibv_open_device(struct ibv_device *device)
{
    struct listed *l = FAKE_OF(listed, v, device);
    int error = fake_enter_on(FAKE_OPEN_DEVICE, &l->o, "ibv_open_device");
    struct context *c = NULL;

    if (error == 0 && l->o.device->fatal)
        error = l->o.device->gone ? ENODEV : EIO;
    if (error != 0)
        goto out;
    c = fake_alloc(sizeof(*c));
    c->events_end = &c->events;
    c->listed = l;
    l->users++;
    c->v.sz = sizeof(c->v);
    c->v.query_port = query_port_ex;
    c->v.query_device_ex = query_device_ex;
    c->v.context.device = device;
    c->v.context.abi_compat = __VERBS_ABI_IS_EXTENDED;
    c->v.context.cmd_fd = -1;
    c->v.context.num_comp_vectors = 1;
    c->v.context.ops.poll_cq = fake_poll;
    c->v.context.ops.req_notify_cq = fake_notify;
    c->v.context.ops.post_send = fake_post_send;
    c->v.context.ops.post_recv = fake_post_recv;
    c->v.context.ops.post_srq_recv = fake_post_srq_recv;
    c->v.context.async_fd = eventfd(0, EFD_CLOEXEC | EFD_SEMAPHORE);
    if (c->v.context.async_fd < 0)
        fake_abort("eventfd: %s", strerror(errno));
    pthread_mutex_init(&c->v.context.mutex, NULL);
    fake_live(&c->o, FAKE_CONTEXT, l->o.device, &c->v, sizeof(c->v));
    l->o.device->open++;
out:
    fake_leave();
    errno = error != 0 ? error : errno;
    return c != NULL ? &c->v.context : NULL;
}

int ibv_close_device(struct ibv_context *context)
{
    struct context *c = context_of(context);
    int error = fake_enter_on(FAKE_CLOSE_DEVICE, &c->o, "ibv_close_device");

    if (error != 0)
        goto out;
    if (c->users != 0)
        fake_abort("ibv_close_device: %u objects of %s are still there", c->users,
                   c->o.device->v.name);
    while (c->events != NULL) {
        struct event *e = c->events;

        c->events = e->next;
        free(e);
    }
    close(c->v.context.async_fd);
    let_go(c->listed);
    c->o.device->open--;
    fake_die(&c->o);
out:
    fake_leave();
    return error;
}

/* ---- events ---------------------------------------------------------------------- */

static void tell(struct context *c, enum ibv_event_type type, struct fake_object *about,
                 void *element, int port)
{
    struct event *e = fake_alloc(sizeof(*e));

    e->object = about;
    e->e.event_type = type;
    if (element != NULL)
        e->e.element.qp = element;
    else
        e->e.element.port_num = port;
    *c->events_end = e;
    c->events_end = &e->next;
    if (eventfd_write(c->v.context.async_fd, 1) != 0)
        fake_abort("eventfd: %s", strerror(errno));
}

static struct ibv_context *home_of(const struct fake_object *o)
{
    switch (o->kind) {
    case FAKE_QP:
        return FAKE_OF(qp, o, o)->v.context;
    case FAKE_CQ:
        return FAKE_OF(cq, o, o)->v.context;
    case FAKE_SRQ:
        return FAKE_OF(srq, o, o)->v.context;
    default:
        fake_abort("an event of what has none");
    }
}

void fake_tell(struct device *d, enum ibv_event_type type, struct fake_object *about, void *element,
               int port)
{
    if (about != NULL) {
        tell(context_of(home_of(about)), type, about, element, port);
        return;
    }
    for (struct fake_object *o = fake_objects; o != NULL; o = o->next)
        if (o->alive && o->kind == FAKE_CONTEXT && o->device == d)
            tell(FAKE_OF(context, o, o), type, NULL, NULL, port);
}

void fake_untell(struct fake_object *about)
{
    struct context *c = context_of(home_of(about));

    for (struct event **e = &c->events; *e != NULL;) {
        struct event *gone = *e;

        if (gone->object != about) {
            e = &gone->next;
            continue;
        }
        *e = gone->next;
        free(gone);
    }
    c->events_end = &c->events;
    while (*c->events_end != NULL)
        c->events_end = &(*c->events_end)->next;
}

static unsigned *unacked_of(struct fake_object *o)
{
    return o->kind == FAKE_QP   ? &FAKE_OF(qp, o, o)->unacked
           : o->kind == FAKE_CQ ? &FAKE_OF(cq, o, o)->unacked_async
                                : &FAKE_OF(srq, o, o)->unacked;
}

int ibv_get_async_event(struct ibv_context *context, struct ibv_async_event *event)
{
    struct context *c = context_of(context);
    struct event *e = NULL;
    eventfd_t one;

    pthread_mutex_lock(&fake_lock);
    fake_need(&c->o, "ibv_get_async_event");
    fake_leave();
    while (e == NULL) {
        if (eventfd_read(context->async_fd, &one) != 0)
            return -1;
        pthread_mutex_lock(&fake_lock);
        e = c->events; /* none: what it was about is gone */
        if (e != NULL) {
            c->events = e->next;
            if (c->events == NULL)
                c->events_end = &c->events;
            *event = e->e;
            if (e->object != NULL)
                ++*unacked_of(e->object);
            free(e);
        }
        fake_leave();
    }
    return 0;
}

void ibv_ack_async_event(struct ibv_async_event *event)
{
    struct fake_object *o = NULL;

    pthread_mutex_lock(&fake_lock);
    switch (event->event_type) {
    case IBV_EVENT_QP_FATAL:
    case IBV_EVENT_QP_REQ_ERR:
    case IBV_EVENT_QP_ACCESS_ERR:
    case IBV_EVENT_COMM_EST:
    case IBV_EVENT_SQ_DRAINED:
    case IBV_EVENT_PATH_MIG:
    case IBV_EVENT_PATH_MIG_ERR:
    case IBV_EVENT_QP_LAST_WQE_REACHED:
        o = &FAKE_OF(qp, v, event->element.qp)->o;
        break;
    case IBV_EVENT_CQ_ERR:
        o = &FAKE_OF(cq, v, event->element.cq)->o;
        break;
    case IBV_EVENT_SRQ_ERR:
    case IBV_EVENT_SRQ_LIMIT_REACHED:
        o = &FAKE_OF(srq, v, event->element.srq)->o;
        break;
    default:
        break;
    }
    if (o != NULL) {
        fake_need(o, "ibv_ack_async_event");
        if ((*unacked_of(o))-- == 0)
            fake_abort("ibv_ack_async_event: more acknowledged than were got");
    }
    fake_leave();
}

void fake_event(struct fake_device *d, enum ibv_event_type type, int port)
{
    pthread_mutex_lock(&fake_lock);
    fake_tell(fake_device_of(d), type, NULL, NULL, port);
    fake_leave();
}

bool fake_qp_event(struct fake_device *d, enum ibv_event_type type, uint32_t qpn)
{
    bool found = false;

    pthread_mutex_lock(&fake_lock);
    for (struct fake_object *o = fake_objects; o != NULL; o = o->next) {
        struct qp *q = FAKE_OF(qp, o, o);

        if (!o->alive || o->kind != FAKE_QP || o->device != fake_device_of(d) || q->v.qp_num != qpn)
            continue;
        found = true;
        fake_tell(o->device, type, o, &q->v, 0);
        if (type == IBV_EVENT_QP_FATAL)
            fake_qp_error(q);
        break;
    }
    fake_leave();
    return found;
}

void fake_cq_error(struct fake_device *d)
{
    pthread_mutex_lock(&fake_lock);
    for (struct fake_object *o = fake_objects; o != NULL; o = o->next)
        if (o->alive && o->kind == FAKE_CQ && o->device == fake_device_of(d)) {
            FAKE_OF(cq, o, o)->broken = true;
            fake_tell(o->device, IBV_EVENT_CQ_ERR, o, &FAKE_OF(cq, o, o)->v, 0);
        }
    fake_leave();
}

void fake_port_state(struct fake_device *d, int port, enum ibv_port_state state, bool say)
{
    pthread_mutex_lock(&fake_lock);
    d->ports[port - 1].attr.state = state;
    d->ports[port - 1].attr.phys_state = state == IBV_PORT_ACTIVE ? 5 : 3;
    fake_sysfs_update();
    if (say)
        fake_tell(fake_device_of(d),
                  state == IBV_PORT_ACTIVE ? IBV_EVENT_PORT_ACTIVE : IBV_EVENT_PORT_ERR, NULL, NULL,
                  port);
    fake_leave();
}

void fake_gid(struct fake_device *d, int port, unsigned index, const struct fake_gid *gid, bool say)
{
    pthread_mutex_lock(&fake_lock);
    d->ports[port - 1].gids[index] = gid != NULL ? *gid : (struct fake_gid){.ifindex = 0};
    fake_sysfs_update();
    if (say)
        fake_tell(fake_device_of(d), IBV_EVENT_GID_CHANGE, NULL, NULL, port);
    fake_leave();
}

static void fatal(struct device *d, bool flush)
{
    if (d->fatal)
        return;
    d->fatal = true;
    for (struct fake_object *o = fake_objects; flush && o != NULL; o = o->next)
        if (o->alive && o->kind == FAKE_QP && o->device == d)
            fake_qp_error(FAKE_OF(qp, o, o));
    fake_tell(d, IBV_EVENT_DEVICE_FATAL, NULL, NULL, 0);
}

void fake_fatal(struct fake_device *d, bool flush)
{
    pthread_mutex_lock(&fake_lock);
    fatal(fake_device_of(d), flush);
    fake_leave();
}

void fake_remove(struct fake_device *d)
{
    pthread_mutex_lock(&fake_lock);
    fake_device_of(d)->gone = true;
    fatal(fake_device_of(d), false);
    fake_sysfs_update();
    fake_leave();
}
