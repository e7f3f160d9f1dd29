/* SPDX-License-Identifier: Apache-2.0 */
/* What tests/fake-verbs promises: it moves bytes as adapters do, and catches who misuses it. */
#include <criterion/criterion.h>

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/fake-verbs/fake.h"
#include "transports/rdma/sysfs.h"

#define BYTES 65536u
#define DEPTH 16

/* One end: everything from the device to a queue pair. */
struct end {
    struct fake_device *d;
    struct ibv_context *c;
    struct ibv_pd *pd;
    struct ibv_mr *mr;
    struct ibv_comp_channel *channel;
    struct ibv_cq *cq;
    struct ibv_srq *srq;
    struct ibv_qp *qp;
    uint8_t *bytes;
};

static struct ibv_context *open_named(const char *name)
{
    struct ibv_device **list = ibv_get_device_list(NULL);
    struct ibv_context *c = NULL;

    if (list == NULL)
        return NULL;
    for (struct ibv_device **d = list; *d != NULL; d++)
        if (strcmp(ibv_get_device_name(*d), name) == 0)
            c = ibv_open_device(*d);
    ibv_free_device_list(list);
    return c;
}

static void end_fini(struct end *e)
{
    if (e->qp != NULL)
        cr_assert_eq(ibv_destroy_qp(e->qp), 0);
    if (e->srq != NULL)
        cr_assert_eq(ibv_destroy_srq(e->srq), 0);
    if (e->cq != NULL)
        cr_assert_eq(ibv_destroy_cq(e->cq), 0);
    if (e->channel != NULL)
        cr_assert_eq(ibv_destroy_comp_channel(e->channel), 0);
    if (e->mr != NULL)
        cr_assert_eq(ibv_dereg_mr(e->mr), 0);
    if (e->pd != NULL)
        cr_assert_eq(ibv_dealloc_pd(e->pd), 0);
    if (e->c != NULL)
        cr_assert_eq(ibv_close_device(e->c), 0);
    if (e->bytes != NULL)
        munmap(e->bytes, BYTES);
    *e = (struct end){.d = e->d};
}

static bool end_init(struct end *e, struct fake_device *d)
{
    struct ibv_srq_init_attr srq = {.attr = {.max_wr = 4, .max_sge = 1}};
    struct ibv_qp_init_attr init = {
        .cap = {.max_send_wr = DEPTH - 3, .max_send_sge = 2, .max_inline_data = 32},
        .qp_type = IBV_QPT_RC};
    struct ibv_qp_attr a = {.qp_state = IBV_QPS_INIT,
                            .port_num = 1,
                            .qp_access_flags = IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE};

    *e = (struct end){.d = d};
    e->bytes = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    e->c = open_named(d->name);
    if (e->c == NULL)
        return false;
    e->pd = ibv_alloc_pd(e->c);
    if (e->pd == NULL)
        return false;
    e->mr = ibv_reg_mr(e->pd, e->bytes, BYTES,
                       IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE);
    e->channel = ibv_create_comp_channel(e->c);
    if (e->mr == NULL || e->channel == NULL)
        return false;
    e->cq = ibv_create_cq(e->c, DEPTH, e, e->channel, 0);
    e->srq = ibv_create_srq(e->pd, &srq);
    if (e->cq == NULL || e->srq == NULL)
        return false;
    init.send_cq = init.recv_cq = e->cq;
    init.srq = e->srq;
    e->qp = ibv_create_qp(e->pd, &init);
    return e->qp != NULL &&
           ibv_modify_qp(e->qp, &a,
                         IBV_QP_STATE | IBV_QP_PORT | IBV_QP_PKEY_INDEX | IBV_QP_ACCESS_FLAGS) == 0;
}

static int connect_to(struct end *e, const struct end *to, uint32_t psn, uint32_t peer_psn)
{
    struct ibv_qp_attr a = {
        .qp_state = IBV_QPS_RTR,
        .path_mtu = IBV_MTU_1024,
        .dest_qp_num = to->qp->qp_num,
        .rq_psn = peer_psn,
        .max_dest_rd_atomic = 4,
        .min_rnr_timer = 12,
        .ah_attr = {.grh = {.sgid_index = 1, .hop_limit = 64}, .is_global = 1, .port_num = 1}};

    memcpy(a.ah_attr.grh.dgid.raw, to->d->ports[0].gids[1].gid, 16);
    int res = ibv_modify_qp(e->qp, &a,
                            IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
                                IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);

    if (res != 0)
        return res;
    a = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTS,
                             .timeout = 14,
                             .retry_cnt = 7,
                             .rnr_retry = 6,
                             .sq_psn = psn,
                             .max_rd_atomic = 4};
    return ibv_modify_qp(e->qp, &a,
                         IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                             IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC);
}

