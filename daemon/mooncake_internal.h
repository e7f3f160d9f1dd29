/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of daemon/mooncake*.c share.  Control thread only. */
#ifndef MCD_MOONCAKE_INTERNAL_H
#define MCD_MOONCAKE_INTERNAL_H

#include "address.h"
#include "agent.h"
#include "mooncake.h"
#include "mooncake_text.h"
#include "remote.h"
#include "route.h"
#include "store/meta/meta.h"
#include "watch.h"

#define MCD_MOONCAKE_MS UINT64_C(1000000)
#define MCD_MOONCAKE_DATA_MAX 8192u /* connections of stock processes to this agent */

struct mcd_mooncake_hand;    /* one connection on the handshake port */
struct mcd_mooncake_fetch;   /* a descriptor that is being asked for */
struct mcd_mooncake_peer;    /* a stock process of which a segment is open here */
struct mcd_mooncake_arrival; /* a data connection on its way to an engine */

struct mcd_mooncake_listener {
    struct mcd_watch watch;
    struct mcd_alarm deaf; /* out of descriptors: listens again */
    struct mcd_mooncake *m;
    void (*accept)(struct mcd_mooncake *m, int fd);
    int fd;
};

struct mcd_mooncake {
    struct mcd_mooncake_listener hand, data;
    struct mcd_agent *agent;
    char name[MCD_ADDRESS_TEXT_MAX]; /* advertised "host:port" */
    char host[MCD_HOST_MAX];
    uint16_t hand_port, data_port; /* hand_port: as advertised */
    bool stopping;
    struct mcd_mooncake_counters counters;

    /* what is public: engines have the same table */
    struct mcd_snapshot *open;
    char *text; /* the descriptor, NULL: to be made */
    size_t text_size;
    bool told; /* that it has a limit */

    struct mcd_mooncake_hand *hands; /* newest first */
    struct mcd_visitor visitors[MCD_ENGINES_MAX];
    struct mcd_mooncake_arrival *arrivals;
    struct mcd_alarm sweep; /* engines look at unfinished headers */
    struct mcd_command sweeps[MCD_ENGINES_MAX];

    /* their metadata service; NULL with P2PHANDSHAKE */
    struct mcm *store;
    struct mcd_watch store_watch;
    int store_fd;
    char prefix[96]; /* "mooncake/" or "mooncake/CLUSTER/" */
    struct mcd_alarm publish;
    enum { MCD_MOONCAKE_FRESH, MCD_MOONCAKE_REPLACED, MCD_MOONCAKE_NAMED } published;
    bool publishing, republish; /* a request is under way; something has changed since */
    bool looking;               /* the alarm is for a look only */
    unsigned publish_failures;

    struct mcd_mooncake_peer *peers;
    struct mcd_mooncake_fetch *fetches;
    struct mcd_alarm tick; /* upkeep of the peers' connections */
};

/* mooncake.c: the descriptor, made anew when something has changed. NULL: no memory. */
const char *mcd_mooncake_text(struct mcd_mooncake *m, size_t *size);
/* Waits for an engine, at the end of the agent. */
void mcd_mooncake_await(struct mcd_mooncake *m, const struct mcd_command *c);

/* mooncake_listen.c: both ports. */
int mcd_mooncake_listen(struct mcd_mooncake *m, char *error, size_t error_size);
void mcd_mooncake_unlisten(struct mcd_mooncake *m);

/* mooncake_hand.c: what comes in on the handshake port. */
void mcd_mooncake_hand_accept(struct mcd_mooncake *m, int fd);
void mcd_mooncake_hands_poll(struct mcd_mooncake *m);
void mcd_mooncake_hands_destroy(struct mcd_mooncake *m);

/* mooncake_serve.c: data connections of stock processes. */
void mcd_mooncake_serve_init(struct mcd_mooncake *m);
void mcd_mooncake_serve_accept(struct mcd_mooncake *m, int fd);
void mcd_mooncake_serve_poll(struct mcd_mooncake *m);
void mcd_mooncake_serve_fini(struct mcd_mooncake *m);

/* mooncake_publish.c */
int mcd_mooncake_publish_init(struct mcd_mooncake *m, char *error, size_t error_size);
/* Soon: changes that come together are written once. */
void mcd_mooncake_publish(struct mcd_mooncake *m);
void mcd_mooncake_publish_fini(struct mcd_mooncake *m);

/*
 * mooncake_fetch.c: asks for the descriptor of `name`. done(): OK with the descriptor, whose buffers it may take (set them to NULL)
 * and with `target`, the address of its data port; or a status with one sentence. Not from inside. -ENOMEM.
 */
typedef void (*mcd_mooncake_fetched)(void *context, uint32_t status, const char *text,
                                     struct mcd_mooncake_descriptor *d, const char *target);
int mcd_mooncake_fetch(struct mcd_mooncake *m, const char *name, uint64_t limit_ms,
                       mcd_mooncake_fetched done, void *context, struct mcd_mooncake_fetch **out);
void mcd_mooncake_fetch_cancel(struct mcd_mooncake_fetch *f);

/* mooncake_peer.c */
void mcd_mooncake_peers_poll(struct mcd_mooncake *m);
void mcd_mooncake_peers_fini(struct mcd_mooncake *m);

#endif
