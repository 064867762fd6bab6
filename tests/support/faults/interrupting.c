/* Reads and writes as a signal, or a slow file system, may leave them: each second call is interrupted before it
 * does anything, all others do half of what is asked. Loaded by LD_PRELOAD; stateless but for its counters. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdatomic.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

static atomic_long calls;
static atomic_int on;
atomic_long interrupted, halved;

void interrupt_calls(int yes) { on = yes; }

static int is_interrupted(void)
{
    if (!on || atomic_fetch_add(&calls, 1) % 2)
        return 0;
    atomic_fetch_add(&interrupted, 1);
    errno = EINTR;
    return 1;
}

static size_t half(size_t n)
{
    if (!on || n < 2)
        return n;
    atomic_fetch_add(&halved, 1);
    return n / 2;
}

ssize_t pread(int fd, void *buf, size_t n, off_t at)
{
    return is_interrupted() ? -1 : syscall(SYS_pread64, fd, buf, half(n), at);
}

ssize_t pwrite(int fd, const void *buf, size_t n, off_t at)
{
    return is_interrupted() ? -1 : syscall(SYS_pwrite64, fd, buf, half(n), at);
}

/* Of several parts the first is halved, so that the next call begins within it. */
ssize_t pwritev(int fd, const struct iovec *parts, int n, off_t at)
{
    if (is_interrupted())
        return -1;
    if (on && n > 0 && parts[0].iov_len > 1)
        return syscall(SYS_pwrite64, fd, parts[0].iov_base, half(parts[0].iov_len), at);
    return syscall(SYS_pwritev, fd, parts, n, at, at >> 32 >> 32);
}

ssize_t pread64(int fd, void *buf, size_t n, off_t at) { return pread(fd, buf, n, at); }
ssize_t pwrite64(int fd, const void *buf, size_t n, off_t at) { return pwrite(fd, buf, n, at); }
ssize_t pwritev64(int fd, const struct iovec *parts, int n, off_t at) { return pwritev(fd, parts, n, at); }
