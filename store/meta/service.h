/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The thread of a network back end, and what passes between it and the front (meta.c).
 *
 * The front posts requests; the service works on them with libcurl's multi interface and posts
 * news, which the front reads in the order they were posted. Between them lies one lock, held for
 * a few instructions. Everything else here belongs to the service's thread.
 */
#ifndef MCM_SERVICE_H
#define MCM_SERVICE_H

#include "cache.h"
#include "meta.h"
#include "text.h"

#include <curl/curl.h>
#include <pthread.h>

#define MCM_ENDPOINTS_MAX 8u
#define MCM_NEWS_MAX 32768u /* beyond it records are left out and listed again */
#define MCM_NEVER UINT64_MAX

enum { MCM_LOG_ERROR, MCM_LOG_WARNING, MCM_LOG_INFO, MCM_LOG_DEBUG }; /* as the agent's */

enum mcm_kind {
    MCM_REGISTER,
    MCM_UNREGISTER,
    MCM_LOOKUP,
    MCM_GET,
    MCM_PUT,
    MCM_DELETE,
};

/* From the front to the service and, answered, back. Whoever holds it owns it. */
struct mcm_request {
    struct mcm_request *next;
    enum mcm_kind kind;
    uint64_t deadline;        /* mcm_now() */
    struct mcm_record record; /* REGISTER; UNREGISTER, LOOKUP: name (and incarnation) */
    char key[MCM_KEY_MAX];    /* GET, PUT, DELETE */
    struct mcm_text value;    /* PUT: given; GET: found */
    mcm_done done;
    void *context;
    bool fresh; /* LOOKUP */
    /* the answer */
    int res;
    bool has_record;
    struct mcm_record found;
    struct mcm_stamp stamp; /* LOOKUP: as of when; revision 0 when nobody can tell */
    char text[256];
};

struct mcm_news {
    struct mcm_news *next;
    enum mcm_news_kind {
        MCM_NEWS_DONE,
        MCM_NEWS_RECORD,
        MCM_NEWS_GONE,       /* record.name */
        MCM_NEWS_LIST_BEGIN, /* what comes until LIST_END is all there is */
        MCM_NEWS_LIST_END,
        MCM_NEWS_SWEEP, /* no record is of `from` or later, as of `stamp` */
        MCM_NEWS_STATE, /* in_step, down */
    } kind;
    struct mcm_request *request;
    struct mcm_record record;
    struct mcm_stamp stamp;
    uint64_t from;
    bool in_step, down;
};

struct mcm_endpoint {
    char url[MCM_ADDRESS_MAX]; /* no '/' at its end */
    bool failing;
    uint64_t probe_at;
    bool probing;
};

struct mcm_service;
struct mcm_call;
struct mcm_kept;

/* A back end. All are called in the service's thread. */
struct mcm_backend_ops {
    const char *name;
    bool leases; /* what is kept dies with a lease: nothing to remove once it is gone */
    int (*start)(struct mcm_service *s);
    void (*free)(struct mcm_service *s);
    /* Does what is due, and asks for the next visit by mcm_service_at(). */
    void (*tick)(struct mcm_service *s, uint64_t now);
    /* LOOKUP and GET: ends with mcm_answer(). */
    void (*ask)(struct mcm_service *s, struct mcm_request *r);
    /* Writes or removes what is kept: ends with mcm_keep_done(). */
    void (*keep)(struct mcm_service *s, struct mcm_kept *k, uint64_t deadline);
    void (*drop)(struct mcm_service *s, struct mcm_kept *k, uint64_t deadline);
    /* Looks at an answer whole: MCM_VERDICT_GOOD leaves call->json or the reply to its owner. */
    int (*judge)(struct mcm_service *s, struct mcm_call *c);
    /* A cheap question to one endpoint that is failing. */
    struct mcm_call *(*probe)(struct mcm_service *s);
    /* Begins to withdraw everything; mcm_service_stop() waits until no call is left. */
    void (*stop)(struct mcm_service *s, uint64_t deadline);
    /* Whether the watch is in step, and whether all else is as it should be. */
    bool (*in_step)(struct mcm_service *s);
    bool (*healthy)(struct mcm_service *s);
};

extern const struct mcm_backend_ops mcm_etcd_ops, mcm_http_ops;

