/* SPDX-License-Identifier: Apache-2.0 */
#include "kv_model.h"

#include "options.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#define ELEMENT_BYTES 2u /* 16-bit floats */
#define BYTES_LAYERS 32u /* of bytes=N */
#define BLOCK_MAX (UINT64_C(1) << 32)

/* Elements that one token keeps in one layer. */
static const struct {
    const char *name;
    uint32_t layers;
    uint32_t elements;
} shapes[] = {
    {"llama3-8b", 32, 2 * 8 * 128},  /* keys and values, 8 KV heads of 128 */
    {"llama3-70b", 80, 2 * 8 * 128}, /* the same heads, more layers */
    {"deepseek-v3", 61, 512 + 64},   /* latent attention: one compressed vector and its rope part */
};

static uint64_t scaled(uint64_t bytes, double scale)
{
    uint64_t value = (uint64_t)((double)bytes * scale);

    return value == 0 ? 64 : (value + 63) / 64 * 64;
}

int kv_model_parse(const char *text, double scale, struct kv_model *out, char *error,
                   size_t error_size)
{
    uint64_t bytes = 0;
    const char *end;

    if (scale < 0 || scale > 1) {
        snprintf(error, error_size, "scale %g: expected more than 0, at most 1", scale);
        return -EINVAL;
    }
    out->name = text;
    for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++) {
        if (strcmp(text, shapes[i].name) != 0)
            continue;
        out->scale = scale > 0 ? scale : KV_SCALE_DEFAULT;
        out->layers = shapes[i].layers;
        out->layer_bytes =
            scaled((uint64_t)shapes[i].elements * ELEMENT_BYTES * KV_BLOCK_TOKENS, out->scale);
        return 0;
    }
    if (strncmp(text, "bytes=", 6) != 0) {
        snprintf(error, error_size,
                 "model %s: expected llama3-8b, llama3-70b, deepseek-v3 or bytes=N", text);
        return -EINVAL;
    }
    end = options_bytes(text + 6, &bytes);
    if (end == NULL || *end != '\0' || bytes == 0 || bytes > BLOCK_MAX) {
        snprintf(error, error_size, "model %s: expected bytes=N with N from 1 to 4G", text);
        return -EINVAL;
    }
    out->scale = scale > 0 ? scale : 1;
    out->layers = BYTES_LAYERS;
    out->layer_bytes = scaled((bytes + BYTES_LAYERS - 1) / BYTES_LAYERS, out->scale);
    return 0;
}
