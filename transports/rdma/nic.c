/* SPDX-License-Identifier: Apache-2.0 */
/* RDMA: the thread of a nic: opens and closes it, takes its events, knows its state. */
#include "devices.h"

#include <errno.h>
#include <fcntl.h>
#include <net/if.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "sysfs.h"

#define LOOK_MS 1000u     /* the port is looked at this often, should an event be missed, */
#define LOOK_ALL_MS 5000u /* and its GIDs and this host's addresses this often */
#define BACKOFF_MAX_S 30u
#define FAULTS_IN_ROW 16u /* this many of its own, and none that came through: out of use, */
#define OUT_MIN_S 5u      /* so long, */
#define OUT_MAX_S 60u     /* and twice as long each time they come back within OUT_AGAIN_MS */
#define OUT_AGAIN_MS 60000u
#define END_MS 2000u /* of the agent: for what still uses the device */

void mct_rdma_fault(struct mct_rdma_port *p)
{
    struct mct_rdma_device *d = p->device;

    mcs_fetch_add(&d->faults, 1);
    if (mcs_fetch_add(&d->faults_in_row, 1) + 1 >= FAULTS_IN_ROW)
        mct_kick(d->kick_fd);
}

void mct_rdma_fine(struct mct_rdma_port *p)
{
    /* most often there is nothing to write: engines share the line */
    if (mcs_load_relaxed(&p->device->faults_in_row) != 0)
        mcs_store_relaxed(&p->device->faults_in_row, 0);
}

void mct_rdma_nic_suspect(struct mct_rdma_device *d)
{
    pthread_mutex_lock(&d->rdma->lock);
    d->suspect = true;
    pthread_mutex_unlock(&d->rdma->lock);
    mct_kick(d->kick_fd);
}

/* ---- what is shown ------------------------------------------------------------------- */

/* Shows a new state; the control thread is told when it differs in more than a count. */
static void show(struct mct_rdma_device *d, const struct mct_rdma_nic *n)
{
    struct mct_rdma_nic old;

    pthread_mutex_lock(&d->rdma->lock);
    old = d->shown;
    d->shown = *n;
    d->shown.events = old.events;
    d->shown.pairs = old.pairs;
    if (old.state != n->state || old.id != n->id || old.infiniband != n->infiniband ||
        memcmp(old.gid, n->gid, sizeof(old.gid)) != 0 || old.gid_index != n->gid_index ||
        old.prefix != n->prefix || old.lid != n->lid || old.mtu != n->mtu || old.rate != n->rate ||
        strcmp(old.why, n->why) != 0)
        mct_rdma_note(d, MCT_RDMA_NOTE_CHANGED);
    pthread_mutex_unlock(&d->rdma->lock);
}

static void show_closed(struct mct_rdma_device *d, const char *why)
{
    struct mct_rdma_nic n = d->shown; /* written by this thread only */

    n.state = MCT_RDMA_CLOSED;
    n.id = 0;
    memset(n.gid, 0, sizeof(n.gid));
    n.gid_index = -1;
    n.prefix = 0;
    n.lid = 0;
    snprintf(n.why, sizeof(n.why), "%s", why);
    show(d, &n);
}

static void settle(struct mct_rdma_device *d)
{
    pthread_mutex_lock(&d->rdma->lock);
    if (!d->settled) {
        d->settled = true;
        mct_kick(d->rdma->fd);
    }
    pthread_mutex_unlock(&d->rdma->lock);
}

/* ---- the port ------------------------------------------------------------------------ */

static uint64_t rate_of(const struct ibv_port_attr *a)
{
    static const struct {
        unsigned code;
        uint64_t mega; /* bits a second and lane */
    } speeds[] = {{1, 2500},   {2, 5000},   {4, 10000},  {8, 10000},
                  {16, 14000}, {32, 25000}, {64, 50000}, {128, 100000}};
    unsigned lanes = a->active_width == 2   ? 4
                     : a->active_width == 4 ? 8
                     : a->active_width == 8 ? 12
                                            : (a->active_width == 16 ? 2 : 1);
    size_t i;

    for (i = 0; i < sizeof(speeds) / sizeof(speeds[0]); i++)
        if (speeds[i].code == a->active_speed)
            return speeds[i].mega * 1000000u * lanes;
    return 0;
}

