/* Appends to a log that several processes append to: its end (rules E1 to E5, L3 and L4 of docs/shared.md). Stopped
 * owners of the lock are in share_fence.c, the host's calls in share_host.c.
 *
 * The end is one record, which the word `current` names. An appending process fills a record of its own that is not
 * current, and swaps the word: so a process that dies has changed all or nothing, and a process whose lock was taken
 * away changes nothing.
 *
 * Invariants:
 * 1. A process that fills a record holds the log's lock, or had it taken away and has a sealed end; or it is the host,
 *    and the log is closed. So a seat may be given to another tail if it is not current and its owner has no sealed
 *    end.
 * 2. While a log is closed only the host moves its end. A process that holds the lock then took it after the close, and
 *    leaves it. A log is closed only under its lock, or after the lock was taken away.
 * 3. `torn` is set as the first step if the lock came from a dead owner, and reset after the cut, unless it was set
 *    again since: it is a counter. Only the host cuts a closed log: it alone knows its written records that are not
 *    shown yet.
 * 4. Before a file is changed by the loaded record, the lock is checked once more: if it is ours, file and position
 *    belong together, even if the lock is taken away later [E4].
 *
 * Thread contract: the holder of the tail's lock; for seg_share_show and seg_share_show_together one thread of the
 * host, with the log closed.
 */
#define _GNU_SOURCE
#include "share.h"

#include <errno.h>
#include <stddef.h>

#include "contract/answers.h"
#include "contract/share.h"
#include "contract/share_lock.h"
#include "contract/shared_ends.h"
#include "relax.h"
#include "share_fence.h"
#include "share_lock.h"
#include "share_record.h"
#include "step.h"

static int32_t is_mine(const seg_share *s)
{
    return (int32_t)seg_lock_is_mine(s->member, &s->log->lock, s->who);
}

/* Load the current record into the tail's end, unless it is loaded: 0; SEG_SLOW if the tail has other files, or the
 * lock is no longer ours. */
static int64_t load(seg_tail *t, seg_share *s)
{
    uint64_t current = current_of(s->log);
    const seg_shared_end *record = record_of(s->log, current);
    if (current == 0 || __atomic_load_n(&record->generation, __ATOMIC_ACQUIRE) != s->generation ||
        __atomic_load_n(&record->is_sealed, __ATOMIC_ACQUIRE))
        return SEG_SLOW;
    if (current != s->current) {
        seg_shared_end now;
        copy(&now, record);
        *t->active->end = now.end;
        s->start_offset = now.start_offset;
        s->layout = now.layout;
        if (s->who == SEG_OF_GUEST) {
            t->stable_offset = now.stable_offset;
            t->leader_epoch = (int32_t)now.leader_epoch;
        }
        s->current = current;
    }
    return seg_record_seat(s, current) >= 0 && is_mine(s) ? 0 : SEG_SLOW;
}

int seg_share_look(seg_tail *t)
{
    seg_share *s = t->share;
    seg_shared_end now;
    uint64_t current = current_of(s->log);
    if (!seg_shared_now(s->log, &now) || current_of(s->log) != current || now.generation != s->generation)
        return 0;
    *t->active->end = now.end;
    s->current = current;
    return 1;
}

static int64_t look(seg_tail *t, seg_share *s)
{
    seg_shared_log *log = s->log;
    uint32_t torn = torn_of(log);
    if (__atomic_load_n(&log->aways, __ATOMIC_ACQUIRE) != s->aways || !__atomic_load_n(&log->open, __ATOMIC_ACQUIRE) ||
        __atomic_load_n(&log->failed, __ATOMIC_ACQUIRE) || __atomic_load_n(&log->key, __ATOMIC_ACQUIRE) != s->key ||
        load(t, s))
        return SEG_SLOW; /* also after a failed sync [S2] */
    return seg_record_mend(log, torn, t->fd, t->active->end->position);
}

int64_t seg_share_enter(seg_tail *t, int32_t brief)
{
    seg_share *s = t->share;
    const seg_shared_header *header = (const seg_shared_header *)s->member->map;
    uint64_t seen = 0;
    int64_t code = seg_share_take(s, s->who, brief, header->stopped_ms, &seen);
    if (code == 1) {
        SEG_STEP(FROM_DEAD);
        seg_record_tear(s->log);
    } else if (code == -ETIMEDOUT)
        s->waited_for = seen & ~(uint64_t)SEG_WAITED;
    if (code == SEG_BUSY && brief)
        return code;
    s->comes_again = code == SEG_BUSY;
    if (code < 0)
        return SEG_SLOW;
    s->is_held = 1;
    SEG_STEP(LOCKED);
    if (look(t, s) == 0)
        return 0;
    seg_share_exit(t);
    return SEG_SLOW;
}

void seg_share_exit(seg_tail *t)
{
    seg_share *s = t->share;
    if (s == NULL || !s->is_held)
        return;
    s->is_held = 0;
    SEG_STEP(LEAVING);
    seg_lock_leave(s->member, &s->log->lock, s->who);
    SEG_STEP(UNLOCKED);
}

int seg_share_publish(seg_tail *t, int64_t stable)
{
    seg_share *s = t->share;
    uint64_t next = own_word(s, s->current);
    seg_shared_end end = {.end = *t->active->end, .generation = s->generation, .start_offset = s->start_offset,
                          .stable_offset = stable, .layout = s->layout, .leader_epoch = t->leader_epoch};
#ifdef SEGSTORE_STORM
    if (SEG_HAS_BUG(WORDS)) {
        seg_shared_end *now = record_of(s->log, s->current);
        now->end.position = end.end.position;
        SEG_STEP(FILLED);
        now->end.next_offset = end.end.next_offset;
        SEG_STEP(FILLED);
        now->end = end.end;
        return 1;
    }
#endif
    fill(record_of(s->log, next), &end);
    SEG_STEP(FILLED);
    if (SEG_HAS_BUG(NO_SWAP))
        __atomic_store_n(&s->log->current, s->current = next, __ATOMIC_RELEASE);
    int done = SEG_HAS_BUG(NO_SWAP) || swap(s->log, s->current, next);
    SEG_STEP(PUBLISHED);
    if (done)
        s->current = next;
    return done;
}

void seg_share_tear(seg_tail *t)
{
    seg_share *s = t->share;
    if (seg_record_cut(t->fd, t->active->end->position) < 0)
        seg_record_tear(s->log);
}
