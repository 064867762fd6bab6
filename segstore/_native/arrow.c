/* Arrow columns in the form that C encodes: many chunks, and views, become spans; lists of headers become ranges.
 *
 * Every offset, length and index is compared once with the memory that it points into; spans are trusted.
 *
 * Thread contract: no state.
 */
#include <string.h>

#include "column.h"
#include "contract/answers.h"
#include "contract/column.h"

enum {
    VIEW = 16,              /* bytes of a view: a length, and the bytes, or their first four, a buffer and an offset */
    INLINE_MOST = 12,
    AT_INDEX = 8,
    AT_OFFSET = 12
};

static int is_null(const uint8_t *validity, int64_t bit)
{
    return validity && !(validity[bit >> 3] >> (bit & 7) & 1);
}

static int64_t int_at(const void *ints, int32_t wide, int64_t i)
{
    return wide ? ((const int64_t *)ints)[i] : ((const int32_t *)ints)[i];
}

/* Add element number n to the spans. */
INLINE void take(seg_measures *m, seg_span *out, int64_t n, slice s)
{
    out[n] = (seg_span){s.p, s.len};
    m->nulls += s.len < 0;
    m->size += s.len < 0 ? 0 : s.len;
    m->most = s.len > m->most ? s.len : m->most;
}

int64_t seg_column_spans(const seg_column *c, seg_span *out, seg_measures *m)
{
    m->row = 0;
    if (check_column(c, 0, c->n))
        return SEG_E_COLUMN;
    for (int64_t i = 0; i < c->n; i++) {
        slice s;
        m->row = i;
        if (element(c, i, &s))
            return SEG_E_COLUMN;
        take(m, out, i, s);
    }
    return c->n;
}

/* The bytes of a view that is not null; 0 or SEG_E_COLUMN. */
static int64_t viewed(const uint8_t *view, const seg_span *buffers, int64_t n_buffers, slice *s)
{
    int32_t len, index, offset;
    memcpy(&len, view, sizeof len);
    memcpy(&index, view + AT_INDEX, sizeof index);
    memcpy(&offset, view + AT_OFFSET, sizeof offset);
    *s = (slice){view + sizeof len, len, len};
    if (len <= INLINE_MOST)
        return len < 0 ? SEG_E_COLUMN : 0;
    if (index < 0 || index >= n_buffers || offset < 0 || len > buffers[index].len - offset)
        return SEG_E_COLUMN;
    s->p = buffers[index].data + offset;
    return 0;
}

int64_t seg_view_spans(const uint8_t *views, int64_t n, const uint8_t *validity, int64_t validity_bit,
                       const seg_span *buffers, int64_t n_buffers, seg_span *out, seg_measures *m)
{
    for (int64_t i = 0; i < n; i++) {
        slice s = {.len = -1};
        m->row = i;
        if (!is_null(validity, validity_bit + i) && viewed(views + i * VIEW, buffers, n_buffers, &s))
            return SEG_E_COLUMN;
        take(m, out, i, s);
    }
    return n;
}

/* Make the view of bytes that begin at `offset` of buffer 0. */
INLINE void view_of(uint8_t *view, slice s, int32_t offset)
{
    int32_t len = (int32_t)s.len;
    memset(view, 0, VIEW);
    memcpy(view, &len, sizeof len);
    if (len > INLINE_MOST) {
        memcpy(view + sizeof len, s.p, AT_INDEX - sizeof len);
        memcpy(view + AT_OFFSET, &offset, sizeof offset);
    } else if (len) {
        memcpy(view + sizeof len, s.p, (size_t)len);
    }
}

int64_t seg_column_views(const seg_column *c, uint8_t *views)
{
    if (check_column(c, 0, c->n) || (c->kind != OFFSETS_32 && c->kind != NULLS))
        return SEG_E_COLUMN;
    for (int64_t i = 0; i < c->n; i++) {
        slice s;
        if (element(c, i, &s))
            return SEG_E_COLUMN;
        if (s.len < 0)
            memset(views + i * VIEW, 0, VIEW);
        else
            view_of(views + i * VIEW, s, (int32_t)(s.p - c->data));
    }
    return c->n;
}

int64_t seg_list_ranges(const void *offsets, const void *sizes, int32_t wide, int64_t n, const uint8_t *validity,
                        int64_t validity_bit, int64_t n_items, int64_t *begins, int64_t *ends, seg_measures *m)
{
    int64_t least = INT64_MAX, most = 0;
    for (int64_t i = 0; i < n; i++) {
        m->row = i;
        begins[i] = ends[i] = 0;
        if (is_null(validity, validity_bit + i))
            continue;
        int64_t from = int_at(offsets, wide, i);
        int64_t len = sizes ? int_at(sizes, wide, i) : (int64_t)((uint64_t)int_at(offsets, wide, i + 1) - (uint64_t)from);
        if (from < 0 || len < 0 || from > n_items || len > n_items - from || len > INT32_MAX)
            return SEG_E_COLUMN;
        if (len == 0)
            continue;
        begins[i] = from;
        ends[i] = from + len;
        least = from < least ? from : least;
        most = from + len > most ? from + len : most;
        m->size += len;
    }
    m->least = least < most ? least : most;
    m->most = most;
    return n;
}
