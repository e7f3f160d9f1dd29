/* SPDX-License-Identifier: Apache-2.0 */
#include "address.h"

#include <arpa/inet.h>
#include <ctype.h>
#include <errno.h>
#include <ifaddrs.h>
#include <linux/ethtool.h>
#include <linux/sockios.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

/* Switched on, with a carrier. IFF_RUNNING alone is not yet right just after switching on, and
 * IFF_LOWER_UP stands in <linux/if.h>, which does not go together with <net/if.h>. */
#define ALIVE (IFF_UP | IFF_RUNNING | 1u << 16)

static const struct sockaddr_in *v4(const struct sockaddr *s)
{
    return (const struct sockaddr_in *)(const void *)s;
}

static const struct sockaddr_in6 *v6(const struct sockaddr *s)
{
    return (const struct sockaddr_in6 *)(const void *)s;
}

/* ---- text ---- */

/* Letters, digits, '.', '-', '_'; what looks like an IPv4 address has to be one. */
static bool host_is_good(const char *host)
{
    struct in_addr address;
    bool numeric = true;

    for (const char *c = host; *c != 0; c++) {
        if (!isascii((unsigned char)*c) ||
            (!isalnum((unsigned char)*c) && *c != '.' && *c != '-' && *c != '_'))
            return false;
        numeric = numeric && (isdigit((unsigned char)*c) || *c == '.');
    }
    return host[0] != 0 && (!numeric || inet_pton(AF_INET, host, &address) == 1);
}

/* An IPv6 address, perhaps with "%scope". */
static bool host_is_v6(const char *host)
{
    const char *percent = strchr(host, '%');
    size_t n = percent != NULL ? (size_t)(percent - host) : strlen(host);
    char text[INET6_ADDRSTRLEN];
    struct in6_addr address;

    if (n >= sizeof(text))
        return false;
    memcpy(text, host, n);
    text[n] = 0;
    if (inet_pton(AF_INET6, text, &address) != 1)
        return false;
    if (percent == NULL)
        return true;
    n = strlen(percent + 1);
    if (n == 0 || n >= IF_NAMESIZE)
        return false;
    for (const char *c = percent + 1; *c != 0; c++)
        if (!isgraph((unsigned char)*c) || *c == '%' || *c == '[' || *c == ']' || *c == '/')
            return false;
    return true;
}

static int parse_port(const char *text, bool zero_port, uint16_t *out)
{
    size_t n = strspn(text, "0123456789");
    unsigned long port;

    if (n == 0 || n > 5 || text[n] != 0)
        return -EINVAL;
    port = strtoul(text, NULL, 10);
    if (port > UINT16_MAX || (port == 0 && !zero_port))
        return -EINVAL;
    *out = (uint16_t)port;
    return 0;
}

int mcd_address_parse(const char *text, bool zero_port, struct mcd_address *out)
{
    const char *first = strchr(text, ':'), *port = NULL, *host = text, *end;
    struct mcd_address a = {.port = 0};
    bool is_v6 = false;
    size_t n;

    if (text[0] == '[') {
        host = text + 1;
        end = strchr(host, ']');
        if (end == NULL || (end[1] != 0 && end[1] != ':'))
            return -EINVAL;
        if (end[1] == ':')
            port = end + 2;
        is_v6 = true;
    } else if (first != NULL && strchr(first + 1, ':') != NULL) {
        /* two colons and no brackets: nothing in it can be told to be a port */
        end = text + strlen(text);
        is_v6 = true;
    } else if (first != NULL) {
        end = first;
        port = first + 1;
    } else {
        end = text + strlen(text);
    }
    n = (size_t)(end - host);
    if (n >= sizeof(a.host))
        return -EINVAL;
    memcpy(a.host, host, n);
    if (!(is_v6 ? host_is_v6(a.host) : host_is_good(a.host)))
        return -EINVAL;
    if (port != NULL && parse_port(port, zero_port, &a.port) != 0)
        return -EINVAL;
    a.has_port = port != NULL;
    *out = a;
    return 0;
}

