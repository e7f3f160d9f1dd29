/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Back end etcd, over the JSON gateway of its v3 interface: etcd.c keys, tokens and errors,
 * etcd_lease.c the lease under which all of this agent's keys stand, etcd_watch.c the mirror of
 * the segments' keys. Keys: PREFIX/segments/NAME, PREFIX/hosts/ADDRESS.
 */
#ifndef MCM_ETCD_H
#define MCM_ETCD_H

#include "call.h"
#include "keep.h"
#include "record.h"

struct mcm_watch {
    /* First, for mcm_calls_finished(). */
    void (*finished)(struct mcm_service *s, void *watch, CURLcode code);
    struct mcm_service *service;
    enum {
        MCM_WATCH_LIST,    /* to be listed */
        MCM_WATCH_LISTING, /* a page is asked for */
        MCM_WATCH_OPEN,    /* to be opened at `next` */
        MCM_WATCH_OPENING,
        MCM_WATCH_LIVE,
    } state;
    uint64_t at; /* LIST, OPEN: not before */
    unsigned failures;
    bool listed_once;

    /* the listing */
    struct mcm_text from; /* the key where the next page begins; empty: the first page */
    unsigned page;        /* keys a page */
    uint64_t list, list_revision;
    uintptr_t turn; /* of the page under way: answers to others come too late */

    /* the mirror: all events before `next` were taken; `keys` stand under the prefix */
    uint64_t next, keys;
    uint64_t lived_from;

    /* the stream */
    CURL *easy;
    struct curl_slist *headers;
    struct mcm_text body, line;
    struct mcm_json_scan scan;
    size_t endpoint;
    uint64_t created_by;
    bool fragment; /* more of the same revision follows */
    uint64_t fragment_next;
    enum {
        MCM_END_NONE,
        MCM_END_RELIST, /* what was missed cannot be had any more */
        MCM_END_TOKEN,
        MCM_END_BAD,
    } end;
    char text[256];
    char curl_error[CURL_ERROR_SIZE];

    /* the audit: does the stream still tell everything? */
    uint64_t audit_at, audit_next;
    bool auditing;
    unsigned doubts; /* audits in a row that found it wanting */
};

/* The lead of the store's masters. */
struct mcm_lead {
    bool busy;      /* a question is under way */
    int64_t lease;  /* of the lead alone; 0: none */
    uint64_t ttl_s; /* of it */
    uint64_t ends;  /* when it does, at the earliest */
    bool leading;
    uint64_t token, base; /* token = base + the revision at which the key was written */
    uint64_t modified;
    uint64_t look_at, renew_at;
    unsigned failures;
    bool absent;            /* nobody led when last looked */
    bool forgetting;        /* with the key that is being written goes what was noted */
    uint64_t noted, noting; /* of note_new: is there; is being written */
    uint64_t note_at;       /* not before */
    char key[MCM_KEY_MAX];
};

struct mcm_etcd {
    uint64_t revision; /* the largest seen: it never falls unless etcd lost its data */
    int64_t lease;     /* 0: none */
    int64_t asked;     /* the id of a lease that is being granted */
    uint64_t lease_ends, lease_at;
    bool lease_busy;
    unsigned lease_failures;
    bool lease_lost; /* said; the next one is worth a line */
    char *token;
    bool token_busy, token_useless; /* etcd has no users */
    uint64_t token_at;
    unsigned token_failures;
    struct mcm_watch watch;
    struct mcm_lead lead;
};

/* One key and its value, decoded. */
struct mcm_kv {
    char *key, *value; /* NUL-terminated beyond their sizes */
    size_t key_size, value_size;
    uint64_t created, modified;
    int64_t lease;
};

/* -EBADMSG: it is none. mcm_kv_fini() in any case. */
int mcm_kv_read(const cJSON *o, struct mcm_kv *kv);
void mcm_kv_fini(struct mcm_kv *kv);
/* The name in a key under the prefix; NULL: there is none. */
const char *mcm_kv_name(const struct mcm_service *s, const struct mcm_kv *kv);

static inline struct mcm_etcd *mcm_etcd_of(struct mcm_service *s)
{
    return s->backend;
}

/* A POST whose done() gets c->json when c->res is 0. */
struct mcm_call *mcm_etcd_call(struct mcm_service *s, const char *path, uint64_t deadline,
                               void (*done)(struct mcm_service *s, struct mcm_call *c),
                               void *context);
/* Appends "name":"base64". */
void mcm_etcd_bytes(struct mcm_text *t, const char *name, const void *data, size_t size);
/* The prefix as a range: "key":...,"range_end":... */
void mcm_etcd_range(const struct mcm_service *s, struct mcm_text *t, const void *from, size_t size);

/* The revision in an answer's header, 0: none. With `call`, also finds out whether etcd has lost
 * its history since the call was made; true is returned then and everything begins anew. */
bool mcm_etcd_revision(struct mcm_service *s, const struct mcm_call *call, const cJSON *answer,
                       uint64_t *revision);
/* etcd was emptied or replaced. */
void mcm_etcd_reset(struct mcm_service *s, uint64_t revision);

/* What an error object of the gateway says: a negative errno and one of the MCM_VERDICT_*. */
int mcm_etcd_error(const cJSON *answer, long status, int *res, char *text, size_t size);

void mcm_lease_tick(struct mcm_service *s, uint64_t now);
/* Somebody says the lease is not there: asks at once. */
void mcm_lease_doubt(struct mcm_service *s);
void mcm_lease_stop(struct mcm_service *s, uint64_t deadline);

void mcm_lead_tick(struct mcm_service *s, uint64_t now);
/* Gives the lead back. */
void mcm_lead_stop(struct mcm_service *s, uint64_t deadline);

void mcm_watch_init(struct mcm_service *s);
void mcm_watch_tick(struct mcm_service *s, uint64_t now);
void mcm_watch_relist(struct mcm_service *s);
void mcm_watch_close(struct mcm_service *s);

#endif
