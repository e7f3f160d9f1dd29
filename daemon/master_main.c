/* SPDX-License-Identifier: Apache-2.0 */
/* mcshm-master: the store's directory in a process of its own.  An agent without engines, memory and clients. */
#include <errno.h>
#include <getopt.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <unistd.h>

#include "agent.h"
#include "log.h"
#include "version.h"

#define DEFAULT_CONFIG "/etc/mcshm/mcshm-master.ini"

static const char usage[] =
    "usage: mcshm-master [OPTION]...\n"
    "A master of the object store: it knows which agents hold which keys, says who may write one, "
    "and\n"
    "has replicas made. Several may run; one leads. Agents lead by themselves ([store] master =\n"
    "embedded), so none is needed; with masters of their own, agents say follow, or HOST:PORT.\n"
    "\n"
    "  -c, --config FILE   configuration (default " DEFAULT_CONFIG
    " if it is there): mcshmd.ini's\n"
    "                      keys, of which [peer], [meta], [store], [admin] and [log] count\n"
    "  -s, --set SEC.KEY=VAL  one key, over the file; may be repeated\n"
    "      --check-config  read the configuration, say what is wrong, exit 0 or 1\n"
    "      --man-page      print the manual page mcshm-master(8)\n"
    "      --ready-fd N    write one byte to descriptor N and close it once ready\n"
    "      --version       print the version\n"
    "  -h, --help          print this\n"
    "\n"
    "[peer] listen is where agents reach it. With [meta] backend = etcd the masters elect one of "
    "them,\n"
    "else it leads for good, and agents name its address in [store] master. It keeps nothing on "
    "disk:\n"
    "agents tell a new leader what they hold. SIGTERM or SIGINT stops it; another takes the lead.\n"
    "SIGHUP reads the configuration again and applies the keys that are marked live.\n";

static void man_page(FILE *out)
{
    fputs(".\\\" SPDX-License-Identifier: Apache-2.0\n"
          ".TH MCSHM-MASTER 8 \"\" \"mcshm " MCD_VERSION
          "\"\n.SH NAME\nmcshm\\-master \\- the directory of the object "
          "store\n.SH SYNOPSIS\n.B mcshm\\-master\n.RI [ OPTION ]...\n"
          ".SH DESCRIPTION\n.nf\n",
          out);
    mcd_config_man_text(usage, out);
    fputs(".fi\n.SH FILES\n.TP\n.I " DEFAULT_CONFIG "\nthe configuration\n"
          ".SH EXIT STATUS\n0 after a clean stop, 1 when something is missing or wrong, which is "
          "said in one sentence, 2 for a wrong command line.\n"
          ".SH SEE ALSO\n.BR mcshmd (8),\n.BR mcshmd.ini (5),\n.BR mcshm (1)\n",
          out);
}

struct options {
    const char *config;
    const char *sets[64];
    int nsets;
    int ready_fd;
    bool check, man, version, help;
};

static struct options options = {.ready_fd = -1};

/* 0, or the exit status of a usage error. */
static int parse(int argc, char **argv, struct options *o)
{
    enum { CHECK = 256, MAN, READY, VERSION };
    static const struct option longs[] = {
        {"config", required_argument, NULL, 'c'},
        {"set", required_argument, NULL, 's'},
        {"check-config", no_argument, NULL, CHECK},
        {"man-page", no_argument, NULL, MAN},
        {"ready-fd", required_argument, NULL, READY},
        {"version", no_argument, NULL, VERSION},
        {"help", no_argument, NULL, 'h'},
        {NULL, 0, NULL, 0},
    };
    int ch;

    while ((ch = getopt_long(argc, argv, "c:s:h", longs, NULL)) != -1) {
        switch (ch) {
        case 'c':
            o->config = optarg;
            break;
        case 's':
            if (o->nsets == (int)(sizeof(o->sets) / sizeof(o->sets[0]))) {
                fprintf(stderr, "mcshm-master: more than 64 --set options: use a file\n");
                return 2;
            }
            o->sets[o->nsets++] = optarg;
            break;
        case CHECK:
            o->check = true;
            break;
        case MAN:
            o->man = true;
            break;
        case READY:
            o->ready_fd = mcd_ready_fd(optarg);
            if (o->ready_fd < 0) {
                fprintf(stderr,
                        "mcshm-master: --ready-fd wants an open descriptor from 3 on, not '%s'\n",
                        optarg);
                return 2;
            }
            break;
        case VERSION:
            o->version = true;
            break;
        case 'h':
            o->help = true;
            break;
        default:
            fputs(usage, stderr);
            return 2;
        }
    }
    if (optind != argc) {
        fprintf(stderr, "mcshm-master: what is '%s'?\n%s", argv[optind], usage);
        return 2;
    }
    return 0;
}

