/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Mooncake Store through its Python class: the master on the engine's core, a client that holds the memory itself on ours.
 * Zero-copy calls over registered memory, keys that are new for each put, leases too short to be in the way.
 */
#include "store.h"

#include "child.h"
#include "say.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <math.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define START_MS 30000
#define ROW_MS 20000 /* beyond the time that is measured */
#define TEXT_MAX (256u << 10)

/* Prints "rows " and a JSON array of them. */
static const char script[] =
    "import ctypes, json, mmap, os, sys, time\n"
    "from mooncake.store import MooncakeDistributedStore\n"
    "master, sizes, batches, seconds, most = sys.argv[1], *map(json.loads, sys.argv[2:6])\n"
    "segment = 3 * most + (64 << 20)\n"
    "store = MooncakeDistributedStore()\n"
    "if store.setup(\"127.0.0.1\", \"P2PHANDSHAKE\", segment, 16 << 20, \"tcp\", \"\", master) != "
    "0:\n"
    "    sys.exit(\"setup failed\")\n"
    "memory = mmap.mmap(-1, most)\n"
    "memory.write(b\"\\1\" * most)\n"
    "base = ctypes.addressof(ctypes.c_char.from_buffer(memory))\n"
    "if store.register_buffer(base, most) != 0:\n"
    "    sys.exit(\"register_buffer failed\")\n"
    "rows = []\n"
    "life = 0\n"
    "for size in sizes:\n"
    "    for batch in batches:\n"
    "        if size * batch > most:\n"
    "            continue\n"
    "        places, lengths = [base + i * size for i in range(batch)], [size] * batch\n"
    "        def fresh():\n"
    "            global life\n"
    "            life += 1\n"
    "            return [\"bench-%d-%d\" % (life, i) for i in range(batch)]\n"
    "        def put(keys):\n"
    "            return store.batch_put_from(keys, places, lengths)\n"
    "        store.remove_all()\n"
    "        kept = fresh()\n"
    "        put(kept)\n"
    "        room = (segment // 2) // (size * batch) - 1\n"
    "        for op in (\"put\", \"get\", \"exist\"):\n"
    "            times = []\n"
    "            end = time.monotonic() + seconds\n"
    "            while not times or (time.monotonic() < end and (op != \"put\" or len(times) < "
    "room)):\n"
    "                keys = fresh() if op == \"put\" else kept\n"
    "                start = time.perf_counter()\n"
    "                if op == \"put\":\n"
    "                    good = all(r == 0 for r in put(keys))\n"
    "                elif op == \"get\":\n"
    "                    good = all(r == size for r in store.batch_get_into(keys, places, "
    "lengths))\n"
    "                else:\n"
    "                    good = all(r == 1 for r in store.batch_is_exist(keys))\n"
    "                times.append(time.perf_counter() - start)\n"
    "                if not good:\n"
    "                    break\n"
    "            if not good:\n"
    "                continue\n"
    "            total = sum(times)\n"
    "            times.sort()\n"
    "            rows.append({\"op\": op, \"size\": size, \"batch\": batch, \"where\": \"local\", "
    "\"ops_s\": len(times) * batch / total,\n"
    "                         \"gbps\": None if op == \"exist\" else len(times) * batch * size / "
    "total / 1e9,\n"
    "                         \"p50_us\": times[(len(times) - 1) // 2] * 1e6, \"p99_us\": "
    "times[(len(times) * 99 + 99) // 100 - 1] * 1e6})\n"
    "print(\"rows \" + json.dumps(rows), flush=True)\n"
    "os._exit(0)\n";

/* A TCP port that nobody has at this moment; 0: none. */
static int free_port(void)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof(a);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), port = 0;

    if (fd >= 0 && bind(fd, (struct sockaddr *)&a, size) == 0 &&
        getsockname(fd, (struct sockaddr *)&a, &size) == 0)
        port = ntohs(a.sin_port);
    if (fd >= 0)
        close(fd);
    return port;
}

static void write_list(const uint64_t *values, unsigned n, char *out, size_t size)
{
    size_t used = (size_t)snprintf(out, size, "[");

    for (unsigned i = 0; i < n && used < size; i++)
        used += (size_t)snprintf(out + used, size - used, "%s%llu", i == 0 ? "" : ",",
                                 (unsigned long long)values[i]);
    if (used < size)
        snprintf(out + used, size - used, "]");
}

static double number(const cJSON *row, const char *name)
{
    const cJSON *v = cJSON_GetObjectItemCaseSensitive(row, name);

    return cJSON_IsNumber(v) ? v->valuedouble : NAN;
}

