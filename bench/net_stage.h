/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is set up for some rows of `net`: two agents, the owner of the target's buffer behind one,
 * clients behind the other.  With --peer there is only the agent that runs already, and the buffer
 * is filled and checked by transfers.
 *
 *   client 0..n --- agent 0 ===== rails ===== agent 1 --- owner
 *      host 0                                      host 1
 */
#ifndef BENCH_NET_STAGE_H
#define BENCH_NET_STAGE_H

#include "net.h"
#include "net_client.h"
#include "net_owner.h"
#include "proc.h"

struct net_stage {
    const struct net_options *options;
    const struct hosts *hosts; /* NULL: with --peer */
    struct pair pair;
    struct net_owner_context owner_context;
    struct net_client_context contexts[NET_CLIENTS_MAX];
    char segment[128];
    struct proc owner, clients[NET_CLIENTS_MAX];
    unsigned client_count;
    uint64_t region; /* bytes of each client, and of its part of the target */
    struct net_timeline *timeline;
    bool apart;
    uint64_t page_size;
    uint64_t seeds; /* given out so far */
};

struct net_stage_options {
    unsigned clients, rails;
    bool checksum;
    bool apart; /* as in pair_options; and the clients on the core that it leaves them */
    uint64_t region;
    uint32_t tasks;
    struct net_timeline *timeline; /* NULL: no NET_STREAM */
};

/* 0, or a negative errno, said already; then nothing is left of it. */
int net_stage_start(const struct net_options *o, const struct hosts *h,
                    const struct net_stage_options *so, struct net_stage *out);
void net_stage_stop(struct net_stage *s);

/* The first `clients` do a job at the same time; results: one each. */
int net_stage_ask(struct net_stage *s, unsigned clients, const struct net_job *job,
                  struct net_result *results);
/* The same in two steps, for what has to happen in between. */
int net_stage_send(struct net_stage *s, unsigned clients, const struct net_job *job);
int net_stage_receive(struct net_stage *s, unsigned clients, struct net_result *results);

/* The source of this operation gets fresh content of `span` bytes for each client. */
int net_stage_fill(struct net_stage *s, mcshm_opcode opcode, unsigned clients, uint64_t span);
/* Compares the destination with it, up to bytes[i] of each. Adds wrong words to *mismatches and what
 * was compared to *checked. */
int net_stage_check(struct net_stage *s, mcshm_opcode opcode, unsigned clients,
                    const uint64_t *bytes, uint64_t *mismatches, uint64_t *checked);

/* CPU time of the two agents so far, ns; -1: not known. */
void net_stage_cpu(const struct net_stage *s, double ns[HOSTS]);

/* Sends without a copy that the agents of our own have made so far. */
double net_stage_zero_copy(const struct net_stage *s);

#endif
