/* Sends from a mapping without copying it (MSG_ZEROCOPY, Documentation/networking/msg_zerocopy.rst of Linux).
 *
 * Thread contract: no state. The kernel announces by a notice in the socket's error queue that it needs the pages of a
 * send no more, for each send that took bytes; one notice may be about several sends.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <netinet/in.h>
#include <stdint.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h> /* before linux/errqueue.h, which needs struct timespec */
#include <unistd.h>

#include "exhibits.h"

#ifdef __linux__
#include <linux/errqueue.h>

#ifndef SO_ZEROCOPY
#define SO_ZEROCOPY 60
#endif
#ifndef MSG_ZEROCOPY
#define MSG_ZEROCOPY 0x4000000
#endif
#ifndef SO_EE_ORIGIN_ZEROCOPY
#define SO_EE_ORIGIN_ZEROCOPY 5
#endif
#ifndef SO_EE_CODE_ZEROCOPY_COPIED
#define SO_EE_CODE_ZEROCOPY_COPIED 1
#endif

int64_t seg_zerocopy(int fd, int32_t on)
{
    int before = 0;
    socklen_t len = sizeof before;
    if (getsockopt(fd, SOL_SOCKET, SO_ZEROCOPY, &before, &len) < 0)
        return -errno;
    return setsockopt(fd, SOL_SOCKET, SO_ZEROCOPY, &on, sizeof on) < 0 ? -errno : before;
}

int64_t seg_zerocopy_probe(void)
{
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return -errno;
    int64_t result = seg_zerocopy(fd, 1);
    close(fd);
    return result < 0 ? result : 0;
}

int64_t seg_send_zerocopy(int out, const seg_window *w, int64_t position, int64_t count)
{
    int64_t at = position - w->position;
    if (!w->memory || at < 0 || count < 0 || count > w->mapped - at)
        return -EINVAL;
    ssize_t sent = send(out, w->memory + at, (size_t)count, MSG_ZEROCOPY | MSG_NOSIGNAL);
    return sent < 0 ? -errno : sent;
}

/* The number of sends that one message of the error queue is about. */
static int64_t sends_of(struct msghdr *message, int64_t *copied)
{
    for (struct cmsghdr *c = CMSG_FIRSTHDR(message); c; c = CMSG_NXTHDR(message, c)) {
        struct sock_extended_err error;
        int v4 = c->cmsg_level == SOL_IP && c->cmsg_type == IP_RECVERR;
        int v6 = c->cmsg_level == SOL_IPV6 && c->cmsg_type == IPV6_RECVERR;
        if (!(v4 || v6) || c->cmsg_len < CMSG_LEN(sizeof error))
            continue;
        memcpy(&error, CMSG_DATA(c), sizeof error);
        if (error.ee_errno != 0 || error.ee_origin != SO_EE_ORIGIN_ZEROCOPY)
            continue;
        int64_t sends = (int64_t)(uint32_t)(error.ee_data - error.ee_info) + 1;
        *copied += error.ee_code & SO_EE_CODE_ZEROCOPY_COPIED ? sends : 0;
        return sends;
    }
    return 0;
}

int64_t seg_notices(int fd, seg_noticed *out)
{
    memset(out, 0, sizeof *out);
    for (;;) {
        char control[128];
        struct msghdr message = {.msg_control = control, .msg_controllen = sizeof control};
        out->calls++;
        if (recvmsg(fd, &message, MSG_ERRQUEUE | MSG_DONTWAIT) < 0) {
            if (errno == EINTR)
                continue;
            return errno == EAGAIN ? out->sends : -errno;
        }
        out->sends += sends_of(&message, &out->copied);
    }
}

#else

int64_t seg_zerocopy(int fd, int32_t on)
{
    return -ENOSYS;
}

int64_t seg_zerocopy_probe(void)
{
    return -ENOSYS;
}

int64_t seg_send_zerocopy(int out, const seg_window *w, int64_t position, int64_t count)
{
    return -ENOSYS;
}

int64_t seg_notices(int fd, seg_noticed *out)
{
    memset(out, 0, sizeof *out);
    return -ENOSYS;
}

#endif
