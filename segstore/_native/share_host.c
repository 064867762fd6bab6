/* The host's calls for a shared log: it closes the log, publishes its own appends, opens the log again, and takes over
 * from another host (docs/shared.md; share.c has the invariants).
 *
 * Thread contract: the holder of the tail's lock; for seg_share_show and seg_share_show_together one thread of the
 * host, with the log closed.
 */
#define _GNU_SOURCE
#include <errno.h>

#include "contract/ends.h"
#include "contract/share.h"
#include "contract/share_lock.h"
#include "contract/share_sync.h"
#include "share.h"
#include "share_fence.h"
#include "share_lock.h"
#include "share_record.h"
#include "step.h"

enum { PUBLICATIONS = 8 };

static void leave_for_host(seg_share *s)
{
    seg_lock_leave(s->member, &s->log->lock, SEG_OF_HOST);
}

int64_t seg_share_close(seg_tail *t)
{
    seg_share *s = t->share;
    seg_shared_log *log = s->log;
    int64_t error = seg_fence_take(s);
    if (error < 0)
        return error;
    SEG_STEP(CLOSING);
    __atomic_store_n(&log->open, 0, __ATOMIC_RELEASE);
    SEG_STEP(CLOSED);
    uint64_t current = current_of(log);
    const seg_shared_end *now = record_of(log, current);
    *t->active->end = now->end;
    s->current = current;
    s->is_sealed = (int32_t)now->is_sealed;
    s->aways = log->aways;
    if (!now->is_sealed && t->fd >= 0)
        seg_record_mend(log, torn_of(log), t->fd, now->end.position);
    leave_for_host(s);
    return 0;
}

/* Store `end` in a record, with a new generation if its files have changed; returns the word that names the record. */
static uint64_t prepare(seg_share *s, const seg_marks *marks, seg_shared_end *end)
{
    uint64_t current = current_of(s->log), next = seg_record_next(s, current);
    if (current)
        *end = *record_of(s->log, current);
    /* A segment stays marked as sealed until the log has a next one: a new host must know. */
    if (end->end.base_offset != marks->base_offset || s->log->key != s->key) {
        end->generation++;
        end->is_sealed = 0;
    }
    end->end.base_offset = marks->base_offset;
    end->end.position = marks->position;
    end->end.next_offset = marks->next_offset;
    end->start_offset = marks->start_offset;
    end->stable_offset = marks->stable_offset;
    end->layout = marks->layout;
    end->leader_epoch = marks->leader_epoch;
    fill(record_of(s->log, next), end);
    return next;
}

static void go_on(seg_share *s, uint64_t next)
{
    __atomic_store_n(&s->log->current, next, __ATOMIC_RELEASE); /* invariant 2 */
    __atomic_store_n(&s->log->key, s->key, __ATOMIC_RELEASE);   /* no reader sees another partition's end under this
                                                                   key */
    s->current = next;
}

int64_t seg_share_show(seg_share *s, const seg_marks *marks)
{
    seg_shared_end end = {0};
    if (__atomic_load_n(&s->log->open, __ATOMIC_ACQUIRE))
        return 0;
    uint64_t next = prepare(s, marks, &end);
    SEG_STEP(SHOWING);
    go_on(s, next);
    SEG_STEP(SHOWN);
    return 1;
}

/* The sequence of the published ends (ends.c). */
static void make_odd(uint8_t *ends)
{
    uint64_t *sequence = (uint64_t *)ends;
    __atomic_store_n(sequence, __atomic_load_n(sequence, __ATOMIC_RELAXED) | 1, __ATOMIC_SEQ_CST);
}

static void make_even(uint8_t *ends)
{
    uint64_t *sequence = (uint64_t *)ends, now = __atomic_load_n(sequence, __ATOMIC_RELAXED);
    __atomic_store_n(sequence, now + (now & 1), __ATOMIC_RELEASE);
}

void seg_share_show_together(seg_share *const *shares, const seg_marks *marks, int64_t n, uint8_t *ends)
{
    seg_shared_header *header = (seg_shared_header *)shares[0]->member->map;
    int64_t number = __atomic_add_fetch(&header->together_turn, 1, __ATOMIC_SEQ_CST);
    for (int64_t i = 0; i < n; i++) {
        seg_shared_end end = {0};
        seg_shared_log *log = shares[i]->log;
        log->pending_key = shares[i]->key;
        log->pending = __atomic_load_n(&log->open, __ATOMIC_ACQUIRE) ? 0 : prepare(shares[i], marks + i, &end);
        __atomic_store_n(&log->pending_of, number, __ATOMIC_RELEASE);
    }
    SEG_STEP(TOGETHER);
    __atomic_store_n(&header->together, number, __ATOMIC_SEQ_CST); /* from here on readers see all the new ends */
    SEG_STEP(TOGETHER_BEGUN);
    make_odd(ends);
    for (int64_t i = 0; i < n; i++)
        if (shares[i]->log->pending) {
            go_on(shares[i], shares[i]->log->pending);
            SEG_STEP(TOGETHER_ONE);
        }
    make_even(ends);
    SEG_STEP(TOGETHER_DONE);
    __atomic_store_n(&header->together, 0, __ATOMIC_SEQ_CST);
    __atomic_fetch_add((uint32_t *)(ends + PUBLICATIONS), 1, __ATOMIC_RELEASE);
}

