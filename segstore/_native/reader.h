/* Reads varints and byte strings; every byte is compared with an end first. */
#ifndef SEG_READER_H
#define SEG_READER_H

#include "bytes.h"
#include "contract/answers.h"

enum {
    CUT = -1,               /* the bytes end within a varint; the caller decides what that means */
    INT_MOST = 5,           /* bytes of the longest varint */
    LONG_MOST = 10
};

/* 0, CUT, or SEG_E_VARINT; bits that don't fit are dropped, as by ByteUtils. */
static inline int64_t careful_varint(const uint8_t **p, const uint8_t *end, int most, int64_t *value)
{
    uint64_t v = 0;
    for (int i = 0; i < most; i++) {
        if (*p == end)
            return CUT;
        uint8_t b = *(*p)++;
        v |= (uint64_t)(b & 0x7f) << (7 * i);
        if (b < 0x80) {
            *value = unzigzag(most == INT_MOST ? (uint32_t)v : v);
            return 0;
        }
    }
    return SEG_E_VARINT;
}

/* Within a record of known length, CUT means that the length is wrong. */
static inline int64_t within(int64_t result)
{
    return result == CUT ? SEG_E_RECORD : result;
}

/* A length and as many bytes; with `nullable` -1 is null. */
static inline int64_t careful_bytes(const uint8_t **p, const uint8_t *end, int nullable,
                                    const uint8_t **bytes, int64_t *len)
{
    int64_t r = within(careful_varint(p, end, INT_MOST, len));
    if (r)
        return r;
    if (*len < (nullable ? -1 : 0) || *len > end - *p)
        return SEG_E_RECORD;
    *bytes = *p;
    *p += *len > 0 ? *len : 0;
    return 0;
}

/* The lowest seven bits of each byte, joined; the highest bits must be 0. */
INLINE uint64_t join_sevens(uint64_t v)
{
    v = (v & 0x007f007f007f007f) | (v & 0x7f007f007f007f00) >> 1;
    v = (v & 0x00003fff00003fff) | (v & 0x3fff00003fff0000) >> 2;
    return (v & 0x000000000fffffff) | (v & 0x0fffffff00000000) >> 4;
}

/* A varint of up to eight bytes; eight bytes are readable. Returns its length, or 0. */
INLINE int64_t quick_varint(const uint8_t *p, uint64_t *value)
{
    if (LIKELY(p[0] < 0x80)) {
        *value = p[0];
        return 1;
    }
    if (LIKELY(p[1] < 0x80)) {
        *value = (p[0] & 0x7f) | (uint64_t)p[1] << 7;
        return 2;
    }
    uint64_t v = load64le(p), stop = ~v & 0x8080808080808080;
    if (stop == 0)
        return 0;
    *value = join_sevens(v & (stop ^ (stop - 1)) & 0x7f7f7f7f7f7f7f7f);
    return (__builtin_ctzll(stop) >> 3) + 1;
}

/* The same for an int32. Branches, not arithmetic, find the next varint's position: the CPU predicts them, and reads on
 * before this varint is known. */
INLINE int quick_int(const uint8_t **p, int64_t *value)
{
    const uint8_t *at = *p;
    uint64_t v = at[0];
    if (LIKELY(v < 0x80)) {
        *p = at + 1;
        *value = unzigzag(v);
        return 1;
    }
    if (LIKELY(at[1] < 0x80)) {
        *p = at + 2;
        *value = unzigzag((v & 0x7f) | (uint64_t)at[1] << 7);
        return 1;
    }
    int64_t n = quick_varint(at, &v);
    *p = at + n;
    *value = unzigzag((uint32_t)v);
    return n > 0 && n <= INT_MOST;
}

#endif
