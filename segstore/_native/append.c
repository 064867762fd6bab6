/* Appends to a log, each by one call of C while the log's tail is open (docs/engine.md).
 *
 * The entry points:
 * - seg_tail_append: one record, as a batch of its own.
 * - seg_tail_write: encoded batches. seg_tail_encode encodes columns of records first, seg_tail_take checks a client's
 *   batch first.
 * - seg_tail_follow: batches as another machine's leader wrote them. Appends that wait for the tail's lock go through
 *   combine.c, which writes them together (seg_tail_admit and seg_tail_take_in) or one by one (seg_tail_make).
 *
 * An append is judged, gets its offsets, is written by one call (seg_tail_put_out), indexed, handed on to followers'
 * tails (hand_on.c), and shown (tail.c). A refused append gives SEG_SLOW and has changed nothing: Python makes it then.
 *
 * Thread contract: any thread, in the process that made the tail; a child that was forked gets SEG_SLOW. The tail's
 * lock is held from the judgement until the append is shown. No sync is made under the lock.
 */
#define _GNU_SOURCE
#include <string.h>

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
#include "contract/share_sync.h"
#include "share.h"
#include "step.h"
#include "tail.h"
#include "tail_lock.h"

enum { NUMBERS = 36 };

/* --- checks before an append --------------------------------------------------------- */

int seg_tail_fits(const seg_tail *t, int64_t timestamp, int64_t size, int64_t offsets, int64_t n)
{
    if (timestamp < 0 && t->share) /* Python then uses the clock; a guest has no host's Python for that */
        timestamp = clock_ms();
    return seg_active_is_young(t->active, timestamp) && seg_active_has_room(t->active, size, offsets, n);
}

/* Whether flush.messages asks for a flush of a log with this end. */
static int is_due(const seg_tail *t, int64_t end)
{
    if (t->share)
        return (int)seg_share_is_due(t->share, end, t->flush_messages);
    return t->flush_messages && end - __atomic_load_n(&t->commit->synced, __ATOMIC_RELAXED) >= t->flush_messages;
}

/* Whether an append of so many offsets needs a flush by Python. That flush may wait for other threads, so `check_apart`
 * must be able to refuse it in a signal handler before anything is written. */
static int is_left(const seg_tail *t, int64_t offsets)
{
    return is_due(t, t->active->end->next_offset + offsets) && !seg_tail_syncs(t);
}

/* Whether a transaction may begin here: readers see the whole log, and there are no followers. */
static int opens(const seg_tail *t)
{
    return t->high_watermark < 0 && !t->n_followers;
}

/* The bytes of n batches, and their offsets; -1 if a segment can't have so many. */
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

/* Whether the topic allows a record that C has encoded without the lock. */
static int is_taken(const seg_tail *t, const seg_waiting *w)
{
    return w->len <= t->largest_batch && is_near(t, w->timestamp, w->clock == SEG_NOW ? clock_ms() : w->clock);
}

int seg_tail_admit(const seg_tail *t, seg_waiting *w, seg_ahead *ahead)
{
    const seg_end *e = t->active->end;
    int64_t offsets = 0, next = e->next_offset + ahead->offsets, stamp = -1;
    w->clock = w->now;
    if (t->stamps) /* under the lock, so that it rises with the offsets */
        stamp = w->clock = w->now == SEG_NOW ? clock_ms() : w->now;
    if (w->n <= 0 || (w->expected >= 0 && w->expected != next) || (t->stamps && stamp < 0) ||
        (t->hands_over && (w->len > SEG_HANDED_ROOM || w->n > SEG_HANDED)) || t->follows ||
        (w->alone && t->high_watermark >= 0) || measure(w->batches, w->n, &offsets) != w->len || (w->timestamp >= 0 && !is_taken(t, w)) ||
        !seg_tail_fits(t, t->stamps ? stamp : w->batches[0].max_timestamp, ahead->bytes + w->len, ahead->offsets + offsets,
              ahead->batches + w->n) ||
        is_left(t, ahead->offsets + offsets) || !are_claimed(t->producers, w->batches, w->n, w->opens && opens(t)))
        return 0;
    if (seg_assign(w->buf, w->len, w->batches, w->n, next, t->leader_epoch, stamp, e->position + ahead->bytes) < 0)
        return 0;
    *ahead = (seg_ahead){ahead->bytes + w->len, ahead->offsets + offsets, ahead->batches + w->n};
    return 1;
}

/* --- the write --------------------------------------------------------------------- */

/* Apply written batches to their producers, all of which are in the table. */
static void take_in_producers(seg_tail *t, const seg_batch *batches, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        if (batches[i].producer_id >= 0) {
            seg_producers_take(t->producers, batches, n, i, t->now == SEG_NOW ? clock_ms() : t->now);
            return;
        }
}

void seg_tail_note(seg_tail *t, const seg_batch *batches, int64_t n)
{
    take_in_producers(t, batches, n);
    t->appends++;
}

