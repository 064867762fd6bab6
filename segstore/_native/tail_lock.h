/* The lock of a tail (U. Drepper, "Futexes Are Tricky", mutex 3).
 *
 * Threads whose appends lie in slots sleep at it, too (combine.c). A thread whose append was answered goes on without
 * the lock, so it wakes no other: while there are such threads, a holder that leaves wakes all sleepers. A thread with
 * a slot counts in `waiting` before it sleeps, and the holder reads `waiting` after it has freed the lock: no sleeper
 * is missed.
 *
 * The holder's write may hang with its disk. So an append waits for the lock only while the tail takes appends: a
 * thread that stops appends changes `open` or `fenced_below`, and calls turn_away.
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

/* Take the lock, or note that it is waited for; returns whether it is taken. */
static inline int enter_or_note(seg_tail *t)
{
    return __atomic_exchange_n(&t->lock, WAITED_FOR, __ATOMIC_SEQ_CST) == FREE;
}

/* Whether appends may be made: the tail is open, and no other replica was elected since. */
static inline int takes_appends(const seg_tail *t)
{
    return __atomic_load_n(&t->open, __ATOMIC_SEQ_CST) &&
        __atomic_load_n(&t->leader_epoch, __ATOMIC_RELAXED) >= __atomic_load_n(&t->fenced_below, __ATOMIC_SEQ_CST);
}

/* Sleep until the lock is freed; may wake early: 0; -EINTR for a signal. */
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

/* Take the lock to append: 0; -ECANCELED if another thread has it, and the tail takes no appends; -EINTR for a
 * signal. */
static inline int64_t enter_to_append(seg_tail *t)
{
    for (int i = 0; i < SPINS; i++, relax())
        if (try_enter(t))
            return 0;
    while (!enter_or_note(t)) {
        if (!takes_appends(t))
            return -ECANCELED;
        if (sleep_at(t))
            return -EINTR;
    }
    return 0;
}

/* Wake all sleepers, to check again whether the tail takes appends. The word changes, so that a thread just before its
 * sleep does not sleep; threads that still wait note it again. */
static inline void turn_away(seg_tail *t)
{
    int32_t waited = WAITED_FOR;
    __atomic_compare_exchange_n(&t->lock, &waited, TAKEN, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
    futex_wake(&t->lock, INT32_MAX, SEG_OF_THREADS);
}

static inline void leave(seg_tail *t)
{
    if (__atomic_exchange_n(&t->lock, FREE, __ATOMIC_ACQ_REL) == WAITED_FOR)
        futex_wake(&t->lock, __atomic_load_n(&t->waiting, __ATOMIC_ACQUIRE) ? INT32_MAX : 1, SEG_OF_THREADS);
}

/* Take the lock of a tail that is open: 1; 0 if it is paused, if a signal comes, or in a child. */
static inline int enter_if_open(seg_tail *t)
{
    if (!t->owner[0] || enter_to_append(t))
        return 0;
    if (__atomic_load_n(&t->open, __ATOMIC_ACQUIRE))
        return 1;
    leave(t);
    return 0;
}

#endif
