/* The choice whether an append keeps the interpreter's lock: tail_append.c has the reasons. */
#ifndef SEG_KEEP_LOCK_H
#define SEG_KEEP_LOCK_H

#include <stdint.h>
#include <time.h>

#include "bytes.h"
#include "contract/log.h"

enum { SLOW_APPENDS = 1000 };      /* appends */
#define TOO_LONG 20000000   /* ns; the interpreter itself lets a thread keep the lock for 5 ms */

/* Whether an append only writes to one file, by C's own function, and waits for no other process. */
static inline int is_plain_write(const seg_tail *t)
{
    return !t->write && !t->flush_messages && !t->n_followers && !t->share;
}

/* Whether an append releases the lock because an earlier append took long; each call counts one such append. */
static inline int is_slow(seg_tail *t)
{
    return __atomic_load_n(&t->release_gil_for, __ATOMIC_RELAXED) > 0 &&
        __atomic_fetch_sub(&t->release_gil_for, 1, __ATOMIC_RELAXED) > 0;
}

/* Whether an append releases the lock. */
static inline int releases_gil(seg_tail *t)
{
    return !is_plain_write(t) || is_slow(t);
}

#ifdef CLOCK_MONOTONIC_COARSE /* of some ms, which is enough, and much cheaper */
#define COARSE CLOCK_MONOTONIC_COARSE
#else
#define COARSE CLOCK_MONOTONIC
#endif

static inline int64_t clock_ns(void)
{
    struct timespec now;
    clock_gettime(COARSE, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* If an append took long, have the next ones release the lock. */
static inline void note_time(seg_tail *t, int64_t ns)
{
    if (ns >= TOO_LONG)
        __atomic_store_n(&t->release_gil_for, SLOW_APPENDS, __ATOMIC_RELAXED);
}

#endif
