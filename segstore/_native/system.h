/* Calls that not every system or C library has, each under one name: glibc has copy_file_range(2) since 2.27, and
 * futex(2) never; darwin.h has those of macOS.
 */
#ifndef SEG_SYSTEM_H
#define SEG_SYSTEM_H

#ifdef __APPLE__
#include "darwin.h"
#else
#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <linux/futex.h>
#include <sched.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/inotify.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/vfs.h>
#include <time.h>
#include <unistd.h>

/* Whether all waiters of a word are threads of one process. */
enum { SEG_OF_PROCESSES = 0, SEG_OF_THREADS = FUTEX_PRIVATE_FLAG };

/* Wait as long as the word is `seen`, at most for `timeout`, unless it is NULL. 0 after a wake; else -1, and errno is
 * EAGAIN (the word differs), EINTR or ETIMEDOUT. */
static inline int64_t futex_wait(const void *word, uint32_t seen, const struct timespec *timeout, int sharing)
{
    return syscall(SYS_futex, word, FUTEX_WAIT | sharing, seen, timeout, NULL, 0);
}

/* As futex_wait, but until a time of CLOCK_MONOTONIC. */
static inline int64_t futex_wait_until(const void *word, uint32_t seen, const struct timespec *end, int sharing)
{
    return syscall(SYS_futex, word, FUTEX_WAIT_BITSET | sharing, seen, end, NULL, FUTEX_BITSET_MATCH_ANY);
}

/* Wake `most` waiters at most; returns their number; -1 and errno for a bad address. */
static inline int64_t futex_wake(const void *word, int most, int sharing)
{
    return syscall(SYS_futex, word, FUTEX_WAKE | sharing, most, NULL, NULL, 0);
}

/* copy_file_range(2) without flags; NULL: from or to the descriptor's own position. */
static inline ssize_t copy_range(int in, off_t *from, int out, off_t *to, size_t len)
{
#if defined(__GLIBC__) && __GLIBC__ == 2 && __GLIBC_MINOR__ < 27
    return (ssize_t)syscall(SYS_copy_file_range, in, from, out, to, len, 0);
#else
    return copy_file_range(in, from, out, to, len, 0);
#endif
}

/* The number of the processor on which this thread runs; -1: not known. */
static inline int processor(void)
{
    return sched_getcpu();
}

/* Have the kernel move this thread to another processor that it may use, and then allow all of them again: 0; -1 if
 * there is no other, or the kernel refuses. */
static inline int leave_processor(int number)
{
    cpu_set_t allowed, others;
    if (number < 0 || number >= CPU_SETSIZE || sched_getaffinity(0, sizeof allowed, &allowed) < 0)
        return -1;
    others = allowed;
    CPU_CLR(number, &others);
    if (CPU_COUNT(&others) == 0 || sched_setaffinity(0, sizeof others, &others) < 0)
        return -1;
    return sched_setaffinity(0, sizeof allowed, &allowed);
}

/* Name this thread, for tools that list threads: at most 15 bytes. */
static inline void name_thread(const char *name)
{
    prctl(PR_SET_NAME, name, 0, 0, 0);
}

static inline int sync_data(int fd)
{
    return fdatasync(fd);
}

/* Begin to write a range to the disk, without waiting. */
static inline int start_sync(int fd, off_t offset, off_t len)
{
    return sync_file_range(fd, offset, len, SYNC_FILE_RANGE_WRITE);
}

/* 0 or an errno, as posix_fallocate(3). */
static inline int allocate(int fd, off_t offset, off_t len)
{
    return posix_fallocate(fd, offset, len);
}

/* The time of a file's birth; *born stays as it is if the file system does not know. Headers of Linux have statx(2)
 * since 4.11, and glibc since 2.28. */
static inline void birth_of(const char *path, const struct stat *found, struct timespec *born)
{
#if defined(STATX_BTIME) && defined(SYS_statx)
    struct statx more;
    if (syscall(SYS_statx, AT_FDCWD, path, AT_SYMLINK_NOFOLLOW, STATX_BTIME, &more) == 0
        && (more.stx_mask & STATX_BTIME)) {
        born->tv_sec = (time_t)more.stx_btime.tv_sec;
        born->tv_nsec = (long)more.stx_btime.tv_nsec;
    }
#endif
}

/* The kind of file system, a magic number of 32 bits; -errno. */
static inline int64_t file_system(const char *path)
{
    struct statfs found;
    return statfs(path, &found) < 0 ? -errno : (int64_t)(uint32_t)found.f_type;
}

/* Set the flag against copy-on-write, which only btrfs has, and only for an empty file: 0, -errno. */
static inline int64_t no_copy_on_write(int fd)
{
    int flags = 0;
    if (ioctl(fd, FS_IOC_GETFLAGS, &flags) < 0)
        return -errno;
    flags |= FS_NOCOW_FL;
    return ioctl(fd, FS_IOC_SETFLAGS, &flags) < 0 ? -errno : 0;
}

static inline int open_pipe(int *ends)
{
    return pipe2(ends, O_CLOEXEC);
}

static inline ssize_t send_file(int out, int in, off_t *from, size_t len)
{
    return sendfile(out, in, from, len);
}

/* splice(2) from a file or a pipe to a pipe or a socket. */
static inline ssize_t move_pages(int in, off_t *from, int out, size_t len, int more)
{
    return splice(in, from, out, NULL, len, SPLICE_F_MOVE | (more ? SPLICE_F_MORE : 0));
}

static inline int resize_pipe(int pipe, int bytes)
{
    return fcntl(pipe, F_SETPIPE_SZ, bytes);
}

static inline int socket_option(int fd, int name)
{
    int value = -1;
    socklen_t len = sizeof value;
    return getsockopt(fd, SOL_SOCKET, name, &value, &len) < 0 ? -1 : value;
}

/* AF_INET and the like, and IPPROTO_TCP and the like; -1 for none. */
static inline int domain_of(int fd)
{
    return socket_option(fd, SO_DOMAIN);
}

static inline int protocol_of(int fd)
{
    return socket_option(fd, SO_PROTOCOL);
}

/* Return a descriptor that becomes readable when a file is renamed into the directory. */
static inline int watch_directory(const char *path)
{
    int fd = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
    if (fd >= 0 && inotify_add_watch(fd, path, IN_MOVED_TO | IN_ONLYDIR) < 0) {
        int why = errno;
        close(fd);
        errno = why;
        return -1;
    }
    return fd;
}

/* Make the descriptor readable. The first watch of an instance is number 1; its removal is itself an event. If the
 * directory was removed, and the watch with it, another watch is added and removed. */
static inline int stop_watching(int fd)
{
    if (inotify_rm_watch(fd, 1) == 0)
        return 0;
    int other = inotify_add_watch(fd, "/", IN_DELETE_SELF);
    return other < 0 || inotify_rm_watch(fd, other) < 0 ? -1 : 0;
}

#endif
#endif
