/* SPDX-License-Identifier: Apache-2.0 */
/* Control messages over a socket pair: what is well formed arrives, all else is refused, and no
 * descriptor stays behind. */
#include <criterion/criterion.h>

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "shm/message.h"

static int ends[2]; /* sender, receiver */

static void open_pair(void)
{
    cr_assert_eq(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends), 0);
}

static void close_pair(void)
{
    close(ends[0]);
    close(ends[1]);
}

TestSuite(message, .init = open_pair, .fini = close_pair);

static unsigned open_fds(void)
{
    DIR *d = opendir("/proc/self/fd");
    unsigned n = 0;

    cr_assert_not_null(d);
    while (readdir(d) != NULL)
        n++;
    closedir(d);
    return n;
}

/* Sends raw bytes with nfds copies of a descriptor, in `parts` control messages. */
static void send_raw(const void *bytes, size_t size, unsigned nfds, unsigned parts)
{
    static union {
        char bytes[4096];
        struct cmsghdr align;
    } space;
    struct iovec iov = {.iov_base = (void *)(uintptr_t)bytes, .iov_len = size};
    struct msghdr mh = {.msg_iov = &iov, .msg_iovlen = 1};

    if (nfds != 0) {
        struct cmsghdr *c;

        memset(&space, 0, sizeof(space));
        mh.msg_control = space.bytes;
        mh.msg_controllen = parts * CMSG_SPACE(nfds * sizeof(int));
        c = CMSG_FIRSTHDR(&mh);
        for (unsigned p = 0; p < parts; p++, c = CMSG_NXTHDR(&mh, c)) {
            c->cmsg_level = SOL_SOCKET;
            c->cmsg_type = SCM_RIGHTS;
            c->cmsg_len = CMSG_LEN(nfds * sizeof(int));
            for (unsigned i = 0; i < nfds; i++)
                memcpy(CMSG_DATA(c) + i * sizeof(int), &ends[0], sizeof(int));
        }
    }
    cr_assert_eq(sendmsg(ends[0], &mh, MSG_NOSIGNAL), (ssize_t)size, "%s", strerror(errno));
}

static struct mcs_msg hello(size_t *size)
{
    struct mcs_msg m = {.h = {.type = MCS_MSG_HELLO, .id = 77}};

    m.b.hello.abi_version = MCS_ABI_VERSION;
    strcpy(m.b.hello.name, "somebody");
    *size = sizeof(m.h) + sizeof(m.b.hello);
    m.h.magic = MCS_MSG_MAGIC;
    m.h.version = MCS_MSG_VERSION;
    m.h.length = (uint32_t)*size;
    return m;
}

/* Receives; on an error nothing may have been left open. */
static int receive(struct mcs_msg *m, int *fds, unsigned *nfds)
{
    unsigned before = open_fds();
    int res;

    memset(m, 0xee, sizeof(*m));
    *nfds = 99;
    res = mcs_msg_recv(ends[1], m, fds, nfds);
    if (res != 0)
        cr_assert_eq(open_fds(), before, "descriptors were left open after %d", res);
    return res;
}

static int refuse(const void *bytes, size_t size, unsigned nfds, unsigned parts)
{
    int fds[MCS_MSG_FDS_MAX];
    struct mcs_msg m;
    unsigned n;

    send_raw(bytes, size, nfds, parts);
    return receive(&m, fds, &n);
}

Test(message, arrives_with_its_descriptors)
{
    int send[MCS_MSG_FDS_MAX] = {ends[0], ends[1]}, fds[MCS_MSG_FDS_MAX];
    struct mcs_msg m, got;
    struct stat a, b;
    unsigned n;
    size_t size;

    m = hello(&size);
    memset(&m.h, 0, sizeof(m.h));
    m.h.type = MCS_MSG_HELLO;
    m.h.id = 77;
    cr_assert_eq(mcs_msg_send(ends[0], &m, sizeof(m.b.hello), send, MCS_MSG_FDS_MAX), 0);
    cr_assert_eq(receive(&got, fds, &n), 0);
    cr_assert_eq(n, MCS_MSG_FDS_MAX);
    cr_assert_arr_eq(&got, &m, size);
    cr_assert_eq(got.h.length, size);
    for (unsigned i = 0; i < n; i++) {
        cr_assert_eq(fstat(send[i], &a), 0);
        cr_assert_eq(fstat(fds[i], &b), 0);
        cr_assert_eq(a.st_ino, b.st_ino);
        cr_assert_neq(fcntl(fds[i], F_GETFD) & FD_CLOEXEC, 0);
        close(fds[i]);
    }
}

