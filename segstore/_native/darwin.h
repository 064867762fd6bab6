/* macOS's calls under the names of system.h. Calls that macOS lacks fail with ENOSYS, as on an old kernel: Python uses
 * another method then (storage/transfer/methods.py, storage/inbox/inbox.py). */
#ifndef SEG_DARWIN_H
#define SEG_DARWIN_H

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#define st_mtim st_mtimespec
#define st_ctim st_ctimespec
#define MAP_POPULATE 0 /* a hint of Linux */

/* <os/os_sync_wait_on_address.h> of macOS 14.4, and <os/clock.h>. */
int os_sync_wait_on_address(void *address, uint64_t seen, size_t size, uint32_t flags);
int os_sync_wait_on_address_with_timeout(void *address, uint64_t seen, size_t size, uint32_t flags, uint32_t clock,
                                         uint64_t ns);
int os_sync_wake_by_address_any(void *address, size_t size, uint32_t flags);
int os_sync_wake_by_address_all(void *address, size_t size, uint32_t flags);
enum { SEG_OF_PROCESSES = 1, SEG_OF_THREADS = 0 }; /* OS_SYNC_WAIT_ON_ADDRESS_SHARED and _NONE */
enum { SEG_ABSOLUTE_CLOCK = 32 };                  /* OS_CLOCK_MACH_ABSOLUTE_TIME */

#ifndef F_OFD_SETLK /* the kernel has them since macOS 10.15; the headers keep them from programs */
enum { F_OFD_SETLK = 90, F_OFD_GETLK = 92 };
#endif

static inline int64_t file_system(const char *path)
{
    return -ENOSYS;
}

static inline int64_t no_copy_on_write(int fd)
{
    return -ENOSYS;
}

static inline int64_t futex_wait(const void *word, uint32_t seen, const struct timespec *timeout, int sharing)
{
    void *at = (void *)(uintptr_t)word;
    if (__atomic_load_n((const uint32_t *)word, __ATOMIC_SEQ_CST) != seen) {
        errno = EAGAIN;
        return -1;
    }
    if (timeout == NULL)
        return os_sync_wait_on_address(at, seen, sizeof seen, (uint32_t)sharing) < 0 ? -1 : 0;
    uint64_t ns = (uint64_t)timeout->tv_sec * 1000000000 + (uint64_t)timeout->tv_nsec;
    return os_sync_wait_on_address_with_timeout(at, seen, sizeof seen, (uint32_t)sharing, SEG_ABSOLUTE_CLOCK,
                                                ns ? ns : 1) < 0 ? -1 : 0;
}

static inline int64_t futex_wait_until(const void *word, uint32_t seen, const struct timespec *end, int sharing)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    int64_t ns = (end->tv_sec - now.tv_sec) * 1000000000 + end->tv_nsec - now.tv_nsec;
    struct timespec left = {.tv_sec = ns > 0 ? ns / 1000000000 : 0, .tv_nsec = ns > 0 ? ns % 1000000000 : 0};
    return futex_wait(word, seen, &left, sharing);
}

/* macOS does not count the woken threads: 1 stands for all of them. */
static inline int64_t futex_wake(const void *word, int most, int sharing)
{
    void *at = (void *)(uintptr_t)word;
    int failed = most == 1 ? os_sync_wake_by_address_any(at, sizeof(uint32_t), (uint32_t)sharing)
                           : os_sync_wake_by_address_all(at, sizeof(uint32_t), (uint32_t)sharing);
    return failed >= 0 ? 1 : errno == ENOENT ? 0 : -1;
}

static inline int not_here(void)
{
    errno = ENOSYS;
    return -1;
}

static inline ssize_t copy_range(int in, off_t *from, int out, off_t *to, size_t len)
{
    return not_here();
}

static inline int processor(void)
{
    return -1;
}

static inline int leave_processor(int number)
{
    return not_here();
}

static inline void name_thread(const char *name)
{
    pthread_setname_np(name);
}

/* fsync(2) of macOS leaves bytes in the disk's own memory. */
static inline int sync_data(int fd)
{
    return fcntl(fd, F_FULLFSYNC);
}

static inline int start_sync(int fd, off_t offset, off_t len)
{
    return not_here();
}

/* As posix_fallocate(3). */
static inline int allocate(int fd, off_t offset, off_t len)
{
    struct stat found;
    if (fstat(fd, &found) < 0)
        return errno;
    if (offset + len <= found.st_size)
        return 0;
    fstore_t more = {.fst_flags = F_ALLOCATEALL, .fst_posmode = F_PEOFPOSMODE, .fst_length = offset + len - found.st_size};
    if (fcntl(fd, F_PREALLOCATE, &more) < 0 || ftruncate(fd, offset + len) < 0)
        return errno;
    return 0;
}

/* The time of a file's birth. */
static inline void birth_of(const char *path, const struct stat *found, struct timespec *born)
{
    *born = found->st_birthtimespec;
}

static inline int open_pipe(int *ends)
{
    if (pipe(ends) < 0)
        return -1;
    return fcntl(ends[0], F_SETFD, FD_CLOEXEC) < 0 || fcntl(ends[1], F_SETFD, FD_CLOEXEC) < 0 ? -1 : 0;
}

static inline ssize_t send_file(int out, int in, off_t *from, size_t len)
{
    off_t sent = (off_t)len;
    if (sendfile(in, out, *from, &sent, NULL, 0) < 0 && sent == 0)
        return -1;
    *from += sent;
    return (ssize_t)sent;
}

static inline ssize_t move_pages(int in, off_t *from, int out, size_t len, int more)
{
    return not_here();
}

static inline int resize_pipe(int pipe, int bytes)
{
    return not_here();
}

static inline int socket_option(int fd, int name)
{
    int value = -1;
    socklen_t len = sizeof value;
    return getsockopt(fd, SOL_SOCKET, name, &value, &len) < 0 ? -1 : value;
}

/* AF_INET and the like; -1 if the socket has no address. */
static inline int domain_of(int fd)
{
    struct sockaddr_storage address;
    socklen_t len = sizeof address;
    return getsockname(fd, (struct sockaddr *)&address, &len) < 0 ? -1 : address.ss_family;
}

/* IPPROTO_TCP: the only protocol of an IP stream socket. */
static inline int protocol_of(int fd)
{
    return IPPROTO_TCP;
}

static inline int watch_directory(const char *path)
{
    return not_here();
}

static inline int stop_watching(int fd)
{
    return not_here();
}

#endif