struct mcm_service {
    struct mcm_options o; /* strings are copies */
    char *prefix;         /* "PREFIX/segments/" */
    const struct mcm_backend_ops *ops;
    void *backend;
    pthread_t thread;
    bool started;

    pthread_mutex_t lock; /* over what follows, up to the blank line */
    struct mcm_request *in, **in_end;
    struct mcm_news *out, **out_end;
    size_t out_count;
    bool stop;
    bool overflow;          /* records were left out */
    struct mcm_state state; /* as of the last turn */
    struct {                /* lead.c */
        bool wanted, candidate, hurry;
        uint64_t raise; /* a token that the lead has to be above; 0: none */
        bool emptied;   /* what is noted goes when that is done */
        struct mcm_leader known;
        char (*holders)[MCM_ADDRESS_MAX];
        size_t nholders;
        bool members;      /* a leader before has noted some */
        char *note;        /* what the members' key is to be; NULL: nothing is wanted */
        uint64_t note_new; /* counts its changes */
    } lead;

    /* news of this turn: the front gets them together with the state that goes with them */
    struct mcm_news *fresh, **fresh_end;
    size_t fresh_count;
    CURLM *multi;
    struct mcm_endpoint endpoints[MCM_ENDPOINTS_MAX];
    size_t endpoints_n, current;
    struct mcm_call *calls; /* in order of arrival */
    struct mcm_call **calls_end;
    size_t running;
    struct mcm_kept *kept;
    size_t kept_n, kept_busy;
    uint64_t kept_at; /* when one of them is due */
    uint64_t epoch;   /* see cache.h */
    uint64_t random, wake;
    uint64_t stop_by; /* MCM_NEVER while it is to go on */
    struct mcm_state now;
    bool in_step, down;
};

/* CLOCK_BOOTTIME in ms: steps of the wall clock move no deadline here, and leases run out while the host is suspended, too. */
uint64_t mcm_now(void);

/* Options are checked (a sentence in error). The thread runs from here to mcm_service_stop(). */
int mcm_service_start(const struct mcm_options *o, const struct mcm_backend_ops *ops,
                      struct mcm_service **out, char *error, size_t error_size);
/* Front: requests not answered yet come back -ECANCELED; then everything is withdrawn within
 * timeout_ms. Leaves the last news to be fetched before mcm_service_free(). */
void mcm_service_stop(struct mcm_service *s);
void mcm_service_free(struct mcm_service *s);
/* Front: gives a request to the service. */
void mcm_service_post(struct mcm_service *s, struct mcm_request *r);
/* Front: what the lead's fields say has changed. */
void mcm_service_wake(struct mcm_service *s);
/* Front: takes all news. */
struct mcm_news *mcm_service_news(struct mcm_service *s);

/* The service's own. */
bool mcm_stopping(const struct mcm_service *s);
/* Asks for a turn at `when` at the latest. */
void mcm_service_at(struct mcm_service *s, uint64_t when);
/* `ms` with a spread of +-1/4: agents that saw the same failure do not come back in lockstep. */
uint64_t mcm_jitter(struct mcm_service *s, uint64_t ms);
uint64_t mcm_random(struct mcm_service *s);
/* The pause after the nth failure in a row, with jitter: 100 ms doubled up to 1 s. */
uint64_t mcm_backoff(struct mcm_service *s, unsigned failures);
void mcm_answer(struct mcm_service *s, struct mcm_request *r, int res, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
/* Takes a record (or, with NULL, only a name) to the front. */
void mcm_tell(struct mcm_service *s, enum mcm_news_kind kind, const struct mcm_record *record,
              const char *name, struct mcm_stamp stamp);
/* SWEEP. */
void mcm_tell_sweep(struct mcm_service *s, uint64_t from, struct mcm_stamp stamp);
/* Whether the front is behind, so that listing should wait. */
bool mcm_congested(struct mcm_service *s);
/* Once after records were left out. */
bool mcm_take_overflow(struct mcm_service *s);
void mcm_failure(struct mcm_service *s, const char *text);
#define mcm_log(s, level, ...)                                                                     \
    do {                                                                                           \
        if ((s)->o.log)                                                                            \
            (s)->o.log(level, __VA_ARGS__);                                                        \
    } while (0)

#endif
