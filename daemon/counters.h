/* SPDX-License-Identifier: Apache-2.0 */
/* The agent's counters, added up over engines, queues and the control thread: one list serves
 * /metrics and `mcshm status`. Control thread only. */
#ifndef MCD_COUNTERS_H
#define MCD_COUNTERS_H

#include "agent.h"

struct mcd_totals {
    uint64_t tasks, bytes, completed, invalid, canceled, timeout, failed;
    uint64_t notifications, inbox_full, futex_wakes, broken_queues, memory_faults, engine_sleeps;
    uint64_t gate_waits, gates_gone, gpu_tasks, gpu_task_bytes;
    uint64_t caller_tasks, caller_bytes, staged_tasks, staged_bytes;
    uint64_t sessions_accepted, sessions_refused, sessions_ended, sessions_thrown_out;
    uint64_t requests, requests_refused, protocol_errors, descriptors_unwanted, version_errors;
    uint64_t unmapped_refused, revoke_timeouts;
    uint64_t page_fallbacks, memory_refused, rdma_registrations_failed;
    uint64_t restarts, sessions_restored, sessions_lost, restores_refused;
    uint64_t peer_connects, peer_connects_failed, peer_auth_failures, peer_version_refused;
    uint64_t peer_malformed, peer_greeting_timeouts, peer_overflows, guests_accepted,
        guests_refused;
    uint64_t data_accepted, data_refused, opens, opens_refused, remote_opens, remote_opens_failed;
    uint64_t fallback_slices, fallback_bytes;
    uint64_t gpu_staged_slices, gpu_staged_bytes, gpu_served_staged, gpu_served_staged_bytes;
    uint64_t slices_moved_over, meta_requests, meta_failures, meta_leases_lost;
    uint64_t tcp_sent_bytes, tcp_received_bytes, tcp_served, rejected_remote_ops;
    uint64_t tcp_protocol_errors, tcp_checksum_errors, tcp_dropped, tcp_filler_bytes;
    uint64_t tcp_zero_copy, tcp_zero_copy_copied, tcp_kills, tcp_lost, conns_killed;
    uint64_t mooncake_handshakes, mooncake_bad_frames, mooncake_notifies_refused;
    uint64_t mooncake_data_accepted, mooncake_data_refused, mooncake_opens, mooncake_opens_failed;
    uint64_t rdma_sent_bytes, rdma_received_bytes, rdma_served, rdma_refused, rdma_protocol_errors;
    uint64_t rdma_pairs_made, rdma_pairs_refused, rdma_pairs_lost, rdma_inlined, rdma_doorbells;
    uint64_t rdma_signals, rdma_full, rdma_flushed, rdma_retry_exceeded, rdma_remote_refused;
    uint64_t rdma_local_faults, rdma_rnr_retries;
    uint64_t mooncake_described_failed, mooncake_publish_failed;
};

struct mcd_counter {
    const char *name;
    const char *help;
    size_t offset; /* in struct mcd_totals */
};

extern const struct mcd_counter mcd_counter_list[];
extern const size_t mcd_counter_count;

void mcd_totals(struct mcd_agent *a, struct mcd_totals *out);
uint64_t mcd_counter_value(const struct mcd_totals *t, size_t index);

/* The name of a status in metrics: "bad_range". Static. */
const char *mcd_status_word(uint32_t status);

#endif