/* The table comes from verbs: it is what the device will put into packets. */
static void choose_gid(struct mct_rdma_device *d, bool infiniband, struct mct_gid_choice *out)
{
    static const uint8_t zero[16];
    struct ibv_gid_entry *table = calloc(MCT_SYSFS_GIDS_MAX, sizeof(*table));
    struct mct_gid_entry *entries = calloc(MCT_SYSFS_GIDS_MAX, sizeof(*entries));
    struct mct_gid_address *addresses = NULL;
    size_t naddresses = 0, n = 0;
    ssize_t i, count;

    memset(out, 0, sizeof(*out));
    out->index = -1;
    if (table == NULL || entries == NULL) {
        snprintf(out->why, sizeof(out->why), "out of memory for its table of GIDs");
        goto out;
    }
    count = ibv_query_gid_table(d->context, table, MCT_SYSFS_GIDS_MAX, 0);
    if (count < 0) {
        snprintf(out->why, sizeof(out->why), "its table of GIDs cannot be read: %s",
                 strerror((int)-count));
        goto out;
    }
    for (i = 0; i < count; i++) {
        struct mct_gid_entry *e = &entries[n];

        if (table[i].port_num != d->port || memcmp(table[i].gid.raw, zero, sizeof(zero)) == 0)
            continue;
        e->index = (int)table[i].gid_index;
        memcpy(e->gid, table[i].gid.raw, sizeof(e->gid));
        e->type = table[i].gid_type == IBV_GID_TYPE_IB        ? MCT_GID_IB
                  : table[i].gid_type == IBV_GID_TYPE_ROCE_V1 ? MCT_GID_ROCE_V1
                                                              : MCT_GID_ROCE_V2;
        e->netdev[0] = 0;
        if (table[i].ndev_ifindex != 0) {
            char name[IF_NAMESIZE];

            if (if_indextoname(table[i].ndev_ifindex, name) != NULL)
                snprintf(e->netdev, sizeof(e->netdev), "%s", name);
        }
        n++;
    }
    (void)mct_sysfs_addresses(&addresses, &naddresses); /* none: entries are ranked without */
    (void)mct_gid_choose(entries, n, infiniband, addresses, naddresses, d->rdma->options.gid_index,
                         out);
out:
    free(addresses);
    free(entries);
    free(table);
}

/* Is there something new about its faults: too many, or the time is over that it was left alone? */
static bool faults_tell(const struct mct_rdma_device *d)
{
    if (d->out_until != 0)
        return mct_ms() >= d->out_until;
    /* one more fault after its return is enough, unless something came through before */
    return mcs_load_relaxed(&d->faults_in_row) >= FAULTS_IN_ROW &&
           mcs_load_relaxed(&d->faults) != d->out_faults;
}

/* Are there faults enough to put it out, or is it out? The reason into n->why. */
static bool put_out(struct mct_rdma_device *d, struct mct_rdma_nic *n)
{
    uint64_t now = mct_ms(), faults = mcs_load_relaxed(&d->faults);

    if (d->out_until != 0 && now >= d->out_until) {
        d->out_until = 0;
        d->out_ended = now;
    }
    if (d->out_until == 0 && faults_tell(d)) {
        if (d->out_seconds == 0 || now - d->out_ended > OUT_AGAIN_MS)
            d->out_seconds = OUT_MIN_S;
        else
            d->out_seconds = d->out_seconds * 2 < OUT_MAX_S ? d->out_seconds * 2 : OUT_MAX_S;
        d->out_until = now + d->out_seconds * 1000u;
        d->out_row = mcs_load_relaxed(&d->faults_in_row);
    }
    if (d->out_until == 0)
        return false;
    d->out_faults = faults;
    snprintf(n->why, sizeof(n->why),
             "%u faults of its own in a row, and nothing came through; it is left alone for %u s",
             d->out_row, d->out_seconds);
    return true;
}

static const char *state_word(enum ibv_port_state state)
{
    return state == IBV_PORT_DOWN    ? "down"
           : state == IBV_PORT_INIT  ? "initialized, but has no LID from a subnet manager"
           : state == IBV_PORT_ARMED ? "armed, not active yet"
                                     : "in no known state";
}

/* Looks at the port, chooses the GID, shows what is found. all: also when the port is as it was. -errno: the device
 * does not answer. */
