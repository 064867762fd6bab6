/* CRC-32 (zlib's) of messages of magic 0 and 1, by the fastest means of the CPU.
 *
 * Thread contract: tables and the choice are made when the library is loaded, and only
 * read from then on.
 *
 * x86-64 has no instruction for this polynomial: PCLMULQDQ folds 64 bytes a step, then 16, and reduces the last 16
 * (Gopal et al., "Fast CRC Computation for Generic Polynomials Using PCLMULQDQ", with the paper's constants).
 * AArch64 has an instruction.
 */
#include "contract/crc.h"
#include "crc.h"

/* --- portable ---------------------------------------------------------------- */

static const uint32_t polynomial = 0xedb88320; /* reflected */

static uint32_t table[8][256];

static uint32_t portable(uint32_t crc, const uint8_t *p, int64_t len)
{
    return by_table(table, crc, p, len);
}

/* --- x86-64 ---------------------------------------------------------------- */
#if defined(__x86_64__)
#include <immintrin.h>

/* x^(D + 32) and x^(D - 32) mod P, reflected: they carry 128 bits over a distance of D bits. */
#define FOLD_512 0x0154442bd4, 0x01c6e41596
#define FOLD_128 0x01751997d0, 0x00ccaa009e
#define FOLD_64 0x0163cd6124   /* x^64 mod P */
#define BARRETT 0x01db710641, 0x01f7011641 /* P, and x^64 / P */

#define PCLMUL __attribute__((target("ssse3,sse4.1,pclmul")))

PCLMUL static inline __m128i load128(const uint8_t *p)
{
    return _mm_loadu_si128((const void *)p);
}

PCLMUL static inline __m128i pair(int64_t low, int64_t high)
{
    return _mm_set_epi64x(high, low);
}

PCLMUL static inline __m128i fold(__m128i x, __m128i k, __m128i next)
{
    __m128i low = _mm_clmulepi64_si128(x, k, 0x00), high = _mm_clmulepi64_si128(x, k, 0x11);
    return _mm_xor_si128(_mm_xor_si128(low, high), next);
}

/* The CRC of 128 bits. */
PCLMUL static inline uint32_t reduce(__m128i x)
{
    __m128i words = _mm_setr_epi32(-1, 0, -1, 0), k = pair(FOLD_128), barrett = pair(BARRETT), t;
    x = _mm_xor_si128(_mm_srli_si128(x, 8), _mm_clmulepi64_si128(x, k, 0x10));
    t = _mm_srli_si128(x, 4);
    x = _mm_xor_si128(_mm_clmulepi64_si128(_mm_and_si128(x, words), pair(FOLD_64, 0), 0x00), t);
    t = _mm_clmulepi64_si128(_mm_and_si128(x, words), barrett, 0x10);
    t = _mm_clmulepi64_si128(_mm_and_si128(t, words), barrett, 0x00);
    return (uint32_t)_mm_extract_epi32(_mm_xor_si128(x, t), 1);
}

/* Fold x and the last `left` bytes (less than 16) at p, together with the bytes before them that make 16: the first
 * `left` bytes of both are folded onto the next 16. */
PCLMUL static inline __m128i fold_rest(__m128i x, const uint8_t *p, int64_t left)
{
    static const uint8_t shift[48] = {
        0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80,
        0,    1,    2,    3,    4,    5,    6,    7,    8,    9,    10,   11,   12,   13,   14,   15,
        0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80,
    };
    __m128i up = load128(shift + left), down = load128(shift + 16 + left), none = _mm_cmplt_epi8(down, _mm_setzero_si128());
    __m128i rest = _mm_and_si128(load128(p + left - 16), none);
    return fold(_mm_shuffle_epi8(x, up), pair(FOLD_128), _mm_or_si128(_mm_shuffle_epi8(x, down), rest));
}

PCLMUL static uint32_t by_pclmul(uint32_t crc, const uint8_t *p, int64_t len)
{
    if (len < 16)
        return portable(crc, p, len);
    __m128i k, x = _mm_xor_si128(load128(p), _mm_cvtsi32_si128((int)crc));
    int64_t left = len - 16;
    p += 16;
    if (left >= 112) {
        __m128i x1 = load128(p), x2 = load128(p + 16), x3 = load128(p + 32);
        k = pair(FOLD_512);
        for (p += 48, left -= 48; left >= 64; p += 64, left -= 64) {
            x = fold(x, k, load128(p));
            x1 = fold(x1, k, load128(p + 16));
            x2 = fold(x2, k, load128(p + 32));
            x3 = fold(x3, k, load128(p + 48));
        }
        k = pair(FOLD_128);
        x = fold(fold(fold(x, k, x1), k, x2), k, x3);
    }
    k = pair(FOLD_128);
    for (; left >= 16; p += 16, left -= 16)
        x = fold(x, k, load128(p));
    return reduce(left ? fold_rest(x, p, left) : x);
}

static crc_function best(void)
{
    __builtin_cpu_init();
    int fit = __builtin_cpu_supports("pclmul") && __builtin_cpu_supports("sse4.1") && __builtin_cpu_supports("ssse3");
    return fit ? by_pclmul : portable;
}

/* --- AArch64 ---------------------------------------------------------------- */
#elif defined(__aarch64__) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
BY_INSTRUCTION("crc32x", "crc32b")

static crc_function best(void)
{
    return where_there_is_one(by_instruction, portable);
}

#else
static crc_function best(void)
{
    return portable;
}
#endif

static crc_function chosen = portable;

__attribute__((constructor)) static void choose(void)
{
    make_table(polynomial, table);
    chosen = best();
}

uint32_t seg_crc32(uint32_t crc, const uint8_t *buf, int64_t len)
{
    return ~chosen(~crc, buf, len);
}

uint32_t seg_crc32_portable(uint32_t crc, const uint8_t *buf, int64_t len)
{
    return ~portable(~crc, buf, len);
}
