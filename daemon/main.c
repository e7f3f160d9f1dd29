/* SPDX-License-Identifier: Apache-2.0 */
/* mcshmd: command line, start in order, stop in reverse order. */
#include <errno.h>
#include <getopt.h>
#include <pthread.h>
#include <rte_cycles.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <unistd.h>

#include "agent.h"
#include "eal.h"
#include "gpu.h"
#include "log.h"
#include "mooncake.h"
#include "rdma.h"
#include "stage.h"
#include "store.h"
#include "supervise.h"
#include "version.h"
#include "shm/failpoint.h"

#define DEFAULT_CONFIG "/etc/mcshm/mcshmd.ini"
#define TICK_SHIFT_MAX 16
#define TICK_SHIFT_NS 4 /* descriptors are stamped to about so many nanoseconds */

static const char usage[] =
    "usage: mcshmd [OPTION]...\n"
    "The agent of one host: owns the pools of memory and moves bytes for its clients.\n"
    "\n"
    "  -c, --config FILE      configuration (default " DEFAULT_CONFIG " if it is there)\n"
    "  -s, --set SEC.KEY=VAL  one key, over the file; may be repeated\n"
    "      --check-config     read the configuration, say what is wrong, exit 0 or 1\n"
    "      --dump-config      print the configuration in force\n"
    "      --sample-config    print every key with its help, unit, range and default\n"
    "      --man-page         print the manual page mcshmd(8)\n"
    "      --man-page-config  print the manual page mcshmd.ini(5)\n"
    "      --ready-fd N       write one byte to descriptor N and close it once ready\n"
    "      --supervise        start the agent as a child, keep what its clients need to survive\n"
    "                         it, and start it anew when it dies\n"
    "      --version          print the version\n"
    "  -h, --help             print this\n"
    "\n"
    "SIGTERM or SIGINT stops cleanly, a second one at once. SIGHUP reads the configuration\n"
    "again and applies the keys that are marked live.\n"
    "\n"
    "Under --supervise, or systemd with a file descriptor store, clients survive the agent: they\n"
    "come back to the next one with all that they had. There SIGTERM to the agent itself stops it\n"
    "for a restart, and only SIGINT for good. To the supervisor, SIGUSR2 restarts the agent, also\n"
    "with a new program, and SIGTERM or SIGINT stops both for good.\n";

/* mcshmd(8): the option list above, so that it cannot go stale. */
static void man_page(FILE *out)
{
    fputs(
        ".\\\" SPDX-License-Identifier: Apache-2.0\n"
        ".TH MCSHMD 8 \"\" \"mcshm " MCD_VERSION "\"\n.SH NAME\nmcshmd \\- the agent of a host: "
        "pools of memory, transfers between processes\n.SH SYNOPSIS\n.B mcshmd\n.RI [ OPTION ]...\n"
        ".SH DESCRIPTION\n.nf\n",
        out);
    mcd_config_man_text(usage, out);
    fputs(".fi\n.SH CONFIGURATION\n"
          "An ini file, or one key each by\n.BR \\-\\-set ;\n.BR mcshmd.ini (5)\nhas all keys.\n"
          ".SH FILES\n.TP\n.I " DEFAULT_CONFIG
          "\nthe configuration\n.TP\n.I /run/mcshm/mcshmd.sock\nwhere clients connect\n"
          ".SH EXIT STATUS\n0 after a clean stop, 1 when something is missing or wrong, which is "
          "said "
          "in one sentence, 2 for a wrong command line.\n"
          ".SH SEE ALSO\n.BR mcshmd.ini (5),\n.BR mcshm (1),\n.BR mcshm\\-bench (1),\n.BR mcshm "
          "(3)\n",
          out);
}

/* mcshmd.ini(5): the table of keys. */
static void man_page_config(FILE *out)
{
    fputs(".\\\" SPDX-License-Identifier: Apache-2.0\n"
          ".TH MCSHMD.INI 5 \"\" \"mcshm " MCD_VERSION
          "\"\n.SH NAME\nmcshmd.ini \\- configuration of "
          "the agent mcshmd\n.SH SYNOPSIS\n.I " DEFAULT_CONFIG "\n.SH DESCRIPTION\n"
          "An ini file: sections in brackets, a line\n.I key = value\nfor each key that is not at "
          "its "
          "default, comments behind a semicolon. Sizes take the suffixes K, M, G and T. An unknown "
          "key or "
          "a value out of its range keeps the agent from starting; \\fBmcshmd "
          "\\-\\-check\\-config\\fP "
          "tells before. Keys marked live change with SIGHUP, the others with the agent's next "
          "start.\n",
          out);
    mcd_config_man(out);
    fputs(".SH SEE ALSO\n.BR mcshmd (8)\n", out);
}

