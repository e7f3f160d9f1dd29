/* SPDX-License-Identifier: Apache-2.0 */
/*
 * RDMA devices that exist only in a test's process: libibverbs, played by the objects of this folder, which a
 * test is linked with in the library's place when it includes this file.
 *
 * What a test gets: devices with ports and GID tables as it likes, all on one wire; queue pairs that move bytes between
 * the memory registered on them, with every check that an adapter makes; and lies on demand: calls that fail, block,
 * completions that come late or with an error, events.  What the code under test must never do (overrun a queue, touch
 * what is destroyed, use a key that is not there, ...) aborts the process with a sentence on stderr.
 *
 * All functions may be called by any thread.  Begin a test with fake_reset(), and end it with
 * fake_leaks() == 0.
 */
#ifndef FAKE_VERBS_H
#define FAKE_VERBS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <infiniband/verbs.h>

#define FAKE_DEVICES 16
#define FAKE_PORTS 2
#define FAKE_GIDS 16
#define FAKE_SGES 16

struct fake_gid {
    uint8_t gid[16]; /* all 0: an empty place in the table */
    enum ibv_gid_type type;
    uint32_t ifindex;
    char netdev[16]; /* for fake_sysfs() */
};

struct fake_port {
    struct ibv_port_attr attr; /* gid_tbl_len: places in use below */
    struct fake_gid gids[FAKE_GIDS];
};

/* When work requests are done. Order is kept within a queue pair always. */
enum fake_pace {
    FAKE_AT_ONCE,     /* inside ibv_post_send */
    FAKE_HELD,        /* by fake_release(): until then no byte moves */
    FAKE_COMPLETIONS, /* bytes move at once, completions wait for fake_release() */
    FAKE_THREAD       /* by a thread of the fake's, queue pairs at random */
};

/* May be set until the code under test opens the device. */
struct fake_device {
    char name[64];
    unsigned index;
    unsigned nports;
    struct fake_port ports[FAKE_PORTS]; /* later: fake_port_state(), fake_gid() */
    struct ibv_device_attr attr;
    uint32_t max_inline;
    char pci[32];           /* "": fake_sysfs() makes no `device` link, as rdma_rxe */
    int node;               /* NUMA, for fake_sysfs() */
    bool keeps_completions; /* destroying a queue pair leaves its completions in the queue */
};

/* ---- devices --------------------------------------------------------------------- */

/* Forgets devices, lies and counts. Aborts when anything is still open. */
void fake_reset(void);
/*
 * One more device: one port, active, Ethernet, MTU 1024, messages up to 8 MiB, at GID 0 a link-local
 * and at GID 1 ::ffff:10.77.0.(index + 1), both RoCE v2; limits as rdma_rxe's. The fake's, until fake_reset().
 */
struct fake_device *fake_add(const char *name);
/* Pulled out: no longer listed, and fatal (fake_fatal()) for who has it open. One of the same name may be added. */
void fake_remove(struct fake_device *d);
/* Writes <dir>/class/infiniband/... and <dir>/class/net/... for the devices there are now, and keeps ports and GIDs up to date
 * from then on, until fake_reset(). */
void fake_sysfs(const char *dir);

/* Bytes that all devices together may register: what RLIMIT_MEMLOCK does; ENOMEM beyond. UINT64_MAX: any. */
void fake_memlock(uint64_t bytes);

/* ---- calls that fail or block ---------------------------------------------------- */

enum fake_call {
    FAKE_ANY, /* every call that enters the kernel */
    FAKE_GET_DEVICE_LIST,
    FAKE_OPEN_DEVICE,
    FAKE_QUERY_DEVICE,
    FAKE_QUERY_PORT,
    FAKE_QUERY_GID,
    FAKE_ALLOC_PD,
    FAKE_REG_MR, /* of each kind */
    FAKE_CREATE_CHANNEL,
    FAKE_CREATE_CQ,
    FAKE_CREATE_SRQ,
    FAKE_CREATE_QP,
    FAKE_MODIFY_QP,
    FAKE_QUERY_QP,
    FAKE_MODIFY_SRQ,
    FAKE_DEREG_MR,
    FAKE_DEALLOC_PD,
    FAKE_DESTROY_CQ,
    FAKE_DESTROY_SRQ,
    FAKE_DESTROY_QP,
    FAKE_DESTROY_CHANNEL,
    FAKE_CLOSE_DEVICE,
    /* these never enter the kernel */
    FAKE_POST_SEND, /* each request of a chain counts */
    FAKE_POST_RECV, /* also on an SRQ; each request of a chain counts */
    FAKE_NOTIFY,
    FAKE_POLL, /* fails by fake_fail() alone, with -1 */
    FAKE_CALLS
};
const char *fake_call_name(enum fake_call call);

/* Calls nth .. nth + times - 1 of this kind from now on (1 is the next), on this device (NULL: on any), fail. FAKE_ANY counts
 * what fake_fail_at() counts. */
void fake_fail(enum fake_call call, const struct fake_device *d, unsigned nth, unsigned times,
               int error);
/*
 * The nth call from now on that may fail fails, of whatever kind: all above but POLL and the destroying ones. For loops over
 * every n: fake_failed() NULL: there were fewer than n, that was all; else what failed.
 */
