/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Addresses as people write them: "host", "host:port", "192.0.2.1:9", "[2001:db8::1]:9",
 * "[fe80::1%eth0]:9", "::1".  Nothing here waits for a name server but mcd_address_resolve(), which
 * is for a worker's thread.
 */
#ifndef MCD_ADDRESS_H
#define MCD_ADDRESS_H

#include <net/if.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

#define MCD_HOST_MAX 256u
#define MCD_ADDRESS_TEXT_MAX (MCD_HOST_MAX + 10) /* "[host]:port" with its NUL */

struct mcd_address {
    char host[MCD_HOST_MAX]; /* name or numeric address, without brackets */
    uint16_t port;
    bool has_port;
};

/* -EINVAL: not an address (":9", "h:", "h:0" unless zero_port, "h:65536", "[::1", "h:9x", "", blanks, ...). A bare IPv6
 * address has no port. */
int mcd_address_parse(const char *text, bool zero_port, struct mcd_address *out);
/* Prints it so that parsing gives the same back. */
void mcd_address_print(const struct mcd_address *a, char *out, size_t size);

/* Numeric only, never waits: -EINVAL for host names. */
int mcd_address_numeric(const struct mcd_address *a, struct sockaddr_storage *out, socklen_t *size);
/* Asks the resolver; may take long. Up to `room` addresses, their number in *count. A negative errno: -ENOENT no such
 * name, -EAGAIN the name server does not answer. */
int mcd_address_resolve(const struct mcd_address *a, struct sockaddr_storage *out, size_t room,
                        size_t *count);
/* "192.0.2.1:9", "[2001:db8::1]:9"; v4-mapped addresses as IPv4. */
void mcd_sockaddr_print(const struct sockaddr *s, char *out, size_t size);
bool mcd_sockaddr_is_loopback(const struct sockaddr *s);
bool mcd_sockaddr_is_wildcard(const struct sockaddr *s);
socklen_t mcd_sockaddr_size(const struct sockaddr *s);
uint16_t mcd_sockaddr_port(const struct sockaddr *s);
void mcd_sockaddr_set_port(struct sockaddr *s, uint16_t port);
/* The same host part? */
bool mcd_sockaddr_same_host(const struct sockaddr *a, const struct sockaddr *b);
/* Do the first `prefix` bits of both host parts agree? */
bool mcd_sockaddr_same_network(const struct sockaddr *a, const struct sockaddr *b, unsigned prefix);

struct mcd_local_address {
    struct sockaddr_storage address; /* port 0 */
    unsigned prefix;                 /* bits of the network part */
    unsigned ifindex;
    char interface[IF_NAMESIZE];
    bool up; /* IFF_UP, IFF_RUNNING and IFF_LOWER_UP: switched on, with a carrier */
    bool loopback;
    bool bridge; /* of a bridge: last choice for publication */
};
/* This host's addresses, best for publication first: up before down, no bridge before bridges, IPv4 before IPv6; link-local ones are left
 * out. Up to `room`, their number in *count. 0 or a negative errno. */
int mcd_local_addresses(struct mcd_local_address *out, size_t room, size_t *count);

#endif
