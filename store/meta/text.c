/* SPDX-License-Identifier: Apache-2.0 */
#include "text.h"

#include <errno.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char alphabet[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

void mcm_text_fini(struct mcm_text *t)
{
    free(t->at);
    *t = (struct mcm_text){0};
}

/* Room for `more` bytes and a NUL. */
static bool reserve(struct mcm_text *t, size_t more)
{
    size_t room = t->room ? t->room : 256;
    char *at;

    if (t->failed || more >= SIZE_MAX / 4 - t->size) {
        t->failed = true;
        return false;
    }
    while (room < t->size + more + 1)
        room *= 2;
    if (room == t->room)
        return true;
    at = realloc(t->at, room);
    if (!at) {
        t->failed = true;
        return false;
    }
    t->at = at;
    t->room = room;
    return true;
}

void mcm_text_bytes(struct mcm_text *t, const void *data, size_t size)
{
    if (!reserve(t, size))
        return;
    if (size)
        memcpy(t->at + t->size, data, size);
    t->size += size;
    t->at[t->size] = '\0';
}

void mcm_text_add(struct mcm_text *t, const char *format, ...)
{
    va_list args;
    int n;

    va_start(args, format);
    n = vsnprintf(NULL, 0, format, args);
    va_end(args);
    if (n < 0 || !reserve(t, (size_t)n))
        return;
    va_start(args, format);
    vsnprintf(t->at + t->size, (size_t)n + 1, format, args);
    va_end(args);
    t->size += (size_t)n;
}

void mcm_text_base64(struct mcm_text *t, const void *data, size_t size)
{
    const uint8_t *in = data;
    char *out;

    if (!reserve(t, (size + 2) / 3 * 4))
        return;
    out = t->at + t->size;
    for (size_t i = 0; i < size; i += 3) {
        unsigned b = (unsigned)in[i] << 16;

        if (i + 1 < size)
            b |= (unsigned)in[i + 1] << 8;
        if (i + 2 < size)
            b |= in[i + 2];
        *out++ = alphabet[b >> 18];
        *out++ = alphabet[b >> 12 & 63];
        *out++ = i + 1 < size ? alphabet[b >> 6 & 63] : '=';
        *out++ = i + 2 < size ? alphabet[b & 63] : '=';
    }
    *out = '\0';
    t->size = (size_t)(out - t->at);
}

void mcm_text_quoted(struct mcm_text *t, const char *text)
{
    mcm_text_bytes(t, "\"", 1);
    for (const char *p = text; *p; p++) {
        if (*p == '"' || *p == '\\')
            mcm_text_add(t, "\\%c", *p);
        else if ((unsigned char)*p < 0x20)
            mcm_text_add(t, "\\u%04x", (unsigned)(unsigned char)*p);
        else
            mcm_text_bytes(t, p, 1);
    }
    mcm_text_bytes(t, "\"", 1);
}

void mcm_text_percent(struct mcm_text *t, const void *data, size_t size)
{
    const unsigned char *p = data;

    for (size_t i = 0; i < size; i++) {
        unsigned char c = p[i];

        if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
            (c && strchr("-._~", c)))
            mcm_text_bytes(t, &c, 1);
        else
            mcm_text_add(t, "%%%02X", (unsigned)c);
    }
}

static int digit(char c)
{
    if (c >= 'A' && c <= 'Z')
        return c - 'A';
    if (c >= 'a' && c <= 'z')
        return c - 'a' + 26;
    if (c >= '0' && c <= '9')
        return c - '0' + 52;
    return c == '+' ? 62 : c == '/' ? 63 : -1;
}

int mcm_base64_decode(const char *text, void *out, size_t room, size_t *size)
{
    size_t length = strlen(text), padding = 0, n = 0;
    uint8_t *to = out;

    *size = 0;
    if (length % 4)
        return -EBADMSG;
    while (padding < 2 && padding < length && text[length - 1 - padding] == '=')
        padding++;
    if (length / 4 * 3 - padding > room)
        return -EMSGSIZE;
    for (size_t i = 0; i < length; i += 4) {
        size_t digits = i + 4 == length ? 4 - padding : 4;
        unsigned bits = 0;

        for (size_t k = 0; k < 4; k++) {
            int d = k < digits ? digit(text[i + k]) : 0;

            if (d < 0)
                return -EBADMSG;
            bits = bits << 6 | (unsigned)d;
        }
        for (size_t k = 0; k + 1 < digits; k++)
            to[n++] = (uint8_t)(bits >> (16 - 8 * k));
    }
    *size = n;
    return 0;
}
