/* SPDX-License-Identifier: Apache-2.0 */
#include "net_stage.h"

#include "clock.h"
#include "pattern.h"
#include "say.h"
#include "tell.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#define ANSWER_MS 180000
#define OWNER "bench"

static int client_main(int fd, void *context)
{
    const struct net_stage *s = context;

    if (s->apart)
        pin_to(s->pair.cores.client);
    else if (s->hosts != NULL)
        pair_step_aside(&s->pair.cores);
    return net_client_main(fd, (void *)&s->contexts[s->client_count]);
}

/* They are all there when the last is: a target that cannot be opened is said once. */
static int start_clients(struct net_stage *s, const struct net_stage_options *so)
{
    struct net_result ready;
    int rc = 0;

    for (unsigned i = 0; rc == 0 && i < so->clients; i++) {
        s->contexts[i] = (struct net_client_context){.socket = s->pair.agent[0].socket,
                                                     .segment = s->segment,
                                                     .region = so->region,
                                                     .offset = i * so->region,
                                                     .tasks = so->tasks,
                                                     .timeline = so->timeline};
        rc = proc_start(&s->clients[i], "client", client_main, s);
        if (rc != 0)
            break;
        s->client_count++;
        rc = proc_recv(s->clients[i].fd, &ready, sizeof(ready), ANSWER_MS);
        if (rc == -ETIMEDOUT)
            say_error(rc, "a client could not open %s within %d s", s->segment, ANSWER_MS / 1000);
    }
    return rc;
}

static int start_own(struct net_stage *s, const struct net_stage_options *so)
{
    const struct net_options *o = s->options;
    struct pair_options po = {.program = o->common.mcshmd,
                              .pool_size = so->clients * so->region,
                              .busy = o->busy,
                              .rails = so->rails,
                              .checksum = so->checksum,
                              .rdma = o->wire.rdma,
                              .apart = so->apart,
                              .settings = o->settings};
    struct net_owner_answer ready;
    int rc = pair_start(&po, s->hosts, &s->pair);

    if (rc != 0)
        return rc;
    pair_name(s->hosts, 1, OWNER, s->segment, sizeof(s->segment));
    s->owner_context = (struct net_owner_context){
        .socket = s->pair.agent[1].socket, .segment = OWNER, .size = so->clients * so->region};
    rc = proc_start(&s->owner, "owner", net_owner_main, &s->owner_context);
    if (rc == 0)
        rc = proc_recv(s->owner.fd, &ready, sizeof(ready), ANSWER_MS);
    if (rc == 0)
        s->page_size = ready.page_size;
    return rc;
}

static int use_running(struct net_stage *s)
{
    struct agent_options ao = {.socket = s->options->common.socket};

    if (ao.socket == NULL)
        ao.socket = MCSHM_DEFAULT_SOCKET;
    snprintf(s->segment, sizeof(s->segment), "%s", s->options->peer);
    return agent_start(&ao, &s->pair.agent[0]);
}

int net_stage_start(const struct net_options *o, const struct hosts *h,
                    const struct net_stage_options *so, struct net_stage *s)
{
    int rc;

    memset(s, 0, sizeof(*s));
    s->options = o;
    s->hosts = h;
    s->region = so->region;
    s->timeline = so->timeline;
    s->apart = so->apart;
    rc = h != NULL ? start_own(s, so) : use_running(s);
    if (rc == 0)
        rc = start_clients(s, so);
    if (rc != 0)
        net_stage_stop(s);
    return rc;
}

void net_stage_stop(struct net_stage *s)
{
    for (unsigned i = 0; i < s->client_count; i++)
        proc_stop(&s->clients[i]);
    proc_stop(&s->owner);
    if (s->hosts != NULL)
        pair_stop(&s->pair);
    else
        agent_stop(&s->pair.agent[0]);
}

int net_stage_send(struct net_stage *s, unsigned clients, const struct net_job *job)
{
    int rc = 0;

    for (unsigned i = 0; rc == 0 && i < clients; i++)
        rc = proc_send(s->clients[i].fd, job, sizeof(*job));
    return rc == 0 ? 0 : say_error(rc, "a client does not take its job: %s", strerror(-rc));
}

int net_stage_receive(struct net_stage *s, unsigned clients, struct net_result *results)
{
    int rc = 0;

    for (unsigned i = 0; rc == 0 && i < clients; i++)
        rc = proc_recv(s->clients[i].fd, &results[i], sizeof(results[i]), ANSWER_MS);
    if (rc == -ETIMEDOUT)
        say_error(rc, "a client did not finish its job within %d s", ANSWER_MS / 1000);
    return rc; /* a client that failed has said why */
}

