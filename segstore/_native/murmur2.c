/* Kafka's hash of keys (org.apache.kafka.common.utils.Utils.murmur2).
 *
 * Thread contract: no state; columns are only read.
 */
#include "column.h"
#include "contract/column.h"

static uint32_t murmur2(const uint8_t *p, int64_t len)
{
    const uint32_t m = 0x5BD1E995;
    uint32_t h = 0x9747B28C ^ (uint32_t)len;
    for (; len >= 4; p += 4, len -= 4) {
        uint32_t k = p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
        k *= m;
        h = (h * m) ^ ((k ^ k >> 24) * m);
    }
    if (len) {
        uint32_t rest = p[0];
        if (len > 1)
            rest |= (uint32_t)p[1] << 8;
        if (len > 2)
            rest |= (uint32_t)p[2] << 16;
        h = (h ^ rest) * m;
    }
    h = (h ^ h >> 13) * m;
    return h ^ h >> 15;
}

int64_t seg_murmur2(const seg_column *keys, int64_t n, int32_t *out)
{
    int64_t fault = check_column(keys, 0, n);
    for (int64_t i = 0; i < n && !fault; i++) {
        slice key;
        fault = element(keys, i, &key);
        if (!fault)
            out[i] = key.len < 0 ? -1 : (int32_t)(murmur2(key.p, key.len) & 0x7FFFFFFF);
    }
    return fault ? fault : n;
}
