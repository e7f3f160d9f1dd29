/* SPDX-License-Identifier: Apache-2.0 */
/* The commands of the tool `mcshm`. Each prints to stdout and returns an enum cli_exit. */
#ifndef CLI_H
#define CLI_H

#include <stdbool.h>

#include <cjson/cJSON.h>

#include "mcshm.h"

enum cli_exit { CLI_OK = 0, CLI_FAILED = 1, CLI_USAGE = 2, CLI_NO_SUCH_LIST = 3 };

struct cli {
    const char *socket;
    bool json;
};

int cli_status(const struct cli *cli);
int cli_ls(const struct cli *cli, const char *what);
int cli_version(const struct cli *cli);
int cli_ping(const struct cli *cli, const char *address, unsigned count);

/* Prints why a call failed to stderr; c as in mcshm_last_error(). Returns CLI_FAILED. */
int cli_error(const char *what, mcshm_status status, const mcshm *c);

/*
 * Connects, asks, disconnects. *text: the agent's JSON as it came, free() it; *document: the
 * same parsed, cJSON_Delete() it. Says what went wrong and returns CLI_FAILED.
 */
int cli_query(const struct cli *cli, mcshm_query_what what, char **text, cJSON **document);

#endif
