/* SPDX-License-Identifier: Apache-2.0 */
#include "rdma_raw.h"

#include "say.h"

#include <errno.h>

#if __has_include(<infiniband/verbs.h>)

#include "clock.h"
#include "pin.h"
#include "proc.h"
#include "stats.h"

#include <infiniband/verbs.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define BYTES 8u /* of a WRITE */
#define TIMES_MAX (1u << 20)
#define ANSWER_MS 120000
#define ACCESS (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ)

struct port { /* one end */
    struct ibv_context *context;
    struct ibv_pd *pd;
    struct ibv_cq *cq;
    struct ibv_qp *qp;
    struct ibv_mr *mr;
    union ibv_gid gid;
    struct ibv_port_attr attributes;
    uint64_t memory[8];
};

struct job { /* for proc_start() */
    const struct hosts_end *from, *to;
    int core;
    double seconds;
    uint64_t bytes, page_size;
};

bool rdma_raw_present(void)
{
    return true;
}

static int open_device(const struct hosts_end *end, struct port *p)
{
    struct ibv_device **list = ibv_get_device_list(NULL);

    for (unsigned i = 0; list != NULL && list[i] != NULL && p->context == NULL; i++)
        if (strcmp(ibv_get_device_name(list[i]), end->device) == 0)
            p->context = ibv_open_device(list[i]);
    if (list != NULL)
        ibv_free_device_list(list);
    if (p->context != NULL)
        p->pd = ibv_alloc_pd(p->context);
    return p->pd != NULL ? 0 : say_error(-ENODEV, "%s cannot be opened: %m", end->device);
}

static int open_port(const struct hosts_end *end, struct port *p)
{
    struct ibv_qp_init_attr init = {.cap = {.max_send_wr = 16,
                                            .max_recv_wr = 1,
                                            .max_send_sge = 1,
                                            .max_recv_sge = 1,
                                            .max_inline_data = BYTES},
                                    .qp_type = IBV_QPT_RC};
    int rc = open_device(end, p);

    if (rc != 0)
        return rc;
    p->cq = ibv_create_cq(p->context, 16, NULL, NULL, 0);
    p->mr = ibv_reg_mr(p->pd, p->memory, sizeof(p->memory), ACCESS);
    init.send_cq = init.recv_cq = p->cq;
    if (p->cq != NULL && p->mr != NULL)
        p->qp = ibv_create_qp(p->pd, &init);
    if (p->qp == NULL || ibv_query_gid(p->context, 1, end->gid_index, &p->gid) != 0 ||
        ibv_query_port(p->context, 1, &p->attributes) != 0)
        return say_error(-EIO, "%s: no queue pair: %m", end->device);
    return 0;
}

