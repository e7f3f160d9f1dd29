/* SPDX-License-Identifier: Apache-2.0 */
/* RDMA: queue pairs, from the first state to their end, at the nic's thread. */
#include "devices.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "gid.h"

#define RNR_RETRIES 6u /* then it is the peer's fault; 7 would be for ever */
#define RNR_TIMER 12u  /* 0.64 ms */
#define HOP_LIMIT 64u
#define READS_MAX 255u /* a byte in the queue pair's attributes */
#define GONE_MS 2000u  /* for each nic, at an instance's end */

/* mct_rdma_pair.asked: a stage, or FREE, and perhaps QUEUED */
#define FREE (MCT_RDMA_STAGE_GONE + 1u)
#define QUEUED 16u

static struct mct_rdma_nic_pair *own(struct mct_rdma_pair *p)
{
    return (struct mct_rdma_nic_pair *)p; /* its first member */
}

static struct mct_rdma_nic_port *port_of(const struct mct_rdma_pair *p)
{
    return (struct mct_rdma_nic_port *)p->port; /* its first member */
}

/* ---- engines ask ------------------------------------------------------------------------ */

static void ask(struct mct_rdma_pair *p, uint32_t stage)
{
    struct mct_rdma_device *d = p->device;
    uint32_t old = mcs_load_relaxed(&p->asked);
    struct mct_rdma_pair *first;

    /* pair_asked() clears QUEUED by the same kind of exchange, and sees what is asked until then */
    while (!mcs_compare_exchange(&p->asked, &old, stage | QUEUED))
        continue;
    if ((old & QUEUED) != 0)
        return; /* it is in the list, and the pair may be freed already */
    first = mcs_load_relaxed(&d->asks);
    do
        p->ask_next = first;
    while (!mcs_compare_exchange(&d->asks, &first, p));
    mct_kick(d->kick_fd);
}

void mct_rdma_pair_ask(struct mct_rdma_pair *p, enum mct_rdma_stage stage)
{
    ask(p, stage);
}

void mct_rdma_pair_free(struct mct_rdma_pair *p)
{
    ask(p, FREE);
}

void mct_rdma_port_put(struct mct_rdma_port *p)
{
    struct mct_rdma_device *d = p->device;

    mcs_store_release(&p->engine, NULL); /* mct_rdma_pair_reap() */
    mct_kick(d->kick_fd);
}

void mct_rdma_instance_gone(struct mct_rdma *r, struct mct *instance)
{
    uint64_t tickets[MCT_RDMA_NICS_MAX] = {0}, end;
    struct mct_rdma_job *j;
    struct mct_rdma_device *d;
    struct timespec ts;
    unsigned i, n;
    bool hangs = false;

    /* the instance has nothing of those that come later */
    pthread_mutex_lock(&r->lock);
    n = r->ndevices;
    pthread_mutex_unlock(&r->lock);
    for (i = 0; i < n; i++) {
        d = r->devices[i];
        j = calloc(1, sizeof(*j));
        if (j == NULL)
            continue; /* what it has of this nic stays until the agent ends */
        j->kind = MCT_RDMA_JOB_INSTANCE_GONE;
        j->subject = instance;
        j->device = d;
        pthread_mutex_lock(&r->lock);
        mct_rdma_jobs_put(&d->jobs, j);
        tickets[i] = ++d->posted;
        pthread_mutex_unlock(&r->lock);
        mct_kick(d->kick_fd);
    }
    pthread_mutex_lock(&r->lock);
    for (i = 0; i < n; i++) {
        d = r->devices[i];
        end = mct_ms() + GONE_MS;
        ts = mct_until(end);
        while (d->handled < tickets[i] && mct_ms() < end)
            pthread_cond_timedwait(&d->some, &r->lock, &ts);
        hangs = hangs || d->handled < tickets[i];
    }
    pthread_mutex_unlock(&r->lock);
    if (hangs && r->options.log != NULL)
        r->options.log(MCT_RDMA_LOG_WARNING,
                       "an RDMA device did not answer within %u s; an engine that ended leaves its "
                       "queues with it",
                       GONE_MS / 1000u);
}

