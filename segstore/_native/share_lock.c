/* The lock of a shared log: a word that is compared and swapped, and that only a dead owner loses (rules L1, L2, L5 and
 * L7 of docs/shared.md).
 *
 * No time-out, no pid and no heartbeat decides that an owner is dead: its byte lock does, which the kernel releases
 * when the last thread of the process is gone, after any write of such a thread. A lock taken by a host's Python code
 * is taken over only by a host, because only a host can finish that code's work.
 *
 * Thread contract: one thread at a time for each `who` of a member (a tail's lock sees to that).
 */
#define _GNU_SOURCE
#include <errno.h>
#include <time.h>

#include "contract/members.h"
#include "contract/share_lock.h"
#include "relax.h"
#include "share_lock.h"
#include "step.h"
#include "system.h"

enum { NS_OF_MS = 1000000 };

static uint32_t *low(uint64_t *lock)
{
    return (uint32_t *)lock + (__BYTE_ORDER__ == __ORDER_BIG_ENDIAN__);
}

static int64_t clock_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static int swap(uint64_t *lock, uint64_t *seen, uint64_t next, int order)
{
    return __atomic_compare_exchange_n(lock, seen, next, 0, order, __ATOMIC_RELAXED);
}

static int32_t slot_of(uint64_t word)
{
    return (int32_t)(((uint32_t)word & ~SEG_WAITED) - 1) >> 2;
}

uint64_t seg_lock_word(const seg_member *m, int32_t who)
{
    return (uint64_t)m->incarnation << 32 | (uint32_t)((m->slot << 2 | who) + 1);
}

int64_t seg_lock_is_dead(const seg_member *m, uint64_t word)
{
    return word && seg_member_is_dead(m, slot_of(word), (uint32_t)(word >> 32));
}

int64_t seg_lock_is_mine(const seg_member *m, const uint64_t *lock, int32_t who)
{
    return (__atomic_load_n(lock, __ATOMIC_ACQUIRE) & ~(uint64_t)SEG_WAITED) == seg_lock_word(m, who);
}

/* Take a free lock; returns whether it was free. */
static int try_take(const seg_member *m, uint64_t *lock, int32_t who)
{
    uint64_t mine = seg_lock_word(m, who);
    for (int i = 0; i <= m->spins; i++, relax()) {
        uint64_t free = 0;
        if (swap(lock, &free, mine, __ATOMIC_ACQUIRE))
            return 1;
    }
    return 0;
}

int64_t seg_lock_take(const seg_member *m, uint64_t *lock, int32_t who, int32_t brief, int64_t patience_ms, uint64_t *seen)
{
    if (try_take(m, lock, who))
        return 0;
    if (brief)
        return SEG_BUSY;
    /* After a sleep the bit stays set: others may sleep at the lock, too. */
    uint64_t mine = seg_lock_word(m, who) | SEG_WAITED;
    struct timespec look = {.tv_sec = m->look_ms / 1000, .tv_nsec = (long)(m->look_ms % 1000) * NS_OF_MS};
    uint64_t owner = 0;
    for (int64_t since = 0;;) {
        uint64_t word = __atomic_load_n(lock, __ATOMIC_ACQUIRE);
        if (word == 0) {
            if (swap(lock, &word, mine, __ATOMIC_ACQUIRE))
                return 0;
            continue;
        }
        if (!(word & SEG_WAITED)) {
            if (!swap(lock, &word, word | SEG_WAITED, __ATOMIC_RELAXED))
                continue;
            word |= SEG_WAITED;
            owner = 0;
        }
        /* An owner that has released the lock and taken it again does not keep it: the patience begins anew. */
        if (word != owner) {
            owner = word;
            since = clock_ns();
        }
        if (futex_wait(low(lock), (uint32_t)word, &look, SEG_OF_PROCESSES) == 0 || errno == EAGAIN) {
            owner = 0;
            continue;
        }
        if (errno == EINTR)
            return -EINTR;
        if (__atomic_load_n(lock, __ATOMIC_ACQUIRE) != word)
            continue;
        *seen = word;
        if (seg_lock_is_dead(m, word)) {
            /* Only a host can finish a host's work; a thread of the next host that still appends as a guest can't. */
            if (seg_lock_who(word) == SEG_OF_HOST && !(m->is_host && who == SEG_OF_HOST))
                return -ETIMEDOUT;
            if (swap(lock, &word, mine, __ATOMIC_ACQUIRE))
                return 1;
            continue;
        }
        if (SEG_HAS_BUG(HASTY) && clock_ns() - since > NS_OF_MS && swap(lock, &word, mine, __ATOMIC_ACQUIRE))
            return 1;
        if (patience_ms >= 0 && clock_ns() - since > patience_ms * NS_OF_MS)
            return -ETIMEDOUT;
    }
}

int64_t seg_lock_leave(const seg_member *m, uint64_t *lock, int32_t who)
{
    uint64_t mine = seg_lock_word(m, who), word = mine;
    if (swap(lock, &word, 0, __ATOMIC_RELEASE))
        return 1;
    if ((word & ~(uint64_t)SEG_WAITED) != mine || !swap(lock, &word, 0, __ATOMIC_RELEASE))
        return 0; /* the host has taken it from us */
    futex_wake(low(lock), 1, SEG_OF_PROCESSES);
    return 1;
}
