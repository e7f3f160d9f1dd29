/* SPDX-License-Identifier: Apache-2.0 */
#include "service.h"

#include "call.h"
#include "keep.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

#define BACKOFF_FIRST 100u
#define BACKOFF_LAST 1000u
#define PROBE_EVERY 1500u

uint64_t mcm_now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_BOOTTIME, &t);
    return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

bool mcm_stopping(const struct mcm_service *s)
{
    return s->stop_by != MCM_NEVER;
}

void mcm_service_at(struct mcm_service *s, uint64_t when)
{
    if (when < s->wake)
        s->wake = when;
}

uint64_t mcm_random(struct mcm_service *s)
{
    uint64_t x = s->random; /* xorshift64 */

    x ^= x << 13;
    x ^= x >> 7;
    x ^= x << 17;
    s->random = x;
    return x * 2685821657736338717u >> 16;
}

uint64_t mcm_jitter(struct mcm_service *s, uint64_t ms)
{
    return ms - ms / 4 + mcm_random(s) % (ms / 2 + 1);
}

uint64_t mcm_backoff(struct mcm_service *s, unsigned failures)
{
    uint64_t ms = BACKOFF_FIRST << (failures < 8 ? failures : 8);

    ms = ms > BACKOFF_LAST ? BACKOFF_LAST : ms;
    /* half fixed, half by chance: after two or three failures nobody's pace is left */
    return ms / 2 + mcm_random(s) % (ms / 2 + 1);
}

static void post_news(struct mcm_service *s, struct mcm_news *n)
{
    n->next = NULL;
    *s->fresh_end = n;
    s->fresh_end = &n->next;
    s->fresh_count++;
}

/* Hands this turn's news and state over; wakes the front when it had none. */
static void hand_over(struct mcm_service *s)
{
    bool first;

    pthread_mutex_lock(&s->lock);
    s->state = s->now;
    first = s->fresh && !s->out;
    if (s->fresh) {
        *s->out_end = s->fresh;
        s->out_end = s->fresh_end;
        s->out_count += s->fresh_count;
    }
    pthread_mutex_unlock(&s->lock);
    s->fresh = NULL;
    s->fresh_end = &s->fresh;
    s->fresh_count = 0;
    if (first) {
        uint64_t one = 1;

        /* a full counter wakes as well */
        if (write(s->o.notify_fd, &one, sizeof(one)) < 0 && errno != EAGAIN)
            mcm_log(s, MCM_LOG_ERROR, "metadata: cannot wake the agent: %s", strerror(errno));
    }
}

void mcm_answer(struct mcm_service *s, struct mcm_request *r, int res, const char *format, ...)
{
    struct mcm_news *n = calloc(1, sizeof(*n));
    va_list args;

    r->res = res;
    va_start(args, format);
    vsnprintf(r->text, sizeof(r->text), format, args);
    va_end(args);
    while (!n) { /* an answer cannot be left out, and this much comes free soon */
        usleep(1000);
        n = calloc(1, sizeof(*n));
    }
    n->kind = MCM_NEWS_DONE;
    n->request = r;
    post_news(s, n);
}

bool mcm_congested(struct mcm_service *s)
{
    bool is;

    pthread_mutex_lock(&s->lock);
    is = s->out_count + s->fresh_count > MCM_NEWS_MAX / 2;
    pthread_mutex_unlock(&s->lock);
    return is;
}

bool mcm_take_overflow(struct mcm_service *s)
{
    bool is;

    pthread_mutex_lock(&s->lock);
    is = s->overflow && s->out_count <= MCM_NEWS_MAX / 2;
    if (is)
        s->overflow = false;
    pthread_mutex_unlock(&s->lock);
    return is;
}

void mcm_tell(struct mcm_service *s, enum mcm_news_kind kind, const struct mcm_record *record,
              const char *name, struct mcm_stamp stamp)
{
    struct mcm_news *n = NULL;
    bool full = false;

    if (kind == MCM_NEWS_RECORD || kind == MCM_NEWS_GONE) {
        pthread_mutex_lock(&s->lock);
        full = s->out_count + s->fresh_count >= MCM_NEWS_MAX;
        pthread_mutex_unlock(&s->lock);
    }
    if (!full)
        n = calloc(1, sizeof(*n));
    if (!n) {
        pthread_mutex_lock(&s->lock);
        s->overflow = true;
        pthread_mutex_unlock(&s->lock);
        return;
    }
    n->kind = kind;
    n->stamp = stamp;
    if (record)
        n->record = *record;
    if (name)
        snprintf(n->record.name, sizeof(n->record.name), "%s", name);
    n->in_step = s->in_step;
    n->down = s->down;
    post_news(s, n);
}

