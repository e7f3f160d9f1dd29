/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Does this machine's RDMA work at all? Verbs alone, nothing of mcshm, so that a VM that is broken is told from
 * rails that are.
 *
 *   verbs_smoke DEVICE DEVICE GID_INDEX    two devices on one wire
 *
 * WRITE, READ, inline, SEND to a shared receive queue, waking by a completion channel; a bad key ends its own pair
 * only; what is outstanding is flushed; a pair comes back with other PSNs.
 */
#include <errno.h>
#include <infiniband/verbs.h>
#include <poll.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define SIZE ((size_t)4 << 20)
#define DEADLINE_S 60
#define ACCESS (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ)

struct side {
    struct ibv_context *device;
    struct ibv_pd *pd;
    struct ibv_comp_channel *channel;
    struct ibv_cq *cq;
    struct ibv_srq *srq;
    struct ibv_mr *mr;
    uint8_t *memory;
    union ibv_gid gid;
    int gid_index;
};

static const char *at = "the start";

#define NEED(condition)                                                                            \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "%s:%d: %s: %s: %s\n", __FILE__, __LINE__, at, #condition,             \
                    strerror(errno));                                                              \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

static void side_init(struct side *s, const char *name, int gid_index)
{
    int n;
    struct ibv_device **list = ibv_get_device_list(&n);

    NEED(list);
    for (int i = 0; i < n && !s->device; i++) {
        if (!strcmp(ibv_get_device_name(list[i]), name))
            s->device = ibv_open_device(list[i]);
    }
    NEED(s->device);
    ibv_free_device_list(list);
    s->gid_index = gid_index;
    NEED(!ibv_query_gid(s->device, 1, gid_index, &s->gid));
    NEED((s->pd = ibv_alloc_pd(s->device)));
    NEED((s->channel = ibv_create_comp_channel(s->device)));
    NEED((s->cq = ibv_create_cq(s->device, 256, NULL, s->channel, 0)));
    NEED((s->srq = ibv_create_srq(
              s->pd, &(struct ibv_srq_init_attr){.attr = {.max_wr = 16, .max_sge = 1}})));
    NEED((s->memory = aligned_alloc(4096, SIZE)));
    memset(s->memory, 0, SIZE);
    NEED((s->mr = ibv_reg_mr(s->pd, s->memory, SIZE, ACCESS)));
}

static void side_fini(struct side *s)
{
    at = "the end";
    NEED(!ibv_dereg_mr(s->mr));
    NEED(!ibv_destroy_srq(s->srq));
    NEED(!ibv_destroy_cq(s->cq));
    NEED(!ibv_destroy_comp_channel(s->channel));
    NEED(!ibv_dealloc_pd(s->pd));
    NEED(!ibv_close_device(s->device));
    free(s->memory);
}

static struct ibv_qp *qp_create(struct side *s)
{
    struct ibv_qp *qp = ibv_create_qp(
        s->pd, &(struct ibv_qp_init_attr){
                   .send_cq = s->cq,
                   .recv_cq = s->cq,
                   .srq = s->srq,
                   .qp_type = IBV_QPT_RC,
                   .cap = {.max_send_wr = 64, .max_send_sge = 1, .max_inline_data = 64}});

    NEED(qp);
    return qp;
}

static void qp_to(struct ibv_qp *qp, enum ibv_qp_state state)
{
    NEED(!ibv_modify_qp(qp, &(struct ibv_qp_attr){.qp_state = state}, IBV_QP_STATE));
}

