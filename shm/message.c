/* SPDX-License-Identifier: Apache-2.0 */
#include "message.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static const struct {
    size_t request, reply;
} sizes[MCS_MSG_COUNT] = {
    [MCS_MSG_HELLO] = {sizeof(struct mcs_msg_hello), sizeof(struct mcs_msg_hello_reply)},
    [MCS_MSG_QUEUE_OPEN] = {sizeof(struct mcs_msg_queue_open),
                            sizeof(struct mcs_msg_queue_open_reply)},
    [MCS_MSG_QUEUE_CLOSE] = {sizeof(struct mcs_msg_queue_close), 0},
    [MCS_MSG_ALLOC] = {sizeof(struct mcs_msg_alloc), sizeof(struct mcs_msg_extent_reply)},
    [MCS_MSG_FREE] = {sizeof(struct mcs_msg_free), sizeof(struct mcs_msg_free_reply)},
    [MCS_MSG_REGISTER] = {sizeof(struct mcs_msg_register), sizeof(struct mcs_msg_extent_reply)},
    [MCS_MSG_UNREGISTER] = {sizeof(struct mcs_msg_unregister), 0},
    [MCS_MSG_PUBLISH] = {sizeof(struct mcs_msg_publish), sizeof(struct mcs_msg_publish_reply)},
    [MCS_MSG_WITHDRAW] = {0, 0},
    [MCS_MSG_BUFFER_ADD] = {sizeof(struct mcs_msg_buffer), sizeof(struct mcs_msg_buffer_reply)},
    [MCS_MSG_BUFFER_REMOVE] = {sizeof(struct mcs_msg_buffer), sizeof(struct mcs_msg_buffer_reply)},
    [MCS_MSG_REVOKE] = {sizeof(struct mcs_msg_buffer), sizeof(struct mcs_msg_buffer_reply)},
    [MCS_MSG_SEGMENT_OPEN] = {sizeof(struct mcs_msg_segment_open),
                              sizeof(struct mcs_msg_segment_open_reply)},
    [MCS_MSG_SEGMENT_CLOSE] = {sizeof(struct mcs_msg_segment_close), 0},
    [MCS_MSG_DESCRIBE] = {sizeof(struct mcs_msg_describe),
                          offsetof(struct mcs_msg_describe_reply, buffers)},
    [MCS_MSG_MAP] = {sizeof(struct mcs_msg_map), sizeof(struct mcs_msg_map_reply)},
    [MCS_MSG_UNMAP] = {sizeof(struct mcs_msg_unmap), 0},
    [MCS_MSG_QUERY] = {sizeof(struct mcs_msg_query), sizeof(struct mcs_msg_query_reply)},
    [MCS_MSG_PING] = {sizeof(struct mcs_msg_ping), sizeof(struct mcs_msg_ping_reply)},
    [MCS_MSG_RESTORE] = {sizeof(struct mcs_msg_restore), sizeof(struct mcs_msg_hello_reply)},
    [MCS_MSG_EXTENT_BACK] = {sizeof(struct mcs_msg_extent_back),
                             sizeof(struct mcs_msg_extent_back_reply)},
    [MCS_MSG_ALLOCS_BACK] = {sizeof(struct mcs_msg_allocs_back), 0},
    [MCS_MSG_QUEUE_BACK] = {sizeof(struct mcs_msg_queue_back),
                            sizeof(struct mcs_msg_queue_open_reply)},
    [MCS_MSG_OPEN_BACK] = {sizeof(struct mcs_msg_open_back),
                           sizeof(struct mcs_msg_segment_open_reply)},
    [MCS_MSG_RESUME] = {0, 0},
    [MCS_MSG_RELOAD] = {0, sizeof(struct mcs_msg_query_reply)},
    [MCS_MSG_TRACE] = {sizeof(struct mcs_msg_trace), sizeof(struct mcs_msg_query_reply)},
    [MCS_MSG_OBJECT_MAP] = {sizeof(struct mcs_msg_object_map),
                            sizeof(struct mcs_msg_object_map_reply)},
    [MCS_MSG_OBJECT_UNMAP] = {sizeof(struct mcs_msg_object_unmap), 0},
    [MCS_MSG_GPU_ALLOC] = {sizeof(struct mcs_msg_gpu_alloc), sizeof(struct mcs_msg_extent_reply)},
    [MCS_MSG_GPU_IMPORT] = {sizeof(struct mcs_msg_gpu_import), sizeof(struct mcs_msg_extent_reply)},
    [MCS_MSG_OBJECTS] = {sizeof(struct mcs_msg_objects), sizeof(struct mcs_msg_query_reply)},
};

size_t mcs_msg_request_size(uint16_t type)
{
    return type == 0 || type >= MCS_MSG_COUNT ? SIZE_MAX : sizes[type].request;
}

size_t mcs_msg_reply_size(uint16_t type)
{
    return type == 0 || type >= MCS_MSG_COUNT ? SIZE_MAX : sizes[type].reply;
}

