/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of the fake share. Everything is under one lock. */
#ifndef FAKE_INSIDE_H
#define FAKE_INSIDE_H

#include <pthread.h>

#include "fake.h"

/* Before every object that the code under test gets a pointer to. It stays, poisoned, after its end until
 * fake_reset(), so that who still uses it is caught. */
struct fake_object {
    struct fake_object *next;
    enum fake_kind kind;
    bool alive;
    struct device *device;
    size_t size; /* of what the pointer shows */
    void *shown;
};

struct device {
    struct fake_device v; /* what tests see */
    enum fake_pace pace;
    bool gone, fatal, holds_flushes;
    bool lingers;
    bool hidden;   /* gone from sysfs, too */
    uint32_t open; /* contexts */
    struct fake_stats stats;
    unsigned blocked; /* threads inside */
    bool blocks[FAKE_CALLS];
    uint64_t epoch; /* of fake_unblock() */
    struct device *next;
};

struct listed { /* one struct ibv_device of a list */
    struct fake_object o;
    unsigned users; /* the list, contexts */
    struct ibv_device v;
};

struct event {
    struct event *next;
    struct fake_object *object; /* what it is about; NULL: device or port */
    struct ibv_async_event e;
};

struct context {
    struct fake_object o;
    struct listed *listed;
    struct event *events, **events_end;
    unsigned users;
    bool told_fatal;
    struct verbs_context v;
};

struct pd {
    struct fake_object o;
    unsigned users;
    struct ibv_pd v;
};

struct region { /* struct ibv_mr */
    struct fake_object o;
    struct pd *pd;
    struct fake_region r;
    uint8_t *bytes; /* where iova is */
    void *map;      /* of a dmabuf */
    size_t map_size;
    unsigned users; /* work requests */
    struct ibv_mr v;
};

struct channel {
    struct fake_object o;
    struct event *events, **events_end;
    unsigned users;
    struct ibv_comp_channel v;
};

struct completion {
    struct ibv_wc wc;
    struct qp *qp;
    uint64_t reclaims; /* the send queue's slots up to this request are free again */
};

struct cq {
    struct fake_object o;
    struct completion *ring;
    unsigned head, used; /* in ring */
    unsigned coming;     /* requests not done whose completion would come here */
    unsigned users;
    bool armed, broken;
    unsigned unacked, unacked_async;
    struct ibv_cq v;
};

struct receive {
    struct receive *next;
    uint64_t id;
    unsigned n;
    struct ibv_sge sges[FAKE_SGES];
};

struct receives {
    struct receive *first, **end;
    unsigned used, depth, max_sge;
};

struct srq {
    struct fake_object o;
    struct pd *pd;
    struct receives r;
    unsigned users, limit, unacked;
    struct ibv_srq v;
};

struct request {
    struct request *next;
    uint64_t id, order, sequence;
    enum ibv_wr_opcode opcode;
    unsigned flags, n;
    struct ibv_sge sges[FAKE_SGES];
    uint8_t *inlined;
    uint64_t length, address;
    uint32_t rkey;
    __be32 imm;
    bool done; /* only its completion is missing */
    enum ibv_wc_status status;
};

/* A WRITE that is on the wire, though its queue pair is not what it was. */
struct flight {
    struct flight *next;
    struct qp *target;
    uint64_t address, length;
    uint32_t rkey;
    uint8_t bytes[];
};

struct qp {
    struct fake_object o;
    struct pd *pd;
    struct cq *send_cq, *recv_cq;
    struct srq *srq;
    struct receives r;
    struct ibv_qp_attr a;
    bool signal_all;
    struct request *first, **end;
    unsigned outstanding, reads;
    uint64_t posted, reclaimed;
    unsigned unacked;
    struct ibv_qp v;
};

/* Whoever has the pointer that the code under test has. */
#define FAKE_OF(type, field, p)                                                                    \
    ((struct type *)(void *)((char *)(uintptr_t)(p)-offsetof(struct type, field)))

extern pthread_mutex_t fake_lock;
extern struct fake_object *fake_objects; /* newest last */
extern struct device *fake_devices;
extern char *fake_sysfs_dir;
extern uint64_t fake_lock_limit; /* fake_memlock() */

/* Locks. 0, or the errno with which this call is to fail. `d` may be NULL. */
int fake_enter(enum fake_call call, struct device *d);
/* The same for a call on an object; aborts when that is not there any more. */
int fake_enter_on(enum fake_call call, struct fake_object *o, const char *what);
/* Under the lock: one more countable step of a call. */
int fake_step(enum fake_call call, struct device *d);
void fake_leave(void);

void fake_abort(const char *format, ...) __attribute__((noreturn, format(printf, 1, 2)));
void *fake_alloc(size_t size);
void fake_live(struct fake_object *o, enum fake_kind kind, struct device *d, void *shown,
               size_t size);
void fake_die(struct fake_object *o);
void fake_need(const struct fake_object *o, const char *what);

/* events */
void fake_tell(struct device *d, enum ibv_event_type type, struct fake_object *about, void *element,
               int port);
void fake_untell(struct fake_object *about);
struct device *fake_device_of(const struct fake_device *d);

/* moving, under the lock */
int fake_poll(struct ibv_cq *cq, int n, struct ibv_wc *wc);
int fake_notify(struct ibv_cq *cq, int solicited);
int fake_post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad);
int fake_post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad);
int fake_post_srq_recv(struct ibv_srq *srq, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad);
/* Where the bytes are, when the registration is of this domain, allows the access and covers them; else NULL. */
uint8_t *fake_inside(struct region *r, struct pd *pd, uint64_t address, uint64_t length,
                     unsigned access);
/* Does what may be done now: of one, of all. */
void fake_run(struct qp *q);
void fake_run_all(void);
/* A request counts, or no longer, among the users of its pieces' registrations. */
void fake_use_regions(const struct device *d, const struct request *w, bool use);
void fake_qp_error(struct qp *q);
void fake_qp_forget(struct qp *q); /* its requests, receives and completions */
void fake_move_reset(void);
void fake_truth(void); /* forgets spoilt requests */
bool fake_resolve(const uint8_t gid[16], uint16_t lid, struct device **d, int *port);
void fake_receives_init(struct receives *r, unsigned depth, unsigned max_sge);
struct region *fake_region_of(const struct device *d, uint32_t key, bool remote);
void fake_sysfs_update(void);

#endif
