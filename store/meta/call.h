/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One question to the service and its answer, whatever that takes: the next endpoint when one does
 * not answer, a fresh connection when a kept one has died, a new token when the old one has run
 * out. All questions may be asked twice with the same effect, which is what makes this right.
 */
#ifndef MCM_CALL_H
#define MCM_CALL_H

#include "json.h"
#include "service.h"

enum {
    MCM_VERDICT_GOOD,  /* or final: call->res says which */
    MCM_VERDICT_RETRY, /* this endpoint is no good just now */
    MCM_VERDICT_TOKEN, /* it wants another token */
};

struct mcm_call {
    struct mcm_call *next;
    enum { MCM_CALL_QUEUED, MCM_CALL_RUNNING, MCM_CALL_OVER } state;
    const char *method;   /* "GET", "POST", "PUT", "DELETE" */
    struct mcm_text path; /* behind the endpoint's URL */
    struct mcm_text body;
    uint64_t deadline;
    int only;        /* this endpoint and no other, once; -1: any */
    bool no_token;   /* goes without */
    bool urgent;     /* does not wait its turn */
    bool last_words; /* goes even while the service stops */
    void (*done)(struct mcm_service *s, struct mcm_call *c);
    void *context;

    CURL *easy;
    struct curl_slist *headers;
    size_t endpoint;
    unsigned tries, tokens;
    uint64_t again;         /* not before */
    uint64_t sent;          /* when this try began */
    uint64_t seen_revision; /* the owner's: what it knew when the try began */
    char curl_error[CURL_ERROR_SIZE];

    /* the answer */
    int res;
    long status;
    struct mcm_text reply;
    bool too_large;
    cJSON *json;
    char text[256]; /* on failure, one sentence */
};

/* Makes one; fill in and mcm_call_start(). NULL: no memory. */
struct mcm_call *mcm_call_new(struct mcm_service *s, const char *method, const char *path,
                              uint64_t deadline,
                              void (*done)(struct mcm_service *s, struct mcm_call *c),
                              void *context);
/* From here on it belongs to the service: done() is called once, and then it is freed. */
void mcm_call_start(struct mcm_service *s, struct mcm_call *c);
/* One that was never started. */
void mcm_call_free(struct mcm_call *c);

/* Starts and ends what is due. */
void mcm_calls_tick(struct mcm_service *s, uint64_t now);
/* Takes what libcurl has finished; false: it is no call's. */
bool mcm_calls_finished(struct mcm_service *s, CURL *easy, CURLcode code);
/* Ends all (but those with last words, unless `all`), and frees what is over. */
void mcm_calls_cancel(struct mcm_service *s, bool all);
/* Ends those that wait for a token. */
void mcm_calls_refuse(struct mcm_service *s, int res, const char *text);

/* Options that all transfers share: TLS, no proxies, no signals. */
CURL *mcm_easy_new(struct mcm_service *s);
/* Notes that an endpoint did or did not answer; moves on from one that did not. */
void mcm_endpoint_good(struct mcm_service *s, size_t i);
void mcm_endpoint_bad(struct mcm_service *s, size_t i, const char *text);

/* etcd: the token of `user`, NULL when there is none (yet). */
const char *mcm_etcd_token(struct mcm_service *s);
void mcm_etcd_token_refused(struct mcm_service *s);
/* Whether calls have to wait for a token; asks for one. */
bool mcm_etcd_token_awaited(struct mcm_service *s);

#endif
