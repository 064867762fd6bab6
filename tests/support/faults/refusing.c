/* A disk that refuses: below the C of the engine and below Python, calls on files under one directory fail, or do
 * half of what is asked, as a seeded draw has it. Loaded by LD_PRELOAD; off until `refuse_under` is called.
 *
 * Errors are those that the system has for each call. What is refused changes nothing, but for short writes. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

static char root[PATH_MAX];
static atomic_ulong state;
static atomic_int odds; /* one call in so many; 0: none */
atomic_long refused, halved, synced_not;

void refuse_under(const char *directory, unsigned long seed)
{
    snprintf(root, sizeof root, "%s/", directory);
    state = seed;
}

void refuse_one_in(int calls) { odds = calls; }

static unsigned long draw(void) /* splitmix64 */
{
    uint64_t z = atomic_fetch_add(&state, 0x9E3779B97F4A7C15ul) + 0x9E3779B97F4A7C15ul;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9ul;
    z = (z ^ z >> 27) * 0x94D049BB133111EBul;
    return z ^ z >> 31;
}

static int is_ours(const char *path) { return root[0] && strncmp(path, root, strlen(root)) == 0; }

static int fd_is_ours(int fd)
{
    char link[64], path[PATH_MAX];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    long n = syscall(SYS_readlink, link, path, sizeof path - 1);
    if (n <= 0)
        return 0;
    path[n] = 0;
    return is_ours(path);
}

/* One of `n` errors, or 0. */
static int drawn(const int *errors, int n, int rarer)
{
    int one_in = odds;
    if (!one_in || draw() % ((unsigned long)one_in * rarer))
        return 0;
    atomic_fetch_add(&refused, 1);
    return errno = errors[draw() % n];
}

#define REFUSED(rarer, ...) drawn((const int[]){__VA_ARGS__}, sizeof((const int[]){__VA_ARGS__}) / sizeof(int), rarer)
#define FD_REFUSED(fd, ...) (odds && fd_is_ours(fd) && REFUSED(1, __VA_ARGS__))
#define PATH_REFUSED(path, ...) (odds && is_ours(path) && REFUSED(1, __VA_ARGS__))

static size_t shortened(int fd, size_t n)
{
    if (n < 2 || !odds || draw() % odds || !fd_is_ours(fd))
        return n;
    atomic_fetch_add(&halved, 1);
    return 1 + draw() % (n - 1);
}

ssize_t pread(int fd, void *buf, size_t n, off_t at)
{
    if (FD_REFUSED(fd, EIO, EINTR, EINTR))
        return -1;
    return syscall(SYS_pread64, fd, buf, shortened(fd, n), at);
}

ssize_t pwrite(int fd, const void *buf, size_t n, off_t at)
{
    if (FD_REFUSED(fd, ENOSPC, ENOSPC, EDQUOT, EIO, EINTR))
        return -1;
    return syscall(SYS_pwrite64, fd, buf, shortened(fd, n), at);
}

/* Of several parts a part of the first is written. */
ssize_t pwritev(int fd, const struct iovec *parts, int n, off_t at)
{
    if (FD_REFUSED(fd, ENOSPC, ENOSPC, EDQUOT, EIO, EINTR))
        return -1;
    size_t some = n > 0 ? shortened(fd, parts[0].iov_len) : 0;
    if (n > 0 && some < parts[0].iov_len)
        return syscall(SYS_pwrite64, fd, parts[0].iov_base, some, at);
    return syscall(SYS_pwritev, fd, parts, n, at, at >> 32 >> 32);
}

/* A sync that fails fences its partition, so it is rarer. */
static int sync_refused(int fd)
{
    if (!odds || !fd_is_ours(fd) || !REFUSED(4, EIO, ENOSPC, EDQUOT))
        return 0;
    atomic_fetch_add(&synced_not, 1);
    return 1;
}

int fsync(int fd) { return sync_refused(fd) ? -1 : (int)syscall(SYS_fsync, fd); }
int fdatasync(int fd) { return sync_refused(fd) ? -1 : (int)syscall(SYS_fdatasync, fd); }

int ftruncate(int fd, off_t size)
{
    return FD_REFUSED(fd, EIO, EINTR, ENOSPC) ? -1 : (int)syscall(SYS_ftruncate, fd, size);
}

int posix_fallocate(int fd, off_t at, off_t n)
{
    if (FD_REFUSED(fd, ENOSPC, EDQUOT, EIO, EINTR))
        return errno;
    return syscall(SYS_fallocate, fd, 0, at, n) ? errno : 0;
}

