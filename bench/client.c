/* SPDX-License-Identifier: Apache-2.0 */
#include "client.h"

#include "say.h"

#include <stddef.h>

int client_open(struct client *k, const char *socket, const char *name, uint64_t caller_max,
                const mcshm_queue_options *o)
{
    mcshm_options options;
    mcshm_status s;

    k->c = NULL;
    k->q = NULL;
    mcshm_options_init(&options);
    options.socket_path = socket;
    options.name = name;
    options.caller_max = caller_max;
    s = mcshm_connect(&options, &k->c);
    if (s != MCSHM_OK)
        return say_status(NULL, s, "connecting to the agent");
    s = mcshm_queue_open(k->c, o, &k->q);
    if (s != MCSHM_OK) {
        int rc = say_status(k->c, s, "opening a queue");

        client_close(k);
        return rc;
    }
    return 0;
}

void client_close(struct client *k)
{
    if (k->q != NULL)
        mcshm_queue_close(k->q);
    mcshm_close(k->c);
    k->q = NULL;
    k->c = NULL;
}
