/* SPDX-License-Identifier: Apache-2.0 */
/* Secrets and certificates, read once at the start. */
#include "wire_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <openssl/crypto.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Secrets that other users can read or replace are none. */
static int check_mode(const char *key, const char *path, const struct stat *s, char *error,
                      size_t error_size)
{
    if (!S_ISREG(s->st_mode)) {
        snprintf(error, error_size, "[peer] %s = %s is not a regular file", key, path);
        return -EINVAL;
    }
    if ((s->st_mode & S_IRWXO) != 0) {
        snprintf(error, error_size,
                 "[peer] %s = %s has mode %04o, which lets every user at it: chmod 600 it", key,
                 path, s->st_mode & 07777);
        return -EPERM;
    }
    return 0;
}

static int read_psk(struct mcd_wire_auth *a, const char *path, char *error, size_t error_size)
{
    /* Without O_NONBLOCK a pipe in its place would hold up the start. */
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK), res = 0;
    size_t room = MCD_WIRE_PSK_MAX + 16, n = 0;
    ssize_t got;
    struct stat s;

    if (fd < 0 || fstat(fd, &s) != 0) {
        res = -errno;
        snprintf(error, error_size, "[peer] psk_file = %s cannot be read: %s", path,
                 strerror(errno));
        goto out;
    }
    res = check_mode("psk_file", path, &s, error, error_size);
    if (res != 0)
        goto out;
    a->psk = calloc(1, room);
    if (a->psk == NULL) {
        res = -ENOMEM;
        snprintf(error, error_size, "out of memory");
        goto out;
    }
    while (n < room && (got = read(fd, a->psk + n, room - n)) != 0) {
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0) {
            res = -errno;
            snprintf(error, error_size, "[peer] psk_file = %s cannot be read: %s", path,
                     strerror(errno));
            goto out;
        }
        n += (size_t)got;
    }
    while (n > 0 && (a->psk[n - 1] == '\n' || a->psk[n - 1] == '\r'))
        n--;
    if (n < MCD_WIRE_PSK_MIN || n > MCD_WIRE_PSK_MAX) {
        res = -EINVAL;
        snprintf(error, error_size,
                 "[peer] psk_file = %s holds %s%zu bytes, allowed are %u to %u: make one with "
                 "'openssl rand -hex 32'",
                 path, n > MCD_WIRE_PSK_MAX ? "at least " : "", n, MCD_WIRE_PSK_MIN,
                 MCD_WIRE_PSK_MAX);
        goto out;
    }
    a->psk_size = n;
out:
    if (fd >= 0)
        close(fd);
    return res;
}

static int read_tls(struct mcd_wire_auth *a, const struct mcd_wire_auth_options *o, char *error,
                    size_t error_size)
{
    struct stat s;
    X509 *own;
    int res;

    if (stat(o->tls_key, &s) != 0) {
        res = -errno;
        snprintf(error, error_size, "[peer] tls_key = %s cannot be read: %s", o->tls_key,
                 strerror(errno));
        return res;
    }
    res = check_mode("tls_key", o->tls_key, &s, error, error_size);
    if (res == 0)
        res = mcd_wire_tls_context(o, &a->tls, error, error_size);
    if (res != 0)
        return res;
    own = SSL_CTX_get0_certificate(a->tls);
    if (own != NULL)
        mcd_wire_tls_subject(own, a->subject, sizeof(a->subject));
    return 0;
}

static bool missing(const char *text)
{
    return text == NULL || text[0] == 0;
}

int mcd_wire_auth_create(const struct mcd_wire_auth_options *o, struct mcd_wire_auth **out,
                         char *error, size_t error_size)
{
    struct mcd_wire_auth *a = calloc(1, sizeof(*a));
    int res = 0;

    if (a == NULL) {
        snprintf(error, error_size, "out of memory");
        return -ENOMEM;
    }
    a->method = o->method;
    switch (o->method) {
    case MCD_WIRE_NONE:
        break;
    case MCD_WIRE_PSK:
        if (missing(o->psk_file)) {
            snprintf(error, error_size,
                     "[peer] auth = psk needs psk_file: a file with the secret of all agents");
            res = -EINVAL;
        } else {
            res = read_psk(a, o->psk_file, error, error_size);
        }
        break;
    case MCD_WIRE_TLS:
        if (missing(o->tls_cert) || missing(o->tls_key) || missing(o->tls_ca)) {
            snprintf(error, error_size, "[peer] auth = tls needs %s: a PEM file",
                     missing(o->tls_cert)  ? "tls_cert"
                     : missing(o->tls_key) ? "tls_key"
                                           : "tls_ca");
            res = -EINVAL;
        } else {
            res = read_tls(a, o, error, error_size);
        }
        break;
    default:
        snprintf(error, error_size, "[peer] auth = %d is no method", (int)o->method);
        res = -EINVAL;
    }
    if (res == 0)
        *out = a;
    else
        mcd_wire_auth_destroy(a);
    return res;
}

void mcd_wire_auth_destroy(struct mcd_wire_auth *a)
{
    if (a == NULL)
        return;
    if (a->psk != NULL) {
        OPENSSL_cleanse(a->psk, a->psk_size);
        free(a->psk);
    }
    SSL_CTX_free(a->tls);
    free(a);
}