struct options {
    const char *config;
    const char *sets[64];
    int nsets;
    int ready_fd;
    bool check, dump, sample, man, man_config, supervise, version, help;
};

/* 0, or the exit status of a usage error. */
static int parse(int argc, char **argv, struct options *o)
{
    enum { CHECK = 256, DUMP, SAMPLE, MAN, MAN_CONFIG, READY, SUPERVISE, VERSION };
    static const struct option longs[] = {
        {"config", required_argument, NULL, 'c'},
        {"set", required_argument, NULL, 's'},
        {"check-config", no_argument, NULL, CHECK},
        {"dump-config", no_argument, NULL, DUMP},
        {"sample-config", no_argument, NULL, SAMPLE},
        {"man-page", no_argument, NULL, MAN},
        {"man-page-config", no_argument, NULL, MAN_CONFIG},
        {"ready-fd", required_argument, NULL, READY},
        {"supervise", no_argument, NULL, SUPERVISE},
        {"version", no_argument, NULL, VERSION},
        {"help", no_argument, NULL, 'h'},
#ifdef MCS_FAILPOINTS
        {"failpoints", no_argument, NULL, VERSION + 1}, /* test builds only */
#endif
        {NULL, 0, NULL, 0},
    };
    int ch;

    *o = (struct options){.ready_fd = -1};
    while ((ch = getopt_long(argc, argv, "c:s:h", longs, NULL)) != -1) {
        switch (ch) {
        case 'c':
            o->config = optarg;
            break;
        case 's':
            if (o->nsets == (int)(sizeof(o->sets) / sizeof(o->sets[0]))) {
                fprintf(stderr, "mcshmd: more than 64 --set options: use a file\n");
                return 2;
            }
            o->sets[o->nsets++] = optarg;
            break;
        case CHECK:
            o->check = true;
            break;
        case DUMP:
            o->dump = true;
            break;
        case SAMPLE:
            o->sample = true;
            break;
        case MAN:
            o->man = true;
            break;
        case MAN_CONFIG:
            o->man_config = true;
            break;
        case READY:
            o->ready_fd = mcd_ready_fd(optarg);
            if (o->ready_fd < 0) {
                fprintf(stderr, "mcshmd: --ready-fd wants an open descriptor from 3 on, not '%s'\n",
                        optarg);
                return 2;
            }
            break;
        case SUPERVISE:
            o->supervise = true;
            break;
        case VERSION:
            o->version = true;
            break;
        case 'h':
            o->help = true;
            break;
#ifdef MCS_FAILPOINTS
        case VERSION + 1:
            mcs_failpoint_print(stdout);
            exit(0);
#endif
        default:
            fputs(usage, stderr);
            return 2;
        }
    }
    if (optind != argc) {
        fprintf(stderr, "mcshmd: what is '%s'?\n%s", argv[optind], usage);
        return 2;
    }
    return 0;
}

static struct options options;

static int configure(struct mcd_config *c, char *error, size_t error_size)
{
    const struct options *o = &options;
    int res = 0;

    mcd_config_init(c);
    if (o->config != NULL || access(DEFAULT_CONFIG, F_OK) == 0)
        res = mcd_config_load(c, o->config != NULL ? o->config : DEFAULT_CONFIG, error, error_size);
    for (int i = 0; i < o->nsets && res == 0; i++)
        res = mcd_config_set(c, o->sets[i], error, error_size);
    return res != 0 ? res : mcd_config_check(c, error, error_size);
}

static void raise_limits(void)
{
    struct rlimit r;

    if (getrlimit(RLIMIT_NOFILE, &r) == 0 && r.rlim_cur < r.rlim_max) {
        r.rlim_cur = r.rlim_max;
        setrlimit(RLIMIT_NOFILE, &r);
    }
}

