/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The control messages of the agent's Unix socket (SOCK_SEQPACKET: one packet is
 * one message).  Each request gets one reply of the same type, with the same id.
 * Descriptors travel as SCM_RIGHTS.
 *
 *   0         4         6        8         12       16        20       24
 *   +---------+---------+--------+---------+--------+---------+--------+--------- - -
 *   |  magic  | version |  type  | length  |   id   | status  |  zero  | body
 *   +---------+---------+--------+---------+--------+---------+--------+--------- - -
 *
 * `length` counts header and body and must equal the packet's size; a request's body
 * has exactly the size its type demands.  A reply with a status other than OK has a
 * struct mcs_msg_error as its body: one sentence that names the value, the limit and
 * the remedy.
 */
#ifndef MCS_MESSAGE_H
#define MCS_MESSAGE_H

#include <stdbool.h>

#include "abi.h"

#define MCS_MSG_MAGIC 0x4d485343u /* "CSHM" */
#define MCS_MSG_VERSION 2u
#define MCS_MSG_MAX 8192u /* bytes of the longest message */
#define MCS_MSG_FDS_MAX 2u
#define MCS_MSG_FDS_ALL 253u /* descriptors that the kernel lets one message carry */

enum mcs_msg_type {
    MCS_MSG_HELLO = 1,      /* must come first */
    MCS_MSG_QUEUE_OPEN = 2, /* reply + fd of the queue region */
    MCS_MSG_QUEUE_CLOSE = 3,
    MCS_MSG_ALLOC = 4, /* reply + fd when the extent is new to the session */
    MCS_MSG_FREE = 5,
    MCS_MSG_REGISTER = 6, /* request + fd of a sealed memfd */
    MCS_MSG_UNREGISTER = 7,
    MCS_MSG_PUBLISH = 8, /* the session's segment gets its name */
    MCS_MSG_WITHDRAW = 9,
    MCS_MSG_BUFFER_ADD = 10,
    MCS_MSG_BUFFER_REMOVE = 11,
    MCS_MSG_REVOKE = 12,
    MCS_MSG_SEGMENT_OPEN = 13,
    MCS_MSG_SEGMENT_CLOSE = 14,
    MCS_MSG_DESCRIBE = 15,
    MCS_MSG_MAP = 16, /* reply + fd of the granted extent */
    MCS_MSG_UNMAP = 17,
    MCS_MSG_QUERY = 18, /* reply + fd of a memfd with JSON text */
    MCS_MSG_PING = 19,  /* another host's agent */
    /* A client that comes back to a later agent. RESTORE in place of HELLO, RESUME last. */
    MCS_MSG_RESTORE = 20,     /* request + fd of the session region; reply + fd of a doorbell */
    MCS_MSG_EXTENT_BACK = 21, /* request + fd of the extent */
    MCS_MSG_ALLOCS_BACK = 22, /* allocations in such an extent */
    MCS_MSG_QUEUE_BACK = 23,  /* request + fd of the queue region */
    MCS_MSG_OPEN_BACK = 24,   /* a segment that was open, under the handle that it had */
    MCS_MSG_RESUME = 25,      /* everything is back that will come; the queues are served again */
    MCS_MSG_RELOAD = 26,      /* reply + fd of a memfd with JSON text */
    MCS_MSG_TRACE = 27,       /* the same */
    MCS_MSG_OBJECT_MAP = 28,  /* reply + fd of an extent of the store's */
    MCS_MSG_OBJECT_UNMAP = 29,
    MCS_MSG_OBJECTS =
        30, /* list, statistics, removal by pattern, drain: reply + fd of a memfd with JSON */
    MCS_MSG_GPU_ALLOC = 31, /* reply + fd of the exported allocation when the extent is new */
    /* A part of GPU memory that somebody else's library has allocated: all of its parts one after the other, no
     * other request between them; the reply to the last one names the extent. + fd of the exported handle, or none */
    MCS_MSG_GPU_IMPORT = 32,
    MCS_MSG_COUNT
};

