/* SPDX-License-Identifier: Apache-2.0 */
/* The commands of the tool `mcshm`. Each prints to stdout and returns an enum cli_exit. */
#ifndef CLI_H
#define CLI_H

#include <stdbool.h>
#include <stdint.h>

#include <cjson/cJSON.h>

#include "mcshm.h"

enum cli_exit { CLI_OK = 0, CLI_FAILED = 1, CLI_USAGE = 2, CLI_NO_SUCH_LIST = 3 };

struct cli {
    const char *socket;
    bool socket_given;
    bool json;
    /* of single commands; 0 or NULL: not given */
    bool once;
    uint64_t count;
    uint64_t interval_ms;
    uint64_t size;      /* bytes */
    uint64_t pages;     /* bytes of the pages that are wanted */
    const char *node;   /* a NUMA node's number */
    const char *config; /* path */
    const char *peer;   /* HOST or HOST:PORT */
    bool serve;
    const char **args; /* words behind the command */
    unsigned nargs;
    /* of those about objects */
    bool hex; /* keys are in hexadecimal */
    bool upsert, only_new, hard_pin, in_place, verify, all, force, undo;
    uint64_t replicas;
    uint64_t soft_pin_ms;
    const char *host;   /* HOST:PORT */
    const char *prefix; /* of keys */
    const char *regex;
};

int cli_status(const struct cli *cli);
int cli_ls(const struct cli *cli, const char *what);
int cli_version(const struct cli *cli);
int cli_ping(const struct cli *cli, const char *address, unsigned count);
int cli_top(const struct cli *cli);
int cli_trace(const struct cli *cli, const char *client);
int cli_reload(const struct cli *cli);
int cli_alloc_test(const struct cli *cli);
int cli_put(const struct cli *cli, const char *key, const char *file);
int cli_get(const struct cli *cli, const char *key, const char *file);
int cli_exist(const struct cli *cli);
int cli_rm(const struct cli *cli);
int cli_ls_objects(const struct cli *cli);
int cli_stat(const struct cli *cli, const char *key);
int cli_drain(const struct cli *cli, const char *host);
int cli_store(const struct cli *cli, const char *what);
/* area: a group of checks, NULL: all. Its exit code is a verdict: 0 fit, 1 warnings, 2 not fit. */
int cli_doctor(const struct cli *cli, const char *area);

/* A terminal that can be cleared, and its height in *lines; else frames follow one another. */
bool cli_screen(unsigned *lines);
void cli_pause_ms(uint64_t ms);

/* Prints rows as `mcshm ls NAME` does. */
void cli_print_list(const char *name, const cJSON *rows);

/* Connects; says on stderr why it cannot. */
int cli_connect(const struct cli *cli, mcshm **out);

/* Prints why a call failed to stderr; c as in mcshm_last_error(). Returns CLI_FAILED. */
int cli_error(const char *what, mcshm_status status, const mcshm *c);

/*
 * Connects, asks, disconnects. *text: the agent's JSON as it came, free() it; *document: the
 * same parsed, cJSON_Delete() it. Says what went wrong and returns CLI_FAILED.
 */
int cli_query(const struct cli *cli, mcshm_query_what what, char **text, cJSON **document);
/* The same for an answer that is there already: takes text, frees it on failure. */
int cli_parse(char *text, cJSON **document);

#endif
