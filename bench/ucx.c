/* SPDX-License-Identifier: Apache-2.0 */
#include "ucx.h"

#include "clock.h"
#include "cleanup.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define RUN_MS 20000
#define LISTEN_MS 5000
#define OUTPUT_MAX 8192u
#define RUN_BYTES (UINT64_C(1) << 30)
#define MIB 1048576.0 /* its MB */

bool ucx_present(void)
{
    const char *path = getenv("PATH");
    char file[4096];

    while (path != NULL && *path != '\0') {
        size_t n = strcspn(path, ":");

        snprintf(file, sizeof(file), "%.*s/ucx_perftest", (int)n, path);
        if (access(file, X_OK) == 0)
            return true;
        path += n + (path[n] == ':');
    }
    return false;
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

/* A look that does not connect: the server would take it for its client. */
static bool listening(int port)
{
    static const char *const tables[] = {"/proc/net/tcp", "/proc/net/tcp6"};
    bool found = false;

    for (unsigned t = 0; t < 2 && !found; t++) {
        char line[512];
        FILE *f = fopen(tables[t], "re");

        while (f != NULL && fgets(line, sizeof(line), f) != NULL) {
            unsigned local, state;

            if (sscanf(line, " %*d: %*[0-9A-Fa-f]:%x %*[0-9A-Fa-f]:%*x %x", &local, &state) == 2 &&
                (int)local == port && state == 0x0a)
                found = true;
        }
        if (f != NULL)
            fclose(f);
    }
    return found;
}

static pid_t start(char *const argv[], const char *tls, int output)
{
    pid_t parent = getpid(), pid = fork();
    int null;

    if (pid != 0)
        return pid;
    cleanup_forget();
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    null = open("/dev/null", O_RDWR | O_CLOEXEC);
    if (getppid() != parent || null < 0)
        _exit(127);
    dup2(null, STDIN_FILENO);
    dup2(output >= 0 ? output : null, STDOUT_FILENO);
    dup2(null, STDERR_FILENO);
    setenv("UCX_TLS", tls, 1);
    execvp(argv[0], argv);
    _exit(127);
}

static void end(pid_t pid)
{
    if (pid <= 0)
        return;
    kill(pid, SIGKILL);
    while (waitpid(pid, NULL, 0) < 0 && errno == EINTR)
        ;
}

static size_t read_until_end(int fd, char *out, size_t size)
{
    uint64_t last = clock_ns() + UINT64_C(1000000) * RUN_MS;
    struct pollfd wait = {.fd = fd, .events = POLLIN};
    size_t used = 0;

    while (used < size - 1 && clock_ns() < last) {
        ssize_t n;

        if (poll(&wait, 1, 100) <= 0)
            continue;
        n = read(fd, out + used, size - 1 - used);
        if (n <= 0)
            break;
        used += (size_t)n;
    }
    out[used] = '\0';
    return used;
}

double ucx_bandwidth(const char *tls, const char *test, uint64_t size, int client_core,
                     int server_core)
{
    uint64_t count = RUN_BYTES / size;
    char port[16], bytes[32], times[32], warm[32], one[16], other[16], output[OUTPUT_MAX];
    char *server_argv[] = {"ucx_perftest", "-c", other, "-p", port, NULL};
    char *client_argv[] = {"ucx_perftest", "127.0.0.1", "-t", (char *)test, "-s", bytes,
                           "-n",           times,       "-w", warm,         "-c", one,
                           "-p",           port,        "-f", NULL};
    uint64_t last = clock_ns() + UINT64_C(1000000) * LISTEN_MS;
    int number = free_port(), pipes[2];
    double result = NAN;
    pid_t server, client;

    if (number < 0 || pipe2(pipes, O_CLOEXEC) != 0)
        return NAN;
    count = count > 20000 ? 20000 : count < 4 ? 4 : count;
    snprintf(port, sizeof(port), "%d", number);
    snprintf(bytes, sizeof(bytes), "%" PRIu64, size);
    snprintf(times, sizeof(times), "%" PRIu64, count);
    snprintf(warm, sizeof(warm), "%" PRIu64, count / 10 + 1);
    snprintf(one, sizeof(one), "%d", client_core);
    snprintf(other, sizeof(other), "%d", server_core);
    server = start(server_argv, tls, -1);
    while (server > 0 && !listening(number) && clock_ns() < last)
        poll(NULL, 0, 1);
    client = server > 0 ? start(client_argv, tls, pipes[1]) : -1;
    close(pipes[1]);
    if (client > 0 && read_until_end(pipes[0], output, sizeof(output)) > 0)
        result = ucx_parse(output);
    close(pipes[0]);
    end(client);
    end(server);
    return result;
}