struct mcs_msg_header {
    uint32_t magic;
    uint16_t version;
    uint16_t type;
    uint32_t length;
    uint32_t id;
    uint32_t status; /* enum mcs_status; 0 in requests */
    uint32_t zero;
};
static_assert(sizeof(struct mcs_msg_header) == 24, "mcs_msg_header layout");

struct mcs_msg_error {
    char text[232];
};

struct mcs_msg_hello {
    uint32_t abi_version;
    uint32_t reserved;
    uint64_t features;       /* MCS_FEATURE_LEAVES */
    char name[MCS_NAME_MAX]; /* what `mcshm ls sessions` shows */
};
struct mcs_msg_hello_reply { /* + fds: session region, doorbell eventfd */
    uint64_t agent_incarnation;
    uint64_t session_incarnation;
    uint64_t features;
    uint64_t region_size;
    uint64_t tenant;
    uint64_t page_size;   /* of pool memory at present, bytes */
    uint64_t caller_max;  /* bytes up to which a copy in the caller's thread is faster */
    uint32_t spin_us;     /* suggested spinning before a wait sleeps */
    uint32_t deadline_us; /* the default of a task */
    char agent_version[32];
};

struct mcs_msg_queue_open {
    uint32_t depth, slots, batches; /* 0: the agent's default */
    uint32_t reserved;
    uint64_t args_size; /* 0: the agent's default */
};
struct mcs_msg_queue_open_reply {
    uint32_t queue_id;
    uint32_t engine;
    uint64_t total_size;
};
struct mcs_msg_queue_close {
    uint32_t queue_id;
    uint32_t reserved;
};

struct mcs_msg_alloc {
    uint64_t size;
    uint64_t align;                  /* power of two; 0: MCS_LINE */
    char location[MCS_LOCATION_MAX]; /* "", "cpu", "cpu:N" */
};
/* What the memory of an extent or buffer is. */
enum mcs_memory { MCS_MEMORY_HOST = 0, MCS_MEMORY_GPU = 1 };

struct mcs_msg_gpu_alloc {
    uint64_t size;
    uint64_t align;  /* power of two; 0: 256, as cuMemAlloc() aligns */
    uint8_t gpu[16]; /* UUID of the device, or of its MIG instance */
};
struct mcs_msg_gpu_import {
    uint8_t gpu[16];
    uint64_t total;      /* bytes of the whole range; the same in all parts */
    uint64_t at;         /* of this part in the range: where the one before it ended */
    uint64_t size;       /* bytes of it */
    uint64_t offset;     /* of its first byte in its allocation */
    uint64_t whole;      /* bytes of that allocation: drivers map no part of one; 0 with ipc */
    uint64_t allocation; /* its id, CU_POINTER_ATTRIBUTE_BUFFER_ID: unique in the process's life */
    uint32_t ipc;        /* 1: `handle` is a CUipcMemHandle; 0: an fd comes along */
    uint32_t last;       /* 1: the last part */
    uint8_t handle[64];
};
struct
    mcs_msg_extent_reply { /* of ALLOC, REGISTER, GPU_ALLOC, GPU_IMPORT; zeros but for its last part */
    uint32_t extent;
    uint32_t is_new; /* 1: an fd comes along, map it */
    uint64_t offset; /* of the allocation in the extent */
    uint64_t extent_size;
    uint64_t address; /* published address of the extent's first byte, host-wide unique */
    uint64_t page_size;
};
struct mcs_msg_free {
    uint32_t extent;
    uint32_t reserved;
    uint64_t offset;
};
struct mcs_msg_free_reply {
    uint32_t extent_gone; /* 1: the extent was its last allocation's, unmap it */
    uint32_t reserved;
};
struct mcs_msg_register {
    uint64_t size;
};
struct mcs_msg_unregister {
    uint32_t extent;
    uint32_t reserved;
};

