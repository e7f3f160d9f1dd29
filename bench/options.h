/* SPDX-License-Identifier: Apache-2.0 */
/* What the subcommands' command lines have in common. */
#ifndef BENCH_OPTIONS_H
#define BENCH_OPTIONS_H

#include <getopt.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct options_common {
    bool json;
    const char *socket; /* NULL: a private agent */
    const char *mcshmd; /* NULL: look for it */
};

/* Values above any character, for long options without a short one. */
enum { OPTION_JSON = 1000, OPTION_SOCKET, OPTION_MCSHMD, OPTION_OWN };

#define OPTIONS_COMMON_LONG                                                                        \
    {"json", no_argument, NULL, OPTION_JSON}, {"socket", required_argument, NULL, OPTION_SOCKET},  \
        {"mcshmd", required_argument, NULL, OPTION_MCSHMD},                                        \
    {                                                                                              \
        "help", no_argument, NULL, 'h'                                                             \
    }

#define OPTIONS_COMMON_HELP                                                                        \
    "  --json            one JSON document on stdout\n"                                            \
    "  --socket PATH     use the agent that listens there; default: start a private one\n"         \
    "  --mcshmd PATH     the agent's program; default: beside this one, else in PATH\n"            \
    "  --help\n"

/* True when the option was one of the common ones (--help is the caller's). */
bool options_take(int option, struct options_common *out);

/* After the last option: nothing may be left. 0, or -EINVAL after naming what is. */
int options_end(const char *command, int argc, char **argv);

/* 0, or -EINVAL after naming the option, the value and the range. */
int options_count(const char *name, const char *text, uint64_t min, uint64_t max, uint64_t *out);
int options_real(const char *name, const char *text, double min, double max, double *out);

/* Bytes with an optional suffix K, M or G. Returns where the number ended, NULL for none. */
const char *options_bytes(const char *text, uint64_t *out);

/* Adds "section.key=value" to the lines of an ini file. -EINVAL, said already. */
int options_setting(const char *text, char *lines, size_t size);

#endif