/* From RESET on. */
static void qp_connect(struct side *s, struct ibv_qp *qp, const struct side *peer,
                       const struct ibv_qp *other, uint32_t psn, uint32_t peer_psn)
{
    struct ibv_qp_attr a = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = ACCESS};

    NEED(!ibv_modify_qp(qp, &a,
                        IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
    a = (struct ibv_qp_attr){
        .qp_state = IBV_QPS_RTR,
        .path_mtu = IBV_MTU_4096,
        .dest_qp_num = other->qp_num,
        .rq_psn = peer_psn,
        .max_dest_rd_atomic = 16,
        .min_rnr_timer = 12,
        .ah_attr = {
            .is_global = 1,
            .port_num = 1,
            .grh = {.dgid = peer->gid, .sgid_index = (uint8_t)s->gid_index, .hop_limit = 64}}};
    NEED(!ibv_modify_qp(qp, &a,
                        IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
                            IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
    a = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTS,
                             .timeout = 18,
                             .retry_cnt = 7,
                             .rnr_retry = 6,
                             .sq_psn = psn,
                             .max_rd_atomic = 16};
    NEED(!ibv_modify_qp(qp, &a,
                        IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                            IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC));
}

static void post(struct side *s, struct ibv_qp *qp, enum ibv_wr_opcode opcode,
                 const struct side *peer, size_t offset, size_t size, uint32_t rkey, unsigned flags)
{
    struct ibv_sge e = {(uintptr_t)s->memory + offset, (uint32_t)size, s->mr->lkey};
    struct ibv_send_wr *bad;
    struct ibv_send_wr w = {.wr_id = offset,
                            .sg_list = &e,
                            .num_sge = 1,
                            .opcode = opcode,
                            .send_flags = IBV_SEND_SIGNALED | flags,
                            .wr.rdma = {(uintptr_t)peer->memory + offset, rkey}};

    NEED(!ibv_post_send(qp, &w, &bad));
}

static struct ibv_wc next(struct side *s)
{
    time_t end = time(NULL) + DEADLINE_S;
    struct ibv_wc wc = {0};
    int n;

    while (!(n = ibv_poll_cq(s->cq, 1, &wc)))
        NEED(time(NULL) < end);
    NEED(n == 1);
    return wc;
}

static void expect(struct side *s, enum ibv_wc_status status)
{
    struct ibv_wc wc = next(s);

    if (wc.status != status) {
        fprintf(stderr, "%s: %s, wanted %s\n", at, ibv_wc_status_str(wc.status),
                ibv_wc_status_str(status));
        exit(1);
    }
}

static void pattern(uint8_t *p, size_t size, unsigned seed)
{
    for (size_t i = 0; i < size; i++)
        p[i] = (uint8_t)((i * 2654435761u >> 7) + seed);
}

static void moves(struct side *a, struct side *b, struct ibv_qp *qp, unsigned seed)
{
    static const size_t sizes[] = {1, 64, 4096, 4097, SIZE};

    for (size_t i = 0; i < sizeof(sizes) / sizeof(*sizes); i++) {
        at = "WRITE";
        pattern(a->memory, sizes[i], seed + (unsigned)i);
        post(a, qp, IBV_WR_RDMA_WRITE, b, 0, sizes[i], b->mr->rkey,
             sizes[i] <= 64 ? IBV_SEND_INLINE : 0);
        expect(a, IBV_WC_SUCCESS);
        NEED(!memcmp(a->memory, b->memory, sizes[i]));
        at = "READ";
        memset(a->memory, 0, sizes[i]);
        post(a, qp, IBV_WR_RDMA_READ, b, 0, sizes[i], b->mr->rkey, 0);
        expect(a, IBV_WC_SUCCESS);
        NEED(!memcmp(a->memory, b->memory, sizes[i]));
    }
}

static void sends(struct side *a, struct side *b, struct ibv_qp *qp)
{
    struct ibv_sge e = {(uintptr_t)b->memory + 4096, 4096, b->mr->lkey};
    struct ibv_recv_wr *bad, w = {.sg_list = &e, .num_sge = 1};
    struct pollfd fd = {.fd = b->channel->fd, .events = POLLIN};
    struct ibv_cq *cq;
    void *context;

    at = "SEND to a shared receive queue";
    NEED(!ibv_post_srq_recv(b->srq, &w, &bad));
    NEED(!ibv_req_notify_cq(b->cq, 0));
    pattern(a->memory, 100, 77);
    post(a, qp, IBV_WR_SEND, b, 0, 100, 0, 0);
    expect(a, IBV_WC_SUCCESS);
    NEED(poll(&fd, 1, DEADLINE_S * 1000) == 1);
    NEED(!ibv_get_cq_event(b->channel, &cq, &context) && cq == b->cq);
    ibv_ack_cq_events(cq, 1);
    NEED(next(b).byte_len == 100 && !memcmp(a->memory, b->memory + 4096, 100));
}

int main(int argc, char **argv)
{
    struct side a = {0}, b = {0};
    struct ibv_qp *one[2], *two[2];

    if (argc != 4) {
        fprintf(stderr, "usage: verbs_smoke DEVICE DEVICE GID_INDEX\n");
        return 2;
    }
    side_init(&a, argv[1], atoi(argv[3]));
    side_init(&b, argv[2], atoi(argv[3]));
    at = "two pairs";
    one[0] = qp_create(&a), one[1] = qp_create(&b);
    two[0] = qp_create(&a), two[1] = qp_create(&b);
    qp_connect(&b, one[1], &a, one[0], 101, 100);
    qp_connect(&a, one[0], &b, one[1], 100, 101);
    qp_connect(&b, two[1], &a, two[0], 201, 200);
    qp_connect(&a, two[0], &b, two[1], 200, 201);
    moves(&a, &b, one[0], 0);
    moves(&a, &b, two[0], 50);
    sends(&a, &b, one[0]);

    at = "a bad key";
    post(&a, one[0], IBV_WR_RDMA_WRITE, &b, 0, 64, b.mr->rkey ^ 0x100u, 0);
    expect(&a, IBV_WC_REM_ACCESS_ERR);
    at = "a flush after it";
    post(&a, one[0], IBV_WR_RDMA_WRITE, &b, 0, 64, b.mr->rkey, 0);
    expect(&a, IBV_WC_WR_FLUSH_ERR);
    moves(&a, &b, two[0], 100);

    at = "a pair that comes back";
    qp_to(one[0], IBV_QPS_RESET);
    qp_to(one[1], IBV_QPS_RESET);
    qp_connect(&b, one[1], &a, one[0], 0xabcdef, 0xfffffe);
    qp_connect(&a, one[0], &b, one[1], 0xfffffe, 0xabcdef);
    moves(&a, &b, one[0], 150);
    moves(&b, &a, one[1], 200);

    at = "the end";
    NEED(!ibv_destroy_qp(one[0]) && !ibv_destroy_qp(one[1]));
    NEED(!ibv_destroy_qp(two[0]) && !ibv_destroy_qp(two[1]));
    side_fini(&a);
    side_fini(&b);
    printf("verbs work between %s and %s\n", argv[1], argv[2]);
    return 0;
}
