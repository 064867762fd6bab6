/* The ends of shared logs, as readers see them (shared_ends.c). */
#ifndef SEG_CONTRACT_SHARED_ENDS_H
#define SEG_CONTRACT_SHARED_ENDS_H

#include <stdint.h>

#include "shared.h"

/* Copy the record of a log's current end: 1; 0: the log was never opened while it was shared, or `current` names no
 * record. */
int64_t seg_shared_now(const seg_shared_log *log, seg_shared_end *out);
/* Fill `values` with the published ends of the log with this number, as a slot of seg_snapshot, if its key is
 * values[0]: 1. Returns 0, and changes no value, if the store is not shared any more, or the log lies outside of the
 * mapping, has another key, or no end. While a host swaps the ends of several logs as one, or after it died doing so,
 * the values are the next ones once the swap is decided. */
int64_t seg_shared_ends(const uint8_t *shared, int64_t len, int64_t slot, int64_t *values);
/* Fill `found` with base offset and position of each sealed end of the log with this number, if its key is `key`, the
 * end is final, and its file still has its name. Returns their number; there is room for SEG_SEALED. */
int64_t seg_shared_sealed(const uint8_t *shared, int64_t len, int64_t slot, int64_t key, int64_t *found);
/* Count an append that is already in a shared log, and wake its waiters. Returns their number, as seg_wake. */
int64_t seg_shared_count(uint8_t *ends, int64_t len, uint8_t *shared);

#endif