static int look(struct mct_rdma_device *d, bool all)
{
    struct mct_rdma_nic n = d->shown;
    const struct mct_rdma_options *o = &d->rdma->options;
    struct mct_gid_choice gid;
    struct mct_sysfs_port sys;
    struct ibv_port_attr a;
    int res;

    memset(&a, 0, sizeof(a));
    res = -ibv_query_port(d->context, d->port, &a);
    if (res != 0)
        return res;
    if (!all && d->looked_all != 0 && mct_ms() - d->looked_all < LOOK_ALL_MS &&
        memcmp(&a, &d->seen, sizeof(a)) == 0)
        return 0;
    d->looked_all = mct_ms();
    d->seen = a;
    n.id = d->id;
    n.infiniband = a.link_layer == IBV_LINK_LAYER_INFINIBAND;
    n.lid = n.infiniband ? a.lid : 0;
    n.mtu = a.active_mtu >= IBV_MTU_256 && a.active_mtu <= IBV_MTU_4096
                ? mct_rdma_mtu_bytes(a.active_mtu)
                : 256;
    if (o->mtu != 0 && o->mtu < n.mtu)
        n.mtu = o->mtu;
    n.max_message = a.max_msg_sz;
    n.max_region = d->limits.max_mr_size;
    n.max_pairs = (uint32_t)(d->limits.max_qp > 0 ? d->limits.max_qp : 0);
    n.max_reads = (unsigned)(d->limits.max_qp_rd_atom > 0 ? d->limits.max_qp_rd_atom : 0);
    if (n.max_reads > o->max_reads)
        n.max_reads = o->max_reads;
    n.rate = rate_of(&a);
    if (mct_sysfs_port(o->sysfs, d->device, d->port, &sys) == 0) {
        if (sys.rate != 0)
            n.rate = sys.rate;
        snprintf(n.netdev, sizeof(n.netdev), "%s", sys.netdev);
    } else {
        memset(&sys, 0, sizeof(sys));
    }
    choose_gid(d, n.infiniband, &gid);
    n.gid_index = gid.index;
    memcpy(n.gid, gid.gid, sizeof(n.gid));
    n.prefix = gid.prefix;
    if (gid.index >= 0 && gid.netdev[0] != 0)
        snprintf(n.netdev, sizeof(n.netdev), "%s", gid.netdev);
    n.state = MCT_RDMA_DOWN;
    if (a.state != IBV_PORT_ACTIVE && a.state != IBV_PORT_ACTIVE_DEFER) {
        snprintf(n.why, sizeof(n.why), "its port is %s%s%s%s%s%s", state_word(a.state),
                 sys.phys_state[0] != 0 ? ", the link " : "", sys.phys_state,
                 sys.netdev_state[0] != 0 ? ", the interface " : "",
                 sys.netdev_state[0] != 0 ? sys.netdev : "",
                 sys.netdev_state[0] != 0
                     ? (strcmp(sys.netdev_state, "up") == 0 ? " up" : " not up")
                     : "");
    } else if (gid.index < 0) {
        snprintf(n.why, sizeof(n.why), "%s", gid.why);
    } else if (d->phase == MCT_RDMA_PHASE_OPENING) {
        snprintf(n.why, sizeof(n.why), "the agent's memory is being registered with it");
    } else if (!put_out(d, &n)) {
        n.state = MCT_RDMA_UP;
        snprintf(n.why, sizeof(n.why), "%s", gid.why);
    }
    show(d, &n);
    return 0;
}

/* ---- opening ------------------------------------------------------------------------- */

/* Why a device could not be opened. */
static void explain_open(const struct ibv_device *device, int error, char *why, size_t size)
{
    char path[IBV_SYSFS_NAME_MAX + 32];
    struct stat st;

    memset(&st, 0, sizeof(st));
    snprintf(path, sizeof(path), "/dev/infiniband/%s", device->dev_name);
    if (device->dev_name[0] == 0) {
        snprintf(why, size, "it cannot be opened: %s", strerror(error));
        return;
    }
    /* what libibverbs has tried last may have left another errno than what stands in the way */
    if (faccessat(AT_FDCWD, path, R_OK | W_OK, AT_EACCESS) != 0 && errno == EACCES)
        error = EACCES;
    if (stat(path, &st) != 0 && errno == ENOENT)
        snprintf(why, size,
                 "%s is not there; a container needs --device /dev/infiniband, a systemd unit "
                 "PrivateDevices=no (docs/rdma.md), a host the module ib_uverbs",
                 path);
    else if (error == EACCES || error == EPERM)
        snprintf(why, size,
                 "no permission to open %s (owner %u, group %u, mode %03o): put the agent's user "
                 "into that group, or give the file a group of its own by a udev rule",
                 path, (unsigned)st.st_uid, (unsigned)st.st_gid, (unsigned)st.st_mode & 0777u);
    else
        snprintf(why, size, "it cannot be opened: %s", strerror(error));
}

