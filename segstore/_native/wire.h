/* Big-endian fields and zigzag varints of record batches. */
#ifndef SEGSTORE_WIRE_H
#define SEGSTORE_WIRE_H
#include <stdint.h>
#include <string.h>
#include "cdef.h"

enum { HEADER = 61, OVERHEAD = 12, LEAST_RECORD = 7 };
enum { CODEC_BITS = 7, APPEND_TIME = 8, DELETE_HORIZON = 64 };

static inline uint16_t be16(const uint8_t *p) { uint16_t v; memcpy(&v, p, 2); return __builtin_bswap16(v); }
static inline uint32_t be32(const uint8_t *p) { uint32_t v; memcpy(&v, p, 4); return __builtin_bswap32(v); }
static inline uint64_t be64(const uint8_t *p) { uint64_t v; memcpy(&v, p, 8); return __builtin_bswap64(v); }
static inline void put16(uint8_t *p, uint16_t v) { v = __builtin_bswap16(v); memcpy(p, &v, 2); }
static inline void put32(uint8_t *p, uint32_t v) { v = __builtin_bswap32(v); memcpy(p, &v, 4); }
static inline void put64(uint8_t *p, uint64_t v) { v = __builtin_bswap64(v); memcpy(p, &v, 8); }

static inline uint64_t zigzag(int64_t v) { return ((uint64_t)v << 1) ^ (uint64_t)(v >> 63); }
static inline int64_t unzigzag(uint64_t v) { return (int64_t)(v >> 1) ^ -(int64_t)(v & 1); }

static inline int varint_size(uint64_t z) {
    return z < 128 ? 1 : (70 - __builtin_clzll(z)) / 7;
}

static inline uint8_t *put_varint(uint8_t *p, uint64_t z) {
    while (z >= 128) { *p++ = (uint8_t)(z | 128); z >>= 7; }
    *p++ = (uint8_t)z;
    return p;
}

/* A zigzag varint of at most `most` bytes (5: int32, 10: int64) in [p, end); the byte behind it, NULL where
 * there is none. */
static inline const uint8_t *get_varint(const uint8_t *p, const uint8_t *end, int most, int64_t *out) {
    uint64_t z = 0;
    if (p < end && *p < 128) { *out = unzigzag(*p); return p + 1; }
    for (int i = 0; i < most && p < end; i++) {
        uint8_t b = *p++;
        z |= (uint64_t)(b & 127) << (7 * i);
        if (b < 128) {
            if (most == 5) z = (uint32_t)z;
            *out = most == 5 ? (int32_t)((uint32_t)z >> 1 ^ -((uint32_t)z & 1)) : unzigzag(z);
            return p;
        }
    }
    return 0;
}
#endif
