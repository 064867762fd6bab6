/* A write that sees whether other threads of Python run while it is under way. Loaded by LD_PRELOAD.
 *
 * `await_` has the next write of the calling thread wait until `look` was called in another thread, or so many ms
 * long. `look` is called with the interpreter's lock held, so it is called only if the write lets go of the lock. */
#define _GNU_SOURCE
#include <stdatomic.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static _Thread_local int patience;
static atomic_int writing;
atomic_int seen;

void await_(int ms) { patience = ms; }

void look(void)
{
    if (writing)
        seen = 1;
}

ssize_t pwrite(int fd, const void *buf, size_t n, off_t at)
{
    int left = patience;
    patience = 0;
    if (left) {
        seen = 0;
        writing = 1;
        for (; left > 0 && !seen; left--)
            nanosleep(&(struct timespec){0, 1000000}, NULL);
        writing = 0;
    }
    return syscall(SYS_pwrite64, fd, buf, n, at);
}

ssize_t pwrite64(int fd, const void *buf, size_t n, off_t at) __attribute__((alias("pwrite")));
