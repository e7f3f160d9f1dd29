/* SPDX-License-Identifier: Apache-2.0 */
/* `mcshm-bench net`: transfers between two hosts, beside TCP's own tools and rivals. */
#ifndef BENCH_NET_H
#define BENCH_NET_H

#include "fit.h"
#include "hosts.h"
#include "iperf.h"
#include "stream.h"
#include "mooncake.h"
#include "net_client.h"
#include "options.h"
#include "pair.h"
#include "rtt.h"
#include "stats.h"
#include "wire.h"

#include <mcshm.h>

#define NET_LIST_MAX 16u
#define NET_CLIENTS_MAX 8u
#define NET_ROWS_MAX 2048u
#define NET_STREAMS_MAX 64u
#define NET_IN_FLIGHT_MAX (UINT64_C(256) << 20) /* bytes of all clients' batches together */

struct net_list {
    uint64_t value[NET_LIST_MAX];
    unsigned count;
};

struct net_options {
    struct options_common common;
    struct net_list sizes, batches, clients, rails;
    struct net_list checksums; /* 1: on, 0: off */
    bool read, write;
    double seconds; /* of one measurement */
    uint64_t rounds;
    const char *congestion;
    bool busy;
    const char *peer;     /* "HOST:PORT/NAME" instead of a host of our own; NULL: our own */
    const char *serve;    /* be such a peer, under this name; NULL: no */
    uint64_t serve_bytes; /* its buffer */
    bool rivals, failover;
    const char *mooncake;    /* folder; NULL: none */
    uint64_t idle_peers;     /* 0: not measured */
    uint64_t register_bytes; /* of a buffer that is registered; 0: as many as fit, at most 4 GiB */
    struct wire_options wire;
    char settings[1024]; /* more of the agents' ini files */
};

struct net_row {
    mcshm_opcode opcode;
    uint64_t size;
    unsigned batch, clients;
    unsigned rails; /* 0: as the running agent has it, and so has checksums */
    bool checksum;
    bool warm;     /* all tasks have one place: as warm as iperf3's buffer */
    uint64_t span; /* bytes that a client goes through */
    mcshm_path path;
    struct stats_rounds gbps, tasks_s, p50_us, p99_us, p999_us;
    struct stats_rounds agents_cpu, initiator_cpu, target_cpu, clients_cpu; /* seconds per GB */
    uint64_t paths[NET_PATHS];         /* tasks that went each way, where all were looked at */
    struct stats_rounds perftest_gbps; /* over the same devices, between the rounds of the row */
};

struct net_rival { /* Mooncake's figures for one kind of row */
    bool write;
    uint64_t size, batch;
    struct mooncake_result plain, pooled;
};

struct net_failover {
    bool done;
    unsigned rails;
    double limit_gbps;         /* of each rail */
    double one_gbps, all_gbps; /* one rail, all rails */
    double rest_gbps;          /* after the cut, once it flows again */
    double sum_ratio;          /* that by what the other rails can carry */
    double gap_ms;             /* from the cut until it does */
    uint64_t still_ms; /* the longest time without a completion, from the cut until it is back */
    double back_gbps;  /* after the link came back */
    uint64_t failed_tasks;
    double slow_share; /* of the bytes, by the rail that was slowed to a tenth */
    double slow_fair;  /* what its rate would be of the sum of rates */
    double slow_gbps;  /* all rails, one of them slow */
};

struct net_rdma { /* beside the rows of --transport rdma */
    bool done;
    unsigned rails;
    char device[HOSTS][HOSTS_RAILS_MAX][HOSTS_NAME_MAX];
    struct stats_rounds bare_us;         /* one WRITE over bare verbs, posted and polled for */
    struct stats_rounds hops_us;         /* two hops of a bare ring */
    struct stats_rounds write_us;        /* one task, submit to COMPLETED, engine busy */
    struct stats_rounds perftest_us;     /* t_typical of ib_write_lat */
    uint64_t registered;                 /* bytes; 0: not measured */
    struct stats_rounds bare_register_s; /* one ibv_reg_mr() of so many */
    struct stats_rounds register_s;      /* mcshm_buffer_publish() of so many */
};

struct net_idle {
    bool done;
    unsigned peers;
    double cpu_one, cpu_many;         /* of the initiator's agent, share of a core */
    double read_one_us, read_many_us; /* 4 KiB READ */
};

struct net_figures {
    struct net_row rows[NET_ROWS_MAX];
    unsigned count, left_out;
    uint64_t mismatches, checked_bytes;
    double zero_copy_sends; /* of both agents, that the kernel did not copy after all */
    uint64_t page_size;
    struct stats_rounds iperf_gbps, iperf_cpu;
    struct net_stream {
        uint64_t span;
        struct stats_rounds gbps, cpu;
    } streams[NET_STREAMS_MAX]; /* the bare stream over as much memory */
    unsigned stream_count;
    double ucx_gbps[NET_LIST_MAX]; /* by place in options.sizes */
    struct net_rival rivals[NET_LIST_MAX];
    unsigned rival_count;
    struct rtt rtt;
    struct fit_line read_line, write_line;
    struct net_failover failover;
    struct net_rdma rdma;
    struct net_idle idle;
    char pages_note[128];
    struct pin_cores cores;
};

int net_command(int argc, char **argv);

/* Parts of a run; each 0 or a negative errno, said already. */
/* All of a run with --transport rdma. */
int net_run_rdma(const struct net_options *o, struct net_figures *f);
/*
 * Measures a row, whose first fields say which. beside (may be NULL) is called after each round, with
 * the row so far; its result ends the row when it is not 0.
 */
struct net_stage;
int net_run_row(struct net_stage *s, struct net_row *row, struct net_figures *f,
                int (*beside)(void *context, struct net_row *row), void *context);
/* How many tasks went another way than this one. */
uint64_t net_other_paths(const struct net_row *row, mcshm_path path);
int net_sweep(const struct net_options *o, const struct hosts *h, struct net_figures *f);
void net_run_iperf(const struct hosts *h, struct net_figures *f); /* one more round */
/* The bare stream for the spans of all rows of 1 MiB and more; rows must be there. */
int net_run_streams(const struct net_options *o, const struct hosts *h, struct net_figures *f);
struct net_stream *net_stream_of(struct net_figures *f, const struct net_row *r);
void net_run_rivals(const struct net_options *o, const struct hosts *h, struct net_figures *f);
/* h: links that are there, which nothing limits; NULL: others of our own, which are limited. */
int net_run_failover(const struct net_options *o, const struct hosts *h, struct net_figures *f);
int net_run_idle(const struct net_options *o, const struct hosts *h, struct net_figures *f);

/* The lines through the latencies of one task at a time. */
void net_fit(struct net_figures *f);

int net_print(const struct net_options *o, struct net_figures *f);

#endif
