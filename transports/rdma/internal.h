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
 *
 * A nic's thread destroys nothing that an engine may be about to touch: a queue pair only once the engine has asked
 * for GONE, a completion queue only once the engine has put the port. So when a device is lost, its ports
 * `failed` and its pairs reach ERROR unasked; the engine then asks for GONE, frees, and puts the port.
 */
#ifndef MCT_RDMA_INTERNAL_H
#define MCT_RDMA_INTERNAL_H

#include <infiniband/verbs.h>

#include "rdma.h"
#include "shm/atomic.h"

struct mct_rdma_device; /* nic.c: a nic with its thread */

/*
 * What an instance has of a nic: made by the nic's thread before the first pair of the two is handed out.
 * It stays while the instance lives (mct_rdma_instance_gone), also without a pair, unless it has failed: then it is
 * destroyed once all its pairs are freed and the engine has put it (mct_rdma_port_put).
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
    /* Work requests that may hold an entry of the completion queue at a time. Beside them it has room for srq_depth
     * messages received. */
    unsigned cq_depth, srq_depth;
    uint8_t *
        slab; /* message buffers, MCT_RDMA_MESSAGE bytes each: srq_depth to receive, then as many to send */
    uint32_t slab_key;
    uint32_t max_sge, max_inline;
    uint64_t max_message;
    /* engine: its own; NULL: the engine does not know the port. Set only while the engine holds a pair of it;
     * mct_rdma_port_put() makes it NULL with release, the nic's thread looks with acquire. */
    void *engine;
    /* CQ or device: all pairs are lost. Nic's thread or engine, whoever finds out: release; the other: acquire. */
    uint32_t failed;
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
    int gid_index;     /* of `own` */
    struct ibv_qp *qp; /* qp_context is the pair */
    uint32_t depth;    /* send queue, as made */
    uint32_t max_inline;
    uint32_t reads; /* RDMA READs under way at most */
    /* engine */
    void *engine; /* its own */
    /* nic's thread: release; engine: acquire. A stage is reached without being asked for when an asynchronous
     * event says so (QP_FATAL, ...), or the device is gone. */
    uint32_t reached; /* enum mct_rdma_stage */
    /* mct_rdma_pair_ask()'s own: the stage that is asked for, and whether the pair is in the nic's list of them, in
     * one word: who sets a stage touches the pair no more, unless it has to put it there. */
    uint32_t asked;
    struct mct_rdma_pair *ask_next;
};

/* Engine: asks the nic's thread to bring the pair to a stage; returns at once. When it is reached, the instance is woken
 * (mct_rdma_wake_fd). */
void mct_rdma_pair_ask(struct mct_rdma_pair *p, enum mct_rdma_stage stage);
/* Engine: once GONE is reached. The engine touches it no more. */
void mct_rdma_pair_free(struct mct_rdma_pair *p);
/* Engine: a port that has failed, of which it holds no pair any more: all events of its channel are acknowledged, its
 * descriptor is out of every epoll set. The engine touches it no more, unless it is given another pair of it
 * (which was under way; it will be lost as well). */
void mct_rdma_port_put(struct mct_rdma_port *p);

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
/* Instance's end, engine's thread: all pairs are GONE and freed, all events of channels acknowledged; its ports
 * go, whether put or not. Waits for the nics' threads, for at
 * most two seconds each: a nic that hangs keeps its memory. */
void mct_rdma_instance_gone(struct mct_rdma *r, struct mct *instance);

#endif