struct mcs_msg_publish {
    uint32_t flags; /* MCS_SEGMENT_* */
    uint32_t reserved;
    char name[MCS_NAME_MAX];
};
struct mcs_msg_publish_reply {
    uint64_t incarnation;
};
struct mcs_msg_buffer { /* of BUFFER_ADD, BUFFER_REMOVE, REVOKE */
    uint32_t extent;
    uint32_t access; /* MCS_ACCESS_*; ADD only */
    uint64_t offset;
    uint64_t length;
};
struct mcs_msg_buffer_reply {
    uint64_t address; /* published address of the buffer; 0 from REVOKE */
};

struct mcs_msg_segment_open {
    char name[MCS_NAME_MAX];
};
struct mcs_msg_segment_open_reply {
    uint32_t segment;
    uint32_t same_tenant;
    uint64_t incarnation;
};
struct mcs_msg_segment_close {
    uint32_t segment;
    uint32_t reserved;
};
struct mcs_msg_describe {
    uint32_t segment;
    uint32_t first; /* index of the first buffer wanted */
};
struct mcs_msg_buffer_info {
    uint64_t address;
    uint64_t length;
    uint32_t access;
    uint32_t memory; /* enum mcs_memory */
    char location[MCS_LOCATION_MAX];
};
#define MCS_MSG_DESCRIBE_MAX 64u
struct mcs_msg_describe_reply { /* as long as its `count` says */
    uint64_t version;           /* grows with each change of the buffers */
    uint32_t total;
    uint32_t count;
    struct mcs_msg_buffer_info buffers[MCS_MSG_DESCRIBE_MAX];
};
static_assert(sizeof(struct mcs_msg_header) + sizeof(struct mcs_msg_describe_reply) <= MCS_MSG_MAX,
              "the longest message fits");

struct mcs_msg_map {
    uint32_t segment;
    uint32_t writable;
    uint64_t address;
    uint64_t length;
};
struct mcs_msg_map_reply {
    uint32_t grant;       /* names the mapping to UNMAP */
    uint32_t memory;      /* enum mcs_memory: how the fd is to be mapped */
    uint64_t extent_size; /* bytes to map from the fd's start */
    uint64_t extent_address;
    uint64_t offset;         /* of `address` in the extent */
    uint64_t grants_version; /* mcs_session_words.grants_version as of now */
};
struct mcs_msg_unmap {
    uint32_t grant;
    uint32_t reserved;
};

enum mcs_query {
    MCS_QUERY_STATUS = 0,
    MCS_QUERY_SEGMENTS,
    MCS_QUERY_EXTENTS,
    MCS_QUERY_SESSIONS,
    MCS_QUERY_RAILS,
    MCS_QUERY_PEERS,
    MCS_QUERY_TENANTS,
    MCS_QUERY_NICS,
    MCS_QUERY_STORE,
    MCS_QUERY_GPUS,
    MCS_QUERY_COUNT
};
struct mcs_msg_query {
    uint32_t what; /* enum mcs_query */
    uint32_t reserved;
};
struct mcs_msg_query_reply { /* of QUERY, RELOAD, TRACE */
    uint64_t length;         /* bytes of JSON in the memfd */
};

/*
 * The client comes back to the agent that has taken over. The reply is a struct
 * mcs_msg_hello_reply with the new agent's incarnation and a fresh doorbell eventfd; the
 * session's incarnation, its region and what it published (the name) are as before. NOT_FOUND:
 * no agent before this one has left such a session, or its time is over; PERMISSION: another
 * process's or user's; BAD_SHM: not the region that the session was given; VERSION.
 */
struct mcs_msg_restore { /* + fd: session region */
    uint32_t abi_version;
    uint32_t reserved;
    uint64_t features;
    uint64_t agent_incarnation;   /* of the agent that made, or last restored, the session */
    uint64_t session_incarnation; /* as in its HELLO reply */
};

/* One extent, allocated or registered, under the handle and at the published address that it
 * had. Allocations in it follow with ALLOCS_BACK. */
/* + fd; of GPU memory that was imported none: its parts follow as GPU_IMPORTs, the last one's reply names this extent. */
struct mcs_msg_extent_back {
    uint32_t extent;
    uint32_t memory; /* enum mcs_memory */
    uint64_t size;   /* of the whole extent */
};
struct mcs_msg_extent_back_reply {
    uint64_t address;
    uint64_t page_size;
};

