/* Reads single records by offset: finds the batch, reads it, checks its CRC, and finds the record.
 *
 * This is the short way of what storage/log/read.py does, for whole, plain batches of magic 2. It knows no errors: whatever
 * is not as it is nearly always is left to Python, which looks anew and says what is wrong. An index entry, or
 * what is remembered of an earlier read, is a hint, which the batch must confirm.
 *
 * Thread contract: no state; a seg_point belongs to one caller at a time.
 */
#include "batch.h"
#include "contract/batch.h"
#include "contract/file.h"
#include "contract/index.h"
#include "contract/segment.h"
#include "entry.h"
#include "record.h"

enum {
    NOT_PLAIN = CODEC_MASK | 0x20, /* a codec, or a control batch */
    MOST_READS = 64,        /* the index is far behind: Python's way is no slower then */
    FIRST_GUESS = 8192,     /* bytes to read where nothing is known of the size of batches */
    SLACK = 256,            /* bytes */
    NOWHERE = -2,
    ROWS = 7                /* of seg_points */
};

/* A search of a batch: one begins at `from`, where `want` bytes are to be read. */
typedef struct search {
    int64_t from, want;
    int64_t previous;       /* last offset of the batch before; -1: not known */
    int64_t confirms;       /* last offset that the batch has by the index; -1: any */
    int64_t fallback;       /* index entry to begin at if the batch lies behind the wanted one; or NOWHERE */
} search;

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* --- the batch ---------------------------------------------------------------- */

/* From an entry that can't be right there is nothing to read. */
static search from_entry(const seg_segment *s, int64_t slot, int64_t want)
{
    if (slot < 0)
        return (search){0, want, -1, -1, NOWHERE};
    int64_t relative = relative_of(s, slot);
    if (relative < 0 || relative > INT64_MAX - s->base_offset)
        return (search){-1, want, -1, -1, NOWHERE};
    return (search){position_of(s, slot), want, -1, s->base_offset + relative, NOWHERE};
}

/* Bytes for a batch: somewhat more than one that was read before has, since others are not much larger. */
static int64_t guess(const seg_batch *usual)
{
    return usual->size ? usual->size + (usual->size >> 2) + SLACK : FIRST_GUESS;
}

/* The same for a batch that lies behind others. */
static int64_t guess_ahead(const seg_batch *usual)
{
    return 2 * guess(usual) > FIRST_GUESS ? 2 * guess(usual) : FIRST_GUESS;
}

/* From a batch that ends below `offset`, or holds it: that of the index entry, or the one behind a batch that is
 * remembered. *there: the first offset that may be in the wanted batch, less the segment's base offset. */
static search from_before(const seg_segment *s, int64_t slot, int64_t offset, const seg_point *p, int64_t *there)
{
    const seg_batch *last = &p->batch;
    search at = from_entry(s, slot, 0);
    int64_t behind = last->position + last->size;
    *there = slot < 0 ? 0 : relative_of(s, slot) + 1;
    if (p->of_batch != s->number || last->last_offset >= offset || behind < at.from || behind >= s->end)
        return at;
    *there = last->last_offset + 1 - s->base_offset;
    return (search){behind, 0, last->last_offset, -1, NOWHERE};
}

/* An entry has the last offset of its batch: the wanted batch lies behind that of the last entry below
 * `offset`, up to that of the next entry, which is read alone where `offset` seems to lie in it: it may have as
 * many offsets as the batch that was read before. Where that is doubtful, all up to it is read. */
static search by_index(const seg_segment *s, int64_t offset, const seg_point *p)
{
    int64_t slot = seg_offset_slot(s->index, s->entries, offset - s->base_offset), there;
    int64_t next = position_of(s, slot + 1), usual = p->batch.size;
    search low = from_before(s, slot, offset, p, &there);
    low.want = next - low.from;
    if (low.confirms == offset || slot + 1 >= s->entries || next >= s->end || next <= low.from) {
        int64_t most = low.confirms == offset ? guess(&p->batch) : guess_ahead(&p->batch);
        low.want = low.want > 0 ? least(low.want, most) : most;
        return low;
    }
    int64_t span = p->batch.last_offset - p->batch.base_offset + 1, doubt = span >> 3;
    int64_t first = relative_of(s, slot + 1) - span + 1, relative = offset - s->base_offset;
    search high = from_entry(s, slot + 1, least(position_of(s, slot + 2) - next, guess(&p->batch)));
    high.fallback = slot;
    if (usual ? first - there <= doubt || relative >= first + doubt : low.want > FIRST_GUESS)
        return high;
    low.want += usual && relative >= first - doubt ? high.want : 0;
    return low;
}

