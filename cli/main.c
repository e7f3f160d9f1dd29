/* SPDX-License-Identifier: Apache-2.0 */
#include <limits.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"

static const char usage[] =
    "usage: mcshm [--socket PATH] [--json] COMMAND\n"
    "\n"
    "  status                                      the agent, its engines and its pool\n"
    "  top [--once] [--interval S] [--count N]     who moves how much, live; also while the agent\n"
    "                                              does not answer\n"
    "  ls [segments|buffers|extents|sessions|      what lives in it; segments by default\n"
    "      rails|nics|gpus|peers|tenants]\n"
    "  trace CLIENT [-n N]                         the last N (20) tasks of a client, with the "
    "time\n"
    "                                              of each stage; CLIENT is a session, pid or "
    "name\n"
    "  ping HOST:PORT [--count N]                  does another host's agent answer?\n"
    "  alloc-test [--size S] [--node N]            takes pool memory, writes and reads it, gives "
    "it\n"
    "      [--pages P]                             back; 64M on any NUMA node by default; fails "
    "when\n"
    "                                              its pages are smaller than P (2M, 1G)\n"
    "  reload                                      the agent reads its configuration again\n"
    "  put KEY [FILE|-] [--upsert] [--new]         an object from a file, or from standard input;\n"
    "      [--replicas N] [--host HOST:PORT]       a key that is there stays as it is, unless "
    "with\n"
    "      [--soft-pin S] [--hard-pin]             --upsert, and is an error with --new; a soft "
    "pin\n"
    "                                              of S seconds is evicted last, a hard one never\n"
    "  get KEY [FILE|-] [--in-place] [--verify]    an object to a file, or to standard output;\n"
    "                                              --in-place: read where the agent has it\n"
    "  exist KEY...                                exit code 0: all are there\n"
    "  rm KEY...                                   removes objects: by key, all that begin with\n"
    "  rm --prefix P | --regex R | --all           P, all that match R, a regular expression\n"
    "      [--force]                               (PCRE2), or all; --force: leased ones, too\n"
    "  ls-objects [--prefix P] [--limit N]         keys and sizes, the first 1000\n"
    "  stat KEY                                    what is known of one object\n"
    "  drain HOST:PORT [--undo]                    the agent there gives its objects to others;\n"
    "                                              again to see how far it is\n"
    "  store top [--once] [--interval S]           the object store: hit ratio, tiers, evictions,\n"
    "      [--count N]                             leases, tenants\n"
    "  doctor [AREA] [--config FILE]               is this host fit, and what is to be done? exit\n"
    "                                              code 0: yes, 1: warnings, 2: no; AREA is "
    "memory,\n"
    "                                              cpu, kernel, host, agent, cluster, rdma or gpu\n"
    "  doctor rdma --peer HOST[:PORT]              do bytes get to that host and back over RDMA?\n"
    "                                              exit code 0: yes, 1: another way, 2: no\n"
    "  doctor rdma --serve                         the other side of it, on that host; until ^C\n"
    "  version                                     of this program and of the agent\n"
    "  help                                        this text\n"
    "\n"
    "  --socket PATH   the agent's socket; " MCSHM_DEFAULT_SOCKET " by default\n"
    "  --json          one JSON document instead of tables\n"
    "  --hex           keys are given in hexadecimal\n"
    "  --              what follows is no option\n";

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

/* ---- options --------------------------------------------------------------------- */

enum option_kind { FLAG, TEXT, NUMBER, SIZE, SECONDS };

