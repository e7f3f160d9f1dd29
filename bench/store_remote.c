/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two hosts: objects lie on host 1, where a client of its own puts them, and are asked for on host 0. Only the PUT that is
 * timed is host 0's own, with host 1 as the place.
 */
#include "store_remote.h"

#include "hosts.h"
#include "pair.h"
#include "say.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/*
 * What a reader had leased is removed at once, but its record and its space are not free before the lease has run out;
 * the host that puts is such a holder, until the place has its copy. So there is room for all that comes and goes
 * within a lease, else the store would evict what the next request is about.
 */
#define LEASE_MS 100u
#define KEYS_IN_A_LEASE 200000u /* two million a second */

struct both {
    struct store_client *here, *there;
};

static int run(void *context, enum store_op op, uint64_t size, uint32_t n, uint32_t *queue_ns,
               uint32_t *move_ns)
{
    struct both *b = context;
    if (op == STORE_GET_IN_PLACE)
        return -ENOTSUP; /* it would be another host's memory */
    if (op != STORE_PUT || queue_ns != NULL)
        return store_client_run(b->here, op, size, n, queue_ns, move_ns);
    for (uint64_t i = 0; i < n; i++) /* the mark by which a GET is checked */
        memcpy(store_client_buffer(b->there) + i * size, store_client_buffer(b->here) + i * size,
               sizeof(uint64_t));
    return store_client_run(b->there, op, size, n, NULL, NULL);
}

static uint64_t cpu_ns(void *context)
{
    return store_client_cpu(((struct both *)context)->here);
}

static int measure(const struct store_options *o, const struct hosts *h, const struct pair *p,
                   uint64_t keys, struct store_rows *rows)
{
    const pid_t agents[] = {p->agent[0].pid, p->agent[1].pid};
    struct both b = {.here = NULL};
    struct store_driver d;
    char host[96], segment[160];
    int rc;

    snprintf(host, sizeof(host), "%s:%d", h->end[1][0].address, PAIR_PORT);
    rc = store_client_open(p->agent[0].socket, o->most, keys, host, agents, HOSTS, &b.here);
    if (rc == 0)
        rc = store_client_open(p->agent[1].socket, o->most, keys, NULL, NULL, 0, &b.there);
    if (rc == 0)
        rc = store_client_publish(b.there, "mcshm-bench-store");
    if (rc == 0) {
        store_client_drive(b.here, true, &d);
        d.context = &b;
        d.run = run;
        d.cpu_ns = cpu_ns;
        rc = store_measure(o, &d, rows);
    }
    if (rc == 0)
        rc =
            store_client_raw(b.here, pair_name(h, 1, "mcshm-bench-store", segment, sizeof(segment)),
                             o->seconds, rows);
    store_client_close(b.there);
    store_client_close(b.here);
    return rc;
}

int store_remote(const struct store_options *o, uint64_t store, uint64_t keys,
                 struct store_rows *rows, const char **why_not)
{
    char settings[512];
    struct pair_options po = {.program = o->common.mcshmd,
                              .pool_size = o->most + (UINT64_C(64) << 20),
                              .rails = 1,
                              .settings = settings};
    struct hosts h;
    struct pair p;
    int rc;

    *why_not = NULL;
    if (geteuid() != 0) {
        *why_not = "two hosts are two network namespaces, which take root";
        return 0;
    }
    rc = hosts_open(&h, 1, "reno");
    if (rc != 0)
        return rc;
    snprintf(settings, sizeof(settings),
             "[store]\nsize = %lluM\nobjects = %llu\nlease_ms = %u\nmaster = %s:%d\n",
             (unsigned long long)(2 * store >> 20),
             (unsigned long long)(8 * keys + KEYS_IN_A_LEASE), LEASE_MS, h.end[0][0].address,
             PAIR_PORT);
    rc = pair_start(&po, &h, &p);
    if (rc == 0) {
        rc = measure(o, &h, &p, keys, rows);
        pair_stop(&p);
    }
    hosts_close(&h);
    return rc;
}
