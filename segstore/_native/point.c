/* Reads single records by offset: finds the batch, reads it, checks its CRC, and finds the record.
 *
 * This is the fast path of storage/log/read.py for whole, plain batches of magic 2. It raises no errors: Python reads
 * other batches again, and finds damage. An index entry, or a remembered batch, is a hint, which the batch must
 * confirm.
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
    MOST_READS = 64,        /* the index lacks many entries: Python is not slower then */
    FIRST_GUESS = 8192,     /* bytes to read if the size of batches is not known */
    SLACK = 256,            /* bytes */
    NOWHERE = -2,
    ROWS = 7                /* of seg_points */
};

/* A search for a batch: a batch begins at `from`, and `want` bytes are to be read there. */
typedef struct search {
    int64_t from, want;
    int64_t previous;       /* last offset of the batch before; -1: not known */
    int64_t confirms;       /* last offset of the batch by the index; -1: any */
    int64_t fallback;       /* the index entry to try if this batch lies after the wanted one; or NOWHERE */
} search;

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* --- the batch ---------------------------------------------------------------- */

/* An entry outside the segment leads to no read. */
static search from_entry(const seg_segment *s, int64_t slot, int64_t want)
{
    if (slot < 0)
        return (search){0, want, -1, -1, NOWHERE};
    int64_t relative = relative_of(s, slot);
    if (relative < 0 || relative > INT64_MAX - s->base_offset)
        return (search){-1, want, -1, -1, NOWHERE};
    return (search){position_of(s, slot), want, -1, s->base_offset + relative, NOWHERE};
}

/* The bytes to read for a batch: somewhat more than those of an earlier batch, because sizes are similar. */
static int64_t guess(const seg_batch *usual)
{
    return usual->size ? usual->size + (usual->size >> 2) + SLACK : FIRST_GUESS;
}

/* The bytes to read if the batch lies after others. */
static int64_t guess_ahead(const seg_batch *usual)
{
    return 2 * guess(usual) > FIRST_GUESS ? 2 * guess(usual) : FIRST_GUESS;
}

/* Start from a batch that ends below `offset`, or holds it: the batch of the index entry, or the batch after a
 * remembered one. *there: the first offset that may be in the wanted batch, less the segment's base offset. */
static search from_before(const seg_segment *s, int64_t slot, int64_t offset, const seg_point *p, int64_t *there)
{
    const seg_batch *last = &p->batch;
    search at = from_entry(s, slot, 0);
    int64_t next = last->position + last->size;
    *there = slot < 0 ? 0 : relative_of(s, slot) + 1;
    if (p->of_batch != s->number || last->last_offset >= offset || next < at.from || next >= s->end)
        return at;
    *there = last->last_offset + 1 - s->base_offset;
    return (search){next, 0, last->last_offset, -1, NOWHERE};
}

/* Start a search by the index. An entry has the last offset of its batch, so the wanted batch lies after the batch of
 * the last entry below `offset`, up to the batch of the next entry. If that batch, with as many offsets as the batch
 * read before, would hold `offset`, it is read alone; else all bytes up to it are read. */
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

/* The results of a walk over headers. */
enum { WRONG, TOO_SHORT, THERE };

/* Walk over the headers in the buffer, which has `got` bytes, to the first batch that ends at `offset` or later. THERE:
 * its header is *b. TOO_SHORT: it lies further on, and at->from has moved. */
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

/* Read the batch that holds `offset` whole into the buffer; NULL if the slow path must be taken. */
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

/* Read a batch as read_batch, if it is plain and its CRC holds; it is remembered then. */
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

/* A position among the records of a batch. */
typedef struct cursor {
    const uint8_t *p, *end;
    int64_t number;
} cursor;

/* The length of the record at *p, which moves to the byte after the length; -1. */
INLINE int64_t length_at(const uint8_t **p, const uint8_t *end)
{
    int64_t len;
    if (LIKELY(end - *p >= QUICK_LOAD) ? !quick_int(p, &len) : careful_varint(p, end, INT_MOST, &len) != 0)
        return -1;
    return len < RECORD_MIN - 1 || len > end - *p ? -1 : len;
}

/* Skip n records by their lengths: 1, or 0. */
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
        /* Records often have one length: a guess at the next record needs no wait for this one's length. */
        int64_t size = c->p - start;
        for (; n > 0 && size <= c->end - c->p && c->p[0] == start[0] && c->p[1] == start[1] && start[1] < 0x80; n--)
            c->p += size;
    }
    return 1;
}

/* Move to the first record whose offset is the batch's base offset and `delta`, or more: 1, or 0 if there is none, or
 * the batch does not match its header. The search only goes forward. */
static int find_record(cursor *c, const seg_batch *b, int64_t delta, fields *f)
{
    int64_t most = b->last_offset - b->base_offset;
    int all = b->count == most + 1; /* if so, a record's number is its delta */
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

/* Copy a record's bytes after its timestamp and offset into the arena, and fill its row: 1; 0 without room. */
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

/* Copy the last row once more: 1. */
static int put_again(seg_points *out)
{
    int64_t *row = out->rows + out->records++;
    for (int i = 0; i < ROWS; i++)
        row[i * out->stride] = row[i * out->stride - 1];
    return 1;
}

/* Copy the records of n rising offsets, all of one batch, while they exist and have room. Returns their number. */
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