static int connect_port(const struct hosts_end *end, struct port *p, const struct port *peer)
{
    struct ibv_qp_attr a = {.qp_state = IBV_QPS_INIT,
                            .port_num = 1,
                            .qp_access_flags = ACCESS & ~IBV_ACCESS_LOCAL_WRITE};
    int rc = ibv_modify_qp(p->qp, &a,
                           IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);

    a = (struct ibv_qp_attr){
        .qp_state = IBV_QPS_RTR,
        .path_mtu = p->attributes.active_mtu < peer->attributes.active_mtu
                        ? p->attributes.active_mtu
                        : peer->attributes.active_mtu,
        .dest_qp_num = peer->qp->qp_num,
        .max_dest_rd_atomic = 1,
        .min_rnr_timer = 12,
        .ah_attr = {
            .is_global = 1,
            .port_num = 1,
            .dlid = peer->attributes.lid,
            .grh = {.dgid = peer->gid, .sgid_index = (uint8_t)end->gid_index, .hop_limit = 64}}};
    if (rc == 0)
        rc = ibv_modify_qp(p->qp, &a,
                           IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
                               IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
    a.qp_state = IBV_QPS_RTS;
    a.timeout = 18;
    a.retry_cnt = a.rnr_retry = 7;
    a.max_rd_atomic = 1;
    if (rc == 0)
        rc = ibv_modify_qp(p->qp, &a,
                           IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                               IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC);
    return rc == 0 ? 0
                   : say_error(-rc, "%s: its queue pair cannot be connected: %s", end->device,
                               strerror(rc));
}

/* 0, or a negative errno. */
static int write_once(struct port *from, const struct port *to)
{
    struct ibv_sge sge = {.addr = (uintptr_t)from->memory, .length = BYTES, .lkey = from->mr->lkey};
    struct ibv_send_wr *bad,
        wr = {.sg_list = &sge,
              .num_sge = 1,
              .opcode = IBV_WR_RDMA_WRITE,
              .send_flags = IBV_SEND_SIGNALED | IBV_SEND_INLINE,
              .wr.rdma = {.remote_addr = (uintptr_t)to->memory, .rkey = to->mr->rkey}};
    struct ibv_wc wc = {.status = IBV_WC_SUCCESS};
    int n = -ibv_post_send(from->qp, &wr, &bad);

    while (n == 0)
        n = ibv_poll_cq(from->cq, 1, &wc);
    return n < 0 ? -EIO : wc.status == IBV_WC_SUCCESS ? 0 : -EREMOTEIO;
}

static void close_port(struct port *p)
{
    if (p->qp != NULL)
        ibv_destroy_qp(p->qp);
    if (p->mr != NULL)
        ibv_dereg_mr(p->mr);
    if (p->cq != NULL)
        ibv_destroy_cq(p->cq);
    if (p->pd != NULL)
        ibv_dealloc_pd(p->pd);
    if (p->context != NULL)
        ibv_close_device(p->context);
}

static int write_main(int fd, void *context)
{
    static struct port from, to;
    const struct job *job = context;
    uint32_t *times = calloc(TIMES_MAX, sizeof(times[0])), count = 0;
    uint64_t start, now;
    double median;
    int rc = times != NULL ? open_port(job->from, &from) : -ENOMEM;

    if (rc == 0)
        rc = open_port(job->to, &to);
    if (rc == 0)
        rc = connect_port(job->to, &to, &from);
    if (rc == 0)
        rc = connect_port(job->from, &from, &to);
    pin_to(job->core);
    start = now = clock_ns();
    while (rc == 0 && now - start < (uint64_t)(job->seconds * 1e9) && count < TIMES_MAX) {
        uint64_t before = now;

        rc = write_once(&from, &to);
        now = clock_ns();
        times[count++] = now - before > UINT32_MAX ? UINT32_MAX : (uint32_t)(now - before);
        if (rc != 0)
            say_error(rc, "the bare WRITE from %s to %s failed: %s", job->from->device,
                      job->to->device, strerror(-rc));
    }
    median = stats_percentile_u32(times, count, 50) / 1e3;
    if (rc == 0)
        rc = proc_send(fd, &median, sizeof(median));
    close_port(&from);
    close_port(&to);
    free(times);
    return rc;
}

static int register_main(int fd, void *context)
{
    const struct job *job = context;
    struct port p = {.context = NULL};
    bool huge = job->page_size > (uint64_t)sysconf(_SC_PAGESIZE);
    int memory = memfd_create("mcshm-bench-mr", MFD_CLOEXEC | (huge ? MFD_HUGETLB : 0));
    uint64_t mapped = (job->bytes + job->page_size - 1) / job->page_size * job->page_size;
    void *at = MAP_FAILED;
    uint64_t before;
    double seconds;
    int rc = open_device(job->from, &p);

    if (rc == 0 && memory >= 0 && ftruncate(memory, (off_t)mapped) == 0)
        at = mmap(NULL, mapped, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, memory, 0);
    if (rc == 0 && at == MAP_FAILED)
        rc = say_error(-errno, "no memory for the bare registration: %m");
    if (rc == 0) {
        memset(at, 1, job->bytes);
        before = clock_ns();
        p.mr = ibv_reg_mr(p.pd, at, job->bytes, ACCESS);
        seconds = (double)(clock_ns() - before) / 1e9;
        rc = p.mr != NULL ? proc_send(fd, &seconds, sizeof(seconds))
                          : say_error(-errno, "the bare registration failed: %m");
    }
    close_port(&p);
    if (at != MAP_FAILED)
        munmap(at, mapped);
    if (memory >= 0)
        close(memory);
    return rc;
}

static int run(proc_main run_it, struct job *job, double *out)
{
    struct proc p;
    int rc = proc_start(&p, "verbs", run_it, job);

    if (rc == 0) {
        rc = proc_recv(p.fd, out, sizeof(*out), ANSWER_MS);
        if (rc == 0)
            rc = proc_stop(&p);
        else
            proc_kill(&p);
    }
    return rc;
}

int rdma_raw_write(const struct hosts_end *from, const struct hosts_end *to, int core,
                   double seconds, double *median_us)
{
    struct job job = {.from = from, .to = to, .core = core, .seconds = seconds};

    return run(write_main, &job, median_us);
}

int rdma_raw_register(const struct hosts_end *end, uint64_t bytes, uint64_t page_size,
                      double *seconds)
{
    struct job job = {.from = end, .bytes = bytes, .page_size = page_size};

    return run(register_main, &job, seconds);
}

#else

bool rdma_raw_present(void)
{
    return false;
}

static int absent(void)
{
    return say_error(-ENOTSUP, "this program was built without libibverbs: install libibverbs-dev "
                               "and build it again");
}

int rdma_raw_write(const struct hosts_end *from, const struct hosts_end *to, int core,
                   double seconds, double *median_us)
{
    (void)from, (void)to, (void)core, (void)seconds, (void)median_us;
    return absent();
}

int rdma_raw_register(const struct hosts_end *end, uint64_t bytes, uint64_t page_size,
                      double *seconds)
{
    (void)end, (void)bytes, (void)page_size, (void)seconds;
    return absent();
}

#endif
