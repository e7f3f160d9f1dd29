/* SPDX-License-Identifier: Apache-2.0 */
#include "counters.h"

#include "cluster.h"
#include "mooncake.h"
#include "net.h"

#include <string.h>

#define C(field, text)                                                                             \
    {                                                                                              \
#field, text, offsetof(struct mcd_totals, field)                                           \
    }

const struct mcd_counter mcd_counter_list[] = {
    C(tasks, "Tasks that ended, whatever came of them"),
    C(bytes, "Bytes moved by engines"),
    C(completed, "Tasks that ended COMPLETED"),
    C(invalid, "Tasks that ended INVALID: bad requests"),
    C(canceled, "Tasks that ended CANCELED"),
    C(timeout, "Tasks that ended TIMEOUT"),
    C(failed, "Tasks that ended FAILED"),
    C(notifications, "Notifications delivered"),
    C(inbox_full, "Turns in which a notification found its receiver's inbox full"),
    C(futex_wakes, "Sleeping clients woken"),
    C(broken_queues, "Queues given up because their client broke the protocol"),
    C(memory_faults, "Copies that met shared memory which its client had taken away"),
    C(engine_sleeps, "Times an engine went to sleep"),
    C(gate_waits, "Tasks that waited for a gate"),
    C(gates_gone, "Gates that could not be set when their task had ended: bad, or freed"),
    C(gpu_tasks, "Tasks with an end in GPU memory of this host that ended"),
    C(gpu_task_bytes, "Bytes moved by them"),
    C(caller_tasks, "Tasks copied in the caller's thread, as clients report them"),
    C(caller_bytes, "Bytes copied in the caller's thread, as clients report them"),
    C(staged_tasks, "Tasks staged from or to private memory, as clients report them"),
    C(staged_bytes, "Bytes staged from or to private memory, as clients report them"),
    C(sessions_accepted, "Connections accepted"),
    C(sessions_refused, "Connections refused for a limit"),
    C(sessions_ended, "Sessions ended, for any reason"),
    C(restarts, "Agents before this one whose clients could come back"),
    C(sessions_restored, "Sessions of an earlier agent that came back"),
    C(sessions_lost, "Sessions of an earlier agent that did not, or not whole"),
    C(restores_refused, "Requests of clients that came back refused: not what they were given"),
    C(sessions_thrown_out, "Sessions ended because the client misbehaved"),
    C(requests, "Control requests"),
    C(requests_refused, "Control requests answered with an error"),
    C(protocol_errors, "Malformed control messages"),
    C(descriptors_unwanted, "Descriptors of clients that were closed unused"),
    C(version_errors, "Clients refused for their version"),
    C(unmapped_refused,
      "Clients refused because the agent's user namespace does not map their user"),
    C(revoke_timeouts, "Revocations that met a caller's copy which did not end"),
    C(page_fallbacks, "Extents made of ordinary pages for want of hugepages"),
    C(memory_refused, "Requests for memory refused"),
    C(rdma_registrations_failed, "Extents and buffers that RDMA devices did not take"),
    C(peer_connects, "Attempts to connect to other agents"),
    C(peer_connects_failed, "Of them, those that failed"),
    C(peer_auth_failures, "Agents turned away because they could not prove who they are"),
    C(peer_version_refused, "Agents turned away for their protocol version"),
    C(peer_malformed, "Malformed greetings, frames and messages of other agents"),
    C(peer_greeting_timeouts, "Connections that did not greet in time"),
    C(peer_overflows, "Control connections given up because the other side did not read"),
    C(guests_accepted, "Connections accepted on the peer port"),
    C(guests_refused, "Connections refused on the peer port for a limit"),
    C(data_accepted, "Data connections of other agents accepted"),
    C(data_refused, "Data connections refused: no good token"),
    C(opens, "Segments of this host that other agents asked for"),
    C(opens_refused, "Of them, those refused"),
    C(remote_opens, "Segments of other hosts that clients asked for"),
    C(remote_opens_failed, "Of them, those that could not be opened"),
    C(slices_moved_over, "Slices that went on to another rail"),
    C(fallback_slices, "Slices given to a slower transport than the best that reaches the peer"),
    C(fallback_bytes, "Their bytes"),
    C(gpu_staged_slices, "Slices of this host's GPU memory to or from others through host memory"),
    C(gpu_staged_bytes, "Their bytes"),
    C(gpu_served_staged,
      "Requests of others about this host's GPU memory that went through host memory"),
    C(gpu_served_staged_bytes, "Their bytes"),
    C(meta_requests, "Requests to the metadata service"),
    C(meta_failures, "Of them, those that failed"),
    C(meta_leases_lost, "Metadata leases lost"),
    C(tcp_sent_bytes, "Payload bytes sent on data connections"),
    C(tcp_received_bytes, "Payload bytes received on data connections"),
    C(tcp_served, "Requests of other agents served"),
    C(rejected_remote_ops, "Requests of other agents refused: range, access, stale, revoked"),
    C(tcp_protocol_errors, "Data connections closed for a protocol error"),
    C(tcp_checksum_errors, "Slices that arrived damaged"),
    C(tcp_dropped, "Parts of requests dropped because they were revoked or ended"),
    C(tcp_filler_bytes, "Bytes sent in the place of what was canceled"),
    C(tcp_zero_copy, "Sends without a copy"),
    C(tcp_zero_copy_copied, "Sends that the kernel copied after all"),
    C(tcp_kills, "Data connections ended at their peer's request"),
    C(tcp_lost, "Data connections lost"),
    C(conns_killed, "Lost or doubtful data connections that their peer has ended at our request"),
    C(rdma_sent_bytes, "Payload bytes that RDMA devices have sent"),
    C(rdma_received_bytes, "Payload bytes that RDMA READs and messages have brought"),
    C(rdma_served,
      "Messages of other agents over RDMA taken; what their devices do alone is not seen"),
    C(rdma_refused, "Messages of other agents over RDMA refused"),
    C(rdma_protocol_errors, "Queue pairs ended for a message that made no sense"),
    C(rdma_pairs_made, "Queue pairs made for other agents"),
    C(rdma_pairs_refused, "Of those they asked for, the refused ones"),
    C(rdma_pairs_lost, "Queue pairs lost, of either side's asking"),
    C(rdma_inlined, "RDMA requests whose bytes went with them"),
    C(rdma_doorbells, "Times that requests were given to an RDMA device"),
    C(rdma_signals, "RDMA requests that asked for a completion"),
    C(rdma_full, "Times that a send or completion queue had no room"),
    C(rdma_flushed, "RDMA requests that came back since their queue pair had ended"),
    C(rdma_retry_exceeded, "RDMA requests that the peer's device did not acknowledge"),
    C(rdma_remote_refused, "RDMA requests whose key or range the peer's device refused"),
    C(rdma_local_faults, "RDMA requests that failed in this host's own device"),
    C(rdma_rnr_retries, "RDMA messages that found no receive buffer at the peer"),
    C(mooncake_handshakes, "Connections of stock Mooncake processes on the handshake port"),
    C(mooncake_bad_frames, "Of them, those that sent nonsense or no end in time"),
    C(mooncake_notifies_refused, "Their notifications that nobody took"),
    C(mooncake_data_accepted, "Their data connections accepted"),
    C(mooncake_data_refused, "Their data connections refused"),
    C(mooncake_opens, "Segments of stock Mooncake processes that clients asked for"),
    C(mooncake_opens_failed, "Of them, those that could not be opened"),
    C(mooncake_described_failed, "Descriptors that were not there, not to be had, or nonsense"),
    C(mooncake_publish_failed, "Records that Mooncake's metadata service did not take"),
};
const size_t mcd_counter_count = sizeof(mcd_counter_list) / sizeof(mcd_counter_list[0]);