/* ---- ports ------------------------------------------------------------------------------ */

static void wake(const struct mct_rdma_nic_port *port)
{
    mct_kick(port->wake_fd);
}

/* What a destructor said. The kernel refuses with EIO once a device is unplugged: its driver has stopped it by then, and
 * nothing is left of its objects. */
static bool is_gone(const struct mct_rdma_device *d, int res)
{
    return res == 0 || (d->dead && (res == EIO || res == ENODEV || res == ENXIO));
}

/* false: something of it does not go yet; again later. */
static bool destroy_port(struct mct_rdma_device *d, struct mct_rdma_nic_port *port)
{
    struct mct_rdma_port *p = &port->port;

    if (p->srq != NULL && is_gone(d, ibv_destroy_srq(p->srq)))
        p->srq = NULL;
    if (p->cq != NULL && is_gone(d, ibv_destroy_cq(p->cq)))
        p->cq = NULL;
    if (p->cq == NULL && p->channel != NULL && is_gone(d, ibv_destroy_comp_channel(p->channel)))
        p->channel = NULL;
    /* the slab may be written as long as there is a queue that knows it */
    if (p->srq == NULL && port->mr != NULL && is_gone(d, ibv_dereg_mr(port->mr)))
        port->mr = NULL;
    if (p->srq != NULL || p->cq != NULL || p->channel != NULL || port->mr != NULL)
        return false;
    if (p->slab != NULL)
        munmap(p->slab, port->slab_size);
    if (port->wake_fd >= 0)
        close(port->wake_fd);
    free(port);
    return true;
}

static uint32_t least(uint64_t a, int limit)
{
    return limit > 0 && a > (uint64_t)limit ? (uint32_t)limit : (uint32_t)a;
}

/* What an instance needs of the nic. text: why not, malloc'ed. */
static int create_port(struct mct_rdma_device *d, struct mct *instance,
                       struct mct_rdma_nic_port **out, char **text)
{
    const struct mct_rdma_options *o = &d->rdma->options;
    const struct ibv_device_attr *limits = &d->limits;
    struct mct_rdma_nic_port *port = calloc(1, sizeof(*port));
    struct mct_rdma_port *p;
    struct ibv_srq_init_attr srq = {.attr = {.max_sge = 1}};
    const char *what = "memory";
    char memlock[MCT_RDMA_TEXT_MAX];
    uint32_t entries;
    int flags, vectors, res;

    *out = NULL;
    if (port == NULL) {
        res = -ENOMEM;
        goto fail;
    }
    p = &port->port;
    port->wake_fd = -1;
    p->device = d;
    p->instance = instance;
    p->nic = d->index;
    p->nic_id = d->id;
    p->max_sge = least(4, limits->max_sge);
    p->max_inline = o->max_inline;
    p->max_message = d->shown.max_message;
    p->srq_depth = least(MCT_RDMA_SRQ_DEPTH, limits->max_srq_wr);
    /* every message received takes an entry, too, and a peer may send as many as there are buffers */
    p->srq_depth = least(p->srq_depth, limits->max_cqe / 2);
    /* the slab is one registration; 0: it tells no limit */
    if (limits->max_mr_size != 0 && limits->max_mr_size / (2 * MCT_RDMA_MESSAGE) < p->srq_depth)
        p->srq_depth = (unsigned)(limits->max_mr_size / (2 * MCT_RDMA_MESSAGE));
    entries = least((uint64_t)o->cq_depth + p->srq_depth, limits->max_cqe);
    p->cq_depth = entries - p->srq_depth;

