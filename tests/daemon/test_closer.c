/* SPDX-License-Identifier: Apache-2.0 */
/* Descriptors that take their time to be closed: sockets that linger, since their peer does not read. */
#include <criterion/criterion.h>

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "daemon/closer.h"

#define MANY 130 /* more than there are threads */
#define PATIENCE_MS 60000
#define LINGER_S 600
#define LITTLE 4096 /* bytes of a socket's buffer */

static int listener;

static void open_listener(void)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int little = LITTLE;

    listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    setsockopt(listener, SOL_SOCKET, SO_RCVBUF, &little, sizeof(little));
    cr_assert_eq(bind(listener, (struct sockaddr *)&a, sizeof(a)), 0, "%s", strerror(errno));
    cr_assert_eq(listen(listener, 8), 0);
}

static void close_listener(void)
{
    close(listener);
}

TestSuite(closer, .init = open_listener, .fini = close_listener);

/* A connection whose last close waits until `peer` is closed, or reads. */
static int lingering(int *peer)
{
    static const char bytes[65536];
    struct linger linger = {.l_onoff = 1, .l_linger = LINGER_S};
    struct sockaddr_in a;
    socklen_t n = sizeof(a);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), little = LITTLE;

    setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &little, sizeof(little));
    cr_assert_eq(getsockname(listener, (struct sockaddr *)&a, &n), 0);
    cr_assert_eq(connect(fd, (struct sockaddr *)&a, n), 0, "%s", strerror(errno));
    *peer = accept(listener, NULL, NULL);
    cr_assert_geq(*peer, 0, "%s", strerror(errno));
    while (send(fd, bytes, sizeof(bytes), MSG_DONTWAIT) > 0) {
        /* until both buffers are full */
    }
    cr_assert_eq(errno, EAGAIN);
    cr_assert_eq(setsockopt(fd, SOL_SOCKET, SO_LINGER, &linger, sizeof(linger)), 0);
    return fd;
}

Test(closer, one_users_slow_descriptors_hold_up_no_others)
{
    static int peers[MANY];
    struct pollfd hung;
    int ends[2];

    for (int i = 0; i < MANY; i++) {
        int fd = lingering(&peers[i]);

        mcd_closer_put(1, &fd, 1);
    }
    cr_assert(mcd_closer_choked(1));
    cr_assert(!mcd_closer_choked(2));
    for (int i = 0; i < 3; i++) {
        cr_assert_eq(pipe2(ends, O_CLOEXEC), 0);
        mcd_closer_put(2, &ends[1], 1);
        hung = (struct pollfd){.fd = ends[0]};
        cr_assert_eq(poll(&hung, 1, PATIENCE_MS), 1, "another user's descriptor is not closed");
        close(ends[0]);
    }
    for (int i = 0; i < MANY; i++)
        close(peers[i]);
    cr_assert(mcd_closer_drain(PATIENCE_MS), "not all is closed");
    cr_assert(!mcd_closer_choked(1));
}

Test(closer, a_nudge_ends_lingering)
{
    bool all = false;
    int peer, fd = lingering(&peer);

    mcd_closer_put(1, &fd, 1);
    cr_assert(!mcd_closer_drain(50), "it lingers");
    mcd_closer_nudge(PATIENCE_MS);
    cr_assert(!mcd_closer_drain(50), "it has not lingered for so long");
    /* a nudge that comes before the close has begun is lost */
    for (int i = 0; i < PATIENCE_MS / 100 && !all; i++) {
        mcd_closer_nudge(0);
        all = mcd_closer_drain(100);
    }
    cr_assert(all, "it still lingers");
    close(peer);
}

/* n descriptors of one pipe's end, so that its other end tells when the last is closed. */
static void many(int *fds, unsigned n, int *other)
{
    int ends[2];

    cr_assert_eq(pipe2(ends, O_CLOEXEC), 0);
    for (unsigned i = 0; i < n; i++)
        cr_assert_geq(fds[i] = dup(ends[1]), 0);
    close(ends[1]);
    *other = ends[0];
}

Test(closer, known_descriptors_count_for_nothing_and_those_of_one_large_request_for_half)
{
    int fds[200], peers[2], other;
    struct pollfd hung;

    many(fds, 200, &other);
    mcd_closer_put_known(1, fds, 200);
    cr_assert(!mcd_closer_choked(1));
    hung = (struct pollfd){.fd = other};
    cr_assert_eq(poll(&hung, 1, PATIENCE_MS), 1, "they are closed");
    close(other);
    for (unsigned i = 0; i < 2; i++) {
        many(fds, 199, &other);
        fds[199] = lingering(&peers[i]);
        mcd_closer_put_many(1, fds, 200);
        hung = (struct pollfd){.fd = other};
        cr_assert_eq(poll(&hung, 1, PATIENCE_MS), 1, "all before the one that hangs");
        close(other);
        cr_assert_eq(mcd_closer_choked(1), i == 1, "two such");
    }
    close(peers[0]);
    close(peers[1]);
    cr_assert(mcd_closer_drain(PATIENCE_MS), "not all is closed");
    cr_assert(!mcd_closer_choked(1));
}
