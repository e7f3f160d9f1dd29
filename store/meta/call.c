/* SPDX-License-Identifier: Apache-2.0 */
#include "call.h"

#include <errno.h>
#include <inttypes.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#define PARALLEL 16u /* transfers at a time; what is beyond waits its turn */
#define AGAIN_MS 60u

static int on_socket(void *context, curl_socket_t fd, curlsocktype purpose)
{
    int count = 3;

    (void)context;
    (void)purpose;
    /* with CURLOPT_TCP_KEEPIDLE and _KEEPINTVL: a peer that is gone is noticed in some 10 s */
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &count, sizeof(count));
    return CURL_SOCKOPT_OK;
}

CURL *mcm_easy_new(struct mcm_service *s)
{
    CURL *easy = curl_easy_init();

    if (!easy)
        return NULL;
    curl_easy_setopt(easy, CURLOPT_NOSIGNAL, 1L);
    /* a name server that does not answer must not hold up the end of a transfer */
    curl_easy_setopt(easy, CURLOPT_QUICK_EXIT, 1L);
    curl_easy_setopt(easy, CURLOPT_PROXY, ""); /* the environment has no say here */
    curl_easy_setopt(easy, CURLOPT_PROTOCOLS_STR, "http,https");
    curl_easy_setopt(easy, CURLOPT_HTTP_VERSION, CURL_HTTP_VERSION_1_1);
    curl_easy_setopt(easy, CURLOPT_FOLLOWLOCATION, 0L);
    curl_easy_setopt(easy, CURLOPT_TCP_NODELAY, 1L);
    curl_easy_setopt(easy, CURLOPT_TCP_KEEPALIVE, 1L);
    curl_easy_setopt(easy, CURLOPT_TCP_KEEPIDLE, 4L);
    curl_easy_setopt(easy, CURLOPT_TCP_KEEPINTVL, 2L);
    curl_easy_setopt(easy, CURLOPT_SOCKOPTFUNCTION, on_socket);
    if (*s->o.ca)
        curl_easy_setopt(easy, CURLOPT_CAINFO, s->o.ca);
    if (*s->o.cert) {
        curl_easy_setopt(easy, CURLOPT_SSLCERT, s->o.cert);
        curl_easy_setopt(easy, CURLOPT_SSLKEY, s->o.key);
    }
    return easy;
}

void mcm_endpoint_good(struct mcm_service *s, size_t i)
{
    s->endpoints[i].failing = false;
    s->endpoints[i].probe_at = 0;
}

void mcm_endpoint_bad(struct mcm_service *s, size_t i, const char *text)
{
    if (!s->endpoints[i].failing)
        mcm_log(s, MCM_LOG_WARNING, "metadata: %s", text);
    s->endpoints[i].failing = true;
    mcm_failure(s, text);
    if (i != s->current)
        return;
    for (size_t k = 1; k < s->endpoints_n; k++) {
        size_t next = (i + k) % s->endpoints_n;

        /* one that is not known to fail, else whichever is next */
        if (!s->endpoints[next].failing) {
            s->current = next;
            return;
        }
    }
    s->current = (i + 1) % s->endpoints_n;
}

struct mcm_call *mcm_call_new(struct mcm_service *s, const char *method, const char *path,
                              uint64_t deadline,
                              void (*done)(struct mcm_service *s, struct mcm_call *c),
                              void *context)
{
    struct mcm_call *c = calloc(1, sizeof(*c));

    (void)s;
    if (!c)
        return NULL;
    c->method = method;
    c->deadline = deadline;
    c->done = done;
    c->context = context;
    c->only = -1;
    mcm_text_add(&c->path, "%s", path);
    return c;
}

void mcm_call_free(struct mcm_call *c)
{
    cJSON_Delete(c->json);
    mcm_text_fini(&c->path);
    mcm_text_fini(&c->body);
    mcm_text_fini(&c->reply);
    free(c);
}

void mcm_call_start(struct mcm_service *s, struct mcm_call *c)
{
    c->next = NULL;
    c->state = MCM_CALL_QUEUED;
    *s->calls_end = c;
    s->calls_end = &c->next;
    mcm_service_at(s, 0);
}

static void finish(struct mcm_service *s, struct mcm_call *c)
{
    c->state = MCM_CALL_OVER;
    c->done(s, c);
}

static void fail(struct mcm_service *s, struct mcm_call *c, int res, const char *reason)
{
    c->res = res;
    if (reason != c->text)
        snprintf(c->text, sizeof(c->text), "%s", reason);
    finish(s, c);
}