/* What only an agent has is off, whatever the file says: it may be the agents' own. */
static int configure(struct mcd_config *c, char *error, size_t error_size)
{
    const struct options *o = &options;
    int res = 0;

    mcd_config_init(c);
    if (o->config != NULL || access(DEFAULT_CONFIG, F_OK) == 0)
        res = mcd_config_load(c, o->config != NULL ? o->config : DEFAULT_CONFIG, error, error_size);
    for (int i = 0; i < o->nsets && res == 0; i++)
        res = mcd_config_set(c, o->sets[i], error, error_size);
    c->store_size = 0;
    snprintf(c->mooncake_listen, sizeof(c->mooncake_listen), "off");
    if (res == 0)
        res = mcd_config_check(c, error, error_size);
    if (res == 0 && strcmp(c->peer_listen, "off") == 0) {
        snprintf(error, error_size,
                 "[peer] listen = off: name the address:port where agents reach this master");
        res = -EINVAL;
    }
    if (res == 0 &&
        (strcmp(c->store_master, "off") == 0 || strcmp(c->store_master, "follow") == 0)) {
        snprintf(error, error_size,
                 "[store] master = %s: a master that neither leads nor may lead does nothing; say "
                 "embedded",
                 c->store_master);
        res = -EINVAL;
    }
    return res;
}

static void tell_ready(const struct mcd_agent *a, int ready_fd)
{
    mcd_keeper_tell(&a->keeper, "READY=1\nSTATUS=serving");
    mcd_info("ready: version %s, a master of the store", MCD_VERSION);
    if (ready_fd < 0)
        return;
    if (write(ready_fd, "R", 1) != 1)
        mcd_warning("nobody reads --ready-fd");
    close(ready_fd);
}

static int serve(struct mcd_agent *a)
{
    char error[512] = "";
    struct rlimit r;
    sigset_t set;
    int res;

    /* before any thread exists: signals are read from a descriptor by the control thread */
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGHUP);
    pthread_sigmask(SIG_BLOCK, &set, NULL);
    signal(SIGPIPE, SIG_IGN);
    if (getrlimit(RLIMIT_NOFILE, &r) == 0 && r.rlim_cur < r.rlim_max) {
        r.rlim_cur = r.rlim_max;
        setrlimit(RLIMIT_NOFILE, &r);
    }
    a->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (a->event_fd < 0) {
        mcd_error("no event descriptor for the control thread: %s", strerror(errno));
        return 1;
    }
    mcd_pool_init(&a->pool, &a->config);
    res = mcd_control_init(a, error, sizeof(error));
    if (res == 0) {
        tell_ready(a, options.ready_fd);
        mcd_control_run(a);
    }
    mcd_control_fini(a);
    close(a->event_fd);
    mcd_keeper_close(&a->keeper);
    if (res != 0)
        mcd_error("%s", error[0] != '\0' ? error : strerror(-res));
    else
        mcd_info("stopped");
    return res == 0 ? 0 : 1;
}

int main(int argc, char **argv)
{
    static struct mcd_agent agent;
    char error[512];
    int res;

    res = parse(argc, argv, &options);
    if (res != 0)
        return res;
    if (options.help || options.version || options.man) {
        if (options.help)
            fputs(usage, stdout);
        else if (options.version)
            puts("mcshm-master " MCD_VERSION);
        else
            man_page(stdout);
        return fflush(stdout) == 0 ? 0 : 1;
    }
    res = configure(&agent.config, error, sizeof(error));
    if (res != 0) {
        fprintf(stderr, "mcshm-master: %s\n", error);
        return 1;
    }
    if (options.check)
        return 0;
    mcd_log_init();
    mcd_log_set_name("mcshm-master");
    mcd_log_set_level((int)agent.config.log_level);
    mcd_keeper_open(&agent.keeper);
    agent.reread = configure;
    agent.incarnation = mcd_incarnation();
    agent.started_ns = mcd_now_ns();
    agent.master_only = true;
    return serve(&agent);
}