static void close_context(struct mct_rdma_device *d)
{
    struct ibv_context *context = d->context;
    struct ibv_pd *pd = d->pd;
    int res;

    pthread_mutex_lock(&d->rdma->lock);
    d->context = NULL;
    d->pd = NULL;
    d->id = 0;
    pthread_mutex_unlock(&d->rdma->lock);
    if (pd != NULL && (res = ibv_dealloc_pd(pd)) != 0 && d->rdma->options.log != NULL)
        d->rdma->options.log(MCT_RDMA_LOG_WARNING,
                             "RDMA device %s: its protection domain is not given back: %s", d->name,
                             strerror(res));
    if (context != NULL && ibv_close_device(context) != 0 && d->rdma->options.log != NULL)
        d->rdma->options.log(MCT_RDMA_LOG_WARNING, "RDMA device %s cannot be closed: %s", d->name,
                             strerror(errno));
}

/* The file that tells whether the device is still there: its folder goes when it is unplugged, and a
 * new device's is another one. Drivers that know no hot unplug send no event and wait until it is closed. */
static void remember_path(struct mct_rdma_device *d, const struct ibv_device *device)
{
    struct stat st;

    snprintf(d->path, sizeof(d->path), "%s", device->dev_path);
    d->path_ino = 0;
    if (d->path[0] != 0 && stat(d->path, &st) == 0) {
        d->path_dev = st.st_dev;
        d->path_ino = st.st_ino;
    }
}

static bool unplugged(const struct mct_rdma_device *d)
{
    struct stat st;

    if (d->path_ino == 0)
        return false;
    if (stat(d->path, &st) != 0)
        return errno == ENOENT;
    return st.st_dev != d->path_dev || st.st_ino != d->path_ino;
}

static struct ibv_device *find(struct ibv_device **list, int n, const char *name)
{
    int i;

    for (i = 0; i < n; i++)
        if (strcmp(ibv_get_device_name(list[i]), name) == 0)
            return list[i];
    return NULL;
}

/* Opens it; nothing is left behind where that fails. */
static int open_device(struct mct_rdma_device *d, char *why, size_t size)
{
    struct ibv_device **list, *device;
    struct ibv_context *context = NULL;
    struct ibv_pd *pd = NULL;
    struct ibv_device_attr limits;
    struct ibv_port_attr port;
    struct mct_sysfs_device sys;
    int n = 0, flags, res = 0;

    list = ibv_get_device_list(&n);
    if (list == NULL) {
        res = errno != 0 ? -errno : -ENOSYS;
        if (res == -ENOSYS)
            snprintf(why, size,
                     "this host's kernel shows programs no RDMA devices: neither a driver nor the "
                     "module ib_uverbs is loaded");
        else
            snprintf(why, size, "the list of RDMA devices cannot be read: %s", strerror(-res));
        goto out;
    }
    device = find(list, n, d->device);
    if (device == NULL) {
        res = -ENODEV;
        snprintf(why, size, "this host has no RDMA device %s now", d->device);
        goto out;
    }
    if (device->transport_type != IBV_TRANSPORT_IB) {
        res = -EPROTONOSUPPORT;
        snprintf(why, size, "it is neither InfiniBand nor RoCE (its transport is of type %d)",
                 (int)device->transport_type);
        goto out;
    }
    errno = 0;
    context = ibv_open_device(device);
    if (context == NULL) {
        res = errno != 0 ? -errno : -EIO;
        explain_open(device, -res, why, size);
        goto out;
    }
    flags = fcntl(context->async_fd, F_GETFL);
    if (flags < 0 || fcntl(context->async_fd, F_SETFL, flags | O_NONBLOCK) != 0) {
        res = -errno;
        snprintf(why, size, "its events cannot be awaited: %s", strerror(-res));
        goto out;
    }
    res = -ibv_query_device(context, &limits);
    if (res != 0) {
        snprintf(why, size, "it does not tell its limits: %s", strerror(-res));
        goto out;
    }
    if (d->port > limits.phys_port_cnt) {
        res = -ENODEV;
        snprintf(why, size, "it has %u ports, and no number %u", limits.phys_port_cnt, d->port);
        goto out;
    }
    memset(&port, 0, sizeof(port));
    res = -ibv_query_port(context, d->port, &port);
    if (res != 0) {
        snprintf(why, size, "it does not tell the state of port %u: %s", d->port, strerror(-res));
        goto out;
    }
    errno = 0;
    pd = ibv_alloc_pd(context);
    if (pd == NULL) {
        res = errno != 0 ? -errno : -ENOMEM;
        snprintf(why, size, "no protection domain is to be had on it (it allows %d): %s",
                 limits.max_pd, strerror(-res));
        goto out;
    }
    remember_path(d, device);
    if (mct_sysfs_device(d->rdma->options.sysfs, d->device, &sys) != 0) {
        memset(&sys, 0, sizeof(sys));
        sys.node = -1;
    }
    pthread_mutex_lock(&d->rdma->lock);
    d->shown.node = sys.node;
    snprintf(d->shown.pci, sizeof(d->shown.pci), "%s", sys.pci);
    d->limits = limits;
    d->context = context;
    snprintf(d->verbs, sizeof(d->verbs), "%s", device->dev_name);
    d->pd = pd;
    d->id = mct_rdma_random();
    d->dead = false;
    d->ready = false;
    d->forgotten = false;
    d->suspect = false;
    pthread_mutex_unlock(&d->rdma->lock);
    context = NULL;
    pd = NULL;

out:
    if (pd != NULL)
        ibv_dealloc_pd(pd);
    if (context != NULL)
        ibv_close_device(context);
    if (list != NULL)
        ibv_free_device_list(list);
    return res;
}