void mcm_tell_sweep(struct mcm_service *s, uint64_t from, struct mcm_stamp stamp)
{
    struct mcm_news *n = calloc(1, sizeof(*n));

    if (!n) { /* listing everything tells it as well */
        pthread_mutex_lock(&s->lock);
        s->overflow = true;
        pthread_mutex_unlock(&s->lock);
        return;
    }
    n->kind = MCM_NEWS_SWEEP;
    n->from = from;
    n->stamp = stamp;
    post_news(s, n);
}

void mcm_failure(struct mcm_service *s, const char *text)
{
    s->now.failures++;
    snprintf(s->now.error, sizeof(s->now.error), "%s", text);
}

static void publish_state(struct mcm_service *s)
{
    bool all = true, any = false, in_step = s->ops->in_step(s);
    struct mcm_kept *k;

    for (size_t i = 0; i < s->endpoints_n; i++) {
        all = all && s->endpoints[i].failing;
        any = any || s->endpoints[i].failing;
    }
    s->now.registered = s->now.wanted = 0;
    for (k = s->kept; k; k = k->next)
        if (k->claim && k->wanted) {
            s->now.wanted++;
            s->now.registered += k->present;
        }
    s->now.health = all                                                               ? MCM_DOWN
                    : any || !s->ops->healthy(s) || s->now.registered < s->now.wanted ? MCM_DEGRADED
                                                                                      : MCM_OK;
    if (s->now.health == MCM_OK)
        s->now.error[0] = '\0';
    snprintf(s->now.endpoint, sizeof(s->now.endpoint), "%s", s->endpoints[s->current].url);
    if (all != s->down || in_step != s->in_step) {
        if (all != s->down && all)
            mcm_log(s, MCM_LOG_WARNING,
                    "metadata is down: %s; what is known stays in use, new names have to wait",
                    s->now.error);
        else if (all != s->down)
            mcm_log(s, MCM_LOG_INFO, "metadata is back: %s", s->now.endpoint);
        s->down = all;
        s->in_step = in_step;
        mcm_tell(s, MCM_NEWS_STATE, NULL, NULL, (struct mcm_stamp){0});
    }
    hand_over(s);
}

static void probed(struct mcm_service *s, struct mcm_call *c)
{
    struct mcm_endpoint *e = &s->endpoints[c->only];

    e->probing = false;
    e->probe_at = mcm_now() + mcm_jitter(s, PROBE_EVERY);
}

/* An endpoint that failed is asked now and then, so that its return is known. */
static void probe_tick(struct mcm_service *s, uint64_t now)
{
    for (size_t i = 0; i < s->endpoints_n; i++) {
        struct mcm_endpoint *e = &s->endpoints[i];
        struct mcm_call *c;

        if (!e->failing || e->probing || mcm_stopping(s))
            continue;
        if (!e->probe_at)
            e->probe_at = now + mcm_jitter(s, PROBE_EVERY);
        if (now < e->probe_at) {
            mcm_service_at(s, e->probe_at);
            continue;
        }
        c = s->ops->probe(s);
        e->probe_at = 0;
        if (!c) {
            mcm_service_at(s, now + PROBE_EVERY);
            continue;
        }
        c->only = (int)i;
        c->done = probed;
        e->probing = true;
        mcm_call_start(s, c);
    }
}

static void take_requests(struct mcm_service *s)
{
    struct mcm_request *r, *next;
    bool stop;

    pthread_mutex_lock(&s->lock);
    r = s->in;
    s->in = NULL;
    s->in_end = &s->in;
    stop = s->stop;
    pthread_mutex_unlock(&s->lock);
    if (stop && !mcm_stopping(s)) {
        s->stop_by = mcm_now() + s->o.timeout_ms;
        mcm_calls_cancel(s, false);
        mcm_keep_cancel(s);
        s->ops->stop(s, s->stop_by);
    }
    for (; r; r = next) {
        next = r->next;
        s->now.requests++;
        if (stop)
            mcm_answer(s, r, -ECANCELED, "the agent ends");
        else if (r->kind == MCM_LOOKUP || r->kind == MCM_GET)
            s->ops->ask(s, r);
        else
            mcm_keep_request(s, r);
    }
}

