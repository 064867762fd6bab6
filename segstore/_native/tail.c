/* The tail of a log: appends of a record, or of encoded batches, each by one call (DESIGN.md, section 6).
 *
 * Python lends a tail (`seg_tail`) while nothing unusual is the case, and takes it back before it
 * changes anything of what the tail says. The record of where the log ends (`seg_end`) stays when a tail
 * goes: C moves it while the tail is lent, else Python. Whatever a tail does not provide for gives SEG_SLOW, and
 * nothing is changed then.
 *
 * Thread contract: any thread, in the process that lent the tail. `lock` is held for one append, and
 * where Python takes the tail back; a process that was forked meanwhile gets SEG_SLOW. Where a write
 * fails, `torn` has the errno and the tail is taken back: bytes may lie behind its end.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <unistd.h>

#include "bytes.h"
#include "claim.h"
#include "clock.h"
#include "contract/answers.h"
#include "contract/batch.h"
#include "contract/column.h"
#include "contract/ends.h"
#include "contract/file.h"
#include "contract/index.h"
#include "contract/log.h"
#include "contract/records.h"
#include "contract/rules.h"
#include "entry.h"
#include "hand_over.h"
#include "relax.h"
#include "system.h"

enum { NUMBERS = 36, SPINS = 200, FREE = 0, TAKEN = 1, WAITED_FOR = 2 };

/* --- the lock (U. Drepper, "Futexes Are Tricky", mutex 3) ------------------- */

static int64_t enter(seg_tail *t)
{
    int32_t free = FREE;
    for (int i = 0; i < SPINS; i++, free = FREE) {
        if (__atomic_compare_exchange_n(&t->lock, &free, TAKEN, 0, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED))
            return 0;
        relax();
    }
    while (__atomic_exchange_n(&t->lock, WAITED_FOR, __ATOMIC_ACQUIRE) != FREE)
        if (futex_wait(&t->lock, WAITED_FOR, NULL, SEG_OF_THREADS) < 0 && errno == EINTR)
            return -EINTR;
    return 0;
}

static void leave(seg_tail *t)
{
    if (__atomic_exchange_n(&t->lock, FREE, __ATOMIC_RELEASE) == WAITED_FOR)
        futex_wake(&t->lock, 1, SEG_OF_THREADS);
}

/* --- what is told to readers ------------------------------------------------ */

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

/* Readers of this process see position and offsets of one moment. */
static void show_up_to(seg_tail *t, int64_t position, int64_t offset)
{
    uint64_t odd = t->sequence + 1;
    __atomic_store_n(&t->sequence, odd, __ATOMIC_RELAXED);
    __atomic_store_n(&t->shown_position, position, __ATOMIC_RELEASE);
    __atomic_store_n(&t->shown_offset, offset, __ATOMIC_RELEASE);
    __atomic_store_n(&t->seen_offset, seen_of(t, offset), __ATOMIC_RELEASE);
    __atomic_store_n(&t->sequence, odd + 1, __ATOMIC_RELEASE);
}

int64_t seg_tail_end(const seg_tail *t, int64_t *position, int64_t *seen)
{
    for (;;) {
        uint64_t before = __atomic_load_n(&t->sequence, __ATOMIC_ACQUIRE);
        int64_t at = __atomic_load_n(&t->shown_position, __ATOMIC_ACQUIRE);
        int64_t shown = __atomic_load_n(&t->shown_offset, __ATOMIC_ACQUIRE);
        int64_t within = __atomic_load_n(&t->seen_offset, __ATOMIC_ACQUIRE);
        if ((before & 1) == 0 && __atomic_load_n(&t->sequence, __ATOMIC_RELAXED) == before) {
            *position = at;
            *seen = within;
            return shown;
        }
        if (!t->here[0])
            return SEG_SLOW; /* another thread of the parent was at it, and is not here */
        relax();
    }
}

/* --- appends ------------------------------------------------------------------ */