static void try_open(struct mct_rdma_device *d)
{
    char why[MCT_RDMA_TEXT_MAX] = "";
    int res = open_device(d, why, sizeof(why));

    if (res == 0) {
        d->opened = mct_ms();
        d->phase = MCT_RDMA_PHASE_OPENING;
        d->due = d->opened + LOOK_MS;
        d->out_until = 0;
        pthread_mutex_lock(&d->rdma->lock);
        mct_rdma_note(d, MCT_RDMA_NOTE_OPENED);
        pthread_mutex_unlock(&d->rdma->lock);
        res = look(d, true);
        if (res != 0) {
            snprintf(why, sizeof(why), "its port cannot be queried: %s", strerror(-res));
            mct_rdma_nic_lose(d, why);
            settle(d);
        }
        return;
    }
    show_closed(d, why);
    settle(d);
    d->due = mct_ms() + d->backoff * 1000u;
    d->backoff = d->backoff * 2 < BACKOFF_MAX_S ? d->backoff * 2 : BACKOFF_MAX_S;
}

/* ---- closing ------------------------------------------------------------------------- */

void mct_rdma_nic_lose(struct mct_rdma_device *d, const char *why)
{
    struct mct_rdma_nic_port *port;
    struct mct_rdma_nic_pair *pair;

    if (d->phase != MCT_RDMA_PHASE_OPENING && d->phase != MCT_RDMA_PHASE_OPEN)
        return;
    pthread_mutex_lock(&d->rdma->lock);
    d->dead = true;
    mct_rdma_note(d, MCT_RDMA_NOTE_CLOSED);
    pthread_mutex_unlock(&d->rdma->lock);
    d->phase = MCT_RDMA_PHASE_CLOSING;
    d->out_until = 0; /* nothing to wait for any more */
    show_closed(d, why);
    for (pair = d->pairs; pair != NULL; pair = pair->next)
        mct_rdma_pair_fail(d, pair);
    for (port = d->ports; port != NULL; port = port->next)
        mct_rdma_port_fail(d, port);
    if (mct_ms() - d->opened > BACKOFF_MAX_S * 1000u)
        d->backoff = 1;
}

/* Closes the context once nobody needs it; false: not yet. */
static bool try_close(struct mct_rdma_device *d)
{
    bool free;

    pthread_mutex_lock(&d->rdma->lock);
    free = d->forgotten && d->uses == 0 && mcs_load_relaxed(&d->memory_regions) == 0;
    pthread_mutex_unlock(&d->rdma->lock);
    if (!free || d->ports != NULL || d->pairs != NULL)
        return false;
    close_context(d);
    d->phase = MCT_RDMA_PHASE_CLOSED;
    d->due = mct_ms() + d->backoff * 1000u;
    d->backoff = d->backoff * 2 < BACKOFF_MAX_S ? d->backoff * 2 : BACKOFF_MAX_S;
    return true;
}

