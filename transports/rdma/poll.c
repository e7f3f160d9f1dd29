/* SPDX-License-Identifier: Apache-2.0 */
/* Completions: what they say of work requests, queue pairs and nics. */
#include <errno.h>
#include <string.h>

#include "engine.h"

/* The nic's faults are over when something comes through, whoever's it is: said once for many completions. */
static void praise(struct mct_rdma_poller *p)
{
    if (p->fine)
        mct_rdma_fine(p->port);
    p->fine = false;
}

static void blame(struct mct_rdma_poller *p)
{
    praise(p);
    mct_rdma_fault(p->port);
}

void mct_rdma_refill(struct mct_rdma_poller *p)
{
    struct ibv_recv_wr wrs[MCT_RDMA_BATCH];
    struct ibv_sge sges[MCT_RDMA_BATCH];
    const struct mct_rdma_port *port = p->port;

    while (p->nreceives != 0 && !p->failed) {
        struct ibv_recv_wr *bad = NULL, *first = NULL;
        uint32_t n = 0, begin;

        /* the list grows at its head, so that those not taken are the beginning of the array again */
        begin = p->nreceives > MCT_RDMA_BATCH ? p->nreceives - MCT_RDMA_BATCH : 0;
        for (uint32_t i = begin; i < p->nreceives; i++, n++) {
            sges[n] = (struct ibv_sge){
                .addr = (uintptr_t)(port->slab + (uint64_t)p->receives[i] * MCT_RDMA_MESSAGE),
                .length = MCT_RDMA_MESSAGE,
                .lkey = port->slab_key,
            };
            wrs[n] = (struct ibv_recv_wr){
                .wr_id = MCT_RDMA_RECEIVE | p->receives[i],
                .next = first,
                .sg_list = &sges[n],
                .num_sge = 1,
            };
            first = &wrs[n];
        }
        if (ibv_post_srq_recv(port->srq, first, &bad) != 0) {
            if (bad != NULL)
                p->nreceives = begin + (uint32_t)(bad - wrs) + 1;
            /* a queue that cannot be filled is of no use: the nic's thread shall look at it */
            blame(p);
            return;
        }
        p->nreceives = begin;
    }
}

/* What a connection ends with, by the status of the completion that ended it. */
static int class_of(struct mct_rdma_poller *p, enum ibv_wc_status status, uint16_t *slice_status,
                    const char **why)
{
    struct mct *t = p->t;

    *slice_status = MCS_OK;
    switch (status) {
    case IBV_WC_WR_FLUSH_ERR:
        mct_rdma_count(t, flushed, 1);
        *why = "its queue pair has failed";
        return -ECONNRESET;
    case IBV_WC_RETRY_EXC_ERR:
        mct_rdma_count(t, retry_exceeded, 1);
        *why = "the peer's device does not answer";
        return -ETIMEDOUT;
    case IBV_WC_RNR_RETRY_EXC_ERR:
        mct_rdma_count(t, rnr_retries, 1);
        *why = "the peer takes no messages";
        return -ETIMEDOUT;
    case IBV_WC_REM_ACCESS_ERR:
    case IBV_WC_REM_INV_REQ_ERR:
        mct_rdma_count(t, remote_refused, 1);
        *slice_status = MCS_ACCESS;
        *why = "the peer's device refused a key or a range";
        return -EACCES;
    case IBV_WC_LOC_LEN_ERR:
    case IBV_WC_LOC_QP_OP_ERR:
    case IBV_WC_LOC_EEC_OP_ERR:
    case IBV_WC_LOC_PROT_ERR:
    case IBV_WC_LOC_ACCESS_ERR:
    case IBV_WC_LOC_RDD_VIOL_ERR:
    case IBV_WC_MW_BIND_ERR:
        mct_rdma_count(t, local_faults, 1);
        blame(p);
        *why = "this host's device reports a fault of its own";
        return -EIO;
    default:
        *why = "its queue pair reports an error";
        return -EIO;
    }
}

static void sent(struct mct_rdma_poller *p, const struct ibv_wc *wc)
{
    struct mct_rdma_conn *c = mct_rdma_conn_of(p->t, wc->wr_id);
    uint16_t status = MCS_OK;
    const char *why;
    uint32_t n;

    if (c == NULL || c->poller != p)
        return; /* what a destroyed queue pair left behind */
    n = (uint32_t)wc->wr_id - (uint32_t)c->known;
    if (n >= c->posted - c->known)
        return;
    for (; n != 0; n--) /* it is the first one that tells of those before: they went well */
        mct_rdma_known(c, true, MCS_OK);
    if (wc->status == IBV_WC_SUCCESS) {
        mct_rdma_known(c, true, MCS_OK);
        p->fine = true;
        return;
    }
    {
        int error = class_of(p, wc->status, &status, &why);
        bool fresh = !c->ending;

        mct_rdma_conn_end(c, error, why);
        if (fresh)
            p->t->env.log(MCT_RDMA_LOG_DEBUG, "rdma connection %016llx: completion with %s (%u)",
                          (unsigned long long)c->id, ibv_wc_status_str(wc->status),
                          (unsigned)wc->vendor_err);
    }
    mct_rdma_known(c, false, status);
}

static void received(struct mct_rdma_poller *p, const struct ibv_wc *wc)
{
    uint32_t index = (uint32_t)wc->wr_id;

    if (index >= p->port->srq_depth)
        return;
    if (!p->t->closing)
        mct_rdma_message(p, wc, p->port->slab + (uint64_t)index * MCT_RDMA_MESSAGE);
    p->receives[p->nreceives++] = index;
}

bool mct_rdma_poll(struct mct_rdma_poller *p)
{
    struct ibv_wc wc[MCT_RDMA_BATCH];
    bool any = false;

    for (unsigned i = 0; i < MCT_RDMA_BATCHES; i++) {
        int n = ibv_poll_cq(p->port->cq, MCT_RDMA_BATCH, wc);

        if (n < 0 && !p->failed) {
            p->t->env.log(MCT_RDMA_LOG_ERROR,
                          "rdma: the completion queue cannot be polled any more (%d): all "
                          "connections of this device and engine end",
                          n);
            blame(p);
            p->failed = true;
            /* its thread makes a new one for the next pairs; partner: find_port(), mct_rdma_pair_reap() */
            mcs_store_release(&p->port->failed, 1u);
        }
        for (int k = 0; k < n; k++) {
            if ((wc[k].wr_id & MCT_RDMA_RECEIVE) != 0)
                received(p, &wc[k]);
            else
                sent(p, &wc[k]);
        }
        if (n > 0) {
            any = true;
            p->polled += (unsigned)n;
        }
        if (n < (int)MCT_RDMA_BATCH) {
            p->emptied++;
            break;
        }
    }
    praise(p);
    if (p->nreceives != 0)
        mct_rdma_refill(p);
    return any;
}
