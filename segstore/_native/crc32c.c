/* CRC-32C (Castagnoli), with the processor's instruction where it has one. */
#include "wire.h"

static uint32_t table[8][256];

__attribute__((constructor)) static void fill_table(void) {
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t c = i;
        for (int k = 0; k < 8; k++) c = (c >> 1) ^ (0x82F63B78u & -(c & 1));
        table[0][i] = c;
    }
    for (int t = 1; t < 8; t++)
        for (int i = 0; i < 256; i++) table[t][i] = table[0][table[t - 1][i] & 255] ^ (table[t - 1][i] >> 8);
}

uint32_t seg_crc32c_portable(uint32_t crc, const uint8_t *p, int64_t len) {
    uint32_t c = ~crc;
    for (; len >= 8; p += 8, len -= 8) {
        uint64_t v = __builtin_bswap64(be64(p)) ^ c;
        c = table[7][v & 255] ^ table[6][v >> 8 & 255] ^ table[5][v >> 16 & 255] ^ table[4][v >> 24 & 255]
          ^ table[3][v >> 32 & 255] ^ table[2][v >> 40 & 255] ^ table[1][v >> 48 & 255] ^ table[0][v >> 56];
    }
    while (len-- > 0) c = table[0][(c ^ *p++) & 255] ^ (c >> 8);
    return ~c;
}

#if defined(__x86_64__)
#include <immintrin.h>
#define HARDWARE __attribute__((target("sse4.2,pclmul")))

static inline uint64_t le64(const uint8_t *p) { uint64_t v; memcpy(&v, p, 8); return v; }

/* crc * x^(8 * n) mod P, where k is x^(8 * n - 33) mod P, reflected: the crc32 of the carry-less product. */
HARDWARE static inline uint64_t shift(uint64_t crc, uint64_t k) {
    __m128i product = _mm_clmulepi64_si128(_mm_cvtsi64_si128((int64_t)crc), _mm_cvtsi64_si128((int64_t)k), 0);
    return _mm_crc32_u64(0, (uint64_t)_mm_cvtsi128_si64(product));
}

/* Three lanes of `lane` bytes at a time: the instruction has a latency of three cycles. */
HARDWARE static uint64_t three_lanes(uint64_t c, const uint8_t **at, int64_t *len, int64_t lane, uint64_t k1, uint64_t k2) {
    const uint8_t *p = *at;
    while (*len >= 3 * lane) {
        uint64_t c1 = 0, c2 = 0;
        for (const uint8_t *end = p + lane; p < end; p += 8) {
            c = _mm_crc32_u64(c, le64(p));
            c1 = _mm_crc32_u64(c1, le64(p + lane));
            c2 = _mm_crc32_u64(c2, le64(p + 2 * lane));
        }
        c = shift(c, k2) ^ shift(c1, k1) ^ c2;
        p += 2 * lane;
        *len -= 3 * lane;
    }
    *at = p;
    return c;
}

HARDWARE static uint32_t hardware(uint32_t crc, const uint8_t *p, int64_t len) {
    uint64_t c = (uint32_t)~crc;
    c = three_lanes(c, &p, &len, 1024, 0x170076fa, 0xa51b6135);
    c = three_lanes(c, &p, &len, 128, 0x0d3b6092, 0xb9e02b86);
    for (; len >= 8; p += 8, len -= 8) c = _mm_crc32_u64(c, le64(p));
    while (len-- > 0) c = _mm_crc32_u8((uint32_t)c, *p++);
    return ~(uint32_t)c;
}

int32_t seg_crc32c_is_hardware(void) {
    return __builtin_cpu_supports("sse4.2") && __builtin_cpu_supports("pclmul");
}
#else
static uint32_t hardware(uint32_t crc, const uint8_t *p, int64_t len) { return seg_crc32c_portable(crc, p, len); }
int32_t seg_crc32c_is_hardware(void) { return 0; }
#endif

uint32_t seg_crc32c(uint32_t crc, const uint8_t *buf, int64_t len) {
    return seg_crc32c_is_hardware() ? hardware(crc, buf, len) : seg_crc32c_portable(crc, buf, len);
}