    what = "a duplicate of the engine's eventfd";
    errno = 0;
    port->wake_fd = fcntl(mct_rdma_wake_fd(instance), F_DUPFD_CLOEXEC, 0);
    if (port->wake_fd < 0)
        goto failed;
    what = "message buffers";
    port->slab_size = (size_t)2 * p->srq_depth * MCT_RDMA_MESSAGE;
    p->slab =
        mmap(NULL, port->slab_size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (p->slab == MAP_FAILED) {
        p->slab = NULL;
        goto failed;
    }
    what = "registered message buffers";
    port->mr = ibv_reg_mr(d->pd, p->slab, port->slab_size, IBV_ACCESS_LOCAL_WRITE);
    if (port->mr == NULL)
        goto failed;
    p->slab_key = port->mr->lkey;
    what = "a completion channel";
    p->channel = ibv_create_comp_channel(d->context);
    if (p->channel == NULL)
        goto failed;
    flags = fcntl(p->channel->fd, F_GETFL);
    if (flags < 0 || fcntl(p->channel->fd, F_SETFL, flags | O_NONBLOCK) != 0)
        goto failed;
    what = "a completion queue";
    vectors = d->context->num_comp_vectors;
    p->cq = ibv_create_cq(d->context, (int)entries, port, p->channel,
                          vectors > 1 ? (int)(d->vector++ % (unsigned)vectors) : 0);
    if (p->cq == NULL)
        goto failed;
    what = "a shared receive queue";
    srq.srq_context = port;
    srq.attr.max_wr = p->srq_depth;
    p->srq = ibv_create_srq(d->pd, &srq);
    if (p->srq == NULL)
        goto failed;
    port->next = d->ports;
    d->ports = port;
    *out = port;
    return 0;

failed:
    res = errno != 0 ? -errno : -ENOMEM;
fail:
    if (res == -ENOMEM && port != NULL && port->mr == NULL && port->port.slab != NULL &&
        mct_rdma_memlock(memlock, sizeof(memlock))) {
        *text =
            mct_rdma_text("RDMA device %s: %zu bytes of message buffers cannot be registered: %s",
                          d->name, port->slab_size, memlock);
        goto undo;
    }
    *text =
        mct_rdma_text("RDMA device %s: an engine cannot have %s there: %s (completion queue of %u, "
                      "the device allows "
                      "%d and %d of them; shared receive queue of %u, it allows %d and %d of them)",
                      d->name, what, strerror(-res), port != NULL ? port->port.cq_depth : 0,
                      limits->max_cqe, limits->max_cq, port != NULL ? port->port.srq_depth : 0,
                      limits->max_srq_wr, limits->max_srq);
undo:
    if (port != NULL && !destroy_port(d, port)) {
        /* in the list of those that are tried again */
        port->ended = true;
        port->next = d->ports;
        d->ports = port;
    }
    return res;
}

static struct mct_rdma_nic_port *find_port(const struct mct_rdma_device *d,
                                           const struct mct *instance)
{
    struct mct_rdma_nic_port *port;

    for (port = d->ports; port != NULL; port = port->next)
        if (port->port.instance == instance && !port->ended &&
            mcs_load_acquire(&port->port.failed) == 0) /* partner: the engine, mct_rdma_poll() */
            return port;
    return NULL;
}

/* ---- making and moving -------------------------------------------------------------------- */

static void count_pairs(struct mct_rdma_device *d, int more)
{
    d->npairs += (uint64_t)more;
    pthread_mutex_lock(&d->rdma->lock);
    d->shown.pairs = d->npairs;
    pthread_mutex_unlock(&d->rdma->lock);
}

/* Inline as much as is asked for, or half of it, ...: devices tell their limit by refusing. */
static struct ibv_qp *make_qp(struct mct_rdma_device *d, struct mct_rdma_nic_pair *np)
{
    struct mct_rdma_pair *p = &np->pair;
    struct mct_rdma_port *port = p->port;
    struct ibv_qp_init_attr attr;
    uint32_t data = port->max_inline;
    struct ibv_qp *qp;

