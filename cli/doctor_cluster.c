/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "doctor.h"

#define TRY_MS 2000 /* of one endpoint, its name's resolution included */

/* "http://host:port/path" or "host:port" */
static bool take_apart(const char *url, char *host, size_t host_size, char *port, size_t port_size)
{
    const char *at = strstr(url, "://"), *end, *colon;
    bool tls = strncmp(url, "https", 5) == 0;

    at = at != NULL ? at + 3 : url;
    end = at + strcspn(at, "/");
    if (*at == '[') {
        const char *close = memchr(at, ']', (size_t)(end - at));

        if (close == NULL)
            return false;
        snprintf(host, host_size, "%.*s", (int)(close - at - 1), at + 1);
        colon = close[1] == ':' ? close + 1 : NULL;
    } else {
        colon = memchr(at, ':', (size_t)(end - at));
        snprintf(host, host_size, "%.*s", (int)((colon != NULL ? colon : end) - at), at);
    }
    if (colon != NULL)
        snprintf(port, port_size, "%.*s", (int)(end - colon - 1), colon + 1);
    else
        snprintf(port, port_size, "%s", tls ? "443" : "80");
    return host[0] != '\0' && port[0] != '\0';
}

/* In a process of its own: resolvers cannot be interrupted. Writes one sentence. */
static void try_it(const char *host, const char *port, int out)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *found = NULL;
    const char *why = "no address";
    int res = getaddrinfo(host, port, &hints, &found);

    if (res != 0) {
        why = gai_strerror(res);
    } else {
        for (const struct addrinfo *a = found; a != NULL; a = a->ai_next) {
            int fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);

            if (fd >= 0 && connect(fd, a->ai_addr, a->ai_addrlen) == 0) {
                why = "+";
                break;
            }
            why = strerror(errno);
            if (fd >= 0)
                close(fd);
        }
    }
    if (write(out, why, strlen(why)) < 0)
        _exit(1);
    _exit(0);
}

/* 0 and "" when it can be reached, else the reason. */
static void reach(const char *host, const char *port, char *why, size_t size)
{
    struct pollfd p = {.events = POLLIN};
    int ends[2];
    ssize_t n = 0;
    pid_t pid;

    snprintf(why, size, "no answer in %d ms", TRY_MS);
    if (pipe(ends) != 0)
        return;
    pid = fork();
    if (pid == 0)
        try_it(host, port, ends[1]);
    close(ends[1]);
    p.fd = ends[0];
    if (pid > 0 && poll(&p, 1, TRY_MS) == 1)
        n = read(ends[0], why, size - 1);
    if (n > 0)
        why[n] = '\0';
    close(ends[0]);
    if (pid > 0) {
        kill(pid, SIGKILL);
        waitpid(pid, NULL, 0);
    }
    if (strcmp(why, "+") == 0)
        why[0] = '\0';
}

void doctor_check_metadata(struct doctor *d)
{
    const char *backend = doctor_setting(d, "meta.backend");
    char list[256], *rest = list, *url;
    unsigned reached = 0, all = 0;

    if (strcmp(backend, "etcd") != 0 && strcmp(backend, "http") != 0) {
        doctor_say(d, DOCTOR_OK, NULL, "[meta] backend = %s needs no service",
                   backend[0] != '\0' ? backend : "memory");
        return;
    }
    snprintf(list, sizeof(list), "%s", doctor_setting(d, "meta.endpoints"));
    while ((url = strsep(&rest, ", ")) != NULL) {
        char host[200], port[32], why[200];

        if (url[0] == '\0')
            continue;
        all++;
        if (!take_apart(url, host, sizeof(host), port, sizeof(port))) {
            doctor_say(d, DOCTOR_WARN, "want http://host:port", "%s is no endpoint", url);
            continue;
        }
        reach(host, port, why, sizeof(why));
        reached += why[0] == '\0';
        if (why[0] == '\0')
            doctor_say(d, DOCTOR_OK, NULL, "%s (%s) can be reached", url, backend);
        else
            doctor_say(d, DOCTOR_WARN,
                       "start it, look at firewalls and names, or correct [meta] endpoints",
                       "%s (%s): %s", url, backend, why);
    }
    if (reached == 0)
        doctor_say(d, DOCTOR_BAD,
                   "segments of other hosts can be found by HOST:PORT/NAME alone until one is back",
                   "none of %u endpoints of the metadata service can be reached: nothing new is "
                   "found in the "
                   "cluster, running transfers go on",
                   all);
}
