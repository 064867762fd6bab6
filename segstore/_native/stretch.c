/* The log cleaner's walk over plain batches: a long stretch of a file at a call, through a window.
 *
 * The end of each call takes the interpreter's lock from appending threads, so there should be few calls. A batch is
 * plain if it is whole, its CRC holds, it has magic 2, no codec, no transaction, and is no marker. The first other
 * batch is left to the caller, with all batches after it.
 *
 * Thread contract: no state; a stretch belongs to one caller at a time.
 */
#include <errno.h>

#include "bytes.h"
#include "contract/answers.h"
#include "contract/batch.h"
#include "contract/cleaner.h"
#include "contract/file.h"
#include "contract/records.h"

enum { NOT_PLAIN = CODEC_MASK | 0x10 | 0x20 }; /* the flags of a transaction and of a marker */

typedef struct window {
    int64_t len;            /* bytes of the file in stretch.raw, from stretch.position on */
    int64_t n;              /* plain batches at the front of these bytes, decoded */
    int64_t scanned;        /* batches that are whole */
    seg_columns columns;
} window;

/* Decode the rows of batch b after those of w; returns whether it is plain. */
static int take(const seg_stretch *s, window *w, const seg_batch *b)
{
    seg_columns *c = &w->columns;
    int64_t *row = s->rows + c->n, stride = s->max_rows;
    int64_t at = b->position - s->position + HEADER, len = b->size - HEADER;
    seg_decoded out;
    if (b->magic != MAGIC || b->attributes & NOT_PLAIN || b->count > len / RECORD_MIN || b->count > s->max_rows - c->n)
        return 0;
    int64_t done = seg_decode(s->raw, w->len, b, &at, &len, 1, b->count, row, row + stride, row + 2 * stride,
                              row + 3 * stride, row + 4 * stride, row + 5 * stride, row + 6 * stride, &out);
    if (done != b->count)
        return 0;
    c->n += done;
    return 1;
}

/* Read a window at s->position. Returns the number of plain batches in it, 0 if the first is not plain; -errno. */
static int64_t look(const seg_stretch *s, window *w)
{
    int64_t left = s->end - s->position, stride = s->max_rows;
    seg_scan_end end;
    *w = (window){.columns = {s->rows, s->rows + stride, s->rows + 2 * stride, s->rows + 3 * stride,
                              s->rows + 4 * stride, s->rows + 5 * stride, s->rows + 6 * stride, 0}};
    w->len = seg_pread(s->fd, s->raw, left < s->raw_len ? left : s->raw_len, s->position);
    if (w->len < 0)
        return w->len;
    w->scanned = seg_scan(s->raw, w->len, s->position, -1, 0, INT64_MAX, INT64_MAX, 1, s->batches,
                          s->max_batches, &end);
    if (w->scanned && s->batches[0].base_offset < s->least)
        return 0;
    while (w->n < w->scanned && take(s, w, &s->batches[w->n]))
        w->n++;
    return w->n;
}

static void pass(seg_stretch *s, const window *w)
{
    const seg_batch *last = &s->batches[w->n - 1];
    s->position = last->position + last->size;
    s->least = last->last_offset + 1;
}

static int sound(const seg_stretch *s)
{
    return s->position >= 0 && s->raw_len > 0 && s->max_batches > 0 && s->max_rows > 0;
}

int64_t seg_map_stretch(seg_offset_map *m, seg_stretch *s, int64_t from_offset)
{
    window w;
    int64_t start = s->position;
    if (!sound(s))
        return -EINVAL;
    while (s->position < s->end) {
        int64_t n = look(s, &w);
        if (n <= 0) {
            if (n < 0)
                return n;
            break;
        }
        const seg_columns *c = &w.columns;
        int64_t done = seg_map_put(m, s->raw, w.len, c->key_at, c->key_len, c->offsets, c->n, from_offset);
        if (done != c->n) {
            if (done < 0)
                return done;
            break; /* the map becomes full within this window: the caller finds the place */
        }
        pass(s, &w);
        if (w.n < w.scanned)
            break;
    }
    return s->position - start;
}

/* Whether `offset` is one of n rising offsets. */
static int is_among(const int64_t *offsets, int64_t n, int64_t offset)
{
    int64_t low = 0, high = n;
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        if (offsets[middle] < offset)
            low = middle + 1;
        else
            high = middle;
    }
    return low < n && offsets[low] == offset;
}

int64_t seg_compact_stretch(const seg_offset_map *m, int64_t latest, seg_stretch *s, const int64_t *retained,
                            int64_t n_retained, seg_cleaning *how, uint8_t *out, int64_t capacity,
                            seg_batch *out_batches, int64_t max_out)
{
    window w;
    int64_t used = 0;
    seg_cleaning sum = {.now = how->now, .new_horizon = how->new_horizon};
    if (!sound(s))
        return -EINVAL;
    /* Half of the bytes after `used` may be a window, the other half is for the growth of its records. */
    while (s->position < s->end && capacity - used >= 2 * s->raw_len) {
        int64_t n = look(s, &w), keyless = 0;
        if (n <= 0) {
            if (n < 0)
                return n;
            break;
        }
        if (n > max_out - sum.batches)
            break;
        const seg_columns *c = &w.columns;
        int64_t kept = seg_map_keep(m, s->raw, w.len, c->key_at, c->key_len, c->offsets, c->n, latest,
                                    s->keep, &keyless);
        if (kept < 0)
            return kept;
        for (int64_t i = 0; i < n; i++) {
            int stays = is_among(retained, n_retained, s->batches[i].last_offset);
            s->policies[i] = stays ? SEG_RETAIN_EMPTY : 0;
            s->codecs[i] = 0;
        }
        seg_batch *made = out_batches + sum.batches;
        int64_t size = seg_compact(s->raw, w.len, s->position, s->raw, w.len, s->batches, s->policies,
                                   s->codecs, n, c, how, s->keep, out + used, capacity - used, made, s->made);
        if (size == SEG_E_ROOM)
            break;
        if (size < 0)
            return size;
        for (int64_t i = 0; i < how->batches; i++)
            made[i].position += used;
        used += size;
        sum.batches += how->batches;
        sum.records += how->records;
        sum.changed += how->changed;
        sum.records_before += c->n;
        sum.keyless += keyless;
        pass(s, &w);
        if (w.n < w.scanned)
            break;
    }
    *how = sum;
    return used;
}
