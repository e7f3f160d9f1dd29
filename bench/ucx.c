/* SPDX-License-Identifier: Apache-2.0 */
#include "ucx.h"

#include "child.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define RUN_MS 20000
#define LISTEN_MS 5000
#define OUTPUT_MAX 8192u
#define HOST_PORT 13337 /* in a namespace of ours nobody else has it */
#define RUN_BYTES (UINT64_C(1) << 30)
#define MIB 1048576.0 /* its MB */

bool ucx_present(void)
{
    return child_present("ucx_perftest");
}

double ucx_parse(const char *output)
{
    double found = NAN;

    /* iterations, percentile, average, overall, then the average bandwidth */
    while (output != NULL && *output != '\0') {
        double iterations, percentile, average, overall, bandwidth;

        if (sscanf(output, "%lf %lf %lf %lf %lf", &iterations, &percentile, &average, &overall,
                   &bandwidth) == 5)
            found = bandwidth * MIB / 1e9;
        output = strchr(output, '\n');
        if (output != NULL)
            output++;
    }
    return found;
}

static int free_port(void)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof(address);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    int port = -1;

    if (fd < 0)
        return -1;
    if (bind(fd, (struct sockaddr *)&address, size) == 0 &&
        getsockname(fd, (struct sockaddr *)&address, &size) == 0)
        port = ntohs(address.sin_port);
    close(fd);
    return port;
}

double ucx_bandwidth(const struct ucx_place *place, const char *tls, const char *test,
                     uint64_t size)
{
    uint64_t count = (place->volume > 0 ? place->volume : RUN_BYTES) / size;
    char port[16], bytes[32], times[32], warm[32], one[16], other[16], kinds[64], device[64];
    char output[OUTPUT_MAX] = "";
    const char *sets[] = {kinds, device, NULL};
    char *server_argv[] = {"ucx_perftest", "-c", other, "-p", port, NULL};
    char *client_argv[] = {"ucx_perftest", (char *)place->address,
                           "-t",           (char *)test,
                           "-s",           bytes,
                           "-n",           times,
                           "-w",           warm,
                           "-c",           one,
                           "-p",           port,
                           "-f",           NULL};
    struct child_options so = {.argv = server_argv, .sets = sets, .netns = place->server_netns};
    struct child_options co = {
        .argv = client_argv, .sets = sets, .netns = place->client_netns, .output = true};
    int number = place->device != NULL ? HOST_PORT : free_port();
    struct child server, client;
    size_t used = 0;

    if (number < 0)
        return NAN;
    count = count > 20000 ? 20000 : count < 4 ? 4 : count;
    snprintf(port, sizeof(port), "%d", number);
    snprintf(bytes, sizeof(bytes), "%" PRIu64, size);
    snprintf(times, sizeof(times), "%" PRIu64, count);
    snprintf(warm, sizeof(warm), "%" PRIu64, count / 10 + 1);
    snprintf(one, sizeof(one), "%d", place->client_core);
    snprintf(other, sizeof(other), "%d", place->server_core);
    snprintf(kinds, sizeof(kinds), "UCX_TLS=%s", tls);
    snprintf(device, sizeof(device), "UCX_NET_DEVICES=%s",
             place->device != NULL ? place->device : "all");
    if (child_start(&so, &server) != 0)
        return NAN;
    child_await_port(&server, number, LISTEN_MS);
    if (child_start(&co, &client) == 0) {
        child_read(&client, NULL, RUN_MS, output, sizeof(output), &used);
        child_end(&client, SIGKILL, 0, NULL);
    }
    child_end(&server, SIGKILL, 0, NULL);
    return ucx_parse(output);
}
