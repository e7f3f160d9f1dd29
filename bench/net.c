/* SPDX-License-Identifier: Apache-2.0 */
#include "net.h"

#include "net_idle.h"
#include "net_options.h"
#include "net_owner.h"
#include "say.h"

#include <errno.h>
#include <math.h>
#include <string.h>

/* Hosts of our own: the rows, those beside them, and what is measured apart. */
static int run_own(const struct net_options *o, struct net_figures *f)
{
    bool here = wire_asked(&o->wire);
    struct hosts h;
    int cores[HOSTS];
    unsigned rails = 1;
    int rc;

    for (unsigned i = 0; i < o->rails.count; i++)
        if (o->rails.value[i] > rails)
            rails = (unsigned)o->rails.value[i];
    rc = here ? wire_open(&o->wire, rails, &h) : hosts_open(&h, rails, o->congestion);
    if (rc != 0)
        return rc;
    rc = pin_choose(&f->cores);
    cores[0] = f->cores.client;
    cores[1] = f->cores.engine;
    if (rc == 0)
        rc = rtt_measure(&h, cores, &f->rtt);
    if (rc == 0)
        rc = net_sweep(o, &h, f);
    if (rc == 0 && o->rivals)
        net_run_rivals(o, &h, f);
    if (rc == 0 && o->failover)
        rc = net_run_failover(o, here ? &h : NULL, f);
    if (rc == 0 && o->idle_peers > 0)
        rc = net_run_idle(o, &h, f);
    hosts_close(&h);
    return rc;
}

int net_command(int argc, char **argv)
{
    static struct net_figures figures; /* too large for a stack frame */
    struct net_options options;
    int rc = net_options_parse(argc, argv, &options);

    if (rc != 0)
        return rc > 0 ? 0 : rc;
    if (options.serve != NULL) {
        struct net_owner_context x = {
            .socket = options.common.socket, .segment = options.serve, .size = options.serve_bytes};

        return net_owner_serve(&x);
    }
    if (options.peer != NULL)
        rc = net_sweep(&options, NULL, &figures);
    else if (options.wire.rdma)
        rc = net_run_rdma(&options, &figures);
    else
        rc = run_own(&options, &figures);
    if (rc == 0)
        rc = net_print(&options, &figures);
    if (rc == 0 && figures.mismatches > 0)
        rc = say_error(-EIO, "net: what arrived is not what was sent");
    return rc;
}