void fake_fail_at(unsigned nth, int error);
const char *fake_failed(void);
/* Forgets all failures, blocks and spoilt requests that were asked for. */
void fake_mend(void);

/* Calls of this kind (FAKE_ANY) on this device do not return until fake_unblock(). */
void fake_block(enum fake_call call, const struct fake_device *d);
void fake_unblock(const struct fake_device *d);
/* Waits until so many threads are inside; false: not within ten seconds. */
bool fake_await_blocked(const struct fake_device *d, unsigned threads);

/* From now on this thread is an engine's: a call that enters the kernel aborts. */
void fake_engine_thread(bool is);

/* ---- the wire and the work requests ---------------------------------------------- */

void fake_pace(struct fake_device *d, enum fake_pace pace);
/* Does up to n waiting requests of the device, in the order they were posted; how many there were. */
unsigned fake_release(struct fake_device *d, unsigned n);
/* In the error state, too, requests wait for fake_release(). */
void fake_hold_flushes(struct fake_device *d, bool hold);
/* Requests that wait on it now. */
unsigned fake_waiting(const struct fake_device *d);

/*
 * Requests nth .. nth + times - 1 done from now on by d, towards `to` (NULL: anywhere), end with this status; of
 * a WRITE, READ or SEND the first `landed` bytes move before (UINT64_MAX: all of them). With REM_ACCESS_ERR, REM_INV_REQ_ERR and
 * REM_OP_ERR none do, and the peer's queue pair goes into the error state, as that of a peer that refuses.
 */
void fake_spoil(const struct fake_device *d, const struct fake_device *to, unsigned nth,
                unsigned times, enum ibv_wc_status status, uint64_t landed);
/*
 * WRITEs that are flushed are on the wire already: their bytes land when fake_land() says so, if the peer's queue pair
 * and registration are still there. So it is with real ones: only the peer's end is the end of it.
 */
void fake_linger(struct fake_device *d, bool linger);
/* Up to n of them arrive; how many of these changed memory. */
unsigned fake_land(unsigned n);
/* Nothing passes between the two any more (RETRY_EXC), or again. */
void fake_cut(const struct fake_device *a, const struct fake_device *b, bool cut);

/* ---- events ---------------------------------------------------------------------- */

/* Of the device or a port of it (1..), to everybody who has it open. */
void fake_event(struct fake_device *d, enum ibv_event_type type, int port);
/* Of a queue pair. QP_FATAL also puts it into the error state. False: there is none of this number. */
bool fake_qp_event(struct fake_device *d, enum ibv_event_type type, uint32_t qpn);
/* CQ_ERR to all completion queues of the device: nothing is put into them any more. */
void fake_cq_error(struct fake_device *d);
/* Sets the port's state; say: with the event PORT_ACTIVE or PORT_ERR. */
void fake_port_state(struct fake_device *d, int port, enum ibv_port_state state, bool say);
/* Sets a place of the GID table (NULL: empty); say: with GID_CHANGE. */
void fake_gid(struct fake_device *d, int port, unsigned index, const struct fake_gid *gid,
              bool say);
/* DEVICE_FATAL: calls fail with EIO, destroying works, requests never complete; flush: they do, as flushed. */
void fake_fatal(struct fake_device *d, bool flush);

/* ---- looking --------------------------------------------------------------------- */

enum fake_kind {
    FAKE_LIST,
    FAKE_CONTEXT,
    FAKE_PD,
    FAKE_MR,
    FAKE_CHANNEL,
    FAKE_CQ,
    FAKE_SRQ,
    FAKE_QP,
    FAKE_KINDS
};
/* Objects of a kind that are there, on this device or (NULL) on all. */
unsigned fake_count(enum fake_kind kind, const struct fake_device *d);
/* All objects that are there; names them on stderr. */
unsigned fake_leaks(void);

struct fake_region {
    uint64_t address, length, iova; /* address: 0 of a dmabuf */
    uint64_t offset;                /* of a dmabuf, in it */
    int fd;                         /* of a dmabuf, else -1 */
    unsigned access;                /* IBV_ACCESS_* */
    uint32_t lkey, rkey;
};
/* The i-th registration of the device, oldest first; false: there are not so many. */
bool fake_region(const struct fake_device *d, unsigned i, struct fake_region *out);

/* The i-th queue pair of the device, oldest first: its number; 0: there are not so many. */
uint32_t fake_qp(const struct fake_device *d, unsigned i, struct ibv_qp_attr *attr);

struct fake_stats {
    uint64_t calls[FAKE_CALLS]; /* [FAKE_ANY]: all that enter the kernel */
    uint64_t doorbells;         /* calls of ibv_post_send */
    uint64_t requests, signalled, inlined,
        bytes;                 /* done as the one who posted it; bytes of all kinds */
    uint64_t flushed, failed;  /* completions: with WR_FLUSH; with another error */
    unsigned most_outstanding; /* requests at a time on one queue pair */
    unsigned most_reads;       /* RDMA READs at a time on one queue pair */
    unsigned most_completions; /* in one completion queue, those to come counted in */
};
void fake_stats(const struct fake_device *d, struct fake_stats *out);

#endif
