/* SPDX-License-Identifier: Apache-2.0 */
#include "iperf.h"

#include "child.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>

#define LISTEN_MS 5000
#define EXTRA_MS 15000
#define OUTPUT_MAX 262144u

bool iperf_present(void)
{
    return child_present("iperf3");
}

int iperf_parse(const char *text, double *rate, double *bytes)
{
    cJSON *doc = cJSON_Parse(text);
    const cJSON *end = cJSON_GetObjectItemCaseSensitive(doc, "end");
    const cJSON *sum = cJSON_GetObjectItemCaseSensitive(end, "sum_received");
    const cJSON *bits = cJSON_GetObjectItemCaseSensitive(sum, "bits_per_second");
    const cJSON *count = cJSON_GetObjectItemCaseSensitive(sum, "bytes");
    int rc = -EINVAL;

    if (cJSON_IsNumber(bits) && cJSON_IsNumber(count) && count->valuedouble > 0) {
        *rate = bits->valuedouble / 8;
        *bytes = count->valuedouble;
        rc = 0;
    }
    cJSON_Delete(doc);
    return rc;
}

void iperf_run(const struct hosts *h, unsigned seconds, struct iperf *out)
{
    static char output[OUTPUT_MAX];
    char time[32], first[1024] = "";
    char *server_argv[] = {"iperf3",       "-s", "-1", "-B", (char *)h->end[1][0].address,
                           "--forceflush", NULL};
    char *client_argv[] = {"iperf3", "-c", (char *)h->end[1][0].address, "-l", "1M", "-t", time,
                           "-J",     NULL};
    struct child_options so = {.argv = server_argv, .netns = h->netns[1], .output = true};
    struct child_options co = {.argv = client_argv, .netns = h->netns[0], .output = true};
    struct child server, client;
    double rate, bytes, here = 0, there = 0;
    size_t used = 0;

    out->gbps = out->cpu_s_per_gb = NAN;
    snprintf(time, sizeof(time), "%u", seconds);
    if (child_start(&so, &server) != 0)
        return;
    child_read(&server, "listening", LISTEN_MS, first, sizeof(first), &used);
    used = 0;
    output[0] = '\0';
    if (child_start(&co, &client) == 0) {
        child_read(&client, NULL, (int)seconds * 1000 + EXTRA_MS, output, sizeof(output), &used);
        child_end(&client, 0, EXTRA_MS, &here);
    }
    child_end(&server, 0, 2000, &there);
    if (iperf_parse(output, &rate, &bytes) != 0)
        return;
    out->gbps = rate / 1e9;
    out->cpu_s_per_gb = (here + there) / (bytes / 1e9);
}