static int create_engines(struct mcd_agent *a, const int *cores, unsigned n)
{
    static const struct mct_ops *const nets[] = {&mct_tcp_ops, &mct_mooncake_ops, &mct_rdma_ops};
    unsigned all = sizeof(nets) / sizeof(nets[0]) - (a->rdma == NULL);
    int res = 0;

    for (unsigned i = 0; i < n && res == 0; i++) {
        struct mcd_engine_options o = {
            .id = i,
            .core = cores[i],
            .never_sleeps = a->config.idle == MCD_IDLE_BUSY,
            .tick_hz = a->tick_hz,
            .tick_shift = a->tick_shift,
            .spin_us = a->config.spin_us,
            .slice = a->config.slice,
            .stream_min = a->config.stream_min,
            .deadline_us = a->config.deadline_ms * 1000,
            .fence_turns = !mcd_grace_has_membarrier(),
            .control_fd = a->event_fd,
            .nets = nets,
            .nnets = a->network ? all : 0,
            .network = a->network,
            .rdma = a->rdma,
            .cuda = a->cuda,
            .gpu_staging = a->config.gpu_staging == 0 || a->config.gpu_staging > MCD_STAGES_MIN
                               ? a->config.gpu_staging
                               : MCD_STAGES_MIN,
            .store = a->store,
            .checksum = a->config.tcp_checksum == 0,
            .zero_copy_min = a->config.zero_copy_min != 0 ? a->config.zero_copy_min : UINT64_MAX,
        };

        res = MCS_FAIL(start_engine);
        if (res == 0)
            res = mcd_engine_create(&o, &a->engines[i]);
        if (res == 0)
            a->nengines++;
    }
    return res;
}

/* The supervisor's: the same options but for its own, and the program under its present name, which
 * may have been replaced by the time it is started. */
static int supervise(const struct options *o)
{
    static char path[4096];
    const char *argv[4 + 2 * sizeof(o->sets) / sizeof(o->sets[0])];
    ssize_t n = readlink("/proc/self/exe", path, sizeof(path) - 1);
    int argc = 0;

    if (n < 0) {
        mcd_error("cannot find this program's own path: %s", strerror(errno));
        return 1;
    }
    path[n] = '\0';
    argv[argc++] = "mcshmd";
    if (o->config != NULL) {
        argv[argc++] = "--config";
        argv[argc++] = o->config;
    }
    for (int i = 0; i < o->nsets; i++) {
        argv[argc++] = "--set";
        argv[argc++] = o->sets[i];
    }
    argv[argc] = NULL;
    return mcd_supervise(path, (char *const *)(uintptr_t)argv, o->ready_fd);
}

static void tell_ready(const struct mcd_agent *a, int ready_fd)
{
    mcd_keeper_tell(&a->keeper, "READY=1\nSTATUS=serving");
    mcd_info("ready: version %s, socket %s, %u engine%s (%s), pool %llu MiB", MCD_VERSION,
             a->config.socket, a->nengines, a->nengines == 1 ? "" : "s",
             a->config.idle == MCD_IDLE_BUSY ? "busy" : "sleeping when idle",
             (unsigned long long)(a->config.pool_size >> 20));
    if (ready_fd >= 0) {
        ssize_t n;

        do
            n = write(ready_fd, "R", 1);
        while (n < 0 && errno == EINTR);
        if (n != 1)
            mcd_warning("nobody reads --ready-fd");
        close(ready_fd);
    }
}

/* The processor's clock as an earlier agent has measured it; 0: there was none. */
static uint64_t known_hz(struct mcd_agent *a)
{
    const struct mcd_ledger_head *h =
        a->recovery.before != 0 ? mcd_ledger_head(a->recovery.ledger) : NULL;

    return h != NULL && h->tick_shift <= TICK_SHIFT_MAX ? h->tick_hz : 0;
}

/* Clients that come back count time by what they were told once. */
static void set_ticks(struct mcd_agent *a)
{
    struct mcd_ledger_head *h =
        a->recovery.ledger != NULL ? mcd_ledger_head(a->recovery.ledger) : NULL;

    if (known_hz(a) != 0) {
        a->tick_hz = h->tick_hz;
        a->tick_shift = h->tick_shift;
        return;
    }
    a->tick_hz = rte_get_tsc_hz();
    while (a->tick_shift < TICK_SHIFT_MAX &&
           (UINT64_C(1) << (a->tick_shift + 1)) * 1000000000u / a->tick_hz <= TICK_SHIFT_NS * 2)
        a->tick_shift++;
    if (h != NULL) {
        h->tick_shift = a->tick_shift;
        h->tick_hz = a->tick_hz;
    }
}

