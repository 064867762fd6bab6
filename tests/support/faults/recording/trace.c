/* A recorder of what a program does to its disk: below the C of the engine and below Python, calls that change files
 * under one directory are written to a trace, in one order for all threads and processes. Loaded by LD_PRELOAD;
 * tests/support/faults/recorded/ reads the trace and builds from it what a power cut may leave.
 *
 *   SEGSTORE_RECORDING_ROOT   the directory
 *   SEGSTORE_RECORDING_TRACE  the file that gets the records; beside it lies "<it>.guard"
 *   SEGSTORE_RECORDING_BOOT   a file that is read in place of the kernel's boot id: a cut is a new start
 *
 * Each call is made and recorded while one lock is held, so the trace has the order of the changes. A file is known
 * by its inode. Nothing is synced in truth: what a sync makes durable is decided by who reads the trace. Stores to a
 * shared mapping make no call: mappings are compared with their last look before each call that is recorded.
 * Not wrapped, since the engine has no use for them: msync, syncfs, sync, O_SYNC, RENAME_EXCHANGE, symlinks, ioctl.
 * The first five would only make more durable than the trace says; a reader of the trace that compares the directory
 * with it notices the others. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include "recording.h"

#define BLOCK 512 /* bytes of a mapping that are compared at once */
#define MAPPINGS 4096
#define HIGH 700 /* the trace's descriptor is no number that a program may count on */

static struct {
    pthread_mutex_t guard;
    long refuse; /* so many syncs from now one fails; 0: none */
} *shared;

struct record { /* then the first bytes, and the second ones up to `size` */
    uint32_t size;
    uint8_t op, mapped;
    uint16_t unused;
    uint32_t pid, first;
    uint64_t inode, at;
};

static struct mapping {
    uint8_t *memory, *seen;
    size_t len, used; /* bytes; behind `used` all were zeros at the last look */
    uint64_t inode;
} mappings[MAPPINGS];
int mapped;
static int trace, stores;
static char root[PATH_MAX];

/* --- the trace ---------------------------------------------------------------- */

static void emit(char op, int is_mapped, uint64_t inode, uint64_t at, const void *a, size_t n, const void *b, size_t m)
{
    struct record head = {sizeof head + n + m, op, is_mapped, 0, getpid(), n, inode, at};
    struct iovec parts[] = {{&head, sizeof head}, {(void *)a, n}, {(void *)b, m}};
    if (syscall(SYS_writev, trace, parts, 3) != (long)head.size)
        abort(); /* a trace with a hole proves nothing */
}

void emit_path(char op, uint64_t inode, const char *a, const char *b)
{
    emit(op, 0, inode, 0, a, strlen(a), b, b ? strlen(b) : 0);
}

void emit_sync(char op, uint64_t inode) { emit(op, 0, inode, 0, NULL, 0, NULL, 0); }

/* Record the bytes that are in a file now. */
void emit_range(int fd, uint64_t inode, off_t at, size_t n)
{
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    int again = (int)syscall(SYS_openat, AT_FDCWD, link, O_RDONLY | O_CLOEXEC, 0);
    uint8_t *data = malloc(n);
    if (again < 0 || !data || syscall(SYS_pread64, again, data, n, at) != (long)n)
        abort();
    emit('W', 0, inode, (uint64_t)at, data, n, NULL, 0);
    syscall(SYS_close, again);
    free(data);
}

static void look_at(struct mapping *m, int whole)
{
    for (size_t at = 0; at < m->len && (whole || at < m->used + BLOCK); at += BLOCK) {
        uint8_t now[BLOCK];
        size_t n = m->len - at < BLOCK ? m->len - at : BLOCK;
        memcpy(now, m->memory + at, n);
        if (memcmp(now, m->seen + at, n) == 0)
            continue;
        memcpy(m->seen + at, now, n);
        stores++;
        emit('W', 1, m->inode, at, now, n, NULL, 0);
        if (m->used < at + n)
            m->used = at + n;
    }
}

void look_at_file(uint64_t inode)
{
    for (int i = 0; i < mapped; i++)
        if (mappings[i].inode == inode)
            look_at(&mappings[i], 1);
}

static void look_at_all(int whole)
{
    for (int i = 0; i < mapped; i++)
        look_at(&mappings[i], whole);
}

void lock(void)
{
    if (pthread_mutex_lock(&shared->guard) == EOWNERDEAD)
        pthread_mutex_consistent(&shared->guard);
    look_at_all(0);
}

int is_recording(void) { return shared != NULL; }
int is_refused(void) { return shared->refuse && --shared->refuse == 0; }

long unlock(long result)
{
    int error = errno;
    pthread_mutex_unlock(&shared->guard);
    errno = error;
    return result;
}

