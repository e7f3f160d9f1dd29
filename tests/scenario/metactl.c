/* SPDX-License-Identifier: Apache-2.0 */
/*
 * store/meta by hand: commands on standard input, one JSON object a line on standard output.
 *
 *   metactl backend=etcd endpoints=URL,... address=HOST:PORT [incarnation=N] [prefix=] [ttl=]
 *           [timeout=] [user=] [password=] [ca=] [cert=] [key=]
 *
 *   register ID NAME INCARNATION     unregister ID NAME INCARNATION
 *   lookup ID NAME [fresh]           get ID KEY    put ID KEY VALUE    delete ID KEY
 *   puts ID KEY SIZE                 (a value of so many bytes)
 *   lead ID candidate|follow         leader ID     raise ID TOKEN    holders ID
 *   state ID                         quit
 *
 * NAME, KEY and VALUE are percent-encoded. ID comes back with the answer.
 */
#include "store/meta/meta.h"
#include "store/meta/text.h"

#include <inttypes.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

static struct mcm *meta;
static char address[MCM_ADDRESS_MAX] = "127.0.0.1:7000";
static uint64_t incarnation = 1;

static void say(struct mcm_text *t)
{
    mcm_text_add(t, "}\n");
    fwrite(t->at, 1, t->size, stdout);
    fflush(stdout);
    mcm_text_fini(t);
}

static void log_line(int level, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    fprintf(stderr, "%d ", level);
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
    va_end(args);
}

static void changed(void *context, const char *name, uint64_t now)
{
    struct mcm_text t = {0};

    (void)context;
    mcm_text_add(&t, "{\"event\":\"changed\",\"name\":");
    mcm_text_quoted(&t, name);
    mcm_text_add(&t, ",\"incarnation\":%" PRIu64, now);
    say(&t);
}

static void done(void *context, const struct mcm_result *r)
{
    struct mcm_text t = {0};

    mcm_text_add(&t, "{\"id\":");
    mcm_text_quoted(&t, context);
    mcm_text_add(&t, ",\"res\":%d,\"text\":", r->res);
    mcm_text_quoted(&t, r->text);
    if (r->record) {
        mcm_text_add(&t, ",\"record\":{\"name\":");
        mcm_text_quoted(&t, r->record->name);
        mcm_text_add(&t, ",\"agent\":");
        mcm_text_quoted(&t, r->record->agent);
        mcm_text_add(&t,
                     ",\"incarnation\":%" PRIu64 ",\"agent_incarnation\":%" PRIu64
                     ",\"tenant\":%" PRIu64 "}",
                     r->record->incarnation, r->record->agent_incarnation, r->record->tenant);
    }
    if (r->value) {
        mcm_text_add(&t, ",\"size\":%zu,\"value\":\"", r->size);
        mcm_text_base64(&t, r->value, r->size < 65536 ? r->size : 65536);
        mcm_text_add(&t, "\"");
    }
    say(&t);
    free(context);
}

static void state(const char *id)
{
    struct mcm_text t = {0};
    struct mcm_state s;

    mcm_get_state(meta, &s);
    mcm_text_add(&t, "{\"id\":");
    mcm_text_quoted(&t, id);
    mcm_text_add(&t, ",\"health\":\"%s\",\"backend\":\"%s\",\"endpoint\":",
                 s.health == MCM_OK     ? "ok"
                 : s.health == MCM_DOWN ? "down"
                                        : "degraded",
                 s.backend);
    mcm_text_quoted(&t, s.endpoint);
    mcm_text_add(&t, ",\"error\":");
    mcm_text_quoted(&t, s.error);
    mcm_text_add(&t,
                 ",\"lease\":%" PRIu64 ",\"registered\":%" PRIu64 ",\"wanted\":%" PRIu64
                 ",\"cached\":%" PRIu64 ",\"requests\":%" PRIu64 ",\"failures\":%" PRIu64
                 ",\"retries\":%" PRIu64 ",\"leases_lost\":%" PRIu64 ",\"relists\":%" PRIu64
                 ",\"watch_restarts\":%" PRIu64 ",\"bad_replies\":%" PRIu64
                 ",\"stale_taken\":%" PRIu64,
                 s.lease, s.registered, s.wanted, s.cached, s.requests, s.failures, s.retries,
                 s.leases_lost, s.relists, s.watch_restarts, s.bad_replies, s.stale_taken);
    say(&t);
}

