/* SPDX-License-Identifier: Apache-2.0 */
#include "loop.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <sys/socket.h>

struct dialed {
    int calls, fd, error;
    char text[512];
};

static void done(void *context, int fd, int error, const char *text)
{
    struct dialed *d = context;

    d->calls++;
    d->fd = fd;
    d->error = error;
    snprintf(d->text, sizeof(d->text), "%s", text);
}

/* A listening socket on loopback, or a bound one that refuses; its address in text. */
static int server(bool listens, char *text, size_t size)
{
    struct sockaddr_in s = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t n = sizeof(s);
    int fd = socket(AF_INET, SOCK_STREAM, 0);

    cr_assert_eq(bind(fd, (struct sockaddr *)&s, sizeof(s)), 0);
    if (listens)
        cr_assert_eq(listen(fd, 8), 0);
    cr_assert_eq(getsockname(fd, (struct sockaddr *)&s, &n), 0);
    snprintf(text, size, "127.0.0.1:%u", ntohs(s.sin_port));
    return fd;
}

Test(dial, connects_from_the_address_it_was_given)
{
    struct mcd_agent *a = loop_init();
    struct sockaddr_in from;
    socklen_t n = sizeof(from);
    struct dialed d = {0};
    struct mcd_dial *dial;
    char text[64];
    int listener = server(true, text, sizeof(text)), one = 0;

    cr_assert_eq(mcd_dial(a, text, "127.0.0.1", 5000, done, &d, &dial), 0);
    cr_assert_eq(d.calls, 0, "not from inside");
    loop_until(a, d.calls == 1);
    cr_assert(d.fd >= 0, "%s", d.text);
    cr_assert_eq(getsockname(d.fd, (struct sockaddr *)&from, &n), 0);
    cr_assert_eq(from.sin_addr.s_addr, htonl(INADDR_LOOPBACK));
    n = sizeof(one);
    cr_assert_eq(getsockopt(d.fd, IPPROTO_TCP, TCP_NODELAY, &one, &n), 0);
    cr_assert_neq(one, 0);
    close(d.fd);
    close(listener);
    loop_fini(a);
}

Test(dial, resolves_names_in_another_thread)
{
    struct mcd_agent *a = loop_init();
    struct dialed d = {0};
    struct mcd_dial *dial;
    char text[64], name[80];
    int listener = server(true, text, sizeof(text));

    snprintf(name, sizeof(name), "localhost%s", strchr(text, ':'));
    cr_assert_eq(mcd_dial(a, name, NULL, 10000, done, &d, &dial), 0);
    loop_until(a, d.calls == 1);
    cr_assert(d.fd >= 0, "%s", d.text);
    close(d.fd);
    close(listener);
    loop_fini(a);
}

Test(dial, says_why_it_failed)
{
    struct mcd_agent *a = loop_init();
    struct dialed d = {0};
    struct mcd_dial *dial;
    char text[64];
    int bound = server(false, text, sizeof(text));

    cr_assert_eq(mcd_dial(a, text, NULL, 5000, done, &d, &dial), 0);
    loop_until(a, d.calls == 1);
    cr_assert_eq(d.fd, -1);
    cr_assert_eq(d.error, -ECONNREFUSED);
    cr_assert(strstr(d.text, text) != NULL && strstr(d.text, "refused") != NULL, "%s", d.text);
    close(bound);
    /* an address that is not this host's: a shortage here, no fault of the peer */
    cr_assert_eq(mcd_dial(a, "127.0.0.1:9", "192.0.2.77", 5000, done, &d, &dial), 0);
    loop_until(a, d.calls == 2);
    cr_assert_eq(d.error, -EADDRNOTAVAIL);
    cr_assert_eq(mcd_dial(a, "no port", NULL, 5000, done, &d, &dial), -EINVAL);
    cr_assert_eq(mcd_dial(a, "127.0.0.1:9", "no such interface", 5000, done, &d, &dial), -EINVAL);
    cr_assert_eq(d.calls, 2);
    loop_fini(a);
}

Test(dial, ends_at_its_limit)
{
    struct mcd_agent *a = loop_init();
    struct dialed d = {0};
    struct mcd_dial *dial;
    char text[64];
    int listener = server(true, text, sizeof(text)), fillers[64], n = 0;
    struct sockaddr_in s;
    socklen_t size = sizeof(s);

    /* a full backlog: connections are neither taken nor refused */
    cr_assert_eq(listen(listener, 0), 0);
    cr_assert_eq(getsockname(listener, (struct sockaddr *)&s, &size), 0);
    for (; n < 8; n++) {
        fillers[n] = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
        cr_assert(connect(fillers[n], (struct sockaddr *)&s, sizeof(s)) == 0 ||
                  errno == EINPROGRESS);
    }
    cr_assert_eq(mcd_dial(a, text, NULL, 100, done, &d, &dial), 0);
    loop_until(a, d.calls == 1);
    cr_assert_eq(d.error, -ETIMEDOUT, "%s", d.text);
    while (n > 0)
        close(fillers[--n]);
    close(listener);
    loop_fini(a);
}

Test(dial, one_that_was_given_up_is_never_heard_of)
{
    struct mcd_agent *a = loop_init();
    struct dialed d = {0}, other = {0};
    struct mcd_dial *dial;
    char text[64], name[80];
    int listener = server(true, text, sizeof(text));

    cr_assert_eq(mcd_dial(a, text, NULL, 5000, done, &d, &dial), 0);
    mcd_dial_cancel(dial);
    snprintf(name, sizeof(name), "localhost%s", strchr(text, ':'));
    cr_assert_eq(mcd_dial(a, name, NULL, 5000, done, &d, &dial), 0);
    mcd_dial_cancel(dial); /* while its name is being looked up */
    cr_assert_eq(mcd_dial(a, name, NULL, 10000, done, &other, &dial), 0);
    loop_until(a, other.calls == 1);
    cr_assert_eq(d.calls, 0);
    close(other.fd);
    close(listener);
    loop_fini(a);
}
