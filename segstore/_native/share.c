/* The end of a log that several processes append to (docs/shared.md; rules E1 to E5, L3, L4 and A1 to A5).
 *
 * The end is one record, which the word `current` names. Who appends fills a record of its own that is not current, and
 * swaps the word: so a process that dies has changed nothing or all, and one whose lock was taken away changes nothing.
 *
 * Invariants:
 * 1. Who fills a record holds the log's lock, or had it taken away and has a sealed end; or it is the host, and the log is
 *    closed. So a seat may be given to another one if it is not current and its owner has no sealed end.
 * 2. While a log is closed the host alone moves its end. Who holds the lock then, took it behind the close, and leaves.
 *    A log is closed under its lock only, or once that was taken away.
 * 3. `torn` is set before anything else if the lock came from a dead owner, and taken back behind the cut, unless it was set
 *    anew since: it counts. A closed log is cut by nobody but the host, which knows what it has written and not shown.
 * 4. What is done to a file by the record that was loaded is done behind one more look that the lock is ours: file and
 *    position belong together then, also where the lock is taken away later [E4].
 *
 * Thread contract: the holder of the tail's lock; seg_share_show and its like: one thread of the host, the log is closed.
 */
#define _GNU_SOURCE
#include "share.h"

#include <errno.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "contract/answers.h"
#include "contract/ends.h"
#include "contract/members.h"
#include "contract/share.h"
#include "contract/share_lock.h"
#include "contract/share_sync.h"
#include "contract/shared_ends.h"
#include "relax.h"
#include "share_lock.h"
#include "step.h"
#include "tail_lock.h"

enum { WORDS = sizeof(seg_shared_end) / 8, PUBLICATIONS = 8, LONGEST_WAIT = 100 /* ms */ };

/* --- records ----------------------------------------------------------------------- */

static seg_shared_end *record_of(seg_shared_log *log, uint64_t word)
{
    return &log->ends[((word >> 8) & (SEG_SEATS - 1)) * 2 + (word & 1)];
}

static uint64_t current_of(const seg_shared_log *log)
{
    return __atomic_load_n(&log->current, __ATOMIC_ACQUIRE);
}

static int has_sealed(const seg_shared_log *log, uint64_t owner)
{
    for (int i = 0; i < SEG_SEALED; i++)
        if (__atomic_load_n(&log->sealed[i].owner, __ATOMIC_ACQUIRE) == owner)
            return 1;
    return 0;
}

/* A seat of this tail's own; another one's is taken only by invariant 1: by a compare-and-swap, behind which its caller looks
 * once more whose the lock is. -1: somebody else was faster. There are more seats than sealed ends. */
static int32_t seat_of(seg_share *s, uint64_t current)
{
    seg_shared_log *log = s->log;
    uint64_t mine = seg_lock_word(s->member, s->who);
    if (__atomic_load_n(&log->seats[s->seat], __ATOMIC_ACQUIRE) == mine)
        return s->seat;
    int32_t other = -1;
    uint64_t owner = 0;
    for (int32_t i = 0; i < SEG_SEATS; i++) {
        uint64_t held = __atomic_load_n(&log->seats[i], __ATOMIC_ACQUIRE);
        if (held == mine)
            return s->seat = i;
        int is_current = current && i == (int32_t)((current >> 8) & (SEG_SEATS - 1));
        if (!is_current && !(held && has_sealed(log, held)) && (other < 0 || (owner && !held))) {
            other = i;
            owner = held;
        }
    }
    if (other < 0 || !__atomic_compare_exchange_n(&log->seats[other], &owner, mine, 0, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED))
        return -1;
    return s->seat = other;
}

/* The word behind `current` that names a record of this tail's seat. */
static uint64_t own_word(const seg_share *s, uint64_t current)
{
    uint64_t seat = (uint64_t)s->seat, which = 0;
    if (current && ((current >> 8) & (SEG_SEATS - 1)) == seat)
        which = 1 - (current & 1);
    return ((current >> 16) + 1) << 16 | seat << 8 | which;
}

/* The same of a host, which nobody takes the lock from. */
static uint64_t next_word(seg_share *s, uint64_t current)
{
    while (seat_of(s, current) < 0) {
    }
    return own_word(s, current);
}

/* A reader may look at these words: whole stores, which come behind those before (shared_ends.c). */
static void fill(seg_shared_end *to, const seg_shared_end *from)
{
    for (int i = 0; i < WORDS; i++)
        __atomic_store_n((int64_t *)to + i, ((const int64_t *)from)[i], __ATOMIC_RELEASE);
}

/* The same the other way: whoever had the lock taken away may find a record that is filled anew, and looks then [E4]. */
static void copy(seg_shared_end *to, const seg_shared_end *from)
{
    for (int i = 0; i < WORDS; i++)
        ((int64_t *)to)[i] = __atomic_load_n((const int64_t *)from + i, __ATOMIC_ACQUIRE);
}