static void net_totals(const struct mcd_agent *a, struct mcd_totals *t)
{
    for (unsigned i = 0; i < a->nengines; i++) {
        const struct mcd_net *n = a->engines[i]->net;
        struct mct *tcp = n == NULL ? NULL : mcd_net_find(n, &mct_tcp_ops);
        const struct mct_stats *s = tcp == NULL ? NULL : mct_tcp_ops.stats(tcp);

        if (s == NULL)
            continue;
        t->tcp_sent_bytes += mcs_load_relaxed(&s->sent_bytes);
        t->tcp_received_bytes += mcs_load_relaxed(&s->received_bytes);
        t->tcp_served += mcs_load_relaxed(&s->served);
        t->rejected_remote_ops += mcs_load_relaxed(&s->refused);
        t->tcp_protocol_errors += mcs_load_relaxed(&s->protocol_errors);
        t->tcp_checksum_errors += mcs_load_relaxed(&s->checksum_errors);
        t->tcp_dropped += mcs_load_relaxed(&s->dropped);
        t->tcp_filler_bytes += mcs_load_relaxed(&s->filler_bytes);
        t->tcp_zero_copy += mcs_load_relaxed(&s->zero_copy);
        t->tcp_zero_copy_copied += mcs_load_relaxed(&s->zero_copy_copied);
        t->tcp_kills += mcs_load_relaxed(&s->kills);
        t->tcp_lost += mcs_load_relaxed(&s->lost);
    }
}

