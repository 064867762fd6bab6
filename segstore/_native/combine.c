/* One write for appends that wait for a log's lock (D. Hendler and others, "Flat Combining and the
 * Synchronization-Parallelism Tradeoff", 2010).
 *
 * A thread that finds the lock taken leaves its append in a slot of the log. Before the lock's holder leaves, it takes
 * all appends out of their slots, judges each, and writes the admitted ones by one call. An append that is not admitted
 * is made alone afterwards: it does not delay the others, and SEG_SLOW means the same as without other appends. Appends
 * in slots have no order; a thread has one append at a time.
 *
 * Invariants:
 * 1. Only the lock's holder takes another thread's append out of its slot, and it answers the append before it leaves
 *    the lock. So a thread that gets the lock finds its own append in its slot, or answered.
 * 2. An append is answered once, as the last step: when its bytes are written, indexed and published, or it is refused.
 *    After the answer no other thread touches it: its own thread may have returned.
 * 3. A thread withdraws its append by taking it out of the slot: either it or the holder gets the append, by one
 *    exchange.
 * 4. After a failed write for several appends, bytes may lie beyond the end. Each append is written again alone, at the
 *    same place and in the same order; if one of these writes fails too, the tail is torn, and paused.
 * 5. No sync is made under the lock: each thread applies flush.messages to its own append, after the answer.
 *
 * Two kinds of appends get a write of their own: appends of more than SEG_SHARED_ROOM bytes, whose copy would delay
 * small ones; and appends to a log with followers' tails, which take one append at a time in their jobs, and for which
 * SEG_UNREPLICATED answers one append. LogAppendTime is set when an append is admitted, and so rises with the offsets.
 *
 * A thread may wait in a slot with the interpreter's lock only if it may wait for the tail's lock with it: that is, if
 * the holder writes by seg_pwritev, and needs no lock of the interpreter's (keep_lock.h).
 *
 * Thread contract: any thread of the process that made the tail.
 */
#define _GNU_SOURCE
#include <errno.h>

#include "active.h"
#include "combine.h"
#include "contract/answers.h"
#include "contract/ends.h"
#include "share.h"
#include "tail_lock.h"

/* --- slots ---------------------------------------------------------------------- */

/* Leave an append in a slot. Returns the slot's number; -1 if all are taken. */
static int post(seg_tail *t, seg_waiting *w)
{
    for (int i = 0; i < SEG_WAITERS; i++) {
        seg_waiting *none = NULL;
        if (__atomic_compare_exchange_n(&t->waiters[i], &none, w, 0, __ATOMIC_RELEASE, __ATOMIC_RELAXED))
            return i;
    }
    return -1;
}

