/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the two halves of the RDMA transport share: the nics' threads (rdma.c, nic.c, memory.c, pair.c), which make
 * every verbs call that enters the kernel, and the engines' instances (instance.c, post.c, poll.c, ...), which post and poll.
 *
 *   control thread           nic's thread                       engine
 *   mct_rdma_pair_create --> QP in INIT, port of the instance
 *   mct_rdma_pair_connect -> RTR, RTS
 *   adopt()/serve() -------------------------------------------> posts, polls
 *                            ERR  <------------ mct_rdma_pair_ask(ERROR)
 *                            `reached` = ERROR ----------------> polls until all have flushed
 *                            destroyed <------- mct_rdma_pair_ask(GONE)
 *                            `reached` = GONE -----------------> mct_rdma_pair_free()
 */
#ifndef MCT_RDMA_INTERNAL_H
#define MCT_RDMA_INTERNAL_H

#include <infiniband/verbs.h>

#include "rdma.h"
#include "shm/atomic.h"

struct mct_rdma_device; /* nic.c: a nic with its thread */

/*
 * What an instance has of a nic: made by the nic's thread before the first pair of the two is handed out,
 * destroyed with the last one of them once the instance has ended (mct_rdma_port_put) or the nic is gone.
 */
struct mct_rdma_port {
    /* set before the engine sees it */
    struct mct_rdma_device *device;
    struct mct *instance;
    unsigned nic;
    uint64_t nic_id;
    struct ibv_cq *cq;                /* of all pairs of the port, both directions */
    struct ibv_comp_channel *channel; /* its fd is non-blocking */
    struct ibv_srq *srq;              /* of all pairs of the port */
    unsigned cq_depth, srq_depth;     /* as made */
    uint8_t *
        slab; /* message buffers, MCT_RDMA_MESSAGE bytes each: srq_depth to receive, then as many to send */
    uint32_t slab_key;
    uint32_t max_sge, max_inline;
    uint64_t max_message;
    /* engine */
    void *engine; /* its own */
    /* nic's thread and engine */
    uint32_t failed; /* CQ or device: all pairs are lost. nic: release, engine: acquire */
};

#define MCT_RDMA_MESSAGE                                                                           \
    8192u /* bytes of a message buffer: header, name and message of a notification */
#define MCT_RDMA_SRQ_DEPTH 512u /* at most what the device can */

enum mct_rdma_stage {
    MCT_RDMA_STAGE_LIVES,
    MCT_RDMA_STAGE_ERROR, /* the QP is in the error state: what is posted flushes */
    MCT_RDMA_STAGE_GONE   /* the QP is destroyed: the nic touches nothing on its behalf any more */
};

struct mct_rdma_pair {
    /* set before the engine sees it */
    struct mct_rdma_device *device;
    struct mct_rdma_port *port;
    struct mct *instance;
    unsigned nic;
    uint64_t conn;
    struct mct_rdma_end own, peer;
    struct ibv_qp *qp; /* qp_context is the pair */
    uint32_t depth;    /* send queue, as made */
    uint32_t max_inline;
    uint32_t reads; /* RDMA READs under way at most */
    /* engine */
    void *engine; /* its own */
    /* engine: release; nic's thread: acquire */
    uint32_t wanted; /* enum mct_rdma_stage */
    /* nic's thread: release; engine: acquire. A stage is reached without being asked for when an asynchronous
     * event says so (QP_FATAL, ...), or the device is gone. */
    uint32_t reached; /* enum mct_rdma_stage */
    uint32_t queued;  /* in the nic's list of what is asked: whoever sets it puts the pair there */
    struct mct_rdma_pair *ask_next;
};

/* Engine: asks the nic's thread to bring the pair to a stage; returns at once. When it is reached, the instance is woken
 * (mct_rdma_wake_fd). */
void mct_rdma_pair_ask(struct mct_rdma_pair *p, enum mct_rdma_stage stage);
/* Engine: once GONE is reached. */
void mct_rdma_pair_free(struct mct_rdma_pair *p);

/* Engine: the local key for `address` on the port's nic, and the bytes from there that it covers; false: the
 * memory is not registered on it. */
bool mct_rdma_memory_lkey(const struct mct_rdma_memory *m, const struct mct_rdma_port *port,
                          const void *address, uint32_t *lkey, uint64_t *left);

/* Engine: a completion has told of a fault of the nic's own (IBV_WC_LOC_*), or that one came through again:
 * many in a row put the nic out of use for a while. */
void mct_rdma_fault(struct mct_rdma_port *p);
void mct_rdma_fine(struct mct_rdma_port *p);

/* instance.c, any thread: an eventfd that wakes the engine; what an instance is known by to rdma.c. */
int mct_rdma_wake_fd(const struct mct *instance);
/* Instance's end, engine's thread: all pairs are GONE and freed; its ports go. Waits for the nics' threads, for at
 * most two seconds each: a nic that hangs keeps its memory. */
void mct_rdma_instance_gone(struct mct_rdma *r, struct mct *instance);

#endif