int net_stage_ask(struct net_stage *s, unsigned clients, const struct net_job *job,
                  struct net_result *results)
{
    int rc = net_stage_send(s, clients, job);

    return rc != 0 ? rc : net_stage_receive(s, clients, results);
}

static int ask_owner(struct net_stage *s, const struct net_owner_request *request,
                     uint64_t *mismatches)
{
    struct net_owner_answer answer;
    int rc = proc_ask(&s->owner, request, sizeof(*request), &answer, sizeof(answer), ANSWER_MS);

    *mismatches = rc == 0 ? answer.mismatches : 0;
    return rc;
}

/* One client, one job. */
static int ask_one(struct net_stage *s, unsigned client, const struct net_job *job,
                   uint64_t *mismatches)
{
    struct net_result r;
    int rc = proc_ask(&s->clients[client], job, sizeof(*job), &r, sizeof(r), ANSWER_MS);

    *mismatches = rc == 0 ? r.mismatches : 0;
    return rc;
}

int net_stage_fill(struct net_stage *s, mcshm_opcode opcode, unsigned clients, uint64_t span)
{
    uint64_t none;
    int rc = 0;

    s->seeds++;
    for (unsigned i = 0; rc == 0 && i < clients; i++) {
        uint64_t seed = pattern_seed(s->seeds, i);
        struct net_job job = {.kind = NET_FILL, .span = span, .seed = seed};
        struct net_owner_request request = {
            .fill = true, .offset = i * s->region, .bytes = span, .seed = seed};

        if (opcode == MCSHM_READ && s->hosts != NULL) {
            rc = ask_owner(s, &request, &none);
            continue;
        }
        rc = ask_one(s, i, &job, &none);
        if (rc == 0 && opcode == MCSHM_READ) {
            job.kind = NET_PUSH;
            rc = ask_one(s, i, &job, &none);
            job.kind = NET_FILL; /* and what was read must not be there already */
            job.seed = pattern_seed(s->seeds, NET_CLIENTS_MAX + i);
            if (rc == 0)
                rc = ask_one(s, i, &job, &none);
        }
    }
    return rc;
}

int net_stage_check(struct net_stage *s, mcshm_opcode opcode, unsigned clients,
                    const uint64_t *bytes, uint64_t *mismatches, uint64_t *checked)
{
    int rc = 0;

    for (unsigned i = 0; rc == 0 && i < clients; i++) {
        uint64_t seed = pattern_seed(s->seeds, i), wrong = 0;
        struct net_job job = {.kind = NET_CHECK, .span = bytes[i], .seed = seed};
        struct net_owner_request request = {
            .offset = i * s->region, .bytes = bytes[i], .seed = seed};

        if (opcode == MCSHM_WRITE && s->hosts != NULL) {
            rc = ask_owner(s, &request, &wrong);
        } else if (opcode == MCSHM_WRITE) {
            job.kind = NET_FILL; /* what is read back must come from there */
            job.seed = pattern_seed(s->seeds, NET_CLIENTS_MAX + i);
            rc = ask_one(s, i, &job, &wrong);
            job.kind = NET_PULL;
            if (rc == 0)
                rc = ask_one(s, i, &job, &wrong);
            job.kind = NET_CHECK;
            job.seed = seed;
            if (rc == 0)
                rc = ask_one(s, i, &job, &wrong);
        } else {
            rc = ask_one(s, i, &job, &wrong);
        }
        *mismatches += wrong;
        *checked += bytes[i];
    }
    return rc;
}

void net_stage_cpu(const struct net_stage *s, double ns[HOSTS])
{
    for (unsigned host = 0; host < HOSTS; host++) {
        uint64_t used;
        pid_t pid = s->pair.agent[host].pid;

        ns[host] = pid > 0 && clock_process_ns(pid, &used) == 0 ? (double)used : -1;
    }
}

double net_stage_zero_copy(const struct net_stage *s)
{
    double sum = 0;

    for (unsigned host = 0; s->hosts != NULL && host < HOSTS; host++) {
        cJSON *doc = tell_ask(s->pair.agent[host].socket, "status", NULL);
        const cJSON *counters = cJSON_GetObjectItemCaseSensitive(doc, "counters");
        const cJSON *count = cJSON_GetObjectItemCaseSensitive(counters, "tcp_zero_copy");

        if (cJSON_IsNumber(count))
            sum += count->valuedouble;
        cJSON_Delete(doc);
    }
    return sum;
}
