/* SPDX-License-Identifier: Apache-2.0 */
#include "internal.h"

#include <stdlib.h>
#include <unistd.h>

#define QUERY_MAX (UINT64_C(1) << 30)

/* Reads `length` bytes from the start of fd; *out is NUL-terminated. */
static mcshm_status read_text(int fd, uint64_t length, char **out)
{
    char *text;

    if (length > QUERY_MAX)
        return mcl_fail(MCSHM_PROTOCOL, "the agent's answer claims %llu bytes",
                        (unsigned long long)length);
    text = malloc(length + 1);
    if (text == NULL)
        return mcl_fail(MCSHM_NO_MEMORY, "out of memory for an answer of %llu bytes",
                        (unsigned long long)length);
    for (uint64_t at = 0; at < length;) {
        ssize_t n = pread(fd, text + at, length - at, (off_t)at);

        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0) {
            free(text);
            return mcl_fail(MCSHM_PROTOCOL, "the agent's answer is shorter than it claims");
        }
        at += (uint64_t)n;
    }
    text[length] = '\0';
    *out = text;
    return MCSHM_OK;
}

mcshm_status mcl_ask(struct mcshm *c, uint16_t type, struct mcs_msg *m, char **json)
{
    struct mcl_fds fds;
    mcshm_status status;

    *json = NULL;
    pthread_mutex_lock(&c->mutex);
    status = mcl_call(c, type, m, -1, &fds);
    pthread_mutex_unlock(&c->mutex);
    if (status != MCSHM_OK)
        return status;
    if (fds.n == 1)
        status = read_text(fds.fd[0], m->b.query_reply.length, json);
    else
        status =
            mcl_fail(MCSHM_PROTOCOL, "the agent's answer came with %u descriptors, not 1", fds.n);
    mcl_close_fds(&fds);
    return status;
}

MCSHM_API mcshm_status mcshm_query(mcshm *c, mcshm_query_what what, char **json)
{
    struct mcs_msg m = {.b.query.what = (uint32_t)what};
    mcshm_status status = mcl_check(c);

    if (status != MCSHM_OK)
        return status;
    if (json == NULL)
        return mcl_fail(MCSHM_INVALID_ARGUMENT, "mcshm_query: json is NULL");
    *json = NULL;
    if ((uint32_t)what >= MCS_QUERY_COUNT)
        return mcl_fail(MCSHM_INVALID_ARGUMENT, "mcshm_query: what is %u, not 0 .. %u",
                        (unsigned)what, MCS_QUERY_COUNT - 1);
    return mcl_ask(c, MCS_MSG_QUERY, &m, json);
}

MCSHM_API mcshm_status mcshm_trace(mcshm *c, const char *client, uint32_t count, char **json)
{
    struct mcs_msg m = {.b.trace.count = count};
    mcshm_status status = mcl_check(c);

    if (status != MCSHM_OK)
        return status;
    if (client == NULL || client[0] == '\0' || strlen(client) >= sizeof(m.b.trace.client) ||
        json == NULL)
        return mcl_fail(MCSHM_INVALID_ARGUMENT,
                        "mcshm_trace: want a client of 1 to %zu bytes and room for the answer",
                        sizeof(m.b.trace.client) - 1);
    if (count == 0 || count > MCS_TRACE_MAX)
        return mcl_fail(MCSHM_INVALID_ARGUMENT, "mcshm_trace: count is %u, not 1 .. %u", count,
                        MCS_TRACE_MAX);
    snprintf(m.b.trace.client, sizeof(m.b.trace.client), "%s", client);
    return mcl_ask(c, MCS_MSG_TRACE, &m, json);
}

MCSHM_API mcshm_status mcshm_reload(mcshm *c, char **json)
{
    struct mcs_msg m = {.b.query.what = 0};
    mcshm_status status = mcl_check(c);

    if (status != MCSHM_OK)
        return status;
    if (json == NULL)
        return mcl_fail(MCSHM_INVALID_ARGUMENT, "mcshm_reload: json is NULL");
    return mcl_ask(c, MCS_MSG_RELOAD, &m, json);
}

MCSHM_API mcshm_status mcshm_ping(mcshm *c, const char *address, uint32_t timeout_ms,
                                  mcshm_peer *out)
{
    struct mcs_msg m = {.b.ping.timeout_ms = timeout_ms};
    mcshm_status status = mcl_check(c);

    if (status != MCSHM_OK)
        return status;
    if (address == NULL || address[0] == '\0' || out == NULL ||
        strlen(address) >= sizeof(m.b.ping.address))
        return mcl_fail(MCSHM_INVALID_ARGUMENT,
                        "mcshm_ping: want an address of 1 to %zu bytes and room for the answer",
                        sizeof(m.b.ping.address) - 1);
    if (timeout_ms == 0 || timeout_ms > 600000)
        return mcl_fail(MCSHM_INVALID_ARGUMENT, "mcshm_ping: timeout_ms is %u, not 1 .. 600000",
                        timeout_ms);
    snprintf(m.b.ping.address, sizeof(m.b.ping.address), "%s", address);
    pthread_mutex_lock(&c->mutex);
    status = mcl_call(c, MCS_MSG_PING, &m, -1, NULL);
    pthread_mutex_unlock(&c->mutex);
    if (status != MCSHM_OK)
        return status;
    out->rtt_ns = m.b.ping_reply.rtt_ns;
    out->incarnation = m.b.ping_reply.incarnation;
    memcpy(out->agent_version, m.b.ping_reply.agent_version, sizeof(out->agent_version));
    out->agent_version[sizeof(out->agent_version) - 1] = '\0';
    return MCSHM_OK;
}