static void pair_init(struct end *a, struct end *b)
{
    cr_assert(end_init(a, fake_add("one")));
    cr_assert(end_init(b, fake_add("two")));
    cr_assert_eq(connect_to(a, b, 7, 9), 0);
    cr_assert_eq(connect_to(b, a, 9, 7), 0);
}

static void pair_fini(struct end *a, struct end *b)
{
    end_fini(a);
    end_fini(b);
    cr_assert_eq(fake_leaks(), 0);
    fake_reset();
}

static int post(struct end *e, enum ibv_wr_opcode op, uint64_t local, uint32_t length,
                uint64_t remote, uint32_t rkey, unsigned flags)
{
    struct ibv_sge sge = {
        .addr = (uintptr_t)e->bytes + local, .length = length, .lkey = e->mr->lkey};
    struct ibv_send_wr wr = {.wr_id = local,
                             .sg_list = &sge,
                             .num_sge = 1,
                             .opcode = op,
                             .send_flags = flags,
                             .wr.rdma = {.remote_addr = remote, .rkey = rkey}};
    struct ibv_send_wr *bad;

    return ibv_post_send(e->qp, &wr, &bad);
}

static int write_to(struct end *a, struct end *b, uint64_t at, uint32_t length, unsigned flags)
{
    return post(a, IBV_WR_RDMA_WRITE, at, length, (uintptr_t)b->bytes + at, b->mr->rkey, flags);
}

/* The status of the next completion, -1: none. */
static int polled(struct end *e)
{
    struct ibv_wc wc;

    return ibv_poll_cq(e->cq, 1, &wc) == 1 ? (int)wc.status : -1;
}

TestSuite(fake_verbs, .init = fake_reset);

Test(fake_verbs, bytes_move_both_ways)
{
    struct end a, b;

    pair_init(&a, &b);
    memset(a.bytes, 1, BYTES);
    memset(b.bytes, 2, BYTES);
    cr_assert_eq(write_to(&a, &b, 100, 1000, IBV_SEND_SIGNALED), 0);
    cr_assert_eq(polled(&a), IBV_WC_SUCCESS);
    cr_assert_eq(b.bytes[99], 2);
    cr_assert_eq(b.bytes[100], 1);
    cr_assert_eq(b.bytes[1099], 1);
    cr_assert_eq(b.bytes[1100], 2);
    cr_assert_eq(post(&a, IBV_WR_RDMA_READ, 5000, 10, (uintptr_t)b.bytes + 5000, b.mr->rkey,
                      IBV_SEND_SIGNALED),
                 0);
    cr_assert_eq(polled(&a), IBV_WC_SUCCESS);
    cr_assert_eq(a.bytes[5000], 2);
    cr_assert_eq(a.bytes[5010], 1);
    cr_assert_eq(write_to(&a, &b, 0, 8, 0), 0, "without a completion");
    cr_assert_eq(b.bytes[7], 1);
    cr_assert_eq(polled(&a), -1);
    cr_assert_eq(polled(&b), -1, "the target hears nothing of it");
    pair_fini(&a, &b);
}

Test(fake_verbs, messages_take_a_buffer_each)
{
    struct end a, b;
    struct ibv_sge sge;
    struct ibv_recv_wr wr = {.wr_id = 5, .sg_list = &sge, .num_sge = 1}, *bad;
    struct ibv_wc wc;

    pair_init(&a, &b);
    sge = (struct ibv_sge){.addr = (uintptr_t)b.bytes, .length = 64, .lkey = b.mr->lkey};
    cr_assert_eq(ibv_post_srq_recv(b.srq, &wr, &bad), 0);
    a.bytes[3] = 77;
    cr_assert_eq(post(&a, IBV_WR_SEND, 0, 16, 0, 0, IBV_SEND_INLINE | IBV_SEND_SIGNALED), 0);
    cr_assert_eq(polled(&a), IBV_WC_SUCCESS);
    cr_assert_eq(ibv_poll_cq(b.cq, 1, &wc), 1);
    cr_assert_eq(wc.wr_id, 5);
    cr_assert_eq(wc.byte_len, 16);
    cr_assert_eq(b.bytes[3], 77);
    cr_assert_eq(post(&a, IBV_WR_SEND, 0, 16, 0, 0, 0), 0);
    cr_assert_eq(polled(&a), IBV_WC_RNR_RETRY_EXC_ERR, "there is no second buffer");
    pair_fini(&a, &b);
}