union fd_space {
    char bytes[CMSG_SPACE(sizeof(int) * MCS_MSG_FDS_MAX)];
    struct cmsghdr align;
};

union all_fds_space {
    char bytes[CMSG_SPACE(sizeof(int) * MCS_MSG_FDS_ALL)];
    struct cmsghdr align;
};

int mcs_msg_send(int sock, struct mcs_msg *m, size_t body_size, const int *fds, unsigned nfds)
{
    struct iovec iov = {.iov_base = m, .iov_len = sizeof(m->h) + body_size};
    struct msghdr mh = {.msg_iov = &iov, .msg_iovlen = 1};
    union fd_space space;

    if (nfds > MCS_MSG_FDS_MAX || iov.iov_len > sizeof(*m))
        return -EINVAL;
    m->h.magic = MCS_MSG_MAGIC;
    m->h.version = MCS_MSG_VERSION;
    m->h.length = (uint32_t)iov.iov_len;
    m->h.zero = 0;
    if (nfds != 0) {
        struct cmsghdr *c;

        memset(&space, 0, sizeof(space));
        mh.msg_control = space.bytes;
        mh.msg_controllen = CMSG_SPACE(sizeof(int) * nfds);
        c = CMSG_FIRSTHDR(&mh);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(sizeof(int) * nfds);
        memcpy(CMSG_DATA(c), fds, sizeof(int) * nfds);
    }
    while (sendmsg(sock, &mh, MSG_NOSIGNAL) < 0) {
        if (errno != EINTR)
            return -errno;
    }
    return 0;
}

/* Takes the descriptors out of a received message. */
static void take_fds(struct msghdr *mh, int *fds, unsigned max, unsigned *nfds)
{
    for (struct cmsghdr *c = CMSG_FIRSTHDR(mh); c != NULL; c = CMSG_NXTHDR(mh, c)) {
        size_t n;

        if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
            continue;
        n = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (size_t i = 0; i < n; i++) {
            int fd;

            memcpy(&fd, CMSG_DATA(c) + i * sizeof(int), sizeof(fd));
            if (*nfds < max)
                fds[(*nfds)++] = fd;
            else
                close(fd); /* there was no room for it: the kernel gives no more than that */
        }
    }
}

int mcs_msg_recv_all(int sock, struct mcs_msg *m, int *fds, unsigned max, unsigned *nfds)
{
    struct iovec iov = {.iov_base = m, .iov_len = sizeof(*m)};
    union all_fds_space space;
    struct msghdr mh = {.msg_iov = &iov, .msg_iovlen = 1};
    ssize_t n;
    int res = 0;

    *nfds = 0;
    if (max > MCS_MSG_FDS_ALL)
        max = MCS_MSG_FDS_ALL;
    if (max != 0) {
        mh.msg_control = space.bytes;
        mh.msg_controllen = CMSG_SPACE(sizeof(int) * max);
    }
    n = recvmsg(sock, &mh, MSG_CMSG_CLOEXEC);
    if (n < 0)
        return errno == ECONNRESET ? -EPIPE : -errno;
    take_fds(&mh, fds, max, nfds);
    if (n == 0)
        res = -EPIPE;
    if (res == 0 && ((mh.msg_flags & MSG_TRUNC) != 0 || (size_t)n < sizeof(m->h) ||
                     m->h.magic != MCS_MSG_MAGIC))
        res = -EPROTO;
    if (res == 0 && m->h.version != MCS_MSG_VERSION)
        res = -EPROTONOSUPPORT;
    if (res == 0 && (m->h.length != (size_t)n || m->h.zero != 0 || *nfds > MCS_MSG_FDS_MAX))
        res = -EPROTO;
    /* cut off before there were too many: this process had no number left for them */
    if (res == 0 && (mh.msg_flags & MSG_CTRUNC) != 0)
        res = *nfds < MCS_MSG_FDS_MAX ? -EMFILE : -EPROTO;
    return res;
}

int mcs_msg_peek(int sock, struct mcs_msg_header *h, bool *carries)
{
    struct iovec iov = {.iov_base = h, .iov_len = sizeof(*h)};
    struct msghdr mh = {.msg_iov = &iov, .msg_iovlen = 1};

    memset(h, 0, sizeof(*h));
    if (recvmsg(sock, &mh, MSG_PEEK) < 0)
        return -errno;
    *carries = (mh.msg_flags & MSG_CTRUNC) != 0; /* there was no room for any */
    return 0;
}

int mcs_msg_recv(int sock, struct mcs_msg *m, int *fds, unsigned *nfds)
{
    int res = mcs_msg_recv_all(sock, m, fds, MCS_MSG_FDS_MAX, nfds);

    if (res != 0) {
        for (unsigned i = 0; i < *nfds; i++)
            close(fds[i]);
        *nfds = 0;
    }
    return res;
}
