/* The tail of a log: its end as C knows it, the part that readers see, and the times when C may append
 * (docs/engine.md). Appends are in append.c, followers' tails in hand_on.c.
 *
 * A log has one tail (`seg_tail`) for as long as its partition is open. C appends while the tail is `open`. A thread
 * that takes the partition's append token pauses the tail first; then the thread may change the tail's fields, and move
 * the log's end. Python and C share these fields, so a pause copies nothing.
 *
 * After a failed write `torn` has the errno and the tail is paused: bytes may lie beyond the log's end.
 *
 * Thread contract: any thread, in the process that made the tail. `lock` (tail_lock.h) is held while the tail is opened
 * or paused, and while its end moves. seg_tail_end takes no lock: `sequence` is odd while the ends change. In a child
 * that was forked from that process no call changes a tail.
 */
#define _GNU_SOURCE
#include "active.h"
#include "combine.h"
#include "contract/answers.h"
#include "contract/ends.h"
#include "contract/log.h"
#include "contract/producers.h"
#include "contract/share.h"
#include "contract/shared_ends.h"
#include "hand_over.h"
#include "relax.h"
#include "share.h"
#include "tail.h"
#include "tail_lock.h"

/* --- the visible part -------------------------------------------------------------- */

static void publish(const seg_tail *t)
{
    int64_t seen = t->seen_offset;
    int64_t values[8] = {t->key,    t->start_offset, t->shown_offset, seen, t->stable_offset < 0 ? seen : t->stable_offset,
                         t->synced, t->layout,       t->leader_epoch};
    seg_store_ends(t->ends, t->ends_len, &t->slot, values, 1);
}

static int64_t seen_of(const seg_tail *t, int64_t shown)
{
    return t->high_watermark < 0 || t->high_watermark > shown ? shown : t->high_watermark;
}

/* Store position and offsets so that readers of this process see those of one moment. */
static void store_ends(seg_tail *t, int64_t position, int64_t shown, int64_t seen, int64_t stable)
{
    uint64_t odd = t->sequence + 1;
    __atomic_store_n(&t->sequence, odd, __ATOMIC_RELAXED);
    __atomic_store_n(&t->shown_position, position, __ATOMIC_RELEASE);
    __atomic_store_n(&t->shown_offset, shown, __ATOMIC_RELEASE);
    __atomic_store_n(&t->seen_offset, seen, __ATOMIC_RELEASE);
    __atomic_store_n(&t->stable_offset, stable, __ATOMIC_RELEASE);
    __atomic_store_n(&t->sequence, odd + 1, __ATOMIC_RELEASE);
}

/* The last stable offset: an open transaction pins it. */
static int64_t stable_of(const seg_tail *t)
{
    const seg_producers *p = t->producers;
    return t->stable_offset >= 0 || p == NULL || !p->open ? t->stable_offset : p->txns[0].first_offset;
}

static void show_up_to(seg_tail *t, int64_t position, int64_t offset)
{
    store_ends(t, position, offset, seen_of(t, offset), stable_of(t));
}

int seg_tail_reveal(seg_tail *t)
{
    if (t->share && !seg_share_publish(t, stable_of(t)))
        return 0;
    show_up_to(t, t->active->end->position, t->active->end->next_offset);
    if (!t->share)
        publish(t);
    return 1;
}

void seg_tail_wake(const seg_tail *t)
{
    if (t->share)
        seg_shared_count(t->ends, t->ends_len, t->share->member->map);
    else
        seg_wake(t->ends, t->ends_len);
}

void seg_share_leave(seg_tail *t)
{
    while (enter(t)) {
    }
    t->open = 0;
    leave(t);
}

int64_t seg_share_catch_up(seg_tail *t)
{
    const seg_share *s = __atomic_load_n(&t->share, __ATOMIC_ACQUIRE);
    if (!s || !t->owner[0] || __atomic_load_n(&s->log->current, __ATOMIC_ACQUIRE) == s->current || enter(t))
        return 0;
    int more = t->open && t->share && seg_share_look(t) && t->active->end->next_offset > t->shown_offset;
    if (more)
        show_up_to(t, t->active->end->position, t->active->end->next_offset);
    leave(t);
    return more;
}

int64_t seg_tail_end(const seg_tail *t, int64_t *position, int64_t *seen, int64_t *stable)
{
    for (;;) {
        uint64_t before = __atomic_load_n(&t->sequence, __ATOMIC_ACQUIRE);
        int64_t at = __atomic_load_n(&t->shown_position, __ATOMIC_ACQUIRE);
        int64_t shown = __atomic_load_n(&t->shown_offset, __ATOMIC_ACQUIRE);
        int64_t within = __atomic_load_n(&t->seen_offset, __ATOMIC_ACQUIRE);
        int64_t decided = __atomic_load_n(&t->stable_offset, __ATOMIC_ACQUIRE);
        if ((before & 1) == 0 && __atomic_load_n(&t->sequence, __ATOMIC_RELAXED) == before) {
            *position = at;
            *seen = within;
            *stable = decided;
            return shown;
        }
        if (!t->owner[0])
            return SEG_SLOW; /* a thread of the parent was changing the ends, and does not exist here */
        relax();
    }
}

int64_t seg_tail_look(seg_tail *t, int64_t position, int64_t shown, int64_t seen)
{
    int64_t error = t->owner[0] ? enter(t) : 0;
    if (error || !t->owner[0])
        return error;
    int64_t paused = !t->open;
    if (paused)
        store_ends(t, position, shown, seen, t->stable_offset);
    leave(t);
    return paused;
}

