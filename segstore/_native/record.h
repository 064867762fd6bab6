/* Reads one record of a plain batch (org.apache.kafka.common.record.DefaultRecord); all bytes are compared with the end
 * of the batch first. */
#ifndef SEG_RECORD_H
#define SEG_RECORD_H

#include "contract/answers.h"
#include "reader.h"

enum {
    QUICK_ROOM = 40,        /* the quick reader's loads before the key end within these bytes */
    QUICK_LOAD = 8
};

/* A record whose bytes end at `next`; lengths are -1 for null. */
typedef struct fields {
    int64_t timestamp_delta, offset_delta, key_len, value_len, header_count;
    const uint8_t *key, *value, *headers, *next;
} fields;

/* Rarely called: inlined, it would slow down the quick reader. */
#define RARE static __attribute__((noinline, unused))

/* Read all headers of a record from their count on; they must end at `end`. */
RARE int64_t careful_headers(const uint8_t *p, const uint8_t *end, int64_t *count)
{
    int64_t len, r = within(careful_varint(&p, end, INT_MOST, count));
    const uint8_t *bytes;
    if (r)
        return r;
    if (*count < 0)
        return SEG_E_RECORD;
    for (int64_t i = 0; i < *count; i++) {
        if ((r = careful_bytes(&p, end, 0, &bytes, &len)) || (r = careful_bytes(&p, end, 1, &bytes, &len)))
            return r;
    }
    return p == end ? 0 : SEG_E_RECORD;
}

RARE int64_t careful_record(const uint8_t *p, const uint8_t *end, fields *f)
{
    int64_t len, r = careful_varint(&p, end, INT_MOST, &len);
    if (r)
        return r == CUT ? SEG_E_VARINT : r;
    if (len < RECORD_MIN - 1 || len > end - p)
        return SEG_E_RECORD;
    const uint8_t *next = f->next = p + len;
    p++;
    if ((r = careful_varint(&p, next, LONG_MOST, &f->timestamp_delta)) ||
        (r = careful_varint(&p, next, INT_MOST, &f->offset_delta)))
        return within(r);
    if ((r = careful_bytes(&p, next, 1, &f->key, &f->key_len)) ||
        (r = careful_bytes(&p, next, 1, &f->value, &f->value_len)))
        return r;
    f->headers = p;
    return careful_headers(p, next, &f->header_count);
}

/* 1 if the record is good. All loads lie below end; positions only grow, so if the record ends exactly at f->next,
 * nothing after it was used. */
INLINE int quick_record(const uint8_t *p, const uint8_t *end, fields *f)
{
    int64_t len, n;
    uint64_t v = 0;
    if (end - p < QUICK_ROOM || !quick_int(&p, &len) || len < RECORD_MIN - 1 || len > end - p)
        return 0;
    const uint8_t *next = f->next = p + len;
    p++;
    if ((n = quick_varint(p, &v)) == 0)
        return 0;
    f->timestamp_delta = unzigzag(v);
    p += n;
    if (!quick_int(&p, &f->offset_delta) || !quick_int(&p, &f->key_len))
        return 0;
    if (f->key_len < -1 || f->key_len > next - p)
        return 0;
    f->key = p;
    p += f->key_len > 0 ? f->key_len : 0;
    if (end - p < QUICK_LOAD || !quick_int(&p, &f->value_len))
        return 0;
    if (p >= next || f->value_len < -1 || f->value_len >= next - p)
        return 0;
    f->value = p;
    p += f->value_len > 0 ? f->value_len : 0;
    f->headers = p;
    f->header_count = *p;
    return LIKELY(*p == 0 && next - p == 1) || careful_headers(p, next, &f->header_count) == 0;
}

/* Read a record: 0 or SEG_E_*. The quick reader reads plain records with room after them. If it refuses a record, the
 * careful reader decides. */
INLINE int64_t read_record(const uint8_t *p, const uint8_t *end, fields *f)
{
    return LIKELY(quick_record(p, end, f)) ? 0 : careful_record(p, end, f);
}

#endif
