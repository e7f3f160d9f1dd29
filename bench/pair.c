/* SPDX-License-Identifier: Apache-2.0 */
#include "pair.h"

#include "cleanup.h"
#include "say.h"

#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>

const char *pair_name(const struct hosts *h, unsigned host, const char *name, char *out,
                      size_t size)
{
    snprintf(out, size, "%s:%d/%s", h->end[host][0].address, PAIR_PORT, name);
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
static int write_settings(const struct pair_options *o, const struct hosts *h, unsigned host,
                          char *out, size_t size)
{
    FILE *f = fmemopen(out, size, "w");
    bool bad;

    if (f == NULL)
        return -errno;
    fprintf(f,
            "[peer]\n"
            "listen = %s:%d\n"
            "allow_insecure = yes\n"
            "[meta]\n"
            "backend = p2p\n"
            "[tcp]\n"
            "checksum = %s\n"
            "rails = ",
            h->end[host][0].address, PAIR_PORT, o->checksum ? "on" : "off");
    for (unsigned rail = 0; rail < o->rails; rail++)
        fprintf(f, "%s%s", rail > 0 ? "," : "", h->end[host][rail].address);
    fprintf(f, "\n[rdma]\nenable = %s", o->rdma ? "require\nfallback = no\ndevices = " : "off");
    if (o->rdma) {
        for (unsigned rail = 0; rail < o->rails; rail++)
            fprintf(f, "%s%s", rail > 0 ? "," : "", h->end[host][rail].device);
    }
    fprintf(f, "\n%s", o->settings != NULL ? o->settings : "");
    bad = ferror(f);
    return fclose(f) == 0 && !bad ? 0 : -ENOSPC;
}

static int start(const struct pair_options *o, const struct hosts *h, unsigned host,
                 const struct pin_cores *cores, struct agent *out)
{
    char settings[4096];
    struct agent_options ao = {.program = o->program,
                               .core = (host == 0) != o->apart ? cores->client : cores->engine,
                               .busy = o->busy || (o->apart && host == 0),
                               .pool_size = o->pool_size,
                               .netns = h->netns[host],
                               .settings = settings};
    int rc = write_settings(o, h, host, settings, sizeof(settings));

    return rc != 0 ? say_error(rc, "an agent's settings: %s", strerror(-rc))
                   : agent_start(&ao, out);
}

static int choose_cores(struct pin_cores *out)
{
    int rc = pin_choose(out);

    return rc == 0 ? 0 : say_error(rc, "cannot tell which cores are allowed: %s", strerror(-rc));
}

int pair_start_one(const struct pair_options *o, const struct hosts *h, unsigned host,
                   struct agent *out)
{
    struct pin_cores cores;
    int rc = choose_cores(&cores);

    return rc != 0 ? rc : start(o, h, host, &cores, out);
}

int pair_start(const struct pair_options *o, const struct hosts *h, struct pair *p)
{
    struct agent_options room = {.pool_size = o->pool_size};
    int rc;

    memset(p, 0, sizeof(*p));
    p->mark = cleanup_mark();
    rc = choose_cores(&p->cores);
    if (rc == 0)
        agent_reserve(&room, HOSTS, p->pages_note, sizeof(p->pages_note));
    for (unsigned host = 0; rc == 0 && host < HOSTS; host++)
        rc = start(o, h, host, &p->cores, &p->agent[host]);
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
