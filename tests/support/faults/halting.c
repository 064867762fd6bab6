/* A process that stops, or dies, at a call of the kernel. Loaded by LD_PRELOAD.
 *
 * `halt_at` has the `nth` call from now on (1: the next) of one kind, on a file whose path ends so, send a signal to its
 * own thread: before it is made, behind it, or (a write) behind half of its bytes. A stopped thread goes on there.
 * `halt_where` does so at the next load or store in a page of a mapping, before it is done. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <linux/futex.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

enum { WRITE, CUT, SYNC, WAKE, KINDS };
enum { BEFORE, BEHIND, HALF };

static atomic_int left[KINDS];
static int when[KINDS], with[KINDS];
static char suffix[KINDS][256];

void halt_at(int kind, int nth, int at, int number, const char *path)
{
    when[kind] = at;
    with[kind] = number;
    strncpy(suffix[kind], path, sizeof suffix[kind] - 1);
    left[kind] = nth;
}

/* --- a place of memory ------------------------------------------------------------- */

static char *page;
static size_t page_len;
static int page_number;

static void touched(int number, siginfo_t *info, void *context)
{
    char *at = info->si_addr;
    if (!page || at < page || at >= page + page_len) {
        signal(SIGSEGV, SIG_DFL);
        return;
    }
    mprotect(page, page_len, PROT_READ | PROT_WRITE);
    page = NULL;
    if (page_number == SIGKILL)
        kill(getpid(), SIGKILL);
    raise(page_number);
}

void halt_where(void *at, size_t len, int number)
{
    struct sigaction action = {.sa_sigaction = touched, .sa_flags = SA_SIGINFO | SA_NODEFER};
    sigaction(SIGSEGV, &action, NULL);
    page = at;
    page_len = len;
    page_number = number;
    mprotect(at, len, PROT_NONE);
}

/* --- a call ------------------------------------------------------------------------ */

/* Whether this call is the one: then `halt` is due in it. */
static int is_due(int kind, int fd)
{
    char link[64], path[4096];
    if (!left[kind])
        return 0;
    if (fd >= 0) {
        snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
        ssize_t n = readlink(link, path, sizeof path);
        size_t end = strlen(suffix[kind]);
        if (n < (ssize_t)end || memcmp(path + n - end, suffix[kind], end) != 0)
            return 0;
    }
    return atomic_fetch_sub(&left[kind], 1) == 1;
}

static void halt(int kind)
{
    int kept = errno;
    if (with[kind] == SIGKILL)
        kill(getpid(), SIGKILL);
    raise(with[kind]);
    errno = kept;
}

ssize_t pwrite64(int fd, const void *buf, size_t n, off64_t at)
{
    static ssize_t (*real)(int, const void *, size_t, off64_t);
    if (!real)
        real = (ssize_t (*)(int, const void *, size_t, off64_t))dlsym(RTLD_NEXT, "pwrite64");
    if (!is_due(WRITE, fd))
        return real(fd, buf, n, at);
    size_t half = when[WRITE] == HALF ? n / 2 : when[WRITE] == BEHIND ? n : 0;
    ssize_t done = half ? real(fd, buf, half, at) : 0;
    halt(WRITE);
    return half == n || done < 0 ? done : real(fd, (const char *)buf + half, n - half, at + half) + done;
}

ssize_t pwrite(int fd, const void *buf, size_t n, off_t at) __attribute__((alias("pwrite64")));

ssize_t pwritev64(int fd, const struct iovec *parts, int n, off64_t at)
{
    static ssize_t (*real)(int, const struct iovec *, int, off64_t);
    if (!real)
        real = (ssize_t (*)(int, const struct iovec *, int, off64_t))dlsym(RTLD_NEXT, "pwritev64");
    int due = is_due(WRITE, fd);
    if (due && when[WRITE] == BEFORE)
        halt(WRITE);
    ssize_t done = real(fd, parts, due && when[WRITE] == HALF ? (n + 1) / 2 : n, at);
    if (due && when[WRITE] != BEFORE)
        halt(WRITE);
    return done;
}

ssize_t pwritev(int fd, const struct iovec *parts, int n, off_t at) __attribute__((alias("pwritev64")));

static int around(int kind, int fd, const char *name)
{
    int (*real)(int) = (int (*)(int))dlsym(RTLD_NEXT, name), due = is_due(kind, fd);
    if (due && when[kind] == BEFORE)
        halt(kind);
    int done = real(fd);
    if (due && when[kind] != BEFORE)
        halt(kind);
    return done;
}

int fdatasync(int fd) { return around(SYNC, fd, "fdatasync"); }
int fsync(int fd) { return around(SYNC, fd, "fsync"); }

int ftruncate64(int fd, off64_t len)
{
    static int (*real)(int, off64_t);
    if (!real)
        real = (int (*)(int, off64_t))dlsym(RTLD_NEXT, "ftruncate64");
    int due = is_due(CUT, fd);
    if (due && when[CUT] == BEFORE)
        halt(CUT);
    int done = real(fd, len);
    if (due && when[CUT] != BEFORE)
        halt(CUT);
    return done;
}

int ftruncate(int fd, off_t len) __attribute__((alias("ftruncate64")));

/* futex(2) has no function of its own. */
long syscall(long number, ...)
{
    static long (*real)(long, ...);
    if (!real)
        real = (long (*)(long, ...))dlsym(RTLD_NEXT, "syscall");
    va_list rest;
    long a[6];
    va_start(rest, number);
    for (int i = 0; i < 6; i++)
        a[i] = va_arg(rest, long);
    va_end(rest);
    int due = number == SYS_futex && (a[1] & ~FUTEX_PRIVATE_FLAG) == FUTEX_WAKE && !(a[1] & FUTEX_PRIVATE_FLAG)
        && is_due(WAKE, -1);
    if (due && when[WAKE] == BEFORE)
        halt(WAKE);
    long done = real(number, a[0], a[1], a[2], a[3], a[4], a[5]);
    if (due && when[WAKE] != BEFORE)
        halt(WAKE);
    return done;
}