void unmapped(uint8_t *memory, size_t n)
{
    for (int i = mapped - 1; i >= 0; i--) {
        struct mapping *m = &mappings[i];
        if (m->memory >= memory + n || memory >= m->memory + m->len)
            continue;
        look_at(m, 1);
        free(m->seen);
        *m = mappings[--mapped];
    }
}

void mapped_to(uint8_t *memory, size_t n, uint64_t inode)
{
    struct mapping m = {memory, malloc(n), n, n, inode};
    if (mapped == MAPPINGS || !m.seen)
        abort();
    memcpy(m.seen, memory, n);
    while (m.used && !m.seen[m.used - 1])
        m.used--;
    m.used = (m.used + BLOCK - 1) / BLOCK * BLOCK;
    mappings[mapped++] = m;
}

void resized(uint64_t inode, off_t size)
{
    for (int i = 0; i < mapped; i++) /* memory behind the end can't be read */
        if (mappings[i].inode == inode && mappings[i].len > (size_t)size)
            mappings[i].len = size;
    emit('T', 0, inode, size, NULL, 0, NULL, 0);
}

/* --- which files -------------------------------------------------------------- */

static int is_below(const char *path)
{
    size_t n = strlen(root);
    return strncmp(path, root, n) == 0 && (path[n] == '/' || path[n] == 0);
}

static int path_of(int fd, char *path)
{
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    long n = syscall(SYS_readlinkat, AT_FDCWD, link, path, PATH_MAX - 1);
    path[n > 0 ? n : 0] = 0;
    return n > 0;
}

/* Make a path absolute, and return whether it is below the root. */
int is_ours(int at, const char *path, char *full)
{
    int error = errno;
    char base[PATH_MAX] = "";
    if (!shared || !path)
        return 0;
    if (path[0] != '/' && !(at == AT_FDCWD ? getcwd(base, sizeof base) != NULL : path_of(at, base)))
        return 0;
    snprintf(full, PATHS, "%s%s%s", base, base[0] ? "/" : "", path);
    errno = error;
    return is_below(full);
}

/* Return whether a descriptor is of a file, or of a directory, below the root; `found` is its state. */
int fd_is_ours(int fd, struct stat *found, char *path)
{
    int error = errno;
    int ours = shared && fd >= 0 && path_of(fd, path) && is_below(path) && fstat(fd, found) == 0;
    errno = error;
    return ours;
}

/* --- starts and forks ---------------------------------------------------------- */

static void forked(void) { mapped = 0; } /* the mappings stay the parent's to look at */

__attribute__((constructor)) static void begin(void)
{
    const char *under = getenv("SEGSTORE_RECORDING_ROOT"), *to = getenv("SEGSTORE_RECORDING_TRACE");
    char beside[PATH_MAX];
    if (!under || !to || strlen(under) >= sizeof root)
        return;
    strcpy(root, under);
    snprintf(beside, sizeof beside, "%s.guard", to);
    int first = (int)syscall(SYS_openat, AT_FDCWD, to, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
    int fd = (int)syscall(SYS_openat, AT_FDCWD, beside, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    trace = fcntl(first, F_DUPFD_CLOEXEC, HIGH);
    struct stat found;
    if (trace < 0 || fd < 0 || flock(fd, LOCK_EX) || fstat(fd, &found) || syscall(SYS_ftruncate, fd, sizeof *shared))
        abort();
    void *memory = (void *)syscall(SYS_mmap, NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (memory == MAP_FAILED)
        abort();
    shared = memory;
    if (!found.st_size) {
        pthread_mutexattr_t how;
        pthread_mutexattr_init(&how);
        pthread_mutexattr_setpshared(&how, PTHREAD_PROCESS_SHARED);
        pthread_mutexattr_setrobust(&how, PTHREAD_MUTEX_ROBUST);
        pthread_mutex_init(&shared->guard, &how);
    }
    syscall(SYS_close, first);
    syscall(SYS_close, fd); /* unlocks it */
    pthread_atfork(NULL, NULL, forked);
}

/* Note bytes in the trace: what the program was told so far. Stores to mappings come before. */
void recording_note(const void *data, size_t n)
{
    lock();
    look_at_all(1);
    emit('N', 0, 0, 0, data, n, NULL, 0);
    unlock(0);
}

/* The same, and end the process. The lock is kept: other threads wait at their next call, and have made their last
 * stores when a look finds none. */
void recording_end(const void *data, size_t n)
{
    lock();
    do {
        stores = 0;
        usleep(20000);
        look_at_all(1);
    } while (stores);
    emit('N', 0, 0, 0, data, n, NULL, 0);
    _exit(0);
}

/* Let the nth sync from now fail with EIO. */
void recording_refuse(long nth)
{
    lock();
    shared->refuse = nth;
    unlock(0);
}
