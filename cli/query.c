/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>

#include "cli.h"

int cli_query(const struct cli *cli, mcshm_query_what what, char **text, cJSON **document)
{
    mcshm_options options;
    mcshm *c = NULL;
    mcshm_status status;
    int res = CLI_FAILED;

    *text = NULL;
    *document = NULL;
    mcshm_options_init(&options);
    options.socket_path = cli->socket;
    options.name = "mcshm";
    status = mcshm_connect(&options, &c);
    if (status != MCSHM_OK)
        return cli_error("cannot reach the agent", status, NULL);
    status = mcshm_query(c, what, text);
    if (status != MCSHM_OK) {
        cli_error("the agent did not answer", status, c);
        goto out;
    }
    *document = cJSON_Parse(*text);
    if (!cJSON_IsObject(*document)) {
        fprintf(stderr, "mcshm: the agent's answer is no JSON object\n");
        cJSON_Delete(*document);
        free(*text);
        *document = NULL;
        *text = NULL;
        goto out;
    }
    res = CLI_OK;
out:
    mcshm_close(c);
    return res;
}