/* Index written batches, unless the write failed (`error`). The end stays: 0, or -errno. */
static int64_t index_batches(seg_tail *t, int64_t error, const seg_batch *batches, int64_t n)
{
    error = error ? error : seg_active_note(t->active, batches, n);
    if (error)
        seg_tail_tear(t, error);
    else
        seg_tail_note(t, batches, n);
    return error;
}

int64_t seg_tail_put_out(seg_tail *t, const uint8_t *buf, int64_t len, const seg_batch *batches, int64_t n)
{
#ifdef SEGSTORE_STORM
    if (SEG_HAS_BUG(END_FIRST) && t->share && t->share->is_held) {
        seg_end before = *t->active->end;
        seg_tail_move_end(t, len, batches, n);
        seg_share_publish(t, t->stable_offset);
        *t->active->end = before;
    }
#endif
    int64_t done = seg_active_write(t->active, t->fd, t->write, &buf, &len, 1);
    return index_batches(t, done < 0 ? done : 0, batches, n);
}

/* Write batches that have their offsets, at their positions in the log; index them, and move the end after them. */
static int64_t write_out(seg_tail *t, const uint8_t *buf, int64_t len, seg_batch *batches, int64_t n, int64_t now)
{
    t->now = now;
    int64_t error = seg_tail_put_out(t, buf, len, batches, n);
    if (error)
        return error;
    if (!t->n_followers) {
        if (!seg_tail_show_batches(t, len, batches, n))
            return SEG_SLOW;
    } else if (!seg_tail_hand_on(t, buf, len, batches, n))
        return SEG_UNREPLICATED - batches[0].base_offset;
    return batches[0].base_offset;
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
    seg_tail_move_end(t, w->len, w->batches, w->n);
    return w->batches[0].base_offset;
}

/* --- the end of an append ---------------------------------------------------------- */

/* Apply flush.messages to an append with the end `after`. If the tail was paused since, or the sync failed, Python sees
 * by the recovery point that it must flush. */
static int64_t flush(seg_tail *t, int64_t offset, int64_t after)
{
    if (offset >= 0 && is_due(t, after))
        seg_tail_flush(t, after);
    return offset;
}

/* Make the waiting appends, release the tail after an append, wake readers that wait, and apply flush.messages. */
static int64_t end(seg_tail *t, int64_t offset)
{
    int64_t after = t->active->end->next_offset;
    int64_t shown = seg_combine(t);
    seg_share_exit(t);
    leave(t);
    if (offset >= 0 || shown > 0)
        seg_tail_wake(t);
    return flush(t, shown < 0 ? shown : offset, after);
}

/* Whether this thread, which has the tail's lock, may append: 0; else SEG_BUSY, with `brief`, or SEG_SLOW. */
static int64_t begin(seg_tail *t, int32_t brief)
{
    if (!takes_appends(t))
        return SEG_SLOW;
    return t->share ? seg_share_enter(t, brief) : 0;
}

/* Make an append, or have the lock's holder make it. */
static int64_t make(seg_tail *t, seg_waiting *w)
{
    int found = t->owner[0] ? seg_combine_enter(t, w) : SEG_WITHDRAWN;
    if (found == SEG_HOLDS && begin(t, 0) == 0)
        return end(t, seg_tail_make(t, w));
    if (found == SEG_HOLDS) {
        seg_combine(t);
        leave(t);
    }
    if (found != SEG_ANSWERED)
        return SEG_SLOW;
    return w->answer < 0 ? w->answer : flush(t, w->answer, w->batches[w->n - 1].last_offset + 1);
}

/* --- a record ---------------------------------------------------------------------- */

static int64_t payload(int64_t len)
{
    return varint_size(len) + (len > 0 ? len : 0);
}

/* Write the batch at out, whose size is b->size. */
static void put_batch(const seg_record *r, int64_t body, uint8_t *out, seg_batch *b)
{
    seg_put_header(out, b);
    uint8_t *w = put_varint(out + HEADER, body);
    *w++ = 0; /* attributes, and deltas of 0 in time and offset */
    *w++ = 0;
    *w++ = 0;
    w = put_nullable(w, r->key, r->key_len);
    w = put_nullable(w, r->value, r->value_len);
    memcpy(w, r->headers, (size_t)r->headers_len);
    seg_put_crc(out, b);
}

/* Fill the header of a record's batch, without offsets and position; returns the bytes of the record in it. */
static int64_t describe(const seg_record *r, int64_t timestamp, seg_batch *b)
{
    int64_t body = 3 + payload(r->key_len) + payload(r->value_len) + r->headers_len;
    b->base_offset = b->last_offset = 0;
    b->base_timestamp = b->max_timestamp = timestamp;
    b->size = (int32_t)(HEADER + varint_size(body) + body);
    b->count = 1;
    return body;
}

