/* Reads the elements of columns of byte strings; each is checked against its column's data, but spans are trusted
 * (spans.c). */
#ifndef SEG_COLUMN_H
#define SEG_COLUMN_H

#include "bytes.h"
#include "contract/answers.h"
#include "contract/column.h"

enum { NULLS, OFFSETS_32, OFFSETS_64, FIXED, SPANS };  /* seg_column.kind */

typedef struct slice {
    const uint8_t *p;
    int64_t len;            /* -1 for null */
    int64_t room;           /* bytes readable from p on */
} slice;

/* 0, or SEG_E_COLUMN if the column lacks any of the elements first .. last - 1. */
INLINE int64_t check_column(const seg_column *c, int64_t first, int64_t last)
{
    if (first < 0 || last < first || last > c->n || c->data_len < 0 || c->kind < NULLS || c->kind > SPANS)
        return SEG_E_COLUMN;
    if (first == last || c->kind == NULLS)
        return 0;
    if (c->kind != FIXED)
        return c->offsets ? 0 : SEG_E_COLUMN;
    int fits = c->width == 0 || (c->width > 0 && last <= c->data_len / c->width);
    return fits ? 0 : SEG_E_COLUMN;
}

/* Element i of a checked column; 0 or SEG_E_COLUMN. */
INLINE int64_t element(const seg_column *c, int64_t i, slice *s)
{
    int64_t bit = c->validity_bit + i, from, to;
    *s = (slice){.len = -1};
    if (c->kind == NULLS || (c->validity && !(c->validity[bit >> 3] >> (bit & 7) & 1)))
        return 0;
    if (c->kind == SPANS) {
        const seg_span *span = (const seg_span *)c->offsets + i;
        *s = (slice){span->data, span->len, span->len};
        return 0;
    }
    if (c->kind == FIXED) {
        from = i * c->width;
        to = from + c->width;
    } else if (c->kind == OFFSETS_32) {
        from = ((const int32_t *)c->offsets)[i];
        to = ((const int32_t *)c->offsets)[i + 1];
    } else {
        from = ((const int64_t *)c->offsets)[i];
        to = ((const int64_t *)c->offsets)[i + 1];
    }
    if (UNLIKELY(from < 0 || to < from || to > c->data_len))
        return SEG_E_COLUMN;
    *s = (slice){c->data + from, to - from, c->data_len - from};
    return 0;
}

/* Headers [*from, *to) belong to record i; 0, SEG_E_COLUMN. */
INLINE int64_t header_range(const seg_header_columns *h, int64_t i, int64_t *from, int64_t *to)
{
    *from = h->offsets[i];
    *to = h->ends ? h->ends[i] : h->offsets[i + 1];
    if (*to - (uint64_t)*from > INT32_MAX)
        return SEG_E_COLUMN;
    int64_t r = check_column(&h->names, *from, *to);
    return r ? r : check_column(&h->values, *from, *to);
}

INLINE int64_t header(const seg_header_columns *h, int64_t i, slice *name, slice *value)
{
    int64_t r = element(&h->names, i, name);
    if (r == 0)
        r = element(&h->values, i, value);
    return r == 0 && name->len < 0 ? SEG_E_NULL : r;
}

/* Bytes of the length and the content; a number above every int32 if the content is too large. */
INLINE int64_t slice_bytes(slice s)
{
    if (UNLIKELY(s.len > INT32_MAX))
        return (int64_t)1 << 40;
    return varint_size(s.len) + (s.len > 0 ? s.len : 0);
}

/* Bytes of the header count and all headers of record i, or SEG_E_*. */
static inline int64_t header_bytes(const seg_header_columns *h, int64_t i)
{
    int64_t from, to, r = header_range(h, i, &from, &to);
    if (r)
        return r;
    int64_t bytes = varint_size(to - from);
    for (int64_t k = from; k < to; k++) {
        slice name, value;
        if ((r = header(h, k, &name, &value)))
            return r;
        bytes += slice_bytes(name) + slice_bytes(value);
    }
    return bytes;
}

#endif
