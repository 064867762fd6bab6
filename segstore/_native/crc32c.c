/* CRC-32C (Castagnoli), by the fastest means of the CPU.
 *
 * Thread contract: tables and the choice are made when the library is loaded, and only
 * read from then on.
 *
 * x86-64 with AVX-512 and VPCLMULQDQ folds 256 bytes a step, with PCLMULQDQ 64
 * (Gopal et al., "Fast CRC Computation for Generic Polynomials Using PCLMULQDQ"); the last
 * bytes go through the CPU's crc32 instruction, as all bytes do on AArch64.
 */
#include "contract/crc.h"
#include "crc.h"

/* --- portable ---------------------------------------------------------------- */

static const uint32_t polynomial = 0x82f63b78; /* reflected */

static uint32_t table[8][256];

static uint32_t portable(uint32_t crc, const uint8_t *p, int64_t len)
{
    return by_table(table, crc, p, len);
}

/* --- x86-64 ---------------------------------------------------------------- */
#if defined(__x86_64__)
#include <immintrin.h>

/* The name of the extension with the instruction; clang has a separate one for the instruction itself. */
#ifdef __clang__
#define CRC32 "sse4.2,crc32"
#else
#define CRC32 "sse4.2"
#endif

/* x^(D + 32) and x^(D - 32) mod P, reflected: they carry 128 bits over a distance of D bits. */
#define FOLD_512 0x9e4addf8, 0x740eef02
#define FOLD_2048 0xb9e02b86, 0xdcb17aa4

__attribute__((target(CRC32)))
static uint32_t by_instruction(uint32_t crc, const uint8_t *p, int64_t len)
{
    uint64_t wide = crc;
    for (; len >= 8; p += 8, len -= 8)
        wide = _mm_crc32_u64(wide, load64le(p));
    crc = (uint32_t)wide;
    for (; len > 0; p++, len--)
        crc = _mm_crc32_u8(crc, *p);
    return crc;
}

#define PCLMUL __attribute__((target(CRC32 ",pclmul")))

PCLMUL static __m128i fold128(__m128i x, __m128i k, const uint8_t *next)
{
    __m128i low = _mm_clmulepi64_si128(x, k, 0x00), high = _mm_clmulepi64_si128(x, k, 0x11);
    return _mm_xor_si128(_mm_xor_si128(low, high), _mm_loadu_si128((const void *)next));
}

PCLMUL static uint32_t by_pclmul(uint32_t crc, const uint8_t *p, int64_t len)
{
    if (len < 128)
        return by_instruction(crc, p, len);
    __m128i k = _mm_set_epi64x(FOLD_512), x[4];
    for (int i = 0; i < 4; i++)
        x[i] = _mm_loadu_si128((const void *)(p + 16 * i));
    x[0] = _mm_xor_si128(x[0], _mm_cvtsi32_si128((int)crc));
    for (p += 64, len -= 64; len >= 64; p += 64, len -= 64)
        for (int i = 0; i < 4; i++)
            x[i] = fold128(x[i], k, p + 16 * i);
    uint8_t rest[64];
    for (int i = 0; i < 4; i++)
        _mm_storeu_si128((void *)(rest + 16 * i), x[i]);
    return by_instruction(by_instruction(0, rest, sizeof rest), p, len);
}

#define AVX512 __attribute__((target(CRC32 ",avx512f,avx512vl,avx512bw,vpclmulqdq")))

AVX512 static __m512i fold512(__m512i x, __m512i k, __m512i next)
{
    __m512i low = _mm512_clmulepi64_epi128(x, k, 0x00), high = _mm512_clmulepi64_epi128(x, k, 0x11);
    return _mm512_ternarylogic_epi64(low, high, next, 0x96); /* xor of three */
}

AVX512 static uint32_t by_vpclmul(uint32_t crc, const uint8_t *p, int64_t len)
{
    if (len < 512)
        return by_pclmul(crc, p, len);
    __m512i k = _mm512_broadcast_i32x4(_mm_set_epi64x(FOLD_2048)), x[4];
    for (int i = 0; i < 4; i++)
        x[i] = _mm512_loadu_si512(p + 64 * i);
    x[0] = _mm512_xor_si512(x[0], _mm512_zextsi128_si512(_mm_cvtsi32_si128((int)crc)));
    for (p += 256, len -= 256; len >= 256; p += 256, len -= 256)
        for (int i = 0; i < 4; i++)
            x[i] = fold512(x[i], k, _mm512_loadu_si512(p + 64 * i));
    k = _mm512_broadcast_i32x4(_mm_set_epi64x(FOLD_512));
    for (int i = 1; i < 4; i++)
        x[0] = fold512(x[0], k, x[i]);
    for (; len >= 64; p += 64, len -= 64)
        x[0] = fold512(x[0], k, _mm512_loadu_si512(p));
    uint8_t rest[64];
    _mm512_storeu_si512(rest, x[0]);
    return by_instruction(by_instruction(0, rest, sizeof rest), p, len);
}

static crc_function best(void)
{
    __builtin_cpu_init();
    if (!__builtin_cpu_supports("sse4.2"))
        return portable;
    if (!__builtin_cpu_supports("pclmul"))
        return by_instruction;
    int wide = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
        __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("vpclmulqdq");
    return wide ? by_vpclmul : by_pclmul;
}

/* --- AArch64 ---------------------------------------------------------------- */
#elif defined(__aarch64__) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
BY_INSTRUCTION("crc32cx", "crc32cb")

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

uint32_t seg_crc32c(uint32_t crc, const uint8_t *buf, int64_t len)
{
    return ~chosen(~crc, buf, len);
}

uint32_t seg_crc32c_portable(uint32_t crc, const uint8_t *buf, int64_t len)
{
    return ~portable(~crc, buf, len);
}

int32_t seg_crc32c_is_hardware(void)
{
    return chosen != portable;
}