Test(fake_verbs, a_key_that_does_not_fit_ends_both_ends)
{
    struct end a, b;
    struct ibv_async_event e;

    pair_init(&a, &b);
    cr_assert_eq(post(&a, IBV_WR_RDMA_WRITE, 0, 8, (uintptr_t)b.bytes, a.mr->rkey, 0), 0);
    cr_assert_eq(polled(&a), IBV_WC_REM_ACCESS_ERR);
    cr_assert_eq(write_to(&a, &b, 0, 8, 0), 0);
    cr_assert_eq(polled(&a), IBV_WC_WR_FLUSH_ERR);
    cr_assert_eq(ibv_get_async_event(b.c, &e), 0);
    cr_assert_eq(e.event_type, IBV_EVENT_QP_LAST_WQE_REACHED);
    ibv_ack_async_event(&e);
    cr_assert_eq(ibv_get_async_event(b.c, &e), 0);
    cr_assert_eq(e.event_type, IBV_EVENT_QP_ACCESS_ERR);
    cr_assert_eq(e.element.qp, b.qp);
    ibv_ack_async_event(&e);
    pair_fini(&a, &b);
}

Test(fake_verbs, a_range_past_the_end_is_refused)
{
    struct end a, b;

    pair_init(&a, &b);
    cr_assert_eq(post(&a, IBV_WR_RDMA_WRITE, 0, 2, (uintptr_t)b.bytes + BYTES - 1, b.mr->rkey, 0),
                 0);
    cr_assert_eq(polled(&a), IBV_WC_REM_ACCESS_ERR);
    pair_fini(&a, &b);
}

Test(fake_verbs, other_packet_numbers_reach_nobody)
{
    struct end a, b;

    cr_assert(end_init(&a, fake_add("one")));
    cr_assert(end_init(&b, fake_add("two")));
    cr_assert_eq(connect_to(&a, &b, 7, 9), 0);
    cr_assert_eq(connect_to(&b, &a, 9, 8), 0);
    cr_assert_eq(write_to(&a, &b, 0, 8, 0), 0);
    cr_assert_eq(polled(&a), IBV_WC_RETRY_EXC_ERR);
    pair_fini(&a, &b);
}

Test(fake_verbs, nothing_moves_before_it_is_released)
{
    struct end a, b;

    pair_init(&a, &b);
    fake_pace(a.d, FAKE_HELD);
    a.bytes[0] = 1;
    cr_assert_eq(write_to(&a, &b, 0, 8, IBV_SEND_SIGNALED), 0);
    cr_assert_eq(write_to(&a, &b, 8, 8, IBV_SEND_SIGNALED), 0);
    cr_assert_eq(b.bytes[0], 0);
    cr_assert_eq(fake_waiting(a.d), 2);
    cr_assert_eq(polled(&a), -1);
    cr_assert_eq(fake_release(a.d, 1), 1);
    cr_assert_eq(b.bytes[0], 1);
    cr_assert_eq(polled(&a), IBV_WC_SUCCESS);
    cr_assert_eq(polled(&a), -1);
    fake_pace(a.d, FAKE_COMPLETIONS);
    a.bytes[16] = 1;
    cr_assert_eq(fake_release(a.d, 9), 1);
    cr_assert_eq(polled(&a), IBV_WC_SUCCESS);
    cr_assert_eq(write_to(&a, &b, 16, 8, 0), 0);
    cr_assert_eq(b.bytes[16], 1, "the bytes are there");
    fake_qp_event(a.d, IBV_EVENT_QP_FATAL, a.qp->qp_num);
    cr_assert_eq(polled(&a), IBV_WC_WR_FLUSH_ERR, "and it is flushed all the same");
    pair_fini(&a, &b);
}

