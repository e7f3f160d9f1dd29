/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The agent's object store: store/object/'s tables with this agent's memory under them.  Control thread, but where said.
 *
 *   engines ---- put, get, exist ... (object.h) ---------> mco_store <--- want / idle / ready / event
 *   control thread: extents made by the worker, kept by the keeper; upkeep; sessions' mappings; lists and
 *                   removals by a thread of their own; what is reported to the directory (catalog.h)
 */
#ifndef MCD_STORE_H
#define MCD_STORE_H

#include "extent.h"
#include "shm/message.h"
#include "store/object/disk.h"
#include "store/object/events.h"
#include "store/object/store.h"
#include "watch.h"

struct mcd_agent;
struct mcd_catalog;
struct mcd_session;

struct mcd_store {
    struct mcd_agent *agent;
    struct mco_store *objects; /* any thread */
    struct mco_events *events; /* any thread */
    struct mco_disk *disk;     /* NULL: [store] disk is not set */
    struct mcd_catalog *catalog;
    struct mcd_pool pool;     /* of its extents: an accounting of its own, */
    struct mcd_config config; /* with these limits */
    bool checksum;            /* [store] checksum */
    uint64_t verify;          /* enum mcd_store_verify */
    uint32_t ready; /* atomic: how often mco_options.ready was called; engines look for changes */
    struct mcd_store_work *work; /* what else store.c has */
};

enum mcd_store_verify { MCD_VERIFY_REMOTE, MCD_VERIFY_ALWAYS, MCD_VERIFY_NEVER };

/* At the start, after the keeper has given what it kept and before engines and sessions exist: the objects are there again. With
 * [store] size = 0 a->store stays NULL. On failure one sentence. */
int mcd_store_create(struct mcd_agent *a, char *error, size_t error_size);
/* The control thread has its workers, the cluster is there: catalog, upkeep. */
int mcd_store_begin(struct mcd_agent *a, char *error, size_t error_size);
/* Another host has read other bytes of it than its checksum says: it is looked at, some time. */
void mcd_store_doubt(struct mcd_store *st, const struct mco_key *key);
/* The agent stops and no session is left: RDMA devices let go, the catalog asks nobody any more. */
void mcd_store_stop(struct mcd_agent *a);
/* What needs the control thread goes; may be called twice. */
void mcd_store_end(struct mcd_agent *a);
/* Engines are gone. */
void mcd_store_destroy(struct mcd_agent *a);
/* Each round of the loop: what the core asks for, the catalog. True: soon again. */
bool mcd_store_poll(struct mcd_agent *a);
/* A session begins, or is back: it may hold objects in place. 0 or -ENOMEM. */
int mcd_store_session_new(struct mcd_session *s);
/* A session ends, engines have let go of it: its holds and mappings go. Sessions of an earlier life: see mco_unguard(). */
void mcd_store_session_gone(struct mcd_session *s);
/* Limits may have changed. */
void mcd_store_adopt(struct mcd_agent *a);

/* Extent of the store by id, for a mapping or a description; NULL. */
struct mcd_extent *mcd_store_extent(struct mcd_store *st, uint32_t id);

/* handlers_object.c */
void mcd_on_object_map(struct mcd_session *s, struct mcs_msg *m);
void mcd_on_object_unmap(struct mcd_session *s, struct mcs_msg *m);
void mcd_on_objects(struct mcd_session *s, struct mcs_msg *m);

/* query_store.c: MCS_QUERY_STORE. The text is the caller's to free(). */
char *mcd_query_store(struct mcd_agent *a, const struct mcd_session *asker);
/* counters_store.c: lines for /metrics. */
void mcd_store_metrics(struct mcd_agent *a, FILE *out);

#endif