    p->depth = least(d->rdma->options.depth, d->limits.max_qp_wr);
    for (;;) {
        memset(&attr, 0, sizeof(attr));
        attr.qp_context = np;
        attr.send_cq = port->cq;
        attr.recv_cq = port->cq;
        attr.srq = port->srq;
        attr.qp_type = IBV_QPT_RC;
        attr.cap.max_send_wr = p->depth;
        attr.cap.max_send_sge = port->max_sge;
        attr.cap.max_inline_data = data;
        errno = 0;
        qp = ibv_create_qp(d->pd, &attr);
        if (qp != NULL || data == 0 || (errno != EINVAL && errno != ENOMEM))
            break;
        data /= 2;
    }
    if (qp != NULL)
        p->max_inline = attr.cap.max_inline_data < data ? attr.cap.max_inline_data : data;
    return qp;
}

static int create_pair(struct mct_rdma_device *d, struct mct_rdma_nic_pair *np, char **text)
{
    struct mct_rdma_pair *p = &np->pair;
    struct mct_rdma_nic_port *port;
    struct ibv_qp_attr attr;
    int res;

    if (d->phase != MCT_RDMA_PHASE_OPEN || d->shown.state != MCT_RDMA_UP) {
        *text = mct_rdma_text("RDMA device %s is not up: %s", d->name, d->shown.why);
        return -ENETDOWN;
    }
    port = find_port(d, p->instance);
    if (port == NULL) {
        res = create_port(d, p->instance, &port, text);
        if (res != 0)
            return res;
    }
    p->port = &port->port;
    p->qp = make_qp(d, np);
    if (p->qp == NULL) {
        res = errno != 0 ? -errno : -ENOMEM;
        *text = mct_rdma_text(
            "RDMA device %s: a queue pair (%u work requests, %u of %d) cannot be had: %s; it has "
            "%llu of at most %d; lower [rdma] queue_pairs or depth",
            d->name, p->depth, port->port.max_sge, d->limits.max_sge, strerror(-res),
            (unsigned long long)d->npairs, d->limits.max_qp);
        p->port = NULL;
        return res;
    }
    port->pairs++;
    np->next = d->pairs;
    if (np->next != NULL)
        np->next->prev = np;
    d->pairs = np;
    np->listed = true;
    count_pairs(d, 1);
    memset(&attr, 0, sizeof(attr));
    attr.qp_state = IBV_QPS_INIT;
    attr.port_num = d->port;
    attr.qp_access_flags =
        IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE;
    res = -ibv_modify_qp(p->qp, &attr,
                         IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
    if (res != 0) {
        *text = mct_rdma_text("RDMA device %s: queue pair %u does not get to INIT on port %u: %s",
                              d->name, p->qp->qp_num, d->port, strerror(-res));
        return res;
    }
    p->own.nic = d->id;
    memcpy(p->own.gid, d->shown.gid, sizeof(p->own.gid));
    p->gid_index = d->shown.gid_index;
    p->own.lid = d->shown.lid;
    p->own.infiniband = d->shown.infiniband;
    p->own.qpn = p->qp->qp_num;
    p->own.psn = (uint32_t)(mct_rdma_random() & 0xffffffu);
    p->own.mtu = d->shown.mtu;
    p->own.reads = d->shown.max_reads < READS_MAX ? d->shown.max_reads : READS_MAX;
    snprintf(p->own.name, sizeof(p->own.name), "%s", d->name);
    return 0;
}

static void describe(const struct mct_rdma_end *e, char *out, size_t size)
{
    char gid[MCT_GID_TEXT_MAX];

    snprintf(out, size, "%.24s %s%s lid %u qp %u psn %u mtu %u reads %u", e->name,
             e->infiniband ? "ib " : "", mct_gid_text(e->gid, gid), e->lid, e->qpn, e->psn, e->mtu,
             e->reads);
}

static char *refuse(const struct mct_rdma_pair *p, const char *why)
{
    char own_end[160], peer_end[160], text[2 * 160 + 160];

    describe(&p->own, own_end, sizeof(own_end));
    describe(&p->peer, peer_end, sizeof(peer_end));
    snprintf(text, sizeof(text), "%s: ours %s, the peer's %s", why, own_end, peer_end);
    return mct_rdma_text("%s", text);
}

/* What the peer says of its end is checked; NULL: it may do, else why not. */
static const char *check_peer(const struct mct_rdma_pair *p)
{
    static const uint8_t zero[16];
    const struct mct_rdma_end *e = &p->peer;

    if (e->infiniband != p->own.infiniband)
        return "InfiniBand and Ethernet do not meet";
    if (e->mtu < 256 || e->mtu > 4096 || (e->mtu & (e->mtu - 1)) != 0)
        return "the MTU is none of 256, 512, 1024, 2048 and 4096";
    if (e->nic == 0)
        return "the peer's device has no id";
    if (e->qpn < 2 || e->qpn > 0xffffff || e->psn > 0xffffff)
        return "queue pair or PSN is no number of 24 bits";
    if (e->reads == 0)
        return "the peer takes no READs";
    if (memcmp(e->gid, zero, sizeof(zero)) == 0 && !(e->infiniband && e->lid != 0))
        return "the peer's end has no address";
    if (e->infiniband && e->lid > 0xbfff)
        return "the peer's LID is none of a single port";
    return NULL;
}

static enum ibv_mtu mtu_code(uint32_t bytes)
{
    enum ibv_mtu code = IBV_MTU_256;

    while (code < IBV_MTU_4096 && mct_rdma_mtu_bytes(code) < bytes)
        code++;
    return code;
}

/* 0: a worker may move it now. */
static int check_connect(struct mct_rdma_device *d, struct mct_rdma_nic_pair *np, char **text)
{
    struct mct_rdma_pair *p = &np->pair;
    const char *why;

    p->peer = np->wanted;
    if (p->qp == NULL || d->dead || p->own.nic != d->id || p->reached != MCT_RDMA_STAGE_LIVES) {
        *text = refuse(p, "the device was lost or opened anew since, or the queue pair has failed");
        return -ESTALE;
    }
    why = check_peer(p);
    if (why != NULL) {
        *text = refuse(p, why);
        return -EPROTO;
    }
    p->reads = least(d->rdma->options.max_reads, d->limits.max_qp_init_rd_atom);
    if (p->reads > p->peer.reads)
        p->reads = p->peer.reads;
    if (p->reads > READS_MAX)
        p->reads = READS_MAX;
    return 0;
}

/* To RTR: with RoCE the kernel looks for the peer's address first, which takes a second where it is not there. */
static int to_rtr(const struct mct_rdma_device *d, struct mct_rdma_pair *p)
{
    const struct mct_rdma_options *o = &d->rdma->options;
    struct ibv_qp_attr attr;

    memset(&attr, 0, sizeof(attr));
    attr.qp_state = IBV_QPS_RTR;
    attr.path_mtu = mtu_code(p->own.mtu < p->peer.mtu ? p->own.mtu : p->peer.mtu);
    attr.dest_qp_num = p->peer.qpn;
    attr.rq_psn = p->peer.psn;
    attr.max_dest_rd_atomic = (uint8_t)p->own.reads;
    attr.min_rnr_timer = RNR_TIMER;
    attr.ah_attr.port_num = d->port;
    attr.ah_attr.sl = (uint8_t)o->service_level;
    attr.ah_attr.dlid = (uint16_t)p->peer.lid;
    /* within an InfiniBand subnet the LID is enough */
    attr.ah_attr.is_global =
        !p->own.infiniband || p->peer.lid == 0 || memcmp(p->own.gid, p->peer.gid, 8) != 0;
    memcpy(attr.ah_attr.grh.dgid.raw, p->peer.gid, 16);
    attr.ah_attr.grh.sgid_index = (uint8_t)p->gid_index;
    attr.ah_attr.grh.hop_limit = HOP_LIMIT;
    attr.ah_attr.grh.traffic_class = (uint8_t)o->traffic_class;
    return -ibv_modify_qp(p->qp, &attr,
                          IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
                              IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
}

static int to_rts(const struct mct_rdma_device *d, struct mct_rdma_pair *p)
{
    const struct mct_rdma_options *o = &d->rdma->options;
    struct ibv_qp_attr attr;

    memset(&attr, 0, sizeof(attr));
    attr.qp_state = IBV_QPS_RTS;
    attr.timeout = (uint8_t)o->timeout;
    attr.retry_cnt = (uint8_t)o->retries;
    attr.rnr_retry = RNR_RETRIES;
    attr.sq_psn = p->own.psn;
    attr.max_rd_atomic = (uint8_t)p->reads;
    return -ibv_modify_qp(p->qp, &attr,
                          IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                              IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC);
}

void mct_rdma_pair_move(struct mct_rdma_device *d, struct mct_rdma_job *j)
{
    struct mct_rdma_nic_pair *np = j->subject;
    char words[120];

    j->res = to_rtr(d, &np->pair);
    if (j->res != 0) {
        snprintf(words, sizeof(words), "the queue pair does not get to RTR: %s", strerror(-j->res));
    } else {
        j->res = to_rts(d, &np->pair);
        if (j->res != 0)
            snprintf(words, sizeof(words), "the queue pair does not get to RTS: %s",
                     strerror(-j->res));
    }
    if (j->res != 0)
        j->text = refuse(&np->pair, words);
}

/* ---- ends ------------------------------------------------------------------------------- */

void mct_rdma_pair_fail(struct mct_rdma_device *d, struct mct_rdma_nic_pair *np)
{
    struct mct_rdma_pair *p = &np->pair;
    struct ibv_qp_attr attr;
    int res;

    if (p->qp == NULL || p->reached != MCT_RDMA_STAGE_LIVES)
        return;
    memset(&attr, 0, sizeof(attr));
    attr.qp_state = IBV_QPS_ERR;
    /* one that is being moved has no engine yet, and will be destroyed */
    res = np->moving ? 0 : ibv_modify_qp(p->qp, &attr, IBV_QP_STATE);
    /* The engine is told all the same: what does not flush ends when the queue pair is destroyed. */
    if (res != 0 && !is_gone(d, res) && d->rdma->options.log != NULL)
        d->rdma->options.log(MCT_RDMA_LOG_WARNING,
                             "RDMA device %s: queue pair %u does not get to the error state: %s",
                             d->name, p->qp->qp_num, strerror(res));
    mcs_store_release(&p->reached, MCT_RDMA_STAGE_ERROR); /* the engine's look at its pairs */
    wake(port_of(p));
}

void mct_rdma_port_fail(struct mct_rdma_device *d, struct mct_rdma_nic_port *port)
{
    struct mct_rdma_nic_pair *np;

    if (mcs_load_acquire(&port->port.failed) != 0) /* partner: the engine, mct_rdma_poll() */
        return;
    mcs_store_release(&port->port.failed, 1); /* the engine's look at its ports */
    for (np = d->pairs; np != NULL; np = np->next)
        if (np->pair.port == &port->port)
            mct_rdma_pair_fail(d, np);
    wake(port);
}

/* false: it is tried again later. */
static bool destroy_qp(struct mct_rdma_device *d, struct mct_rdma_nic_pair *np)
{
    int res;

    if (np->pair.qp == NULL)
        return true;
    res = ibv_destroy_qp(np->pair.qp);
    if (is_gone(d, res)) {
        np->pair.qp = NULL;
        np->ending = false;
        count_pairs(d, -1);
        return true;
    }
    if (!np->ending && d->rdma->options.log != NULL)
        d->rdma->options.log(
            MCT_RDMA_LOG_ERROR,
            "RDMA device %s does not let go of queue pair %u: %s; its memory stays until it does",
            d->name, np->pair.qp->qp_num, strerror(res));
    np->ending = true;
    return false;
}

static void unlist(struct mct_rdma_device *d, struct mct_rdma_nic_pair *np)
{
    if (!np->listed)
        return;
    if (np->next != NULL)
        np->next->prev = np->prev;
    if (np->prev != NULL)
        np->prev->next = np->next;
    else
        d->pairs = np->next;
    np->listed = false;
    port_of(&np->pair)->pairs--;
}

/* Destroyed: whoever asked is told. */
static void tell_gone(struct mct_rdma_device *d, struct mct_rdma_nic_pair *np)
{
    if (np->dropping) { /* the control thread asked, no engine has it */
        unlist(d, np);
        mct_rdma_result(&np->destroy);
        return;
    }
    mcs_store_release(&np->pair.reached, MCT_RDMA_STAGE_GONE); /* the engine's look at its pairs */
    wake(port_of(&np->pair));
}

void mct_rdma_pair_asked(struct mct_rdma_device *d)
{
    struct mct_rdma_pair *p = mcs_exchange(&d->asks, NULL), *next; /* ask() */
    uint32_t word;

    for (; p != NULL; p = next) {
        next = p->ask_next;
        word = mcs_load_relaxed(&p->asked);
        while (!mcs_compare_exchange(&p->asked, &word, word & ~QUEUED)) /* ask() */
            continue;
        switch (word & ~QUEUED) {
        case MCT_RDMA_STAGE_ERROR:
            mct_rdma_pair_fail(d, own(p));
            break;
        case MCT_RDMA_STAGE_GONE:
            if (p->reached != MCT_RDMA_STAGE_GONE && destroy_qp(d, own(p)))
                tell_gone(d, own(p));
            break;
        case FREE:
            unlist(d, own(p));
            free(own(p));
            break;
        default:
            break;
        }
    }
}

void mct_rdma_pair_reap(struct mct_rdma_device *d, bool all)
{
    struct mct_rdma_nic_pair *np, *np_next;
    struct mct_rdma_nic_port **at = &d->ports, *port, *next;

    for (np = d->pairs; np != NULL; np = np_next) {
        np_next = np->next;
        if ((np->ending || (all && np->pair.qp != NULL)) && destroy_qp(d, np))
            tell_gone(d, np);
        if (all && np->listed && np->pair.qp == NULL)
            unlist(d, np);
    }
    while ((port = *at) != NULL) {
        next = port->next;
        if ((port->pairs == 0 &&
             (port->ended || (mcs_load_acquire(&port->port.failed) != 0 &&
                              mcs_load_acquire(&port->port.engine) ==
                                  NULL))) || /* partners: mct_rdma_poll(), mct_rdma_port_put() */
            (all && d->npairs == 0)) {
            if (destroy_port(d, port)) {
                *at = next;
                continue;
            }
        }
        at = &port->next;
    }
}

void mct_rdma_instance_ended(struct mct_rdma_device *d, const struct mct *instance)
{
    struct mct_rdma_nic_port *port;

    mct_rdma_pair_asked(d); /* its pairs' ends were asked for before */
    for (port = d->ports; port != NULL; port = port->next)
        if (port->port.instance == instance)
            port->ended = true;
    mct_rdma_pair_reap(d, false);
}

void mct_rdma_pair_job(struct mct_rdma_device *d, struct mct_rdma_job *j)
{
    struct mct_rdma_nic_pair *np = j->subject;
    /* given up before its turn came, which may be long after: partner: mct_rdma_pair_destroy() */
    bool dropped = mcs_load_acquire(&np->dropped) != 0;

    if (dropped && j->kind == MCT_RDMA_JOB_PAIR_CREATE) {
        mct_rdma_result(j);
        return;
    }
    switch (j->kind) {
    case MCT_RDMA_JOB_PAIR_CREATE:
        j->res = create_pair(d, np, &j->text);
        mct_rdma_result(j);
        break;
    case MCT_RDMA_JOB_PAIR_CONNECT:
        j->res = check_connect(d, np, &j->text);
        if (j->res != 0) {
            mct_rdma_result(j);
            break;
        }
        np->moving = true;
        mct_rdma_worker_put(&d->connecting, j);
        break;
    case MCT_RDMA_JOB_PAIR_MOVED:
        np->moving = false;
        if (j->res == 0 && np->pair.reached != MCT_RDMA_STAGE_LIVES) {
            j->res = -ESTALE;
            j->text = refuse(&np->pair, "the queue pair has failed meanwhile");
        }
        mct_rdma_result(j);
        if (np->dropping && destroy_qp(d, np))
            tell_gone(d, np);
        break;
    default: /* PAIR_DESTROY */
        np->dropping = true;
        /* nobody waits behind a look for a peer that is of no use any more */
        if (np->moving && mct_rdma_worker_drop(&d->connecting, &np->job))
            np->moving = false;
        if (!np->moving && destroy_qp(d, np))
            tell_gone(d, np);
        break;
    }
}

/* ---- the control thread ------------------------------------------------------------------- */

int mct_rdma_pair_create(struct mct_rdma *r, unsigned nic, struct mct *instance, uint64_t conn,
                         mct_rdma_done *done, void *context, struct mct_rdma_pair **out)
{
    struct mct_rdma_nic_pair *np;
    uint64_t backlog;

    *out = NULL;
    if (nic >= r->ndevices)
        return -EINVAL;
    pthread_mutex_lock(&r->lock);
    backlog = r->devices[nic]->posted - r->devices[nic]->handled;
    pthread_mutex_unlock(&r->lock);
    if (backlog >= MCT_RDMA_BACKLOG)
        return -EBUSY;
    np = calloc(1, sizeof(*np));
    if (np == NULL)
        return -ENOMEM;
    np->rdma = r;
    np->pair.device = r->devices[nic];
    np->pair.instance = instance;
    np->pair.nic = nic;
    np->pair.conn = conn;
    np->done = done;
    np->context = context;
    np->job.kind = MCT_RDMA_JOB_PAIR_CREATE;
    np->job.subject = np;
    np->destroy.kind = MCT_RDMA_JOB_PAIR_DESTROY;
    np->destroy.subject = np;
    *out = &np->pair;
    mct_rdma_post(r->devices[nic], &np->job);
    return 0;
}

const struct mct_rdma_end *mct_rdma_pair_end(const struct mct_rdma_pair *p)
{
    return &p->own;
}

void mct_rdma_pair_connect(struct mct_rdma_pair *p, const struct mct_rdma_end *peer,
                           mct_rdma_done *done, void *context)
{
    struct mct_rdma_nic_pair *np = own(p);
    size_t i;

    np->wanted = *peer;
    /* it goes into logs */
    np->wanted.name[sizeof(np->wanted.name) - 1] = 0;
    for (i = 0; np->wanted.name[i] != 0; i++)
        if (np->wanted.name[i] < ' ' || np->wanted.name[i] > '~')
            np->wanted.name[i] = '?';
    np->done = done;
    np->context = context;
    np->job.kind = MCT_RDMA_JOB_PAIR_CONNECT;
    np->job.res = 0;
    mct_rdma_post(p->device, &np->job);
}

void mct_rdma_pair_destroy(struct mct_rdma_pair *p)
{
    mcs_store_release(&own(p)->dropped, 1); /* mct_rdma_pair_job() */
    mct_rdma_post(p->device, &own(p)->destroy);
}

void mct_rdma_pair_result(struct mct_rdma_job *j)
{
    struct mct_rdma_nic_pair *np = j->subject;
    char *text = j->text;

    j->text = NULL;
    if (j->kind == MCT_RDMA_JOB_PAIR_DESTROY)
        free(np);
    else if (mcs_load_relaxed(&np->dropped) == 0 && !np->rdma->quiet)
        np->done(np->context, j->res,
                 j->res == 0    ? ""
                 : text != NULL ? text
                                : "out of memory for a queue pair");
    free(text);
}
