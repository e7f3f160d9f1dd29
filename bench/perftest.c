/* SPDX-License-Identifier: Apache-2.0 */
#include "perftest.h"

#include "child.h"
#include "say.h"

#include <inttypes.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

#define FIRST_PORT 18515u
#define SERVER_MS 20000
#define CLIENT_MS 120000
#define TABLE_MAX 8192u
#define MIB 1048576.0    /* its MB */
#define ACK_TIMEOUT "18" /* 4.096 us << 18: on an emulated machine shorter ones end now and then */

bool perftest_present(void)
{
    return child_present("ib_write_bw") && child_present("ib_read_bw") &&
           child_present("ib_write_lat");
}

/* The line after that of the headings. */
static const char *figures(const char *output)
{
    const char *line = output != NULL ? strstr(output, "#bytes") : NULL;

    line = line != NULL ? strchr(line, '\n') : NULL;
    return line != NULL ? line + 1 : "";
}

double perftest_parse_rate(const char *output)
{
    double size, count, peak, average;

    if (sscanf(figures(output), "%lf %lf %lf %lf", &size, &count, &peak, &average) != 4 ||
        average <= 0)
        return NAN;
    return average * MIB / 1e9;
}

double perftest_parse_latency(const char *output)
{
    double size, count, least, most, typical;

    if (sscanf(figures(output), "%lf %lf %lf %lf %lf", &size, &count, &least, &most, &typical) != 5)
        return NAN;
    return typical;
}

static int start(const struct perftest_run *r, bool server, unsigned port, struct child *out)
{
    const struct hosts_end *end = server ? r->to : r->from;
    char text[6][32];
    char *argv[24] = {(char *)r->program, "-F", "-u", ACK_TIMEOUT, "-d", (char *)end->device, "-x"};
    unsigned n = 7;
    struct child_options o = {.argv = argv, .output = true, .errors = true};

    snprintf(text[0], sizeof(text[0]), "%d", end->gid_index);
    snprintf(text[1], sizeof(text[1]), "%" PRIu64, r->size);
    snprintf(text[2], sizeof(text[2]), "%" PRIu64, r->count);
    snprintf(text[3], sizeof(text[3]), "%u", port);
    snprintf(text[4], sizeof(text[4]), "%u", r->depth);
    argv[n++] = text[0];
    argv[n++] = "-s";
    argv[n++] = text[1];
    argv[n++] = "-n";
    argv[n++] = text[2];
    argv[n++] = "-p";
    argv[n++] = text[3];
    if (r->depth > 0) {
        argv[n++] = "-t";
        argv[n++] = text[4];
    }
    if (!server)
        argv[n++] = (char *)r->to->address;
    argv[n] = NULL;
    return child_start(&o, out);
}

void perftest_measure(const struct perftest_run *runs, unsigned count, double *out)
{
    struct child servers[HOSTS_RAILS_MAX], clients[HOSTS_RAILS_MAX];
    char output[TABLE_MAX];

    for (unsigned i = 0; i < count; i++) {
        servers[i] = clients[i] = (struct child){.out = -1};
        if (start(&runs[i], true, FIRST_PORT + i, &servers[i]) == 0)
            child_await_port(&servers[i], (int)(FIRST_PORT + i), SERVER_MS);
    }
    for (unsigned i = 0; i < count; i++)
        if (start(&runs[i], false, FIRST_PORT + i, &clients[i]) != 0)
            clients[i] = (struct child){.out = -1};
    for (unsigned i = 0; i < count; i++) {
        size_t used = 0;

        output[0] = '\0';
        child_read(&clients[i], NULL, CLIENT_MS, output, sizeof(output), &used);
        child_end(&clients[i], SIGTERM, 1000, NULL);
        child_end(&servers[i], SIGTERM, 1000, NULL);
        out[i] = runs[i].depth > 0 ? perftest_parse_rate(output) : perftest_parse_latency(output);
        if (isnan(out[i])) {
            output[strcspn(output, "\n")] = '\0';
            say_note("%s gave no result: %s", runs[i].program, output);
        }
    }
}
