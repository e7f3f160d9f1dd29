/* SPDX-License-Identifier: Apache-2.0 */
#include "pair.h"

#include "cleanup.h"
#include "say.h"

#include <sched.h>
#include <stdio.h>
#include <string.h>

const char *pair_name(unsigned host, const char *name, char *out, size_t size)
{
    char address[32];

    snprintf(out, size, "%s:%d/%s", hosts_address(host, 0, address, sizeof(address)), PAIR_PORT,
             name);
    return out;
}

void pair_step_aside(const struct pin_cores *cores)
{
    cpu_set_t set;

    if (sched_getaffinity(0, sizeof(set), &set) != 0 || CPU_COUNT(&set) < 3)
        return;
    pin_away_from(cores->client);
    pin_away_from(cores->engine);
}

/* The sections of a host's ini file that make it a host among others. */
static void write_settings(const struct pair_options *o, unsigned host, char *out, size_t size)
{
    char address[32];
    size_t used = (size_t)snprintf(out, size,
                                   "[peer]\n"
                                   "listen = %s:%d\n"
                                   "allow_insecure = yes\n"
                                   "[meta]\n"
                                   "backend = p2p\n"
                                   "[tcp]\n"
                                   "checksum = %s\n"
                                   "rails = ",
                                   hosts_address(host, 0, address, sizeof(address)), PAIR_PORT,
                                   o->checksum ? "on" : "off");

    for (unsigned rail = 0; rail < o->rails && used < size; rail++)
        used += (size_t)snprintf(out + used, size - used, "%s%s", rail > 0 ? "," : "",
                                 hosts_address(host, rail, address, sizeof(address)));
    if (used < size)
        snprintf(out + used, size - used, "\n%s", o->settings != NULL ? o->settings : "");
}

int pair_start(const struct pair_options *o, const struct hosts *h, struct pair *p)
{
    char settings[1024];
    struct agent_options ao = {
        .program = o->program, .busy = o->busy, .pool_size = o->pool_size, .settings = settings};
    int rc;

    memset(p, 0, sizeof(*p));
    p->mark = cleanup_mark();
    rc = pin_choose(&p->cores);
    if (rc != 0)
        return say_error(rc, "cannot tell which cores are allowed: %s", strerror(-rc));
    agent_reserve(&ao, HOSTS, p->pages_note, sizeof(p->pages_note));
    for (unsigned host = 0; rc == 0 && host < HOSTS; host++) {
        ao.core = host == 0 ? p->cores.client : p->cores.engine;
        ao.netns = h->netns[host];
        write_settings(o, host, settings, sizeof(settings));
        rc = agent_start(&ao, &p->agent[host]);
    }
    if (rc != 0)
        pair_stop(p);
    return rc;
}

void pair_stop(struct pair *p)
{
    cleanup_undo(p->mark);
    for (unsigned host = 0; host < HOSTS; host++)
        p->agent[host].pid = 0;
}