void mcd_address_print(const struct mcd_address *a, char *out, size_t size)
{
    bool is_v6 = strchr(a->host, ':') != NULL;

    if (a->has_port)
        snprintf(out, size, "%s%s%s:%u", is_v6 ? "[" : "", a->host, is_v6 ? "]" : "", a->port);
    else
        snprintf(out, size, "%s", a->host);
}

/* ---- socket addresses ---- */

/* One address has one form: IPv4 in IPv6's clothes becomes IPv4. */
static void unmap(struct sockaddr_storage *s)
{
    const struct sockaddr_in6 *six = v6((const struct sockaddr *)s);
    struct sockaddr_in four = {.sin_family = AF_INET};

    if (s->ss_family != AF_INET6 || !IN6_IS_ADDR_V4MAPPED(&six->sin6_addr))
        return;
    memcpy(&four.sin_addr, &six->sin6_addr.s6_addr[12], 4);
    four.sin_port = six->sin6_port;
    memset(s, 0, sizeof(*s));
    memcpy(s, &four, sizeof(four));
}

static int parse_scope(const char *text, uint32_t *out)
{
    unsigned index = if_nametoindex(text);
    char *end;
    unsigned long n;

    if (index == 0 && text[strspn(text, "0123456789")] == 0) {
        errno = 0;
        n = strtoul(text, &end, 10);
        if (errno == 0 && *end == 0 && n <= UINT32_MAX)
            index = (unsigned)n;
    }
    *out = index;
    return index != 0 ? 0 : -ENODEV;
}

int mcd_address_numeric(const struct mcd_address *a, struct sockaddr_storage *out, socklen_t *size)
{
    struct sockaddr_in four = {.sin_family = AF_INET, .sin_port = htons(a->port)};
    struct sockaddr_in6 six = {.sin6_family = AF_INET6, .sin6_port = htons(a->port)};
    char text[MCD_HOST_MAX], *percent;
    int res = 0;

    memset(out, 0, sizeof(*out));
    if (inet_pton(AF_INET, a->host, &four.sin_addr) == 1) {
        memcpy(out, &four, sizeof(four));
    } else {
        snprintf(text, sizeof(text), "%s", a->host);
        percent = strchr(text, '%');
        if (percent != NULL)
            *percent = 0;
        if (inet_pton(AF_INET6, text, &six.sin6_addr) != 1)
            return -EINVAL;
        if (percent != NULL)
            res = parse_scope(percent + 1, &six.sin6_scope_id);
        memcpy(out, &six, sizeof(six));
        unmap(out);
    }
    *size = mcd_sockaddr_size((const struct sockaddr *)out);
    return res;
}

static int resolver_error(int code)
{
    switch (code) {
    case 0:
        return 0;
    case EAI_NONAME:
    case EAI_NODATA:
    case EAI_ADDRFAMILY:
        return -ENOENT;
    case EAI_AGAIN:
    case EAI_FAIL:
        return -EAGAIN;
    case EAI_MEMORY:
        return -ENOMEM;
    case EAI_SYSTEM:
        return errno > 0 ? -errno : -EIO;
    default:
        return -EINVAL;
    }
}

int mcd_address_resolve(const struct mcd_address *a, struct sockaddr_storage *out, size_t room,
                        size_t *count)
{
    struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM}, *found = NULL;
    int res;

    *count = 0;
    errno = 0;
    res = resolver_error(getaddrinfo(a->host, NULL, &hints, &found));
    if (res != 0)
        return res;
    for (const struct addrinfo *i = found; i != NULL && *count < room; i = i->ai_next) {
        struct sockaddr_storage *to = &out[*count];

        if ((i->ai_family != AF_INET && i->ai_family != AF_INET6) || i->ai_addrlen > sizeof(out[0]))
            continue;
        memset(to, 0, sizeof(*to));
        memcpy(to, i->ai_addr, i->ai_addrlen);
        unmap(to);
        mcd_sockaddr_set_port((struct sockaddr *)to, a->port);
        ++*count;
    }
    freeaddrinfo(found);
    return *count > 0 ? 0 : -ENOENT;
}