int64_t seg_share_finish_together(seg_member *m, int64_t logs, uint8_t *ends)
{
    seg_shared_header *header = (seg_shared_header *)m->map;
    int64_t number = header->together, found = 0;
    for (int64_t i = 0; i < logs && number; i++) {
        seg_shared_log *log = (seg_shared_log *)(m->map + SEG_SHARED_LOGS + i * SEG_SHARED_LOG);
        if (log->pending_of == number && log->pending && !log->open) {
            __atomic_store_n(&log->current, log->pending, __ATOMIC_RELEASE);
            __atomic_store_n(&log->key, log->pending_key, __ATOMIC_RELEASE);
            found++;
        }
    }
    header->together = 0;
    make_even(ends);
    return found;
}

/* Whether members must bind other files or settings than at the log's last opening. */
static int is_changed(const seg_tail *t, seg_share *s)
{
    const seg_end *e = t->active->end;
    int64_t now[5] = {e->base_offset, e->offset_room, e->time_room, s->settings, t->leader_epoch};
    int changed = 0;
    for (int i = 0; i < 5; i++) {
        changed |= now[i] != s->opened[i];
        s->opened[i] = now[i];
    }
    return changed;
}

void seg_share_open(seg_tail *t, int64_t stable)
{
    seg_share *s = t->share;
    seg_shared_log *log = s->log;
    uint64_t current = current_of(log), next = seg_record_next(s, current);
    const seg_shared_end *before = record_of(log, current);
    s->generation = before->generation + (is_changed(t, s) | (before->is_sealed != 0));
    seg_shared_end end = {.end = *t->active->end, .generation = s->generation, .start_offset = s->start_offset,
                          .stable_offset = stable, .layout = s->layout, .leader_epoch = t->leader_epoch};
    fill(record_of(log, next), &end);
    log->most_position = t->active->most_position;
    log->young_ms = t->active->young_ms;
    log->interval = t->active->interval;
    log->settings = s->settings;
    s->is_sealed = 0;
    SEG_STEP(OPENING);
    go_on(s, next);
    int64_t names = __atomic_load_n(&t->names, __ATOMIC_ACQUIRE);
    if (names == t->synced_names)
        seg_share_sync_less(s, names, s->generation);
    __atomic_store_n(&log->open, 1, __ATOMIC_RELEASE);
    SEG_STEP(OPENED);
}

int64_t seg_share_take_over(seg_share *s, seg_shared_end *out)
{
    seg_shared_log *log = s->log;
    if (log->key != s->key || !current_of(log))
        return 0;
    /* A closed log has no append under way (invariant 2): a dead or stopped owner of its lock does no harm. */
    int was_open = (int)__atomic_load_n(&log->open, __ATOMIC_ACQUIRE);
    int64_t taken = was_open ? seg_fence_take(s) : 0;
    if (taken < 0)
        return taken;
    SEG_STEP(TAKING_OVER);
    if (was_open)
        seg_fence_finish(s, (int)taken);
    if (taken) /* the dead host may not have counted: one too many costs only a check */
        __atomic_fetch_add(&log->aways, 1, __ATOMIC_ACQ_REL);
    __atomic_store_n(&log->open, 0, __ATOMIC_RELEASE);
    s->current = current_of(log);
    *out = *record_of(log, s->current);
    s->is_sealed = (int32_t)out->is_sealed;
    s->aways = log->aways;
    uint64_t owner = __atomic_load_n(&log->lock, __ATOMIC_ACQUIRE);
    if (was_open)
        leave_for_host(s);
    else if (seg_lock_is_dead(s->member, owner))
        __atomic_compare_exchange_n(&log->lock, &owner, 0, 0, __ATOMIC_RELEASE, __ATOMIC_RELAXED);
    SEG_STEP(TAKEN_OVER);
    return 1;
}

int64_t seg_share_end(seg_share *s)
{
    int64_t was_open = __atomic_load_n(&s->log->open, __ATOMIC_ACQUIRE), error = was_open ? seg_fence_take(s) : 0;
    if (error < 0)
        return error;
    __atomic_store_n(&s->log->open, 0, __ATOMIC_RELEASE);
    /* The next partition in this slot has other files: a sealed end then only keeps its seat taken. */
    for (int i = 0; i < SEG_SEALED; i++)
        __atomic_store_n(&s->log->sealed[i].is_replaced, 1, __ATOMIC_RELEASE);
    __atomic_store_n(&s->log->key, 0, __ATOMIC_RELEASE);
    if (was_open)
        leave_for_host(s);
    return 0;
}