static const struct option {
    const char *name, *command; /* NULL: of all commands */
    enum option_kind kind;
    size_t offset;
    const char *want;
    uint64_t min, max;
} options[] = {
#define F(f) offsetof(struct cli, f)
    {"--json", NULL, FLAG, F(json), "", 0, 0},
    {"--socket", NULL, TEXT, F(socket), "a path must follow", 0, 0},
    {"--count", "ping", NUMBER, F(count), "--count wants 1 to 1000000, not", 1, 1000000},
    {"--count", "top", NUMBER, F(count), "--count wants 1 to 1000000, not", 1, 1000000},
    {"--interval", "top", SECONDS, F(interval_ms), "--interval wants 0.05 to 3600 seconds, not", 50,
     3600000},
    {"--once", "top", FLAG, F(once), "", 0, 0},
    {"-n", "trace", NUMBER, F(count), "-n wants 1 to 4096, not", 1, 4096},
    {"--size", "alloc-test", SIZE, F(size), "--size wants 8 bytes to 64T, such as 512M, not", 8,
     UINT64_C(64) << 40},
    {"--pages", "alloc-test", SIZE, F(pages), "--pages wants 4K, 2M or 1G, not", 4096,
     UINT64_C(1) << 30},
    {"--node", "alloc-test", TEXT, F(node), "a number must follow", 0, 0},
    {"--config", "doctor", TEXT, F(config), "a path must follow", 0, 0},
    {"--peer", "doctor", TEXT, F(peer), "HOST or HOST:PORT must follow", 0, 0},
    {"--serve", "doctor", FLAG, F(serve), "", 0, 0},
    {"--upsert", "put", FLAG, F(upsert), "", 0, 0},
    {"--new", "put", FLAG, F(only_new), "", 0, 0},
    {"--hard-pin", "put", FLAG, F(hard_pin), "", 0, 0},
    {"--replicas", "put", NUMBER, F(replicas), "--replicas wants 1 to 8, not", 1, 8},
    {"--soft-pin", "put", SECONDS, F(soft_pin_ms), "--soft-pin wants 0.001 to 86400 seconds, not",
     1, 86400000},
    {"--host", "put", TEXT, F(host), "HOST:PORT must follow", 0, 0},
    {"--in-place", "get", FLAG, F(in_place), "", 0, 0},
    {"--verify", "get", FLAG, F(verify), "", 0, 0},
    {"--prefix", "rm", TEXT, F(prefix), "a text must follow", 0, 0},
    {"--prefix", "ls-objects", TEXT, F(prefix), "a text must follow", 0, 0},
    {"--regex", "rm", TEXT, F(regex), "a regular expression must follow", 0, 0},
    {"--all", "rm", FLAG, F(all), "", 0, 0},
    {"--force", "rm", FLAG, F(force), "", 0, 0},
    {"--limit", "ls-objects", NUMBER, F(count), "--limit wants 1 to 1000000, not", 1, 1000000},
    {"--undo", "drain", FLAG, F(undo), "", 0, 0},
    {"--once", "store", FLAG, F(once), "", 0, 0},
    {"--interval", "store", SECONDS, F(interval_ms), "--interval wants 0.05 to 3600 seconds, not",
     50, 3600000},
    {"--count", "store", NUMBER, F(count), "--count wants 1 to 1000000, not", 1, 1000000},
#define HEX(command)                                                                               \
    {                                                                                              \
        "--hex", command, FLAG, F(hex), "", 0, 0                                                   \
    }
    HEX("put"),
    HEX("get"),
    HEX("exist"),
    HEX("rm"),
    HEX("stat"),
    HEX("ls-objects"),
#undef HEX
#undef F
};
#define NOPTIONS (sizeof(options) / sizeof(options[0]))

static bool parse_size(const char *text, uint64_t *out)
{
    static const char suffixes[] = "KMGT";
    const char *suffix = NULL;
    unsigned shift = 0;
    char *end;

    if (text[0] < '0' || text[0] > '9' || strlen(text) > 18)
        return false;
    *out = strtoull(text, &end, 10);
    if (*end != '\0') {
        suffix = strchr(suffixes, *end);
        if (suffix == NULL || end[1] != '\0')
            return false;
        shift = 10 * (unsigned)(suffix - suffixes + 1);
    }
    if (*out > UINT64_MAX >> shift)
        return false;
    *out <<= shift;
    return true;
}

static bool parse_value(const struct option *o, const char *text, uint64_t *out)
{
    char *end;
    double seconds;

    if (o->kind == SECONDS) {
        seconds = strtod(text, &end);
        if (text[0] < '0' || text[0] > '9' || *end != '\0' || !isfinite(seconds) || seconds > 1e6)
            return false;
        *out = (uint64_t)(seconds * 1000 + 0.5);
    } else if (!parse_size(text, out) ||
               (o->kind == NUMBER && strspn(text, "0123456789") != strlen(text))) {
        return false;
    }
    return *out >= o->min && *out <= o->max;
}

static int set_option(struct cli *cli, const char *command, char **argv, int *i)
{
    const struct option *o = NULL;
    bool elsewhere = false;
    char *at;

    for (size_t k = 0; k < NOPTIONS && o == NULL; k++) {
        if (strcmp(argv[*i], options[k].name) != 0)
            continue;
        elsewhere = true;
        if (options[k].command == NULL ||
            (command != NULL && strcmp(command, options[k].command) == 0))
            o = &options[k];
    }
    if (o == NULL)
        return usage_error(elsewhere ? "not an option of this command:" : "unknown option",
                           argv[*i]);
    at = (char *)cli + o->offset;
    if (o->kind == FLAG) {
        *(bool *)(void *)at = true;
        return CLI_OK;
    }
    if (argv[*i + 1] == NULL)
        return usage_error(o->kind == TEXT ? o->want : "a number must follow", argv[*i]);
    (*i)++;
    if (o->kind == TEXT) {
        *(const char **)(void *)at = argv[*i];
        cli->socket_given = cli->socket_given || strcmp(o->name, "--socket") == 0;
    } else {
        uint64_t v;

        if (!parse_value(o, argv[*i], &v))
            return usage_error(o->want, argv[*i]);
        *(uint64_t *)(void *)at = v;
    }
    return CLI_OK;
}

/* ---- commands -------------------------------------------------------------------- */

static int run_ls(const struct cli *cli, const char *what)
{
    return cli_ls(cli, what != NULL ? what : "segments");
}

static int run_ping(const struct cli *cli, const char *what)
{
    return cli_ping(cli, what, cli->count != 0 ? (unsigned)cli->count : 1);
}

#define PLAIN(name)                                                                                \
    static int run_##name(const struct cli *cli, const char *what)                                 \
    {                                                                                              \
        (void)what;                                                                                \
        return cli_##name(cli);                                                                    \
    }