void mcd_sockaddr_print(const struct sockaddr *s, char *out, size_t size)
{
    struct mcd_address a = {.port = mcd_sockaddr_port(s)};
    struct sockaddr_storage plain;
    char name[IF_NAMESIZE];
    size_t n;

    if (s->sa_family != AF_INET && s->sa_family != AF_INET6) {
        snprintf(out, size, "%s", s->sa_family == AF_UNIX ? "unix" : "unknown");
        return;
    }
    memset(&plain, 0, sizeof(plain));
    memcpy(&plain, s, mcd_sockaddr_size(s));
    unmap(&plain);
    s = (const struct sockaddr *)&plain;
    if (s->sa_family == AF_INET) {
        inet_ntop(AF_INET, &v4(s)->sin_addr, a.host, sizeof(a.host));
    } else {
        inet_ntop(AF_INET6, &v6(s)->sin6_addr, a.host, sizeof(a.host));
        n = strlen(a.host);
        if (v6(s)->sin6_scope_id != 0 && if_indextoname(v6(s)->sin6_scope_id, name) != NULL)
            snprintf(a.host + n, sizeof(a.host) - n, "%%%s", name);
        else if (v6(s)->sin6_scope_id != 0)
            snprintf(a.host + n, sizeof(a.host) - n, "%%%u", v6(s)->sin6_scope_id);
    }
    a.has_port = a.port != 0;
    mcd_address_print(&a, out, size);
}

/* The host part: its bytes, and how many; 0 for what is no IP address. */
static size_t host_part(const struct sockaddr *s, uint8_t out[16])
{
    struct sockaddr_storage plain;

    if (s->sa_family != AF_INET && s->sa_family != AF_INET6)
        return 0;
    memset(&plain, 0, sizeof(plain));
    memcpy(&plain, s, mcd_sockaddr_size(s));
    unmap(&plain);
    s = (const struct sockaddr *)&plain;
    if (s->sa_family == AF_INET) {
        memcpy(out, &v4(s)->sin_addr, 4);
        return 4;
    }
    memcpy(out, &v6(s)->sin6_addr, 16);
    return 16;
}

bool mcd_sockaddr_is_loopback(const struct sockaddr *s)
{
    static const uint8_t one[16] = {[15] = 1};
    uint8_t host[16];
    size_t n = host_part(s, host);

    return n == 4 ? host[0] == 127 : n == 16 && memcmp(host, one, 16) == 0;
}

bool mcd_sockaddr_is_wildcard(const struct sockaddr *s)
{
    static const uint8_t zeros[16];
    uint8_t host[16];
    size_t n = host_part(s, host);

    return n > 0 && memcmp(host, zeros, n) == 0;
}

socklen_t mcd_sockaddr_size(const struct sockaddr *s)
{
    return s->sa_family == AF_INET    ? sizeof(struct sockaddr_in)
           : s->sa_family == AF_INET6 ? sizeof(struct sockaddr_in6)
                                      : sizeof(sa_family_t);
}

uint16_t mcd_sockaddr_port(const struct sockaddr *s)
{
    return s->sa_family == AF_INET    ? ntohs(v4(s)->sin_port)
           : s->sa_family == AF_INET6 ? ntohs(v6(s)->sin6_port)
                                      : 0;
}

void mcd_sockaddr_set_port(struct sockaddr *s, uint16_t port)
{
    if (s->sa_family == AF_INET)
        ((struct sockaddr_in *)(void *)s)->sin_port = htons(port);
    else if (s->sa_family == AF_INET6)
        ((struct sockaddr_in6 *)(void *)s)->sin6_port = htons(port);
}

/* Link-local addresses of two links may be the same digits. */
static bool same_scope(const struct sockaddr *a, const struct sockaddr *b)
{
    return a->sa_family != AF_INET6 || b->sa_family != AF_INET6 ||
           v6(a)->sin6_scope_id == v6(b)->sin6_scope_id;
}

bool mcd_sockaddr_same_host(const struct sockaddr *a, const struct sockaddr *b)
{
    return mcd_sockaddr_same_network(a, b, 128) && same_scope(a, b);
}

bool mcd_sockaddr_same_network(const struct sockaddr *a, const struct sockaddr *b, unsigned prefix)
{
    uint8_t x[16], y[16], mask;
    size_t n = host_part(a, x), whole;

    if (n == 0 || host_part(b, y) != n)
        return false;
    if (prefix > 8 * n)
        prefix = (unsigned)(8 * n);
    whole = prefix / 8;
    if (memcmp(x, y, whole) != 0)
        return false;
    mask = (uint8_t)(0xff00u >> prefix % 8);
    return prefix % 8 == 0 || ((x[whole] ^ y[whole]) & mask) == 0;
}