static void *run(void *arg)
{
    struct mcm_service *s = arg;

    for (;;) {
        uint64_t now;
        int left, running;
        CURLMsg *m;

        take_requests(s);
        s->wake = MCM_NEVER;
        now = mcm_now();
        s->ops->tick(s, now);
        mcm_keep_tick(s, now);
        probe_tick(s, now);
        mcm_calls_tick(s, now);
        curl_multi_perform(s->multi, &running);
        while ((m = curl_multi_info_read(s->multi, &left)))
            if (m->msg == CURLMSG_DONE) {
                mcm_calls_finished(s, m->easy_handle, m->data.result);
                s->wake = 0; /* what waited for it can go on */
            }
        publish_state(s);
        now = mcm_now();
        if (mcm_stopping(s)) {
            if ((!s->calls && !s->kept_busy && s->kept_at == MCM_NEVER) || now >= s->stop_by)
                break;
            mcm_service_at(s, s->stop_by);
        }
        if (s->wake > now)
            curl_multi_poll(s->multi, NULL, 0, s->wake - now > 60000 ? 60000 : (int)(s->wake - now),
                            NULL);
    }
    return NULL;
}

void mcm_service_post(struct mcm_service *s, struct mcm_request *r)
{
    r->next = NULL;
    pthread_mutex_lock(&s->lock);
    *s->in_end = r;
    s->in_end = &r->next;
    pthread_mutex_unlock(&s->lock);
    curl_multi_wakeup(s->multi);
}

void mcm_service_wake(struct mcm_service *s)
{
    curl_multi_wakeup(s->multi);
}

struct mcm_news *mcm_service_news(struct mcm_service *s)
{
    struct mcm_news *n;
    bool wake;

    pthread_mutex_lock(&s->lock);
    n = s->out;
    s->out = NULL;
    s->out_end = &s->out;
    wake = s->out_count > MCM_NEWS_MAX / 2;
    s->out_count = 0;
    pthread_mutex_unlock(&s->lock);
    if (wake)
        curl_multi_wakeup(s->multi);
    return n;
}

/* "URL,URL": each with a scheme we speak and a host. */
static int read_endpoints(struct mcm_service *s, char *error, size_t error_size)
{
    const char *p = s->o.endpoints ? s->o.endpoints : "";
    size_t limit = s->ops == &mcm_etcd_ops ? MCM_ENDPOINTS_MAX : 1;
    int err = 0;

    while (!err) {
        size_t n;
        char *url;
        CURLU *u;

        p += strspn(p, " \t,");
        n = strcspn(p, ",");
        while (n && (p[n - 1] == ' ' || p[n - 1] == '\t' || p[n - 1] == '/'))
            n--;
        if (!n)
            break;
        if (s->endpoints_n == limit || n >= sizeof(s->endpoints[0].url)) {
            snprintf(error, error_size,
                     "[meta] endpoints: more than %zu of them, or one of more than %zu bytes; the "
                     "%s back end takes no more",
                     limit, sizeof(s->endpoints[0].url) - 1, s->ops->name);
            err = -EINVAL;
            break;
        }
        url = s->endpoints[s->endpoints_n].url;
        memcpy(url, p, n);
        url[n] = '\0';
        u = curl_url();
        if (!u)
            err = -ENOMEM;
        else if ((strncmp(url, "http://", 7) != 0 && strncmp(url, "https://", 8) != 0) ||
                 curl_url_set(u, CURLUPART_URL, url, 0) != CURLUE_OK || strchr(url, '?') ||
                 strchr(url, '@')) {
            snprintf(error, error_size,
                     "[meta] endpoints: '%s' is no URL such as http://10.0.0.1:2379", url);
            err = -EINVAL;
        }
        curl_url_cleanup(u);
        s->endpoints_n++;
        p += strcspn(p, ",");
    }
    if (!err && !s->endpoints_n) {
        snprintf(error, error_size,
                 "[meta] endpoints is empty; the %s back end needs at least one URL", s->ops->name);
        err = -EINVAL;
    }
    return err;
}

static int check_options(const struct mcm_service *s, char *error, size_t error_size)
{
    const struct mcm_options *o = &s->o;
    const char *files[] = {o->ca, o->cert, o->key}, *keys[] = {"ca", "cert", "key"};
    int err = 0;

    if (o->ttl_s < 2 || o->ttl_s > 3600) {
        snprintf(error, error_size, "[meta] ttl_s is %" PRIu64 "; it may be 2 to 3600", o->ttl_s);
        err = -EINVAL;
    } else if (!o->timeout_ms || o->timeout_ms > 600000) {
        snprintf(error, error_size, "[meta] timeout_ms is %" PRIu64 "; it may be 1 to 600000",
                 o->timeout_ms);
        err = -EINVAL;
    } else if (!*s->o.prefix || strlen(o->prefix) > 128 || !mcm_good_name(o->prefix)) {
        snprintf(error, error_size,
                 "[meta] prefix '%s' is empty, longer than 128 bytes or no plain text", o->prefix);
        err = -EINVAL;
    } else if (!*o->address || strlen(o->address) >= MCM_ADDRESS_MAX) {
        snprintf(error, error_size,
                 "the %s back end needs [peer] listen (or advertise), of less than %u bytes: "
                 "records tell it to other agents",
                 s->ops->name, MCM_ADDRESS_MAX);
        err = -EINVAL;
    } else if (!*o->cert != !*o->key) {
        snprintf(error, error_size, "[meta] cert and key go together; %s is missing",
                 *o->cert ? "key" : "cert");
        err = -EINVAL;
    }
    for (size_t i = 0; !err && i < 3; i++)
        if (*files[i] && access(files[i], R_OK) != 0) {
            err = -errno;
            snprintf(error, error_size, "[meta] %s: cannot read %s: %s", keys[i], files[i],
                     strerror(-err));
        }
    return err;
}