static int serve(struct mcd_agent *a)
{
    char error[512] = "";
    int cores[MCD_ENGINES_MAX];
    unsigned ncores, launched = 0;
    sigset_t set;
    int res;

    /* before any thread exists: signals are read from a descriptor by the control thread */
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGHUP);
    pthread_sigmask(SIG_BLOCK, &set, NULL);
    signal(SIGPIPE, SIG_IGN);
    raise_limits();

    res = mcd_cores_parse(a->config.cores, cores, &ncores, error, sizeof(error));
    if (res != 0)
        goto error_say;
    mcd_pool_init(&a->pool, &a->config);
    res = MCS_FAIL(start_pool);
    if (res == 0)
        res = mcd_recovery_open(a, error, sizeof(error));
    /* memory of clients that come back is in use already */
    if (res == 0 && a->recovery.before == 0)
        res = mcd_pool_check(&a->pool, error, sizeof(error));
    if (res != 0)
        goto error_say;
    a->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (a->event_fd < 0) {
        res = -errno;
        snprintf(error, sizeof(error), "no event descriptor for the control thread: %s%s",
                 strerror(-res),
                 res == -EMFILE ? ": raise the limit (ulimit -n, LimitNOFILE=)" : "");
        goto error_say;
    }
    /* the kernel makes this wait for all processors once there are threads */
    (void)mcd_grace_has_membarrier();
    res = MCS_FAIL(start_eal);
    if (res == 0)
        res = mcd_eal_init(cores, ncores, known_hz(a), error, sizeof(error));
    if (res != 0)
        goto error_event;
    set_ticks(a);
    a->network =
        strcmp(a->config.peer_listen, "off") != 0 || strcmp(a->config.mooncake_listen, "off") != 0;
    res = mcd_rdma_create(a, error, sizeof(error));
    if (res == 0)
        res = mcd_gpu_create(a, error, sizeof(error));
    a->registry.cuda = a->cuda;
    if (res == 0)
        res = mcd_store_create(a, error, sizeof(error));
    if (res != 0)
        goto error_engines;
    res = create_engines(a, cores, ncores);
    if (res != 0) {
        snprintf(error, sizeof(error), "cannot set up the engines: %s", strerror(-res));
        goto error_engines;
    }
    res = mcd_control_init(a, error, sizeof(error));
    if (res != 0)
        goto error_control;
    while (launched < a->nengines) {
        res = MCS_FAIL(start_launch);
        if (res == 0)
            res = mcd_eal_launch(a->engines[launched], launched);
        if (res != 0) {
            snprintf(error, sizeof(error), "cannot start engine %u on core %d: %s", launched,
                     cores[launched], strerror(-res));
            goto error_launch;
        }
        launched++;
    }
    res = mcd_mooncake_create(a, &a->mooncake, error, sizeof(error));
    if (res != 0)
        goto error_launch;
    MCS_FAILPOINT(start_ready);
    mcd_eal_started();
    tell_ready(a, options.ready_fd);
    mcd_control_run(a);

error_launch:
    for (unsigned i = 0; i < launched; i++)
        mcd_engine_stop(a->engines[i]);
    if (res == 0)
        MCS_FAILPOINT(stop_engines);
    if (a->keeping) {
        /* The rest is the kernel's: taking sessions, names and connections down one by one would tell
         * everybody that they are gone. Clients see the hang-up once nothing writes any more. */
        mcd_eal_fini();
        mcd_info("stopped, for the next agent to take over");
        _exit(0);
    }
error_control:
    mcd_control_fini(a);
error_engines:
    mcd_eal_fini();
    mcd_staging_end(a);
    for (unsigned i = 0; i < a->nengines; i++)
        mcd_engine_destroy(a->engines[i]);
    mcd_store_destroy(a);
    mcd_gpu_destroy(a);
    mcd_rdma_destroy(a);
error_event:
    close(a->event_fd);
error_say:
    mcd_recovery_close(a);
    mcd_pool_fini(&a->pool);
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
    if (options.help || options.version || options.sample || options.man || options.man_config) {
        if (options.help)
            fputs(usage, stdout);
        else if (options.version)
            puts("mcshmd " MCD_VERSION);
        else if (options.man)
            man_page(stdout);
        else if (options.man_config)
            man_page_config(stdout);
        else
            mcd_config_sample(stdout);
        return fflush(stdout) == 0 ? 0 : 1;
    }
    res = configure(&agent.config, error, sizeof(error));
    if (res != 0) {
        fprintf(stderr, "mcshmd: %s\n", error);
        return 1;
    }
    if (options.check || options.dump) {
        if (options.dump)
            mcd_config_dump(&agent.config, stdout);
        return fflush(stdout) == 0 ? 0 : 1;
    }
    mcd_log_init();
    mcd_log_set_level((int)agent.config.log_level);
    if (options.supervise)
        return supervise(&options);
    mcd_keeper_open(&agent.keeper);
    agent.reread = configure;
    agent.incarnation = mcd_incarnation();
    agent.started_ns = mcd_now_ns();
    return serve(&agent);
}