Test(fake_verbs, a_thread_moves_in_order)
{
    struct end a, b;
    unsigned done = 0;

    pair_init(&a, &b);
    fake_pace(a.d, FAKE_THREAD);
    for (unsigned i = 0; i < 1000; i++) {
        struct ibv_wc wc;

        memcpy(a.bytes + 8 * i, &i, sizeof(i));
        cr_assert_eq(write_to(&a, &b, 8 * i, 8, IBV_SEND_SIGNALED), 0);
        while (i - done >= 5)
            if (ibv_poll_cq(a.cq, 1, &wc) == 1)
                cr_assert_eq(wc.wr_id, 8 * done++);
    }
    while (done < 1000)
        done += polled(&a) == IBV_WC_SUCCESS;
    cr_assert_arr_eq(a.bytes, b.bytes, 8000);
    pair_fini(&a, &b);
}

Test(fake_verbs, an_armed_queue_tells_once)
{
    struct end a, b;
    struct ibv_cq *cq;
    void *context;

    pair_init(&a, &b);
    cr_assert_eq(fcntl(a.channel->fd, F_SETFL, O_NONBLOCK), 0);
    cr_assert_eq(write_to(&a, &b, 0, 8, IBV_SEND_SIGNALED), 0);
    cr_assert_eq(ibv_req_notify_cq(a.cq, 0), 0);
    cr_assert_eq(ibv_get_cq_event(a.channel, &cq, &context), -1, "it came before");
    cr_assert_eq(errno, EAGAIN);
    cr_assert_eq(write_to(&a, &b, 0, 8, IBV_SEND_SIGNALED), 0);
    cr_assert_eq(write_to(&a, &b, 0, 8, IBV_SEND_SIGNALED), 0);
    cr_assert_eq(ibv_get_cq_event(a.channel, &cq, &context), 0);
    cr_assert_eq(context, &a);
    cr_assert_eq(ibv_get_cq_event(a.channel, &cq, &context), -1);
    ibv_ack_cq_events(cq, 1);
    pair_fini(&a, &b);
}

Test(fake_verbs, completions_lie_as_they_are_told)
{
    struct end a, b;

    pair_init(&a, &b);
    memset(a.bytes, 1, BYTES);
    fake_spoil(a.d, b.d, 2, 1, IBV_WC_GENERAL_ERR, 3);
    cr_assert_eq(write_to(&a, &b, 0, 8, IBV_SEND_SIGNALED), 0);
    cr_assert_eq(write_to(&a, &b, 8, 8, IBV_SEND_SIGNALED), 0);
    cr_assert_eq(polled(&a), IBV_WC_SUCCESS);
    cr_assert_eq(polled(&a), IBV_WC_GENERAL_ERR);
    cr_assert_eq(b.bytes[10], 1);
    cr_assert_eq(b.bytes[11], 0);
    pair_fini(&a, &b);
}

Test(fake_verbs, flushed_writes_may_still_land)
{
    struct end a, b;

    for (unsigned i = 0; i < 3; i++) {
        pair_init(&a, &b);
        fake_pace(a.d, FAKE_HELD);
        fake_linger(a.d, true);
        a.bytes[0] = 1;
        cr_assert_eq(write_to(&a, &b, 0, 8, 0), 0);
        fake_qp_event(a.d, IBV_EVENT_QP_FATAL, a.qp->qp_num);
        cr_assert_eq(polled(&a), IBV_WC_WR_FLUSH_ERR);
        a.bytes[0] = 2; /* it was read before */
        if (i == 1)
            fake_qp_event(b.d, IBV_EVENT_QP_FATAL, b.qp->qp_num);
        if (i == 2) {
            cr_assert_eq(ibv_dereg_mr(b.mr), 0);
            b.mr = NULL;
        }
        cr_assert_eq(b.bytes[0], 0);
        cr_assert_eq(fake_land(9), i == 0 ? 1 : 0);
        cr_assert_eq(b.bytes[0], i == 0 ? 1 : 0, "%u", i);
        pair_fini(&a, &b);
    }
}

