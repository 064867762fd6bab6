/* The calls of the C library that change files, each recorded where it is below the root: see trace.c. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include "recording.h"

#define OURS(fd) \
    struct stat was; \
    char path_of_fd[PATH_MAX]; \
    int ours = fd_is_ours(fd, &was, path_of_fd) && S_ISREG(was.st_mode)

/* --- content ------------------------------------------------------------------- */

/* Make a call that writes, which gives the number of bytes, and record what it wrote `at`; -1: where it ends. */
#define WRITES(fd, at, call) \
    OURS(fd); \
    if (!ours) \
        return call; \
    lock(); \
    long done = call; \
    if (done > 0) { \
        int64_t from = at; \
        emit_range(fd, was.st_ino, from >= 0 ? from : lseek(fd, 0, SEEK_CUR) - done, (size_t)done); \
    } \
    return unlock(done)

ssize_t write(int fd, const void *buf, size_t n) { WRITES(fd, -1, syscall(SYS_write, fd, buf, n)); }
ssize_t writev(int fd, const struct iovec *parts, int n) { WRITES(fd, -1, syscall(SYS_writev, fd, parts, n)); }

ssize_t pwrite(int fd, const void *buf, size_t n, off_t at)
{
    WRITES(fd, at, syscall(SYS_pwrite64, fd, buf, n, at));
}

ssize_t pwritev(int fd, const struct iovec *parts, int n, off_t at)
{
    WRITES(fd, at, syscall(SYS_pwritev, fd, parts, n, at, at >> 32 >> 32));
}

ssize_t pwritev2(int fd, const struct iovec *parts, int n, off_t at, int flags)
{
    WRITES(fd, at, syscall(SYS_pwritev2, fd, parts, n, at, at >> 32 >> 32, flags));
}

ssize_t copy_file_range(int from, off64_t *at, int to, off64_t *to_at, size_t n, unsigned flags)
{
    WRITES(to, to_at ? *to_at - done : -1, syscall(SYS_copy_file_range, from, at, to, to_at, n, flags));
}

ssize_t splice(int from, off64_t *at, int to, off64_t *to_at, size_t n, unsigned flags)
{
    WRITES(to, to_at ? *to_at - done : -1, syscall(SYS_splice, from, at, to, to_at, n, flags));
}

ssize_t sendfile(int to, int from, off_t *at, size_t n) { WRITES(to, -1, syscall(SYS_sendfile, to, from, at, n)); }

/* Make a call that may change a file's size, and record its size behind it. */
#define RESIZES(fd, call) \
    OURS(fd); \
    if (!ours) \
        return call; \
    lock(); \
    long done = call; \
    struct stat is; \
    if (done == 0 && fstat(fd, &is) == 0 && is.st_size != was.st_size) \
        resized(is.st_ino, is.st_size); \
    return unlock(done)

static int allocated(int fd, int mode, off_t at, off_t n)
{
    if (mode & ~FALLOC_FL_KEEP_SIZE)
        abort(); /* holes are punched by nobody */
    RESIZES(fd, syscall(SYS_fallocate, fd, mode, at, n));
}

int ftruncate(int fd, off_t size) { RESIZES(fd, syscall(SYS_ftruncate, fd, size)); }
int fallocate(int fd, int mode, off_t at, off_t n) { return allocated(fd, mode, at, n); }
int posix_fallocate(int fd, off_t at, off_t n) { return allocated(fd, 0, at, n) ? errno : 0; }

int truncate(const char *path, off_t size)
{
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    int done = fd < 0 ? -1 : ftruncate(fd, size), error = errno;
    if (fd >= 0)
        syscall(SYS_close, fd);
    errno = error;
    return done;
}

static int synced(int fd, long number)
{
    struct stat was;
    char path[PATH_MAX];
    if (!fd_is_ours(fd, &was, path))
        return (int)syscall(number, fd);
    lock();
    look_at_file(was.st_ino);
    int refused = is_refused();
    if (S_ISDIR(was.st_mode))
        emit_path(refused ? 'd' : 'D', was.st_ino, path, NULL);
    else
        emit_sync(refused ? 'f' : 'F', was.st_ino);
    errno = EIO;
    return (int)unlock(refused ? -1 : 0);
}

int fsync(int fd) { return synced(fd, SYS_fsync); }
int fdatasync(int fd) { return synced(fd, SYS_fdatasync); }

/* --- mappings ------------------------------------------------------------------- */

void *mmap(void *at, size_t n, int protection, int flags, int fd, off_t from)
{
    OURS(fd);
    ours = ours && !(flags & MAP_ANONYMOUS) && (flags & MAP_SHARED) && (protection & PROT_WRITE);
    if (!ours && !(mapped && (flags & MAP_FIXED)))
        return (void *)syscall(SYS_mmap, at, n, protection, flags, fd, from);
    lock();
    if (flags & MAP_FIXED)
        unmapped(at, n);
    void *memory = (void *)syscall(SYS_mmap, at, n, protection, flags, fd, from);
    if (ours && memory != MAP_FAILED) {
        if (from)
            abort(); /* mappings are of a file's beginning */
        mapped_to(memory, n < (size_t)was.st_size ? n : (size_t)was.st_size, was.st_ino);
    }
    return (void *)unlock((long)memory);
}