static size_t on_data(char *data, size_t one, size_t n, void *context)
{
    struct mcm_call *c = context;

    (void)one;
    if (c->reply.size + n > MCM_REPLY_MAX) {
        c->too_large = true;
        return 0;
    }
    mcm_text_bytes(&c->reply, data, n);
    return c->reply.failed ? 0 : n;
}

static unsigned tries_of(const struct mcm_service *s, const struct mcm_call *c)
{
    return c->only >= 0 ? 1 : s->endpoints_n > 2 ? (unsigned)s->endpoints_n : 2;
}

static bool add_header(struct mcm_call *c, const char *header)
{
    struct curl_slist *list = curl_slist_append(c->headers, header);

    if (list)
        c->headers = list;
    return list != NULL;
}

static bool prepare(struct mcm_service *s, struct mcm_call *c, uint64_t now)
{
    unsigned left = tries_of(s, c) > c->tries ? tries_of(s, c) - c->tries : 1;
    uint64_t limit = (c->deadline - now) / left;
    const char *token = c->no_token ? NULL : mcm_etcd_token(s);
    struct mcm_text url = {0};
    bool ok;

    c->endpoint = c->only >= 0 ? (size_t)c->only : s->current;
    c->easy = mcm_easy_new(s);
    mcm_text_add(&url, "%s%s", s->endpoints[c->endpoint].url, c->path.at);
    ok = c->easy && !url.failed && !c->path.failed && !c->body.failed && add_header(c, "Expect:");
    if (ok && strcmp(c->method, "GET") != 0)
        ok = add_header(c, "Content-Type: application/json");
    if (ok && token) {
        struct mcm_text header = {0};

        mcm_text_add(&header, "Authorization: %s", token);
        ok = !header.failed && add_header(c, header.at);
        mcm_text_fini(&header);
    }
    if (ok) {
        *c->curl_error = '\0';
        curl_easy_setopt(c->easy, CURLOPT_URL, url.at);
        curl_easy_setopt(c->easy, CURLOPT_PRIVATE, c);
        curl_easy_setopt(c->easy, CURLOPT_ERRORBUFFER, c->curl_error);
        curl_easy_setopt(c->easy, CURLOPT_HTTPHEADER, c->headers);
        curl_easy_setopt(c->easy, CURLOPT_WRITEFUNCTION, on_data);
        curl_easy_setopt(c->easy, CURLOPT_WRITEDATA, c);
        curl_easy_setopt(c->easy, CURLOPT_TIMEOUT_MS, (long)(limit ? limit : 1));
        curl_easy_setopt(c->easy, CURLOPT_CONNECTTIMEOUT_MS, (long)(limit ? limit : 1));
        if (strcmp(c->method, "POST") == 0 || strcmp(c->method, "PUT") == 0) {
            curl_easy_setopt(c->easy, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)c->body.size);
            curl_easy_setopt(c->easy, CURLOPT_POSTFIELDS, c->body.at ? c->body.at : "");
        }
        if (strcmp(c->method, "GET") != 0 && strcmp(c->method, "POST") != 0)
            curl_easy_setopt(c->easy, CURLOPT_CUSTOMREQUEST, c->method);
        if (*s->o.user && s->ops == &mcm_http_ops) {
            curl_easy_setopt(c->easy, CURLOPT_USERNAME, s->o.user);
            curl_easy_setopt(c->easy, CURLOPT_PASSWORD, s->o.password);
        }
        if (c->tries) /* whatever was wrong with the kept connection */
            curl_easy_setopt(c->easy, CURLOPT_FRESH_CONNECT, 1L);
        ok = curl_multi_add_handle(s->multi, c->easy) == CURLM_OK;
    }
    mcm_text_fini(&url);
    return ok;
}

static void release(struct mcm_service *s, struct mcm_call *c)
{
    if (c->easy) {
        curl_multi_remove_handle(s->multi, c->easy);
        curl_easy_cleanup(c->easy);
    }
    curl_slist_free_all(c->headers);
    c->easy = NULL;
    c->headers = NULL;
}

static void begin(struct mcm_service *s, struct mcm_call *c, uint64_t now)
{
    cJSON_Delete(c->json);
    c->json = NULL;
    mcm_text_fini(&c->reply);
    c->too_large = false;
    c->res = 0;
    c->status = 0;
    c->sent = now;
    if (!prepare(s, c, now)) {
        release(s, c);
        fail(s, c, -ENOMEM, "no memory for a request to the metadata service");
        return;
    }
    c->state = MCM_CALL_RUNNING;
    c->tries++;
    s->running++;
}

static void sweep(struct mcm_service *s)
{
    struct mcm_call **p = &s->calls, *c;

    while ((c = *p)) {
        if (c->state != MCM_CALL_OVER) {
            p = &c->next;
            continue;
        }
        *p = c->next;
        mcm_call_free(c);
    }
    s->calls_end = p;
}

