/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>

#include "cli.h"

static void print(const char *title, const char *none, const cJSON *names)
{
    const cJSON *name;

    if (cJSON_GetArraySize(names) == 0) {
        puts(none);
        return;
    }
    printf("%s", title);
    cJSON_ArrayForEach(name, names)
    {
        printf(" %s", name->valuestring);
    }
    printf("\n");
}

int cli_reload(const struct cli *cli)
{
    mcshm *c = NULL;
    mcshm_status status;
    cJSON *d = NULL;
    char *text;
    int res = cli_connect(cli, &c);

    if (res != CLI_OK)
        return res;
    status = mcshm_reload(c, &text);
    res = status != MCSHM_OK ? cli_error("the configuration was not reloaded", status, c)
                             : cli_parse(text, &d);
    if (res == CLI_OK) {
        const cJSON *waiting = cJSON_GetObjectItemCaseSensitive(d, "waiting");

        if (cli->json) {
            puts(text);
        } else {
            print("changed:", "no live key has changed",
                  cJSON_GetObjectItemCaseSensitive(d, "changed"));
            if (cJSON_GetArraySize(waiting) != 0)
                print("wait for the agent's next start:", "", waiting);
        }
        cJSON_Delete(d);
        free(text);
    }
    mcshm_close(c);
    return res;
}