static void rdma_totals(const struct mcd_agent *a, struct mcd_totals *t)
{
    for (unsigned i = 0; i < a->nengines; i++) {
        const struct mcd_net *n = a->engines[i]->net;
        struct mct *rdma = n == NULL ? NULL : mcd_net_find(n, &mct_rdma_ops);
        const struct mct_stats *s = rdma == NULL ? NULL : mct_rdma_ops.stats(rdma);

        if (s == NULL)
            continue;
        t->rdma_sent_bytes += mcs_load_relaxed(&s->sent_bytes);
        t->rdma_received_bytes += mcs_load_relaxed(&s->received_bytes);
        t->rdma_served += mcs_load_relaxed(&s->served);
        t->rdma_refused += mcs_load_relaxed(&s->refused);
        t->rdma_protocol_errors += mcs_load_relaxed(&s->protocol_errors);
        t->rdma_pairs_lost += mcs_load_relaxed(&s->lost);
        t->rdma_inlined += mcs_load_relaxed(&s->inlined);
        t->rdma_doorbells += mcs_load_relaxed(&s->doorbells);
        t->rdma_signals += mcs_load_relaxed(&s->signals);
        t->rdma_full += mcs_load_relaxed(&s->full);
        t->rdma_flushed += mcs_load_relaxed(&s->flushed);
        t->rdma_retry_exceeded += mcs_load_relaxed(&s->retry_exceeded);
        t->rdma_remote_refused += mcs_load_relaxed(&s->remote_refused);
        t->rdma_local_faults += mcs_load_relaxed(&s->local_faults);
        t->rdma_rnr_retries += mcs_load_relaxed(&s->rnr_retries);
    }
}

static void cluster_totals(const struct mcd_agent *a, struct mcd_totals *t)
{
    const struct mcd_cluster *c = a->cluster;
    struct mcm_state m;

    if (c == NULL)
        return;
    mcm_get_state(c->meta, &m);
    t->peer_connects = c->counters.connects;
    t->peer_connects_failed = c->counters.connects_failed;
    t->peer_auth_failures = c->wire_stats.auth_failures;
    t->peer_version_refused = c->wire_stats.version_refused;
    t->peer_malformed = c->wire_stats.malformed;
    t->peer_greeting_timeouts = c->wire_stats.greeting_timeouts;
    t->peer_overflows = c->wire_stats.overflows;
    t->rdma_pairs_made = c->counters.pairs;
    t->rdma_pairs_refused = c->counters.pairs_refused;
    t->guests_accepted = c->counters.guests_accepted;
    t->guests_refused = c->counters.guests_refused;
    t->data_accepted = c->counters.data_accepted;
    t->data_refused = c->counters.data_refused;
    t->opens = c->counters.opens;
    t->opens_refused = c->counters.opens_refused;
    t->remote_opens = c->counters.remote_opens;
    t->remote_opens_failed = c->counters.remote_opens_failed;
    t->meta_requests = m.requests;
    t->meta_failures = m.failures;
    t->meta_leases_lost = m.leases_lost;
}

static void mooncake_totals(const struct mcd_agent *a, struct mcd_totals *t)
{
    const struct mcd_mooncake_counters *c;

    if (a->mooncake == NULL)
        return;
    c = mcd_mooncake_get_counters(a->mooncake);
    t->mooncake_handshakes = c->handshakes;
    t->mooncake_bad_frames = c->bad_frames;
    t->mooncake_notifies_refused = c->notifies_refused;
    t->mooncake_data_accepted = c->data_accepted;
    t->mooncake_data_refused = c->data_refused;
    t->mooncake_opens = c->opens;
    t->mooncake_opens_failed = c->opens_failed;
    t->mooncake_described_failed = c->described_failed;
    t->mooncake_publish_failed = c->publish_failed;
}

