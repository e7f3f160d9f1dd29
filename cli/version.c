/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>

#include "cli.h"

/* An agent that is not there is no error here: the question was for the version. */
static bool agent_version(const struct cli *cli, char *out, size_t size)
{
    mcshm_options options;
    mcshm_info info;
    mcshm *c = NULL;
    bool known;

    mcshm_options_init(&options);
    options.socket_path = cli->socket;
    options.name = "mcshm";
    options.reconnect_ms = 0; /* nothing to come back for */
    if (mcshm_connect(&options, &c) != MCSHM_OK)
        return false;
    known = mcshm_get_info(c, &info) == MCSHM_OK;
    if (known)
        snprintf(out, size, "%.*s", (int)strnlen(info.agent_version, sizeof(info.agent_version)),
                 info.agent_version);
    mcshm_close(c);
    return known;
}

int cli_version(const struct cli *cli)
{
    char agent[sizeof(((mcshm_info *)NULL)->agent_version) + 1];
    bool known = agent_version(cli, agent, sizeof(agent));

    if (cli->json) {
        cJSON *d = cJSON_CreateObject();
        char *text;

        cJSON_AddStringToObject(d, "version", mcshm_version());
        if (known)
            cJSON_AddStringToObject(d, "agent", agent);
        else
            cJSON_AddNullToObject(d, "agent");
        text = cJSON_PrintUnformatted(d);
        puts(text != NULL ? text : "{}");
        cJSON_free(text);
        cJSON_Delete(d);
    } else {
        printf("mcshm %s\n", mcshm_version());
        if (known)
            printf("mcshmd %s\n", agent);
    }
    return CLI_OK;
}
