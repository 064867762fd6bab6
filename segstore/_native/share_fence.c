/* The lock of a shared log that a living process keeps: the wait for it, and the host's fence against a stopped owner
 * (rules A1 to A5 of docs/shared.md).
 *
 * The host notes the owner, takes the lock, and publishes the log's end as a sealed one: the owner can't move it then,
 * and its later writes lie beyond the end of a sealed segment. A hasty fence costs a short segment, and no record.
 *
 * Thread contract: that of share.c.
 */
#define _GNU_SOURCE
#include "share_fence.h"

#include <errno.h>
#include <time.h>

#include "contract/share.h"
#include "contract/share_lock.h"
#include "share_lock.h"
#include "share_record.h"
#include "step.h"

enum { LONGEST_WAIT = 100 }; /* ms */

static int64_t clock_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

int64_t seg_share_take(seg_share *s, int32_t who, int32_t brief, int64_t patience_ms, uint64_t *seen)
{
    int64_t most = patience_ms < LONGEST_WAIT ? patience_ms : LONGEST_WAIT, began = clock_ms();
    int64_t code = seg_lock_take(s->member, &s->log->lock, who, brief, most, seen);
    if (code != -ETIMEDOUT) {
        s->waits_for = 0;
        return code == -EINTR ? SEG_BUSY : code;
    }
    uint64_t owner = *seen & ~(uint64_t)SEG_WAITED;
    if (s->waits_for != owner)
        s->waits_since = began;
    s->waits_for = owner;
    int is_dead = (int)seg_lock_is_dead(s->member, *seen); /* a dead host: the next one finishes its work */
    return !is_dead && clock_ms() - s->waits_since < patience_ms ? SEG_BUSY : code;
}

/* Remove entries from the list that a dead host has noted without taking the lock: a living guest has it. */
static void drop_begun(seg_shared_log *log)
{
    for (int i = 0; i < SEG_SEALED; i++)
        if (log->sealed[i].owner && log->sealed[i].generation == INT64_MAX)
            __atomic_store_n(&log->sealed[i].owner, 0, __ATOMIC_RELEASE);
}

/* A free place on the list for an owner's sealed end; NULL: the list is full. */
static seg_sealed *place_for(seg_shared_log *log)
{
    for (int i = 0; i < SEG_SEALED; i++)
        if (!__atomic_load_n(&log->sealed[i].owner, __ATOMIC_ACQUIRE))
            return &log->sealed[i];
    return NULL;
}

/* Publish the log's end as sealed, in the next generation: its owner can't move it any more. If the owner moves the end
 * once before that, the new end is sealed [A2]. */
static void seal(seg_share *s, seg_sealed *note)
{
    seg_shared_log *log = s->log;
    uint64_t current, next;
    seg_shared_end end;
    do {
        current = current_of(log);
        end = *record_of(log, current);
        note->base_offset = end.end.base_offset;
        note->position = end.end.position;
        note->offset_entries = end.end.offset_entries;
        note->time_entries = end.end.time_entries;
        note->is_replaced = end.end.position == 0;
        end.generation++;
        end.is_sealed = 1;
        next = seg_record_next(s, current);
        fill(record_of(log, next), &end);
        SEG_STEP(SEALING);
    } while (!swap(log, current, next));
    SEG_STEP(SEALED);
    __atomic_store_n(&note->generation, end.generation - 1, __ATOMIC_RELEASE);
    __atomic_fetch_add(&log->aways, 1, __ATOMIC_ACQ_REL);
}

/* Take the lock from the living owner named by `word`, and seal the segment: 1; 0: the owner has gone on, or the list
 * is full. The note comes first: the next host must know of it. */
static int fence(seg_share *s, uint64_t word)
{
    seg_shared_log *log = s->log;
    uint64_t owner = word & ~(uint64_t)SEG_WAITED, seen = __atomic_load_n(&log->lock, __ATOMIC_ACQUIRE);
    drop_begun(log);
    seg_sealed *note = place_for(log);
    if (note == NULL || (seen & ~(uint64_t)SEG_WAITED) != owner)
        return 0;
    __atomic_store_n(&note->generation, INT64_MAX, __ATOMIC_RELAXED);
    __atomic_store_n(&note->owner, owner, __ATOMIC_RELEASE);
    SEG_STEP(NOTED);
    if (!__atomic_compare_exchange_n(&log->lock, &seen, seg_lock_word(s->member, SEG_OF_HOST) | SEG_WAITED, 0, __ATOMIC_ACQUIRE,
                                     __ATOMIC_RELAXED)) {
        __atomic_store_n(&note->owner, 0, __ATOMIC_RELEASE);
        return 0;
    }
    SEG_STEP(TAKEN);
    seal(s, note);
    SEG_STEP(FENCED);
    return 1;
}

void seg_fence_finish(seg_share *s, int was_taken)
{
    seg_shared_log *log = s->log;
    for (int i = 0; i < SEG_SEALED; i++) {
        seg_sealed *note = &log->sealed[i];
        if (!note->owner || note->generation != INT64_MAX)
            continue;
        if (!was_taken)
            __atomic_store_n(&note->owner, 0, __ATOMIC_RELEASE);
        else if (record_of(log, current_of(log))->is_sealed) /* sealed, but not noted; the next host counts it */
            __atomic_store_n(&note->generation, record_of(log, current_of(log))->generation - 1, __ATOMIC_RELEASE);
        else
            seal(s, note);
    }
}

int64_t seg_fence_take(seg_share *s)
{
    const seg_shared_header *header = (const seg_shared_header *)s->member->map;
    uint64_t asked = s->waited_for;
    for (;;) {
        uint64_t seen = __atomic_load_n(&s->log->lock, __ATOMIC_ACQUIRE);
        int is_asked = asked && (seen & ~(uint64_t)SEG_WAITED) == asked;
        int64_t patience = is_asked ? 0 : header->stopped_ms;
        int64_t code = seg_share_take(s, SEG_OF_HOST, 0, patience, &seen);
        if (code == SEG_BUSY)
            return -EINTR;
        if (code == 1)
            seg_record_tear(s->log);
        if (code == -ETIMEDOUT && !fence(s, seen))
            return -EINTR; /* it has gone on, or the list is full of stopped owners: the caller tries again */
        s->waited_for = 0;
        return code == 1 && seg_lock_who(seen) == SEG_OF_HOST;
    }
}

int64_t seg_share_sealed(const seg_share *s, int64_t from, int32_t dead, seg_sealed *out)
{
    const seg_shared_log *log = s->log;
    uint64_t mine = seg_lock_word(s->member, s->who);
    for (int64_t i = from; i < SEG_SEALED; i++) {
        uint64_t owner = __atomic_load_n(&log->sealed[i].owner, __ATOMIC_ACQUIRE);
        if (!owner || !(dead ? seg_lock_is_dead(s->member, owner) : owner == mine))
            continue;
        int64_t generation = __atomic_load_n(&log->sealed[i].generation, __ATOMIC_ACQUIRE);
        *out = log->sealed[i];
        out->generation = generation;
        if (generation == INT64_MAX || record_of((seg_shared_log *)log, current_of(log))->generation <= out->generation + 1)
            return dead ? -1 : -EAGAIN; /* the next segment does not exist yet */
        return i;
    }
    return -1;
}

void seg_share_let_go(seg_share *s, int64_t number)
{
    __atomic_store_n(&s->log->sealed[number].owner, 0, __ATOMIC_RELEASE);
}
