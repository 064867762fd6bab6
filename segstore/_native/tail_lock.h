/* The lock of a tail (U. Drepper, "Futexes Are Tricky", mutex 3).
 *
 * Threads whose appends lie in slots sleep at it, too (combine.c). One that was served goes on without the lock, so it
 * wakes nobody: as long as there are such threads, who leaves wakes all that sleep. Who comes to a slot counts in
 * `waiting` before it sleeps, and who leaves looks at `waiting` after it has freed the lock: no sleeper is missed.
 */
#ifndef SEG_TAIL_LOCK_H
#define SEG_TAIL_LOCK_H

#include <errno.h>

#include "contract/log.h"
#include "relax.h"
#include "system.h"

enum { SPINS = 200, FREE = 0, TAKEN = 1, WAITED_FOR = 2 };

/* Take the lock, if it is free. */
static inline int try_enter(seg_tail *t)
{
    int32_t free = FREE;
    return __atomic_compare_exchange_n(&t->lock, &free, TAKEN, 0, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED);
}

/* Take the lock, or note that it is waited for: whether it is taken. */
static inline int enter_or_note(seg_tail *t)
{
    return __atomic_exchange_n(&t->lock, WAITED_FOR, __ATOMIC_ACQ_REL) == FREE;
}

/* Sleep until the lock is freed, or for no reason: 0; -EINTR for a signal. */
static inline int64_t sleep_at(seg_tail *t)
{
    return futex_wait(&t->lock, WAITED_FOR, NULL, SEG_OF_THREADS) < 0 && errno == EINTR ? -EINTR : 0;
}

static inline int64_t enter(seg_tail *t)
{
    for (int i = 0; i < SPINS; i++, relax())
        if (try_enter(t))
            return 0;
    while (!enter_or_note(t))
        if (sleep_at(t))
            return -EINTR;
    return 0;
}

static inline void leave(seg_tail *t)
{
    if (__atomic_exchange_n(&t->lock, FREE, __ATOMIC_ACQ_REL) == WAITED_FOR)
        futex_wake(&t->lock, __atomic_load_n(&t->waiting, __ATOMIC_ACQUIRE) ? INT32_MAX : 1, SEG_OF_THREADS);
}

/* Take the lock of a tail that is open: 1; 0 if it is paused, if a signal comes, or in a child. */
static inline int enter_if_open(seg_tail *t)
{
    if (!t->here[0] || enter(t))
        return 0;
    if (__atomic_load_n(&t->open, __ATOMIC_ACQUIRE))
        return 1;
    leave(t);
    return 0;
}

#endif