/* sure: this agent leads, and its clock says that nobody else can. */
static void leader(const char *id)
{
    struct mcm_text t = {0};
    struct mcm_leader l;
    struct timespec now;

    mcm_lead_get(meta, &l);
    clock_gettime(CLOCK_BOOTTIME, &now);
    mcm_text_add(&t, "{\"id\":");
    mcm_text_quoted(&t, id);
    mcm_text_add(&t, ",\"address\":");
    mcm_text_quoted(&t, l.address);
    mcm_text_add(&t, ",\"incarnation\":%" PRIu64 ",\"token\":%" PRIu64 ",\"mine\":%s,\"sure\":%s",
                 l.incarnation, l.token, l.mine ? "true" : "false",
                 l.mine && l.until > (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000
                     ? "true"
                     : "false");
    say(&t);
}

static void holders(const char *id)
{
    char(*all)[MCM_ADDRESS_MAX];
    struct mcm_text t = {0};
    size_t n = mcm_lead_holders(meta, &all);

    mcm_text_add(&t, "{\"id\":");
    mcm_text_quoted(&t, id);
    mcm_text_add(&t, ",\"holders\":[");
    for (size_t i = 0; i < n; i++) {
        mcm_text_add(&t, i ? "," : "");
        mcm_text_quoted(&t, all[i]);
    }
    mcm_text_add(&t, "]");
    say(&t);
    free(all);
}

static char *decode(char *text)
{
    char *to = text;

    for (char *p = text; *p; p++) {
        char hex[3] = {0};

        if (*p == '%' && p[1] && p[2]) {
            memcpy(hex, p + 1, 2);
            *to++ = (char)strtol(hex, NULL, 16);
            p += 2;
        } else {
            *to++ = *p;
        }
    }
    *to = '\0';
    return text;
}

/* Returns whether to go on. */
static bool command(char *line)
{
    char *word[4] = {0}, *rest = line;
    char none[1] = "";

    for (size_t i = 0; i < 4; i++) {
        word[i] = strsep(&rest, " ");
        if (!word[i])
            word[i] = none;
    }
    if (!*word[0])
        return true;
    if (strcmp(word[0], "quit") == 0)
        return false;
    if (strcmp(word[0], "state") == 0) {
        state(word[1]);
        return true;
    }
    if (strcmp(word[0], "leader") == 0) {
        leader(word[1]);
        return true;
    }
    if (strcmp(word[0], "holders") == 0) {
        holders(word[1]);
        return true;
    }
    if (strcmp(word[0], "lead") == 0) {
        struct mcm_result r = {.res = mcm_lead(meta, strcmp(word[2], "candidate") == 0),
                               .text = ""};

        done(strdup(word[1]), &r);
        return true;
    }
    if (strcmp(word[0], "raise") == 0) {
        mcm_lead_raise(meta, strtoull(word[2], NULL, 10), strcmp(word[3], "emptied") == 0);
        return true;
    }
    decode(word[2]);
    if (strcmp(word[0], "register") == 0) {
        struct mcm_record r = {.incarnation = strtoull(word[3], NULL, 10),
                               .agent_incarnation = incarnation,
                               .tenant = 5,
                               .version = MCM_VERSION};

        /* one byte longer than allowed stays too long */
        if (strlen(word[2]) < sizeof(r.name))
            strcpy(r.name, word[2]);
        else
            memset(r.name, 'x', sizeof(r.name));
        strcpy(r.agent, address);
        mcm_register(meta, &r, done, strdup(word[1]));
    } else if (strcmp(word[0], "unregister") == 0) {
        mcm_unregister(meta, word[2], strtoull(word[3], NULL, 10), done, strdup(word[1]));
    } else if (strcmp(word[0], "lookup") == 0) {
        mcm_lookup(meta, word[2], strcmp(word[3], "fresh") == 0, done, strdup(word[1]));
    } else if (strcmp(word[0], "get") == 0) {
        mcm_get(meta, word[2], done, strdup(word[1]));
    } else if (strcmp(word[0], "put") == 0) {
        decode(word[3]);
        mcm_put(meta, word[2], word[3], strlen(word[3]), done, strdup(word[1]));
    } else if (strcmp(word[0], "puts") == 0) {
        size_t size = strtoull(word[3], NULL, 10);
        char *value = malloc(size + 1);

        memset(value, 'v', size);
        mcm_put(meta, word[2], value, size, done, strdup(word[1]));
        free(value);
    } else if (strcmp(word[0], "delete") == 0) {
        mcm_delete(meta, word[2], done, strdup(word[1]));
    } else {
        fprintf(stderr, "no such command: %s\n", word[0]);
        return false;
    }
    return true;
}

static void serve(int event_fd)
{
    static char buffer[1 << 20];
    size_t have = 0;
    bool more = true;

    while (more) {
        struct pollfd fds[] = {{.fd = 0, .events = POLLIN}, {.fd = event_fd, .events = POLLIN}};
        char *line = buffer, *end;
        uint64_t n;
        ssize_t got;

        poll(fds, 2, -1);
        if (fds[1].revents && read(event_fd, &n, sizeof(n)) == sizeof(n))
            mcm_run(meta);
        if (!fds[0].revents)
            continue;
        got = read(0, buffer + have, sizeof(buffer) - 1 - have);
        if (got <= 0)
            break;
        have += (size_t)got;
        buffer[have] = '\0';
        while (more && (end = strchr(line, '\n'))) {
            *end = '\0';
            more = command(line);
            line = end + 1;
        }
        have -= (size_t)(line - buffer);
        memmove(buffer, line, have);
    }
}

int main(int argc, char **argv)
{
    struct mcm_options o = {.backend = MCM_ETCD,
                            .prefix = "mcshm",
                            .ttl_s = 5,
                            .timeout_ms = 3000,
                            .log = log_line,
                            .changed = changed};
    char error[512];

    for (int i = 1; i < argc; i++) {
        char *value = strchr(argv[i], '='), *name = argv[i];

        if (!value)
            return 2;
        *value++ = '\0';
        if (strcmp(name, "backend") == 0)
            o.backend = strcmp(value, "etcd") == 0   ? MCM_ETCD
                        : strcmp(value, "http") == 0 ? MCM_HTTP
                        : strcmp(value, "p2p") == 0  ? MCM_P2P
                                                     : MCM_MEMORY;
        else if (strcmp(name, "endpoints") == 0)
            o.endpoints = value;
        else if (strcmp(name, "address") == 0)
            snprintf(address, sizeof(address), "%s", value);
        else if (strcmp(name, "incarnation") == 0)
            incarnation = strtoull(value, NULL, 10);
        else if (strcmp(name, "prefix") == 0)
            o.prefix = value;
        else if (strcmp(name, "ttl") == 0)
            o.ttl_s = strtoull(value, NULL, 10);
        else if (strcmp(name, "timeout") == 0)
            o.timeout_ms = strtoull(value, NULL, 10);
        else if (strcmp(name, "user") == 0)
            o.user = value;
        else if (strcmp(name, "password") == 0)
            o.password = value;
        else if (strcmp(name, "ca") == 0)
            o.ca = value;
        else if (strcmp(name, "cert") == 0)
            o.cert = value;
        else if (strcmp(name, "key") == 0)
            o.key = value;
        else
            return 2;
    }
    o.address = address;
    o.incarnation = incarnation;
    o.notify_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (mcm_create(&o, &meta, error, sizeof(error))) {
        fprintf(stderr, "%s\n", error);
        return 1;
    }
    serve(o.notify_fd);
    mcm_destroy(meta);
    close(o.notify_fd);
    return 0;
}
