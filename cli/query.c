/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>

#include "cli.h"

int cli_connect(const struct cli *cli, mcshm **out)
{
    mcshm_options options;
    mcshm_status status;

    mcshm_options_init(&options);
    options.socket_path = cli->socket;
    options.name = "mcshm";
    options.reconnect_ms = 0; /* nothing to come back for */
    status = mcshm_connect(&options, out);
    return status == MCSHM_OK ? CLI_OK : cli_error("cannot reach the agent", status, NULL);
}

int cli_parse(char *text, cJSON **document)
{
    *document = cJSON_Parse(text);
    if (cJSON_IsObject(*document))
        return CLI_OK;
    fprintf(stderr, "mcshm: the agent's answer is no JSON object\n");
    cJSON_Delete(*document);
    free(text);
    *document = NULL;
    return CLI_FAILED;
}

int cli_query(const struct cli *cli, mcshm_query_what what, char **text, cJSON **document)
{
    mcshm *c = NULL;
    mcshm_status status;
    int res;

    *text = NULL;
    *document = NULL;
    res = cli_connect(cli, &c);
    if (res != CLI_OK)
        return res;
    status = mcshm_query(c, what, text);
    if (status != MCSHM_OK)
        res = cli_error("the agent did not answer", status, c);
    else
        res = cli_parse(*text, document);
    if (res != CLI_OK)
        *text = NULL;
    mcshm_close(c);
    return res;
}
