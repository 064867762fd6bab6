/* The active segment of a log: its room, and the only place that writes batches to its file and indexes them. Only a
 * follower's directory thread writes by itself (hand_over.c); its batches are indexed here afterwards.
 *
 * Invariant: the bytes come before the index, and the index before the end. A failed write changes neither.
 *
 * Thread contract: one thread at a time, the holder of the log's append token, or of its tail's lock while the tail is
 * open. Other threads may read the end, and the entries below its counts, at the same time.
 */
#include "active.h"

#include "bytes.h"
#include "contract/answers.h"
#include "contract/file.h"
#include "entry.h"
#include "step.h"

enum { PARTS = 1024 };      /* the most parts of one call of `write`; as many as of one system call */

/* Whether a batch of this time needs no roll before it, if the segment's first batch has time `rolled_ms`. */
static int is_close(const seg_active *a, int64_t rolled_ms, int64_t timestamp)
{
    return rolled_ms >= 0 && timestamp >= 0 && timestamp - rolled_ms <= a->young_ms;
}

int seg_active_is_young(const seg_active *a, int64_t timestamp)
{
    return is_close(a, a->end->rolled_ms, timestamp);
}

/* Positions and relative offsets are int32. */
int seg_active_has_room(const seg_active *a, int64_t size, int64_t offsets, int64_t n)
{
    const seg_end *e = a->end;
    int64_t relative = e->next_offset - e->base_offset;
    return size <= a->most_position - e->position && e->position + size <= (int64_t)INT32_MAX + 1 &&
        relative + offsets - 1 <= INT32_MAX && e->next_offset <= INT64_MAX - offsets &&
        n <= e->offset_room - e->offset_entries && n <= e->time_room - e->time_entries;
}

int64_t seg_active_note(seg_active *a, const seg_batch *batches, int64_t n)
{
    seg_end *e = a->end;
    int64_t timed = 0;
    SEG_STEP(WRITTEN);
    int64_t made = seg_index_entries(batches, n, e->base_offset, a->interval, &e->state,
                                     a->offset_index + OFFSET_ENTRY * e->offset_entries,
                                     a->time_index + TIME_ENTRY * e->time_entries, &timed);
    if (made > 0) {
        __atomic_store_n(&e->offset_entries, e->offset_entries + made, __ATOMIC_RELEASE);
        __atomic_store_n(&e->time_entries, e->time_entries + timed, __ATOMIC_RELEASE);
    }
    SEG_STEP(INDEXED);
    return made < 0 ? made : 0;
}

static int64_t write_at(int32_t fd, seg_writer write, const uint8_t *const *bufs, const int64_t *lens, int64_t n,
                        int64_t position)
{
    SEG_STEP(BEFORE_WRITE);
    if (write)
        return write(fd, bufs, lens, n, position);
    SEG_TEAR(fd, bufs, lens, n, position);
    return n == 1 ? seg_pwrite(fd, *bufs, *lens, position) : seg_pwritev(fd, bufs, lens, n, position);
}

int64_t seg_active_write(const seg_active *a, int32_t fd, seg_writer write, const uint8_t *const *bufs,
                         const int64_t *lens, int64_t n)
{
    return write_at(fd, write, bufs, lens, n, a->end->position);
}

void seg_active_move(seg_active *a, int64_t position, int64_t next_offset)
{
    __atomic_store_n(&a->end->position, position, __ATOMIC_RELEASE);
    __atomic_store_n(&a->end->next_offset, next_offset, __ATOMIC_RELEASE);
}

/* --- parts ------------------------------------------------------------------ */

static int64_t time_of(const seg_part *p)
{
    return p->append_time < 0 ? p->batches[0].max_timestamp : p->append_time;
}

/* The offsets of the log after a part, if it has `offsets` before the part. */
static int64_t offsets_behind(const seg_active *a, const seg_part *p, int64_t offsets, int32_t as_is)
{
    if (as_is)
        return p->batches[p->n - 1].last_offset + 1 - a->end->next_offset;
    for (int64_t i = 0; i < p->n; i++)
        offsets += p->batches[i].last_offset - p->batches[i].base_offset + 1;
    return offsets;
}