Test(message, without_descriptors_brings_none)
{
    int fds[MCS_MSG_FDS_MAX];
    struct mcs_msg m = {.h = {.type = MCS_MSG_WITHDRAW}};
    unsigned n;

    cr_assert_eq(mcs_msg_send(ends[0], &m, 0, NULL, 0), 0);
    cr_assert_eq(receive(&m, fds, &n), 0);
    cr_assert_eq(n, 0);
    cr_assert_eq(m.h.length, sizeof(m.h));
}

Test(message, every_truncation_is_refused)
{
    size_t size;
    struct mcs_msg m = hello(&size);

    for (size_t n = 1; n < size; n++)
        cr_assert_eq(refuse(&m, n, (unsigned)n % 3, 1), -EPROTO, "%zu bytes of %zu", n, size);
}

Test(message, longer_than_it_says_is_refused)
{
    uint8_t raw[2 * MCS_MSG_MAX] = {0};
    size_t size;
    struct mcs_msg m = hello(&size);

    memcpy(raw, &m, sizeof(m));
    cr_assert_eq(refuse(raw, size + 1, 0, 0), -EPROTO);
    cr_assert_eq(refuse(raw, sizeof(m), 1, 1), -EPROTO);
    cr_assert_eq(refuse(raw, sizeof(m) + 1, 2, 1), -EPROTO);
    cr_assert_eq(refuse(raw, sizeof(raw), 2, 1), -EPROTO);
}

Test(message, a_wrong_header_is_refused)
{
    size_t size;
    const struct mcs_msg good = hello(&size);
    struct mcs_msg m;

    m = good;
    m.h.magic ^= 1;
    cr_assert_eq(refuse(&m, size, 2, 1), -EPROTO);
    m = good;
    m.h.version++;
    cr_assert_eq(refuse(&m, size, 2, 1), -EPROTONOSUPPORT);
    m = good;
    m.h.version = 0;
    cr_assert_eq(refuse(&m, size, 0, 0), -EPROTONOSUPPORT);
    m = good;
    m.h.zero = 1;
    cr_assert_eq(refuse(&m, size, 1, 1), -EPROTO);
    for (unsigned bit = 0; bit < 32; bit++) {
        m = good;
        m.h.length ^= 1u << bit;
        cr_assert_eq(refuse(&m, size, 1, 1), -EPROTO);
    }
}

Test(message, another_version_still_fills_the_header)
{
    int fds[MCS_MSG_FDS_MAX];
    size_t size;
    struct mcs_msg m = hello(&size), got;
    unsigned n;

    m.h.version = 9;
    send_raw(&m, size, 0, 0);
    cr_assert_eq(receive(&got, fds, &n), -EPROTONOSUPPORT);
    cr_assert_eq(got.h.version, 9);
    cr_assert_eq(got.h.type, MCS_MSG_HELLO);
    cr_assert_eq(got.h.id, 77);
}

Test(message, a_flood_of_descriptors_is_closed)
{
    size_t size;
    struct mcs_msg m = hello(&size);

    for (unsigned n = MCS_MSG_FDS_MAX + 1; n < 64; n++)
        cr_assert_eq(refuse(&m, size, n, 1), -EPROTO, "%u descriptors", n);
    cr_assert_eq(refuse(&m, size, 253, 1), -EPROTO);
    cr_assert_eq(refuse(&m, size, 2, 8), -EPROTO);
}

Test(message, a_packet_of_no_bytes_with_descriptors_leaves_none)
{
    cr_assert_eq(refuse("", 0, 2, 1), -EPIPE);
}