Test(fake_verbs, a_dead_port_and_a_cut_wire_end_in_retries)
{
    struct end a, b;

    pair_init(&a, &b);
    fake_port_state(b.d, 1, IBV_PORT_DOWN, true);
    cr_assert_eq(write_to(&a, &b, 0, 8, 0), 0);
    cr_assert_eq(polled(&a), IBV_WC_RETRY_EXC_ERR);
    end_fini(&a);
    end_fini(&b);
    fake_reset();
    pair_init(&a, &b);
    fake_cut(a.d, b.d, true);
    cr_assert_eq(write_to(&a, &b, 0, 8, 0), 0);
    cr_assert_eq(polled(&a), IBV_WC_RETRY_EXC_ERR);
    pair_fini(&a, &b);
}

Test(fake_verbs, each_call_fails_once_and_then_none)
{
    unsigned n = 1;

    for (;; n++) {
        struct end a;

        fake_reset();
        fake_add("one");
        fake_fail_at(n, ENOMEM);
        bool made = end_init(&a, fake_add("two"));

        if (fake_failed() == NULL) {
            cr_assert(made);
            end_fini(&a);
            break;
        }
        cr_assert_not(made, "%s", fake_failed());
        end_fini(&a);
        cr_assert_eq(fake_leaks(), 0);
    }
    cr_assert_eq(n, 10, "nine calls may fail");
    cr_assert_eq(fake_leaks(), 0);
}

Test(fake_verbs, a_blocked_call_holds_up_one_device)
{
    struct end a, b;
    struct ibv_port_attr attr;

    pair_init(&a, &b);
    fake_block(FAKE_ANY, a.d);
    cr_assert_eq(ibv_query_port(b.c, 1, &attr), 0);
    cr_assert_eq(attr.active_mtu, IBV_MTU_1024);
    cr_assert_eq(write_to(&a, &b, 0, 8, IBV_SEND_SIGNALED), 0, "the data path goes on");
    cr_assert_eq(polled(&a), IBV_WC_SUCCESS);
    fake_unblock(a.d);
    pair_fini(&a, &b);
}

Test(fake_verbs, registrations_have_limits)
{
    struct end a;
    struct ibv_mr *mr;

    cr_assert(end_init(&a, fake_add("one")));
    fake_memlock(BYTES + 4096);
    mr = ibv_reg_mr(a.pd, a.bytes, 4096, 0);
    cr_assert_not_null(mr);
    cr_assert_null(ibv_reg_mr(a.pd, a.bytes, 4096, 0));
    cr_assert_eq(errno, ENOMEM);
    cr_assert_eq(ibv_dereg_mr(mr), 0);
    a.d->attr.max_mr_size = 8192;
    cr_assert_null(ibv_reg_mr(a.pd, a.bytes, 8193, 0));
    cr_assert_eq(errno, EINVAL);
    fake_memlock(UINT64_MAX);
    cr_assert_null(ibv_reg_mr(a.pd, a.bytes, 4096, IBV_ACCESS_REMOTE_WRITE), "without LOCAL_WRITE");
    cr_assert_null(ibv_reg_mr(a.pd, NULL, 4096, 0), "nothing is mapped there");
    cr_assert_eq(errno, EFAULT);
    end_fini(&a);
    cr_assert_eq(fake_leaks(), 0);
}

