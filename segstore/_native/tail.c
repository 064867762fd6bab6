/* The tail of a log: appends of a record, or of encoded batches, each by one call (DESIGN.md, section 6).
 *
 * A log has one tail (`seg_tail`) for as long as its partition is open. C appends while the tail is `open`; whoever
 * holds the partition's append token has paused it, and changes what it says, and moves its end. Nothing is copied
 * then. Whatever a tail does not provide for gives SEG_SLOW, and nothing is changed then.
 *
 * Thread contract: any thread, in the process that made the tail. `lock` is held for one append and those that wait for
 * it meanwhile (combine.c), and where the tail is opened and paused; a process that was forked meanwhile gets SEG_SLOW.
 * Where a write fails, `torn` has the errno and the tail is paused: bytes may lie behind its end.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <unistd.h>

#include "active.h"
#include "bytes.h"
#include "claim.h"
#include "clock.h"
#include "combine.h"
#include "contract/answers.h"
#include "contract/batch.h"
#include "contract/column.h"
#include "contract/ends.h"
#include "contract/log.h"
#include "contract/producers.h"
#include "contract/records.h"
#include "contract/rules.h"
#include "hand_over.h"
#include "relax.h"
#include "system.h"
#include "tail.h"
#include "tail_lock.h"

enum { NUMBERS = 36 };

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

/* The last stable offset: it stays where a transaction is open, and may begin to. */
static int64_t stable_of(const seg_tail *t)
{
    const seg_producers *p = t->producers;
    return t->stable_offset >= 0 || p == NULL || !p->open ? t->stable_offset : p->txns[0].first_offset;
}

static void show_up_to(seg_tail *t, int64_t position, int64_t offset)
{
    store_ends(t, position, offset, seen_of(t, offset), stable_of(t));
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
    return is_due(t, t->active->end->next_offset + offsets) && !seg_tail_syncs(t);
}

