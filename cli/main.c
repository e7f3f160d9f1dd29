/* SPDX-License-Identifier: Apache-2.0 */
/* mcshm: asks the agent of this host about itself. A client like any other. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"

static const char usage[] =
    "usage: mcshm [--socket PATH] [--json] COMMAND\n"
    "\n"
    "  status                                      the agent, its engines and its pool\n"
    "  ls [segments|buffers|extents|sessions|      what lives in it; segments by default\n"
    "      rails|peers]\n"
    "  ping HOST:PORT [--count N]                  does another host's agent answer?\n"
    "  version                                     of this program and of the agent\n"
    "  help                                        this text\n"
    "\n"
    "  --socket PATH   the agent's socket; " MCSHM_DEFAULT_SOCKET " by default\n"
    "  --json          one JSON document instead of tables\n";

static int usage_error(const char *what, const char *argument)
{
    fprintf(stderr, "mcshm: %s '%s'; 'mcshm help' lists what there is\n", what, argument);
    return CLI_USAGE;
}

int cli_error(const char *what, mcshm_status status, const mcshm *c)
{
    const char *sentence = mcshm_last_error(c);

    if (sentence[0] != '\0')
        fprintf(stderr, "mcshm: %s\n", sentence);
    else
        fprintf(stderr, "mcshm: %s: %s\n", what, mcshm_strerror(status));
    return CLI_FAILED;
}

int main(int argc, char **argv)
{
    struct cli cli = {.socket = MCSHM_DEFAULT_SOCKET};
    const char *command = NULL, *what = NULL;
    unsigned long count = 1;
    char *end;
    int res;

    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--json") == 0) {
            cli.json = true;
        } else if (strcmp(argv[i], "--socket") == 0) {
            if (++i == argc)
                return usage_error("a path must follow", "--socket");
            cli.socket = argv[i];
        } else if (strcmp(argv[i], "--count") == 0) {
            if (++i == argc)
                return usage_error("a number must follow", "--count");
            count = strtoul(argv[i], &end, 10);
            if (*end != '\0' || argv[i][0] < '0' || argv[i][0] > '9' || count == 0 ||
                count > 1000000)
                return usage_error("--count wants 1 to 1000000, not", argv[i]);
        } else if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) {
            command = "help";
        } else if (argv[i][0] == '-') {
            return usage_error("unknown option", argv[i]);
        } else if (command == NULL) {
            command = argv[i];
        } else if (what == NULL) {
            what = argv[i];
        } else {
            return usage_error("one argument too many:", argv[i]);
        }
    }
    if (command == NULL) {
        fputs(usage, stderr);
        return CLI_USAGE;
    }
    if (what != NULL && strcmp(command, "ls") != 0 && strcmp(command, "ping") != 0)
        return usage_error("one argument too many:", what);

    if (strcmp(command, "status") == 0)
        res = cli_status(&cli);
    else if (strcmp(command, "ls") == 0)
        res = cli_ls(&cli, what != NULL ? what : "segments");
    else if (strcmp(command, "ping") == 0 && what == NULL)
        return usage_error("an address HOST:PORT must follow", "ping");
    else if (strcmp(command, "ping") == 0)
        res = cli_ping(&cli, what, (unsigned)count);
    else if (strcmp(command, "version") == 0)
        res = cli_version(&cli);
    else if (strcmp(command, "help") == 0)
        res = fputs(usage, stdout) < 0 ? CLI_FAILED : CLI_OK;
    else
        return usage_error("unknown command", command);

    if (res == CLI_NO_SUCH_LIST)
        return usage_error("unknown list", what);
    if (fflush(stdout) != 0 && res == CLI_OK) {
        perror("mcshm: standard output");
        res = CLI_FAILED;
    }
    return res;
}