PLAIN(status)
PLAIN(top)
PLAIN(reload)
PLAIN(alloc_test)
PLAIN(version)

static int run_help(const struct cli *cli, const char *what)
{
    (void)cli;
    (void)what;
    return fputs(usage, stdout) < 0 ? CLI_FAILED : CLI_OK;
}

static int run_put(const struct cli *cli, const char *what)
{
    return cli_put(cli, what, cli->nargs > 1 ? cli->args[1] : "-");
}

static int run_get(const struct cli *cli, const char *what)
{
    return cli_get(cli, what, cli->nargs > 1 ? cli->args[1] : "-");
}

PLAIN(exist)
PLAIN(rm)
PLAIN(ls_objects)

static const struct command {
    const char *name;
    int (*run)(const struct cli *cli, const char *what);
    const char *needs; /* what its argument is, when it cannot do without */
    unsigned takes;    /* arguments at most */
} commands[] = {
    {"status", run_status, NULL, 0},
    {"top", run_top, NULL, 0},
    {"ls", run_ls, NULL, 1},
    {"trace", cli_trace, "a client (session, pid or name) must follow", 1},
    {"ping", run_ping, "an address HOST:PORT must follow", 1},
    {"alloc-test", run_alloc_test, NULL, 0},
    {"reload", run_reload, NULL, 0},
    {"put", run_put, "a key must follow", 2},
    {"get", run_get, "a key must follow", 2},
    {"exist", run_exist, "a key must follow", UINT_MAX},
    {"rm", run_rm, NULL, UINT_MAX},
    {"ls-objects", run_ls_objects, NULL, 0},
    {"stat", cli_stat, "a key must follow", 1},
    {"drain", cli_drain, "an address HOST:PORT must follow", 1},
    {"store", cli_store, "'top' must follow", 1},
    {"doctor", cli_doctor, NULL, 1},
    {"version", run_version, NULL, 0},
    {"help", run_help, NULL, 0},
};

static const struct command *find_command(const char *name)
{
    for (size_t k = 0; k < sizeof(commands) / sizeof(commands[0]); k++)
        if (strcmp(name, commands[k].name) == 0)
            return &commands[k];
    return NULL;
}

/* Does it begin an option? "-" alone is a file. */
static bool is_option(const char *word)
{
    return word[0] == '-' && word[1] != '\0';
}

static bool is_help(const char *word)
{
    return strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0;
}

/* The command, which options there are depends on it; NULL: none is named. */
static const char *command_word(int argc, char **argv)
{
    const char *name = NULL;

    for (int i = 1; i < argc && strcmp(argv[i], "--") != 0; i++) {
        if (is_help(argv[i]))
            return "help";
        if (strcmp(argv[i], "--socket") == 0)
            i++;
        else if (!is_option(argv[i]) && name == NULL)
            name = argv[i];
    }
    return name;
}

/* Options into *cli, the other words behind the command into cli->args, which has room. */
static int read_words(int argc, char **argv, const char *name, struct cli *cli)
{
    bool seen = false, options_end = false;
    int res = CLI_OK;

    for (int i = 1; i < argc && res == CLI_OK; i++) {
        if (!options_end && strcmp(argv[i], "--") == 0)
            options_end = true;
        else if (!options_end && is_option(argv[i]))
            res = set_option(cli, name, argv, &i);
        else if (!seen && argv[i] == name)
            seen = true;
        else
            cli->args[cli->nargs++] = argv[i];
    }
    return res;
}

static int run(const struct command *command, struct cli *cli)
{
    const char *what = cli->nargs != 0 ? cli->args[0] : NULL;
    int res;

    if (cli->nargs > command->takes)
        return usage_error("one argument too many:", cli->args[command->takes]);
    if (what == NULL && command->needs != NULL)
        return usage_error(command->needs, command->name);
    res = command->run(cli, what);
    if (res == CLI_NO_SUCH_LIST)
        return usage_error(strcmp(command->name, "doctor") == 0 ? "unknown area" : "unknown list",
                           what);
    if (fflush(stdout) != 0 && res == CLI_OK) {
        perror("mcshm: standard output");
        res = CLI_FAILED;
    }
    return res;
}

int main(int argc, char **argv)
{
    struct cli cli = {.socket = MCSHM_DEFAULT_SOCKET};
    const char *name = command_word(argc, argv);
    const struct command *command;
    int res;

    if (name != NULL && strcmp(name, "help") == 0)
        return run_help(&cli, NULL);
    cli.args = calloc((size_t)argc + 1, sizeof(*cli.args));
    if (cli.args == NULL) {
        fprintf(stderr, "mcshm: out of memory\n");
        return CLI_FAILED;
    }
    res = read_words(argc, argv, name, &cli);
    if (res != CLI_OK)
        goto out;
    if (name == NULL) {
        fputs(usage, stderr);
        res = CLI_USAGE;
        goto out;
    }
    command = find_command(name);
    res = command != NULL ? run(command, &cli) : usage_error("unknown command", name);
out:
    free(cli.args);
    return res;
}