/* ---- this host ---- */

/* By its driver, which the kernel tells for the network namespace of the caller, unlike sysfs; or by
 * the names that containers' bridges have. */
static bool is_bridge(const char *interface)
{
    static const char *const names[] = {"docker", "br-", "virbr", "cni", "lxcbr", "podman"};
    struct ethtool_drvinfo info = {.cmd = ETHTOOL_GDRVINFO};
    struct ifreq request = {.ifr_data = (void *)&info};
    int fd;

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        if (strncmp(interface, names[i], strlen(names[i])) == 0)
            return true;
    fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        fd = socket(AF_INET6, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return false;
    snprintf(request.ifr_name, sizeof(request.ifr_name), "%s", interface);
    if (ioctl(fd, SIOCETHTOOL, &request) != 0)
        info.driver[0] = 0;
    close(fd);
    return strcmp(info.driver, "bridge") == 0 || strcmp(info.driver, "openvswitch") == 0;
}

static bool is_link_local(const struct sockaddr *s)
{
    uint8_t host[16];
    size_t n = host_part(s, host);

    return n == 4 ? host[0] == 169 && host[1] == 254
                  : n == 16 && host[0] == 0xfe && (host[1] & 0xc0) == 0x80;
}

static unsigned prefix_of(const struct sockaddr *mask)
{
    const uint8_t *at;
    size_t n;
    unsigned bits = 0;

    if (mask == NULL)
        return 0;
    at = mask->sa_family == AF_INET6 ? v6(mask)->sin6_addr.s6_addr
                                     : (const uint8_t *)&v4(mask)->sin_addr;
    n = mask->sa_family == AF_INET6 ? 16 : 4;
    for (size_t i = 0; i < n; i++)
        bits += (unsigned)__builtin_popcount(at[i]);
    return bits;
}

/* Smaller is better; what is equal stays in the kernel's order. */
static unsigned rank(const struct mcd_local_address *a)
{
    return (a->up ? 0u : 8u) + (a->loopback ? 4u : 0u) + (a->bridge ? 2u : 0u) +
           (a->address.ss_family == AF_INET6 ? 1u : 0u);
}

int mcd_local_addresses(struct mcd_local_address *out, size_t room, size_t *count)
{
    struct ifaddrs *all;
    size_t n = 0;

    *count = 0;
    if (getifaddrs(&all) != 0)
        return -errno;
    for (const struct ifaddrs *i = all; i != NULL; i = i->ifa_next) {
        struct mcd_local_address a = {.prefix = 0};
        size_t at;

        if (i->ifa_addr == NULL ||
            (i->ifa_addr->sa_family != AF_INET && i->ifa_addr->sa_family != AF_INET6) ||
            is_link_local(i->ifa_addr))
            continue;
        memcpy(&a.address, i->ifa_addr, mcd_sockaddr_size(i->ifa_addr));
        mcd_sockaddr_set_port((struct sockaddr *)&a.address, 0);
        a.prefix = prefix_of(i->ifa_netmask);
        snprintf(a.interface, sizeof(a.interface), "%s", i->ifa_name);
        /* a label such as "eth0:1" is no interface */
        a.interface[strcspn(a.interface, ":")] = 0;
        a.ifindex = if_nametoindex(a.interface);
        a.up = (i->ifa_flags & ALIVE) == ALIVE;
        a.loopback = (i->ifa_flags & IFF_LOOPBACK) != 0;
        a.bridge = !a.loopback && is_bridge(a.interface);
        /* sorted in; where there is no room, the worst falls out */
        for (at = n; at > 0 && rank(&out[at - 1]) > rank(&a); at--)
            ;
        if (at >= room)
            continue;
        memmove(&out[at + 1], &out[at], (n < room ? n - at : room - 1 - at) * sizeof(out[0]));
        out[at] = a;
        if (n < room)
            n++;
    }
    freeifaddrs(all);
    *count = n;
    return 0;
}
