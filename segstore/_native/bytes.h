/* Bytes of record batches, for all C files: positions of header fields, big-endian integers and
 * Kafka's zigzag varints (org.apache.kafka.common.utils.ByteUtils).
 */
#ifndef SEG_BYTES_H
#define SEG_BYTES_H

#include <stdint.h>
#include <string.h>

#include "contract/batch.h"

#define INLINE static inline __attribute__((always_inline))
#define LIKELY(x) __builtin_expect(!!(x), 1)
#define UNLIKELY(x) __builtin_expect(!!(x), 0)

enum {
    AT_LENGTH = 8,
    AT_EPOCH = 12,
    AT_MAGIC = 16,
    AT_CRC = 17,
    AT_ATTRIBUTES = 21,
    AT_LAST_DELTA = 23,
    AT_BASE_TIMESTAMP = 27,
    AT_MAX_TIMESTAMP = 35,
    AT_PRODUCER_ID = 43,
    AT_PRODUCER_EPOCH = 51,
    AT_BASE_SEQUENCE = 53,
    AT_COUNT = 57,
    HEADER = 61,
    LOG_OVERHEAD = 12,      /* bytes that the length field doesn't count */
    RECORD_MIN = 7,         /* bytes of a record with null key and value and no headers */
    MAGIC = 2,
    CODEC_MASK = 0x07,
    APPEND_TIME = 0x08,
    TRANSACTIONAL = 0x10,
    CONTROL = 0x20,
    DELETE_HORIZON = 0x40
};

#define LITTLE_ENDIAN_HERE (__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__)

/* Between the machine's order and big-endian, both ways. */
INLINE uint16_t big16(uint16_t v)
{
    return LITTLE_ENDIAN_HERE ? __builtin_bswap16(v) : v;
}

INLINE uint32_t big32(uint32_t v)
{
    return LITTLE_ENDIAN_HERE ? __builtin_bswap32(v) : v;
}

INLINE uint64_t big64(uint64_t v)
{
    return LITTLE_ENDIAN_HERE ? __builtin_bswap64(v) : v;
}

INLINE int16_t get16(const uint8_t *p)
{
    uint16_t v;
    memcpy(&v, p, sizeof v);
    return (int16_t)big16(v);
}

INLINE int32_t get32(const uint8_t *p)
{
    uint32_t v;
    memcpy(&v, p, sizeof v);
    return (int32_t)big32(v);
}

INLINE int64_t get64(const uint8_t *p)
{
    uint64_t v;
    memcpy(&v, p, sizeof v);
    return (int64_t)big64(v);
}

INLINE void put16(uint8_t *p, int16_t value)
{
    uint16_t v = big16((uint16_t)value);
    memcpy(p, &v, sizeof v);
}

INLINE void put32(uint8_t *p, int32_t value)
{
    uint32_t v = big32((uint32_t)value);
    memcpy(p, &v, sizeof v);
}

INLINE void put64(uint8_t *p, int64_t value)
{
    uint64_t v = big64((uint64_t)value);
    memcpy(p, &v, sizeof v);
}

INLINE uint64_t load64le(const uint8_t *p)
{
    uint64_t v;
    memcpy(&v, p, sizeof v);
    return LITTLE_ENDIAN_HERE ? v : __builtin_bswap64(v);
}

INLINE uint64_t zigzag(int64_t v)
{
    return ((uint64_t)v << 1) ^ (uint64_t)(v >> 63);
}

INLINE int64_t unzigzag(uint64_t v)
{
    return (int64_t)((v >> 1) ^ (0 - (v & 1)));
}

/* Bytes of the varint of a zigzag value: one for each 7 bits begun. */
INLINE int64_t varint_bytes(uint64_t v)
{
    return ((63 - __builtin_clzll(v | 1)) * 9 + 73) / 64;
}

INLINE int64_t varint_size(int64_t value)
{
    return varint_bytes(zigzag(value));
}

INLINE uint8_t *put_varint(uint8_t *p, int64_t value)
{
    uint64_t v = zigzag(value);
    for (; v >= 0x80; v >>= 7)
        *p++ = (uint8_t)(v | 0x80);
    *p++ = (uint8_t)v;
    return p;
}

/* Write a length (-1: null) and its bytes; there is room for both. */
INLINE uint8_t *put_nullable(uint8_t *w, const uint8_t *data, int64_t len)
{
    w = put_varint(w, len);
    if (len > 0)
        memcpy(w, data, (size_t)len);
    return w + (len > 0 ? len : 0);
}

/* Copy n bytes; if both sides have room beyond them, in wide moves that write more. */
INLINE void copy_bytes(uint8_t *to, int64_t to_room, const uint8_t *from, int64_t from_room, int64_t n)
{
    int64_t over = n + 31;
    if (LIKELY(n <= 512 && over <= to_room && over <= from_room)) {
        for (int64_t i = 0; i < n; i += 32)
            memcpy(to + i, from + i, 32);
    } else if (n > 0) {
        memcpy(to, from, (size_t)n);
    }
}

/* Write all 61 bytes of a header, crc as it is in b; last_offset - base_offset must fit an int32. */
__attribute__((visibility("hidden"))) void seg_put_header(uint8_t *p, const seg_batch *b);

/* Write the CRC of a whole batch into its header and into b. */
__attribute__((visibility("hidden"))) void seg_put_crc(uint8_t *p, seg_batch *b);

/* As seg_publish, but wakes no waiter: the caller calls seg_wake. */
__attribute__((visibility("hidden"))) int64_t seg_store_ends(uint8_t *map, int64_t len, const int64_t *slots,
                                                             const int64_t *values, int64_t n);

#endif
