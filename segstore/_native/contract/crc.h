/* CRCs of batches and messages (crc32.c, crc32c.c). */
#ifndef SEG_CONTRACT_CRC_H
#define SEG_CONTRACT_CRC_H

#include <stdint.h>

/* --- crc32.c: zlib's ---------------------------------------------------- */
uint32_t seg_crc32(uint32_t crc, const uint8_t *buf, int64_t len);
uint32_t seg_crc32_portable(uint32_t crc, const uint8_t *buf, int64_t len);

/* --- crc32c.c -------------------------------------------------------- */
uint32_t seg_crc32c(uint32_t crc, const uint8_t *buf, int64_t len);
uint32_t seg_crc32c_portable(uint32_t crc, const uint8_t *buf, int64_t len);
int32_t seg_crc32c_is_hardware(void);

#endif