/* Whether n batches with so many offsets, the first of this time, may be put out without another look. */
static int fits(const seg_tail *t, int64_t timestamp, int64_t size, int64_t offsets, int64_t n)
{
    return seg_active_is_young(t->active, timestamp) && seg_active_has_room(t->active, size, offsets, n);
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
void seg_tail_tear(seg_tail *t, int64_t error)
{
    t->torn = (int32_t)-error;
    __atomic_store_n(&t->open, 0, __ATOMIC_RELAXED);
}

/* Move what is known of producers behind their batches, which were written. It knows all of them. */
static void take_in_producers(seg_tail *t, const seg_batch *batches, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        if (batches[i].producer_id >= 0) {
            seg_producers_take(t->producers, batches, n, i, t->now == SEG_NOW ? clock_ms() : t->now);
            return;
        }
}

/* Batches were written to this log, and indexed. */
static void note(seg_tail *t, const seg_batch *batches, int64_t n)
{
    take_in_producers(t, batches, n);
    t->appends++;
}

/* Index batches that were written, unless that has failed. The end stays: 0, or -errno. */
static int64_t index_batches(seg_tail *t, int64_t error, const seg_batch *batches, int64_t n)
{
    error = error ? error : seg_active_note(t->active, batches, n);
    if (error)
        seg_tail_tear(t, error);
    else
        note(t, batches, n);
    return error;
}

/* Write batches that have their offsets and their positions in this log, and index them. The end stays: 0, or
 * -errno. */
static int64_t put_out(seg_tail *t, const uint8_t *buf, int64_t len, const seg_batch *batches, int64_t n)
{
    int64_t done = seg_active_write(t->active, t->fd, t->write, &buf, &len, 1);
    return index_batches(t, done < 0 ? done : 0, batches, n);
}

/* Move the end behind batches that were put out. */
static void move_end(seg_tail *t, int64_t len, const seg_batch *batches, int64_t n)
{
    seg_active_move(t->active, t->active->end->position + len, batches[n - 1].last_offset + 1);
}

void seg_tail_reveal(seg_tail *t)
{
    show_up_to(t, t->active->end->position, t->active->end->next_offset);
    publish(t);
}

/* Let readers see batches that were put out. */
static void show(seg_tail *t, int64_t len, const seg_batch *batches, int64_t n)
{
    move_end(t, len, batches, n);
    seg_tail_reveal(t);
}

/* Batches that were put out stay in the log, unseen: a follower lacks them. */
static void hide(seg_tail *t, int64_t len, const seg_batch *batches, int64_t n)
{
    move_end(t, len, batches, n);
    t->hidden = 1;
    __atomic_store_n(&t->open, 0, __ATOMIC_RELAXED);
}

/* Take the tail for an append; 0 where it is not open. */
static int begin(seg_tail *t)
{
    if (!t->here[0] || enter(t))
        return 0;
    if (__atomic_load_n(&t->open, __ATOMIC_ACQUIRE))
        return 1;
    leave(t);
    return 0;
}

/* Whether a follower takes what its leader's tail has put out: it ends where the leader's log ended. */
static int is_next(const seg_tail *f, const seg_tail *t, int64_t len, const seg_batch *batches, int64_t n)
{
    int64_t next = t->active->end->next_offset;
    return f->active->end->next_offset == next && f->leader_epoch == t->leader_epoch &&
        are_known(f->producers, batches, n) &&
        fits(f, batches[0].max_timestamp, len, batches[n - 1].last_offset + 1 - next, n);
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
    int64_t moved = f->active->end->position - t->active->end->position;
    f->now = t->now;
    if (!is_next(f, t, len, batches, n))
        return 0;
    if (f->job)
        return seg_job_post(f->job, f, buf, len, batches, n, moved, t->spins) == 0;
    return put_at_follower(f, buf, len, batches, n, moved);
}

/* Take in how a follower's thread has ended its write: whether the batches are in the log. */
static int take_result(seg_tail *f, int64_t result)
{
    if (result >= 0) {
        seg_active_note(f->active, seg_job_batches(f->job), f->job->n);
        note(f, seg_job_batches(f->job), f->job->n);
    } else if (result != -ECANCELED) {
        seg_tail_tear(f, result);
    }
    return result >= 0;
}

/* Whether a follower has what it was given. Where its disk does not answer, it is paused, and whoever waits for
 * it sees what has become of the write. */
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
static int64_t write_out(seg_tail *t, const uint8_t *buf, int64_t len, seg_batch *batches, int64_t n, int64_t now)
{
    t->now = now;
    int64_t error = put_out(t, buf, len, batches, n);
    if (error)
        return error;
    if (!t->n_followers)
        show(t, len, batches, n);
    else if (!hand_on(t, buf, len, batches, n))
        return SEG_BEHIND - batches[0].base_offset;
    return batches[0].base_offset;
}

/* Whether a transaction may begin here: readers see all of the log, and no other log is to say the same. */
static int opens(const seg_tail *t)
{
    return t->high_watermark < 0 && !t->n_followers;
}

/* Describe the batch of a record that has no place yet; the bytes of the record in it. */
static int64_t describe(const seg_record *r, int64_t timestamp, seg_batch *b)
{
    int64_t body = 3 + payload(r->key_len) + payload(r->value_len) + r->headers_len;
    b->base_offset = b->last_offset = 0;
    b->base_timestamp = b->max_timestamp = timestamp;
    b->size = (int32_t)(HEADER + varint_size(body) + body);
    b->count = 1;
    return body;
}

/* One record, by the producer that b tells of, if it gets the offset that is expected. */
static int64_t append(seg_tail *t, const seg_record *r, int64_t expected, int64_t timestamp, int64_t now,
                      seg_batch *b)
{
    int64_t body = describe(r, timestamp, b);
    b->position = t->active->end->position;
    b->base_offset = b->last_offset = t->active->end->next_offset;
    b->max_timestamp = t->stamps ? now : timestamp;
    b->leader_epoch = t->leader_epoch;
    uint8_t out[SEG_ONE_ROOM];
    if ((expected >= 0 && expected != t->active->end->next_offset) || b->size > t->largest_batch ||
        !is_near(t, timestamp, now) || !fits(t, b->max_timestamp, b->size, 1, 1) || is_left(t, 1) ||
        !are_claimed(t->producers, b, 1, opens(t)))
        return SEG_SLOW;
    b->attributes |= t->stamps ? APPEND_TIME : 0;
    put_batch(r, body, out, b);
    return write_out(t, out, b->size, b, 1, now);
}

/* Keep flush.messages after an append, behind which the log ended so. */
static int64_t flush(seg_tail *t, int64_t offset, int64_t after)
{
    if (offset >= 0 && is_due(t, after) && seg_tail_flush(t, after) < 0 && is_due(t, after))
        __atomic_store_n(&t->late, 1, __ATOMIC_RELEASE);
    return offset;
}

/* Make the appends that wait, give the tail back after an append, wake those who wait for records, and keep
 * flush.messages. */
static int64_t end(seg_tail *t, int64_t offset)
{
    int64_t after = t->active->end->next_offset;
    int64_t shown = seg_combine(t);
    leave(t);
    if (offset >= 0 || shown > 0)
        seg_wake(t->ends, t->ends_len);
    return flush(t, shown < 0 ? shown : offset, after);
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

/* Whether the topic takes a record that C has encoded without the lock. */
static int is_taken(const seg_tail *t, const seg_waiting *w)
{
    return w->len <= t->largest_batch && is_near(t, w->timestamp, w->clock == SEG_NOW ? clock_ms() : w->clock);
}

int seg_tail_admit(const seg_tail *t, seg_waiting *w, seg_ahead *ahead)
{
    const seg_end *e = t->active->end;
    int64_t offsets = 0, next = e->next_offset + ahead->offsets, stamp = -1;
    w->clock = w->now;
    if (t->stamps) /* under the lock: it rises with the offsets */
        stamp = w->clock = w->now == SEG_NOW ? clock_ms() : w->now;
    if (w->n <= 0 || (w->expected >= 0 && w->expected != next) || (t->stamps && stamp < 0) ||
        (t->hands_over && (w->len > SEG_HANDED_ROOM || w->n > SEG_HANDED)) || t->follows ||
        measure(w->batches, w->n, &offsets) != w->len || (w->timestamp >= 0 && !is_taken(t, w)) ||
        !fits(t, t->stamps ? stamp : w->batches[0].max_timestamp, ahead->bytes + w->len, ahead->offsets + offsets,
              ahead->batches + w->n) ||
        is_left(t, ahead->offsets + offsets) || !are_claimed(t->producers, w->batches, w->n, w->opens && opens(t)))
        return 0;
    if (seg_assign(w->buf, w->len, w->batches, w->n, next, t->leader_epoch, stamp, e->position + ahead->bytes) < 0)
        return 0;
    *ahead = (seg_ahead){ahead->bytes + w->len, ahead->offsets + offsets, ahead->batches + w->n};
    return 1;
}

int64_t seg_tail_make(seg_tail *t, seg_waiting *w)
{
    seg_ahead none = {0};
    return seg_tail_admit(t, w, &none) ? write_out(t, w->buf, w->len, w->batches, w->n, w->clock) : SEG_SLOW;
}

int64_t seg_tail_take_in(seg_tail *t, const seg_waiting *w)
{
    t->now = w->clock;
    int64_t error = index_batches(t, 0, w->batches, w->n);
    if (error)
        return error;
    move_end(t, w->len, w->batches, w->n);
    return w->batches[0].base_offset;
}

/* Make an append, or have it made by who holds the lock. */
static int64_t make(seg_tail *t, seg_waiting *w)
{
    int found = t->here[0] ? seg_combine_enter(t, w) : SEG_WITHDRAWN;
    if (found == SEG_HOLDS && __atomic_load_n(&t->open, __ATOMIC_ACQUIRE))
        return end(t, seg_tail_make(t, w));
    if (found == SEG_HOLDS) {
        seg_combine(t);
        leave(t);
    }
    if (found != SEG_ANSWERED)
        return SEG_SLOW;
    return w->answer < 0 ? w->answer : flush(t, w->answer, w->batches[w->n - 1].last_offset + 1);
}

int64_t seg_tail_write(seg_tail *t, uint8_t *buf, int64_t len, seg_batch *batches, int64_t n, int64_t expected,
                       int64_t now, int32_t opens)
{
    seg_waiting w = {.buf = buf, .len = len, .batches = batches, .n = n, .expected = expected, .now = now,
                     .timestamp = -1, .opens = opens};
    return make(t, &w);
}

/* Whether the batch of a record has room in SEG_ONE_ROOM bytes. */
static int is_short(const seg_record *r)
{
    int64_t room = SEG_ONE_ROOM - HEADER - NUMBERS;
    return r->value_len <= room && r->key_len <= room - r->value_len &&
        r->headers_len <= room - r->value_len - r->key_len;
}

/* Append a record where another thread has the lock: it is encoded meanwhile. */
static int64_t append_after(seg_tail *t, const seg_record *r, int64_t expected, int64_t timestamp, int64_t now,
                            seg_batch *b)
{
    uint8_t out[SEG_ONE_ROOM];
    if (timestamp < 0)
        return SEG_SLOW;
    put_batch(r, describe(r, timestamp, b), out, b);
    seg_waiting w = {.buf = out, .len = b->size, .batches = b, .n = 1, .expected = expected, .now = now,
                     .timestamp = timestamp, .opens = 1};
    return make(t, &w);
}

int64_t seg_tail_append(seg_tail *t, const seg_record *r, int64_t expected, int64_t now, seg_batch *b)
{
    seg_batch plain = {.producer_id = -1, .base_sequence = -1, .producer_epoch = -1};
    b = b ? b : &plain;
    if (b->attributes & (b->producer_id < 0 ? ~0 : ~TRANSACTIONAL) || !is_short(r) ||
        (r->key_len < 0 && t->needs_key) || !t->plain || t->follows || !t->here[0])
        return SEG_SLOW;
    int holds = try_enter(t); /* before the clock is asked: LogAppendTime rises with the offsets */
    int64_t clock = now == SEG_NOW ? clock_ms() : now, timestamp = r->timestamp == SEG_NOW ? clock : r->timestamp;
    if (!holds)
        return append_after(t, r, expected, timestamp, now, b);
    return end(t, __atomic_load_n(&t->open, __ATOMIC_ACQUIRE) ? append(t, r, expected, timestamp, clock, b) : SEG_SLOW);
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
        int64_t offset = seg_tail_write(t, out, r, batches + *done, made, -1, now, 1);
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
    /* A look without the lock: a tail that is paused is not worth the check. The settings may have changed since the
     * rules were taken. */
    if (!t->here[0] || !__atomic_load_n(&t->open, __ATOMIC_RELAXED) || t->stamps == rules->create_time)
        return SEG_SLOW;
    int64_t clock = now == SEG_NOW ? clock_ms() : now;
    if (seg_check_batch(batch, len, rules, clock, h, &found) != SEG_CHECKED ||
        (found.max_timestamp != h->max_timestamp && !t->stamps)) {
        h->size = 0;
        return SEG_SLOW;
    }
    return seg_tail_write(t, batch, len, h, 1, -1, now, 0);
}

/* --- a log that follows another machine's ------------------------------------- */

/* Whether these batches go on where the log ends, and no control batch is among them: such are taken unread. */
static int goes_on(const seg_tail *t, const seg_batch *batches, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        if (batches[i].magic != MAGIC || batches[i].leader_epoch != t->leader_epoch)
            return 0;
    return n > 0 && batches[0].base_offset >= t->active->end->next_offset && are_known(t->producers, batches, n);
}

static int64_t follow(seg_tail *t, const uint8_t *buf, int64_t len, int64_t high_watermark, seg_batch *batches,
                      int64_t n, int64_t now)
{
    const seg_end *e = t->active->end;
    if (!t->follows || t->high_watermark < 0 || !goes_on(t, batches, n) ||
        !fits(t, batches[0].max_timestamp, len, batches[n - 1].last_offset + 1 - e->next_offset, n))
        return SEG_SLOW;
    for (int64_t i = 0; i < n; i++)
        batches[i].position += e->position;
    t->now = now;
    int64_t error = put_out(t, buf, len, batches, n), next = batches[n - 1].last_offset + 1;
    if (error)
        return error;
    if (high_watermark > t->high_watermark)
        t->high_watermark = high_watermark < next ? high_watermark : next;
    show(t, len, batches, n);
    return next;
}

int64_t seg_tail_follow(seg_tail *t, const uint8_t *buf, int64_t len, int64_t high_watermark, seg_batch *batches,
                        int64_t most, int64_t now)
{
    seg_scan_end stop;
    /* A look without the lock, as in seg_tail_take. */
    if (!t->here[0] || !__atomic_load_n(&t->open, __ATOMIC_RELAXED))
        return SEG_SLOW;
    int64_t n = seg_scan(buf, len, 0, -1, 0, INT64_MAX, INT64_MAX, 1, batches, most, &stop);
    if (stop.status != SEG_END || !begin(t))
        return SEG_SLOW;
    return end(t, follow(t, buf, len, high_watermark, batches, n, now));
}

int64_t seg_tail_show(seg_tail *t, int64_t high_watermark)
{
    if (!t->here[0])
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

int64_t seg_tail_begin(seg_tail *t)
{
    int64_t error = t->here[0] ? enter(t) : 0;
    if (error || !t->here[0])
        return error;
    t->torn = t->hidden = t->late = 0;
    t->appends = 0;
    int64_t open = t->fd >= 0;
    __atomic_store_n(&t->open, (int32_t)open, __ATOMIC_RELEASE);
    leave(t);
    return open;
}

int64_t seg_tail_look(seg_tail *t, int64_t position, int64_t shown, int64_t seen)
{
    int64_t error = t->here[0] ? enter(t) : 0;
    if (error || !t->here[0])
        return error;
    int64_t paused = !t->open;
    if (paused)
        store_ends(t, position, shown, seen, t->stable_offset);
    leave(t);
    return paused;
}

int64_t seg_tail_to_sync(seg_tail *t, int32_t *fd)
{
    if (!t->here[0] || enter(t))
        return SEG_SLOW;
    int64_t end = t->open && t->names == t->synced_names ? t->shown_offset : SEG_SLOW;
    *fd = t->fd;
    leave(t);
    return end;
}

/* Whether all is known of a tail that is paused. What a thread has written meanwhile stays, unseen. */
static int settle(seg_tail *t)
{
    int64_t result;
    if (!t->unsettled)
        return 1;
    if (!seg_job_is_over(t->job, &result))
        return 0;
    if (take_result(t, result))
        hide(t, t->job->len, seg_job_batches(t->job), t->job->n);
    seg_job_done(t->job);
    t->unsettled = 0;
    return 1;
}

int64_t seg_tail_pause(seg_tail *t, int32_t release)
{
    if (!t->here[0] && release)
        t->fd = -1;
    for (int settled = !t->here[0]; !settled;) {
        int64_t error = enter(t);
        if (error)
            return error;
        __atomic_store_n(&t->open, 0, __ATOMIC_RELAXED);
        settled = settle(t);
        if (settled && release)
            t->fd = -1;
        seg_combine(t); /* refuses all that wait: the settings may be others when the tail is open again */
        leave(t);
        if (!settled && (error = seg_job_await_end(t->job)))
            return error;
    }
    return 0;
}

int64_t seg_tail_quit(seg_tail *t)
{
    int32_t free = FREE;
    if (!t->here[0]) {
        t->fd = -1;
        return 1;
    }
    __atomic_store_n(&t->open, 0, __ATOMIC_RELEASE);
    if (!__atomic_compare_exchange_n(&t->lock, &free, TAKEN, 0, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED))
        return 0;
    __atomic_store_n(&t->open, 0, __ATOMIC_RELAXED); /* seg_tail_begin may have had the lock since */
    int settled = settle(t);
    if (settled)
        t->fd = -1;
    seg_combine(t);
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
    int64_t open = t->open;
    if (open && (synced < 0 || synced > t->synced)) { /* a later sync may have told before */
        t->synced = synced;
        publish(t);
    }
    leave(t);
    if (open)
        seg_wake(t->ends, t->ends_len);
    return open;
}