static int swap(seg_shared_log *log, uint64_t current, uint64_t next)
{
    return __atomic_compare_exchange_n(&log->current, &current, next, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
}

/* --- an append --------------------------------------------------------------------- */

static int32_t is_mine(const seg_share *s)
{
    return (int32_t)seg_lock_is_mine(s->member, &s->log->lock, s->who);
}

static void note_torn(seg_shared_log *log)
{
    uint32_t torn = __atomic_load_n(&log->torn, __ATOMIC_ACQUIRE);
    while (!__atomic_compare_exchange_n(&log->torn, &torn, (torn + 2) | 1, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) {
    }
}

/* Cut what a dead owner, or a failed write, has left behind the end [L3]: 0, or -errno. */
static int64_t cut(int32_t fd, int64_t position)
{
    struct stat found;
    SEG_STEP(REPAIR);
    if (SEG_HAS_BUG(NO_CUT))
        return 0;
    int failed = fstat(fd, &found) < 0 || (found.st_size > position && ftruncate(fd, position) < 0);
    int64_t error = failed ? -errno : 0;
    SEG_STEP(CUT);
    return error;
}

static uint32_t torn_of(const seg_shared_log *log)
{
    return __atomic_load_n(&log->torn, __ATOMIC_ACQUIRE);
}

/* Cut if the log was torn, as it was before the last look that the lock is ours: what was torn since is another one's. */
static int64_t mend(seg_shared_log *log, uint32_t torn, int32_t fd, int64_t position)
{
    int64_t error = torn & 1 ? cut(fd, position) : 0;
    if ((torn & 1) && !error)
        __atomic_compare_exchange_n(&log->torn, &torn, torn & ~1u, 0, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED);
    return error;
}

/* Take the record that is current for the tail's own end, unless it is: 0; SEG_SLOW where the tail has other files, or the
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
    return seat_of(s, current) >= 0 && is_mine(s) ? 0 : SEG_SLOW;
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
        __atomic_load_n(&log->failed, __ATOMIC_ACQUIRE) || log->key != s->key || load(t, s))
        return SEG_SLOW; /* also behind a sync that failed [S2] */
    return mend(log, torn, t->fd, t->active->end->position);
}

static int64_t clock_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* Wait for the lock for a while: SEG_BUSY: the caller comes again, and has the handlers of signals run; -ETIMEDOUT: the same
 * owner has had it for `patience_ms`, since the first of these calls. Else as seg_lock_take. */
static int64_t take_patiently(seg_share *s, int32_t who, int32_t brief, int64_t patience_ms, uint64_t *seen)
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
    int is_dead = (int)seg_lock_is_dead(s->member, *seen); /* a host, which the next one is to end */
    return !is_dead && clock_ms() - s->waits_since < patience_ms ? SEG_BUSY : code;
}

int64_t seg_share_enter(seg_tail *t, int32_t brief)
{
    seg_share *s = t->share;
    const seg_shared_header *header = (const seg_shared_header *)s->member->map;
    uint64_t seen = 0;
    int64_t code = take_patiently(s, s->who, brief, header->stopped_ms, &seen);
    if (code == 1) {
        SEG_STEP(FROM_DEAD);
        note_torn(s->log);
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
    if (cut(t->fd, t->active->end->position) < 0)
        note_torn(s->log);
}

/* --- a living owner that does not go on ---------------------------------------------- */

/* Take those off the list that a dead host has noted, and not taken the lock from: a living guest has it. */
static void drop_begun(seg_shared_log *log)
{
    for (int i = 0; i < SEG_SEALED; i++)
        if (log->sealed[i].owner && log->sealed[i].generation == INT64_MAX)
            __atomic_store_n(&log->sealed[i].owner, 0, __ATOMIC_RELEASE);
}

/* The place on the list for an owner's sealed end; NULL: the list is full. */
static seg_sealed *place_for(seg_shared_log *log)
{
    for (int i = 0; i < SEG_SEALED; i++)
        if (!__atomic_load_n(&log->sealed[i].owner, __ATOMIC_ACQUIRE))
            return &log->sealed[i];
    return NULL;
}

/* Publish the end that the log has as a sealed one, of the next generation: its owner can't move it any more. The owner may
 * do so once meanwhile: then again from there [A2]. */
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
        next = next_word(s, current);
        fill(record_of(log, next), &end);
        SEG_STEP(SEALING);
    } while (!swap(log, current, next));
    SEG_STEP(SEALED);
    __atomic_store_n(&note->generation, end.generation - 1, __ATOMIC_RELEASE);
    __atomic_fetch_add(&log->aways, 1, __ATOMIC_ACQ_REL);
}