static search begin(const seg_segment *s, int64_t offset, const seg_point *p)
{
    const seg_batch *last = &p->batch;
    int within = offset >= last->base_offset && offset <= last->last_offset;
    if (p->of_batch == s->number && within && last->position + last->size <= s->end)
        return (search){last->position, last->size, -1, last->last_offset, NOWHERE};
    return by_index(s, offset, p);
}

/* What a walk over headers has come to. */
enum { WRONG, TOO_SHORT, THERE };

/* Go over the headers in the buffer, which has `got` bytes, to the first batch that ends at `offset` or later.
 * THERE: its header is *b. TOO_SHORT: it lies further on, at->from has moved. */
static int walk(const seg_segment *s, int64_t offset, const uint8_t *buffer, int64_t got, search *at, seg_batch *b)
{
    int64_t start = at->from;
    for (; got - (at->from - start) >= HEADER; at->from += b->size) {
        const uint8_t *h = buffer + (at->from - start);
        if (h[AT_MAGIC] != MAGIC || verdict(h, got - (at->from - start), at->previous) != NEXT)
            return WRONG;
        parse(h, at->from, UNKNOWN, b);
        if (b->size > s->end - b->position || (at->confirms >= 0 && b->last_offset != at->confirms))
            return WRONG;
        if (b->last_offset >= offset)
            return THERE;
        at->previous = b->last_offset;
        at->confirms = -1;
    }
    return TOO_SHORT;
}

/* The batch that holds `offset`, whole in the buffer; NULL where the long way must be taken. */
static const uint8_t *read_batch(int fd, const seg_segment *s, int64_t offset, seg_point *p, seg_batch *b)
{
    int64_t slot = NOWHERE;
    search at = begin(s, offset, p);
    for (int reads = 0; reads < MOST_READS; reads++) {
        if (at.from < 0 || at.from > s->end - HEADER)
            return NULL;
        int64_t start = at.from, want = least(at.want < HEADER ? HEADER : at.want, least(s->end - start, p->room));
        p->reads++;
        if (seg_pread(fd, p->buffer, want, start) != want)
            return NULL;
        int found = walk(s, offset, p->buffer, want, &at, b);
        if (found == WRONG)
            return NULL;
        at.want = guess_ahead(&p->batch);
        if (found == TOO_SHORT)
            continue;
        if (b->base_offset > offset) {
            slot = at.fallback;
            if (slot == NOWHERE)
                return NULL;
            at = from_entry(s, slot, b->position - from_entry(s, slot, 0).from);
        } else if (b->last_offset >= s->end_offset || b->size > p->room) {
            return NULL;
        } else if (b->size <= want - (at.from - start)) {
            return p->buffer + (at.from - start);
        } else {
            at.want = b->size;
        }
    }
    return NULL;
}

/* As read_batch, where the batch is plain and its CRC holds; it is remembered then. */
static const uint8_t *sound_batch(int fd, const seg_segment *s, int64_t offset, seg_point *p, seg_batch *b)
{
    const uint8_t *batch = read_batch(fd, s, offset, p, b);
    if (!batch || b->attributes & NOT_PLAIN || !crc_holds(batch, b->size))
        return NULL;
    p->batch = *b;
    p->of_batch = s->number;
    p->batch_at = batch - p->buffer;
    return batch;
}

/* --- the record --------------------------------------------------------------- */

/* A record's place among those of a batch. */
typedef struct cursor {
    const uint8_t *p, *end;
    int64_t number;
} cursor;

/* The length of the record at *p, which moves behind the length; -1. */
INLINE int64_t length_at(const uint8_t **p, const uint8_t *end)
{
    int64_t len;
    if (LIKELY(end - *p >= QUICK_LOAD) ? !quick_int(p, &len) : careful_varint(p, end, INT_MOST, &len) != 0)
        return -1;
    return len < RECORD_MIN - 1 || len > end - *p ? -1 : len;
}

/* Go over n records by their lengths: 1, or 0. */
static int skip(cursor *c, int64_t n)
{
    c->number += n;
    while (n > 0) {
        const uint8_t *start = c->p;
        int64_t len = length_at(&c->p, c->end);
        if (len < 0)
            return 0;
        c->p += len;
        n--;
        /* Records are often of one length: a guess at the next one needs no wait for the one before. */
        int64_t size = c->p - start;
        for (; n > 0 && size <= c->end - c->p && c->p[0] == start[0] && c->p[1] == start[1] && start[1] < 0x80; n--)
            c->p += size;
    }
    return 1;
}

