/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A trace of requests in Mooncake's published format: one JSON object a line,
 *
 *   {"timestamp": 0, "input_length": 1100, "output_length": 9, "hash_ids": [0, 1, 7]}
 *
 * where equal hash ids are equal blocks of 512 tokens with equal history.
 */
#ifndef BENCH_KV_TRACE_H
#define BENCH_KV_TRACE_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

struct kv_request {
    uint64_t timestamp;                   /* ms */
    uint64_t input_length, output_length; /* tokens */
    uint64_t *hash_ids;
    uint32_t count;
};

struct kv_trace {
    struct kv_request *requests;
    size_t count;
    uint64_t blocks;  /* hash ids in all */
    uint32_t longest; /* hash ids of the longest request */
};

/* One line. -EINVAL with what is wrong in error, -ENOMEM. hash_ids is freed by the caller. */
int kv_trace_line(const char *line, struct kv_request *out, char *error, size_t error_size);

/* Up to max requests of a file; blank lines are skipped. error names the line. */
int kv_trace_load(FILE *file, size_t max, struct kv_trace *out, char *error, size_t error_size);

/* Conversations that share a system prompt and grow turn by turn; the same every time. */
int kv_trace_generate(size_t count, struct kv_trace *out);

void kv_trace_free(struct kv_trace *t);

#endif