/* ---- events -------------------------------------------------------------------------- */

static void take_event(struct mct_rdma_device *d, const struct ibv_async_event *e, bool *again)
{
    switch (e->event_type) {
    case IBV_EVENT_QP_FATAL:
    case IBV_EVENT_QP_REQ_ERR:
    case IBV_EVENT_QP_ACCESS_ERR:
    case IBV_EVENT_PATH_MIG_ERR:
        /* by its context: a number may be another pair's by now */
        mct_rdma_pair_fail(d, e->element.qp->qp_context);
        break;
    case IBV_EVENT_CQ_ERR:
        mct_rdma_port_fail(d, e->element.cq->cq_context);
        break;
    case IBV_EVENT_SRQ_ERR:
        mct_rdma_port_fail(d, e->element.srq->srq_context);
        break;
    case IBV_EVENT_DEVICE_FATAL:
        mct_rdma_nic_lose(d, "the device reported a fatal error, or was taken away");
        break;
    case IBV_EVENT_PORT_ERR:
    case IBV_EVENT_PORT_ACTIVE:
    case IBV_EVENT_LID_CHANGE:
    case IBV_EVENT_PKEY_CHANGE:
    case IBV_EVENT_SM_CHANGE:
    case IBV_EVENT_CLIENT_REREGISTER:
    case IBV_EVENT_GID_CHANGE:
        if (e->element.port_num == d->port)
            *again = true;
        break;
    default: /* tells of nothing that would have to be done */
        break;
    }
}

/* Takes all that wait: one wake-up may stand for many. */
static void take_events(struct mct_rdma_device *d)
{
    struct ibv_async_event e;
    bool again = false;
    uint64_t count = 0;

    while (d->phase != MCT_RDMA_PHASE_CLOSED) {
        errno = 0;
        if (ibv_get_async_event(d->context, &e) != 0) {
            if (errno == EINTR)
                continue;
            if (errno == EIO || errno == ENODEV)
                mct_rdma_nic_lose(d, "the device was taken away");
            break;
        }
        count++;
        take_event(d, &e, &again);
        ibv_ack_async_event(&e);
    }
    if (count != 0) {
        pthread_mutex_lock(&d->rdma->lock);
        d->shown.events += count;
        pthread_mutex_unlock(&d->rdma->lock);
    }
    if (again && d->phase != MCT_RDMA_PHASE_CLOSING)
        d->due = 0; /* look now */
}

/* ---- the thread ---------------------------------------------------------------------- */

static bool gone_for_good(int res)
{
    return res == -EIO || res == -ENODEV || res == -ENXIO;
}

/* The look at the port, on time or asked for. */
static void look_again(struct mct_rdma_device *d, bool all)
{
    char why[MCT_RDMA_TEXT_MAX];
    int res;

    d->due = mct_ms() + LOOK_MS;
    if (unplugged(d)) {
        mct_rdma_nic_lose(d, "the device was taken away");
        return;
    }
    res = look(d, all);
    if (res == 0)
        return;
    d->looked_all = 0;
    if (gone_for_good(res)) {
        mct_rdma_nic_lose(d, "the device does not answer any more");
    } else {
        struct mct_rdma_nic n = d->shown;

        n.state = MCT_RDMA_DOWN;
        snprintf(why, sizeof(why), "its port cannot be queried: %s", strerror(-res));
        snprintf(n.why, sizeof(n.why), "%s", why);
        show(d, &n);
    }
}

static void do_jobs(struct mct_rdma_device *d)
{
    struct mct_rdma_job *j;

    for (;;) {
        pthread_mutex_lock(&d->rdma->lock);
        j = mct_rdma_jobs_take(&d->jobs);
        pthread_mutex_unlock(&d->rdma->lock);
        if (j == NULL)
            break;
        if (j->kind == MCT_RDMA_JOB_INSTANCE_GONE) {
            mct_rdma_instance_ended(d, j->subject);
            free(j);
        } else {
            mct_rdma_pair_job(d, j);
        }
        pthread_mutex_lock(&d->rdma->lock);
        d->handled++;
        pthread_cond_broadcast(&d->some);
        pthread_mutex_unlock(&d->rdma->lock);
        mct_rdma_pair_asked(d); /* engines do not wait for a long list */
    }
}

