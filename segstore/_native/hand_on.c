/* Followers' tails: a leader's tail hands its appends on to the tails of the partition's other replicas in this
 * process. Readers see an append at all of these replicas at once, when all have it.
 *
 * A follower is written by the appending thread, or by the thread of its directory (hand_over.c) if it has a `job`. If
 * a follower does not take an append, the append stays in the other logs, hidden, and their tails are paused. The
 * follower fetches the append later, or its thread meets the error of its disk.
 *
 * Thread contract: the caller holds the lock of the tail that is given. seg_tail_hand_on takes the followers' locks, in
 * the order of `followers`, and leaves them.
 */
#define _GNU_SOURCE
#include <errno.h>

#include "active.h"
#include "claim.h"
#include "contract/ends.h"
#include "contract/log.h"
#include "hand_over.h"
#include "tail.h"
#include "tail_lock.h"

/* Whether a follower takes the batches that its leader's tail has written: the follower must end at the leader's old
 * end. */
static int is_next(const seg_tail *f, const seg_tail *t, int64_t len, const seg_batch *batches, int64_t n)
{
    int64_t next = t->active->end->next_offset;
    return f->active->end->next_offset == next && f->leader_epoch == t->leader_epoch &&
        are_known(f->producers, batches, n) &&
        seg_tail_fits(f, batches[0].max_timestamp, len, batches[n - 1].last_offset + 1 - next, n);
}

/* Write batches to a follower. A batch's position in the follower's log is its position in the leader's log plus
 * `moved`. */
static int put_at_follower(seg_tail *f, const uint8_t *buf, int64_t len, seg_batch *batches, int64_t n, int64_t moved)
{
    for (int64_t i = 0; moved && i < n; i++)
        batches[i].position += moved;
    int64_t error = seg_tail_put_out(f, buf, len, batches, n);
    for (int64_t i = 0; moved && i < n; i++)
        batches[i].position -= moved;
    return error == 0;
}

/* Write the leader's batches to a follower, or have its directory's thread write them; returns whether that is done, or
 * begun. */
static int give(seg_tail *f, const seg_tail *t, const uint8_t *buf, int64_t len, seg_batch *batches, int64_t n)
{
    int64_t moved = f->active->end->position - t->active->end->position;
    f->now = t->now;
    if (!is_next(f, t, len, batches, n))
        return 0;
    if (f->job)
        return seg_job_post(f->job, f, buf, len, batches, n, moved, t->spins) == 0;
    return put_at_follower(f, buf, len, batches, n, moved);
}

/* Note the result of a write by a follower's thread; returns whether the batches are in the log. */
static int take_result(seg_tail *f, int64_t result)
{
    if (result >= 0) {
        seg_active_note(f->active, seg_job_batches(f->job), f->job->n);
        seg_tail_note(f, seg_job_batches(f->job), f->job->n);
    } else if (result != -ECANCELED) {
        seg_tail_tear(f, result);
    }
    return result >= 0;
}

/* Whether a follower has written its batches. If its disk does not answer, its tail is paused, and a later wait finds
 * the write's result. */
static int has_taken(seg_tail *f, int64_t *deadline)
{
    int64_t result;
    if (!f->job)
        return 1;
    if (!seg_job_await(f->job, deadline, &result)) {
        f->unsettled = 1;
    } else {
        int taken = take_result(f, result);
        seg_job_done(f->job);
        if (taken)
            return 1;
    }
    __atomic_store_n(&f->open, 0, __ATOMIC_RELAXED);
    return 0;
}

/* Replicas are not shared with other processes, so a shown end is never taken back. */
static void show_or_hide(seg_tail *t, int whole, int64_t len, const seg_batch *batches, int64_t n)
{
    if (whole)
        seg_tail_show_batches(t, len, batches, n);
    else
        seg_tail_hide_batches(t, len, batches, n);
}

int seg_tail_hand_on(seg_tail *t, const uint8_t *buf, int64_t len, seg_batch *batches, int64_t n)
{
    seg_tail *taken[SEG_FOLLOWERS];
    int given = 0, count = 0;
    for (int i = 0; i < t->n_followers; i++) {
        seg_tail *f = t->followers[i];
        if (!enter_if_open(f))
            continue;
        if (give(f, t, buf, len, batches, n))
            taken[given++] = f; /* its lock is kept */
        else
            leave(f);
    }
    int64_t deadline = 0;
    for (int i = 0; i < given; i++)
        if (has_taken(taken[i], &deadline))
            taken[count++] = taken[i];
        else
            leave(taken[i]);
    int whole = count == t->n_followers;
    show_or_hide(t, whole, len, batches, n);
    for (int i = 0; i < count; i++) {
        show_or_hide(taken[i], whole, len, batches, n);
        leave(taken[i]);
        if (whole)
            seg_wake(taken[i]->ends, taken[i]->ends_len);
    }
    return whole;
}

int seg_tail_settle(seg_tail *t)
{
    int64_t result;
    if (!t->unsettled)
        return 1;
    if (!seg_job_is_over(t->job, &result))
        return 0;
    if (take_result(t, result))
        seg_tail_hide_batches(t, t->job->len, seg_job_batches(t->job), t->job->n);
    seg_job_done(t->job);
    t->unsettled = 0;
    return 1;
}
