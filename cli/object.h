/* SPDX-License-Identifier: Apache-2.0 */
/* What the commands about objects share. */
#ifndef CLI_OBJECT_H
#define CLI_OBJECT_H

#include <stddef.h>

#include "cli.h"

struct cli_objects {
    mcshm *c;
    mcshm_queue *q;
};

/* Connects and opens a queue whose argument area has args_size bytes, 0: as the agent has it. Says why
 * it cannot. */
int cli_objects_open(const struct cli *cli, uint64_t args_size, struct cli_objects *out);
void cli_objects_close(struct cli_objects *o);

/* The key that a word of the command line names; free() its bytes. Says what is wrong with it. */
int cli_key(const struct cli *cli, const char *word, mcshm_key *out);
/* A key to be read by people: as it is, or "0x" and digits when it is no plain text. free() it. */
char *cli_key_text(const mcshm_key *key);
/* Adds it to a document, as "key", or as "key_hex" when it is no plain text. */
void cli_add_key(cJSON *o, const mcshm_key *key);
/* Adds a checksum as the agent's lists have it. */
void cli_add_crc(cJSON *o, uint32_t crc);
/* Adds a version, all of whose 64 bits count. */
void cli_add_version(cJSON *o, uint64_t version);

/* What a status means of an object. */
const char *cli_key_says(mcshm_status status);
/* Says on stderr what became of one key. Returns CLI_FAILED. */
int cli_key_error(const mcshm_key *key, mcshm_status status);

/* A memfd of ours that tasks may use, and where it is mapped; size not 0. */
struct cli_memory {
    int fd;
    void *at;
    uint64_t size;
};
/* Seals fd against shrinking and registers it; fd is the memory's from now on, also on failure. */
int cli_memory_register(struct cli_objects *o, int fd, uint64_t size, struct cli_memory *out);
/* A fresh one. */
int cli_memory_make(struct cli_objects *o, uint64_t size, struct cli_memory *out);
void cli_memory_close(struct cli_memory *m);

/* Writes all of it to fd. 0, or says why not. */
int cli_write_all(int fd, const char *name, const void *bytes, uint64_t size);

/* Prints a document as it is, or its fields one a line. Frees both. */
int cli_print_fields(const struct cli *cli, char *text, cJSON *d);

#endif
