/* Reads runs of records of one shape: if a record has no headers, and the same length, lengths of key and value and
 * widths of varints as the record before it, then each of its fields is at the same place.
 *
 * Three words and a byte of the next record are compared with a record that read_record has read: if they agree,
 * read_record would find the same fields, except the two deltas, which are read.
 */
#ifndef SEG_SHAPE_H
#define SEG_SHAPE_H

#include "record.h"

enum {
    SHAPE_BEGIN = 16        /* bytes compared from a record's first one on: up to the length of its key */
};

/* Positions are counted from a record's first byte. */
typedef struct shape {
    uint64_t begin[2], begin_mask[2], value_len_word, value_len_mask;
    uint64_t deltas_mask;   /* the bits of both deltas in the word at deltas_at */
    int64_t deltas_at, timestamp_bits;
    int64_t key_at, value_len_at, value_at;
    int64_t key_len, value_len;
    int64_t size, room;     /* bytes of a record; bytes that must lie before the batch's end, for the last word */
} shape;

/* The bytes of a varint that was read already. */
INLINE int64_t varint_width(const uint8_t *p)
{
    int64_t n = 1;
    while (*p++ >= 0x80)
        n++;
    return n;
}

/* A mask of the lowest n bytes of eight. */
INLINE uint64_t low_bytes(int64_t n)
{
    return n >= 8 ? ~(uint64_t)0 : ((uint64_t)1 << (8 * n)) - 1;
}

/* Have `bits` of each byte in [at, at + n) of the beginning compared. */
INLINE void compare_bits(shape *s, int64_t at, int64_t n, uint64_t bits)
{
    for (int64_t i = at; i < at + n; i++)
        s->begin_mask[i >> 3] |= bits << (8 * (i & 7));
}

/* Find the shape of a record that read_record found good, before `end`: 1, or 0 if it has none. */
RARE int shape_of(const uint8_t *p, const uint8_t *end, const fields *f, shape *s)
{
    int64_t deltas_at = varint_width(p) + 1, offset_at = deltas_at + varint_width(p + deltas_at);
    int64_t key_len_at = offset_at + varint_width(p + offset_at), key_at = f->key - p, size = f->next - p;
    int64_t value_len_at = key_at + (f->key_len > 0 ? f->key_len : 0), value_at = f->value - p, room = SHAPE_BEGIN;
    if (room < size)
        room = size;
    if (room < value_len_at + QUICK_LOAD)
        room = value_len_at + QUICK_LOAD;
    /* Bits of an offset above an int32 are dropped; a varint of four bytes has none. */
    if (f->header_count || key_at > SHAPE_BEGIN || room > end - p || key_len_at - deltas_at > QUICK_LOAD ||
        key_len_at - offset_at > 4)
        return 0;
    *s = (shape){.begin = {load64le(p), load64le(p + 8)}, .value_len_word = load64le(p + value_len_at),
                 .value_len_mask = low_bytes(value_at - value_len_at),
                 .deltas_mask = 0x7f7f7f7f7f7f7f7f & low_bytes(key_len_at - deltas_at), .deltas_at = deltas_at,
                 .timestamp_bits = 7 * (offset_at - deltas_at), .key_at = key_at, .value_len_at = value_len_at,
                 .value_at = value_at, .key_len = f->key_len, .value_len = f->value_len, .size = size, .room = room};
    compare_bits(s, 0, deltas_at - 1, 0xff);
    compare_bits(s, deltas_at, key_len_at - deltas_at, 0x80);
    compare_bits(s, key_len_at, key_at - key_len_at, 0xff);
    return 1;
}

/* Whether a record, s->room bytes before the end, has the shape. */
INLINE int has_shape(const uint8_t *p, const shape *s)
{
    uint64_t differ = (load64le(p) ^ s->begin[0]) & s->begin_mask[0];
    differ |= (load64le(p + 8) ^ s->begin[1]) & s->begin_mask[1];
    differ |= (load64le(p + s->value_len_at) ^ s->value_len_word) & s->value_len_mask;
    return (differ | p[s->size - 1]) == 0;
}

#endif