/* Append one record, by the producer of *b, if it gets the expected offset. */
static int64_t append(seg_tail *t, const seg_record *r, int64_t expected, int64_t timestamp, int64_t now,
                      seg_batch *b)
{
    int64_t body = describe(r, timestamp, b);
    b->position = t->active->end->position;
    b->base_offset = b->last_offset = t->active->end->next_offset;
    b->max_timestamp = t->stamps ? now : timestamp;
    b->leader_epoch = t->leader_epoch;
    uint8_t out[SEG_ONE_ROOM];
    if (t->follows || (expected >= 0 && expected != t->active->end->next_offset) || b->size > t->largest_batch ||
        !is_near(t, timestamp, now) || !seg_tail_fits(t, b->max_timestamp, b->size, 1, 1) || is_left(t, 1) ||
        !are_claimed(t->producers, b, 1, opens(t)))
        return SEG_SLOW;
    b->attributes |= t->stamps ? APPEND_TIME : 0;
    put_batch(r, body, out, b);
    return write_out(t, out, b->size, b, 1, now);
}

/* Whether the batch of a record has room in SEG_ONE_ROOM bytes. */
static int is_short(const seg_record *r)
{
    int64_t room = SEG_ONE_ROOM - HEADER - NUMBERS;
    return r->value_len <= room && r->key_len <= room - r->value_len &&
        r->headers_len <= room - r->value_len - r->key_len;
}

/* Append a record while another thread has the lock; it is encoded during the wait. */
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
        (r->key_len < 0 && t->needs_key) || !t->plain || !t->owner[0])
        return SEG_SLOW;
    int holds = try_enter(t); /* before the clock is read: LogAppendTime rises with the offsets */
    int64_t code = holds ? begin(t, r->brief) : r->brief ? SEG_BUSY : 0;
    if (!holds && code)
        return code;
    int64_t clock = now == SEG_NOW ? clock_ms() : now, timestamp = r->timestamp == SEG_NOW ? clock : r->timestamp;
    if (!holds)
        return append_after(t, r, expected, timestamp, now, b);
    return end(t, code ? code : append(t, r, expected, timestamp, clock, b));
}

/* --- encoded batches --------------------------------------------------------------- */

int64_t seg_tail_write(seg_tail *t, uint8_t *buf, int64_t len, seg_batch *batches, int64_t n, int64_t expected,
                       int64_t now, int32_t opens)
{
    seg_waiting w = {.buf = buf, .len = len, .batches = batches, .n = n, .expected = expected, .now = now,
                     .timestamp = -1, .opens = opens};
    return make(t, &w);
}

/* Append as seg_tail_write, but only if no standby must have the batches before readers see them. */
static int64_t write_alone(seg_tail *t, uint8_t *buf, int64_t len, seg_batch *batches, int64_t n, int64_t now,
                           int32_t opens)
{
    seg_waiting w = {.buf = buf, .len = len, .batches = batches, .n = n, .expected = -1, .now = now, .timestamp = -1,
                     .opens = opens, .alone = 1};
    return make(t, &w);
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
        int64_t offset = write_alone(t, out, r, batches + *done, made, now, 1);
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
    /* Checked without the lock: for a paused tail the batch is not worth checking. The settings may have changed since
     * the rules were read. */
    if (!t->owner[0] || !__atomic_load_n(&t->open, __ATOMIC_RELAXED) || t->stamps == rules->create_time)
        return SEG_SLOW;
    int64_t clock = now == SEG_NOW ? clock_ms() : now;
    if (seg_check_batch(batch, len, rules, clock, h, &found) != SEG_CHECKED ||
        (found.max_timestamp != h->max_timestamp && !t->stamps)) {
        h->size = 0;
        return SEG_SLOW;
    }
    return write_alone(t, batch, len, h, 1, now, 0);
}

/* --- batches of another machine's leader ------------------------------------------- */

/* Whether these batches begin at the log's end, and have no control batch among them: batches of a leader are not
 * parsed. */
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
        !seg_tail_fits(t, batches[0].max_timestamp, len, batches[n - 1].last_offset + 1 - e->next_offset, n))
        return SEG_SLOW;
    for (int64_t i = 0; i < n; i++)
        batches[i].position += e->position;
    t->now = now;
    int64_t error = seg_tail_put_out(t, buf, len, batches, n), next = batches[n - 1].last_offset + 1;
    if (error)
        return error;
    if (high_watermark > t->high_watermark)
        t->high_watermark = high_watermark < next ? high_watermark : next;
    seg_tail_show_batches(t, len, batches, n);
    return next;
}

int64_t seg_tail_follow(seg_tail *t, const uint8_t *buf, int64_t len, int64_t high_watermark, seg_batch *batches,
                        int64_t most, int64_t now)
{
    seg_scan_end stop;
    /* Checked without the lock, as in seg_tail_take. */
    if (!t->owner[0] || !__atomic_load_n(&t->open, __ATOMIC_RELAXED))
        return SEG_SLOW;
    int64_t n = seg_scan(buf, len, 0, -1, 0, INT64_MAX, INT64_MAX, 1, batches, most, &stop);
    if (stop.status != SEG_END || !enter_if_open(t))
        return SEG_SLOW;
    return end(t, follow(t, buf, len, high_watermark, batches, n, now));
}