void mcm_calls_tick(struct mcm_service *s, uint64_t now)
{
    sweep(s);
    for (struct mcm_call *c = s->calls; c; c = c->next) {
        if (c->state != MCM_CALL_QUEUED)
            continue;
        if (now >= c->deadline) {
            char text[sizeof(c->text)];

            snprintf(text, sizeof(text), "%s did not answer within the time limit: %.180s",
                     s->ops->name, *c->text ? c->text : "no answer; see [meta] timeout_ms");
            fail(s, c, -ECOMM, text);
            continue;
        }
        mcm_service_at(s, c->deadline);
        if (now < c->again) {
            mcm_service_at(s, c->again);
            continue;
        }
        if (!c->no_token && mcm_etcd_token_awaited(s))
            continue;
        if (s->running < PARALLEL || c->urgent || c->last_words)
            begin(s, c, now);
    }
}

/* What the transfer came to, before anybody looks at the answer. */
static int look(struct mcm_service *s, struct mcm_call *c, CURLcode code)
{
    const char *url = s->endpoints[c->endpoint].url;

    if (c->too_large) {
        snprintf(c->text, sizeof(c->text),
                 "%s at %s: its answer is larger than %u bytes and was not read", s->ops->name, url,
                 MCM_REPLY_MAX);
        s->now.bad_replies++;
        c->res = -EBADMSG;
        return MCM_VERDICT_GOOD;
    }
    if (c->reply.failed) {
        snprintf(c->text, sizeof(c->text), "no memory for the answer of %s", url);
        c->res = -ENOMEM;
        return MCM_VERDICT_GOOD;
    }
    if (code != CURLE_OK) {
        snprintf(c->text, sizeof(c->text), "%s at %s: %.120s; is it running and reachable?",
                 s->ops->name, url, *c->curl_error ? c->curl_error : curl_easy_strerror(code));
        c->res = -ECOMM;
        return MCM_VERDICT_RETRY;
    }
    curl_easy_getinfo(c->easy, CURLINFO_RESPONSE_CODE, &c->status);
    return s->ops->judge(s, c);
}

bool mcm_calls_finished(struct mcm_service *s, CURL *easy, CURLcode code)
{
    struct mcm_call *c;
    uint64_t now = mcm_now();
    int verdict;

    for (c = s->calls; c && (c->easy != easy || c->state != MCM_CALL_RUNNING); c = c->next)
        ;
    if (!c) {
        /* a stream of the back end's: it looks at its handle itself */
        char *private = NULL;
        void (**finished)(struct mcm_service *, void *, CURLcode);

        curl_easy_getinfo(easy, CURLINFO_PRIVATE, &private);
        finished = (void (**)(struct mcm_service *, void *, CURLcode))(void *)private;
        if (finished)
            (*finished)(s, finished, code);
        return false;
    }
    s->running--;
    verdict = look(s, c, code);
    release(s, c);
    if (verdict == MCM_VERDICT_RETRY) {
        bool more = c->tries < tries_of(s, c) && now < c->deadline;

        mcm_endpoint_bad(s, c->endpoint, c->text);
        if (!more) {
            finish(s, c);
            return true;
        }
        s->now.retries++;
        /* the next endpoint at once; one that was asked already after a moment */
        c->again = c->tries < s->endpoints_n ? 0 : now + mcm_jitter(s, AGAIN_MS);
        c->state = MCM_CALL_QUEUED;
        return true;
    }
    mcm_endpoint_good(s, c->endpoint);
    if (verdict == MCM_VERDICT_TOKEN) {
        mcm_etcd_token_refused(s);
        if (c->tokens++ || c->no_token || now >= c->deadline) {
            c->res = -EACCES;
            finish(s, c);
            return true;
        }
        s->now.retries++;
        c->tries--; /* the endpoint did answer */
        c->state = MCM_CALL_QUEUED;
        return true;
    }
    if (c->res)
        mcm_failure(s, c->text);
    finish(s, c);
    return true;
}

void mcm_calls_cancel(struct mcm_service *s, bool all)
{
    /* done() may start others, which then stand at the end of the list */
    for (struct mcm_call *c = s->calls; c; c = c->next) {
        if (c->state == MCM_CALL_OVER || (c->last_words && !all))
            continue;
        if (c->state == MCM_CALL_RUNNING) {
            s->running--;
            release(s, c);
        }
        fail(s, c, -ECANCELED, "the agent ends");
    }
    sweep(s);
}

void mcm_calls_refuse(struct mcm_service *s, int res, const char *text)
{
    for (struct mcm_call *c = s->calls; c; c = c->next)
        if (c->state == MCM_CALL_QUEUED && !c->no_token)
            fail(s, c, res, text);
}