/* Whether flush.messages asks for a flush once the log ends so. */
static int is_due(const seg_tail *t, int64_t end)
{
    return t->flush_messages && end - __atomic_load_n(&t->commit->synced, __ATOMIC_RELAXED) >= t->flush_messages;
}

/* Whether so many more offsets ask for a flush that Python has to make: it may wait for other threads, which
 * `check_apart` refuses in a handler before anything is written. */
static int is_left(const seg_tail *t, int64_t offsets)
{
    return is_due(t, t->end->next_offset + offsets) && !seg_tail_syncs(t);
}

/* Whether no roll is due before a batch of this time, which may lie before that of the segment's first one. */
static int is_young(const seg_tail *t, int64_t timestamp)
{
    int64_t rolled_ms = t->end->rolled_ms;
    return rolled_ms >= 0 && timestamp >= 0 && timestamp - rolled_ms <= t->young_ms;
}

/* Whether n batches with so many offsets fit the segment and its indexes. Positions and relative offsets
 * are int32. */
static int has_room(const seg_tail *t, int64_t size, int64_t offsets, int64_t n)
{
    const seg_end *e = t->end;
    int64_t relative = e->next_offset - e->base_offset;
    return size <= t->most_position - e->position && e->position + size <= (int64_t)INT32_MAX + 1 &&
        relative + offsets - 1 <= INT32_MAX && e->next_offset <= INT64_MAX - offsets &&
        n <= e->offset_room - e->offset_entries && n <= e->time_room - e->time_entries;
}

static int64_t payload(int64_t len)
{
    return varint_size(len) + (len > 0 ? len : 0);
}

/* Write the batch at out, whose size is b->size. */
static void put_batch(const seg_record *r, int64_t body, uint8_t *out, seg_batch *b)
{
    seg_put_header(out, b);
    uint8_t *w = put_varint(out + HEADER, body);
    *w++ = 0; /* attributes, and no difference in time and offset */
    *w++ = 0;
    *w++ = 0;
    w = put_nullable(w, r->key, r->key_len);
    w = put_nullable(w, r->value, r->value_len);
    memcpy(w, r->headers, (size_t)r->headers_len);
    seg_put_crc(out, b);
}

/* A write has failed: bytes may lie behind the end. */
static void tear(seg_tail *t, int64_t error)
{
    t->torn = (int32_t)-error;
    __atomic_store_n(&t->lent, 0, __ATOMIC_RELAXED);
}

/* Index batches that were written to this log. The end stays. */
static void note(seg_tail *t, const seg_batch *batches, int64_t n)
{
    seg_end *e = t->end;
    int64_t timed = 0;
    int64_t made = seg_index_entries(batches, n, e->base_offset, t->interval, &e->state,
                                     t->offset_index + OFFSET_ENTRY * e->offset_entries,
                                     t->time_index + TIME_ENTRY * e->time_entries, &timed);
    if (made > 0) {
        __atomic_store_n(&e->offset_entries, e->offset_entries + made, __ATOMIC_RELEASE);
        __atomic_store_n(&e->time_entries, e->time_entries + timed, __ATOMIC_RELEASE);
    }
    t->appends++;
}

/* Write batches that have their offsets and their positions in this log, and index them. The end stays: 0, or
 * -errno. */
static int64_t put_out(seg_tail *t, const uint8_t *buf, int64_t len, const seg_batch *batches, int64_t n)
{
    int64_t at = t->end->position;
    int64_t done = t->write ? t->write(t->fd, buf, len, at) : seg_pwrite(t->fd, buf, len, at);
    if (done < 0) {
        tear(t, done);
        return done;
    }
    note(t, batches, n);
    return 0;
}

/* Move the end behind batches that were put out. */
static void move_end(seg_end *e, int64_t len, const seg_batch *batches, int64_t n)
{
    __atomic_store_n(&e->position, e->position + len, __ATOMIC_RELEASE);
    __atomic_store_n(&e->next_offset, batches[n - 1].last_offset + 1, __ATOMIC_RELEASE);
}

