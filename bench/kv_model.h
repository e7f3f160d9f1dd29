/* SPDX-License-Identifier: Apache-2.0 */
/* How many bytes of KV cache a model keeps for one block of 512 tokens. */
#ifndef BENCH_KV_MODEL_H
#define BENCH_KV_MODEL_H

#include <stddef.h>
#include <stdint.h>

#define KV_BLOCK_TOKENS 512u
#define KV_SCALE_DEFAULT (1.0 / 64)

struct kv_model {
    const char *name; /* as given */
    uint32_t layers;
    uint64_t layer_bytes; /* of one block in one layer, scaled, a multiple of 64 */
    double scale;
};

/*
 * text: llama3-8b, llama3-70b, deepseek-v3 or bytes=N (N bytes a block). scale: above 0, at
 * most 1; 0 for the default, which is 1 for bytes=N. -EINVAL with a sentence in error.
 */
int kv_model_parse(const char *text, double scale, struct kv_model *out, char *error,
                   size_t error_size);

#endif