void mcd_totals(struct mcd_agent *a, struct mcd_totals *t)
{
    struct mcd_reported reported = a->reported;

    *t = (struct mcd_totals){
        .sessions_accepted = a->accepted,
        .sessions_refused = a->refused,
        .sessions_ended = a->ended,
        .sessions_thrown_out = a->fault_ends,
        .requests = a->requests,
        .protocol_errors = a->protocol_errors,
        .descriptors_unwanted = a->descriptors_unwanted,
        .version_errors = a->version_errors,
        .unmapped_refused = a->unmapped_refused,
        .revoke_timeouts = a->revoke_timeouts,
        .page_fallbacks = a->pool.fallbacks,
        .memory_refused = a->pool.refused,
        .rdma_registrations_failed = a->registry.failed,
        .restarts = a->recovery.lives > 1 ? a->recovery.lives - 1 : 0,
        .sessions_restored = a->recovery.restored,
        .sessions_lost = a->recovery.lost,
        .restores_refused = a->recovery.refused,
    };
    for (size_t i = 1; i < MCS_STATUS_COUNT; i++)
        t->requests_refused += a->refusals[i];
    for (unsigned i = 0; i < a->nengines; i++) {
        const struct mcd_counters *c = &a->engines[i]->counters;

        t->tasks += mcs_load_relaxed(&c->tasks);
        t->bytes += mcs_load_relaxed(&c->bytes);
        t->completed += mcs_load_relaxed(&c->states[MCS_STATE_COMPLETED]);
        t->invalid += mcs_load_relaxed(&c->states[MCS_STATE_INVALID]);
        t->canceled += mcs_load_relaxed(&c->states[MCS_STATE_CANCELED]);
        t->timeout += mcs_load_relaxed(&c->states[MCS_STATE_TIMEOUT]);
        t->failed += mcs_load_relaxed(&c->states[MCS_STATE_FAILED]);
        t->notifications += mcs_load_relaxed(&c->notifications);
        t->inbox_full += mcs_load_relaxed(&c->inbox_full);
        t->futex_wakes += mcs_load_relaxed(&c->futex_wakes);
        t->broken_queues += mcs_load_relaxed(&c->broken);
        t->memory_faults += mcs_load_relaxed(&c->faults);
        t->gate_waits += mcs_load_relaxed(&c->gate_waits);
        t->gates_gone += mcs_load_relaxed(&c->gates_gone);
        t->gpu_tasks += mcs_load_relaxed(&c->gpu_tasks);
        t->gpu_task_bytes += mcs_load_relaxed(&c->gpu_bytes);
        t->engine_sleeps += mcs_load_relaxed(&c->sleeps);
        t->slices_moved_over += mcs_load_relaxed(&c->moved_over);
        t->fallback_slices += mcs_load_relaxed(&c->fallback_slices);
        t->fallback_bytes += mcs_load_relaxed(&c->fallback_bytes);
        t->gpu_staged_slices += mcs_load_relaxed(&c->gpu_staged_out);
        t->gpu_staged_bytes += mcs_load_relaxed(&c->gpu_staged_out_bytes);
        t->gpu_served_staged += mcs_load_relaxed(&c->gpu_staged_in);
        t->gpu_served_staged_bytes += mcs_load_relaxed(&c->gpu_staged_in_bytes);
        t->conns_killed += mcs_load_relaxed(&c->kills);
    }
    net_totals(a, t);
    rdma_totals(a, t);
    cluster_totals(a, t);
    mooncake_totals(a, t);
    for (const struct mcd_session *s = a->sessions; s != NULL; s = s->next)
        for (const struct mcd_queue *q = s->queues; q != NULL; q = q->next)
            mcd_queue_reported(q, &reported);
    t->caller_tasks = reported.caller_tasks;
    t->caller_bytes = reported.caller_bytes;
    t->staged_tasks = reported.staged_tasks;
    t->staged_bytes = reported.staged_bytes;
}

uint64_t mcd_counter_value(const struct mcd_totals *t, size_t index)
{
    uint64_t v;

    memcpy(&v, (const char *)t + mcd_counter_list[index].offset, sizeof(v));
    return v;
}

const char *mcd_status_word(uint32_t status)
{
    static const char *const words[] = {
#define WORD(name, value, text) [value] = #name,
        MCS_STATUS_LIST(WORD)
#undef WORD
    };

    return status < sizeof(words) / sizeof(words[0]) ? words[status] : "UNKNOWN";
}