#define MCS_MSG_ALLOCS_MAX 128u
struct mcs_msg_allocs_back { /* all or none of them are taken */
    uint32_t extent;
    uint32_t count; /* of `allocs`, 1 to MCS_MSG_ALLOCS_MAX */
    struct {
        uint64_t offset;
        uint64_t size; /* bytes, as they were asked for */
    } allocs[MCS_MSG_ALLOCS_MAX];
};

struct mcs_msg_queue_back { /* + fd; the reply is a struct mcs_msg_queue_open_reply */
    uint32_t queue_id;
    uint32_t depth, slots, batches; /* as its header says */
    uint32_t reserved[2];
    uint64_t args_size;
};

struct mcs_msg_open_back { /* the reply is a struct mcs_msg_segment_open_reply */
    uint32_t segment;      /* the handle that it had, and will have */
    uint32_t reserved;
    uint64_t incarnation; /* of the segment; STALE when another one has the name now */
    char name[MCS_NAME_MAX];
};

struct mcs_msg_ping {
    char address[MCS_ADDRESS_MAX]; /* "host:port" of its [peer] listen */
    uint32_t timeout_ms;
    uint32_t reserved;
};
struct mcs_msg_ping_reply {
    uint64_t rtt_ns;
    uint64_t incarnation;
    char agent_version[32];
};

#define MCS_TRACE_MAX 4096u
struct mcs_msg_trace {
    char client[MCS_NAME_MAX]; /* session's id, pid or name */
    uint32_t count;            /* tasks wanted, at most MCS_TRACE_MAX */
    uint32_t reserved;
};

/*
 * An extent of the store, as CREATE and HOLD name it: of the session's tenant only. Writable: only one that
 * holds what is created in place. Counts against the session until it is unmapped, and stays mapped
 * whatever becomes of the objects in it.
 */
struct mcs_msg_object_map {
    uint32_t extent;
    uint32_t writable;
};
struct mcs_msg_object_map_reply {
    uint64_t size; /* bytes to map from the fd's start */
    uint64_t address;
    uint64_t page_size;
};
struct mcs_msg_object_unmap {
    uint32_t extent;
    uint32_t writable;
};

enum mcs_objects {
    MCS_OBJECTS_LIST,   /* keys that begin with `text`, `limit` at most, after the first `skip` */
    MCS_OBJECTS_STAT,   /* the object with key `text`: size, version, where, pins, leases */
    MCS_OBJECTS_PREFIX, /* removes those that begin with `text` */
    MCS_OBJECTS_REGEX,  /* removes those that match it, a regular expression (PCRE2) */
    MCS_OBJECTS_ALL,    /* removes all of the tenant's */
    MCS_OBJECTS_DRAIN, /* of the agent "host:port" in `text`: moves its objects elsewhere; root's or the agent's user's */
    MCS_OBJECTS_UNDRAIN,
    MCS_OBJECTS_EVENTS, /* the feed: up to `limit` events from number `skip` on */
    /* One object is to be at one more agent, or there and at another no more. `text`: "host:port" of the one, of the other (COPY:
     * empty), each with its NUL, and the key. Answered when it is. */
    MCS_OBJECTS_COPY,
    MCS_OBJECTS_MOVE,
    MCS_OBJECTS_COUNT
};
#define MCS_OBJECTS_TEXT_MAX 4096u /* but for COPY and MOVE */
struct mcs_msg_objects {
    uint32_t what;
    uint32_t flags; /* MCS_OBJECT_FORCE, MCS_OBJECT_LOCAL: of object.h */
    uint64_t limit, skip;
    uint32_t length; /* of text */
    uint32_t reserved;
    uint8_t text[MCS_OBJECTS_TEXT_MAX + 2 * MCS_ADDRESS_MAX];
};

