/* SPDX-License-Identifier: Apache-2.0 */
#include "mooncake.h"

#include "say.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define START_MS 30000
#define PATIENCE_MS 60000
#define TEXT_MAX 65536u

bool mooncake_find(const char *folder, char *program, unsigned size)
{
    static const char *const places[] = {"bin/transfer_engine_bench", "transfer_engine_bench"};

    for (unsigned i = 0; i < 2; i++) {
        snprintf(program, size, "%s/%s", folder, places[i]);
        if (access(program, X_OK) == 0)
            return true;
    }
    return false;
}

unsigned mooncake_parse_port(const char *text)
{
    const char *at = strstr(text, "P2P handshake, listening on ");
    const char *line, *colon = NULL;
    unsigned long port;

    if (at == NULL)
        return 0;
    line = at + strcspn(at, "\r\n");
    if (*line == '\0') /* the port may not all be here yet */
        return 0;
    for (const char *p = at; p < line; p++)
        if (*p == ':')
            colon = p;
    port = colon != NULL ? strtoul(colon + 1, NULL, 10) : 0;
    return port <= 65535 ? (unsigned)port : 0;
}

int mooncake_parse_result(const char *text, double *seconds, uint64_t *batches)
{
    const char *at = strstr(text, "Test completed: duration ");

    if (at == NULL ||
        sscanf(at, "Test completed: duration %lf, batch count %" SCNu64, seconds, batches) != 2)
        return -EINVAL;
    return *seconds > 0 ? 0 : -EINVAL;
}

static const char *const plain_sets[] = {"MC_FORCE_TCP=1", NULL};
static const char *const pooled_sets[] = {"MC_FORCE_TCP=1", "MC_TCP_ENABLE_CONNECTION_POOL=1",
                                          NULL};

int mooncake_start(struct mooncake *m, const struct hosts *h, const char *program, bool pooled,
                   uint64_t buffer)
{
    char output[TEXT_MAX] = "", name[128], bytes[64];
    const char *address = h->end[1][0].address;
    char *argv[] = {m->program,
                    "--mode=target",
                    "--metadata_server=P2PHANDSHAKE",
                    "--protocol=tcp",
                    name,
                    bytes,
                    NULL};
    struct child_options o = {.argv = argv,
                              .sets = pooled ? pooled_sets : plain_sets,
                              .netns = h->netns[1],
                              .output = true,
                              .errors = true};
    size_t used = 0;
    unsigned port;
    int rc;

    m->hosts = h;
    m->pooled = pooled;
    snprintf(m->program, sizeof(m->program), "%s", program);
    snprintf(name, sizeof(name), "--local_server_name=%s", address);
    snprintf(bytes, sizeof(bytes), "--buffer_size=%" PRIu64, buffer);
    rc = child_start(&o, &m->child);
    if (rc != 0)
        return say_error(rc, "cannot start %s: %s", program, strerror(-rc));
    /* "DRAM is used" comes when its buffers are registered */
    child_read(&m->child, "DRAM is used", START_MS, output, sizeof(output), &used);
    port = mooncake_parse_port(output);
    if (port == 0) {
        mooncake_stop(m);
        return say_error(-EIO, "%s did not say where it listens; left out", program);
    }
    snprintf(m->target, sizeof(m->target), "%s:%u", address, port);
    return 0;
}

void mooncake_run(struct mooncake *m, bool write, uint64_t size, uint64_t batch, unsigned threads,
                  unsigned seconds, struct mooncake_result *out)
{
    static char output[TEXT_MAX];
    char name[128], segment[128], block[64], count[64], workers[64], time[64], bytes[64];
    char *argv[] = {m->program,
                    "--mode=initiator",
                    "--metadata_server=P2PHANDSHAKE",
                    "--protocol=tcp",
                    write ? "--operation=write" : "--operation=read",
                    name,
                    segment,
                    block,
                    count,
                    workers,
                    time,
                    bytes,
                    NULL};
    struct child_options o = {.argv = argv,
                              .sets = m->pooled ? pooled_sets : plain_sets,
                              .netns = m->hosts->netns[0],
                              .output = true,
                              .errors = true};
    double took, cpu;
    struct child c;
    uint64_t batches;
    size_t used = 0;

    out->gbps = out->tasks_s = out->cpu_s_per_gb = NAN;
    snprintf(name, sizeof(name), "--local_server_name=%s", m->hosts->end[0][0].address);
    snprintf(segment, sizeof(segment), "--segment_id=%s", m->target);
    snprintf(block, sizeof(block), "--block_size=%" PRIu64, size);
    snprintf(count, sizeof(count), "--batch_size=%" PRIu64, batch);
    snprintf(workers, sizeof(workers), "--threads=%u", threads);
    snprintf(time, sizeof(time), "--duration=%u", seconds);
    snprintf(bytes, sizeof(bytes), "--buffer_size=%" PRIu64, size * batch * threads);
    output[0] = '\0';
    if (child_start(&o, &c) != 0)
        return;
    child_read(&c, NULL, (int)seconds * 1000 + PATIENCE_MS, output, sizeof(output), &used);
    child_end(&c, SIGTERM, PATIENCE_MS, &cpu);
    if (mooncake_parse_result(output, &took, &batches) != 0)
        return;
    out->tasks_s = (double)(batches * batch) / took;
    out->gbps = out->tasks_s * (double)size / 1e9;
    out->cpu_s_per_gb = cpu / (out->gbps * took);
}

void mooncake_stop(struct mooncake *m)
{
    child_end(&m->child, SIGTERM, 5000, NULL);
}