int munmap(void *memory, size_t n)
{
    if (!mapped)
        return (int)syscall(SYS_munmap, memory, n);
    lock();
    unmapped(memory, n);
    return (int)unlock(syscall(SYS_munmap, memory, n));
}

/* --- names ---------------------------------------------------------------------- */

static int opened(int at, const char *path, int flags, int mode)
{
    char full[PATHS];
    const char *boot = getenv("SEGSTORE_RECORDING_BOOT");
    if (boot && is_recording() && path && strcmp(path, "/proc/sys/kernel/random/boot_id") == 0)
        path = boot;
    if (!(flags & (O_CREAT | O_TRUNC)) || !is_ours(at, path, full))
        return (int)syscall(SYS_openat, at, path, flags, mode);
    if ((flags & O_TMPFILE) == O_TMPFILE)
        abort(); /* files without a name are made by nobody */
    lock();
    struct stat was, is;
    int error = errno, there = stat(full, &was) == 0;
    errno = error;
    int fd = (int)syscall(SYS_openat, at, path, flags, mode);
    if (fd >= 0 && fstat(fd, &is) == 0) {
        if (!there)
            emit_path('O', is.st_ino, full, NULL);
        else if (was.st_size != is.st_size)
            resized(is.st_ino, is.st_size);
    }
    return (int)unlock(fd);
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
int creat(const char *path, mode_t mode) { return opened(AT_FDCWD, path, O_CREAT | O_WRONLY | O_TRUNC, mode); }

/* Make a call that changes the name `path`, and record it. */
static int named(char op, int at, const char *path, long number, long a, long b, long c)
{
    char full[PATHS];
    if (!is_ours(at, path, full))
        return (int)syscall(number, a, b, c);
    lock();
    int done = (int)syscall(number, a, b, c);
    if (done == 0)
        emit_path(op, 0, full, NULL);
    return (int)unlock(done);
}

/* The same of a call that gives a file a second name. */
static int named_twice(char op, int at, const char *from, int to_at, const char *to, long number, int flags)
{
    char full[PATHS], target[PATHS];
    if (is_ours(at, from, full) + is_ours(to_at, to, target) == 0)
        return (int)syscall(number, at, from, to_at, to, flags);
    lock();
    int done = (int)syscall(number, at, from, to_at, to, flags);
    if (done == 0)
        emit_path(op, 0, full, target);
    return (int)unlock(done);
}

int mkdirat(int at, const char *path, mode_t mode)
{
    return named('M', at, path, SYS_mkdirat, at, (long)path, mode);
}
int mkdir(const char *path, mode_t mode) { return mkdirat(AT_FDCWD, path, mode); }

int unlinkat(int at, const char *path, int flags)
{
    return named('U', at, path, SYS_unlinkat, at, (long)path, flags);
}
int unlink(const char *path) { return unlinkat(AT_FDCWD, path, 0); }
int rmdir(const char *path) { return unlinkat(AT_FDCWD, path, AT_REMOVEDIR); }

int renameat2(int at, const char *from, int to_at, const char *to, unsigned flags)
{
    return named_twice('R', at, from, to_at, to, SYS_renameat2, (int)flags);
}
int renameat(int at, const char *from, int to_at, const char *to) { return renameat2(at, from, to_at, to, 0); }
int rename(const char *from, const char *to) { return renameat2(AT_FDCWD, from, AT_FDCWD, to, 0); }

int linkat(int at, const char *from, int to_at, const char *to, int flags)
{
    return named_twice('L', at, from, to_at, to, SYS_linkat, flags);
}
int link(const char *from, const char *to) { return linkat(AT_FDCWD, from, AT_FDCWD, to, 0); }

/* The names that programs built for large files call. */
#define ALIAS(kind, name, of, ...) kind name(__VA_ARGS__) __attribute__((alias(#of)))
ALIAS(ssize_t, pwrite64, pwrite, int, const void *, size_t, off_t);
ALIAS(ssize_t, pwritev64, pwritev, int, const struct iovec *, int, off_t);
ALIAS(ssize_t, pwritev64v2, pwritev2, int, const struct iovec *, int, off_t, int);
ALIAS(int, ftruncate64, ftruncate, int, off_t);
ALIAS(int, truncate64, truncate, const char *, off_t);
ALIAS(int, posix_fallocate64, posix_fallocate, int, off_t, off_t);
ALIAS(int, fallocate64, fallocate, int, int, off_t, off_t);
ALIAS(void *, mmap64, mmap, void *, size_t, int, int, int, off_t);
ALIAS(ssize_t, sendfile64, sendfile, int, int, off_t *, size_t);
ALIAS(int, creat64, creat, const char *, mode_t);