/* The number of leading parts, up to PARTS, that fit without a check in Python. */
static int64_t fitting(const seg_active *a, const seg_part *parts, int64_t n, int64_t judged, int32_t as_is)
{
    int64_t size = 0, offsets = 0, batches = 0, i = 0;
    int64_t rolled_ms = judged && a->end->rolled_ms < 0 ? time_of(parts) : a->end->rolled_ms;
    for (; i < n && i < PARTS; i++) {
        size += parts[i].len;
        batches += parts[i].n;
        offsets = offsets_behind(a, &parts[i], offsets, as_is);
        if (i >= judged &&
            !(is_close(a, rolled_ms, time_of(&parts[i])) && seg_active_has_room(a, size, offsets, batches)))
            break;
    }
    return i;
}

/* Move the positions of batches that keep their offsets by `by` bytes. */
static void shift(const seg_part *p, int64_t by)
{
    for (int64_t i = 0; i < p->n; i++)
        p->batches[i].position += by;
}

/* Set the positions and offsets of batches: 0, or SEG_E_COLUMN. */
static int64_t arrange(const seg_end *e, const seg_part *parts, int64_t n, int32_t leader_epoch)
{
    int64_t next = e->next_offset, position = e->position;
    for (const seg_part *p = parts; p < parts + n && next >= 0; p++) {
        next = seg_assign(p->data, p->len, p->batches, p->n, next, leader_epoch, p->append_time, position);
        position += p->len;
    }
    return next < 0 ? next : 0;
}

static int64_t write_parts(const seg_active *a, int32_t fd, seg_writer write, const seg_part *parts, int64_t n)
{
    const uint8_t *bufs[PARTS];
    int64_t lens[PARTS];
    for (int64_t i = 0; i < n; i++) {
        bufs[i] = parts[i].data;
        lens[i] = parts[i].len;
    }
    return seg_active_write(a, fd, write, bufs, lens, n);
}

/* Index a part that was written after the end, and move the end. */
static int64_t take_in(seg_active *a, const seg_part *p, int32_t as_is)
{
    seg_end *e = a->end;
    int64_t by = as_is ? e->position - p->batches[0].position : 0;
    shift(p, by);
    int64_t error = seg_active_note(a, p->batches, p->n);
    shift(p, -by); /* positions within the part's own bytes, for its readers */
    if (error)
        return error;
    if (e->rolled_ms < 0)
        e->rolled_ms = p->batches[0].max_timestamp;
    seg_active_move(a, e->position + p->len, p->batches[p->n - 1].last_offset + 1);
    return 0;
}

int64_t seg_active_append(seg_active *a, int32_t fd, seg_writer write, const seg_part *parts, int64_t n, int64_t judged,
                          int32_t leader_epoch, int32_t as_is)
{
    int64_t some = fitting(a, parts, n, judged, as_is), error = 0;
    if (some && !as_is)
        error = arrange(a->end, parts, some, leader_epoch);
    if (error || !some)
        return error;
    int64_t done = write_parts(a, fd, write, parts, some);
    for (int64_t i = 0; i < some && done >= 0; i++) {
        error = take_in(a, &parts[i], as_is);
        done = error ? error : done;
    }
    return done < 0 ? done : some;
}

int64_t seg_active_index(seg_active *a, const seg_batch *batches, int64_t n, int64_t *needed)
{
    seg_end *e = a->end;
    seg_index_state ahead = e->state;
    needed[0] = seg_index_entries(batches, n, e->base_offset, a->interval, &ahead, NULL, NULL, &needed[1]);
    if (needed[0] < 0)
        return needed[0];
    if (needed[0] > e->offset_room - e->offset_entries || needed[1] > e->time_room - e->time_entries)
        return SEG_E_ROOM;
    seg_active_note(a, batches, n);
    if (e->rolled_ms < 0)
        e->rolled_ms = batches[0].max_timestamp;
    seg_active_move(a, batches[n - 1].position + batches[n - 1].size, batches[n - 1].last_offset + 1);
    return 0;
}
