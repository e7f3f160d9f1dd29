/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <time.h>

#include "cli.h"

#define TIMEOUT_MS 5000u
#define PAUSE_NS 200000000L /* between two pings */

static void print(const struct cli *cli, const char *address, unsigned index, const mcshm_peer *p)
{
    if (cli->json)
        printf("%s{\"address\":\"%s\",\"rtt_us\":%.1f,\"incarnation\":\"0x%llx\","
               "\"version\":\"%s\"}",
               index != 0 ? "," : "", address, (double)p->rtt_ns / 1000,
               (unsigned long long)p->incarnation, p->agent_version);
    else
        printf("%s: mcshmd %s, %.1f us\n", address, p->agent_version, (double)p->rtt_ns / 1000);
}

int cli_ping(const struct cli *cli, const char *address, unsigned count)
{
    const struct timespec pause = {.tv_nsec = PAUSE_NS};
    mcshm_options options;
    mcshm *c = NULL;
    mcshm_peer peer;
    mcshm_status status;
    int res = CLI_OK;

    mcshm_options_init(&options);
    options.socket_path = cli->socket;
    options.name = "mcshm";
    options.reconnect_ms = 0; /* nothing to come back for */
    status = mcshm_connect(&options, &c);
    if (status != MCSHM_OK)
        return cli_error("cannot reach the agent", status, NULL);
    if (cli->json)
        printf("{\"pings\":[");
    for (unsigned i = 0; i < count && res == CLI_OK; i++) {
        if (i != 0)
            nanosleep(&pause, NULL);
        status = mcshm_ping(c, address, TIMEOUT_MS, &peer);
        if (status == MCSHM_OK)
            print(cli, address, i, &peer);
        else
            res = cli_error("no answer", status, c);
    }
    if (cli->json)
        printf("]}\n");
    mcshm_close(c);
    return res;
}