/* Let readers see batches that were put out. */
static void show(seg_tail *t, int64_t len, const seg_batch *batches, int64_t n)
{
    move_end(t->end, len, batches, n);
    show_up_to(t, t->end->position, t->end->next_offset);
    publish(t);
}

/* Batches that were put out stay in the log, unseen: a follower lacks them. */
static void hide(seg_tail *t, int64_t len, const seg_batch *batches, int64_t n)
{
    move_end(t->end, len, batches, n);
    __atomic_store_n(&t->lent, 0, __ATOMIC_RELAXED);
}

/* Take the tail for an append; 0 where it is not lent. */
static int begin(seg_tail *t)
{
    if (!t->here[0] || enter(t))
        return 0;
    if (__atomic_load_n(&t->lent, __ATOMIC_ACQUIRE))
        return 1;
    leave(t);
    return 0;
}

/* Whether a follower takes what its leader's tail has put out: it ends where the leader's log ended. */
static int is_next(const seg_tail *f, const seg_tail *t, int64_t len, const seg_batch *batches, int64_t n)
{
    return f->end->next_offset == t->end->next_offset && f->leader_epoch == t->leader_epoch &&
        is_young(f, batches[0].max_timestamp) &&
        has_room(f, len, batches[n - 1].last_offset + 1 - t->end->next_offset, n);
}

/* Put out at a follower. The positions are those of the leader's log, `moved` bytes before those here. */
static int put_at_follower(seg_tail *f, const uint8_t *buf, int64_t len, seg_batch *batches, int64_t n, int64_t moved)
{
    for (int64_t i = 0; moved && i < n; i++)
        batches[i].position += moved;
    int64_t error = put_out(f, buf, len, batches, n);
    for (int64_t i = 0; moved && i < n; i++)
        batches[i].position -= moved;
    return error == 0;
}

/* Put out at a follower what its leader's tail has put out, or have its directory's thread do so: whether that is
 * done, or begun. */
static int give(seg_tail *f, const seg_tail *t, const uint8_t *buf, int64_t len, seg_batch *batches, int64_t n)
{
    int64_t moved = f->end->position - t->end->position;
    if (!is_next(f, t, len, batches, n))
        return 0;
    if (f->job)
        return seg_job_post(f->job, f, buf, len, batches, n, moved, t->spins) == 0;
    return put_at_follower(f, buf, len, batches, n, moved);
}

/* Take in how a follower's thread has ended its write: whether the batches are in the log. */
static int take_in(seg_tail *f, int64_t result)
{
    if (result >= 0)
        note(f, seg_job_batches(f->job), f->job->n);
    else if (result != -ECANCELED)
        tear(f, result);
    return result >= 0;
}

/* Whether a follower has what it was given. Where its disk does not answer, it is lent no more, and who takes it
 * back sees what has become of the write. */
static int has_taken(seg_tail *f, int64_t *deadline)
{
    int64_t result;
    if (!f->job)
        return 1;
    if (!seg_job_await(f->job, deadline, &result)) {
        f->unsettled = 1;
    } else {
        int taken = take_in(f, result);
        seg_job_done(f->job);
        if (taken)
            return 1;
    }
    __atomic_store_n(&f->lent, 0, __ATOMIC_RELAXED);
    return 0;
}

/* Hand on to all followers what was put out, and show it at all of them, or at none. A follower that does not
 * take it now fetches it later, or its thread meets the error of its disk: 1 where all have it. */