int store_mooncake_parse(const char *text, struct store_rows *out)
{
    const char *at = strstr(text, "rows [");
    cJSON *list = at != NULL ? cJSON_Parse(at + 5) : NULL;
    const cJSON *row;

    if (!cJSON_IsArray(list)) {
        cJSON_Delete(list);
        return -EPROTO;
    }
    cJSON_ArrayForEach(row, list)
    {
        const char *op = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(row, "op"));

        if (op == NULL || out->count == STORE_ROWS_MAX)
            continue;
        out->row[out->count++] = (struct store_row){.op = strcmp(op, "put") == 0   ? STORE_PUT
                                                          : strcmp(op, "get") == 0 ? STORE_GET
                                                                                   : STORE_EXIST,
                                                    .size = (uint64_t)number(row, "size"),
                                                    .batch = (uint64_t)number(row, "batch"),
                                                    .ops_s = number(row, "ops_s"),
                                                    .gbps = number(row, "gbps"),
                                                    .p50_us = number(row, "p50_us"),
                                                    .p99_us = number(row, "p99_us"),
                                                    .cpu_s_per_gb = NAN,
                                                    .queue_us = NAN,
                                                    .move_us = NAN,
                                                    .rest_us = NAN,
                                                    .limit = NAN};
    }
    cJSON_Delete(list);
    return 0;
}

static int run_client(const struct store_options *o, const char *python, int port,
                      struct store_rows *out)
{
    static const char *const sets[] = {"MC_FORCE_TCP=1", "MC_TCP_ENABLE_CONNECTION_POOL=1", NULL};
    char master[32], sizes[512], batches[512], seconds[32], most[32];
    char *argv[] = {(char *)python, "-c",    (char *)script, master, sizes,
                    batches,        seconds, most,           NULL};
    struct child_options co = {.argv = argv, .sets = sets, .output = true};
    unsigned rows = 3 * o->nsizes * o->nbatches;
    struct child c;
    size_t used = 0;
    char *text = calloc(1, TEXT_MAX);
    int rc;

    if (text == NULL)
        return say_error(-ENOMEM, "no memory for Mooncake's figures");
    snprintf(master, sizeof(master), "127.0.0.1:%d", port);
    write_list(o->sizes, o->nsizes, sizes, sizeof(sizes));
    write_list(o->batches, o->nbatches, batches, sizeof(batches));
    snprintf(seconds, sizeof(seconds), "%g", o->seconds);
    snprintf(most, sizeof(most), "%llu", (unsigned long long)o->most);
    rc = child_start(&co, &c);
    if (rc == 0) {
        child_read(&c, NULL, START_MS + (int)(rows * (ROW_MS + o->seconds * 1000)), text, TEXT_MAX,
                   &used);
        child_end(&c, SIGTERM, START_MS, NULL);
        rc = store_mooncake_parse(text, out);
    }
    free(text);
    return rc == 0 ? 0 : say_error(rc, "Mooncake Store gave no figures");
}

int store_mooncake(const struct store_options *o, const struct pin_cores *cores,
                   struct store_rows *out)
{
    char program[4096], python[4096], rpc[64], metrics[64];
    char *argv[] = {program, rpc, metrics, "--default_kv_lease_ttl=100", NULL};
    struct child_options co = {.argv = argv};
    struct child master;
    int port = free_port(), other = free_port(), rc;

    if (o->mooncake == NULL)
        return -ENOENT;
    snprintf(program, sizeof(program), "%s/bin/mooncake_master", o->mooncake);
    snprintf(python, sizeof(python), "%s/bin/python", o->mooncake);
    if (access(program, X_OK) != 0 || access(python, X_OK) != 0) {
        say_note("--mooncake %s: there is no bin/mooncake_master and bin/python in it",
                 o->mooncake);
        return -ENOENT;
    }
    snprintf(rpc, sizeof(rpc), "--rpc_port=%d", port);
    snprintf(metrics, sizeof(metrics), "--metrics_port=%d", other);
    pin_to(cores->engine);
    rc = child_start(&co, &master);
    pin_to(cores->client);
    if (rc != 0)
        return say_error(rc, "cannot start %s", program);
    if (child_await_port(&master, port, START_MS))
        rc = run_client(o, python, port, out);
    else
        rc = say_error(-ETIMEDOUT, "%s does not listen on port %d", program, port);
    child_end(&master, SIGTERM, START_MS, NULL);
    return rc;
}