int64_t seg_tail_show(seg_tail *t, int64_t high_watermark)
{
    if (!t->owner[0])
        return 0;
    int64_t error = enter(t);
    if (error)
        return error;
    int64_t shows = t->open && t->high_watermark >= 0 && high_watermark >= t->high_watermark;
    if (shows) {
        t->high_watermark = high_watermark;
        show_up_to(t, t->shown_position, t->shown_offset);
        publish(t);
    }
    leave(t);
    if (shows)
        seg_wake(t->ends, t->ends_len);
    return shows;
}

int64_t seg_tail_synced(seg_tail *t, int64_t synced)
{
    if (!t->owner[0])
        return 0;
    int64_t error = enter(t);
    if (error)
        return error;
    int64_t open = t->open;
    if (open && (synced < 0 || synced > t->synced)) { /* a later sync may have published before */
        t->synced = synced;
        publish(t);
    }
    leave(t);
    if (open)
        seg_wake(t->ends, t->ends_len);
    return open;
}

int64_t seg_tail_to_sync(seg_tail *t, int32_t *fd, seg_syncer *sync, seg_share *share)
{
    if (!t->owner[0] || enter(t))
        return SEG_SLOW;
    int64_t end = t->open && (t->share || t->names == t->synced_names) ? t->shown_offset : SEG_SLOW;
    if (t->share)
        *share = *t->share;
    *fd = t->fd;
    *sync = t->sync;
    leave(t);
    return end;
}

/* --- the log's end ----------------------------------------------------------------- */

void seg_tail_move_end(seg_tail *t, int64_t len, const seg_batch *batches, int64_t n)
{
    seg_active_move(t->active, t->active->end->position + len, batches[n - 1].last_offset + 1);
}

int seg_tail_show_batches(seg_tail *t, int64_t len, const seg_batch *batches, int64_t n)
{
    seg_tail_move_end(t, len, batches, n);
    return seg_tail_reveal(t);
}

void seg_tail_hide_batches(seg_tail *t, int64_t len, const seg_batch *batches, int64_t n)
{
    seg_tail_move_end(t, len, batches, n);
    t->hidden = 1;
    __atomic_store_n(&t->open, 0, __ATOMIC_RELAXED);
}

/* Note a failed write: bytes may lie beyond the end. */
void seg_tail_tear(seg_tail *t, int64_t error)
{
    if (t->share) {
        seg_share_tear(t);
        return;
    }
    t->torn = (int32_t)-error;
    __atomic_store_n(&t->open, 0, __ATOMIC_RELAXED);
}

/* --- open and paused --------------------------------------------------------------- */

/* Whether this is the tail of a host, whose log other processes append to while it is open. */
static int is_hosted(const seg_tail *t)
{
    return t->share && t->share->who == SEG_OF_APPENDS;
}

/* Let no append begin, in other processes too; the log's end, with their appends, is loaded here. */
static int64_t close_log(seg_tail *t)
{
    if (t->open && is_hosted(t)) {
        int64_t error = seg_share_close(t);
        if (error)
            return error;
        show_up_to(t, t->active->end->position, t->active->end->next_offset);
        t->appends++;
    }
    __atomic_store_n(&t->open, 0, __ATOMIC_RELAXED);
    return 0;
}

int64_t seg_tail_begin(seg_tail *t)
{
    int64_t error = t->owner[0] ? enter(t) : 0;
    if (error || !t->owner[0])
        return error;
    t->torn = t->hidden = 0;
    t->appends = 0;
    int64_t open = t->fd >= 0;
    if (open && is_hosted(t))
        seg_share_open(t, stable_of(t));
    __atomic_store_n(&t->open, (int32_t)open, __ATOMIC_RELEASE);
    leave(t);
    return open;
}

int64_t seg_tail_pause(seg_tail *t, int32_t release)
{
    if (!t->owner[0] && release)
        t->fd = -1;
    for (int settled = !t->owner[0]; !settled;) {
        int64_t error = enter(t);
        if (error)
            return error;
        if ((error = close_log(t))) {
            leave(t);
            return error;
        }
        settled = seg_tail_settle(t);
        if (settled && release)
            t->fd = -1;
        seg_combine(t); /* refuses the waiting appends: the settings may be others when the tail is open again */
        leave(t);
        if (!settled && (error = seg_job_await_end(t->job)))
            return error;
    }
    return 0;
}

int64_t seg_tail_quit(seg_tail *t)
{
    int32_t free = FREE;
    if (!t->owner[0]) {
        t->fd = -1;
        return 1;
    }
    if (t->share)
        return seg_tail_pause(t, 1) == 0;
    __atomic_store_n(&t->open, 0, __ATOMIC_SEQ_CST);
    if (!__atomic_compare_exchange_n(&t->lock, &free, TAKEN, 0, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED)) {
        turn_away(t);
        return 0;
    }
    __atomic_store_n(&t->open, 0, __ATOMIC_RELAXED); /* seg_tail_begin may have taken the lock since */
    int settled = seg_tail_settle(t);
    if (settled)
        t->fd = -1;
    seg_combine(t);
    leave(t);
    return settled;
}

void seg_tail_fence(seg_tail *t, int32_t epoch)
{
    if (!t->owner[0])
        return;
    __atomic_store_n(&t->fenced_below, epoch, __ATOMIC_SEQ_CST);
    turn_away(t);
}