int fallocate(int fd, int mode, off_t at, off_t n)
{
    return FD_REFUSED(fd, ENOSPC, EDQUOT, EIO, EINTR) ? -1 : (int)syscall(SYS_fallocate, fd, mode, at, n);
}

static int opened(int at, const char *path, int flags, int mode)
{
    if (flags & (O_CREAT | O_WRONLY | O_RDWR) ? PATH_REFUSED(path, ENOSPC, EDQUOT, EIO, EMFILE, ENFILE, EINTR)
                                              : PATH_REFUSED(path, EIO, EMFILE, ENFILE, EINTR))
        return -1;
    return (int)syscall(SYS_openat, at, path, flags, mode);
}

#define OPENED(at) \
    int mode = 0; \
    if (flags & (O_CREAT | O_TMPFILE)) { \
        va_list more; \
        va_start(more, flags); \
        mode = va_arg(more, int); \
        va_end(more); \
    } \
    return opened(at, path, flags, mode)

int open(const char *path, int flags, ...) { OPENED(AT_FDCWD); }
int open64(const char *path, int flags, ...) { OPENED(AT_FDCWD); }
int openat(int at, const char *path, int flags, ...) { OPENED(at); }
int openat64(int at, const char *path, int flags, ...) { OPENED(at); }

int rename(const char *from, const char *to)
{
    return PATH_REFUSED(from, ENOSPC, EDQUOT, EIO) ? -1 : (int)syscall(SYS_renameat, AT_FDCWD, from, AT_FDCWD, to);
}

int renameat(int at, const char *from, int to_at, const char *to)
{
    return PATH_REFUSED(from, ENOSPC, EDQUOT, EIO) ? -1 : (int)syscall(SYS_renameat, at, from, to_at, to);
}

int link(const char *from, const char *to)
{
    return PATH_REFUSED(to, ENOSPC, EDQUOT, EIO) ? -1 : (int)syscall(SYS_linkat, AT_FDCWD, from, AT_FDCWD, to, 0);
}

int unlink(const char *path)
{
    return PATH_REFUSED(path, EIO, EBUSY) ? -1 : (int)syscall(SYS_unlinkat, AT_FDCWD, path, 0);
}

int unlinkat(int at, const char *path, int flags)
{
    return PATH_REFUSED(path, EIO, EBUSY) ? -1 : (int)syscall(SYS_unlinkat, at, path, flags);
}

int mkdir(const char *path, mode_t mode)
{
    return PATH_REFUSED(path, ENOSPC, EDQUOT, EIO) ? -1 : (int)syscall(SYS_mkdirat, AT_FDCWD, path, mode);
}

void *mmap(void *at, size_t n, int protection, int flags, int fd, off_t from)
{
    if (fd >= 0 && FD_REFUSED(fd, ENOMEM, ENFILE))
        return MAP_FAILED;
    return (void *)syscall(SYS_mmap, at, n, protection, flags, fd, from);
}

ssize_t sendfile(int to, int from, off_t *at, size_t n)
{
    return FD_REFUSED(from, EIO, EINTR, ENOMEM) ? -1 : syscall(SYS_sendfile, to, from, at, shortened(from, n));
}

ssize_t splice(int from, off64_t *at, int to, off64_t *to_at, size_t n, unsigned flags)
{
    if (FD_REFUSED(from, EIO, EINTR, ENOMEM))
        return -1;
    return syscall(SYS_splice, from, at, to, to_at, shortened(from, n), flags);
}

ssize_t copy_file_range(int from, off64_t *at, int to, off64_t *to_at, size_t n, unsigned flags)
{
    if (FD_REFUSED(to, ENOSPC, EIO, EINTR) || FD_REFUSED(from, EIO))
        return -1;
    return syscall(SYS_copy_file_range, from, at, to, to_at, shortened(from, n), flags);
}

/* The names that programs built for large files call. */
#define ALIAS(kind, name, of, ...) kind name(__VA_ARGS__) __attribute__((alias(#of)))
ALIAS(ssize_t, pread64, pread, int, void *, size_t, off_t);
ALIAS(ssize_t, pwrite64, pwrite, int, const void *, size_t, off_t);
ALIAS(ssize_t, pwritev64, pwritev, int, const struct iovec *, int, off_t);
ALIAS(int, ftruncate64, ftruncate, int, off_t);
ALIAS(int, posix_fallocate64, posix_fallocate, int, off_t, off_t);
ALIAS(int, fallocate64, fallocate, int, int, off_t, off_t);
ALIAS(void *, mmap64, mmap, void *, size_t, int, int, int, off_t);
ALIAS(ssize_t, sendfile64, sendfile, int, int, off_t *, size_t);
