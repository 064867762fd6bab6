/* Calls of the kernel for which a C library may have no function: glibc has copy_file_range(2) since 2.27, and
 * futex(2) never.
 */
#ifndef SEG_SYSTEM_H
#define SEG_SYSTEM_H

#include <linux/futex.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

/* Whether all that wait at a word are of one process. */
enum { SEG_OF_PROCESSES = 0, SEG_OF_THREADS = FUTEX_PRIVATE_FLAG };

/* Wait as long as the word is `seen`, and for `timeout` at most, where it is not NULL. 0 after a wake; else -1, and
 * errno is EAGAIN (the word is another one), EINTR or ETIMEDOUT. */
static inline int64_t futex_wait(const void *word, uint32_t seen, const struct timespec *timeout, int sharing)
{
    return syscall(SYS_futex, word, FUTEX_WAIT | sharing, seen, timeout, NULL, 0);
}

/* As futex_wait, but until a time of CLOCK_MONOTONIC. */
static inline int64_t futex_wait_until(const void *word, uint32_t seen, const struct timespec *end, int sharing)
{
    return syscall(SYS_futex, word, FUTEX_WAIT_BITSET | sharing, seen, end, NULL, FUTEX_BITSET_MATCH_ANY);
}

/* How many of those that wait were woken, `most` at most; -1 and errno where the word is none. */
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

#endif