Test(message, a_closed_end_and_an_empty_socket_are_told_apart)
{
    int fds[MCS_MSG_FDS_MAX];
    struct mcs_msg m = {.h = {.type = MCS_MSG_WITHDRAW}};
    unsigned n;

    cr_assert_eq(receive(&m, fds, &n), -EAGAIN);
    close(ends[0]);
    cr_assert_eq(receive(&m, fds, &n), -EPIPE);
    cr_assert_eq(mcs_msg_send(ends[1], &m, 0, NULL, 0), -EPIPE, "and no signal");
    ends[0] = -1;
}

Test(message, a_full_socket_says_so)
{
    struct mcs_msg m = {.h = {.type = MCS_MSG_WITHDRAW}};
    int res;

    while ((res = mcs_msg_send(ends[0], &m, 0, NULL, 0)) == 0) {
    }
    cr_assert_eq(res, -EAGAIN);
}

Test(message, too_much_to_send_is_refused)
{
    int fds[MCS_MSG_FDS_MAX + 1] = {ends[0], ends[0], ends[0]};
    struct mcs_msg m = {.h = {.type = MCS_MSG_WITHDRAW}};

    cr_assert_eq(mcs_msg_send(ends[0], &m, sizeof(m.b) + 1, NULL, 0), -EINVAL);
    cr_assert_eq(mcs_msg_send(ends[0], &m, 0, fds, MCS_MSG_FDS_MAX + 1), -EINVAL);
}

Test(types, each_has_its_sizes_and_no_other_has_any)
{
    cr_assert_eq(mcs_msg_request_size(0), SIZE_MAX);
    cr_assert_eq(mcs_msg_request_size(MCS_MSG_COUNT), SIZE_MAX);
    cr_assert_eq(mcs_msg_request_size(UINT16_MAX), SIZE_MAX);
    cr_assert_eq(mcs_msg_reply_size(0), SIZE_MAX);
    cr_assert_eq(mcs_msg_reply_size(MCS_MSG_COUNT), SIZE_MAX);
    for (uint16_t type = 1; type < MCS_MSG_COUNT; type++) {
        cr_assert_leq(mcs_msg_request_size(type), sizeof(union mcs_msg_body), "type %u", type);
        cr_assert_leq(mcs_msg_reply_size(type), sizeof(union mcs_msg_body), "type %u", type);
        cr_assert_eq(mcs_msg_request_size(type) == 0,
                     type == MCS_MSG_WITHDRAW || type == MCS_MSG_RESUME || type == MCS_MSG_RELOAD,
                     "type %u", type);
    }
    cr_assert_eq(mcs_msg_request_size(MCS_MSG_HELLO), sizeof(struct mcs_msg_hello));
    cr_assert_eq(mcs_msg_reply_size(MCS_MSG_DESCRIBE), 16);
}

Test(message, a_look_tells_of_descriptors_and_takes_nothing)
{
    struct mcs_msg_header h;
    size_t size;
    struct mcs_msg m = hello(&size), got;
    unsigned before, nfds;
    bool carries;
    int fds[MCS_MSG_FDS_MAX];

    cr_assert_eq(mcs_msg_peek(ends[1], &h, &carries), -EAGAIN);
    for (unsigned n = 0; n <= 1; n++) {
        send_raw(&m, size, n, 1);
        before = open_fds();
        for (int i = 0; i < 2; i++) {
            cr_assert_eq(mcs_msg_peek(ends[1], &h, &carries), 0);
            cr_assert_eq(carries, n != 0);
            cr_assert_eq(h.id, 77);
        }
        cr_assert_eq(open_fds(), before);
        cr_assert_eq(mcs_msg_recv(ends[1], &got, fds, &nfds), 0);
        cr_assert_eq(nfds, n);
        if (n != 0)
            close(fds[0]);
    }
    /* a message without a byte can have descriptors, too; a short one leaves the rest of the head 0 */
    send_raw("", 0, 1, 1);
    cr_assert_eq(mcs_msg_peek(ends[1], &h, &carries), 0);
    cr_assert(carries);
    cr_assert_eq(mcs_msg_recv(ends[1], &got, fds, &nfds), -EPIPE);
    send_raw("abc", 3, 0, 1);
    cr_assert_eq(mcs_msg_peek(ends[1], &h, &carries), 0);
    cr_assert(!carries);
    cr_assert_eq(h.id, 0);
}