union mcs_msg_body {
    struct mcs_msg_error error;
    struct mcs_msg_hello hello;
    struct mcs_msg_hello_reply hello_reply;
    struct mcs_msg_queue_open queue_open;
    struct mcs_msg_queue_open_reply queue_open_reply;
    struct mcs_msg_queue_close queue_close;
    struct mcs_msg_alloc alloc;
    struct mcs_msg_gpu_alloc gpu_alloc;
    struct mcs_msg_gpu_import gpu_import;
    struct mcs_msg_extent_reply extent_reply;
    struct mcs_msg_free free;
    struct mcs_msg_free_reply free_reply;
    struct mcs_msg_register reg;
    struct mcs_msg_unregister unregister;
    struct mcs_msg_publish publish;
    struct mcs_msg_publish_reply publish_reply;
    struct mcs_msg_buffer buffer;
    struct mcs_msg_buffer_reply buffer_reply;
    struct mcs_msg_segment_open segment_open;
    struct mcs_msg_segment_open_reply segment_open_reply;
    struct mcs_msg_segment_close segment_close;
    struct mcs_msg_describe describe;
    struct mcs_msg_describe_reply describe_reply;
    struct mcs_msg_map map;
    struct mcs_msg_map_reply map_reply;
    struct mcs_msg_unmap unmap;
    struct mcs_msg_query query;
    struct mcs_msg_query_reply query_reply;
    struct mcs_msg_restore restore;
    struct mcs_msg_extent_back extent_back;
    struct mcs_msg_extent_back_reply extent_back_reply;
    struct mcs_msg_allocs_back allocs_back;
    struct mcs_msg_queue_back queue_back;
    struct mcs_msg_open_back open_back;
    struct mcs_msg_ping ping;
    struct mcs_msg_ping_reply ping_reply;
    struct mcs_msg_trace trace;
    struct mcs_msg_object_map object_map;
    struct mcs_msg_object_map_reply object_map_reply;
    struct mcs_msg_object_unmap object_unmap;
    struct mcs_msg_objects objects;
};

struct mcs_msg {
    struct mcs_msg_header h;
    union mcs_msg_body b;
};
static_assert(sizeof(struct mcs_msg) <= MCS_MSG_MAX, "mcs_msg layout");

/* Body bytes that a request of this type must have; SIZE_MAX for an unknown type. */
size_t mcs_msg_request_size(uint16_t type);
/* Body bytes of a successful reply; for DESCRIBE the least. */
size_t mcs_msg_reply_size(uint16_t type);

/*
 * Sends one message of body_size bytes with nfds descriptors (they stay the caller's).
 * 0, or a negative errno; -EAGAIN when a non-blocking socket is full.
 */
int mcs_msg_send(int socket, struct mcs_msg *m, size_t body_size, const int *fds, unsigned nfds);

/*
 * Receives one message. Up to MCS_MSG_FDS_MAX descriptors go to fds (close-on-exec);
 * more than that are closed and the message is refused. 0; -EPIPE: the other end is
 * gone; -EPROTO: truncated, wrong magic, length or descriptors; -EPROTONOSUPPORT:
 * another version, -EMFILE: out of descriptors (the header is filled in); -EAGAIN, -EINTR as
 * recvmsg gave them.
 * On any error no descriptor is left open.
 */
int mcs_msg_recv(int socket, struct mcs_msg *m, int *fds, unsigned *nfds);

/*
 * The same, but whatever it returns the *nfds descriptors that came along are the caller's to
 * close: of a stranger's descriptors no one knows how long that takes. At most `max` are taken;
 * with room for fewer than MCS_MSG_FDS_ALL the kernel closes the others here and now.
 */
int mcs_msg_recv_all(int socket, struct mcs_msg *m, int *fds, unsigned max, unsigned *nfds);

/*
 * Looks at the head of the next message, which stays where it is, unchecked and with zeros in the place of
 * what it lacks. *carries: descriptors come along. 0, or a negative errno as recvmsg gave it.
 */
int mcs_msg_peek(int socket, struct mcs_msg_header *h, bool *carries);

#endif