/* Move to the first record whose offset is that of the batch and `delta`, or more: 1, or 0 where there is none,
 * or the batch is not what its header says. The cursor is at no later record before. */
static int find_record(cursor *c, const seg_batch *b, int64_t delta, fields *f)
{
    int64_t most = b->last_offset - b->base_offset;
    int all = b->count == most + 1; /* then a record's number is its delta */
    if (all && !skip(c, delta - c->number))
        return 0;
    for (int64_t previous = c->number - 1; c->number < b->count; c->number++) {
        if (read_record(c->p, c->end, f) || f->offset_delta <= previous || f->offset_delta > most)
            return 0;
        if (f->offset_delta >= delta)
            return !all || f->offset_delta == delta;
        previous = f->offset_delta;
        c->p = f->next;
    }
    return 0;
}

static cursor records_of(const uint8_t *batch, const seg_batch *b)
{
    return (cursor){batch + HEADER, batch + b->size, 0};
}

static int64_t timestamp_of(const seg_batch *b, const fields *f)
{
    return b->attributes & APPEND_TIME ? b->max_timestamp
                                       : (int64_t)((uint64_t)b->base_timestamp + (uint64_t)f->timestamp_delta);
}

static int64_t end_of(int64_t at, int64_t len)
{
    return len < 0 ? -1 : at + len;
}

int64_t seg_read_one(int fd, const seg_segment *s, int64_t offset, seg_point *p)
{
    seg_batch b;
    fields f;
    const uint8_t *batch = sound_batch(fd, s, offset, p, &b);
    if (!batch)
        return 0;
    cursor c = records_of(batch, &b);
    if (!find_record(&c, &b, offset - b.base_offset, &f))
        return 0;
    p->offset = b.base_offset + f.offset_delta;
    p->timestamp = timestamp_of(&b, &f);
    p->key_at = f.key - p->buffer;
    p->key_end = end_of(p->key_at, f.key_len);
    p->value_at = f.value - p->buffer;
    p->value_end = end_of(p->value_at, f.value_len);
    p->headers_at = f.headers - p->buffer;
    p->headers_end = f.header_count ? f.next - p->buffer : -1;
    return 1;
}

/* Put what follows a record's timestamp and offset into the arena, and its row: 1; 0 where there is no room. */
static int put(const seg_batch *b, const fields *f, seg_points *out)
{
    int64_t size = f->next - f->key, stride = out->stride, *row = out->rows + out->records;
    if (size > out->room - out->used)
        return 0;
    memcpy(out->arena + out->used, f->key, (size_t)size);
    row[0] = b->base_offset + f->offset_delta;
    row[stride] = timestamp_of(b, f);
    row[2 * stride] = out->used;
    row[3 * stride] = f->key_len;
    row[4 * stride] = out->used + (f->value - f->key);
    row[5 * stride] = f->value_len;
    row[6 * stride] = out->used + (f->headers - f->key);
    out->used += size;
    out->records++;
    out->with_headers += f->header_count > 0;
    return 1;
}

/* A row as the one before: 1. */
static int put_again(seg_points *out)
{
    int64_t *row = out->rows + out->records++;
    for (int i = 0; i < ROWS; i++)
        row[i * out->stride] = row[i * out->stride - 1];
    return 1;
}

/* The records of n rising offsets, all from one batch, as far as they are there and have room: how many. */
static int64_t put_records(const uint8_t *batch, const seg_batch *b, const int64_t *offsets, int64_t n,
                           seg_points *out)
{
    cursor c = records_of(batch, b);
    fields f;
    int64_t done = 0, number = -1;
    for (; done < n && offsets[done] <= b->last_offset; done++) {
        if (!find_record(&c, b, offsets[done] - b->base_offset, &f))
            break;
        if (!(c.number == number ? put_again(out) : put(b, &f, out)))
            break;
        number = c.number;
    }
    if (done)
        out->batches[out->n_batches++] = *b;
    return done;
}

int64_t seg_read_many(int fd, const seg_segment *s, const int64_t *offsets, int64_t n, seg_point *p, seg_points *out)
{
    seg_batch b = {.last_offset = -1};
    int64_t done = 0;
    while (done < n && offsets[done] > b.last_offset) {
        const uint8_t *batch = sound_batch(fd, s, offsets[done], p, &b);
        if (!batch)
            break;
        done += put_records(batch, &b, offsets + done, n - done, out);
    }
    return done;
}