static int hand_on(seg_tail *t, const uint8_t *buf, int64_t len, seg_batch *batches, int64_t n)
{
    seg_tail *taken[SEG_FOLLOWERS];
    int given = 0, count = 0;
    for (int i = 0; i < t->n_followers; i++) {
        seg_tail *f = t->followers[i];
        if (!begin(f))
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
    (whole ? show : hide)(t, len, batches, n);
    for (int i = 0; i < count; i++) {
        (whole ? show : hide)(taken[i], len, batches, n);
        leave(taken[i]);
        if (whole)
            seg_wake(taken[i]->ends, taken[i]->ends_len);
    }
    return whole;
}

/* Write batches that have their offsets; where they lie in the log, index them and move the end behind. */
static int64_t write_out(seg_tail *t, const uint8_t *buf, int64_t len, seg_batch *batches, int64_t n,
                         seg_claim *claim, int64_t now)
{
    int64_t error = put_out(t, buf, len, batches, n);
    if (error)
        return error;
    if (claim)
        claim_take(claim, batches, n, now == SEG_NOW ? clock_ms() : now);
    if (!t->n_followers)
        show(t, len, batches, n);
    else if (!hand_on(t, buf, len, batches, n))
        return SEG_BEHIND;
    return batches[0].base_offset;
}

/* One record, by the producer that b tells of, if it gets the offset that is expected. */
static int64_t append(seg_tail *t, const seg_record *r, int64_t expected, int64_t timestamp, int64_t now,
                      seg_batch *b)
{
    int64_t body = 3 + payload(r->key_len) + payload(r->value_len) + r->headers_len;
    b->position = t->end->position;
    b->base_offset = b->last_offset = t->end->next_offset;
    b->base_timestamp = timestamp;
    b->max_timestamp = t->stamps ? now : timestamp;
    b->size = (int32_t)(HEADER + varint_size(body) + body);
    b->leader_epoch = t->leader_epoch;
    b->count = 1;
    uint8_t out[SEG_ONE_ROOM];
    seg_claim *claim = NULL;
    if ((expected >= 0 && expected != t->end->next_offset) || b->size > t->largest_batch ||
        !is_near(t, timestamp, now) || !is_young(t, b->max_timestamp) || !has_room(t, b->size, 1, 1) ||
        is_left(t, 1) || !claim_of(t, b, 1, &claim))
        return SEG_SLOW;
    b->attributes |= t->stamps ? APPEND_TIME : 0;
    put_batch(r, body, out, b);
    return write_out(t, out, b->size, b, 1, claim, now);
}

/* Whether applications append here: these batches of a producer, or of none (id -1). Followers don't judge
 * producers. */
static int takes(const seg_tail *t, int64_t producer_id)
{
    return !t->follows && ((!t->n_followers && t->high_watermark < 0) || producer_id < 0);
}

/* Give the tail back after an append, wake those who wait for records, and keep flush.messages. */
static int64_t end(seg_tail *t, int64_t offset)
{
    int64_t after = t->end->next_offset;
    leave(t);
    if (offset < 0)
        return offset;
    seg_wake(t->ends, t->ends_len);
    if (is_due(t, after) && seg_tail_flush(t, after) < 0 && is_due(t, after))
        __atomic_store_n(&t->late, 1, __ATOMIC_RELEASE);
    return offset;
}

/* Whether the batch of a record has room in SEG_ONE_ROOM bytes. */
static int is_short(const seg_record *r)
{
    int64_t room = SEG_ONE_ROOM - HEADER - NUMBERS;
    return r->value_len <= room && r->key_len <= room - r->value_len &&
        r->headers_len <= room - r->value_len - r->key_len;
}

int64_t seg_tail_append(seg_tail *t, const seg_record *r, int64_t expected, int64_t now, seg_batch *b)
{
    seg_batch plain = {.producer_id = -1, .base_sequence = -1, .producer_epoch = -1};
    b = b ? b : &plain;
    if (b->attributes & (b->producer_id < 0 ? ~0 : ~TRANSACTIONAL) || !is_short(r) ||
        (r->key_len < 0 && t->needs_key) || !t->plain || !takes(t, b->producer_id) || !begin(t))
        return SEG_SLOW;
    if (now == SEG_NOW)
        now = clock_ms();
    return end(t, append(t, r, expected, r->timestamp == SEG_NOW ? now : r->timestamp, now, b));
}

/* Bytes of n batches, and their offsets; -1 where these are more than a segment has. */
static int64_t measure(const seg_batch *batches, int64_t n, int64_t *offsets)
{
    int64_t size = 0;
    *offsets = 0;
    for (int64_t i = 0; i < n; i++) {
        int64_t delta = batches[i].last_offset - batches[i].base_offset;
        if (delta < 0 || delta > INT32_MAX || *offsets > INT32_MAX)
            return -1;
        *offsets += delta + 1;
        size += batches[i].size;
    }
    return size;
}

static int64_t write_batches(seg_tail *t, uint8_t *buf, int64_t len, seg_batch *batches, int64_t n, int64_t expected,
                             int64_t now)
{
    int64_t offsets = 0, stamp = -1;
    seg_claim *claim = NULL;
    if (t->stamps)
        stamp = now = now == SEG_NOW ? clock_ms() : now; /* under the lock: it rises with the offsets */
    if (n <= 0 || (expected >= 0 && expected != t->end->next_offset) || (t->stamps && stamp < 0) ||
        (t->hands_over && (len > SEG_HANDED_ROOM || n > SEG_HANDED)) || !takes(t, batches[0].producer_id) ||
        measure(batches, n, &offsets) != len || !is_young(t, t->stamps ? stamp : batches[0].max_timestamp) ||
        !has_room(t, len, offsets, n) || is_left(t, offsets) || !claim_of(t, batches, n, &claim))
        return SEG_SLOW;
    if (seg_assign(buf, len, batches, n, t->end->next_offset, t->leader_epoch, stamp, t->end->position) < 0)
        return SEG_SLOW;
    return write_out(t, buf, len, batches, n, claim, now);
}

int64_t seg_tail_write(seg_tail *t, uint8_t *buf, int64_t len, seg_batch *batches, int64_t n, int64_t expected,
                       int64_t now)
{
    return begin(t) ? end(t, write_batches(t, buf, len, batches, n, expected, now)) : SEG_SLOW;
}

int64_t seg_tail_encode(seg_tail *t, const seg_column *keys, const seg_column *values,
                        const seg_header_columns *headers, const int64_t *timestamps, int64_t n,
                        const int64_t *cuts, int64_t n_cuts, const seg_template *of, uint8_t *out, int64_t piece,
                        seg_batch *batches, int64_t now, int64_t *done, int64_t *size)
{
    seg_template next = *of;
    *done = *size = 0;
    for (int64_t first = 0, made, taken, r; first < n; first += taken) {
        r = seg_encode_cut(keys, values, headers, timestamps, 0, NULL, first, n, piece, cuts, n_cuts, &next, out,
                           piece, batches + *done, n_cuts + 1 - *done, &made, &taken);
        if (r < 0)
            return r;
        int64_t offset = seg_tail_write(t, out, r, batches + *done, made, -1, now);
        if (offset < 0)
            return offset;
        *done += made;
        *size += r;
        if (next.base_sequence >= 0)
            next.base_sequence = (int32_t)(((int64_t)next.base_sequence + taken) & INT32_MAX);
    }
    return 0;
}

int64_t seg_tail_take(seg_tail *t, uint8_t *batch, int64_t len, const seg_rules *rules, int64_t now, seg_batch *h)
{
    seg_checked found;
    h->size = 0;
    /* A look without the lock: a tail that is not lent is not worth the check. The settings may have changed since the
     * rules were taken. */
    if (!t->here[0] || !__atomic_load_n(&t->lent, __ATOMIC_RELAXED) || t->stamps == rules->create_time)
        return SEG_SLOW;
    int64_t clock = now == SEG_NOW ? clock_ms() : now;
    if (seg_check_batch(batch, len, rules, clock, h, &found) != SEG_CHECKED ||
        (found.max_timestamp != h->max_timestamp && !t->stamps)) {
        h->size = 0;
        return SEG_SLOW;
    }
    return seg_tail_write(t, batch, len, h, 1, -1, now);
}

/* --- a log that follows another machine's ------------------------------------- */

/* Whether these batches go on where the log ends, and tell of no producer: such are taken unread. */
static int goes_on(const seg_tail *t, const seg_batch *batches, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        if (batches[i].magic != MAGIC || batches[i].producer_id >= 0 || batches[i].leader_epoch != t->leader_epoch ||
            batches[i].attributes & (TRANSACTIONAL | CONTROL))
            return 0;
    return n > 0 && batches[0].base_offset >= t->end->next_offset;
}

static int64_t follow(seg_tail *t, const uint8_t *buf, int64_t len, int64_t high_watermark, seg_batch *batches,
                      int64_t n)
{
    if (!t->follows || t->high_watermark < 0 || !goes_on(t, batches, n) || !is_young(t, batches[0].max_timestamp) ||
        !has_room(t, len, batches[n - 1].last_offset + 1 - t->end->next_offset, n))
        return SEG_SLOW;
    for (int64_t i = 0; i < n; i++)
        batches[i].position += t->end->position;
    int64_t error = put_out(t, buf, len, batches, n), next = batches[n - 1].last_offset + 1;
    if (error)
        return error;
    if (high_watermark > t->high_watermark)
        t->high_watermark = high_watermark < next ? high_watermark : next;
    show(t, len, batches, n);
    return next;
}

int64_t seg_tail_follow(seg_tail *t, const uint8_t *buf, int64_t len, int64_t high_watermark, seg_batch *batches,
                        int64_t most)
{
    seg_scan_end stop;
    /* A look without the lock, as in seg_tail_take. */
    if (!t->here[0] || !__atomic_load_n(&t->lent, __ATOMIC_RELAXED))
        return SEG_SLOW;
    int64_t n = seg_scan(buf, len, 0, -1, 0, INT64_MAX, INT64_MAX, 1, batches, most, &stop);
    if (stop.status != SEG_END || !begin(t))
        return SEG_SLOW;
    return end(t, follow(t, buf, len, high_watermark, batches, n));
}

int64_t seg_tail_show(seg_tail *t, int64_t high_watermark)
{
    if (!t->here[0])
        return 0;
    int64_t error = enter(t);
    if (error)
        return error;
    int64_t shows = t->lent && t->high_watermark >= 0 && high_watermark >= t->high_watermark;
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

void seg_tail_begin(seg_tail *t)
{
    /* Releases: a thread that sees this sees the other fields, too. */
    __atomic_store_n(&t->lent, 1, __ATOMIC_RELEASE);
}

/* Whether all is known of a tail that is lent no more. What a thread has written meanwhile stays, unseen. */
static int settle(seg_tail *t)
{
    int64_t result;
    if (!t->unsettled)
        return 1;
    if (!seg_job_is_over(t->job, &result))
        return 0;
    if (take_in(t, result))
        hide(t, t->job->len, seg_job_batches(t->job), t->job->n);
    seg_job_done(t->job);
    t->unsettled = 0;
    return 1;
}

int64_t seg_tail_stop(seg_tail *t)
{
    for (int settled = !t->here[0]; !settled;) {
        int64_t error = enter(t);
        if (error)
            return error;
        __atomic_store_n(&t->lent, 0, __ATOMIC_RELAXED);
        settled = settle(t);
        leave(t);
        if (!settled && (error = seg_job_await_end(t->job)))
            return error;
    }
    return 0;
}

int64_t seg_tail_quit(seg_tail *t)
{
    int32_t free = FREE;
    if (!t->here[0])
        return 1;
    __atomic_store_n(&t->lent, 0, __ATOMIC_RELEASE);
    if (!__atomic_compare_exchange_n(&t->lock, &free, TAKEN, 0, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED))
        return 0;
    int settled = settle(t);
    leave(t);
    return settled;
}

int64_t seg_tail_synced(seg_tail *t, int64_t synced)
{
    if (!t->here[0])
        return 0;
    int64_t error = enter(t);
    if (error)
        return error;
    int64_t lent = t->lent;
    if (lent && (synced < 0 || synced > t->synced)) { /* a later sync may have told before */
        t->synced = synced;
        publish(t);
    }
    leave(t);
    if (lent)
        seg_wake(t->ends, t->ends_len);
    return lent;
}