/* Take the lock from the living owner that its word tells, and seal the segment: 1; 0: it has gone on meanwhile, or the
 * list is full. The note comes first: a host that comes after this one must know of it. */
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

/* End what a host that died has begun of that, with the lock. Unless the lock was that host's (`was_taken`), it has taken
 * nothing from anybody. */
static void finish_fences(seg_share *s, int was_taken)
{
    seg_shared_log *log = s->log;
    for (int i = 0; i < SEG_SEALED; i++) {
        seg_sealed *note = &log->sealed[i];
        if (!note->owner || note->generation != INT64_MAX)
            continue;
        if (!was_taken)
            __atomic_store_n(&note->owner, 0, __ATOMIC_RELEASE);
        else if (record_of(log, current_of(log))->is_sealed) /* that was done, and not noted; who takes over counts it */
            __atomic_store_n(&note->generation, record_of(log, current_of(log))->generation - 1, __ATOMIC_RELEASE);
        else
            seal(s, note);
    }
}

/* Take the log's lock for the host, from an owner that has died or does not go on, too: 0; 1: it was a dead host's;
 * -EINTR. */
static int64_t take_for_host(seg_share *s)
{
    const seg_shared_header *header = (const seg_shared_header *)s->member->map;
    uint64_t asked = s->waited_for;
    for (;;) {
        uint64_t seen = __atomic_load_n(&s->log->lock, __ATOMIC_ACQUIRE);
        int is_asked = asked && (seen & ~(uint64_t)SEG_WAITED) == asked;
        int64_t patience = is_asked ? 0 : header->stopped_ms;
        int64_t code = take_patiently(s, SEG_OF_HOST, 0, patience, &seen);
        if (code == SEG_BUSY)
            return -EINTR;
        if (code == 1)
            note_torn(s->log);
        if (code == -ETIMEDOUT && !fence(s, seen))
            return -EINTR; /* it has gone on, or as many are stopped as the list has places: the caller comes again */
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
            return dead ? -1 : -EAGAIN; /* the next segment is not there yet */
        return i;
    }
    return -1;
}

void seg_share_let_go(seg_share *s, int64_t number)
{
    __atomic_store_n(&s->log->sealed[number].owner, 0, __ATOMIC_RELEASE);
}

/* --- the host ------------------------------------------------------------------------ */

static void leave_for_host(seg_share *s)
{
    seg_lock_leave(s->member, &s->log->lock, SEG_OF_HOST);
}

int64_t seg_share_close(seg_tail *t)
{
    seg_share *s = t->share;
    seg_shared_log *log = s->log;
    int64_t error = take_for_host(s);
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
        mend(log, torn_of(log), t->fd, now->end.position);
    leave_for_host(s);
    return 0;
}

/* Store what `end` says, with another generation if it is of other files, in a record: the word that names it. */
static uint64_t prepare(seg_share *s, const seg_marks *marks, seg_shared_end *end)
{
    uint64_t current = current_of(s->log), next = next_word(s, current);
    if (current)
        *end = *record_of(s->log, current);
    /* A sealed segment stays one until the log goes on in another: a host that comes must know. */
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
    __atomic_store_n(&s->log->key, s->key, __ATOMIC_RELEASE);   /* nobody sees another partition's end under this key */
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
    __atomic_store_n(&header->together, number, __ATOMIC_SEQ_CST); /* from here on readers see all of them */
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

/* Whether members have other things to bind than when the log was opened last. */
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
    uint64_t current = current_of(log), next = next_word(s, current);
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
    /* A log that is closed has nobody within an append (invariant 2); who dies with its lock, or stops, is in no way. */
    int was_open = (int)__atomic_load_n(&log->open, __ATOMIC_ACQUIRE);
    int64_t taken = was_open ? take_for_host(s) : 0;
    if (taken < 0)
        return taken;
    SEG_STEP(TAKING_OVER);
    if (was_open)
        finish_fences(s, (int)taken);
    if (taken) /* the dead host may not have come to count: one too many costs a look */
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
    int64_t was_open = __atomic_load_n(&s->log->open, __ATOMIC_ACQUIRE), error = was_open ? take_for_host(s) : 0;
    if (error < 0)
        return error;
    __atomic_store_n(&s->log->open, 0, __ATOMIC_RELEASE);
    /* The next partition that has this slot has other files: of a sealed end it keeps the seat alone. */
    for (int i = 0; i < SEG_SEALED; i++)
        __atomic_store_n(&s->log->sealed[i].is_replaced, 1, __ATOMIC_RELEASE);
    __atomic_store_n(&s->log->key, 0, __ATOMIC_RELEASE);
    if (was_open)
        leave_for_host(s);
    return 0;
}