Test(fake_verbs, sysfs_shows_them)
{
    char dir[] = "/tmp/fake-sysfs-XXXXXX", path[300], names[4][MCT_SYSFS_NAME_MAX];
    struct fake_gid gid = {.gid = {0xfd, 1}, .type = IBV_GID_TYPE_ROCE_V1, .netdev = "other"};
    struct mct_gid_entry table[FAKE_GIDS];
    struct mct_sysfs_device device;
    struct mct_sysfs_port port;
    struct fake_device *d;

    cr_assert_not_null(mkdtemp(dir));
    d = fake_add("one");
    snprintf(d->pci, sizeof(d->pci), "0000:3b:00.0");
    d->node = 1;
    fake_sysfs(dir);
    fake_add("two");
    cr_assert_eq(mct_sysfs_devices(dir, names, 4), 2);
    cr_assert_eq(mct_sysfs_device(dir, "one", &device), 0);
    cr_assert_str_eq(device.pci, "0000:3b:00.0");
    cr_assert_eq(device.node, 1);
    cr_assert_str_eq(device.uverbs, "uverbs0");
    cr_assert_eq(device.nports, 1);
    cr_assert_eq(mct_sysfs_port(dir, "one", 1, &port), 0);
    cr_assert_str_eq(port.state, "ACTIVE");
    cr_assert_eq(port.rate, UINT64_C(100000000000));
    fake_port_state(d, 1, IBV_PORT_DOWN, false);
    cr_assert_eq(mct_sysfs_port(dir, "one", 1, &port), 0);
    cr_assert_str_eq(port.state, "DOWN");
    fake_gid(d, 1, 0, NULL, false);
    fake_gid(d, 1, 5, &gid, false);
    cr_assert_eq(mct_sysfs_gids(dir, "one", 1, table, FAKE_GIDS), 2);
    cr_assert_eq(table[0].index, 1);
    cr_assert_eq(table[0].type, MCT_GID_ROCE_V2);
    cr_assert_eq(table[1].index, 5);
    cr_assert_eq(table[1].type, MCT_GID_ROCE_V1);
    cr_assert_str_eq(table[1].netdev, "other");
    fake_remove(d);
    cr_assert_eq(mct_sysfs_devices(dir, names, 4), 1);
    cr_assert_str_eq(names[0], "two");
    fake_reset();
    snprintf(path, sizeof(path), "rm -rf %s", dir);
    cr_assert_eq(system(path), 0);
}

/* ---- misuse ---------------------------------------------------------------------- */

Test(fake_verbs, a_full_send_queue_is_no_place, .signal = SIGABRT)
{
    struct end a, b;

    pair_init(&a, &b);
    for (unsigned i = 0; i <= DEPTH - 3; i++)
        write_to(&a, &b, 0, 8, 0); /* unsignalled ones are never polled */
}

Test(fake_verbs, completions_that_might_not_fit_are_told_early, .signal = SIGABRT)
{
    struct end a, b;
    struct ibv_sge sge;
    struct ibv_recv_wr wr = {.sg_list = &sge, .num_sge = 1}, *bad;

    pair_init(&a, &b);
    sge = (struct ibv_sge){.addr = (uintptr_t)a.bytes, .length = 64, .lkey = a.mr->lkey};
    for (unsigned i = 0; i < 4; i++)
        ibv_post_srq_recv(a.srq, &wr, &bad);
    fake_pace(a.d, FAKE_HELD);
    for (unsigned i = 0; i < DEPTH - 3; i++) /* one more than there are places beside the four */
        write_to(&a, &b, 0, 8, IBV_SEND_SIGNALED);
}

Test(fake_verbs, a_domain_in_use_stays, .signal = SIGABRT)
{
    struct end a;

    end_init(&a, fake_add("one"));
    ibv_dealloc_pd(a.pd);
}

Test(fake_verbs, what_is_destroyed_is_not_touched, .signal = SIGABRT)
{
    struct end a, b;
    struct ibv_wc wc;

    pair_init(&a, &b);
    ibv_destroy_qp(a.qp);
    ibv_destroy_srq(a.srq);
    ibv_destroy_cq(a.cq);
    a.c->ops.poll_cq(a.cq, 1, &wc);
}

Test(fake_verbs, memory_under_way_stays_registered, .signal = SIGABRT)
{
    struct end a, b;

    pair_init(&a, &b);
    fake_pace(a.d, FAKE_HELD);
    write_to(&a, &b, 0, 8, 0);
    ibv_dereg_mr(a.mr);
}

Test(fake_verbs, a_pair_that_is_not_ready_takes_nothing, .signal = SIGABRT)
{
    struct end a;

    end_init(&a, fake_add("one"));
    post(&a, IBV_WR_RDMA_WRITE, 0, 8, 0, 0, 0);
}

Test(fake_verbs, an_engine_never_enters_the_kernel, .signal = SIGABRT)
{
    struct end a;

    end_init(&a, fake_add("one"));
    fake_engine_thread(true);
    ibv_destroy_qp(a.qp);
}

Test(fake_verbs, events_are_acknowledged_before_the_end, .signal = SIGABRT)
{
    struct end a;
    struct ibv_async_event e;

    end_init(&a, fake_add("one"));
    fake_qp_event(a.d, IBV_EVENT_COMM_EST, a.qp->qp_num);
    ibv_get_async_event(a.c, &e);
    ibv_destroy_qp(a.qp);
}