static int wait_ms(const struct mct_rdma_device *d)
{
    uint64_t now = mct_ms(), due = d->due;

    if (d->phase == MCT_RDMA_PHASE_CLOSING)
        return (int)LOOK_MS;
    if (d->out_until != 0 && d->out_until < due)
        due = d->out_until;
    return due > now ? (int)(due - now) : 0;
}

static void wait_for_something(struct mct_rdma_device *d)
{
    struct pollfd fds[2] = {{.fd = d->kick_fd, .events = POLLIN}, {.fd = -1, .events = POLLIN}};
    uint64_t n;

    /* one that is closing may have nothing but errors to tell, again and again */
    if (d->phase == MCT_RDMA_PHASE_OPENING || d->phase == MCT_RDMA_PHASE_OPEN)
        fds[1].fd = d->context->async_fd;
    (void)poll(fds, 2, wait_ms(d));
    if (fds[0].revents != 0)
        while (read(d->kick_fd, &n, sizeof(n)) < 0 && errno == EINTR)
            continue;
}

/* The agent's end: everything goes, whether engines have let it go or not, for there are none any more. */
static void end_device(struct mct_rdma_device *d)
{
    uint64_t end = mct_ms() + END_MS;
    bool moving;

    mct_rdma_nic_lose(d, "the agent ends");
    pthread_mutex_lock(&d->rdma->lock);
    d->forgotten = true;
    pthread_mutex_unlock(&d->rdma->lock);
    for (;;) {
        do_jobs(d);
        mct_rdma_pair_asked(d);
        if (d->phase != MCT_RDMA_PHASE_CLOSING)
            break;
        /* what a worker is moving is not destroyed; what none has begun with by now, none will */
        pthread_mutex_lock(&d->rdma->lock);
        moving = d->connecting.at_work != 0 || d->jobs.first != NULL;
        pthread_mutex_unlock(&d->rdma->lock);
        if (!moving)
            mct_rdma_pair_reap(d, true);
        if (try_close(d))
            break;
        if (mct_ms() >= end) {
            if (d->rdma->options.log != NULL)
                d->rdma->options.log(MCT_RDMA_LOG_WARNING,
                                     "RDMA device %s is left open at the end: %llu memory regions, "
                                     "%llu queue pairs are still there",
                                     d->name,
                                     (unsigned long long)mcs_load_relaxed(&d->memory_regions),
                                     (unsigned long long)d->npairs);
            break;
        }
        {
            struct pollfd fd = {.fd = d->kick_fd, .events = POLLIN};
            uint64_t n;

            if (poll(&fd, 1, 20) > 0)
                (void)!read(d->kick_fd, &n, sizeof(n));
        }
    }
}

void *mct_rdma_nic_thread(void *device)
{
    struct mct_rdma_device *d = device;
    bool stop = false, ready, suspect;

    while (!stop) {
        if (d->phase == MCT_RDMA_PHASE_CLOSED && mct_ms() >= d->due)
            try_open(d);
        wait_for_something(d);
        pthread_mutex_lock(&d->rdma->lock);
        stop = d->stop;
        ready = d->ready;
        suspect = d->suspect;
        d->suspect = false;
        pthread_mutex_unlock(&d->rdma->lock);
        mct_rdma_pair_asked(d);
        if (d->phase == MCT_RDMA_PHASE_OPENING || d->phase == MCT_RDMA_PHASE_OPEN)
            take_events(d);
        do_jobs(d);
        if (d->phase == MCT_RDMA_PHASE_OPENING && ready) {
            d->phase = MCT_RDMA_PHASE_OPEN;
            d->due = 0;
        }
        if (d->phase == MCT_RDMA_PHASE_OPENING || d->phase == MCT_RDMA_PHASE_OPEN) {
            if (suspect || d->due == 0 || faults_tell(d))
                look_again(d, true);
            else if (mct_ms() >= d->due)
                look_again(d, false);
        }
        if (d->phase == MCT_RDMA_PHASE_OPEN)
            settle(d);
        mct_rdma_pair_reap(d, false);
        if (d->phase == MCT_RDMA_PHASE_CLOSING) {
            settle(d);
            (void)try_close(d);
        }
    }
    end_device(d);
    return NULL;
}
