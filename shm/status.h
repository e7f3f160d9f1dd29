/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The status codes of mcshm: the one list behind mcshm.h's public enum, the
 * error field of completion slots and the status field of control messages.
 *
 * X(NAME, value, "text").  Values are ABI: append, never renumber.
 */
#ifndef MCS_STATUS_H
#define MCS_STATUS_H

#define MCS_STATUS_LIST(X)                                                                         \
    X(OK, 0, "success")                                                                            \
    X(INVALID_ARGUMENT, 1, "invalid argument")                                                     \
    X(INVALID_HANDLE, 2, "handle is unknown, closed, or of another session")                       \
    X(BAD_RANGE, 3, "range lies outside one buffer or extent")                                     \
    X(ACCESS, 4, "access right is missing")                                                        \
    X(NOT_REGISTERED, 5, "address is not in registered memory")                                    \
    X(NO_MEMORY, 6, "memory or the pool is exhausted")                                             \
    X(NO_HUGEPAGES, 7, "not enough hugepages")                                                     \
    X(RING_FULL, 8, "submission ring is full, poll and retry")                                     \
    X(NO_SLOTS, 9, "all completion slots are in use, free a batch and retry")                      \
    X(ARGS_FULL, 10, "argument area is full, poll and retry")                                      \
    X(TOO_MANY_TASKS, 11, "more tasks than the batch was allocated for")                           \
    X(NO_BATCHES, 12, "all batches of the queue are in use")                                       \
    X(BUSY, 13, "still in use by unfinished work")                                                 \
    X(TIMEOUT, 14, "deadline passed")                                                              \
    X(CANCELED, 15, "canceled")                                                                    \
    X(NOT_FOUND, 16, "no such name")                                                               \
    X(EXISTS, 17, "name is taken by a living owner")                                               \
    X(VERSION, 18, "ABI or protocol version does not match")                                       \
    X(AGENT_DOWN, 19, "the agent is not reachable or has ended the session")                       \
    X(PERMISSION, 20, "permission denied")                                                         \
    X(NOT_SUPPORTED, 21, "not supported by this build or agent")                                   \
    X(BAD_SHM, 22, "shared memory is not sealed or not of the announced size")                     \
    X(REVOKED, 23, "buffer was revoked or unregistered")                                           \
    X(OVERLAP, 24, "range overlaps one that is already there")                                     \
    X(FORKED, 25, "handle belongs to the parent of a forked process")                              \
    X(INBOX_FULL, 26, "the receiver does not take its notifications")                              \
    X(STRICT, 27, "only a slower path exists and strict was asked for")                            \
    X(LIMIT, 28, "a configured limit was reached")                                                 \
    X(PROTOCOL, 29, "malformed message or shared memory")                                          \
    X(MEMORY_FAULT, 30, "shared memory was taken away while in use")                               \
    X(INTERNAL, 31, "internal error")                                                              \
    X(PEER_UNREACHABLE, 32, "the peer's agent cannot be reached")                                  \
    X(STALE, 33, "a later incarnation has taken the segment's or the peer's place")                \
    X(CHECKSUM, 34, "bytes were damaged on their way")                                             \
    X(RAIL, 35, "no rail could carry it to its end")                                               \
    X(METADATA, 36, "the metadata service does not answer or refuses")                             \
    X(AUTH, 37, "the peer failed authentication")                                                  \
    X(ENCRYPTION, 38, "encryption is required and no encrypted rail exists")                       \
    X(LOCAL_RESOURCE, 39, "this host is out of ports, descriptors or buffers")                     \
    X(AGENT_RESTARTED, 40, "agent restarted while it had this in hand")                            \
    X(REBUILDING, 41, "the directory is being rebuilt and cannot know yet")                        \
    X(NO_DIRECTORY, 42, "no master of the store answers")                                          \
    X(NO_SPACE, 43, "the store is full of what may not be evicted")                                \
    X(IN_USE, 44, "the object is leased, pinned, or being written or moved")                       \
    X(BAD_KEY, 45, "the key is empty or too long")                                                 \
    X(TOO_SMALL, 46, "the buffer is smaller than the object")                                      \
    X(LEASE, 47, "the read took longer than its lease")                                            \
    X(FENCED, 48, "an order of an earlier leader, or of one that is none any more")                \
    X(DISK, 49, "the disk failed, or is full")                                                     \
    X(NOT_OWNER, 50, "the put is over or was begun by another")                                    \
    X(NO_GPU, 51, "no such GPU, or no driver for it")                                              \
    X(GPU_CONTEXT, 52, "the GPU driver refused")                                                   \
    X(GPU_LOST, 53, "the GPU has failed")                                                          \
    X(GPU_ORDER, 54, "a request on GPU memory does not say what it comes after")

enum mcs_status {
#define MCS_STATUS_ENUM(name, value, text) MCS_##name = value,
    MCS_STATUS_LIST(MCS_STATUS_ENUM)
#undef MCS_STATUS_ENUM
        MCS_STATUS_COUNT
};

#endif
