/* The common part of the two CRCs of logs: tables for eight bytes a step, for any reflected polynomial, and the CRC
 * instructions of AArch64. */
#ifndef SEG_CRC_H
#define SEG_CRC_H

#include "bytes.h"

typedef uint32_t (*crc_function)(uint32_t crc, const uint8_t *p, int64_t len);

static void make_table(uint32_t polynomial, uint32_t table[8][256])
{
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t crc = i;
        for (int bit = 0; bit < 8; bit++)
            crc = (crc >> 1) ^ (crc & 1 ? polynomial : 0);
        table[0][i] = crc;
    }
    for (int t = 1; t < 8; t++)
        for (int i = 0; i < 256; i++)
            table[t][i] = (table[t - 1][i] >> 8) ^ table[0][table[t - 1][i] & 0xff];
}

INLINE uint32_t by_table(uint32_t table[8][256], uint32_t crc, const uint8_t *p, int64_t len)
{
    for (; len >= 8; p += 8, len -= 8) {
        uint64_t v = load64le(p) ^ crc;
        crc = 0;
        for (int i = 0; i < 8; i++)
            crc ^= table[7 - i][(v >> (8 * i)) & 0xff];
    }
    for (; len > 0; p++, len--)
        crc = (crc >> 8) ^ table[0][(crc ^ *p) & 0xff];
    return crc;
}

#if defined(__aarch64__) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
#ifdef __linux__
#include <sys/auxv.h>
#endif

enum { CRC32_CAPABILITY = 1 << 7 }; /* HWCAP_CRC32 */

/* by_instruction, made from the instructions for eight bytes and for one. */
#define BY_INSTRUCTION(eight, one)                                                                          \
    static uint32_t by_instruction(uint32_t crc, const uint8_t *p, int64_t len)                             \
    {                                                                                                       \
        for (; len >= 8; p += 8, len -= 8)                                                                  \
            __asm__(".arch_extension crc\n\t" eight " %w0, %w0, %x1" : "+r"(crc) : "r"(load64le(p)));       \
        for (; len > 0; p++, len--)                                                                         \
            __asm__(".arch_extension crc\n\t" one " %w0, %w0, %w1" : "+r"(crc) : "r"((uint32_t)*p));        \
        return crc;                                                                                         \
    }

static crc_function where_there_is_one(crc_function by_instruction, crc_function portable)
{
#ifdef __APPLE__
    (void)portable;
    return by_instruction; /* all of Apple's processors have it */
#else
    return getauxval(AT_HWCAP) & CRC32_CAPABILITY ? by_instruction : portable;
#endif
}
#endif

#endif