/* The options with strings of their own; those that are NULL become empty. */
static int copy_options(struct mcm_service *s, const struct mcm_options *o)
{
    const char **strings[] = {&s->o.endpoints, &s->o.prefix, &s->o.user, &s->o.password,
                              &s->o.ca,        &s->o.cert,   &s->o.key,  &s->o.address};
    int err = 0;

    s->o = *o;
    for (size_t i = 0; i < sizeof(strings) / sizeof(strings[0]); i++) {
        *strings[i] = strdup(*strings[i] ? *strings[i] : "");
        if (!*strings[i])
            err = -ENOMEM;
    }
    if (asprintf(&s->prefix, "%s/segments/", o->prefix ? o->prefix : "") < 0) {
        s->prefix = NULL;
        err = -ENOMEM;
    }
    return err;
}

static void init_curl(void)
{
    curl_global_init(CURL_GLOBAL_DEFAULT);
}

int mcm_service_start(const struct mcm_options *o, const struct mcm_backend_ops *ops,
                      struct mcm_service **out, char *error, size_t error_size)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    struct mcm_service *s = calloc(1, sizeof(*s));
    int err;

    if (!s) {
        snprintf(error, error_size, "no memory for metadata");
        return -ENOMEM;
    }
    snprintf(error, error_size, "no memory for metadata");
    pthread_once(&once, init_curl);
    pthread_mutex_init(&s->lock, NULL);
    s->in_end = &s->in;
    s->out_end = &s->out;
    s->fresh_end = &s->fresh;
    s->calls_end = &s->calls;
    s->stop_by = s->kept_at = MCM_NEVER;
    s->ops = ops;
    s->epoch = 1;
    snprintf(s->now.backend, sizeof(s->now.backend), "%s", ops->name);
    if (getrandom(&s->random, sizeof(s->random), 0) != sizeof(s->random) || !s->random)
        s->random = mcm_now() << 20 ^ (uint64_t)getpid();
    err = copy_options(s, o);
    if (!err)
        err = check_options(s, error, error_size);
    if (!err)
        err = read_endpoints(s, error, error_size);
    if (!err) {
        /* agents of one cluster do not all begin at the first endpoint */
        s->current = mcm_random(s) % s->endpoints_n;
        s->multi = curl_multi_init();
        err = s->multi ? ops->start(s) : -ENOMEM;
    }
    if (!err) {
        publish_state(s);
        err = -pthread_create(&s->thread, NULL, run, s);
        if (err)
            snprintf(error, error_size, "cannot start the thread for metadata: %s", strerror(-err));
    }
    if (err) {
        mcm_service_free(s);
        s = NULL;
    } else {
        pthread_setname_np(s->thread, "mcm-meta");
        s->started = true;
    }
    *out = s;
    return err;
}

void mcm_service_stop(struct mcm_service *s)
{
    pthread_mutex_lock(&s->lock);
    s->stop = true;
    pthread_mutex_unlock(&s->lock);
    curl_multi_wakeup(s->multi);
    pthread_join(s->thread, NULL);
    s->started = false;
    /* the thread is gone: what it left is this thread's */
    mcm_calls_cancel(s, true);
    take_requests(s);
    hand_over(s);
}

void mcm_service_free(struct mcm_service *s)
{
    struct mcm_news *n, *next;
    const char *strings[] = {s->o.endpoints, s->o.prefix, s->o.user, s->o.password,
                             s->o.ca,        s->o.cert,   s->o.key,  s->o.address};

    if (s->backend)
        s->ops->free(s);
    mcm_keep_free(s);
    if (s->multi)
        curl_multi_cleanup(s->multi);
    for (n = s->out; n; n = next) {
        next = n->next;
        free(n);
    }
    for (size_t i = 0; i < sizeof(strings) / sizeof(strings[0]); i++)
        free((char *)strings[i]);
    free(s->prefix);
    free(s->lead.holders);
    free(s->lead.note);
    pthread_mutex_destroy(&s->lock);
    free(s);
}