/* Take an append out of its slot, unless the holder has. */
static int withdraw(seg_tail *t, int slot, seg_waiting *w)
{
    return __atomic_compare_exchange_n(&t->waiters[slot], &w, NULL, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
}

static int64_t take_all(seg_tail *t, seg_waiting **taken)
{
    int64_t n = 0;
    for (int i = 0; i < SEG_WAITERS; i++)
        if (__atomic_load_n(&t->waiters[i], __ATOMIC_RELAXED) &&
            (taken[n] = __atomic_exchange_n(&t->waiters[i], NULL, __ATOMIC_ACQUIRE)))
            n++;
    return n;
}

static void answer(seg_waiting *w)
{
    __atomic_store_n(&w->answered, 1, __ATOMIC_RELEASE);
}

static int is_answered(const seg_waiting *w)
{
    return __atomic_load_n(&w->answered, __ATOMIC_ACQUIRE);
}

/* --- the holder ------------------------------------------------------------------- */

/* Whether written appends may be indexed and shown; in a shared log only by the owner of its lock. */
static int is_open(const seg_tail *t)
{
    return __atomic_load_n(&t->open, __ATOMIC_RELAXED) && (!t->share || t->share->is_held);
}

/* Whether appends may be made. */
static int may_make(const seg_tail *t)
{
    return is_open(t) && takes_appends(t);
}

/* Make an append by its own write. An error that a signal's handler has raised is this thread's. */
static int64_t make_alone(seg_tail *t, seg_waiting *w)
{
    int64_t made = may_make(t) ? seg_tail_make(t, w) : SEG_SLOW;
    w->answer = made == -EINTR ? SEG_SLOW : made;
    return made;
}

/* Make all appends of a failed write again. */
static int64_t make_each(seg_tail *t, seg_waiting *const *group, int64_t n, int64_t error)
{
    int64_t interrupted = 0, missing = 0;
    for (int64_t i = 0; i < n; i++) {
        int64_t made = make_alone(t, group[i]);
        missing |= made < 0;
        interrupted |= made == -EINTR;
    }
    if (missing && is_open(t))
        seg_tail_tear(t, error);
    return interrupted ? -EINTR : 0;
}

/* Write admitted appends by one call, index them, and show them to readers. */
static int64_t write_together(seg_tail *t, seg_waiting *const *group, int64_t n)
{
    const uint8_t *bufs[SEG_WAITERS];
    int64_t lens[SEG_WAITERS];
    for (int64_t i = 0; i < n; i++) {
        bufs[i] = group[i]->buf;
        lens[i] = group[i]->len;
        group[i]->answer = SEG_SLOW;
    }
    int64_t done = seg_active_write(t->active, t->fd, t->write, bufs, lens, n);
    if (done == -EINTR)
        seg_tail_tear(t, done);
    if (done < 0)
        return done == -EINTR ? done : make_each(t, group, n, done);
    for (int64_t i = 0; i < n && is_open(t); i++)
        group[i]->answer = seg_tail_take_in(t, group[i]);
    if (!seg_tail_reveal(t))
        for (int64_t i = 0; i < n; i++)
            group[i]->answer = SEG_SLOW;
    return 0;
}

/* Whether no append of the group is of the same producer: batches are judged by the written ones, so a repeated batch
 * would be admitted twice. */
static int is_other_producer(const seg_waiting *w, seg_waiting *const *group, int64_t n)
{
    if (w->n <= 0 || w->batches[0].producer_id < 0)
        return 1;
    for (int64_t i = 0; i < n; i++)
        if (group[i]->batches[0].producer_id == w->batches[0].producer_id)
            return 0;
    return 1;
}

static int64_t shown_of(const seg_tail *t)
{
    return __atomic_load_n(&t->shown_offset, __ATOMIC_RELAXED);
}

int64_t seg_combine(seg_tail *t)
{
    seg_waiting *taken[SEG_WAITERS], *group[SEG_WAITERS], *alone[SEG_WAITERS];
    seg_ahead ahead = {0};
    int64_t many = 0, few = 0, interrupted = 0;
    if (!__atomic_load_n(&t->waiting, __ATOMIC_RELAXED))
        return 0;
    int64_t n = take_all(t, taken), before = shown_of(t);
    for (int64_t i = 0; i < n; i++)
        if (may_make(t) && !t->n_followers && is_other_producer(taken[i], group, many) && seg_tail_admit(t, taken[i], &ahead))
            group[many++] = taken[i];
        else
            alone[few++] = taken[i];
    if (many > 1)
        interrupted = write_together(t, group, many);
    else if (many)
        interrupted = make_alone(t, group[0]) == -EINTR ? -EINTR : 0;
    for (int64_t i = 0; i < many; i++)
        answer(group[i]);
    for (int64_t i = 0; i < few; i++) {
        if (make_alone(t, alone[i]) == -EINTR)
            interrupted = -EINTR;
        answer(alone[i]);
    }
    return interrupted ? interrupted : shown_of(t) > before;
}

/* --- the waiting thread --------------------------------------------------------------- */

/* Wait until the append is answered, or the lock is this thread's. */
static int await(seg_tail *t, int slot, seg_waiting *w)
{
    for (int i = 0; i < SPINS; i++, relax()) {
        if (is_answered(w))
            return SEG_ANSWERED;
        if (!__atomic_load_n(&t->lock, __ATOMIC_RELAXED) && try_enter(t))
            return SEG_HOLDS;
    }
    while (!is_answered(w)) {
        if (enter_or_note(t))
            return SEG_HOLDS;
        if (!takes_appends(t) && withdraw(t, slot, w))
            return SEG_WITHDRAWN;
        if (sleep_at(t) && withdraw(t, slot, w))
            return SEG_WITHDRAWN;
    }
    return SEG_ANSWERED;
}

/* Answer all waiting appends, the thread's own too, and leave the lock. */
static void serve(seg_tail *t, seg_waiting *w)
{
    if (t->share && !is_answered(w) && __atomic_load_n(&t->open, __ATOMIC_RELAXED))
        seg_share_enter(t, 0);
    int64_t shown = is_answered(w) ? 0 : seg_combine(t);
    if (shown < 0)
        w->answer = shown;
    seg_share_exit(t);
    leave(t);
    if (shown > 0)
        seg_tail_wake(t);
}

int seg_combine_enter(seg_tail *t, seg_waiting *w)
{
    int slot = -1, found;
    if (try_enter(t))
        return SEG_HOLDS;
    if (!t->n_followers && w->len <= SEG_SHARED_ROOM) {
        __atomic_add_fetch(&t->waiting, 1, __ATOMIC_SEQ_CST);
        slot = post(t, w);
        if (slot < 0)
            __atomic_sub_fetch(&t->waiting, 1, __ATOMIC_SEQ_CST);
    }
    if (slot < 0)
        return enter_to_append(t) ? SEG_WITHDRAWN : SEG_HOLDS;
    found = await(t, slot, w);
    if (found == SEG_HOLDS) {
        serve(t, w);
        found = SEG_ANSWERED;
    }
    __atomic_sub_fetch(&t->waiting, 1, __ATOMIC_SEQ_CST);
    return found;
}
