/* Reads many records from an offset on: finds their batches, reads them, checks their CRCs and decodes them, in one
 * call.
 *
 * This is the fast path of storage/log/read.py and records/decode.py, for plain batches of magic 2, if the segment has
 * as many bytes as may be read. It raises no errors: Python reads other batches again, and finds damage. An index
 * entry, or the remembered end of an earlier read, is a hint, which the batch must confirm.
 *
 * Thread contract: no state; a seg_range belongs to one caller at a time.
 */
#include "batch.h"
#include "contract/batch.h"
#include "contract/file.h"
#include "contract/records.h"
#include "contract/segment.h"

enum {
    WINDOW = 1 << 19        /* bytes read, checked and decoded at a time: they stay in a core's cache */
};

/* The results of take(): all whole batches are taken; all wanted batches are taken; the slow path must be taken. */
enum { MORE, DONE, SLOW };

/* A read under way: its arguments and its progress. */
typedef struct reading {
    uint8_t *bytes;
    int64_t size, taken;    /* taken: bytes of the batches taken */
    const seg_segment *segment;
    int64_t offset, limit, last; /* last: the last offset taken */
    int64_t *rows, stride;
    int check_crcs;
    seg_range *r;
} reading;

/* The position of the batch that holds `offset`, by the end of the last read, or by the index; -1: not known. */
static int64_t find(int fd, const seg_segment *s, int64_t offset, int remembered, const seg_range *r)
{
    if (remembered && r->of_segment == s->number && r->next_offset == offset)
        return r->next_position;
    seg_found first;
    int found = seg_find_stretch(fd, s, -1, offset, 0, &first);
    return found ? first.position : -1;
}

/* Decode the columns of a batch, if there is room for them: 1, or 0 if its records are damaged. All records are
 * counted. */
static int decode(reading *d, const seg_batch *b)
{
    int64_t at = d->taken + HEADER, len = b->size - HEADER, stride = d->stride, *row = d->rows + d->r->records;
    seg_decoded out = {0};
    d->r->records += b->count;
    if (d->r->records > stride)
        return 1;
    int64_t done = seg_decode(d->bytes, d->size, b, &at, &len, 1, b->count, row, row + stride, row + 2 * stride,
                              row + 3 * stride, row + 4 * stride, row + 5 * stride, row + 6 * stride, &out);
    d->r->with_headers += out.with_headers;
    return done == b->count;
}

/* Leave the segment to the slow path from now on. */
static int leave(const reading *d)
{
    d->r->left = d->segment->number;
    return SLOW;
}

/* Take the whole batches among the first `have` bytes. */
static int take(reading *d, int64_t have)
{
    for (seg_range *r = d->r;;) {
        const uint8_t *h = d->bytes + d->taken;
        int64_t there = have - d->taken;
        if (d->last >= d->limit - 1)
            return DONE;
        if (there < HEADER)
            return MORE;
        if (r->n_batches == r->room)
            return leave(d);
        if (h[AT_MAGIC] != MAGIC || verdict(h, there, d->last) != NEXT)
            return SLOW;
        seg_batch *b = &r->batches[r->n_batches];
        parse(h, r->position + d->taken, UNKNOWN, b);
        if (b->base_offset >= d->limit)
            return d->taken ? DONE : SLOW;
        if (b->size > d->size - d->taken)
            return d->taken ? DONE : SLOW;
        if (b->size > there)
            return MORE;
        if (d->taken == 0 && (b->base_offset > d->offset || b->last_offset < d->offset))
            return SLOW;
        if (b->attributes & CODEC_MASK)
            return leave(d);
        if (b->last_offset >= d->segment->end_offset || (d->check_crcs && !crc_holds(h, b->size)) || !decode(d, b))
            return SLOW;
        r->attributes |= b->attributes;
        r->n_batches++;
        d->last = b->last_offset;
        d->taken += b->size;
    }
}

int64_t seg_read_range(int fd, const seg_segment *s, int64_t offset, int64_t limit, int32_t check_crcs,
                       uint8_t *bytes, int64_t size, int64_t *rows, int64_t stride, seg_range *r)
{
    reading d = {bytes, size, 0, s, offset, limit, -1, rows, stride, check_crcs, r};
    int64_t position = find(fd, s, offset, check_crcs, r);
    int state = MORE;
    r->of_segment = 0;
    if (position < 0 || size > s->end - position)
        return 0;
    r->position = position;
    r->n_batches = r->records = r->with_headers = r->attributes = 0;
    for (int64_t have = 0; have < size;) {
        int64_t want = size - have < WINDOW ? size - have : WINDOW;
        r->reads++;
        if (seg_pread(fd, bytes + have, want, position + have) != want)
            return 0;
        have += want;
        if (state == MORE)
            state = take(&d, have);
        if (state == SLOW)
            return 0;
    }
    if (d.taken == 0)
        return 0;
    r->of_segment = s->number;
    r->next_offset = d.last + 1;
    r->next_position = position + d.taken;
    return 1;
}
